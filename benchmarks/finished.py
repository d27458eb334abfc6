"""How long does a command take whose answer lies in its folder already?

    OMP_NUM_THREADS=1 python -m benchmarks.finished [--without-demo]

Each command is run in an empty folder, which makes its results, and then again: of these runs the
processor seconds, the least and the median. A run that writes a result anew, or fails, is an error
and no line. The last line is the same of what every such command needs of other people's libraries.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.commands import ran
from benchmarks.machine import describe
from benchmarks.work import NotMeasured

AGAIN = 7
COMMANDS = (
    "worst --source demo/npo --attack greedy --limit 2 --out w",
    "sample --source demo/npo --samples 2 --limit 2 --max-new-tokens 2 --out s",
    "quantize --source demo/npo --out q",
    "rtt run --source demo/npo --epochs 1 --out r",
    "relearn --source demo/npo --out l",
    "effort --source demo/npo --limit 8 --steps 2 --out e",
    "know --source demo/npo --reader outputs --out k",
    "cache --model demo/npo --limit 2",
    "meta faithfulness --pool-knows demo/full --pool-forgot demo/retain --metric prob --limit 2 "
    "--out m",
    "audit --source demo/npo --limit 8 --out a",
)
DEMO = "demo --out d"
LIBRARIES = "import numpy, scipy.special, pydantic, click, jinja2"


def results(folder: str) -> dict[Path, int]:
    """Result files, and when each was written.

    Left out are the seals of caches, which say when these were read last, and what `meta` says,
    which it makes of results that it reads again.
    """
    found = Path(folder).rglob("*.json*")
    own = (one for one in found if one.name != "SEAL.json" and "m" not in one.parts)
    return {one: one.stat().st_mtime_ns for one in own}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--without-demo", action="store_true", help="it takes minutes to make")
    commands = COMMANDS if parser.parse_args().without_demo else (*COMMANDS, DEMO)
    print(f"{describe()}\n\n| command | made, s | again, least | again, median |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for line in commands:
            command = [sys.executable, "-m", "lensaudit", *line.split(), "--quiet"]
            made = ran(command, folder).processor_s
            before = results(folder)
            again = [ran(command, folder).processor_s for _ in range(AGAIN)]
            if results(folder) != before:
                raise NotMeasured(f"{line}: wrote results anew")
            print(f"| `{line}` | {made:.1f} | {min(again):.2f} | {median(again):.2f} |", flush=True)
        libraries = [sys.executable, "-c", LIBRARIES]
        imported = [ran(libraries, folder).processor_s for _ in range(AGAIN)]
        print(f"| `{LIBRARIES}` | | {min(imported):.2f} | {median(imported):.2f} |")


if __name__ == "__main__":
    main()
