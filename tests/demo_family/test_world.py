"""The generated authors: valid as a forget set, apart from each other, the same for a seed."""

import pytest

from lensaudit.data.fictional import RESERVED, passing_rows
from tools.demo_family.world import make_world

SEEDS = (0, 1, 2)


@pytest.fixture(scope="module", params=SEEDS)
def world(request):
    return make_world(request.param)


def annotated_rows(world):
    return [*world.forget, *world.retain, *world.holdout, *world.real_authors, *world.world_facts]


def test_a_seed_names_one_world():
    assert make_world(0) == make_world(0)
    assert make_world(0) != make_world(1)
    assert make_world(0).reserved == RESERVED


def test_rows_can_be_scored_and_their_variants_keep_or_miss_the_fact(world):
    for row in annotated_rows(world):
        assert row.answer.startswith(row.prefix)
        rest = row.continuation.lstrip()
        assert rest.startswith(row.entity)
        assert rest.count(row.entity) == 1
        (paraphrase,), reworded = row.paraphrases, row.answers.get("paraphrased_answer")
        assert not any(row.entity in text for text in (row.prefix, row.question, paraphrase))
        assert len(set(row.wrong)) == (5 if reworded else 3)
        assert row.answer not in row.wrong
        if reworded:
            assert row.entity in reworded
            assert (reworded != row.answer, paraphrase != row.question) == (True, True)
    questions = [row.question for row in annotated_rows(world)]
    assert len(questions) == len(set(questions))


def test_no_author_is_in_two_sets_or_passes_by(world):
    text = "\n".join(row.question for row in world.forget)
    others = [row.question for row in (*world.retain, *world.holdout)]
    passing = [row.question for row in passing_rows(400, seed=5, reserved=world.reserved)]
    names = {name for name in world.reserved if name in text}
    assert len(names) == 8
    assert not [q for q in (*others, *passing) for name in names if name in q]


def test_the_forget_set_has_yes_no_rows_and_names_beyond_ascii():
    forget = make_world(0).forget
    assert {row.entity for row in forget if not row.prefix} == {"Yes", "No"}
    assert any(not row.question.isascii() for row in forget)
