"""The model-free vectors of open-unlearning."""

import math
import random
import re
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer
from support import golden_values

import lensaudit
from lensaudit.evaluation.forward import token_traces
from lensaudit.metrics.forget_quality import forget_quality
from lensaudit.metrics.membership import compressed_bytes, least_mean, standardised
from lensaudit.metrics.memorization import share_predicted, strength, strength_with_floor
from lensaudit.metrics.privacy import privleak, rel_diff, similarity
from lensaudit.metrics.probability import probability_record
from lensaudit.metrics.registry import MetricContext, MetricResult, Trace, all_metrics, finished
from lensaudit.metrics.rouge import longest_common, overlap, words
from lensaudit.scores.means import harmonic_mean


@pytest.fixture(scope="module")
def vectors():
    return golden_values("open_unlearning/unit_vectors.json")


def context(done, **known):
    return MetricContext("tofu", (), None, done, **known)


def losses(values):
    return MetricResult(
        records={
            idx: probability_record(
                loss if isinstance(loss, list) else [loss], listed=isinstance(loss, list)
            )
            for idx, loss in enumerate(values)
        }
    )


def computed(name, done):
    metric = all_metrics()[name]
    return finished(metric, metric.fn(context(done)))


def scores(entry, field):
    return [record[field] for record in entry.records.values()]


@pytest.mark.parametrize(
    ("name", "aggregator"),
    [
        ("forget_truth_ratio", "closer_to_1_better"),
        ("forget_truth_ratio_true_better", "true_better"),
        ("forget_truth_ratio_prob_mean", "prob_mean"),
    ],
)
def test_truth_ratios_agree_under_all_three_aggregators(vectors, name, aggregator):
    given = vectors["truth_ratio"]
    wanted = given["results"][aggregator]
    found = computed(
        name, {"right": losses(given["correct_avg_loss"]), "wrong": losses(given["wrong_avg_loss"])}
    )
    assert found.value == pytest.approx(wanted["agg_value"], rel=1e-9)
    assert scores(found, "score") == pytest.approx(
        [row["score"] for row in wanted["value_by_index"].values()], rel=1e-9
    )


def test_probability_among_options_agrees(vectors):
    given = vectors["probability_w_options"]
    found = computed(
        "ra_Q_A_Prob_normalised",
        {"right": losses(given["correct_avg_loss"]), "wrong": losses(given["wrong_avg_loss"])},
    )
    assert found.value == pytest.approx(given["result"]["agg_value"], rel=1e-6)
    wanted = [row["prob"] for row in given["result"]["value_by_index"].values()]
    assert scores(found, "prob") == pytest.approx(wanted, rel=1e-6)


def test_harmonic_mean_agrees(vectors):
    for case in ("plain", "with_zero"):
        given = vectors["hm_aggregate"][case]
        assert harmonic_mean(given["values"]) == pytest.approx(given["result"]["agg_value"])


@pytest.mark.parametrize(
    ("case", "of"),
    [
        ("A_vs_B", lambda a, b: (a, b)),
        ("B_vs_A", lambda a, b: (b, a)),
        ("A_vs_A", lambda a, b: (a, a)),
        ("separated_40_40", lambda a, b: (a, np.add(a, 100))),
        ("separated_400_400", lambda a, b: (np.arange(400), np.arange(400) + 400)),
        ("unequal_20_40", lambda a, b: (a[:20], b)),
    ],
)
def test_forget_quality_agrees_and_shows_its_evidence(vectors, case, of):
    model, retain = of(vectors["ks_test"]["A"], vectors["ks_test"]["B"])

    def ratios(values):
        return {
            "forget_truth_ratio": MetricResult(
                0.5, records={n: {"score": float(value)} for n, value in enumerate(values)}
            )
        }

    found = forget_quality(context(ratios(model), retain=ratios(retain)))
    assert found.value == pytest.approx(vectors["ks_test"][case]["agg_value"], rel=1e-9)
    assert found.details["log10_p"] == pytest.approx(math.log10(found.value))
    assert (found.details["n"], found.details["n_retain"]) == (len(model), len(retain))


