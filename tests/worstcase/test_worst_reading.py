"""Shared prompts and cached keys change no number."""

import pytest
import torch

from lensaudit.models.bridge import logits_of, residuals, unembedded
from lensaudit.worstcase.reading import Joined, Lensed, Plain, exposures, say

PROMPT = [1, 8, 15, 22, 9]
CANDIDATES = [[7, 12, 30], [44], [5, 6]]


def plainly(model, prompt, ids):
    """The definition: one uncached pass over prompt and candidate."""
    logits = logits_of(model, torch.tensor([[*prompt, *ids]]))[0].log_softmax(-1)
    return sum(float(logits[len(prompt) - 1 + at, token]) for at, token in enumerate(ids))


def test_exposures_are_those_of_whole_passes(tiny):
    model = tiny()
    found = exposures(Plain(model), PROMPT, CANDIDATES)
    expected = [plainly(model, PROMPT, ids) for ids in CANDIDATES]
    assert found.tolist() == pytest.approx(expected, abs=1e-4)
    assert exposures(Plain(model), PROMPT, [[44]]).tolist() == pytest.approx(
        expected[1:2], abs=1e-4
    )


def test_a_model_joined_to_itself_is_itself(tiny):
    model = tiny()
    joined = Joined(model, model, 1)
    assert torch.allclose(
        exposures(joined, PROMPT, CANDIDATES),
        exposures(Plain(model), PROMPT, CANDIDATES),
        atol=1e-4,
    )
    prompts = [PROMPT, PROMPT[:3]]
    assert say(joined, prompts, max_new_tokens=6) == say(Plain(model), prompts, max_new_tokens=6)


def test_nothing_of_full_below_the_joint_is_heard(tiny):
    source, full = tiny(0), tiny(1)
    before = exposures(Joined(source, full, 1), PROMPT, CANDIDATES)
    with torch.no_grad():
        for parameter in full.original_model.model.layers[0].parameters():
            parameter.mul_(3.0)
    assert torch.equal(exposures(Joined(source, full, 1), PROMPT, CANDIDATES), before)
    assert not torch.allclose(exposures(Plain(source), PROMPT, CANDIDATES), before, atol=1e-2)


def test_the_lens_reads_every_layer_by_the_head_of_full(tiny):
    source, full = tiny(0), tiny(1)
    found = Lensed(source, full).exposures(PROMPT, CANDIDATES)
    stack, _ = residuals(source, torch.tensor([[*PROMPT, *CANDIDATES[0]]]))
    for layer in range(3):
        logits = unembedded(full, stack[:, layer])[0].log_softmax(-1)
        expected = sum(float(logits[4 + at, token]) for at, token in enumerate(CANDIDATES[0]))
        assert float(found[layer, 0]) == pytest.approx(expected, abs=1e-4)


def test_what_is_said_does_not_depend_on_neighbours(tiny):
    model = tiny()
    together = say(Plain(model), [PROMPT, PROMPT[:2], PROMPT * 3], max_new_tokens=5)
    assert together[1] == say(Plain(model), [PROMPT[:2]], max_new_tokens=5)[0]


def test_work_is_counted(tiny):
    reader = Plain(tiny())
    exposures(reader, PROMPT, CANDIDATES)
    # the prompt, then three candidates of two tokens that are read
    assert (reader.work.forwards, reader.work.tokens) == (2, 5 + 3 * 2)
