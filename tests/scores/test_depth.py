import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lensaudit.errors import InputError
from lensaudit.scores.depth import TAU, depth_score, label_logprob, span_logprob

delta = st.floats(-5, 20, allow_nan=False, width=32)
table = st.integers(1, 6).flatmap(
    lambda n: st.lists(st.lists(delta, min_size=n, max_size=n), min_size=1, max_size=5)
)


def test_worked_by_hand():
    # tau keeps layers 0 and 1; ratios 0.5 and clip(3) = 1; (1 * 0.5 + 3 * 1) / (1 + 3)
    found = depth_score(torch.tensor([[1.0, 3.0, 0.05]]), torch.tensor([[0.5, 9.0, 9.0]]))
    assert found.uds.tolist() == [0.875]
    assert found.ke.tolist() == [[True, True, False]]
    assert found.erasure[0, :2].tolist() == [0.5, 1.0]
    assert found.erasure[0, 2].isnan()


def test_tau_is_exclusive_and_only_ke_layers_count():
    assert not depth_score(torch.tensor([[TAU]]), torch.tensor([[1.0]])).ke.any()
    # no KE layer: unscored, not zero
    assert depth_score(torch.zeros(1, 3), torch.ones(1, 3)).uds.isnan().all()
    # layers that were not computed do not matter outside KE
    s1, s2 = torch.tensor([[0.01, 2.0]]), torch.tensor([[float("nan"), 1.0]])
    assert depth_score(s1, s2).uds.tolist() == [0.5]


def test_a_layer_that_is_not_known_leaves_its_row_unscored():
    s1, s2 = torch.tensor([[torch.nan, 1.0], [2.0, 1.0]]), torch.ones(2, 2)
    assert depth_score(s1, s2).uds.isnan().tolist() == [True, False]


@pytest.mark.misuse
def test_a_row_without_examples_is_refused():
    with pytest.raises(InputError, match="a row per example and a column per layer"):
        inspect.unwrap(depth_score)(torch.ones(2), torch.ones(2))


@settings(deadline=None, derandomize=True)
@given(table, st.data())
def test_uds_lies_in_the_unit_interval_and_retain_scores_one(rows, data):
    s1 = torch.tensor(rows)
    width = len(rows[0])
    s2 = torch.tensor([data.draw(st.lists(delta, min_size=width, max_size=width)) for _ in rows])
    uds = depth_score(s1, s2).uds
    scored = uds[~uds.isnan()]
    assert ((scored >= 0) & (scored <= 1)).all()
    own = depth_score(s1, s1).uds
    assert own[~own.isnan()].tolist() == [1.0] * int((~own.isnan()).sum())
    none = depth_score(s1, torch.zeros_like(s1)).uds
    assert none[~none.isnan()].abs().sum() == 0
    # the order of examples is nothing to the score of one
    assert torch.equal(depth_score(s1.flip(0), s2.flip(0)).uds.isnan(), uds.flip(0).isnan())


def test_label_logprob_is_cross_entropy_in_float32():
    logits = torch.randn(7, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    labels = torch.arange(7)
    wanted = -torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none")
    assert torch.allclose(label_logprob(logits, labels), wanted, atol=1e-6)
    assert label_logprob(logits, labels).dtype == torch.float32


def test_label_logprob_of_more_rows_than_are_reduced_at_once_is_that_of_each():
    logits, labels = torch.randn(7, 30_000), torch.arange(7)
    each = [label_logprob(logits[row : row + 1], labels[row : row + 1]) for row in range(7)]
    assert torch.equal(label_logprob(logits, labels), torch.cat(each))
    assert torch.allclose(torch.cat(each), logits.log_softmax(-1)[labels, labels], atol=1e-5)
    assert label_logprob(logits[:0], labels[:0]).shape == (0,)


def test_span_logprob_averages_the_tokens_to_the_right_of_the_mask():
    logits = torch.randn(2, 5, 11, generator=torch.Generator().manual_seed(1))
    tokens = torch.arange(10).reshape(2, 5)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[0, 1:3] = True
    mask[1, 0] = True
    logprob = logits.log_softmax(-1)
    wanted = [(logprob[0, 1, 2] + logprob[0, 2, 3]) / 2, logprob[1, 0, 6]]
    assert torch.allclose(span_logprob(logits, tokens, mask), torch.stack(wanted), atol=1e-6)


def test_an_empty_span_has_no_score():
    logits, tokens = torch.zeros(1, 3, 4), torch.zeros(1, 3, dtype=torch.long)
    assert span_logprob(logits, tokens, torch.zeros(1, 3, dtype=torch.bool)).isnan().all()


def test_shapes_are_checked_while_tests_run():
    with pytest.raises(Exception, match="Type-check"):
        depth_score(torch.zeros(2, 3), torch.zeros(2, 4))
