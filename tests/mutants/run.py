"""Does wrong code fail? Each entry of `*.toml` breaks one line; some test must notice.

An entry is a text change of one file of the package. It is made in a copy of the tree, never here,
and the tests it names are run there; a copy has no `../shared` beside it.

    python tests/mutants/run.py [--only ID] [--all-tests] [--jobs N]
"""

import argparse
import compileall
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
LIMIT_S = 900
"""A run of tests that takes longer has not failed: the tests must end by themselves."""
PASSED, FAILED = 0, 1
"""What pytest returns; anything else means that the tests could not be run."""
SURVIVORS = 4

Verdict = Literal["killed", "survived", "unfinished", "broken"]


class EntryError(Exception):
    """An entry that no longer applies."""


@dataclass(frozen=True)
class Mutant:
    """One wrong line, and the tests that notice."""

    id: str
    file: str
    """Path from the root of the tree."""
    old: str
    """Occurs exactly once in `file`."""
    new: str
    tests: tuple[str, ...]
    """Test files, or `file::test`."""
    why: str
    """What goes wrong for a user where nobody notices."""

    def changed(self, root: Path = ROOT) -> str:
        """The text of `file` with the change made.

        Raises:
            EntryError: no such file, `old` does not occur exactly once, or what results is no code.
        """
        path = root / self.file
        if not path.is_file():
            raise EntryError(f"{self.id}: no file {self.file}")
        text = path.read_text()
        if (n := text.count(self.old)) != 1:
            raise EntryError(f"{self.id}: `old` occurs {n} times in {self.file}, wanted once")
        changed = text.replace(self.old, self.new)
        if changed == text:
            raise EntryError(f"{self.id}: `new` is `old`")
        try:
            if path.suffix == ".py":
                compile(changed, self.file, "exec")
        except SyntaxError as error:
            raise EntryError(f"{self.id}: line {error.lineno} is no code") from error
        return changed

    def check(self, root: Path = ROOT) -> None:
        """See that the change applies and that the tests it names are there.

        Raises:
            EntryError: it does not, or they are not.
        """
        self.changed(root)
        if not self.tests:
            raise EntryError(f"{self.id}: names no tests")
        for test in self.tests:
            file, _, name = test.partition("::")
            path = root / file
            if not path.is_file():
                raise EntryError(f"{self.id}: no test file {file}")
            if name and f"def {name.partition('[')[0]}(" not in path.read_text():
                raise EntryError(f"{self.id}: no test {name} in {file}")


def read_mutants(folder: Path = FOLDER) -> list[Mutant]:
    """The entries of all files of a folder.

    Raises:
        EntryError: a field is missing or unknown, or an id occurs twice.
    """
    found: list[Mutant] = []
    wanted = {field.name for field in fields(Mutant)}
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["mutant"]:
            if odd := wanted ^ set(entry):
                raise EntryError(f"{path.name}: {entry.get('id')}: field {min(odd)!r}")
            found.append(Mutant(**{**entry, "tests": tuple(entry["tests"])}))
    twice = [name for name, n in Counter(mutant.id for mutant in found).items() if n > 1]
    if twice:
        raise EntryError(f"two entries are called {twice[0]}")
    return found


@dataclass(frozen=True)
class Tried:
    """What became of one mutant."""

    mutant: Mutant
    verdict: Verdict
    seconds: float
    said: str
    """The tests' last words."""


