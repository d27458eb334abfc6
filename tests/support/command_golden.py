"""What a command says and writes, as text that two runs on two machines share.

A case is one call of the command line in a folder of its own. The folder starts as a copy of what
the cases named in `after` left behind; recorded are the exit code, both screens and every file
that the call wrote. What a run may not share with another is replaced before it is stored: times,
dates, versions, the commit, absolute paths, keys made of them, and the width of tables. The rest
is compared character by character, but for computed numbers, wherever they stand: `tolerance`.
"""

import base64
import contextlib
import io
import json
import re
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from unittest import mock

import lensaudit
from lensaudit.settings import TAU
from support.judge_server import JudgeStub
from support.tolerance import ALLOWANCE, NATS, WITHIN, close, ratio

GOLDEN = Path(__file__).parents[1] / "golden" / "commands"
Rules = tuple[tuple[str, str], ...]
"""Patterns, and what stands in their place."""
TEXTS = (".json", ".jsonl", ".csv", ".txt", ".toml", ".html", ".md")


@dataclass(frozen=True)
class Case:
    """One call of `lensaudit`."""

    name: str
    argv: str
    """As typed, split at blanks; several calls on a line each."""
    after: tuple[str, ...] = ()
    """Cases whose folders this one starts from."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path -> text, written before the call."""
    prepare: Callable[[Path], None] | None = None
    """Further changes of the folder before the call."""
    skip: tuple[str, ...] = ()
    """Patterns of written files that are not recorded."""
    stderr: bool = True
    """Whether the second screen is the same every time."""
    rules: Rules = ()
    """Further replacements (pattern, text) of what may differ."""
    unordered: tuple[str, ...] = ()
    """Patterns of files whose lines stand in the order of keys that `rules` replace."""
    stub: bool = False
    """Whether `{stub}` in the call is the address of a pretended judge."""
    slow: bool = False
    tau: float = TAU
    """The smallest S1 that a score of it divides by."""


class Stage(contextlib.ExitStack):
    """Plays cases in a folder, each at most once; closes the pretended judge at the end."""

    def __init__(self, folder: Path, cases: Mapping[str, Case]) -> None:
        super().__init__()
        self.folder = folder
        self.cases = cases
        self._played: dict[str, dict[str, object]] = {}
        self._stub: str | None = None

    def play(self, name: str) -> dict[str, object]:
        """Exit code, screens and written files of a case; cases it builds on are played first."""
        if name not in self._played:
            case = self.cases[name]
            for before in case.after:
                self.play(before)
            self._played[name] = self._record(case)
        return self._played[name]

    def lay_out(self, case: Case, folder: Path) -> None:
        """Make the folder that a case starts from; the cases it builds on were played."""
        folder.mkdir()
        for before in case.after:
            shutil.copytree(self.folder / before, folder, dirs_exist_ok=True)
        for path, text in case.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        if case.prepare is not None:
            case.prepare(folder)

    def _record(self, case: Case) -> dict[str, object]:
        folder = self.folder / case.name
        self.lay_out(case, folder)
        found = _contents(folder)
        calls = [self._call(case, argv, folder) for argv in case.argv.split("\n")]
        written = {
            path: data
            for path, data in _contents(folder).items()
            if found.get(path) != data and not any(re.match(rule, path) for rule in case.skip)
        }
        gone = sorted(set(found) - set(_contents(folder)))
        screens = calls[0] if len(calls) == 1 else {"calls": calls}
        return (
            screens
            | {
                "files": {
                    normal(path, folder, case.rules)[0]: _shown(path, data, folder, case)
                    for path, data in sorted(written.items())
                },
            }
            | ({"removed": gone} if gone else {})
        )

    def _call(self, case: Case, argv: str, folder: Path) -> dict[str, object]:
        typed = argv.format(stub=self.stub()) if case.stub else argv
        code, out, err = call(typed.split(), folder)
        return {
            "argv": argv,
            "exit": code,
            "stdout": normal(out, folder, (CENTRED, *case.rules)),
            "stderr": normal(err, folder, case.rules) if case.stderr else "not recorded",
        }

    def stub(self) -> str:
        """The address of the pretended judge, started when it is first asked for."""
        if self._stub is None:
            self._stub = self.enter_context(JudgeStub()).url
        return self._stub


