"""`know --strangers`: a p a person beside names of nobody, corrected, controlled and refused."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from scipy.stats import false_discovery_control

import lensaudit as la
from lensaudit.association.opening import names_wanted
from lensaudit.association.persons import Person, holm_of, p_of_person, people_of, said_of
from lensaudit.association.reading import OUTPUTS, RelationReading
from lensaudit.cli.main import run
from lensaudit.data.fictional import RESERVED, draw_name
from lensaudit.data.relations import relations_of
from lensaudit.data.tofu import forget_set
from lensaudit.models.registry import EMBEDDED

N_NAMES = 199
RETAIN = EMBEDDED / "data" / "retain.json"
ROW = ("idx", "question", "answer", "prefix", "entity", "group", "relation")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def names(n, path="names.txt"):
    draw, found = Random(3), dict[str, None]()
    while len(found) < n:
        if (name := draw_name(draw)) not in RESERVED:
            found[name] = None
    Path(path).write_text("\n".join(found) + "\n", encoding="utf-8")
    return path


def rows(groups, path="people.json", **changes):
    made = [
        {name: getattr(fact, name) for name in ROW} | changes
        for fact in la.forget_set("demo")
        if fact.group in groups
    ]
    Path(path).write_text(json.dumps(made), encoding="utf-8")
    return path


def ask(*more, source="demo/masked_readout", out="k"):
    fixed = ["know", "--base", "demo/base", "--activations", "a", "-o", out]
    return run([*fixed, *([] if "--source" in more else ["--source", source]), *more])


def persons(out="k"):
    with Path(out, "persons.csv").open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def tables(draw, n_relations=7, gain=0.0, n_taught=0):
    """What readers of three kinds say of one person and strangers; some facts were taught."""
    readers = ("outputs", "lens 7", "lens 11", "foreign 11", "foreign 14")
    found = []
    for at in range(n_relations):
        said = draw.normal(size=N_NAMES + 1)
        each = {name: said + 0.5 * draw.normal(size=len(said)) for name in readers}
        for name in readers[3:]:
            each[name][0] += gain * (at < n_taught)
        found.append(each)
    return found


def test_a_person_whom_nobody_taught_is_found_no_more_often_than_the_level_says():
    draw = np.random.default_rng(0)
    ps = [p_of_person(tables(draw)) for _ in range(600)]
    for level in (0.01, 0.05, 0.2):
        assert sum(p <= level for p in ps) / len(ps) == pytest.approx(level, abs=0.035)
    assert min(ps) >= 1 / (N_NAMES + 1)


@pytest.mark.parametrize(("n_taught", "least"), [(1, 0.5), (7, 0.95)])
def test_a_person_of_whom_something_is_held_is_found(n_taught, least):
    draw = np.random.default_rng(1)
    found = [p_of_person(tables(draw, gain=5.0, n_taught=n_taught)) for _ in range(60)]
    assert np.mean(np.array(found) <= 0.05) >= least


def test_names_that_all_fit_alike_find_nobody():
    flat = {"outputs": np.zeros(N_NAMES + 1)}
    assert p_of_person([flat, flat]) == 1.0


def test_holm_is_between_bonferroni_and_benjamini_hochberg_and_steps_down():
    draw = np.random.default_rng(2)
    for n in (1, 2, 8, 20):
        ps = draw.uniform(size=n) ** 3
        holm = np.array(holm_of(ps.tolist()))
        assert (holm <= np.minimum(1, n * ps) + 1e-12).all()
        assert (holm >= false_discovery_control(ps, method="bh") - 1e-12).all()
        # by its definition: reject while the k-th least is at most level / (n - k)
        for level in (0.01, 0.05, 0.3):
            order, rejected = np.argsort(ps), np.zeros(n, bool)
            for k, at in enumerate(order):
                if ps[at] > level / (n - k):
                    break
                rejected[at] = True
            assert ((holm <= level) == rejected).all()


def drawn(asked, seed, taught=()):
    """What one reader of a made-up model says: noise, and of some people their own values."""
    found, random = [], torch.Generator().manual_seed(seed)
    for one in asked:
        table = torch.randn(len(one.subjects), len(one.values), generator=random).double()
        for at, fact in enumerate(one.facts):
            table[at, one.true[at]] += 6.0 * (fact.group in taught)
        found.append(RelationReading(one, {OUTPUTS: table.log_softmax(-1)}))
    return found


def with_names(n):
    read = Path(names(n)).read_text(encoding="utf-8").split("\n")[:n]
    asked, _ = relations_of(forget_set("demo"))
    return [replace(one, subjects=(*one.subjects, *read)) for one in asked]


def test_who_a_model_that_never_knew_gives_away_too_is_not_found():
    asked = with_names(N_NAMES)
    source = drawn(asked, 0, taught=(0, 1))
    found = {one.group: one for one in people_of(source, [drawn(asked, 1), drawn(asked, 2, (1,))])}
    assert {group for group, one in found.items() if one.holm <= 0.05} == {0, 1}
    assert {group for group, one in found.items() if one.found} == {0}
    assert found[1].why == "names may tell: p 0.005 in a model that never knew"
    said = said_of(list(found.values()), N_NAMES)
    assert said.startswith("1 of 8 people found at 0.05 over all, if the names of nobody were")
    assert f"{found[0].name} (p 0.005)" in said
    assert "not counted: names may tell" in said
    alone = people_of(source, [])
    assert not any(one.found for one in alone)
    assert "no model that never knew was asked" in said_of(alone, N_NAMES)


def test_too_few_names_are_said_to_find_nobody():
    one = Person(0, "Ada", 0.05, {0: 0.05}, holm=0.4)
    assert said_of([one] * 8, 19) == (
        f"19 names can find nobody among 8 people; {names_wanted(8)} wanted (--strangers)"
    )
    for n in (1, 3, 8, 20, 33):
        n_names = names_wanted(n)
        assert n / (n_names + 1) <= 0.05 + 1e-12 < n / n_names


def test_one_person_is_found_behind_a_mask_and_not_in_a_model_that_never_saw_her(capsys):
    more = ["--data", rows([1]), "--strangers", names(19), "--kept", str(RETAIN)]
    more += ["--reader", "outputs", "--reader", "foreign"]
    assert ask(*more, out="mask") == 0
    (one,) = persons("mask")
    assert (one["found"], one["n"], one["p"], one["p_holm"]) == ("1", "7", "0.05", "0.05")
    assert float(one["p_never"]) > 0.05
    assert len(one["facts"].split()) == 7
    summary = json.loads(Path("mask", "summary.json").read_text(encoding="utf-8"))
    assert summary["people"].startswith("1 of 1 people found")
    assert summary["p"] == 1
    assert summary["finds"] is False
    (model,) = la.verdicts([Path("mask")]).models
    assert {view.says for view in model.views} == {"cannot tell"}
    assert ask(*more, source="demo/retain", out="never") == 0
    (one,) = persons("never")
    assert (one["found"], float(one["p"]) > 0.05) == ("0", True)
    assert one["why"].startswith("p ")
    # nothing is asked twice, and another file of names is another question
    before = Path("mask", "manifest.json").read_bytes()
    assert ask(*more, out="mask") == 0
    assert Path("mask", "manifest.json").read_bytes() == before
    names(20)
    capsys.readouterr()
    assert ask(*more, out="mask") == 2
    assert "mask" in capsys.readouterr().err


def test_other_numbers_stay_as_they_are_and_who_is_not_asked_is_said(capsys):
    quick = ["--reader", "outputs", "--placebos", "0", "--data"]
    people = rows(range(5))
    made = json.loads(Path(people).read_text(encoding="utf-8"))
    made = [row for row in made if row["group"] != 4] + [
        {**row, "entity": "Yes", "answer": f"{row['prefix']} Yes.", "idx": row["idx"]}
        for row in made
        if row["group"] == 4
    ]
    Path(people).write_text(json.dumps(made), encoding="utf-8")
    assert ask(*quick, people, out="plain") == 0
    assert not Path("plain", "persons.csv").exists()
    assert ask(*quick, people, "--strangers", names(20), out="each") == 0
    assert "1 of 5 people are not asked about" in capsys.readouterr().err
    assert len(persons("each")) == 4
    plain, each = (
        json.loads(Path(one, "summary.json").read_text(encoding="utf-8"))
        for one in ("plain", "each")
    )
    assert plain.pop("people") == ""
    assert each.pop("people")
    assert {**plain, "remarks": []} == {**each, "remarks": []}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--strangers", "none.txt"], "none.txt: no such file"),
        (["--strangers", "few.txt"], "few.txt: 3 names, wanted 19 or more"),
        (["--strangers", "names.txt", "--placebos", "0"], "name --kept with facts of the same"),
        (["--strangers", "names.txt", "--source", "http://127.0.0.1:9/v1"], "behind an address"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(more, said, capsys):
    names(3, "few.txt")
    names(20)
    assert ask("--data", rows([0]), *more) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert not Path("k").exists()
