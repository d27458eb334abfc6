"""Steering while generating: positions, cached keys, padding, shared random numbers."""

from typing import get_args

import pytest
import torch

from lensaudit.models.bridge import captured, intervening, logits_of, user_hooks
from lensaudit.models.generation import likeliest
from lensaudit.patching.generation import generate
from lensaudit.settings import Where
from lensaudit.steer.draws import drawn, draws_of
from lensaudit.steer.generate import Edits, adding, clamping, continuations, installed, removing
from lensaudit.steer.interventions import add, mask_of

PROMPTS = [[5, 9, 12, 40, 7], [8, 33], [50, 21, 3]]
NONE: frozenset[int] = frozenset()


def direction(seed=0, d_model=32):
    return torch.randn(d_model, generator=torch.Generator().manual_seed(seed))


def steered(where="all", strength=0.15, layer=1):
    """Strong enough to change what is said, weak enough to leave more than one token to say."""
    return Edits({("resid", layer): adding(direction(), strength)}, where)


def without_cache(model, prompt, edits, n_steps):
    """One whole pass per token, unpadded: what the cached loop has to reproduce."""
    ids = list(prompt)
    for _ in range(n_steps):
        positions = torch.arange(len(ids)).unsqueeze(0)
        rows = edits.rows(positions, torch.tensor([len(prompt)]), (0,))
        with installed(model, rows):
            ids.append(int(logits_of(model, torch.tensor([ids]))[0, -1].argmax()))
    return tuple(ids[len(prompt) :])


@pytest.mark.parametrize("where", get_args(Where))
def test_steering_says_the_same_with_and_without_cache_and_padding(tiny, where):
    model, edits = tiny(), steered(where)
    found = continuations(model, PROMPTS, max_new_tokens=6, stop=NONE, edits=edits)
    assert found == [without_cache(model, prompt, edits, 6) for prompt in PROMPTS]
    plain = continuations(model, PROMPTS, max_new_tokens=6, stop=NONE)
    assert found != plain


def test_positions_are_counted_from_the_first_token_and_padding_is_never_edited():
    positions = torch.tensor([[-2, -1, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5]])
    n_prompt = torch.tensor([2, 4])
    rows = {where: mask_of(where, positions, n_prompt).int().tolist() for where in get_args(Where)}
    assert rows == {
        "all": [[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]],
        "prompt": [[0, 0, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0]],
        "response": [[0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1]],
        "last_prompt": [[0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0]],
    }
    # a later step, with everything before it cached: one new token per row
    step = torch.tensor([[4], [3]])
    assert mask_of("response", step, n_prompt).tolist() == [[True], [True]]
    assert mask_of("prompt", step, n_prompt).tolist() == [[False], [True]]


def test_the_response_begins_at_the_token_before_it_and_zero_changes_nothing(tiny):
    model, prompt = tiny(), [[5, 9, 12, 40]]
    first = {
        where: continuations(model, prompt, max_new_tokens=1, stop=NONE, edits=steered(where, 9.0))
        for where in get_args(Where)
    }
    plain = continuations(model, prompt, max_new_tokens=1, stop=NONE)
    assert first["response"] == first["last_prompt"] != plain
    plain = generate(model, PROMPTS, max_new_tokens=6, stop=NONE)
    assert continuations(model, PROMPTS, max_new_tokens=6, stop=NONE) == plain
    zero = steered(strength=0.0)
    assert continuations(model, PROMPTS, max_new_tokens=6, stop=NONE, edits=zero) == plain


def test_a_row_draws_its_own_numbers_whatever_the_batch_and_the_coefficient(tiny):
    model = tiny()
    options = {"n_steps": 6, "seed": 0, "temperature": 1.0}
    keys = ["q0 r0", "q1 r0", "q2 r0"]

    def said(rows, edits, seed=0):
        draws = draws_of([keys[row] for row in rows], **{**options, "seed": seed})
        prompts = [PROMPTS[row] for row in rows]
        return continuations(model, prompts, max_new_tokens=6, stop=NONE, edits=edits, draws=draws)

    together = said([0, 1, 2], steered())
    assert said([2, 0], steered()) == [together[2], together[0]]
    assert said([0, 1, 2], steered(), seed=1) != together
    # nothing is added, so the same numbers choose the same tokens
    assert said([0, 1, 2], steered(strength=0.0)) == said([0, 1, 2], Edits())


