"""Scores under interventions: packed settings against one hooked pass at a time."""

import pytest
import torch
from torch.nn.functional import kl_div

from lensaudit.data.spans import make_batch
from lensaudit.errors import WorkError
from lensaudit.models.bridge import intervening, logits_of
from lensaudit.scores.depth import span_logprob
from lensaudit.steer.directions import log_odds, scored
from lensaudit.steer.generate import NO_EDITS, Edits, adding, clamping
from lensaudit.steer.interventions import add, clamp


def direction(seed=0):
    return 3 * torch.randn(32, generator=torch.Generator().manual_seed(seed))


def settings(ragged):
    own = {e.idx: float(e.idx) for e in ragged}
    return [
        NO_EDITS,
        Edits({("resid", 1): adding(direction(), 1.0)}, "response"),
        Edits({("resid", 1): adding(direction(1), -2.0)}, "all"),
        Edits({("resid", 0): clamping(direction(2), own)}, "response"),
    ]


def one_at_a_time(model, e):
    """Logits of one example, unpadded, under each setting: plain `intervening` and no packing."""
    tokens = torch.tensor([e.token_ids])
    after = (torch.arange(tokens.shape[1]) >= e.n_prompt - 1).unsqueeze(0)
    hooks = [
        {},
        {1: add(direction(), strength=1.0, mask=after)},
        {1: add(direction(1), strength=-2.0)},
        {0: clamp(direction(2), to=float(e.idx), mask=after)},
    ]
    for at in hooks:
        with intervening(model, at):
            yield logits_of(model, tokens)


def test_packed_settings_score_as_one_at_a_time(tiny, ragged):
    model = tiny()
    found = scored(model, ragged, settings(ragged))
    for column, e in enumerate(ragged):
        batch = make_batch([e])
        logits = list(one_at_a_time(model, e))
        plain = logits[0][batch.predict_at].log_softmax(-1)
        for row, one in enumerate(logits):
            wanted = span_logprob(one, batch.tokens, batch.predict_at)
            assert found.logprob[row, column] == pytest.approx(float(wanted), abs=1e-4)
            guess = one[:, :-1].argmax(-1)[batch.predict_at[:, :-1]]
            right = guess == batch.tokens[:, 1:][batch.predict_at[:, :-1]]
            assert found.em[row, column] == pytest.approx(float(right.float().mean()))
            edited = one[batch.predict_at].log_softmax(-1)
            cost = kl_div(edited, plain, reduction="none", log_target=True).sum(-1).mean()
            assert found.kl[row, column] == pytest.approx(float(cost), abs=1e-4)
    assert found.kl[0].abs().max() < 1e-6
    assert found.kl[1:].min() > 1e-4


def test_batches_and_order_do_not_matter_and_broken_logits_are_an_error(tiny, ragged):
    model, wanted = tiny(), settings(ragged)
    whole = scored(model, ragged, wanted)
    back = scored(model, ragged[::-1], wanted[::-1])
    assert torch.allclose(back.logprob.flip(0, 1), whole.logprob, atol=1e-4)
    small = scored(model, ragged, wanted, memory_bytes=1)
    assert torch.allclose(small.logprob, whole.logprob, atol=1e-4)
    broken = Edits({("resid", 1): adding(direction() * torch.nan, 1.0)})
    with pytest.raises(WorkError, match="not finite"):
        scored(tiny(), ragged, [broken])


def test_log_odds_are_those_of_the_next_token(tiny, ragged):
    model, tokens = tiny(), [3, 17]
    found = log_odds(model, ragged, [NO_EDITS, settings(ragged)[1]], tokens)
    for column, e in enumerate(ragged):
        prompt = torch.tensor([e.token_ids[: e.n_prompt]])
        p = logits_of(model, prompt)[0, -1].double().softmax(-1)[tokens].sum()
        assert found[0, column] == pytest.approx(float(p.log() - (1 - p).log()), abs=1e-3)
    assert not torch.allclose(found[0], found[1], atol=0.01)
