from collections import Counter
from typing import get_args

import pytest
import torch

from lensaudit.attacks.probes import ProbeKind, probe_of, share_of
from lensaudit.errors import InputError


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


QUESTION, ANSWER, WRONG = "Who wrote Tide?", "Ada Ruiz", ("Bo Lind", "Cy Marsh")


def build(kind, seed=0):
    return probe_of(kind, QUESTION, ANSWER, wrong=WRONG, generator=seeded(seed))


@pytest.mark.parametrize(
    ("kind", "prompt"),
    [
        ("qa", "Question: Who wrote Tide?\nAnswer:"),
        ("qa_chat", "User: Who wrote Tide?\nAssistant:"),
        ("cloze", "Question: Who wrote Tide?\nThe answer is"),
    ],
)
def test_open_probes_put_a_blank_before_every_candidate(kind, prompt):
    probe = build(kind)
    assert probe.prompt == prompt
    assert sorted(probe.candidates) == [" Ada Ruiz", " Bo Lind", " Cy Marsh"]
    assert probe.candidates[probe.correct] == " Ada Ruiz"


def test_the_letter_of_a_choice_is_that_of_the_right_line():
    probe = build("choice_letter")
    lines = probe.prompt.splitlines()
    assert lines[0] == QUESTION
    assert lines[-1] == "Answer: ("
    assert lines[1 + probe.correct] == f"({'ABC'[probe.correct]}) Ada Ruiz"
    assert probe.candidates == ("A", "B", "C")


def test_a_binary_probe_expects_yes_exactly_where_it_states_the_answer():
    stated = Counter()
    for seed in range(60):
        probe = build("binary", seed)
        assert probe.candidates == (" Yes", " No")
        right = f'Is "{ANSWER}" the answer to: {QUESTION}\nAnswer (Yes/No):' == probe.prompt
        assert probe.correct == (0 if right else 1)
        stated[right] += 1
    assert min(stated.values()) > 15


def test_the_right_option_has_no_place_of_its_own_and_seeds_repeat():
    places = Counter(build("choice_letter", seed).correct for seed in range(90))
    assert set(places) == {0, 1, 2}
    assert min(places.values()) > 15
    assert all(build(kind, 3) == build(kind, 3) for kind in get_args(ProbeKind))
    before = torch.random.get_rng_state()
    build("choice_letter")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_too_few_and_too_many_options_are_refused():
    def asked(kind, wrong):
        return probe_of(kind, QUESTION, ANSWER, wrong=wrong, generator=seeded())

    with pytest.raises(InputError, match="other wrong answer"):
        asked("qa", ["ADA RUIZ"])
    assert len(asked("qa", ["Bo", "Bo"]).candidates) == 2
    with pytest.raises(InputError, match="26 letters"):
        asked("choice_letter", [f"n{i}" for i in range(26)])


def test_the_share_of_the_right_candidate_is_among_the_candidates():
    # p = 1/8 against 3/4 and 1/8, however likely all of them are together
    p = torch.tensor([0.125, 0.75, 0.125], dtype=torch.float64)
    assert share_of(p.log() - 3.0, 0) == pytest.approx(0.125)


def test_an_inline_choice_lists_every_option_once():
    probe = build("choice_inline")
    assert probe.prompt.startswith("Who wrote Tide?\nThe answer is either ")
    assert probe.prompt.endswith(". The correct answer is")
    assert all(probe.prompt.count(name) == 1 for name in (ANSWER, *WRONG))
    assert probe.candidates[probe.correct] == " Ada Ruiz"