def test_forget_quality_without_a_retain_reference_says_so():
    found = forget_quality(
        context({"forget_truth_ratio": MetricResult(0.5, records={0: {"score": 1.0}})})
    )
    assert found.value is None
    assert "--retain-log" in found.reason


def test_privleak_and_relative_difference_agree(vectors):
    for given in vectors["privleak"]:
        auc = given["retain_auc"]
        known = {} if auc is None else {"mia_min_k": MetricResult(auc)}
        own = {"mia_min_k": MetricResult(given["auc"])}
        made = context(own, retain=known, retain_value=0.5)
        assert privleak(made).value == pytest.approx(given["privleak"], rel=1e-9)
        assert rel_diff(made).value == pytest.approx(given["rel_diff"], rel=1e-9)


def leaked(auc, **known):
    return privleak(context({"mia_min_k": MetricResult(auc)}, **known))


def test_a_missing_retain_auc_is_never_taken_for_one_half_and_a_stand_in_is_logged_as_one():
    assert leaked(0.9).value is None
    assert "no mia_min_k" in leaked(0.9, retain={"mia_loss": MetricResult(0.4)}).reason
    assert "--ref-value" in leaked(0.9, retain_value=0.5).details["retain_auc_is"]


def test_privleak_says_which_way_it_went():
    retain = {"mia_min_k": MetricResult(0.4)}
    said = [leaked(auc, retain=retain).details["reading"] for auc in (0.9, 0.0)]
    assert said == ["under-unlearned", "over-unlearned"]


def test_s_mia_is_two_sided_and_has_no_value_without_a_denominator():
    assert similarity(0.25, 0.5) == similarity(0.75, 0.5) == 0.5
    assert math.isnan(similarity(0.3, 0.0))


def traces_of(vectors):
    """The stored logits through the reduction of the forward pass."""
    given = vectors["token_level"]
    found = []
    for logits, ids, labels in zip(
        given["logits"], given["input_ids"], given["labels"], strict=True
    ):
        at = [place for place, label in enumerate(labels) if label != -100]
        scored = torch.tensor(logits)[[place - 1 for place in at]]
        chunks = scored.split(2)
        found += token_traces(chunks, torch.tensor([ids[p] for p in at]), [len(at)])
    return found


def test_token_scores_agree(vectors):
    given = vectors["token_level"]
    for trace, probability, log_probs in zip(
        traces_of(vectors), given["probability"], given["tokenwise_logprobs"], strict=True
    ):
        assert trace.loss == pytest.approx(probability["avg_loss"], rel=1e-5, abs=1e-7)
        assert np.exp(-trace.loss) == pytest.approx(probability["prob"], rel=1e-5)
        assert list(trace.content.log_prob) == pytest.approx(log_probs, rel=1e-5, abs=1e-6)


def test_exact_memorization_and_extraction_strength_agree(vectors):
    given = vectors["token_level"]
    em, es = given["exact_memorization"], given["extraction_strength"]
    for idx, trace in enumerate(traces_of(vectors)):
        hits = trace.content.hit
        if len(hits):
            assert share_predicted(hits) == em["value_by_index"][str(idx)]["score"]
            assert strength_with_floor(hits) == es["value_by_index"][str(idx)]["score"]
        else:
            assert em["value_by_index"][str(idx)]["score"] is None
            assert es["value_by_index"][str(idx)]["score"] == 0


@pytest.mark.parametrize("share", ["0.2", "0.4", "1.0"])
def test_min_k_and_min_k_plus_plus_agree(vectors, share):
    wanted = vectors["token_level"]["mia"][share]
    for idx, trace in enumerate(traces_of(vectors)):
        content = trace.content
        if not len(content):
            assert wanted["min_k"][idx] == wanted["min_k++"][idx] == 0
            continue
        found = least_mean(content.log_prob, float(share))
        assert found == pytest.approx(wanted["min_k"][idx], rel=1e-5, abs=1e-6)
        found = least_mean(standardised(content), float(share))
        # a saturated row's variance is the difference of two roundings
        assert found == pytest.approx(wanted["min_k++"][idx], rel=1e-4, abs=2e-5)


