import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lensaudit.scores.depth import erasure_score, exact_match, label_hit, layer_status, tally


def test_exact_match_by_hand():
    assert exact_match([1, 9, 3, 4, 5], [1, 2, 3, 4, 5]) == 0.8
    assert exact_match([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5]) == 1.0  # extra tokens are free
    # missing ones are wrong, and positions do not shift
    assert exact_match([1, 2], [1, 2, 3, 4]) == 0.5
    assert exact_match([9, 1, 2, 3], [1, 2, 3]) == 0.0
    assert exact_match([], [1]) == 0.0
    with pytest.raises(ValueError, match="at least one reference token"):
        exact_match([1], [])


def test_a_hit_is_the_most_likely_label_and_broken_logits_have_none():
    logits = torch.tensor([[0.0, 1.0], [0.0, 1.0], [math.nan, 1.0]])
    hits = label_hit(logits, torch.tensor([1, 0, 1]))
    assert hits[:2].tolist() == [1.0, 0.0]
    assert hits[2].isnan()


def test_worked_by_hand():
    # S1 LOST at 1 and 2. S2 is LOST at 0 and 2: of the FT layers, only 2
    s1 = torch.tensor([[0.5, 0.4, 0.0, 1.0]])
    s2 = torch.tensor([[0.2, 0.75, 0.25, 0.5]])
    found = erasure_score(s1, s2)
    assert found.udr.item() == 0.5
    assert found.retention.item() == (0.75 + 0.25) / 2
    assert found.labels(0) == ["OVER", "UNDER", "EXACT", "-"]
    assert found.category == ("exact",)  # two LOST layers each, though not the same two
    assert found.lead.item() == 1 - 0


def test_the_threshold_itself_is_kept():
    row = torch.tensor([[0.5, 0.49999]])
    assert erasure_score(row, row).s1_lost.tolist() == [[False, True]]
    fifths = torch.tensor([[4 / 5]], dtype=torch.float64)
    assert not erasure_score(fifths, fifths, threshold=0.8).s1_lost.any()


def test_an_example_without_ft_layers_is_general_knowledge_and_has_no_rate():
    found = erasure_score(torch.ones(1, 3), torch.zeros(1, 3))
    assert found.category == ("general_knowledge",)
    assert found.udr.isnan().all()
    assert found.retention.isnan().all()
    assert found.lead.isnan().all()


def test_layers_are_named_by_their_number_not_by_their_column():
    s1, s2 = torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([[0.0, 0.0, 0.0]])
    assert erasure_score(s1, s2, layers=[2, 5, 9]).lead.item() == 9 - 2


LOST_LAYERS = [(1, 3), (2, 3), (2, 2), (3, 0), (0, 3), (3, 1)]
"""Numbers of LOST layers of S1 and S2: over, over, exact, under, general knowledge, under."""


def counted(n_lost: list[int]) -> torch.Tensor:
    return torch.tensor([[0.0] * n + [1.0] * (3 - n) for n in n_lost])


def test_percentages_leave_general_knowledge_out():
    s1, s2 = (counted(list(column)) for column in zip(*LOST_LAYERS, strict=True))
    found = tally(erasure_score(s1, s2))
    assert found["categories"] == {"over": 2, "exact": 1, "under": 2, "general_knowledge": 1}
    assert found["category_percent"] == {"over": 40.0, "exact": 20.0, "under": 40.0}
    assert found["over_erased_by"] == {"layers": (2 + 1) / 2, "first_layer": 0.0}
    alone = tally(erasure_score(torch.ones(2, 3), torch.ones(2, 3)))
    assert alone["category_percent"] is None
    assert alone["over_erased_by"]["layers"] is None


def test_a_layer_is_named_by_its_majorities():
    yes, half, no = torch.tensor([1, 1, 1, 0]), torch.tensor([1, 1, 0, 0]), torch.zeros(4)
    assert layer_status(yes.bool(), yes.bool()) == "ERASED"
    assert layer_status(yes.bool(), half.bool()) == "LEAKED"
    assert layer_status(half.bool(), yes.bool()) == "-"
    assert layer_status(no.bool(), yes.bool()) == "-"


matches = st.lists(st.floats(0, 1, width=32), min_size=4, max_size=4)


@settings(deadline=None, derandomize=True)
@given(matches, matches)
def test_retain_as_source_is_exact_and_full_as_source_is_under(s1, other):
    retain = erasure_score(torch.tensor([s1]), torch.tensor([s1]))
    intact = erasure_score(torch.tensor([s1]), torch.ones(1, 4))
    mixed = erasure_score(torch.tensor([s1]), torch.tensor([other]))
    if min(s1) < 0.5:
        assert retain.udr.item() == 1.0
        assert retain.category == ("exact",)
        assert retain.retention.item() < 0.5
        assert (intact.udr.item(), intact.retention.item()) == (0.0, 1.0)
        assert intact.category == ("under",)
        assert 0 <= mixed.udr.item() <= 1
    else:
        assert retain.category == intact.category == mixed.category == ("general_knowledge",)
