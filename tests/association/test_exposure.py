"""Shared prompts and cached keys change no number."""

from collections import Counter

import pytest
import torch

from lensaudit.association import exposure as reading
from lensaudit.association.exposure import Head, exposures, layered_exposures
from lensaudit.models.bridge import logits_of, residuals, unembedded
from lensaudit.patching.reader import Reader, steered
from lensaudit.patching.speech import say

PROMPT = [1, 8, 15, 22, 9]
CANDIDATES = [[7, 12, 30], [44], [5, 6]]


def plainly(model, prompt, ids):
    """The definition: one uncached pass over prompt and candidate."""
    logits = logits_of(model, torch.tensor([[*prompt, *ids]]))[0].log_softmax(-1)
    return sum(float(logits[len(prompt) - 1 + at, token]) for at, token in enumerate(ids))


def lensed(source, full, prompts, candidates, layers=range(3)):
    """What the head of `full` reads after each layer of the source."""
    rows = layered_exposures(source, [Head(full)], layers, prompts, candidates)
    return [row[1:] for row in rows]


def test_a_model_joined_to_itself_is_itself(tiny):
    model = tiny()
    joined = Reader(model, source=model, layer=1)
    assert torch.allclose(
        exposures(joined, [PROMPT], [CANDIDATES])[0],
        exposures(Reader(model), [PROMPT], [CANDIDATES])[0],
        atol=1e-4,
    )
    prompts = [PROMPT, PROMPT[:3]]
    assert say(joined, prompts, max_new_tokens=6) == say(Reader(model), prompts, max_new_tokens=6)


def test_nothing_of_full_below_the_joint_is_heard(tiny):
    source, full = tiny(0), tiny(1)
    joined = Reader(full, source=source, layer=1)
    before = exposures(joined, [PROMPT], [CANDIDATES])[0]
    with torch.no_grad():
        for parameter in full.original_model.model.layers[0].parameters():
            parameter.mul_(3.0)
    assert torch.equal(exposures(joined, [PROMPT], [CANDIDATES])[0], before)
    assert not torch.allclose(
        exposures(Reader(source), [PROMPT], [CANDIDATES])[0], before, atol=1e-2
    )


def test_the_lens_reads_every_layer_by_the_head_of_full(tiny):
    source, full = tiny(0), tiny(1)
    found = lensed(source, full, [PROMPT], [CANDIDATES])[0]
    stack, _ = residuals(source, torch.tensor([[*PROMPT, *CANDIDATES[0]]]))
    for layer in range(3):
        logits = unembedded(full, stack[:, layer])[0].log_softmax(-1)
        expected = sum(float(logits[4 + at, token]) for at, token in enumerate(CANDIDATES[0]))
        assert float(found[layer, 0]) == pytest.approx(expected, abs=1e-4)


MORE = [[3, 4], [8, 9, 10, 11]]
"""Candidates of another prompt: other in number and length."""


@pytest.mark.parametrize("limit", [1, 10**6])
def test_prompts_read_together_are_those_read_alone(tiny, monkeypatch, limit):
    monkeypatch.setattr(reading, "READ_TOKENS", limit)
    model = tiny()
    other = tiny(1)
    prompts, candidates = [PROMPT[:2], PROMPT * 2, PROMPT], [MORE, CANDIDATES, [[44]]]
    joined = Reader(other, source=model, layer=1)
    found = exposures(joined, prompts, candidates)
    together = lensed(model, other, prompts, candidates, [1])
    for prompt, own, row, rows in zip(prompts, candidates, found, together, strict=True):
        assert torch.allclose(row, exposures(joined, [prompt], [own])[0], atol=1e-4)
        assert torch.allclose(rows, lensed(model, other, [prompt], [own], [1])[0], atol=1e-4)


@pytest.mark.parametrize(("limit", "rows"), [(30, [1, 4, 2]), (10**6, [1, 6])])
def test_few_enough_are_read_at_once(tiny, monkeypatch, limit, rows):
    monkeypatch.setattr(reading, "READ_TOKENS", limit)
    monkeypatch.setattr(reading, "BRANCHES", 2)
    seen = []
    reader = Reader(tiny(), lambda rows: seen.append(len(rows)) or {})
    # six beginnings of two tokens after five: four of them in 30
    exposures(reader, [PROMPT], [[[one, 12, 30] for one in range(20, 26)]])
    assert seen == rows
    seen.clear()
    exposures(reader, [PROMPT] * 5, [[[44]]] * 5)
    assert seen == ([5] if limit != 30 else [1] * 5)


def test_candidates_that_begin_alike_are_read_as_one(tiny):
    reader = Reader(model := tiny())
    many = [[7, 12, last] for last in range(20, 40)]
    found = exposures(reader, [PROMPT], [many])[0]
    assert reader.work["tokens"] == 5 + 2
    assert found.tolist() == pytest.approx([plainly(model, PROMPT, ids) for ids in many], abs=1e-4)


