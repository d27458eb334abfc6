import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.wavefront_helpers import examples

from lensaudit.patching.layout import layout_of, schedule_of

TWO = examples([(4, 3, 5, 8), (2, 2, 3, 5)])
"""Prompts of 4 and 2 tokens; spans at positions 3 and 4, and at 2."""


def test_worked_by_hand():
    layout = layout_of(TWO, "span")
    assert (layout.n_examples, layout.n_pos, layout.n_prefix, layout.width) == (2, 5, 3, 2)
    assert layout.span_example.tolist() == [0, 0, 1]
    assert layout.span_pos.tolist() == [3, 4, 2]
    assert layout.span_column.tolist() == [0, 1, 0]
    # a position scores the token after it
    assert layout.span_label.tolist() == [
        TWO[0].token_ids[4],
        TWO[0].token_ids[5],
        TWO[1].token_ids[3],
    ]
    assert layout.prefix_example.tolist() == [0, 0, 0, 1, 1]
    assert layout.prefix_pos.tolist() == [0, 1, 2, 0, 1]
    assert layout.all_patched
    assert layout.read.all()


def test_boundary_replaces_one_position_and_reads_the_span():
    layout = layout_of(TWO, "boundary")
    # the second example's last prompt token stands before its span: carried, patched, not read
    assert layout.span_pos.tolist() == [3, 4, 1, 2]
    assert layout.patched.tolist() == [True, False, True, False]
    assert layout.read.tolist() == [True, True, False, True]
    assert not layout.all_patched


def test_prefix_leaves_nothing_before_the_rows():
    layout = layout_of(TWO, "prefix")
    assert (layout.n_prefix, len(layout.prefix_pos)) == (0, 0)
    assert layout.span_pos.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert layout.all_patched


def test_rows_join_in_order_of_layer_then_source():
    joins = torch.zeros(2, 2, 3, dtype=torch.bool)
    joins[0, 0, 0] = joins[1, 0, 0] = joins[0, 1, 1] = joins[0, 0, 2] = True
    plan = schedule_of(layout_of(TWO, "span"), joins)
    assert plan.joining == (((0, 2), (1, 2)), ((0, 1), (1, 0)), ((0, 2), (1, 0)))
    assert plan.count == (4, 5, 7)
    # the third row of the first example is the third to attend on its part of the rectangle
    assert plan.n_rank == (2, 2, 3)
    assert plan.rank.tolist() == [0, 0, 1, 1, 0, 2, 2]
    assert plan.span.tolist() == [0, 1, 0, 1, 2, 0, 1]
    # [source, batch, layer] = [2, 2, 3], flat
    assert plan.row.tolist() == [0, 0, 6, 6, 4, 2, 2]


@settings(deadline=None, derandomize=True, max_examples=50)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=5),
    n_sources=st.integers(1, 3),
    n_layers=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_no_two_tokens_share_a_place(lengths, n_sources, n_layers, seed):
    encoded = examples([(low + 1, low, low + n, low + n + 1) for low, n in lengths])
    layout = layout_of(encoded, "span")
    generator = torch.Generator().manual_seed(seed)
    joins = torch.rand(n_sources, len(encoded), n_layers, generator=generator) < 0.6
    plan = schedule_of(layout, joins)
    widths = torch.tensor([n for _, n in lengths])
    assert plan.count[-1] == int((joins.sum((0, 2)) * widths).sum())
    cells = torch.stack(
        (layout.span_example[plan.span], plan.rank, layout.span_column[plan.span]), dim=1
    )
    assert len(cells.unique(dim=0)) == len(cells)
    assert set(plan.row.tolist()) == set(joins.flatten().nonzero().squeeze(1).tolist())
    for layer in range(n_layers):
        present = plan.rank[: plan.count[layer]]
        assert plan.n_rank[layer] == (int(present.max()) + 1 if len(present) else 0)
