"""A slice of the campaign; and that each kind of relation fails where it is broken."""

import dataclasses
import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from campaign import run
from campaign.bench import Bench
from campaign.calls import Breach, Done
from campaign.relations import asking, options, places, surroundings
from campaign.values import Choice

HERE = Path(__file__).resolve().parent


def test_a_slice_of_the_campaign_finds_nothing_new(tmp_path):
    command = [sys.executable, str(HERE / "run.py"), "--slice", "--workers", "1"]
    command += ["--build", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "| all |" in done.stdout
    log = run.Log(next(tmp_path.glob("*/slice.jsonl"))).read()
    assert len({one.relation for one in log.values() if one.outcome == "held"}) >= 5


def test_every_known_failure_names_a_case_and_who_mends_it():
    names = [one.name for one in run.every_case(1)]
    assert len(names) == len(set(names))
    for entry in run.read_known():
        for one in entry.each():
            assert any(map(one.means, names)), one.cases
        assert entry.what
        assert entry.mended_by in TOPICS, entry.mended_by


TOPICS = {
    "first things",
    "a verdict that hears",
    "one record per outcome",
    "one door in",
    "other people's files",
}


def failed(name: str, why: str) -> run.Result:
    return run.Result(name, "unknown", why)


def test_a_known_failure_is_known_for_what_it_says_and_no_other():
    known = [run.Known(("again: eval*",), "it is written anew", "one door in", says="changed")]
    results = [
        failed("again: eval", "changed: eval/manifest.json"),
        failed("again: eval own", "traceback"),
        failed("json: eval", "changed"),
    ]
    assert [one.outcome for one in run.judged(results, known)] == ["known", "unknown", "unknown"]


def test_an_entry_that_no_longer_fails_must_go():
    names = ["again: eval", "again: eval own", "again: patch"]
    known = [run.Known(("again: eval*",), "it is written anew", "one door in", says="changed")]
    held = [run.Result(name, "held") for name in names]
    assert run.mended(held, known, names) == known
    assert (
        run.mended(held, [dataclasses.replace(one, sometimes=True) for one in known], names) == []
    )
    assert run.mended(held[:1], known, names) == [], "one of its cases was not asked"
    assert run.mended([held[0], failed(names[1], "changed")], known, names) == []
    assert run.mended([held[0], failed(names[1], "other")], known, names) == known


def test_a_log_that_was_cut_short_is_read_up_to_the_cut(tmp_path):
    log = run.Log(tmp_path / "log.jsonl")
    log.add(run.Result("again: eval", "held", exits={"0": 2}))
    log.add(run.Result("again: patch", "held"))
    log.path.write_text(log.path.read_text()[:-20])
    assert list(log.read()) == ["again: eval"]


def test_the_table_stands_in_the_page_as_the_program_writes_it(tmp_path):
    page = run.DOC.read_text()
    block = page.partition(run.BEGIN)[2].partition(run.END)[0]
    head, _, *rows = block.strip().splitlines()
    assert head == "| relation | held | known | unknown | skipped | calls |"
    cells = [[*map(str.strip, row.strip("|").split("|"))] for row in rows if row.startswith("|")]
    assert all(len(row) == 6 for row in cells)
    *each, last = [[int(cell) for cell in row[1:]] for row in cells]
    assert [sum(column) for column in zip(*each, strict=True)] == last
    assert last[2] == 0, "no unknown failure stands in the page"
    copy = tmp_path / "page.md"
    copy.write_text(page)
    run.write_table(block.strip("\n"), copy)
    assert copy.read_text() == page


# planted breaches: a relation that cannot fail says nothing


SUMMARY = {"uds": 0.25, "n": 4, "note": "x" * 60}
MANIFEST = {"files": {"summary.json": {}}}


def write_result(place: Path, numbers: dict) -> None:
    """A result folder, as a pretended command leaves it."""
    place.mkdir(parents=True, exist_ok=True)
    for name, content in (("summary.json", numbers), ("manifest.json", MANIFEST)):
        path = place / name
        if not path.exists() or json.loads(path.read_text()) != content:
            path.write_text(json.dumps(content))


class Planted(Bench):
    """A bench whose calls are pretended: a function of the words and the folder."""

    def __init__(self, tmp_path: Path, pretended) -> None:
        super().__init__(tmp_path / "shelf", tmp_path / "work", 1)
        for name in ("patch", "eval", "know", "cache", "sample"):
            write_result(self.shelf / name, SUMMARY)

        def call(argv, folder, **_how) -> Done:
            code, out, err = pretended(list(argv), folder) or (0, "", "")
            return Done(tuple(argv), code, out, err, 1.0)

        self.call = call
        self.at_once = lambda argv, folder, n: [call(argv, folder) for _ in range(n)]


def out_of(argv: list[str], folder: Path) -> Path:
    """The folder that a call names for its result."""
    words = [part for one in argv for part in (one.split("=", 1) if "--out=" in one else [one])]
    named = [words[at + 1] for at, one in enumerate(words) if one in ("--out", "-o")]
    place = folder / (named or ["none"])[0]
    place.mkdir(parents=True, exist_ok=True)
    return place


def writes(**numbers):
    """A command that writes a summary of these numbers, whatever it is asked."""

    def pretended(argv, folder):
        if "--dry-run" not in argv:
            write_result(out_of(argv, folder), SUMMARY | numbers)

    return pretended


def counting():
    """A command that writes another number each time."""
    calls = []

    def pretended(argv, folder):
        calls.append(argv)
        write_result(out_of(argv, folder), SUMMARY | {"uds": len(calls) / 10})

    return pretended


def wandering():
    """A command whose row says another number in a larger run."""
    calls = []

    def pretended(argv, folder):
        calls.append(argv)
        row = {"idx": 0, "baseline": len(calls) / 10}
        (out_of(argv, folder) / "results.jsonl").write_text(json.dumps(row))

    return pretended


def touching(argv, folder):
    """A command that leaves a file wherever it is called."""
    (folder / "left.txt").write_text("x")
    return 0, f"{len(list(folder.rglob('*')))}", ""


def crashing(argv, folder):
    return 1, "", "Traceback (most recent call last):\n  KeyError: 'q'\n"


def chatting(argv, folder):
    return 2, "", "one\ntwo\nthree\nfour\n"


PATCH = asking.RECIPES["patch"]
ROW = (Choice("--tau", "0.5"),)
NPO = "patch --source demo/npo --full demo/full"
BREACHES = {
    "again": (partial(asking._again, PATCH), counting(), "changed: patch/summary"),
    "dry run": (partial(asking._dry_before, PATCH), touching, "came: left.txt"),
    "json": (
        partial(asking._as_json, PATCH),
        lambda argv, folder: (0, '{"uds": 0.5}' if "--json" in argv else "UDS 0.125", ""),
        "--json and summary.json: uds",
    ),
    "order": (partial(asking._order, *asking.ORDERS[1][1:]), counting(), "summary.json/uds"),
    "alone": (
        partial(asking._alone, "patch --out alone", "patch --out among", "n-o"),
        counting(),
        "summary.json/uds",
    ),
    "subset": (partial(asking._subset, *asking.SUBSETS[0][1:]), wandering(), "0/baseline: 0.1"),
    "python": (partial(asking._refused, "patch --out x", "la.patch()"), writes(), "exit 0"),
    "machine": (partial(asking._machine, "--batch-size 1", ""), counting(), "summary.json/uds"),
    "project": (partial(asking._project, PATCH, "here"), writes(uds=0.5), "/uds: 0.25 and 0.5"),
    "pairs": (partial(options._row, PATCH, ROW), chatting, "4 lines on stderr"),
    "acts": (partial(options._acts, PATCH, ROW[0]), writes(), "silent option --tau 0.5"),
    "other's folder": (partial(places._other, PATCH, "eval"), writes(), "taken"),
    "readers": (partial(places._reader, "verdict {}", "eval"), crashing, "traceback"),
    "damage": (partial(places._damaged, "verify {}", "eval", "bit"), writes(), "is not told"),
    "moved": (partial(places._moved_again, "patch"), counting(), "changed: summary.json"),
    "one model": (partial(places._named, "slash", "patch"), counting(), "summary.json/uds"),
    "roles": (
        partial(places._roles, places.ROLES[0][1], "source", "full"),
        writes(uds=0.5),
        "taken: ",
    ),
    "killed": (partial(surroundings._killed, "patch", 9), counting(), "summary.json/uds"),
    "at once": (partial(surroundings._at_once, "patch"), writes(uds=0.5), "summary.json/uds"),
    "environment": (
        partial(surroundings._environment, "patch", {"HOME": None}),
        writes(uds=0.5),
        "summary.json/uds",
    ),
    "names": (partial(surroundings._out_named, "a b"), writes(uds=0.5), "summary.json/uds"),
    "full disk": (partial(surroundings._filled, PATCH), lambda *_: (1, "", "x"), "exit code"),
    "clock": (partial(surroundings._clock, "patch", 60.0), counting(), "changed: summary.json"),
    "read-only": (partial(surroundings._read_only, "patch", False), writes(), "came: patch/"),
}
"""Relation -> a case of it, a command that breaks it, and what is then said."""
HONEST = (
    *("again", "order", "machine", "project", "moved", "one model", "killed", "at once"),
    *("environment", "names", "clock"),
)
"""Relations that a command holds which writes the same whatever happens."""


def test_every_relation_has_a_planted_breach():
    assert set(BREACHES) == {one.name for one in run.every_relation()}


@pytest.mark.parametrize("name", BREACHES)
def test_a_planted_breach_is_found(name, tmp_path):
    check, pretended, said = BREACHES[name]
    with pytest.raises(Breach, match=re.escape(said)):
        check(Planted(tmp_path, pretended))


@pytest.mark.parametrize("name", HONEST)
def test_a_command_that_does_the_same_every_time_breaks_nothing(name, tmp_path):
    BREACHES[name][0](Planted(tmp_path, writes()))


def test_a_seed_asks_as_many_cases_as_six_thousand_calls_take():
    # about 1.66 calls a case: 3,600 cases ask 6,000 and more
    assert len({one.name for one in run.every_case(2)}) >= 3600