def test_a_vector_of_its_own_moves_each_prompt(tiny):
    model = tiny()
    prompts, candidates = [PROMPT[:2], PROMPT * 2], [MORE, CANDIDATES]
    d_model = model.original_model.config.hidden_size
    towards = torch.stack([torch.zeros(d_model), torch.ones(d_model)])
    reader = steered(model, 1, towards, Counter())
    still, moved = exposures(reader, prompts, candidates)
    plain = exposures(Reader(model), prompts, candidates)
    assert torch.allclose(still, plain[0], atol=1e-5)
    alone = steered(model, 1, towards[1:], Counter())
    assert torch.allclose(moved, exposures(alone, prompts[1:], candidates[1:])[0], atol=1e-5)
    assert not torch.allclose(moved, plain[1], atol=1e-2)


def test_what_prompts_begin_with_alike_is_read_once(tiny):
    model = tiny()
    prompts = [PROMPT, [*PROMPT[:3], 9, 9], PROMPT[:2]]
    asked = [CANDIDATES, MORE, CANDIDATES]
    for reader in (Reader(model), Reader(model, source=tiny(1), layer=0)):
        found = exposures(reader, prompts, asked)
        for prompt, own, row in zip(prompts, asked, found, strict=True):
            assert torch.allclose(row, exposures(reader, [prompt], [own])[0], atol=1e-5)
    alone = Reader(model)
    found = exposures(alone, prompts, asked)
    assert found[1].tolist() == pytest.approx(
        [plainly(model, prompts[1], o) for o in MORE], rel=1e-5
    )
    # seven beginnings of three prompts, then three rows as wide as the widest
    assert alone.work["tokens"] == 7 + 3 * 4


TREE = [[7, 12, 30], [7, 12, 31], [7, 13, 30, 5], [44], [7], [5, 6], [5, 7, 12, 30, 8, 9]]
"""Candidates that share beginnings, or end where another goes on."""


@pytest.mark.parametrize("branches", [1, 3, 64])
@pytest.mark.parametrize("name", ["Llama", "GPT-2", "GPT-NeoX", "Phi", "Gemma2", "Mistral"])
def test_candidates_side_by_side_are_read_as_if_each_were_alone(
    tiny_of, monkeypatch, name, branches
):
    """Also where a window forbids it: such models read one beginning after another."""
    monkeypatch.setattr(reading, "BRANCHES", branches)
    model = tiny_of(name)
    prompts = [PROMPT[:2], PROMPT * 2, PROMPT]
    found = exposures(Reader(model), prompts, [TREE, CANDIDATES, TREE[::-1]])
    for prompt, own, row in zip(prompts, (TREE, CANDIDATES, TREE[::-1]), found, strict=True):
        assert row.tolist() == pytest.approx([plainly(model, prompt, ids) for ids in own], rel=1e-5)


@pytest.mark.parametrize("families", [reading.FAMILIES, {}])
def test_few_logits_are_held_at_once(tiny, monkeypatch, families):
    """Of a family whose readout is not known the model makes them itself, a row at a time."""
    model, sizes = tiny(), []
    monkeypatch.setattr(reading, "rows_at_once", lambda d_vocab, device: 3)
    monkeypatch.setattr(reading, "FAMILIES", families)
    plain = reading.unembedded
    monkeypatch.setattr(
        reading, "unembedded", lambda model, at: sizes.append(at.shape[1]) or plain(model, at)
    )
    found = exposures(Reader(model), [PROMPT], [TREE])[0]
    assert found.tolist() == pytest.approx([plainly(model, PROMPT, ids) for ids in TREE], rel=1e-5)
    assert max(sizes, default=0) == (0 if not families else 3)


def test_outputs_and_streams_are_read_in_one_pass(tiny):
    source, other = tiny(0), tiny(1)
    work = Counter()
    heads = [reading.Head(source), reading.Head(other, {2: lambda resid: 2 * resid})]
    (rows,) = reading.layered_exposures(source, heads, (0, 2), [PROMPT], [TREE], work)
    assert work["forwards"] == 2
    assert torch.equal(rows[0], rows[2]), "the last stream through the own head is what is said"
    assert torch.allclose(rows[0], exposures(Reader(source), [PROMPT], [TREE])[0], atol=1e-5)
    alone = [lensed(source, one, [PROMPT], [TREE])[0] for one in (source, other)]
    assert torch.allclose(rows[1:3], alone[0][[0, 2]], atol=1e-5)
    assert torch.allclose(rows[3], alone[1][0], atol=1e-5)
    # doubled before a norm that divides by the length: the same
    assert torch.allclose(rows[4], alone[1][2], atol=1e-3)
