"""Commands asked in combinations that no test combines: do relations around the scores hold?

    python tests/campaign/run.py [--seed N] [--budget MINUTES] [--slice] [--only RELATION]
                                 [--case PATTERN] [--workers N] [--write] [--list]

The process imports everything once and forks for each case and each call. What ended is a line in
build/campaign/<key>/log.jsonl, where the key is of the package's code and the seed: a campaign that
was killed goes on where it was; lines that another version of the campaign wrote are left out.
Failures that are known stand in known.toml; the exit code is 1 where another case fails, or a known
one no longer does.
"""

import argparse
import fnmatch
import hashlib
import json
import os
import random
import shutil
import sys
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
for place in (ROOT, HERE.parent):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))

from campaign.calls import ENVIRONMENT, Breach, Skipped, import_all  # noqa: E402

BUILD = ROOT / "build" / "campaign"
KNOWN = HERE / "known.toml"
DOC = ROOT / "docs" / "evidence" / "campaign.md"
BEGIN, END = "<!-- campaign: made by `make campaign` -->", "<!-- end of campaign -->"
SLICE_S = 40.0
CASE_S = 1800.0
Outcome = Literal["held", "known", "unknown", "skipped"]


@dataclass(frozen=True)
class Result:
    """How a case ended."""

    name: str
    outcome: Outcome
    why: str = ""
    exits: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    by: str = ""
    """Of which version of the campaign; empty: of this one."""

    @property
    def relation(self) -> str:
        """Of which relation it is a case."""
        return self.name.partition(": ")[0]


@dataclass(frozen=True)
class Known:
    """A failure that is known."""

    cases: tuple[str, ...]
    """Names of cases, or patterns of names."""
    what: str
    """What happens."""
    mended_by: str
    """The topic whose work will mend it."""
    says: str = ""
    """Part of what the case says when it fails; empty: whatever it says."""
    sometimes: bool = False
    """A race: it holds most of the time, which does not show that it was mended."""

    def covers(self, result: Result) -> bool:
        """Is this failure the known one?"""
        return self.means(result.name) and self.says in result.why

    def means(self, name: str) -> bool:
        """Is a case of this name among its cases?"""
        return any(fnmatch.fnmatchcase(name, one) for one in self.cases)

    def each(self) -> "list[Known]":
        """An entry for each of its cases."""
        return [replace(self, cases=(one,)) for one in self.cases]


def read_known(path: Path = KNOWN) -> list[Known]:
    """The list of known failures."""
    entries = tomllib.loads(path.read_text()).get("known", [])
    return [Known(**one | {"cases": tuple(one["cases"])}) for one in entries]


def judged(results: Sequence[Result], known: Sequence[Known]) -> list[Result]:
    """The results; a failure that is on the list is known."""
    found = []
    for one in results:
        failed = one.outcome in ("known", "unknown")
        is_known = failed and any(entry.covers(one) for entry in known)
        outcome: Outcome = ("known" if is_known else "unknown") if failed else one.outcome
        found.append(replace(one, outcome=outcome))
    return found


def mended(results: Sequence[Result], known: Sequence[Known], names: Sequence[str]) -> list[Known]:
    """Cases of entries that no longer fail: all that a pattern means were asked, and none does.

    Args:
        results: of this campaign.
        known: the list.
        names: of all cases of the seed.
    """
    ended = {one.name for one in results}
    gone = []
    for entry in [one for entries in known for one in entries.each()]:
        meant = [name for name in names if entry.means(name)]
        fails = any(entry.covers(one) for one in results if one.outcome in ("known", "unknown"))
        if meant and ended.issuperset(meant) and not fails and not entry.sometimes:
            gone.append(entry)
    return gone


def code_key(folder: Path, more: str = "") -> str:
    """Of all Python below a folder, and of a word more; 16 hex digits."""
    found = hashlib.blake2b(more.encode(), digest_size=8)
    for path in sorted(folder.rglob("*.py")):
        found.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return found.hexdigest()


