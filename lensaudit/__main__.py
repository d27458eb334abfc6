"""`python -m lensaudit`: the command line."""

from lensaudit.cli.main import main

if __name__ == "__main__":
    main()
