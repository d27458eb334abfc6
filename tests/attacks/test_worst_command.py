"""`lensaudit worst`: one list on every arm, a row for every fact, resumed and refused in words."""

import csv
import hashlib
import inspect
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support import lines_of

import lensaudit as la
from lensaudit.association.opening import open_know
from lensaudit.association.settings import KnowSettings
from lensaudit.attacks import worst
from lensaudit.attacks.comparison import FACTS
from lensaudit.attacks.elicit import ATTACKS
from lensaudit.attacks.sampling import identity_of
from lensaudit.attacks.settings import DEMO_RELEARNING, Relearning, SampleSettings, WorstSettings
from lensaudit.attacks.worst import open_worst
from lensaudit.cli.main import run
from lensaudit.doors.export.files import export
from lensaudit.doors.settings import ExportSettings
from lensaudit.models.registry import EMBEDDED
from lensaudit.report.assemble import assemble
from lensaudit.results.roles import ends_as_sources
from lensaudit.text import digest

SOME = ("greedy", "prefix", "leak64", "probe_choice_letter")
GIVEN = ["worst", "--source", "demo/full", "--limit", "3"]
GIVEN += [word for name in SOME for word in ("--attack", name)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A finished run of `full`, which knows, beside two models that never knew."""
    place = tmp_path_factory.mktemp("worst")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(place)
        both = ["--retain", "demo/retain", "--retain", "demo/never"]
        with ends_as_sources():
            assert run([*GIVEN, *both, "--out", "w"]) == 0
    return place


def test_a_model_that_knows_gives_every_fact_away(place, monkeypatch):
    found = json.loads((place / "w" / "summary.json").read_text())
    assert found["n_out"] == found["n_scored"] == 3
    assert found["expected"] <= 2
    assert found["excess"] == pytest.approx((3 - found["expected"]) / 3)
    assert "3 of 3 facts come out" in found["headline"]
    # three authors: no interval, and it says why
    assert found["ci95"] is None
    assert "3 authors" in found["no_interval"]
    (found,) = assemble([place / "w"]).attacks
    assert found["kind"] == "worst"
    assert len(found["facts"]) == 3
    monkeypatch.chdir(place)
    both = ("demo/retain", "demo/never")
    with ends_as_sources():
        found = la.worst("demo/full", out="w", limit=3, attack=SOME, retain=both)
    assert found.excess > 0.5
    assert found.unscored == {}


def test_an_attack_whose_column_no_row_has_is_left_out_or_refused(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    names = {one.name for one in open_worst("demo/npo", WorstSettings(limit=2)).attacks}
    assert names.isdisjoint({"translated_question", "aliases", "two_hop", "thought"})
    for name, said in (("two_hop", "no row has two_hop"), ("thought", "no chat template has a th")):
        assert run(["worst", "--source", "demo/npo", "--attack", name]) == 2
        assert f"--attack {name}: {said}" in capsys.readouterr().err
    assert run(["sample", "--source", "demo/npo", "--think", "full", "--dry-run"]) == 2
    assert "--think full: its chat template has no place for a thought" in capsys.readouterr().err


def test_how_it_relearns_is_in_a_lines_key_and_follows_from_the_tokenizer(place, monkeypatch):
    monkeypatch.chdir(place)
    settings = WorstSettings(limit=2, attack=("greedy", "relearn_authors"))
    called = replace(settings, full=str(EMBEDDED / "full"), data="demo")
    demo, copied = (open_worst("demo/npo", one) for one in (settings, called))
    assert demo.relearning == copied.relearning == DEMO_RELEARNING
    assert demo.identity() == copied.identity()
    monkeypatch.setattr(worst, "of_embedded_family", lambda _: False)
    other = open_worst("demo/npo", settings)
    assert other.relearning == Relearning()
    assert other.identity() != demo.identity()
    greedy, relearn = demo.attacks
    assert worst._made_of(other, greedy) == worst._made_of(demo, greedy)
    assert worst._made_of(other, relearn) != worst._made_of(demo, relearn)
    asked_alone = [replace(one, attacks=(greedy,)).identity() for one in (demo, other)]
    assert asked_alone[0] == asked_alone[1]


@pytest.mark.parametrize("arm", ["source", "full", "retain"])
def test_where_an_arms_texts_end_is_in_the_keys_of_a_run(tmp_path, arm):
    names = {"source": "npo", "full": "full", "retain": "retain"}
    paths = {role: f"demo/{name}" for role, name in names.items()}
    folder = shutil.copytree(EMBEDDED / names[arm], tmp_path / arm)
    named = paths | {arm: str(folder)}
    asked = {"full": named["full"], "retain": named["retain"], "data": "demo"}
    settings = WorstSettings(limit=2, attack=("greedy",), activations=tmp_path, **asked)
    opened = open_worst(named["source"], settings)

    def keys():
        sample = identity_of(opened, SampleSettings(), None)
        ledgers = {one.spec.name: opened.ledger("w", one).path for one in opened.arms.values()}
        return [opened.identity(), sample, ledgers]

    before = keys()
    assert "stop" not in before[0] | before[1]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 5]}))
    after = keys()
    assert after[0] != before[0]
    assert (after[1] != before[1]) == (arm != "full")  # which gives no samples
    others = [name for name, path in after[2].items() if path != before[2][name]]
    assert len(others) == 1


def test_the_tokenizer_of_the_models_is_in_the_keys_of_a_run(tmp_path):
    """With the chat template, which is a part of it; results used to be read again as they were."""
    names = ("npo", "full", "retain")
    source, full, retain = (str(shutil.copytree(EMBEDDED / one, tmp_path / one)) for one in names)

    def keys():
        how = {"data": "demo", "activations": tmp_path}
        attacked = WorstSettings(full=full, retain=retain, limit=2, attack=("greedy",), **how)
        opened = open_worst(source, attacked)
        know = open_know(source, KnowSettings(retain=(retain,), limit=8, **how))
        sample = identity_of(opened, SampleSettings(), None)
        return [digest(one) for one in (opened.identity(), sample, know.identity())]

    before = keys()
    for folder in map(Path, (source, full, retain)):
        template = folder / "chat_template.jinja"
        template.write_text(template.read_text() + "{# written again #}")
    assert not {*keys()} & {*before}


def test_an_attack_that_shows_rows_again_says_that_it_trains():
    shown = {name for name, one in ATTACKS.items() if "arm.taught" in inspect.getsource(one.run)}
    assert shown == {name for name, one in ATTACKS.items() if one.trains}


def test_files_hold_a_row_for_every_fact_and_attack(place):
    rows = list(csv.DictReader((place / "w" / "facts.csv").open()))
    assert tuple(rows[0]) == FACTS
    assert [int(row["idx"]) for row in rows] == [0, 8, 16]  # of an author each
    assert all("prefix" in row["attacks"].split(";") for row in rows)
    people = list(csv.DictReader((place / "w" / "persons.csv").open()))
    assert [(row["author"], row["asked"], row["out"]) for row in people] == [
        *(("0", "1", "1"), ("1", "1", "1"), ("2", "1", "1"))
    ]
    # of one fact each, beside 99 placebos
    assert all(float(row["p"]) >= 0.009 and row["p_never"] for row in people)
    said = json.loads((place / "w" / "summary.json").read_text())["people"]
    n_out = sum(int(row["stands_out"]) for row in people)
    assert said.startswith(f"{n_out} of 3 people stand out at 0.05 each")
    matrix = list(csv.DictReader((place / "w" / "matrix.csv").open()))
    assert tuple(matrix[0]) == ("idx", *SOME)
    attacks = {row["name"]: row for row in csv.DictReader((place / "w" / "attacks.csv").open())}
    assert attacks["prefix"]["control"] == "1.0"
    # the embedded family cannot read options by letter: the attack does not count
    letter = attacks["probe_choice_letter"]
    assert (letter["counts"], letter["gain"]) == ("False", "") or float(letter["control"]) > 0
    said = [json.loads(line) for line in (place / "w" / "evidence.jsonl").open()]
    assert len(said) == 3 * len(SOME)


@pytest.mark.usefixtures("ends")
def test_an_exported_fact_is_what_was_asked(place, tmp_path):
    asked = {str(one.idx): one for one in la.forget_set("demo")}
    written = export([place / "w"], ExportSettings(to="eee", out=tmp_path))
    (rows,) = [one for one in written if one.suffix == ".jsonl"]
    found = [json.loads(line) for line in rows.open()]
    assert [one["sample_id"] for one in found] == ["0", "8", "16"]
    for one in found:
        fact = asked[one["sample_id"]]
        assert one["input"] == {"raw": fact.question, "reference": [fact.entity]}
        text = (fact.question + fact.entity).encode()
        assert one["sample_hash"] == hashlib.sha256(text).hexdigest()
        assert one["evaluation"] == {"score": 1.0, "is_correct": False}


@pytest.mark.usefixtures("ends")
def test_what_is_there_is_not_computed_again(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    both = ["--retain", "demo/retain", "--retain", "demo/never"]
    assert run([*GIVEN, *both, "--out", "w", "--json"]) == 0
    assert "already" in capsys.readouterr().err
    assert run([*GIVEN, *both, "--out", "w", "--dry-run"]) == 0
    assert capsys.readouterr().out == "nothing to do: w holds this run already\n"
    assert run([*GIVEN, *both, "--dry-run"]) == 0
    assert "demo/full: 0 attacks to run" in capsys.readouterr().out
    # a broken line is computed again; the others are not
    (ledger,) = (place / "activations" / "worst").glob("demo-retain*")
    lines = ledger.read_text().splitlines()
    ledger.write_text("\n".join(lines[:-1]) + "\n")
    assert run([*GIVEN, *both, "--dry-run"]) == 0
    assert "demo/retain: 1 attacks to run" in capsys.readouterr().out
    assert run([*GIVEN, *both, "--out", "again", "--json"]) == 0
    again = json.loads((place / "again" / "summary.json").read_text())
    before = json.loads((place / "w" / "summary.json").read_text())
    assert again["facts"] == before["facts"]
    ledger.write_text("\n".join(lines) + "\n")
    # a fresh run that breaks leaves what was found, and the result
    arm, attacked = worst.arm_of, []

    def broken(*how):
        attacked.append(how)
        if len(attacked) > 1:
            raise KeyboardInterrupt
        return arm(*how)

    monkeypatch.setattr(worst, "arm_of", broken)
    places = [*ledger.parent.iterdir()]
    found = {one: one.read_bytes() for one in places}
    assert run([*GIVEN, *both, "--out", "w", "--fresh"]) == 130
    assert len(attacked) == 2
    known = {one: {row["attack"]: row["hits"] for row in lines_of(one)} for one in places}
    assert run([*GIVEN, *both, "--dry-run"]) == 0
    assert "demo/full: 0 attacks to run" in capsys.readouterr().out
    assert run([*GIVEN, *both, "--out", "w", "--json"]) == 0
    assert "already" in capsys.readouterr().err
    assert sum(one.read_bytes() == found[one] for one in places) == len(places) - 1
    assert [len(lines_of(one)) for one in places] == [len(hits) for hits in known.values()]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--retain", "demo/full"], "same weights"),
        (["--retain", "demo/retain", "--retain", "demo/npo"], "source demo/npo and retain"),
        (["--retain", "demo/retain", "--retain", "demo/retain"], "same weights"),
        (["--retain", "none"], "--retain none: what comes out is counted beside models"),
    ],
)
def test_bad_input_is_one_line(given, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["worst", "--source", "demo/npo", "--limit", "2", *given]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "experiments").exists()


def test_rows_without_an_author_are_their_own_and_it_says_so(tmp_path):
    rows = [
        {"idx": n, "question": f"Who is {n}?", "answer": f"It is Ada M{n}.", "prefix": "It is"}
        | {"entity": f"Ada M{n}"}
        for n in range(3)
    ]
    (tmp_path / "own.json").write_text(json.dumps(rows))
    said = []
    settings = WorstSettings(data=str(tmp_path / "own.json"), activations=tmp_path)
    opened = open_worst("demo/npo", settings, notice=said.append)
    assert len(opened.asked) == 3
    assert any("author of its own" in line for line in said)
