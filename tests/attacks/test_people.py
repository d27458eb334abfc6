"""`worst`, a row a person: a p from placebos, controlled, and refused in words."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from lensaudit.attacks.arm import AttackFindings
from lensaudit.attacks.people import MOST_SAID, PEOPLE, p_drawn, people_of, rows_of, said_of
from lensaudit.data.facts import Fact
from lensaudit.groups import own_group
from lensaudit.kinds.worst import WorstFact
from lensaudit.scores.recovery import Arms

N_PLACEBOS = 99
EACH = 7


def facts(n_people):
    return [
        Fact(n, "Who?", f"It is E{n}.", "It is", f"E{n}", n // EACH) for n in range(n_people * EACH)
    ]


def says(asked, seed, taught=(), by=("prefix", "lens")):
    """What attacks read of a made-up model: noise, and of facts that were taught the entity."""
    draw, found = torch.Generator().manual_seed(seed), {}
    for attack in by:
        rows = {one.idx: torch.randn(1 + N_PLACEBOS, generator=draw) for one in asked}
        for idx in taught:
            rows[idx][0] += 6.0
        found[attack] = AttackFindings({}, rows)
    return found


def people(asked, source, *never, by=("prefix", "lens")):
    return people_of(asked, Arms(source, {}, never), by)


def test_a_p_is_the_share_of_all_choices_of_a_candidate_a_fact():
    one, two = np.array([2.0, 0.5, -1.0, 3.0]), np.array([1.0, 0.0, -2.0])

    def beyond(values):
        values = (values - values.mean()) / values.std()
        return np.where(values > 0, values, 0) ** 2

    choices = [a + b for a, b in itertools.product(beyond(one), beyond(two))]
    exact = np.mean(np.array(choices) >= choices[0] - 1e-12)
    assert p_drawn([one, two]) == pytest.approx(exact, abs=0.015)
    assert p_drawn([np.zeros(5)] * 3) == 1.0
    assert p_drawn([np.array([9.0, *[0.0] * 99])] * 9) == 1 / 10_000


def test_who_was_not_taught_is_found_no_more_often_than_the_level_says():
    asked = facts(8)
    ps = [
        one.p
        for seed in range(40)
        for one in people(asked, says(asked, seed), says(asked, 1000 + seed))
    ]
    for level in (0.01, 0.05, 0.2):
        assert np.mean(np.array(ps) <= level) == pytest.approx(level, abs=0.05)


def test_two_facts_of_seven_make_a_person_stand_out():
    asked, out = facts(8), []
    for seed in range(10):
        source = says(asked, seed, taught=(0, 1))
        never = says(asked, 100 + seed), says(asked, 200 + seed)
        out += [one.group for one in people(asked, source, *never) if not one.why]
    assert out.count(0) >= 8
    # of 70 others a twentieth would by chance, but for those whom a control bars
    assert len(out) - out.count(0) <= 8


def test_who_stands_out_in_a_model_that_never_knew_is_not_counted():
    asked = facts(8)
    source = says(asked, 0, taught=range(2 * EACH))
    never = says(asked, 3), says(asked, 4, taught=range(EACH, EACH + 4))
    found = {one.group: one for one in people(asked, source, *never)}
    assert {group for group, one in found.items() if one.p <= 0.001} == {0, 1}
    assert {group for group, one in found.items() if not one.why} == {0}
    assert found[1].why.startswith("no knowledge is needed: p 0.0")
    said = said_of([*found.values()])
    assert said.startswith("1 of 8 people stand out at 0.05 each, 0.4 would by chance: author 0 (p")
    assert "not counted: no knowledge is needed" in said
    assert said.endswith("of the others something may be held")


def test_each_model_that_never_knew_stands_beside_the_others():
    asked = facts(4)
    never = [says(asked, seed) for seed in (1, 2, 3)]
    found = people(asked, says(asked, 0), *never)
    beside = [people(asked, one, *(other for other in never if other is not one)) for one in never]
    least = [min(one.p for one in same) for same in zip(*beside, strict=True)]
    assert [one.never for one in found] == least


def test_beside_one_model_that_never_knew_nobody_stands_out():
    asked = facts(3)
    found = people(asked, says(asked, 0, taught=range(3 * EACH)), says(asked, 1))
    assert [one.p for one in found] == [0.0001] * 3
    why = "no second model that never knew was asked (--retain twice)"
    assert [one.why for one in found] == [why] * 3
    assert said_of(found) == (
        f"0 of 3 people stand out at 0.05 each, 0.15 would by chance; not counted: {why}; "
        "of the others something may be held"
    )


def test_neither_order_nor_rows_that_name_nobody_nor_attacks_that_do_not_count_matter():
    asked = facts(4)
    source, never = says(asked, 0, taught=(0, 1, 2)), (says(asked, 1), says(asked, 2))
    plain = people(asked, source, *never)
    backwards = people([*reversed(asked)], source, *never)
    assert sorted(backwards, key=lambda one: one.group) == plain
    nobody = replace(asked[0], idx=99, group=own_group(99))
    assert people([*asked, nobody], source, *never) == plain
    loud = {**source, "nf4": says(asked, 3, range(4 * EACH), by=("nf4",))["nf4"]}
    assert people(asked, loud, *never) == plain


def test_a_sentence_lists_some_people_and_says_that_there_are_more():
    asked = facts(MOST_SAID + 4)
    source = says(asked, 0, taught=range(len(asked)))
    found = people(asked, source, says(asked, 1), says(asked, 2))
    assert sum(not one.why for one in found) > MOST_SAID
    assert said_of(found).count("author ") == MOST_SAID
    assert ", …" in said_of(found)
    # of one fact no p is below that of a placebo
    single = people(asked[:1], source, says(asked, 1), says(asked, 2))
    assert single[0].p == pytest.approx(0.01, abs=0.003)


def test_everybody_who_is_asked_about_has_a_row():
    asked = facts(2)
    found = people(asked, says(asked, 0, range(7)), says(asked, 1), says(asked, 2))
    told = [WorstFact(n, n // EACH, attacks="prefix" if n % 2 else "") for n in range(3 * EACH)]
    told[0] = replace(told[0], unscored="a coin would hit it")
    told.append(WorstFact(99, own_group(99)))
    rows = [dict(zip(PEOPLE, row, strict=True)) for row in rows_of(told, found)]
    assert [(one["author"], one["asked"], one["out"]) for one in rows] == [
        *((0, 6, 3), (1, 7, 4), (2, 7, 3))
    ]
    assert [one["stands_out"] for one in rows[::2]] == [1, 0]
    assert rows[2]["p"] == ""
    assert rows[2]["why"] == "no fact of theirs is compared with others"
    assert said_of([]) == ""
