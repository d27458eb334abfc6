import json
from dataclasses import asdict

import pytest
from scipy.stats import spearmanr

from lensaudit.errors import InputError, PartialError, WorkError
from lensaudit.judge.calibrate import Labelled, agreement, calibrate, read_labels, shipped_sets
from lensaudit.judge.items import JudgeVerdict
from lensaudit.judge.programmatic import TRAITS
from lensaudit.judge.prompts import BUILT_IN, check_template
from lensaudit.judge.settings import CalibrationSettings, LogSettings


def rows(*labels: float, pairs=()) -> list[Labelled]:
    return [
        Labelled("Q", "a" * (at + 1), float(label), dict(pairs).get(at))
        for at, label in enumerate(labels)
    ]


def report(labelled, *scores):
    verdicts = [
        JudgeVerdict(float(s)) if s is not None else JudgeVerdict(None, "why", "low_mass")
        for s in scores
    ]
    return agreement(labelled, verdicts, labels="x", judge="j", mode="int100", prompt="p")


def test_the_report_worked_by_hand():
    found = report(rows(0, 40, 80, 99), 20.0, 10.0, 100.0, None)
    assert (found.n, found.n_invalid, found.first_problem) == (4, 1, "why")
    # errors 20, -30, 20
    assert found.mae == pytest.approx(70 / 3)
    assert found.bias == pytest.approx(10 / 3)
    assert found.within_20 == pytest.approx(2 / 3)
    # ranks of labels 1 2 3, of scores 2 1 3: 1 - 6 * 2 / (3 * 8)
    assert found.spearman == pytest.approx(0.5)
    # errors against lengths 1, 2, 3: symmetric
    assert found.length_effect == pytest.approx(0.0)


def test_a_judge_that_rewards_length_shows():
    found = report(rows(50, 50, 50, pairs={0: 1, 2: 1}), 10.0, 40.0, 80.0)
    assert found.length_effect == pytest.approx(1.0)
    assert found.pair_gap == pytest.approx(70.0)
    fair = report(rows(50, 50, 50, pairs={0: 1, 2: 1}), 45.0, 60.0, 45.0)
    assert fair.pair_gap == 0


def test_two_answers_of_a_pair_count_as_one():
    scores = [0, 60, 20, 90, 40, 10, 100, 70]
    labels = [10, 20, 30, 40, 50, 60, 70, 80]
    apart = report(rows(*labels, *labels), *scores, *scores)
    twins = report(
        rows(*labels, *labels, pairs=[(at, at % 8) for at in range(16)]), *scores, *scores
    )
    assert (apart.n_independent, twins.n_independent, apart.spearman) == (16, 8, twins.spearman)
    # standard errors of the inverse tanh: sqrt(1.06 / 13) and sqrt(1.06 / 5)
    assert apart.reading is None
    assert "holds 0" in (twins.reading or "")


@pytest.mark.parametrize(
    ("labels", "p"),
    [
        ((0, 0, 100, 100), 2 / 6),
        ((0, 30, 60, 90), 2 / 24),
        ((0, 30, 60, 80, 100), 2 / 120),
        # one order in seven is as good, and there is none beyond it
        ((0, *[100] * 6), 2 / 7),
        ((0, *[100] * 3, *[50] * 3), 2 / 140),
    ],
)
def test_few_labels_or_few_values_agree_by_chance(labels, p):
    found = report(rows(*labels), *map(float, labels))
    assert (found.spearman, found.p) == pytest.approx((1.0, p))
    assert (found.reading is None) == (p <= 0.05)
    turned = report(rows(*labels), *(100.0 - one for one in labels))
    assert turned.p == pytest.approx(p)
    assert ("the other way round" in turned.reading) == (p <= 0.05)


def test_orders_of_many_labels_are_drawn_and_a_pair_moves_as_one():
    labels, scores = range(0, 100, 5), [float(7 * at % 100) for at in range(20)]
    found = report(rows(*labels), *scores)
    assert found.p == pytest.approx(spearmanr(labels, scores).pvalue, abs=0.02)
    assert found.p == report(rows(*labels), *scores).p
    twins = rows(*labels, *labels, pairs=[(at, at % 20) for at in range(40)])
    assert report(twins, *scores, *scores).p == found.p
    # nineteen alike: one order in twenty is as good
    alike = report(rows(0, *[100] * 19), 0.0, *[100.0] * 19)
    assert alike.p == pytest.approx(2 / 20, abs=0.01)
    assert "Spearman 1.00, p = 0." in alike.reading


def test_what_cannot_be_computed_is_none():
    found = report(rows(10, 20, 30), None, None, None)
    assert (found.spearman, found.mae, found.pair_gap, found.n_invalid) == (None, None, None, 3)