def test_rows_that_are_left_keep_their_own_prompt_lengths(tiny):
    model, edits = tiny(), steered("response", 0.1)
    prompts = [PROMPTS[0], PROMPTS[2], PROMPTS[1]]
    free = continuations(model, prompts, max_new_tokens=8, stop=NONE, edits=edits)
    stop = frozenset({free[0][0]})
    assert not stop & {*free[1], *free[2]}
    cut = continuations(model, prompts, max_new_tokens=8, stop=stop, edits=edits)
    assert cut == [(), *free[1:]]


def test_tokens_are_drawn_with_their_probabilities():
    logits = torch.tensor([0.5, 0.3, 0.2]).log().repeat(4, 1)
    numbers = torch.tensor([0.0, 0.49, 0.51, 0.81])
    assert drawn(logits, numbers, 1.0).tolist() == [0, 0, 1, 2]
    # at temperature 1/2 probabilities are squared: 25, 9, 4 of 38
    numbers = torch.tensor([0.65, 0.66, 0.89, 0.90])
    assert drawn(logits, numbers, 0.5).tolist() == [0, 1, 1, 2]
    assert draws_of(["a"], n_steps=3, seed=0, temperature=0.0) is likeliest
    for wrong in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="temperature"):
            draws_of(["a"], n_steps=3, seed=0, temperature=wrong)


def test_the_block_input_can_be_edited_and_the_block_sees_it(tiny):
    model, tokens = tiny(), torch.tensor([[5, 9, 12]])
    names = ["blocks.0.hook_out", "blocks.1.hook_in"]
    plain = logits_of(model, tokens)
    with intervening(model, {1: add(direction(), strength=2.0)}, component="resid_pre"):
        found, at_input = logits_of(model, tokens), captured(model, tokens, names)
    with intervening(model, {0: add(direction(), strength=2.0)}):
        wanted = logits_of(model, tokens)
    assert torch.allclose(found, wanted, atol=1e-4)
    assert not torch.allclose(found, plain, atol=0.1)
    assert at_input["blocks.1.hook_in"].isfinite().all()
    assert user_hooks(model) == []


def test_several_components_are_edited_at_once_and_hooks_are_gone_afterwards(tiny):
    model, tokens = tiny(), torch.tensor([[5, 9, 12]])
    unit = (direction() / direction().norm()).unsqueeze(0)
    at = {("resid_pre", 0): removing(unit)}
    for layer in range(3):
        at |= {(part, layer): removing(unit) for part in ("attn", "mlp")}
    rows = Edits(at).rows(torch.arange(3).unsqueeze(0), torch.tensor([2]), (0,))
    names = [f"blocks.{layer}.hook_out" for layer in range(3)]
    assert all((value @ unit[0]).abs().max() > 0.05 for value in _streams(model, tokens, names))
    with installed(model, rows):
        # where nothing writes the direction, the stream never holds it
        assert all((value @ unit[0]).abs().max() < 1e-4 for value in _streams(model, tokens, names))
    assert user_hooks(model) == []


def _streams(model, tokens, names):
    return captured(model, tokens, names).values()


def test_clamping_takes_a_number_per_example_and_removing_with_a_centre_sets_its_components():
    resid = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(2))
    unit = direction() / direction().norm()
    edit = clamping(direction(), {7: 1.5, 9: -2.0})
    edited = edit(torch.ones(2, 3, dtype=torch.bool), (9, 7))(resid)
    assert torch.allclose(edited @ unit, torch.tensor([[-2.0] * 3, [1.5] * 3]), atol=1e-4)
    basis = torch.linalg.qr(torch.randn(32, 2, generator=torch.Generator().manual_seed(3))).Q.T
    centre = direction(4)
    everywhere = torch.ones(2, 3, dtype=torch.bool)
    plain = removing(basis.contiguous())(everywhere, (0, 1))(resid)
    moved = removing(basis.contiguous(), centre=centre)(everywhere, (0, 1))(resid)
    assert (plain @ basis.T).abs().max() < 1e-4
    assert torch.allclose(moved @ basis.T, (basis @ centre).expand(2, 3, 2), atol=1e-4)
    assert torch.allclose(moved - plain, (centre @ basis.T @ basis).expand(2, 3, 32), atol=1e-4)
