"""Auditors and the verdict are judged as defined: by seeds, left out in turn, held out."""

import json
from dataclasses import asdict, replace

import pytest
from support import verdict_support as made

from lensaudit.errors import InputError
from lensaudit.gym.table import (
    ANCHOR,
    ScoreRow,
    auditors_table,
    confusion,
    document,
    errors_of,
    in_units,
    judged,
    left_out,
    nulls_of,
    planted,
    table,
    text,
)
from lensaudit.scores.areas import area_limits


def row(mechanism, truth, score, seed=0, *, held_out=False, auditor="a", high="forgot", **more):
    about = {"auditor": auditor, "version": "1", "reads": "stream", "high_means": high}
    about |= {"model": f"{mechanism} {seed}", "mechanism": mechanism, "truth": truth}
    about |= {"strength": 1.0, "seed": seed, "held_out": held_out, "score": score, "seconds": 2.0}
    return ScoreRow(**dict.fromkeys(("knows", "facts", "control", "why")) | about | more)


def gym(seeds=(0, 1), **changes):
    """Scores 0 as full and 1 as retain, but for what is changed."""
    rows = []
    for seed in seeds:
        rows += [row("full", ANCHOR, 0.0, seed), row("retain", ANCHOR, 1.0, seed)]
        for name, truth, held_out in (
            ("noise", "intact", False),
            ("masked", "hidden", False),
            ("turned", "hidden", True),
            ("other", "absent", False),
            ("other_noise", "absent", True),
        ):
            usual = (0.02 if truth != "absent" else 0.95) + 0.01 * seed
            rows.append(row(name, truth, changes.get(name, usual), seed, held_out=held_out))
    return rows


def counts(share):
    return share.k, share.n


def test_a_mechanism_that_reads_as_absent_is_the_worst():
    found = judged("a", gym(turned=0.96))
    assert found.worst == "turned"
    assert found.by_mechanism["masked"].auc == 1.0
    # 0.96 lies above .95 of both absent models in seed 0, and between .96 and .96 in seed 1
    assert found.by_mechanism["turned"].auc == pytest.approx((0 + 0.5) / 2)


def test_intervals_count_seeds_and_not_models():
    few, many = (judged("a", gym(seeds)).by_mechanism["masked"] for seeds in ((0,), range(5)))
    assert few.high == many.high == 1.0
    assert few.low == pytest.approx(area_limits(1.0, 1, 1).low)
    assert many.low == pytest.approx(area_limits(1.0, 5, 5).low)
    assert 0.2 < few.low < 0.25 < 0.6 < many.low < 0.7
    assert many.n_seeds == 5


def test_limits_of_the_worst_mechanism_hold_whichever_is_the_worst():
    found = judged("a", gym(range(5), turned=0.96))
    turned, worst = found.by_mechanism["turned"], found.at_worst
    # two hidden mechanisms: the limits of each of two statements at .05 / 2
    wanted = area_limits(turned.auc, 5, 5, level=1 - 0.05 / 2)
    assert (worst.auc, (worst.low, worst.high)) == (turned.auc, wanted.ends)
    assert worst.low < turned.low < turned.high < worst.high
    assert f"{worst.auc:.2f} [{worst.low:.2f}, {worst.high:.2f}]" in auditors_table([found])
    others = [one for one in gym(range(5)) if one.truth != "hidden"]
    assert judged("a", others).at_worst is None


def test_units_are_those_of_the_control_arm_and_high_scores_that_mean_knowing_are_turned():
    wanted = pytest.approx([u.score for u in in_units(gym())])
    turned = [replace(r, high_means="knows", score=1 - r.score) for r in gym()]
    assert judged("a", turned).by_mechanism["masked"].auc == 1.0
    for rows in (turned, [replace(r, score=10 + 4 * r.score) for r in gym()]):
        assert [u.score for u in in_units(rows)] == wanted


def test_an_auditor_that_cannot_tell_its_anchors_has_no_scale():
    rows = [replace(r, score=0.5) if r.truth == ANCHOR else r for r in gym()]
    assert in_units(rows) == []
    found = judged("a", rows)
    assert found.left_out is None
    assert found.threshold is None
    assert "–" in auditors_table([found])


def test_a_left_out_mechanism_is_judged_by_a_threshold_that_never_saw_it():
    # .6 is right of every other knowing model and left of every absent one: the midpoint of the
    # rest, (.03 + .95) / 2 = .49, calls it absent; with it the threshold would have moved
    wrong = left_out(in_units(gym(turned=0.6)))
    assert wrong["turned"] == [True, True]
    assert not any(any(bad) for name, bad in wrong.items() if name != "turned")
    found = judged("a", gym(turned=0.6))
    assert counts(found.left_out) == (1, 5)
    assert counts(found.held_out_knows) == (2, 2)
    assert counts(found.held_out_forgot) == (0, 2)
    # a held-out absent model below the threshold is a false positive
    assert counts(judged("a", gym(other_noise=0.1)).held_out_forgot) == (2, 2)


def test_known_facts_are_told_from_the_others_within_a_partial_model():
    facts = {0: 0.1, 1: 0.9, 2: 0.2, 3: 0.8}
    partial = [
        row("some", "partial", 0.5, seed, facts=facts, knows=knows)
        for seed, knows in ((0, [0, 2]), (1, [0, 1]))
    ]
    found = judged("a", gym() + partial).facts
    # seed 0: both below both others, 1; seed 1: .1 beats .2 and .8, .9 beats none, 2 of 4
    assert found.auc == pytest.approx((1 + 0.5) / 2)
    assert found.n_seeds == 2