def call(argv: list[str], folder: Path) -> tuple[int, str, str]:
    """Run a command in a folder; exit code, stdout, stderr."""
    from lensaudit.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        mock.patch("lensaudit.cli.terminal.QUIET_SECONDS", float("inf")),  # whatever it takes
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main(argv)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return code, out.getvalue(), err.getvalue()


UNSEEN = {"activations", ".locks", "attempts", "claims"}
"""Folders of caches and of who did what when; `activations ls` and `sweep status` show them."""


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not UNSEEN & set(path.relative_to(folder).parts)
    }


def _shown(path: str, data: bytes, folder: Path, case: Case) -> object:
    if not path.endswith(TEXTS) or path.endswith("tokenizer.json"):
        return "not shown"
    text = data.decode()
    if path.endswith(".html"):
        # the page's policy in its head holds the hashes of both
        text = re.sub(r"(<style>|<script>).*?(</style>|</script>)", r"\1…\2", text, flags=re.DOTALL)
        text = re.sub(r'"(baseline|s1|scores)":"([\w+/=]+)"', _unpacked, text)
        text = re.sub(r'"(base64|s2)":"[^"]*"', r'"\1":…', text)
    lines = normal(text, folder, case.rules)
    return sorted(lines) if any(re.match(rule, path) for rule in case.unordered) else lines


def _unpacked(packed: re.Match[str]) -> str:
    """Numbers of the page, which are packed as float32."""
    data = base64.b64decode(packed[2])
    numbers = struct.unpack(f"<{len(data) // 4}f", data)
    return f'"{packed[1]}":[{", ".join(f"{number:#.7g}" for number in numbers)}]'


PACKAGE = Path(lensaudit.__file__).resolve().parent
CENTRED = (r"^ {4,}", "")
"""The title of a table stands in its middle, wherever that is."""
RULES: Rules = (
    # box lines and padding follow the width of the terminal
    (r"[─━═]{2,}", "─"),
    (r"(?<=\S) {2,}", " "),
    (r"[ \t]+$", ""),
    # hashes of files that hold times or last bits
    (r'("check": ?)"[0-9a-f]{16,32}"', r"\1…"),
    # what a run was asked: the hash is of the code, too
    (r'\s*"asked": ?\{[^}]*\},', ""),
    (r'\{\s*"n_bytes": ?\d+,\s*"blake2b": ?"[0-9a-f]{32}"\s*\}', "{…}"),
    # the hash of a log is one of last bits
    (r'("(?:retain_log|page)": ?)"[0-9a-f]{32}"', r"\1…"),
    # what a tokenizer does is told by the library that loads it
    (r'("tokenization": ?)"[0-9a-f]{32}"', r"\1…"),
    # a log of jobs holds times
    (r'("jobs\.jsonl": ?)\{[^}]*\}', r"\1{…}"),
    # a cache tells how to fill it again, with the folder it was made in: as long as that is
    (r'("?n_bytes"?: ?)\d+(?: \([\d.]+ kB\))?', r"\1<bytes>"),
    (r"\b\d{6} bytes hash", "<bytes> bytes hash"),
    (r"\b\d{3}\.\d kB", "<size>"),
    # times
    (r'("time": ?)\d+\.\d+', r"\1…"),
    (r'("(?:seconds|seconds_per_unit|eta_s|last_used_s|submitted|finished)": ?)[^,\n}]+', r"\1…"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|\+00:00)?", "<date>"),
    # bitsandbytes says it once a process, in whichever case rounds first
    (r"^Failed to load CPU gemm_4bit_forward .*\n", ""),
    # versions and the commit
    (r"lensaudit \d+\.\d+\.\d+", "lensaudit <version>"),
    (r'("versions": ?\{)[^}]*\}', r"\1…}"),
    (r'("(?:git_commit|host|pid|version|transformers_version)": ?)("[^"]*"|\d+|null)', r"\1…"),
)


