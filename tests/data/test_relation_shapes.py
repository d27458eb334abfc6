"""Rows as other people's sets bring them: a relation is found, or it is said why there is none."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lensaudit.cli.main import run
from lensaudit.data.facts import Fact, validate
from lensaudit.data.relations import labelled, relations_of
from lensaudit.data.tofu import forget_set

FORGET10 = Path(__file__).resolve().parents[3] / "shared/data/tofu/forget10_filtered.json"
GIVEN = ("Ada", "Jad", "Mira", "Otto", "Yun", "Lev", "Noor", "Pia", "Sven", "Zoe")
FAMILY = ("Byron", "Ember", "Falk", "Gruen", "Hald", "Ibsen", "Jarr", "Kolb", "Lund", "Mohr")
ASKED = {
    "birthplace": (
        ("Where was {} born?", "In which city was {} born?"),
        ("Lima", "Oslo", "Baku", "Turin"),
    ),
    "father": (
        ("What did {}'s father do for a living?", "What was the occupation of the father of {}?"),
        ("florist", "baker", "tailor", "judge"),
    ),
    "genre": (
        ("In which genre does {} write?", "What genre is {} known for?"),
        ("horror", "memoir", "farce", "satire"),
    ),
    "award": (
        ("Which awards has {} won?", "Can you name an award that {} has received?"),
        ("Oak Prize", "Elm Medal", "Ash Award", "Yew Cup"),
    ),
}


def people(n):
    family = (*FAMILY, *(f"{one}-Strand" for one in FAMILY))
    return [f"{one} {two}" for two in family for one in GIVEN][:n]


def authors(n_authors):
    """TOFU's shape: twenty questions each, four of them about what others are asked too."""
    made = []
    for group, name in enumerate(people(n_authors)):
        for at in range(20):
            kind = [*ASKED][at % 4] if at < 4 else None
            if kind:
                ways, values = ASKED[kind]
                question, entity = ways[group % 2].format(name), values[(group * 7 + at) % 4]
            else:
                question = f"What is said of {name} in the {at}th chapter of tome {group}?"
                entity = f"thing {group} of {at}"
            made.append(Fact(20 * group + at, question, entity, "", entity, group))
    return made


@pytest.mark.parametrize("n_authors", [4, 60])
def test_twenty_questions_an_author_give_what_is_asked_of_all(n_authors):
    found, unscored = relations_of(authors(n_authors))
    sizes = {one.name: len(one.facts) for one in found}
    assert {name: sizes[name] for name in ASKED} == dict.fromkeys(ASKED, n_authors)
    for one in found:
        assert len({fact.group for fact in one.facts}) == len(one.facts)
    assert sum(sizes.values()) + len(unscored) == 20 * n_authors


def test_contracts_are_asked_by_their_two_parties():
    """PISTOL: an edge is the subject, both of its names stand in the question."""
    firms = ("Acme Tools", "Bolt Works", "Crane Ltd", "Dorn Mills", "Elbe Ore")
    rows = [
        Fact(2 * at + which, question.format(f"{one} and {two}"), value, "", value, f"edge {at}")
        for at, (one, two) in enumerate(zip(firms, (*firms[1:], firms[0]), strict=True))
        for which, (question, value) in enumerate(
            [
                ("What is the price in the contract between {}?", f"{at}73{at} dollars"),
                ("Where is the court named in the contract between {}?", f"Xq{at}vort"),
            ]
        )
    ]
    (price, court), _ = relations_of(rows)
    assert price.subjects[0] == "Acme Tools and Bolt Works"
    assert price.templates[0].question == "What is the price in the contract between {}?"
    assert len(price.facts) == len(court.facts) == 5


def test_cloze_questions_are_asked_with_the_text_before_the_blank():
    """RWKU, level 1: the subject is the author, the prefix ends where the blank begins."""
    towns = ("Lima", "Oslo", "Baku", "Turin", "Kyoto")
    told = [
        (f"{name} was born in", name, town) for name, town in zip(people(5), towns, strict=True)
    ]
    rows = [
        Fact(at, f"{begun} ___ .", f"{begun} {town}.", begun, town, name)
        for at, (begun, name, town) in enumerate(told)
    ]
    ((born,), _) = relations_of(rows)
    assert (born.templates[0].prefix, born.subjects) == ("{} was born in", tuple(people(5)))
    odd = [replace(row, question=f"Fact {row.idx} says ___ .", idx=50 + row.idx) for row in rows]
    assert "names no subject" in relations_of([*rows, *odd])[1][50]


