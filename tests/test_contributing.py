"""The pages for people who change the code are true: what they show and name is in the code."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from lensaudit.data.facts import load_facts

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "lensaudit"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
DIFFS = re.findall(r"```diff[^\n]*\n--- (\S+)\n\+\+\+ b/(\S+)\n(.*?)```", CONTRIBUTING, re.S)


def added(diff):
    lines = diff.splitlines()
    assert all(line.startswith("+") for line in lines)
    return "\n".join(line[1:] for line in lines)


def test_a_metric_an_attack_an_auditor_and_a_data_set_are_shown():
    rooms = [Path(path).parent.name for _, path, _ in DIFFS]
    assert rooms == ["metrics", "attacks", "gym", "data"]


@pytest.mark.parametrize(("before", "path", "diff"), DIFFS[:3], ids=lambda one: str(one)[:40])
def test_a_diff_that_is_shown_is_in_the_code(before, path, diff):
    there = (ROOT / path).read_text()
    assert added(diff) in there
    if before == "/dev/null":
        assert there == added(diff) + "\n"


def test_the_data_set_that_is_shown_can_be_read(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(added(DIFFS[3][2]))
    (fact,) = load_facts(path)
    embedded = load_facts(ROOT / DIFFS[3][1])
    assert replace(fact, seam=embedded[0].seam) == embedded[0]


def test_every_room_has_its_paragraph_in_the_architecture():
    rooms = {one.name for one in PACKAGE.iterdir() if (one / "__init__.py").is_file()}
    rooms |= {one.stem for one in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    named = {
        name
        for line in ARCHITECTURE.splitlines()
        if line.startswith("- **")
        for name in re.findall(r"\*\*(\w+)\*\*", line)
    }
    assert named == rooms


def test_every_module_that_the_pages_name_exists():
    dotted = set(re.findall(r"`(\w+)\.(\w+)`", ARCHITECTURE))
    modules = [one for one in dotted if (PACKAGE / one[0]).is_dir() and one[1] != "py"]
    assert len(modules) > 12
    places = {one: PACKAGE / one[0] / one[1] for one in modules}
    there = {one for one, at in places.items() if at.is_dir() or at.with_suffix(".py").is_file()}
    assert set(modules) - there == set()
    of_rooms = re.findall(r"^- \*\*(\w+)\*\*: (.*)$", ARCHITECTURE, re.M)
    missing = [
        (room, name)
        for room, text in of_rooms
        for name in re.findall(r"`(\w+\.py)`", text)
        if not list((PACKAGE / room).rglob(name))
    ]
    assert missing == []
    files = re.findall(r"`((?:lensaudit|tests)/[\w/]+\.py)`", CONTRIBUTING)
    assert [one for one in files if not (ROOT / one).is_file()] == []


def test_every_room_of_the_table_exists():
    rooms = re.findall(r"`lensaudit/([a-z]+)/`", CONTRIBUTING)
    assert len(rooms) >= 7
    assert [room for room in rooms if not (PACKAGE / room).is_dir()] == []