def copy_of_tree(folder: Path) -> Path:
    """The tree without what git ignores; nothing lies beside it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    # told by a hash of the source, not by its size and second: what is changed is compiled anew
    compileall.compile_dir(folder, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return folder


def run_tests(tree: Path, tests: Sequence[str], *, limit_s: float = LIMIT_S) -> tuple[int, str]:
    """Exit code and output of pytest in a copy; -1: it did not end in time."""
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        # written anew it would be told by size and second: a changed file may have the same
        "PYTHONDONTWRITEBYTECODE": "1",
        "LENSAUDIT_TEST_SHARED": "/nonexistent",
        # code that is wrong may install packages: it is not to change the environment
        "PIP_NO_INDEX": "1",
        "UV_OFFLINE": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    # a changed copy fails the test that every entry applies: that kills nothing
    command += [*tests] or ["--ignore", "tests/mutants"]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return -1, f"did not end within {limit_s:.0f} s"
    return done.returncode, done.stdout + done.stderr


def try_mutant(mutant: Mutant, tree: Path, *, all_tests: bool = False) -> Tried:
    """Change the copy, run the tests, change it back."""
    started = time.monotonic()
    path = tree / mutant.file
    text = path.read_text()
    path.write_text(mutant.changed(tree))
    try:
        code, said = run_tests(tree, () if all_tests else mutant.tests)
    finally:
        path.write_text(text)
    verdicts: dict[int, Verdict] = {PASSED: "survived", FAILED: "killed", -1: "unfinished"}
    return Tried(mutant, verdicts.get(code, "broken"), time.monotonic() - started, said)


def try_all(mutants: Sequence[Mutant], *, jobs: int, all_tests: bool) -> Iterator[Tried]:
    """Every mutant, several at a time, each job in its own copy."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        free: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for job in range(jobs):
            # two levels down: what would lie beside the tree is in a folder of ours, too
            free.put(copy_of_tree(Path(scratch) / str(job) / "tree"))

        def one(mutant: Mutant) -> Tried:
            tree = free.get()
            try:
                return try_mutant(mutant, tree, all_tests=all_tests)
            finally:
                free.put(tree)

        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(one, mutants)


def check_unchanged(mutants: Sequence[Mutant]) -> str | None:
    """What the named tests say of the code as it is: a test that fails anyway kills nothing."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        code, said = run_tests(copy_of_tree(Path(scratch) / "0" / "tree"), tests, limit_s=4000)
    return None if code == PASSED else said


def chosen(arguments: argparse.Namespace) -> list[Mutant]:
    """The mutants a command line names, each checked to apply."""
    mutants = read_mutants()
    if arguments.only:
        if lost := set(arguments.only) - {mutant.id for mutant in mutants}:
            raise EntryError(f"no entry is called {min(lost)}")
        mutants = [mutant for mutant in mutants if mutant.id in arguments.only]
    if arguments.tests:
        mutants = [replace(mutant, tests=tuple(arguments.tests)) for mutant in mutants]
    for mutant in mutants:
        mutant.check()
    return mutants


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", metavar="ID", action="append", help="this entry; repeatable")
    parser.add_argument("--tests", metavar="FILE", action="append", help="instead of the entry's")
    parser.add_argument("--all-tests", action="store_true", help="the whole suite per entry")
    parser.add_argument("--jobs", type=int, default=1, help="at a time")
    parser.add_argument("--skip-unchanged", action="store_true", help="trust the code as it is")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print killed or survived for each entry; 4 where one survives, 2 where one does not apply."""
    options = parsed(arguments)
    try:
        mutants = chosen(options)
    except EntryError as error:
        print(error, file=sys.stderr)
        return 2
    started = time.monotonic()
    if not options.skip_unchanged and (said := check_unchanged(mutants)):
        print(said, "the tests fail without any change", sep="\n", file=sys.stderr)
        return 2
    left = []
    for tried in try_all(mutants, jobs=options.jobs, all_tests=options.all_tests):
        print(f"{tried.verdict:10}  {tried.seconds:6.1f} s  {tried.mutant.id}", flush=True)
        if tried.verdict in ("unfinished", "broken"):
            print(*tried.said.splitlines()[-15:], sep="\n", file=sys.stderr)
        if tried.verdict != "killed":
            left.append(tried)
    n_killed = len(mutants) - len(left)
    print(f"{n_killed} of {len(mutants)} killed in {time.monotonic() - started:.0f} s")
    return SURVIVORS if left else 0


if __name__ == "__main__":
    sys.exit(main())