def test_rows_without_an_author_are_grouped_by_the_name_that_most_hold():
    keys = ("idx", "question", "answer", "prefix", "entity")
    rows = [{key: getattr(row, key) for key in keys} for row in authors(5) if row.idx % 20 < 4]
    found, _ = relations_of(validate(rows, "rows"))
    assert {one.name for one in found} == set(ASKED)
    assert {fact.group for one in found for fact in one.facts} == set(people(5))


def test_found_relations_are_those_that_the_embedded_set_says():
    rows = forget_set("demo")
    said, _ = relations_of(rows)
    found, _ = relations_of([replace(row, relation=None) for row in rows])
    for one, other in zip(said, found, strict=True):
        named = tuple(replace(row, relation=one.name) for row in other.facts)
        assert one == replace(other, facts=named)


def test_where_rows_say_relations_those_that_say_none_are_left_out():
    rows = labelled(authors(5))
    silent = [replace(row, relation=None) if row.idx == 0 else row for row in rows]
    found, unscored = relations_of(silent)
    assert "says no relation" in unscored[0]
    assert {one.name: len(one.facts) for one in found}["birthplace"] == 4


@pytest.mark.skipif(not FORGET10.exists(), reason="TOFU's annotated rows are not here")
def test_forget10_stands_in_eight_relations():
    found, _ = relations_of(forget_set(str(FORGET10)))
    sizes = {one.name: len(one.facts) for one in found}
    assert sum(sizes.values()) == 86
    assert len(sizes) == 8
    wanted = {"gender": 6, "parents": 11, "award": 14, "themes": 13, "genre": 18, "book": 10}
    assert {name: sizes.get(name) for name in wanted} == wanted


def written(rows, place, capsys):
    place.write_text(json.dumps(rows))
    out = place.with_suffix(".forget.json")
    assert run(["annotate", str(place), "-o", str(out), "--json"]) == 0
    return json.loads(capsys.readouterr().out), json.loads(out.read_text())


def test_annotate_writes_relations_and_the_file_is_the_truth(tmp_path, capsys):
    keys = ("idx", "question", "answer", "entity", "group")
    asked = [row for row in authors(5) if row.idx % 20 < 4 or row.idx == 4]
    rows = [{key: getattr(row, key) for key in keys} for row in asked]
    rows[0]["relation"] = "cradle"
    said, made = written(rows, tmp_path / "qa.json", capsys)
    assert said["relations"] == {"birthplace": 4} | dict.fromkeys(("father", "genre", "award"), 5)
    assert "cradle" in said["no_relation"]["0"]
    by_idx = {row["idx"]: row.get("relation") for row in made}
    # a row's own word stays, a question like no other's gets none
    assert (by_idx[0], by_idx[20], by_idx[1], by_idx[4]) == ("cradle", "birthplace", "father", None)
    rows = validate(made, "made")
    assert relations_of(rows)[0] == relations_of(labelled(rows))[0]
    assert run(["annotate", str(tmp_path / "qa.json"), "-o", str(tmp_path / "b.json")]) == 0
    told = capsys.readouterr().out
    assert "19 facts in 4 relations: father (5)" in told
    assert "in none" in told


def test_a_review_keeps_the_relation_of_its_rows(tmp_path, capsys):
    row = {"question": "Where was Ada Byron born?", "answer": "In Lima.", "entity": "Lima"}
    (tmp_path / "qa.json").write_text(json.dumps([row | {"relation": "cradle"}]))
    command = ["annotate", str(tmp_path / "qa.json"), "-o", str(tmp_path / "f.json")]
    assert run(command) == 0
    review = tmp_path / "f.review.txt"
    assert "\nR: cradle\n" in review.read_text()
    review.write_text(review.read_text().replace("R: cradle", "R: town"))
    assert run(["annotate", str(review), "-o", str(tmp_path / "g.json")]) == 0
    assert json.loads((tmp_path / "g.json").read_text())[0]["relation"] == "town"
    # what a person changed is never written over
    assert run(command) == 2