def test_unscored_models_are_counted_and_the_best_worst_mechanism_comes_first():
    rows = gym()
    rows[3] = replace(rows[3], score=None, why="lost")
    assert judged("a", rows).n_unscored == 1
    poor = [replace(r, auditor="b") for r in gym(turned=0.99)]
    assert [one.auditor for one in table(poor + gym())] == ["a", "b"]


def told(mechanism, truth, content, *, seed=0, held_out=False, knows=None, low=()):
    """What the auditor `verdict` keeps of a model."""
    patch = {**content, "rows": made.rows_of(content, low)}
    more = {"auditor": "verdict", "knows": knows, "evidence": {"patch": patch}}
    return row(mechanism, truth, 0.5, seed, held_out=held_out, **more)


HIDES = made.summary(0.1, aligned={"uds": None, "why": "not needed: low"})
ABSENT = made.summary(0.92, aligned=made.aligned(0.93))


def planted_gym(seeds=range(5)):
    return [
        line
        for seed in seeds
        for line in (
            told("masked", "hidden", HIDES, seed=seed),
            told("held_masked", "hidden", HIDES, seed=seed, held_out=True),
            told("absent", "absent", ABSENT, seed=seed),
            told("held_absent", "absent", ABSENT, seed=seed, held_out=True),
            told("few", "partial", ABSENT, seed=seed, knows=list(range(10)), low=range(6)),
            told("one", "partial", ABSENT, seed=seed, knows=[0], low=(0,)),
        )
    ]


def test_every_half_and_every_truth_is_counted():
    document_ = document(planted_gym())
    found = document_.verdict
    assert counts(found.tune.knows["holds"]) == (5, 5)
    assert counts(found.held_out.absent["erased"])[0] == 5
    # a tenth of the facts and more count as held, a single one does not
    assert counts(found.tune.partial["partly"]) == (5, 5)
    assert found.tune.wrong == found.held_out.wrong == found.left_out.wrong == ()
    assert found.left_out.knows["holds"].n == 10
    json.dumps(asdict(found), allow_nan=False)
    shown = text(document_).splitlines()
    for half in ("tune half", "held-out half", "held-out half, patch alone", "mechanism left out"):
        assert sum(line.startswith(f"| {half} |") for line in shown) == 3


def test_an_error_is_named_and_bounded_over_seeds():
    rows = planted_gym()
    rows[0] = told("masked", "hidden", ABSENT, seed=0)
    found = errors_of(rows).tune
    assert found.wrong == ("masked, seed 0: erased",)
    assert counts(found.seeds_wrong) == (1, 5)
    assert found.seeds_wrong.high > 0.7
    said_of_absent = confusion([(one, "hidden") for one in planted(planted_gym(range(1)))])
    assert any("absent, seed 0: hidden" in one for one in said_of_absent.wrong)


def test_every_mechanism_has_its_words_and_the_bound_of_its_error():
    rows = planted_gym()
    rows[0] = told("masked", "hidden", ABSENT, seed=0)
    found = {one.mechanism: one for one in errors_of(rows).mechanisms}
    assert found["masked"].words == {"holds": 4, "partly": 0, "erased": 1, "undecided": 0}
    assert counts(found["masked"].wrong) == (1, 5)
    assert counts(found["absent"].wrong) == (0, 5)
    # none of 5 is still to be had, once in forty, at an error of 1 - .025 ** (1 / 5) = .52
    assert found["absent"].wrong.high == pytest.approx(1 - 0.025**0.2)
    assert found["held_masked"].held_out
    assert "| masked | hidden | 4 | 0 | 1 | 0 | 1/5 [" in text(document(rows))


def test_models_of_which_no_word_is_wrong_bound_no_error():
    rows = [*planted_gym(), *(told("hurt", "damaged", ABSENT, seed=seed) for seed in range(5))]
    found = {one.mechanism: one for one in errors_of(rows).mechanisms}
    # of 64 facts ten are more than a tenth, and one is less
    assert counts(found["few"].wrong) == (0, 5)
    assert (found["one"].wrong, found["hurt"].wrong) == (None, None)
    assert "| one | partial | 0 | 0 | 5 | 0 | – |" in text(document(rows))


def test_no_picture_is_drawn_of_absent_models_alone(tmp_path):
    absent = [one for one in gym() if one.truth in ("absent", ANCHOR)]
    with pytest.raises(InputError, match="wanted scores of models that know and of absent ones"):
        document(absent, picture=tmp_path / "map.svg")


def test_nulls_are_of_absent_models_of_the_chosen_mechanisms_alone():
    models = planted(planted_gym())
    nulls = nulls_of(models, {"absent"})
    assert nulls["uds"].mean == pytest.approx(0.08)
    assert nulls["uds"].n == 5
    assert nulls_of(models, {"masked"}) == {}
    assert nulls_of(planted(planted_gym(range(3))), {"absent"}) == {}


def test_attacks_of_the_ledger_are_views_and_patch_alone_leaves_them_out():
    attack = told("held_absent", "absent", ABSENT, held_out=True)
    ratio = {"value": 1.0, "interval": {"low": 0.9, "high": 1.1}}
    content = [{"models": {}, "main": {"recovery_adjusted": ratio}}]
    attack = replace(attack, auditor="rtt", evidence={"rtt": content})
    found = errors_of([*planted_gym(), attack])
    assert counts(found.held_out.absent["holds"])[0] == 1
    assert counts(found.patch_only.absent["holds"])[0] == 0
