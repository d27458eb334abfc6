"""A planned unit without a result is named, and nothing else is."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.sweep_helpers import toy_run_unit, toy_sweep

from lensaudit.errors import InputError
from lensaudit.files import write_json
from lensaudit.results.manifest import signed
from lensaudit.results.planned import missing_in
from lensaudit.sweep.collect import collect
from lensaudit.sweep.plan import write_plan

FOREIGN = [
    ("plan.json", b"[]"),
    ("plan.json", b'{"units": []}'),
    ("plan.json", b'{"anchors": {}, "command": "meta"}'),
    ("plan.json", b'{"anchors": [], "a": 1}'),
    ("plan.json", b'{"format_version": "1.2"}\n{"more": 1}'),
    ("plan.json", b"\x00\xff"),
    ("to_do.json", b'["buy milk"]'),
    ("to_do.json", b'{"milk": "buy"}'),
    ("to_do.json", b"buy milk"),
]


@pytest.mark.parametrize(("name", "content"), FOREIGN)
def test_a_file_of_another_program_says_nothing(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    for other in ("plan.json", "to_do.json", "collected.json"):
        (tmp_path / "folders" / other).mkdir(parents=True)
    assert not [*missing_in([tmp_path])]


def test_a_list_of_a_variant_is_known_by_what_is_beside_it(tmp_path, monkeypatch):
    (place := tmp_path / "nf4" / "m0" / "eval").mkdir(parents=True)
    (place / "manifest.json").write_text("{}")
    to_do = tmp_path / "nf4" / "to_do.json"
    to_do.write_text('{"m1": "not begun"}')
    monkeypatch.chdir(to_do.parent)
    for folder in (tmp_path, Path()):
        assert [one[1:] for one in missing_in([folder])] == [("m1 (nf4)", "not begun")]
    to_do.write_text('["buy milk"]')
    assert not [*missing_in([tmp_path])]


def test_a_plan_that_was_cut_is_refused(tmp_path):
    plan = toy_sweep(tmp_path).file
    plan.write_text(plan.read_text()[:-100])
    with pytest.raises(InputError, match="is not JSON"):
        list(missing_in([tmp_path]))


@pytest.mark.parametrize(("old", "new"), [("m0", "m9"), ("{", '{"command": "meta",')])
def test_a_plan_that_was_edited_is_refused(tmp_path, old, new):
    plan = toy_sweep(tmp_path).file
    plan.write_text(plan.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match="was changed after it was made"):
        list(missing_in([tmp_path]))


@pytest.mark.parametrize("units", [None, 5, [{}], [[]], [{"id": 5, "target": "a", "variant": "b"}]])
def test_a_plan_that_names_no_units_is_refused(tmp_path, units):
    said = signed({"lensaudit": "0.2.0", "units": units})
    write_json(tmp_path / "plan.json", {"hash": said.pop("check"), **said})
    with pytest.raises(InputError, match="no plan of units"):
        list(missing_in([tmp_path]))


def test_what_a_plan_has_by_now_is_not_missed_in_an_earlier_collection(tmp_path):
    sweep = toy_sweep(tmp_path / "sweep", n=1)
    for unit in sweep.units[:-1]:
        toy_run_unit(sweep, unit)
    inner, beside = sweep.root / "early", tmp_path / "beside"
    for out in (inner, beside):
        collect(sweep, out, allow_missing=True)
    assert [one for one, *_ in missing_in([tmp_path])] == [sweep.file]
    toy_run_unit(sweep, sweep.units[-1])
    assert not [*missing_in([tmp_path])]
    assert [unit for _, unit, _ in missing_in([beside])] == ["m0"]
    other = toy_sweep(sweep.root / "other", n=2)  # a plan speaks for itself, wherever it lies
    assert {file for file, *_ in missing_in([tmp_path])} == {other.file}
    write_plan(replace(sweep, units=(*sweep.units, other.units[-1]), targets=other.targets))
    assert {file for file, *_ in missing_in([inner.parent])} == {sweep.file, other.file}