class Log:
    """Lines of cases that ended; only ever appended to."""

    def __init__(self, path: Path, by: str = "") -> None:
        self.path = path
        self.by = by
        """Version of the campaign; lines of another are left out. Empty: of any."""

    def read(self) -> dict[str, Result]:
        """Name -> result; a line that a kill cut short is left out."""
        found = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                try:
                    one = Result(**json.loads(line))
                except (ValueError, TypeError):
                    continue
                if self.by in ("", one.by):
                    found[one.name] = one
        return found

    def add(self, result: Result) -> None:
        """Append a line."""
        with self.path.open("a") as file:
            line = asdict(replace(result, by=self.by))
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def ask(case, shelf: Path, scratch: Path, seed: int) -> Result:
    """Ask one case, in this process."""
    from campaign.bench import Bench

    digest = hashlib.blake2b(f"{seed} {case.name}".encode(), digest_size=6).hexdigest()
    place = scratch / digest
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    bench = Bench(shelf, place, int(digest, 16))
    began = time.monotonic()
    outcome: Outcome = "held"
    why = ""
    try:
        case.check(bench)
    except Breach as breach:
        outcome, why = "unknown", str(breach)
    except Skipped as skipped:
        outcome, why = "skipped", str(skipped)
    except Exception:
        outcome, why = "unknown", "the campaign itself: " + traceback.format_exc(limit=-3)
    finally:
        for root, folders, _ in os.walk(place):
            for one in folders:
                if not os.path.islink(os.path.join(root, one)):
                    os.chmod(os.path.join(root, one), 0o700)
        shutil.rmtree(place, ignore_errors=True)
    why = why.replace(str(place), "$WORK").replace(str(ROOT), "$ROOT")
    return Result(
        case.name, outcome, why[:1500], dict(bench.caller.exits), time.monotonic() - began
    )


def side_by_side(cases: Sequence, log: Log, shelf: Path, scratch: Path, args, until: float) -> int:
    """Ask cases, each in a forked process, as many at once as there are workers.

    Returns:
        How many were left for want of time.
    """
    waiting, running = list(cases), {}
    while waiting or running:
        while waiting and len(running) < args.workers and time.monotonic() < until:
            case = waiting.pop(0)
            read, write = os.pipe()
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                os.close(read)
                result = ask(case, shelf, scratch, args.seed)
                with os.fdopen(write, "w") as file:
                    json.dump(asdict(result), file)
                os._exit(0)
            os.close(write)
            running[pid] = (case, read)
        if not running:
            break
        pid, _ = os.wait()
        if pid not in running:
            continue
        case, read = running.pop(pid)
        with os.fdopen(read) as file:
            text = file.read()
        result = Result(**json.loads(text)) if text else Result(case.name, "unknown", "it died")
        log.add(result)
        if result.outcome == "unknown" or args.verbose:
            print(f"{result.outcome}: {result.name} ({result.seconds:.0f} s) {result.why[:600]}")
            sys.stdout.flush()
    return len(waiting)


def fill_shelf(shelf: Path, scratch: Path, names: Sequence[str] | None = None) -> list[str]:
    """Make the result of every recipe once; what is there is kept.

    Returns:
        What went wrong, a line a recipe.
    """
    from campaign.bench import prepare, slug, write_files
    from campaign.calls import Caller
    from campaign.recipes import RECIPES

    shelf.mkdir(parents=True, exist_ok=True)
    write_files(shelf)
    caller, wrong = Caller(scratch / "screens"), []
    for one in RECIPES.values():
        if not one.out or (names is not None and one.name not in names) or one.name == "init":
            continue
        mark = shelf / ".made" / slug(one.name)
        asked = f"{one.argv} {one.more}"
        if mark.exists() and mark.read_text() == asked:
            continue
        prepare(one, shelf, shelf)
        if one.name == "sweep run":
            shutil.copytree(shelf / "sweep-plan", shelf / "sweep-run", dirs_exist_ok=True)
            argv = ["sweep", "run", "sweep-run"]
        else:
            argv = one.typed(slug(one.name))
        done = caller.call(argv, shelf)
        if done.exit == 0:
            mark.parent.mkdir(exist_ok=True)
            mark.write_text(asked)
            print(f"shelf: {one.name} {done.seconds:.1f} s")
        else:
            wrong.append(f"{one.name}: {done}")
            print(f"shelf: {wrong[-1]}")
        sys.stdout.flush()
    return wrong


def ordered(cases: Sequence, seed: int) -> list:
    """Of each relation one case, then of each a second, and so on: a cut takes from all alike."""
    shuffled = list(cases)
    random.Random(seed).shuffle(shuffled)
    ranks: Counter[str] = Counter()
    places = []
    for one in shuffled:
        ranks[one.relation] += 1
        places.append((ranks[one.relation], len(places), one))
    counts = Counter(one.relation for one in cases)
    return [one for *_, one in sorted(places, key=lambda p: (p[0] / counts[p[2].relation], p[1]))]


def every_relation() -> list:
    """All relations, in the order of their files."""
    import campaign.relations  # noqa: F401
    from campaign.relation import RELATIONS

    return list(RELATIONS.values())


def every_case(seed: int) -> Iterator:
    """All cases of a seed."""
    for one in every_relation():
        yield from one.asked(seed)