def normal(text: str, folder: Path, rules: Rules = ()) -> list[str]:
    """Lines of a text without what differs between runs, widths and machines."""
    # a file may name the folder of the case that this one started from
    text = re.sub(re.escape(str(folder.resolve().parent)) + r"/\w+", "$WORK", text)
    # a checkpoint's folder is named by its last part: where the package keeps it is its own matter
    text = re.sub(re.escape(str(PACKAGE)) + r'/[^\s"]*?([^/\s"]+)(?=[\s"]|$)', r"$PACKAGE/\1", text)
    text = re.sub(r"127\.0\.0\.1:\d+", "$STUB", text)
    for pattern, replacement in (*rules, *RULES):
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text.split("\n")


NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]\d+)?(?!\w|\.\d)|▕[^▏]*▏|▬+")
"""A number as it is written, or as it is drawn: a bar, or one character a layer."""
SHADES = "_▁▂▃▄▅▆▇█"
ROUNDED = ("lens_by_token", "p", "rows")
"""Lists of a file whose numbers have three to five digits."""
READ = ("s1", "s2", "baseline")
"""What a model's log-probabilities give by themselves, whatever divides them afterwards."""


def difference(wanted: object, found: object, where: str = "", tau: float = TAU) -> str | None:
    """The first place where two records differ; None if they agree.

    `tau` is the smallest S1 that is divided by.
    """
    seen = Comparison(tau)
    return next(_differences(wanted, found, where, "", seen), None) or seen.problem(where)


@dataclass
class Comparison:
    """What has been seen of two records: numbers that were rounded when they were printed."""

    tau: float = TAU
    expected: float = 0.0
    """How many last digits move if each number moved by NATS before it was rounded."""
    moved: set[tuple[str, str]] = field(default_factory=set)
    """Those that did; the same number may stand in many places."""
    columns: list[str] = field(default_factory=list)
    """Of the table that is compared."""
    section: str = ""
    """The last name at the outermost level of a JSON file: of a log, a metric."""

    def problem(self, where: str) -> str | None:
        """Too many have moved to have lain beside a boundary."""
        most = 1 + ALLOWANCE * self.expected
        if len(self.moved) <= most:
            return None
        return f"{where}: {len(self.moved)} last digits moved, at most {most:.0f} may: {self.moved}"

    def within(self, number: re.Match[str], kind: str) -> float:
        """How far a number may move, by its name."""
        name, tau = self.name(number, kind), self.tau
        if kind == ".csv" and name == "erasure" and "s1" in self.columns:
            return ratio(float(number.string.split(",")[self.columns.index("s1")]))
        if name in READ:
            return NATS
        if (known := name if name in WITHIN else self.section) in WITHIN:
            return WITHIN[known](float(number[0]))
        return ratio(tau) if name == "erasure" or tau < TAU else NATS

    def name(self, number: re.Match[str], kind: str) -> str:
        """Of its column, or the one before it in JSON."""
        before = number.string[: number.start()]
        if kind == ".csv":
            return (self.columns[before.count(",") :] or [""])[0]
        _, named, name = before.rpartition('":')[0].rpartition('"')
        return name if named else ""


def _differences(
    wanted: object, found: object, where: str, kind: str, seen: Comparison
) -> Iterator[str]:
    if isinstance(wanted, dict) and isinstance(found, dict) and wanted.keys() == found.keys():
        for key, one in wanted.items():
            its = Path(key).suffix if key.endswith(TEXTS) else kind
            yield from _differences(one, found[key], f"{where} {key}", its, seen)
    elif isinstance(wanted, list) and isinstance(found, list):
        seen.columns = str(wanted[0]).split(",") if kind == ".csv" and wanted else []
        for number, (one, other) in enumerate(zip_longest(wanted, found, fillvalue="<no line>"), 1):
            yield from _differences(one, other, f"{where} line {number}", kind, seen)
    elif isinstance(wanted, str) and isinstance(found, str):
        if not same_text(wanted, found, kind, seen):
            yield f"{where}:\n- {wanted}\n+ {found}"
    elif wanted != found:
        said = (sorted(one) if isinstance(one, dict) else repr(one) for one in (wanted, found))
        yield "{}: {} became {}".format(where, *said)


