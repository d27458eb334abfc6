"""Make the goldens of the commands again, on purpose: `python tests/golden/make_commands.py`.

With names only those: `python tests/golden/make_commands.py patch report`. With --check nothing is
written; what would change is printed. Look at `git diff tests/golden` before you commit, and say in
CHANGELOG.md which command's result changed, and why.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]


def main(arguments: list[str]) -> None:
    """Play the named cases, or all, and store what they gave."""
    sys.path.insert(0, str(TESTS))
    from support.command_cases import CASES, ENVIRONMENT
    from support.command_golden import Stage, difference, store, stored

    check = "--check" in arguments
    names = [name for name in arguments if name != "--check"] or list(CASES)
    os.environ.update(ENVIRONMENT)
    os.environ["OMP_NUM_THREADS"] = "1"  # as the Makefile's tests: sums have one order
    with tempfile.TemporaryDirectory() as folder, Stage(Path(folder), CASES) as stage:
        for name in names:
            began = time.process_time()
            record = stage.play(name)
            try:
                changed = difference(stored(name), record, name, CASES[name].tau)
            except FileNotFoundError:
                changed = f"{name}: new"
            if changed and not check:
                store(name, record)
            print(f"{time.process_time() - began:6.1f} s  {changed or name + ': as before'}")


if __name__ == "__main__":
    main(sys.argv[1:])