def main(arguments: Sequence[str] | None = None) -> int:
    from campaign.recipes import FILES

    args = _arguments(arguments)
    os.environ.update(ENVIRONMENT)
    os.environ["XDG_CACHE_HOME"] = str(BUILD / "cache")
    began = time.monotonic()
    place = Path(args.build) if args.build else BUILD
    package = code_key(ROOT / "lensaudit")
    log_folder = place / f"{package}-{args.seed}"
    shelf = place / f"shelf-{code_key(ROOT / 'lensaudit', repr(FILES))}"
    scratch = Path(args.scratch) if args.scratch else log_folder / "work"
    log_folder.mkdir(parents=True, exist_ok=True)
    if not args.list:
        import_all()
    cases = list(every_case(args.seed))
    names = [one.name for one in cases]
    if double := [name for name, n in Counter(names).items() if n > 1]:
        raise SystemExit(f"two cases of one name: {double[:5]}")
    chosen = [
        one
        for one in cases
        if (not args.slice or one.slice)
        and (not args.only or one.relation in args.only)
        and fnmatch.fnmatchcase(one.name, args.case)
    ]
    if args.list:
        print("\n".join(one.name for one in chosen))
        return 0
    by = "" if args.keep else code_key(HERE)
    log = Log(log_folder / ("slice.jsonl" if args.slice else "log.jsonl"), by)
    ended = {} if args.again else log.read()
    needs = _slice_needs() if args.slice else None
    wrong = fill_shelf(shelf, scratch, needs)
    until = time.monotonic() + SLICE_S if args.slice else began + args.budget * 60
    left = [one for one in ordered(chosen, args.seed) if one.name not in ended]
    print(f"{len(chosen)} cases, {len(chosen) - len(left)} of them ended before")
    n_left = side_by_side(left, log, shelf, scratch, args, until)
    asked = {one.name for one in chosen}
    known = read_known()
    results = judged([one for one in log.read().values() if one.name in asked], known)
    text = report(results, args.seed, time.monotonic() - began, n_left)
    print(text)
    strangers = mended(results, known, names)
    for entry in strangers:
        print(f"mended: {entry.cases[0]!r} ({entry.what}): take it off the list")
    unknown = [one for one in results if one.outcome == "unknown"]
    if args.write and not unknown:
        write_table(text)
    for one in unknown:
        print(f"unknown: {one.name}\n    {one.why[:800]}")
    shutil.rmtree(scratch, ignore_errors=True)
    return 1 if unknown or strangers or wrong else 0


def _slice_needs() -> list[str]:
    from campaign.relations import SLICE_RECIPES

    return list(SLICE_RECIPES)


def report(results: Sequence[Result], seed: int, seconds: float, n_left: int) -> str:
    """The table: relations by outcome, calls by exit code."""
    from campaign.relation import RELATIONS

    lines = [
        "| relation | held | known | unknown | skipped | calls |",
        "|---|---|---|---|---|---|",
    ]
    total: Counter[str] = Counter()
    exits: Counter[str] = Counter()
    for name in RELATIONS:
        own = [one for one in results if one.relation == name]
        if not own:
            continue
        counts = Counter(one.outcome for one in own)
        n_calls = sum(sum(one.exits.values()) for one in own)
        total.update(counts)
        for one in own:
            exits.update(one.exits)
        cells = [counts[one] for one in ("held", "known", "unknown", "skipped")]
        lines.append(f"| {name} | {' | '.join(map(str, cells))} | {n_calls} |")
    cells = [total[one] for one in ("held", "known", "unknown", "skipped")]
    lines.append(f"| all | {' | '.join(map(str, cells))} | {sum(exits.values())} |")
    codes = ", ".join(f"{code}: {n}" for code, n in sorted(exits.items(), key=lambda p: -p[1]))
    lines += ["", f"Seed {seed}. Calls by exit code: {codes or 'none'}."]
    if n_left:
        lines[-1] += f" {n_left} cases were left for want of time."
    return "\n".join(lines)


def write_table(text: str, doc: Path = DOC) -> None:
    """Put the table between its marks in the page."""
    page = doc.read_text()
    if BEGIN not in page:
        raise SystemExit(f"{doc}: no mark {BEGIN}")
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    doc.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}")


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=120, metavar="MINUTES")
    parser.add_argument("--slice", action="store_true", help="the quick cases, at most a minute")
    parser.add_argument("--only", action="append", metavar="RELATION")
    parser.add_argument("--case", default="*", metavar="PATTERN")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--build", help="folder of logs and of the shelf")
    parser.add_argument("--scratch", help="folder of working folders")
    parser.add_argument("--again", action="store_true", help="ask also what ended before")
    parser.add_argument("--keep", action="store_true", help="believe lines of another version")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument(
        "--write",
        action="store_true",
        help="put the table into docs/evidence/campaign.md, where nothing is unknown",
    )
    parser.add_argument("--list", action="store_true", help="name the cases and ask none")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