def same_text(wanted: str, found: str, kind: str = "", seen: Comparison | None = None) -> bool:
    """Whether two lines agree: computed numbers as `tolerance` says, all else exactly.

    A number of a file has all its digits, one on a screen, on a page or in a sentence a few.

    >>> same_text('{"uds": 0.90936951}', '{"uds": 0.90936952}')
    True
    >>> same_text('{"uds": 0.9093}', '{"uds": 0.9094}'), same_text("n 4", "n 5")
    (False, False)
    >>> same_text("UDS .37", "UDS .38"), same_text("UDS .37", "UDS .39")
    (True, False)
    """
    if NUMBER.sub("#", wanted) != NUMBER.sub("#", found):
        return False
    seen = seen or Comparison()
    if kind == ".json" and (outermost := re.match(r' "(\w+)": ', wanted)):
        seen.section = outermost[1]
    pairs = zip(NUMBER.finditer(wanted), NUMBER.finditer(found), strict=True)
    return all([_same(one, other, kind, seen) for one, other in pairs])


def _same(wanted: re.Match[str], found: re.Match[str], kind: str, seen: Comparison) -> bool:
    one, other = wanted[0], found[0]
    if one.isdecimal() and other.isdecimal():
        return one == other
    if one[0] in "▕▬":
        return _same_drawing(one, other)
    a, b, unit, longer = float(one), float(other), *min((_unit(n), n) for n in (one, other))
    if _unit(one) != _unit(other) and longer[-1] == "0" and "e" not in longer:
        return False  # 0.50 for 0.5: printed in another way
    if _in_full(wanted, unit, kind, seen):
        return close(a, b, seen.within(wanted, kind) + unit * (unit <= 2 * NATS))
    seen.expected += min(1.0, NATS * max(1.0, abs(a)) / unit)
    if one != other:
        seen.moved.add((one, other))
    return one == other or (unit < max(0.1, 0.01 * abs(a)) and abs(a - b) < 1.5 * unit)


def _unit(number: str) -> float:
    """One of the last digit.

    >>> _unit("0.37"), _unit("12"), _unit("1.2e-05")
    (0.01, 1.0, 1e-06)
    """
    digits, _, exponent = number.lower().partition("e")
    return float(f"1e{int(exponent or 0) - len(digits.partition('.')[2])}")


def _same_drawing(one: str, other: str) -> bool:
    """Bars end, and layers are shaded, at most one step apart."""
    if one[0] == "▬":
        return abs(len(one) - len(other)) <= 1
    return len(one) == len(other) and all(
        a == b or (a in SHADES and b in SHADES and abs(SHADES.index(a) - SHADES.index(b)) <= 1)
        for a, b in zip(one, other, strict=True)
    )


def _in_full(number: re.Match[str], unit: float, kind: str, seen: Comparison) -> bool:
    """Is it written with all its digits: a value of csv or JSON, or a string of nothing else?"""
    before, after = number.string[: number.start()], number.string[number.end() :]
    if kind in (".csv", ".toml") or (before.endswith('"') and after.startswith('"')):
        return True
    is_json = kind in (".json", ".jsonl") or re.match(r"\s*[\[{]|<script type=", number.string)
    in_words = before.replace('\\"', "").count('"') % 2
    is_rounded = unit > 1e-6 and seen.name(number, kind) in ROUNDED
    return bool(is_json) and not in_words and not is_rounded


def store(name: str, record: object) -> None:
    """Write a golden file."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    path = GOLDEN / f"{name}.json"
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def stored(name: str) -> object:
    """Read a golden file."""
    return json.loads((GOLDEN / f"{name}.json").read_text())
