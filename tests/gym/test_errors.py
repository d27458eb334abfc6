"""The verdict, judged on models whose truth is planted."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import verdict_support as made

from lensaudit.gym.table import (
    ScoreRow,
    confusion,
    document,
    errors_of,
    nulls_of,
    planted,
    rows_of,
    share_document,
    text,
)
from lensaudit.verdict.nulls import read_calibration

ROOT = Path(__file__).parents[2]


def row(mechanism, truth, content, *, seed=0, held_out=False, knows=None, low=()):
    patch = {**content, "rows": made.rows_of(content, low)}
    about = {
        "auditor": "verdict",
        "version": "v",
        "reads": "stream",
        "high_means": "forgot",
        "model": f"{mechanism} {seed}",
        "mechanism": mechanism,
        "truth": truth,
        "strength": 1.0,
        "seed": seed,
        "held_out": held_out,
        "knows": knows,
        "score": 0.5,
        "facts": None,
        "control": None,
        "why": None,
        "seconds": 1.0,
        "evidence": {"patch": patch},
    }
    return ScoreRow(**about)


HIDES = made.summary(0.1, aligned={"uds": None, "why": "not needed: low"})
ABSENT = made.summary(0.92, aligned=made.aligned(0.93))


def gym(seeds=range(5)):
    return [
        line
        for seed in seeds
        for line in (
            row("masked", "hidden", HIDES, seed=seed),
            row("held_masked", "hidden", HIDES, seed=seed, held_out=True),
            row("absent", "absent", ABSENT, seed=seed),
            row("held_absent", "absent", ABSENT, seed=seed, held_out=True),
            row("few", "partial", ABSENT, seed=seed, knows=list(range(10)), low=range(6)),
            row("one", "partial", ABSENT, seed=seed, knows=[0], low=(0,)),
        )
    ]


def counts(share):
    found = share_document(share)
    return found["k"], found["n"]


def test_every_half_and_every_truth_is_counted():
    found = errors_of(gym())
    assert counts(found.tune.knows["holds"]) == (5, 5)
    assert counts(found.held_out.absent["erased"])[0] == 5
    # a tenth of the facts and more count as held, a single one does not
    assert counts(found.tune.partial["partly"]) == (5, 5)
    assert found.tune.wrong == found.held_out.wrong == found.left_out.wrong == ()
    assert found.left_out.knows["holds"].n == 10
    json.dumps(found.document(), allow_nan=False)


def test_an_error_is_named_and_bounded_over_seeds():
    rows = gym()
    rows[0] = row("masked", "hidden", ABSENT, seed=0)
    found = errors_of(rows).tune
    assert found.wrong == ("masked, seed 0: erased",)
    assert counts(found.seeds_wrong) == (1, 5)
    assert found.seeds_wrong.high > 0.7
    said_of_absent = confusion([(one, "hidden") for one in planted(gym(range(1)))])
    assert any("absent, seed 0: hidden" in one for one in said_of_absent.wrong)


def test_nulls_are_of_absent_models_of_the_chosen_mechanisms_alone():
    models = planted(gym())
    nulls = nulls_of(models, {"absent"})
    assert nulls["uds"].mean == pytest.approx(0.08)
    assert nulls["uds"].n == 5
    assert nulls_of(models, {"masked"}) == {}
    assert nulls_of(planted(gym(range(3))), {"absent"}) == {}


def test_attacks_of_the_ledger_are_views_and_patch_alone_leaves_them_out():
    attack = row("held_absent", "absent", ABSENT, held_out=True)
    ratio = {"value": 1.0, "interval": {"low": 0.9, "high": 1.1}}
    told = {"rtt": [{"models": {}, "main": {"recovery_adjusted": ratio}}]}
    attack = replace(attack, auditor="rtt", evidence=told)
    found = errors_of([*gym(), attack])
    assert counts(found.held_out.absent["holds"])[0] == 1
    assert counts(found.patch_only.absent["holds"])[0] == 0


def test_the_shipped_calibration_and_the_page_are_those_of_the_shipped_scores():
    found = document(rows_of(ROOT / "benchmarks" / "gym" / "verdict", None))
    shipped = read_calibration()
    assert set(found.verdict.calibration) == set(shipped)
    for name, null in found.verdict.calibration.items():
        assert asdict(null) == pytest.approx(asdict(shipped[name]))
    page = (ROOT / "docs" / "gym.md").read_text()
    said = text(found)
    table = said[said.index("| verdict | truth |") :].splitlines()
    assert [line for line in table if line and line not in page] == []
    # on the half that limits were set on: no holder is called erased, no absent model a holder
    assert found.verdict.tune.wrong == ()
    assert found.n_seeds == 5


def test_the_page_has_a_line_for_every_half_and_truth():
    said = text(document(gym()))
    for half in ("tune half", "held-out half", "held-out half, patch alone", "mechanism left out"):
        assert sum(line.startswith(f"| {half} |") for line in said.splitlines()) == 3
