import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lensaudit.judge.items import JudgeVerdict
from lensaudit.judge.scalar import MIN_MASS, averaged, parsed, value_of, weighted


def top(**probs: float) -> dict[str, float]:
    return {token.removeprefix("n"): math.log(p) for token, p in probs.items()}


def test_the_score_worked_by_hand():
    # (80 * .5 + 70 * .3 + 60 * .05) / .85 = 64 / .85
    reading = weighted(top(n80=0.5, n70=0.3, n60=0.05, The=0.1), "int100")
    assert reading.score == pytest.approx(75.29, abs=0.005)
    assert reading.score == pytest.approx(64 / 0.85)
    assert reading.mass == pytest.approx(0.85)
    assert reading.argmax == 80
    # (6400 * .5 + 4900 * .3 + 3600 * .05) / .85 - (64 / .85)^2
    assert reading.variance == pytest.approx(4850 / 0.85 - (64 / 0.85) ** 2)


@pytest.mark.parametrize(("mass", "scored"), [(0.26, True), (0.25, True), (0.24, False)])
def test_numbers_need_a_quarter_of_the_probability(mass, scored):
    reading = weighted(top(n40=mass, The=0.7), "int100")
    assert (reading.score is not None, reading.status) == (scored, "ok" if scored else "low_mass")
    assert MIN_MASS == 0.25


def test_no_number_at_all_is_low_mass_and_says_what_came_instead():
    reading = weighted(top(Sorry=0.9, I=0.1), "int100")
    assert (reading.status, reading.mass) == ("low_mass", 0.0)
    assert "'Sorry'" in reading.reason


def test_variants_of_a_number_count_together():
    third = math.log(0.3)
    reading = weighted({"80": third, " 80": third, "20": third}, "int100")
    assert reading.mass == pytest.approx(0.9)
    assert reading.score == pytest.approx((80 * 0.6 + 20 * 0.3) / 0.9)


@pytest.mark.parametrize("token", ["101", "-5", "8.5", "²", "１０", "eighty", "", "1_0", "+5"])
def test_other_tokens_are_no_value(token):
    assert value_of(token, "int100") is None


def test_digits_and_letters_span_the_scale():
    assert [value_of(str(d), "digit10") for d in (0, 9)] == [0, 100]
    assert [value_of(letter, "letters") for letter in "ABCDEF"] == [0, 25, 50, 75, 100, None]
    assert value_of("10", "digit10") is None


def test_probabilities_that_are_none_are_refused():
    # a server that sends probabilities where their logarithms belong
    assert weighted({"80": 0.9, "20": 0.1}, "int100").status == "no_logprobs"
    assert weighted({}, "int100").status == "no_logprobs"


@settings(deadline=None, derandomize=True)  # loaded machines are slow, not wrong
@given(
    st.dictionaries(st.integers(0, 100), st.floats(1e-6, 1.0), min_size=1, max_size=15),
    st.randoms(use_true_random=False),
)
def test_scores_are_convex_and_forget_the_order(weights, rng):
    total = sum(weights.values())
    tokens = [(str(k), math.log(w / total)) for k, w in weights.items()]
    reading = weighted(dict(tokens), "int100")
    assert reading.score is not None
    assert min(weights) - 1e-9 <= reading.score <= max(weights) + 1e-9
    rng.shuffle(tokens)
    assert weighted(dict(tokens), "int100").score == pytest.approx(reading.score)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("85", 85),
        (" 7\n", 7),
        ("85/100", 85),
        ("**85**", 85),
        ("100%.", 100),
        ("```\n85\n```", 85),
        ("85.5", 85.5),
        ("８５", 85),
        ("<think>\n50 or 60?\n</think>\n85", 85),
    ],
)
def test_a_reply_that_is_a_number_is_read(text, score):
    assert parsed(text).score == score


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("7 of 10 say 85", "parse_error"),
        ("101", "parse_error"),
        ("100.5", "parse_error"),
        ("-5", "parse_error"),
        ("", "parse_error"),
        ("REFUSAL", "refusal"),
        ("I can't help with that.", "refusal"),
    ],
)
def test_other_replies_have_no_score(text, status):
    assert (parsed(text).score, parsed(text).status) == (None, status)


def test_samples_are_averaged_over_those_that_are_numbers():
    bad = JudgeVerdict(None, "why", "parse_error")
    mean = averaged([JudgeVerdict(80.0), JudgeVerdict(60.0), JudgeVerdict(60.0), bad, bad])
    assert (mean.score, mean.argmax) == (pytest.approx(200 / 3), 60)
    assert mean.variance == pytest.approx(800 / 9)
    assert averaged([JudgeVerdict(80.0), bad, bad]) == bad