def test_scores_of_a_few_are_no_reading():
    found = report(rows(0, 10, 20, 80, 90, 100, 50), 0.0, 10.0, 20.0, *[None] * 4)
    assert found.reading == found.gap == "4 of 7 answers have no score: why"
    with pytest.raises(WorkError, match="4 of 7"):
        found.checked()


@pytest.mark.parametrize("name", shipped_sets())
def test_shipped_sets_span_the_scale_and_are_all_different(name):
    labelled = read_labels(name)
    labels = [one.label for one in labelled]
    assert len(labelled) >= 20
    assert min(labels) <= 5
    assert max(labels) >= 95
    assert sum(30 <= label <= 70 for label in labels) >= 3
    assert len({one.answer for one in labelled}) == len(labelled)
    pairs = [one for one in labelled if one.pair is not None]
    assert len(pairs) >= 2 * 2
    for pair in {one.pair for one in pairs}:
        short, long = sorted(
            (one for one in pairs if one.pair == pair), key=lambda one: len(one.answer)
        )
        assert abs(short.label - long.label) <= 5
        assert len(long.answer) > 1.4 * len(short.answer)
    assert name in BUILT_IN


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_prompts_are_well_formed(name):
    prompt = check_template(BUILT_IN[name], name)
    assert "0 (" in prompt
    assert "100 (" in prompt
    assert prompt.endswith("Just the number.")


def test_a_model_is_calibrated_and_results_say_so(stub_of, tmp_path):
    from lensaudit.judge.jobs import run_job

    stub = stub_of()
    who = {"model": "stub-judge", "base_url": stub.url, "cache": tmp_path / "a.sqlite"}
    found = calibrate(CalibrationSettings(by="idk", **who))
    assert found.mode == "int100"
    assert found.spearman is not None
    assert found.spearman > 0.8
    log = tmp_path / "rows.jsonl"
    log.write_text('{"idx": 0, "question": "Q", "answer": "A", "generation": "No idea."}\n')
    run_job(LogSettings(log=log, by="idk", out=tmp_path / "out", **who))
    kept = json.loads((tmp_path / "out" / "summary.json").read_text())["calibration"]
    assert kept["idk"]["spearman"] == found.spearman
    run_job(LogSettings(log=log, by="coherence", out=tmp_path / "other", **who))
    assert json.loads((tmp_path / "other" / "summary.json").read_text())["calibration"] == {}


@pytest.mark.parametrize("cap", [{"max_calls": 14}, {"retries": 0, "concurrency": 1}])
def test_what_is_not_finished_replaces_no_calibration(stub_of, client_of, tmp_path, cap):
    stub = stub_of()
    who = {"model": "stub-judge", "base_url": stub.url, "cache": tmp_path / "a.sqlite"}
    whole = calibrate(CalibrationSettings(by="coherence", **who))
    assert whole.reading is None
    # two probes, then twelve answers
    stub._queue.extend([] if "max_calls" in cap else [""] * 14 + ["500"] * 300)
    part = calibrate(CalibrationSettings(by="coherence", fresh=True, **cap, **who))
    assert part.n_unfinished == part.n_invalid == part.n - 12
    assert "to do: " in (part.reading or "")
    with pytest.raises(PartialError, match="the same command goes on"):
        part.checked()
    client = client_of(stub, cache=who["cache"])
    kept = client.cache.fact(f"calibration:{whole.prompt_id}", client.endpoint.host, "stub-judge")
    assert kept == asdict(whole)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"question": "Q", "answer": "A", "label": 5}', "1 rows, wanted 3"),
        (
            '{"question": "Q", "answer": "A", "label": 101}\n' * 3,
            "line 1: label: found 101, wanted at most 100",
        ),
        ("[1]\n" * 3, "wanted"),
        ("{torn\n" * 3, "is not JSON"),
    ],
)
def test_bad_sets_are_one_line(tmp_path, content, said):
    path = tmp_path / "labels.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=said):
        read_labels(str(path))


@pytest.mark.parametrize("judge", [one.name for one in TRAITS])
def test_word_lists_of_traits_agree_with_labels_and_reward_no_length(judge):
    found = calibrate(CalibrationSettings(by=judge, words=judge))
    assert found.reading is None  # the interval of the correlation excludes 0
    assert found.pair_gap < 25
    assert found.n_invalid == 0


def test_unknown_sets_prompts_and_judges_name_those_there_are(tmp_path):
    with pytest.raises(InputError, match="shipped are coherence, confidence"):
        read_labels("nothing")
    with pytest.raises(InputError, match="known are idk, variety"):
        calibrate(CalibrationSettings(by="idk", words="entity"))
    with pytest.raises(InputError, match="no prompt 'nothing'"):
        calibrate(CalibrationSettings(by="idk", prompt="nothing", model="m"))
