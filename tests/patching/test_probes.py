from collections import Counter

import pytest
import torch

import lensaudit as la
from lensaudit.errors import InputError
from lensaudit.models.bridge import intervening, logits_of, residuals
from lensaudit.patching.interventions import replace_at
from lensaudit.patching.probes import (
    KINDS,
    Probe,
    ProbeScore,
    ask,
    ask_patched,
    cloze_of,
    probe_of,
)


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


def test_an_inline_choice_lists_every_option_once():
    probe = build("choice_inline")
    assert probe.prompt.startswith("Who wrote Tide?\nThe answer is either ")
    assert probe.prompt.endswith(". The correct answer is")
    assert all(probe.prompt.count(name) == 1 for name in (ANSWER, *WRONG))
    assert probe.candidates[probe.correct] == " Ada Ruiz"


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
    assert all(build(kind, 3) == build(kind, 3) for kind in KINDS)
    before = torch.random.get_rng_state()
    build("choice_letter")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_wrong_answer_that_is_the_answer_does_not_count():
    with pytest.raises(InputError, match="other wrong answer"):
        probe_of("qa", QUESTION, ANSWER, wrong=["ADA RUIZ"], generator=seeded())
    twice = probe_of("qa", QUESTION, ANSWER, wrong=["Bo", "Bo"], generator=seeded())
    assert len(twice.candidates) == 2


def test_more_options_than_letters_are_refused():
    with pytest.raises(InputError, match="26 letters"):
        probe_of(
            "choice_letter",
            QUESTION,
            ANSWER,
            wrong=[f"n{i}" for i in range(26)],
            generator=seeded(),
        )


def test_a_cloze_ends_where_its_blank_was():
    probe = cloze_of("She was born in ____ .", "Oslo", wrong=["Rome"])
    assert (probe.prompt, probe.candidates) == ("She was born in", (" Oslo", " Rome"))
    for template in ("She was ____ in Oslo.", "She was born in", "____."):
        with pytest.raises(InputError, match="ends in a blank"):
            cloze_of(template, "Oslo")


WORDS = Probe("qa", "w7 w9 w33", ("w12", "w12 w5", "w40"), 1)


def test_candidates_are_scored_over_all_their_tokens(tiny):
    model = tiny()
    wanted = []
    for ids in ([12], [12, 5], [40]):
        logp = logits_of(model, torch.tensor([[7, 9, 33, *ids]]))[0].log_softmax(-1)
        wanted.append(sum(float(logp[2 + at, token]) for at, token in enumerate(ids)))
    found = ask(model, WORDS)
    assert found.logprob[0].tolist() == pytest.approx(wanted, abs=1e-5)
    # the first token alone could not tell the first two candidates apart
    assert found.logprob[0, 0] != found.logprob[0, 1]


def test_only_the_prompt_end_is_patched(tiny):
    full, source = tiny(0), tiny(1)
    tokens = torch.tensor([[7, 9, 33, 12, 5]])  # the prompt and the candidate of two tokens
    stack, _ = residuals(source, tokens)
    at_end = torch.tensor([[False, False, True, False, False]])
    with intervening(full, {1: replace_at(stack[:, 1], at_end)}):
        logp = logits_of(full, tokens)[0].log_softmax(-1)
    found = ask_patched(full, source, WORDS, layers=[1])
    assert float(found.logprob[0, 1]) == pytest.approx(float(logp[2, 12] + logp[3, 5]), abs=1e-5)


def test_a_model_patched_with_itself_scores_as_by_itself(tiny):
    full, plain = tiny(0), ask(tiny(0), WORDS)
    itself = ask_patched(full, tiny(0), WORDS)
    assert torch.allclose(itself.logprob, plain.logprob.expand(3, -1), atol=1e-6)
    other = ask_patched(full, tiny(1), WORDS, layers=[1, 2])
    assert other.layers == (1, 2)
    assert (other.logprob - plain.logprob).abs().min() > 1e-3
    post_norm = ask_patched(full, tiny(1), WORDS, last_layer="reference")
    assert torch.allclose(post_norm.logprob[1], other.logprob[0], atol=1e-5)
    assert (post_norm.logprob[2] - other.logprob[1]).abs().max() > 1e-3


def test_the_score_over_layers_worked_by_hand():
    # candidate 0 is right; p = 1/2 against 1/4 and 1/4, then 1/8 against 3/4 and 1/8
    p = torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]], dtype=torch.float64)
    score = ProbeScore((4, 9), p.log() - 3.0, 0).over_layers()
    assert score.mean_p == pytest.approx((0.5 + 0.125) / 2)
    assert score.max_p == pytest.approx(0.5)
    assert score.mean_margin == pytest.approx((0.25 - 0.625) / 2)
    assert score.max_margin == pytest.approx(0.25)
    assert score.detection_rate == 0.5
    assert score.detecting == (4,)


def test_a_trained_model_knows_what_retain_does_not():
    examples = [e for e in la.forget_set("demo") if len(e.entity) > 8][:10]
    wrong = [e.entity for e in examples[:4]]
    rates = {}
    for name in ("full", "retain"):
        model = la.load_model(f"demo/{name}")
        probes = [
            probe_of("qa", e.question, e.answer, wrong=wrong, generator=seeded()) for e in examples
        ]
        found = [ask(model, probe) for probe in probes]
        rates[name] = sum(float(score.logprob[0, score.correct]) for score in found)
    assert rates["full"] > rates["retain"] + 10