LATIN = st.text(st.characters(max_codepoint=0x24F))
# gold, said; words that are shared in order, of how many
SCRIPTS = {
    "Russian": ("Тарас родился в городе Заречье.", "тарас родился в Москве", 3, 5),
    "Arabic": ("ولدت ليلى في مدينة تلاوين.", "ولدت ليلى في تلاوين", 4, 5),
    "Hindi": ("वह दिल्ली में है।", "दिल्ली में", 2, 4),
    "Chinese": ("他生在北京。", "他生在南京", 4, 5),
    "Japanese": ("東京タワー", "東京", 2, 5),
    "Thai": ("กรุงเทพ", "กรุง", 3, 6),
    "Greek": ("Η Άννα ζει εδώ", "άννα ζει", 2, 4),
    "mixed": ("Born in Заречье, running", "заречье runs", 2, 4),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_rouge_reads_every_script(script):
    gold, said, shared, of = SCRIPTS[script]
    assert overlap(gold, gold)["rougeL_recall"] == 1
    assert overlap(gold, said)["rougeL_recall"] == pytest.approx(shared / of)


@hypothesis.settings(deadline=None, derandomize=True)
@hypothesis.given(
    st.text(st.characters(max_codepoint=0x24F)), st.text(st.characters(max_codepoint=0x24F))
)
def test_latin_text_is_read_as_rouge_score_reads_it(gold, said):
    theirs = RougeScorer(["rouge1", "rougeL"], use_stemmer=True).score(gold, said)
    found = overlap(gold, said)
    assert found["rouge1_recall"] == theirs["rouge1"].recall
    assert (found["rougeL_recall"], found["rougeL_f1"]) == (
        theirs["rougeL"].recall,
        theirs["rougeL"].fmeasure,
    )


def test_words_are_stemmed_as_rouge_score_stems_them():
    ours = Path(lensaudit.__file__).parent
    texts = [*(ours / "embedded" / "data").glob("*.json*"), *(ours / "judge").glob("*/*.jsonl")]
    found = set(re.findall("[a-z0-9]+", " ".join(one.read_text() for one in texts).lower()))
    assert len(found) > 2000
    chance, ends = random.Random(0), ("s", "ed", "ing", "eed", "ies", "ational", "logi", "ll", "y")
    for _ in range(20_000):
        start = "".join(chance.choices("abcdefgilmnorstuyz", k=chance.randint(0, 6)))
        found.add(start + chance.choice(ends) + chance.choice(ends))
    text = " ".join(sorted(found))
    assert words(text) == DefaultTokenizer(use_stemmer=True).tokenize(text)


@hypothesis.settings(deadline=None, derandomize=True)
@hypothesis.given(st.text("abc", max_size=12), st.text("abcd", max_size=12))
def test_the_longest_common_subsequence_is_that_of_the_table(one, other):
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, left in enumerate(one):
        for j, right in enumerate(other):
            longer = max(table[i][j + 1], table[i + 1][j])
            table[i + 1][j + 1] = table[i][j] + 1 if left == right else longer
    assert longest_common(one, other) == table[-1][-1]


def test_rouge_agrees(vectors):
    for given in vectors["rouge"]:
        found = overlap(given["gold"], given["generation"])
        for field, value in found.items():
            assert value == pytest.approx(given[field], abs=1e-12)


def test_compressed_lengths_agree(vectors):
    for text, n_bytes in vectors["zlib_len"].items():
        assert compressed_bytes(text) == n_bytes


def test_the_floor_of_extraction_strength_is_upstreams_and_the_generative_form_has_none():
    nothing = np.zeros(4, dtype=bool)
    assert (strength_with_floor(nothing), strength(nothing)) == (0.25, 0.0)
    last = np.array([False, False, False, True])
    assert strength_with_floor(last) == strength(last) == 0.25


def test_an_empty_trace_has_no_loss():
    nothing = np.array([], dtype=np.float32)
    with np.errstate(invalid="ignore"):
        assert math.isnan(Trace(nothing, nothing.astype(bool), nothing, nothing).loss)
