"""Membership attacks by hand: which side is which, and what each score is made of."""

import numpy as np
import pytest

from lensaudit.metrics.registry import Measured, MetricContext, Trace, all_metrics, finished


def trace(*log_probs):
    """A text of these log-probabilities; its last token is the closing one."""
    values = np.array(log_probs, dtype=np.float32)
    spread = np.ones(len(values), dtype=np.float32)
    return Trace(values, values > -1, np.zeros_like(values), spread)


class Kept:
    """Passes that were run: traces by kind and split, texts by split."""

    def __init__(self, texts=None, **traces):
        self.texts, self.traces = texts or {}, traces

    def measured(self, read):
        found = self.traces[read.kind][read.split]
        return Measured({idx: (one,) for idx, one in enumerate(found)}, {}, False)

    def answer_texts(self, read):
        return Measured({idx: (one,) for idx, one in enumerate(self.texts[read.split])}, {}, False)


def attacked(name, passes, groups=()):
    metric = all_metrics()[name]
    context = MetricContext("tofu", metric.reads["tofu"], passes)
    return finished(metric, metric.fn(context), groups)


def scores(side):
    return {idx: one["score"] for idx, one in side.records.items()}


def test_a_forget_set_that_is_likelier_than_the_holdout_is_known():
    # losses 0.1 and 0.2 against 1.0 and 0.15: three of four holdout texts are less likely
    sides = {
        "forget": [trace(-0.1, -0.1), trace(-0.1, -0.3)],
        "holdout": [trace(-1.0, -1.0), trace(-0.1, -0.2)],
    }
    found = attacked("mia_loss", Kept(trace=sides))
    assert found.value == 0.75
    assert scores(found.parts["holdout"]) == pytest.approx({0: 1.0, 1: 0.15})
    swapped = {"forget": sides["holdout"], "holdout": sides["forget"]}
    assert attacked("mia_loss", Kept(trace=swapped)).value == 0.25


def test_an_attack_counts_authors_of_both_sides():
    rows = [trace(-0.1 * n, -0.1 * n) for n in range(1, 13)]
    sides = {"forget": rows, "holdout": [trace(-0.3 - 0.1 * n, -0.3) for n in range(1, 13)]}
    six = {idx: idx // 2 for idx in range(12)}
    by_author = attacked("mia_loss", Kept(trace=sides), [six, six])
    assert by_author.low < by_author.value < by_author.high
    assert by_author.assumes is None
    by_row = attacked("mia_loss", Kept(trace=sides))
    assert "counted as its own author" in by_row.assumes
    # rows of an author are alike here: as independent rows they would say more than they know
    width = by_author.high - by_author.low
    assert width > by_row.high - by_row.low
    few = attacked("mia_loss", Kept(trace=sides), [dict.fromkeys(range(12), 0), six])
    assert few.ends is None
    assert few.why == "1 author: no interval"


def test_the_zlib_attack_divides_by_what_is_left_of_the_text():
    # 200 equal letters are 12 bytes, 60 different ones some 68: 1 / 12 against 1 / 68
    sides = {"forget": [trace(-1.0)], "holdout": [trace(-1.0)]}
    texts = {"forget": ["a" * 200], "holdout": ["".join(chr(48 + at) for at in range(60))]}
    found = attacked("mia_zlib", Kept(texts, trace=sides))
    assert scores(found.parts["forget"]) == pytest.approx({0: 1 / 12})
    assert scores(found.parts["holdout"])[0] < 1 / 60
    assert found.value == 0.0


def test_the_reference_attack_takes_off_what_any_model_finds_likely():
    # the forget text costs 1.5 less than the reference, the holdout text as much
    model = {"forget": [trace(-0.5)], "holdout": [trace(-0.4)]}
    reference = {"forget": [trace(-2.0)], "holdout": [trace(-0.4)]}
    found = attacked("mia_reference", Kept(trace=model, reference=reference))
    assert scores(found.parts["forget"]) == pytest.approx({0: -1.5})
    assert found.value == 1.0
    assert attacked("mia_loss", Kept(trace=model)).value == 0.0


@pytest.mark.parametrize(
    ("name", "content"),
    [
        # 40 % of five content tokens are two: -(-3 - 2) / 2; the closing token is left out
        ("mia_min_k", 2.5),
        # of one token at least one
        ("mia_min_k_plus_plus", 2.5),
    ],
)
def test_min_k_averages_the_least_likely_content_tokens(name, content):
    sides = {"forget": [trace(-1.0, -3.0, -0.5, -2.0, -0.1, -9.0)], "holdout": [trace(-4.0, -9.0)]}
    found = attacked(name, Kept(trace=sides))
    assert scores(found.parts["forget"]) == pytest.approx({0: content})
    assert scores(found.parts["holdout"]) == pytest.approx({0: 4.0})
    assert found.value == 1.0


def test_exact_memorization_leaves_the_closing_token_out():
    metric = all_metrics()["exact_memorization"]
    texts = [trace(-0.1, -2.0, -0.1), trace(-2.0, -2.0, -2.0, -0.1), trace(-0.1)]
    passes = Kept(trace={"forget": texts})
    context = MetricContext("tofu", metric.reads["tofu"], passes)
    found = finished(metric, metric.fn(context))
    # tokens above -1 are first choices: 1 of 2, and 0 of 3
    assert metric.numbers(found) == pytest.approx({0: 0.5, 1: 0.0})
    # the third text has no other token: it is no 0 in the mean
    assert found.value == pytest.approx(0.25)
    assert "no content token" in found.unscored[2]


def test_every_attack_says_whether_it_tells_people_apart():
    low = [trace(-0.1 - 0.01 * n, -0.1) for n in range(8)]
    high = [trace(-1.0 - 0.01 * n, -1.0) for n in range(8)]
    pairs = [{idx: idx // 2 for idx in range(8)}, {idx: 10 + idx // 2 for idx in range(8)}]
    known = attacked("mia_loss", Kept(trace={"forget": low, "holdout": high}), pairs)
    # four people a side, apart: the true split and the reversed one of 70
    assert known.value == known.details["auc"] == 1.0
    assert known.details["betrayal"]["p"] == 2 / 70
    assert known.details["betrayal"]["says"] == "still treated as seen (p 0.029)"
    loud = attacked("mia_loss", Kept(trace={"forget": high, "holdout": low}), pairs)
    assert loud.value == 0.0
    assert loud.details["betrayal"]["says"] == "told apart from never seen: shouts (p 0.029)"
    shared = attacked("mia_loss", Kept(trace={"forget": high, "holdout": low}), [pairs[0]] * 2)
    assert "author '0' is on both sides" in shared.details["betrayal"]["says"]
    assert shared.value == 0.0


def test_an_attack_without_rows_of_a_side_has_no_p():
    found = attacked("mia_loss", Kept(trace={"forget": [trace(-1.0)], "holdout": []}))
    assert found.value is None
    assert found.reason == "holdout: no row to score"
    assert "betrayal" not in found.details


def test_the_entropy_attack_reads_how_unsure_the_model_is():
    def unsure(*entropies):
        values = -np.array(entropies, dtype=np.float32)
        return Trace(np.zeros_like(values), values > 1, values, np.ones_like(values))

    sides = {"forget": [unsure(0.5, 1.5)], "holdout": [unsure(2.0, 3.0)]}
    found = attacked("mia_entropy", Kept(trace=sides))
    assert scores(found.parts["forget"]) == pytest.approx({0: 1.0})
    assert found.value == 1.0
    assert all_metrics()["mia_entropy"].on_request
