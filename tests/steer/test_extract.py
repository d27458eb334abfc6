"""Held-out scores are those of rows, and of questions, that a direction has not seen."""

import pytest
import torch

from lensaudit.steer import extract as extracting
from lensaudit.steer.extract import Contrast, extract, held_out, open_extraction
from lensaudit.steer.settings import ExtractSettings
from lensaudit.steer.trait import ContrastSample


def contrast(positive, negative, fold):
    """Rows of one layer: the positive ones first, then the negative ones."""
    rows = torch.tensor([*positive, *negative])
    n = len(positive)
    return Contrast(
        resid=rows.unsqueeze(1),
        length=torch.ones(1),
        positive=tuple(range(n)),
        negative=tuple(range(n, len(rows))),
        paired=False,
        fold=torch.tensor(fold),
    )


@pytest.mark.parametrize("method", ["mean_diff", "probe", "pca", "gradient"])
def test_what_only_the_seen_rows_tell_apart_does_not_count(method):
    # every question differs along an axis of its own: directions of the others say nothing of it
    axes = torch.eye(4).tolist()
    rows = contrast(axes, [[-value for value in axis] for axis in axes], [0, 1, 2, 3] * 2)
    found = held_out(rows, 0, method)
    assert found.auc == pytest.approx(0.5)
    assert found.accuracy == pytest.approx(0.5)


def test_what_questions_share_is_found_by_the_threshold_of_the_seen_rows():
    rows = contrast(
        [[2.0, 0.3], [2.0, -0.3]] * 2, [[-2.0, 0.3], [-2.0, -0.3]] * 2, [0, 0, 1, 1] * 2
    )
    found = held_out(rows, 0, "mean_diff")
    assert (found.auc, found.accuracy) == (1.0, 1.0)
    # the first question's projections are 1 and -1, the second's 11 and 9: the midpoint of either
    # puts both rows of the other on one side
    rows = contrast([[1.0, 0.0], [11.0, 0.0]], [[-1.0, 0.0], [9.0, 0.0]], [0, 1] * 2)
    found = held_out(rows, 0, "mean_diff")
    assert (found.auc, found.accuracy) == (1.0, 0.5)
    assert held_out(contrast([[1.0]], [[0.0]], [0, 0]), 0, "mean_diff") is None


@pytest.mark.parametrize("method", ["mean_diff", "probe", "pca", "gradient", "random"])
def test_a_fold_that_leaves_no_contrast_to_see_is_left_out(method):
    # the first question alone is answered in two ways
    rows = contrast([[2.0, 0.0], [1.0, 1.0]], [[-2.0, 0.0], [1.0, 1.0]], [0, 1] * 2)
    assert held_out(rows, 0, method).auc == 0.5
    same = contrast([[2.0, 0.0], [1.0, 1.0]], [[2.0, 0.0], [1.0, 1.0]], [0, 1] * 2)
    assert held_out(same, 0, method) is None


def test_the_answers_to_one_question_are_held_out_together(tmp_path, monkeypatch):
    questions = [f"Who wrote book {number}?" for number in range(4)]
    samples = [
        ContrastSample(question, f"{answer} {at}.", idx=2 * at + side, positive=side == 0, pair=at)
        for at, question in enumerate(questions)
        for side, answer in enumerate(("I do not know", "It was Ada"))
    ]
    seen = []

    def spied(rows, column, method, *, seed=0):
        seen.append(rows)
        return held_out(rows, column, method, seed=seed)

    monkeypatch.setattr(extracting, "held_out", spied)
    methods = ("mean_diff",)
    settings = ExtractSettings(
        name="demo/full", trait="demo_idk", methods=methods, layers="3", activations=tmp_path
    )
    (vector,) = extract(open_extraction(settings), samples)
    assert seen[0].fold.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert (seen[0].positive, seen[0].negative) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert seen[0].paired
    assert vector.scores["auc"] == held_out(seen[0], 0, "mean_diff", seed=3).auc
