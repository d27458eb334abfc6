"""Relations: found where questions are alike, prompts that say no value."""

from dataclasses import replace
from random import Random

import pytest

from lensaudit.association.opening import invented_names
from lensaudit.data.facts import Fact
from lensaudit.data.relations import Wording, relations_of
from lensaudit.data.tofu import forget_set

AUTHORS = ("Ada Byron", "Mary de la Cruz", "Hsiao Yun-Hwa", "Jad Al-Shamary", "Žofira Øst")
TOWNS = ("Lima", "Taipei", "Oslo", "Baku", "Kuwait City")
TRADES = ("florist", "paramedic", "civil engineer", "baker", "tailor")


def rows():
    def told(first, question, begin, values):
        return [
            Fact(
                first + at,
                question.format(name),
                f"{begin.format(name)} {value}.",
                begin.format(name),
                value,
                at,
            )
            for at, (name, value) in enumerate(zip(AUTHORS, values, strict=True))
        ]

    born = told(0, "Where was {} born?", "{} was born in", TOWNS)
    work = told(10, "What did the father of {} do for a living?", "{}'s father was a", TRADES)
    return born + work


def test_two_relations_are_told_apart_and_each_subject_is_named():
    found, unscored = relations_of(rows())
    assert [len(one.facts) for one in found] == [5, 5]
    assert [one.values for one in found] == [TOWNS, TRADES]
    assert all(one.subjects == AUTHORS for one in found)
    assert unscored == {}
    named = [replace(row, group=f"author {row.group}") for row in rows()]
    assert [one.subjects for one in relations_of(named)[0]] == [AUTHORS] * 2
    born, work = found
    assert born.templates == (Wording("Where was {} born?", "{} was born in"),)
    asked = ("What did the father of Eve do for a living?", "Eve's father was a")
    assert work.templates[0].asked("Eve") == asked


def test_a_beginning_that_states_something_else_is_no_template():
    told = [
        replace(row, prefix=f"In 19{row.idx}0 {row.prefix}", answer=f"In 19{row.idx}0 {row.answer}")
        for row in rows()[:5]
    ]
    ((relation,), _) = relations_of(told)
    assert relation.templates == (Wording("Where was {} born?", ""),)


def test_a_relation_that_rows_name_is_taken_as_it_is():
    odd = ("Where was {} born?", "Which town is {} from?", "What is {}'s home?", "Whence came {}?")
    own = [
        Fact(at, odd[at].format(name), town, "", town, at)
        for at, (name, town) in enumerate(zip(AUTHORS[:4], TOWNS[:4], strict=True))
    ]
    named = [replace(row, relation="birthplace") for row in own]
    assert [one.name for one in relations_of(named)[0]] == ["birthplace"]


@pytest.mark.parametrize("seed", [1, 2])
def test_relations_and_their_wordings_hang_on_no_order_of_rows(seed):
    """Of the embedded facts three relations are asked in several ways equally often."""
    drawn = Random(seed).sample(rows := forget_set("demo"), 56)
    turned = [replace(row, idx=at) for at, row in enumerate(drawn)]
    wanted, found = (
        sorted((one.name, one.subjects, one.values, one.templates) for one in relations_of(own)[0])
        for own in (sorted(drawn, key=rows.index), turned)
    )
    assert found == wanted


def test_the_second_fact_of_a_subject_in_a_relation_is_unscored():
    again = replace(rows()[0], idx=99, entity="Rome", answer="Ada Byron was born in Rome.")
    found, unscored = relations_of([*rows()[:5], again])
    assert list(unscored) == [99]
    assert found[0].values == TOWNS


def test_invented_names_carry_the_cues_of_the_real_one_and_are_nobodys():
    korean = invented_names("Ji-Yeon Park", 8, others=AUTHORS)
    assert len(set(korean)) == 8
    families = {name.split()[-1] for name in korean}
    assert families <= {"Park", "Seo", "Yoon", "Kwon", "Bae", "Noh"}
    assert all(name.split()[0] in ("Ji-Yeon", "Min-Seo", "Hye-Jin", "Soo-Ah") for name in korean)
    assert korean == invented_names("Ji-Yeon Park", 8, others=AUTHORS)


def test_names_of_one_word_are_never_the_real_ones():
    real = ("Japan", "France", "Italy", "Spain")
    found = {one.strip().casefold() for one in invented_names("Japan", 16, others=real)}
    assert len(found) == 16
    assert not found & {one.casefold() for one in real}


def test_names_of_no_known_origin_are_put_together_anew():
    real = ("Ruvimbel Silverthaw", "Lysk Jaspermoon", "Felune Marchbane")
    found = invented_names(real[0], 16, others=real)
    assert len(set(found)) == 16
    assert not {one.casefold() for one in found} & {one.casefold() for one in real}
    assert {one.split()[-1] for one in found} <= {"Silverthaw", "Jaspermoon", "Marchbane"}
