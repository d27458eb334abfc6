"""How many steps bring facts back: the curve by hand, the rows of every arm, runs and resume."""

import json
import math
import os
import shutil
import subprocess
import sys

import numpy as np
import psutil
import pytest
import torch
from support import EMBEDDED

import lensaudit as la
from lensaudit.attacks.effort import runs
from lensaudit.attacks.effort.arms import held_out
from lensaudit.attacks.effort.curve import chosen, effort_at, judged_by, last_read, readings
from lensaudit.attacks.effort.runs import DEMO_LRS, flop_per_token, prepare, tokens_at
from lensaudit.attacks.rtt.readout import read
from lensaudit.attacks.rtt.study import LRS
from lensaudit.attacks.settings import EffortSettings
from lensaudit.cli.main import run as lensaudit
from lensaudit.data.neutral import wording
from lensaudit.errors import InputError
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import load_tokenizer, open_model
from lensaudit.results.manifest import model_in
from lensaudit.results.reading import json_object
from lensaudit.results.roles import ends_as_sources
from lensaudit.scores.intervals import clustered_ratio
from lensaudit.scores.recovery import Arms
from lensaudit.training.trainee import n_parameters

GROUPS = [fact // 4 for fact in range(24)]
DIVISOR_NEAR_0 = "111111001100101000111100", "110110100011010011101101", "000010110000010001010000"
"""Full, source and floor of facts, where both have fourteen, and seven of them are the same."""
SHORT = {"steps": 2, "lrs": (1e-3,), "limit": 16}


def marks(*shares):
    """Readings where the first so many of 24 facts are answered rightly."""
    return np.array([[float(fact < share) for fact in range(24)] for share in shares])


def costs(steps):
    return {step: {"steps": step, "tokens": 0, "flop": 0} for step in steps}


def curve_of(steps, source, full, retain):
    return readings(costs(steps), Arms(source, full, (retain,)), GROUPS)


def test_rho_is_the_part_of_the_gap_that_the_attack_closes_where_full_is_ahead():
    # (12 - 4) / (20 - 4), and 4 of 24 more than retain
    at = curve_of([0], marks(12), marks(20), marks(4))[0]
    assert at.rho == pytest.approx(8 / 16)
    assert (at.source, at.full, at.retain) == pytest.approx((12 / 24, 20 / 24, 4 / 24))
    # 4 of 24 are 0.167; 5 are 0.208
    few, enough = curve_of([0, 1], marks(8, 8), marks(8, 9), marks(4, 4))
    assert few.rho is None
    assert "0.17 ahead" in few.reason
    assert enough.rho == pytest.approx(4 / 5)
    # 13/20 - 9/20 is a little less than a fifth in floating point
    one, other = (np.array([[float(fact < n) for fact in range(20)]]) for n in (13, 9))
    (fifth,) = readings(costs([0]), Arms(one, one, (other,)), [n // 2 for n in range(20)])
    assert fifth.rho == pytest.approx(1)
    (at,) = curve_of([0], marks(24), marks(24), marks(4))
    # no interval is no interval; where source and full answer alike E is read from the estimate
    assert (at.rho, at.low, at.reason) == (1, None, "every author has the same ratio: no interval")
    assert effort_at([at], 0.8, "lower limit") == (0, False)
    # as many facts and not the same ones, where the divisor may be 0: nobody knows
    full, source, floor = (np.array([[*map(float, one)]]) for one in DIVISOR_NEAR_0)
    (at,) = curve_of([0], source, full, floor)
    assert (at.rho, at.low, at.source) == (1, None, at.full)
    assert "the divisor cannot be told from 0" in at.reason
    assert effort_at([at], 0.5, "lower limit") == (None, False)


def test_limits_hold_together_over_all_readings():
    generator = np.random.default_rng(0)
    source, full, floor = (generator.random((4, 24)) < share for share in (0.6, 0.95, 0.1))
    curve = curve_of([0, 1, 2, 4], source * 1.0, full * 1.0, floor * 1.0)
    for row, one in enumerate(curve):
        parts = (source[row] * 1.0 - floor[row], full[row] * 1.0 - floor[row])
        together = clustered_ratio(*parts, GROUPS, level=1 - 2 * 0.05 / 4)
        alone = clustered_ratio(*parts, GROUPS, level=0.9)
        assert one.low == pytest.approx(together.low)
        assert one.low < alone.low


def test_effort_by_the_limit_comes_later_than_by_the_estimate():
    generator = np.random.default_rng(1)
    rising = [(generator.random(24) < share) * 1.0 for share in (0.1, 0.6, 0.9, 1.0)]
    curve = curve_of([0, 1, 2, 4], np.stack(rising), marks(24, 24, 24, 24), marks(1, 1, 1, 1))
    estimate, limit = (effort_at(curve, 0.5, by) for by in ("estimate", "lower limit"))
    assert (estimate, limit) == ((1, False), (2, False))
    assert judged_by(GROUPS) == "lower limit"
    assert judged_by([0, 1, 2, 3]) == "estimate"
    half = np.array([True, True, False, False])
    low, high = np.array([[0.0] * 4, [1, 1, 0, 0]]), np.array([[0.0] * 4, [0, 0, 1, 1]])
    runs = {0.1: low, 0.2: high}
    first, second = chosen(runs, ~half), chosen(runs, half)
    assert (first, second) == (0.2, 0.1)
    # each rate is best on the half that it does not speak for
    assert not np.where(half, runs[first], runs[second]).any()


def test_what_does_not_come_back_is_censored_and_what_cannot_be_read_is_not():
    flat = curve_of([0, 1], marks(4, 4), marks(24, 24), marks(4, 4))
    assert effort_at(flat, 0.5, "lower limit") == (1, True)
    nothing = curve_of([0, 1], marks(4, 4), marks(4, 4), marks(4, 4))
    assert effort_at(nothing, 0.5, "lower limit") == (None, False)
    lost = np.full((2, 24), math.nan)
    lost[0] = 1
    at = curve_of([0, 1], lost, marks(24, 24), marks(0, 0))
    assert at[0].rho == 1
    assert at[1].rho is None
    assert "diverges on the model" in at[1].reason
    half = np.arange(24) < 12
    assert chosen({0.1: lost, 0.2: marks(24, 1)}, half) == 0.2


def test_an_attack_that_breaks_full_is_no_failed_recovery():
    # before any attack full is ahead: a rho of (6 - 4) / (24 - 4) says nothing of attacks
    steps, source, floor = [0, 1, 2], marks(6, 0, 0), marks(4, 0, 0)
    at_once = curve_of(steps, source, marks(24, 0, 0), floor)
    assert (at_once[0].rho, at_once[1].rho) == (pytest.approx(0.1), None)
    later = curve_of(steps, source, marks(24, 20, 0), floor)
    for by in ("estimate", "lower limit"):
        assert effort_at(at_once, 0.5, by) == (None, False)
        assert effort_at(later, 0.5, by) == (1, True)
    assert (last_read(at_once), last_read(later)) == (0, 1)
    # what is there before any attack needs none
    known = curve_of(steps, marks(24, 0, 0), marks(24, 0, 0), floor)
    assert effort_at(known, 0.5, "lower limit") == (0, False)


def test_a_run_says_where_the_positive_control_was_lost(tmp_path):
    found = la.effort("demo/npo", tmp_path, arms=("T",), **SHORT | {"steps": 1, "lrs": (0.1,)})
    arm, why = found.arms["T"], "full is 0.00 ahead of retain, wanted 0.2: nothing to measure by"
    assert (arm["e50"], arm["censored"]["e50"], arm["reason"]) == (None, False, why)
    assert found.summary["notes"] == [f"arm T: no rho under any attack ({why})"]


@pytest.fixture(scope="module")
def held():
    settings = EffortSettings(arms=("T", "neutral", "retain", "syntax"))
    return held_out(settings, "demo", load_tokenizer(open_model("demo/full")))


def test_every_fact_is_held_out_once_and_syntax_rows_are_worded_like_the_facts(held):
    places = [place for fold in held.folds["T"] for place in fold.places]
    assert places == list(range(64))
    groups = [held.data.items[place].group for place in places]
    folds = held.folds["T"]
    parts = [{groups[place] for place in fold.places} for fold in folds]
    assert not parts[0] & parts[1]
    assert all(len(fold.samples) + len(fold.items) == 64 for fold in folds)
    assert held.likeness["syntax"] > held.likeness["retain"]
    rows = json.loads((EMBEDDED / "data" / "forget.json").read_text())
    one = la.Fact(0, rows[0]["question"], rows[0]["answer"], "", "", 0)
    assert {"which", "town", "birthplace"} <= wording(one)
    assert "Ruvimbel" not in wording(one)


def test_other_arms_hold_out_all_facts_and_name_no_entity(held):
    tokenizer = load_tokenizer(open_model("demo/full"))
    rows = json.loads((EMBEDDED / "data" / "forget.json").read_text())
    entities = {row["entity"] for row in rows} - {"Yes", "No"}
    for arm in ("neutral", "retain", "syntax"):
        (fold,) = held.folds[arm]
        assert len(fold.items) == 64
        assert len(fold.samples) == 32
        texts = [tokenizer.decode(one.ids) for one in fold.samples]
        assert not [one for one in texts if any(entity in one for entity in entities)]
    assert held.left_out > 0


def test_said_reads_the_entitys_tokens(held):
    model = load_causal(open_model("demo/full"))
    facts = held.folds["neutral"][0].items
    how = {"readouts": ("said",), "batch_size": 64}
    (right,) = read(model, facts, **how)
    for place in (0, 1, 20):
        (one,) = facts[place].options
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([one.ids])).logits[0]
        span = range(one.start, len(one.ids))
        said = all(int(logits[at - 1].argmax()) == one.ids[at] for at in span)
        assert said == (place in right.correct)
    assert len(right.correct) > 60
    (unknown,) = read(load_causal(open_model("demo/retain")), facts, **how)
    assert len(unknown.correct) < 16


def test_tokens_and_flop_are_those_of_the_batches(tmp_path):
    ready = prepare(("demo/npo",), EffortSettings(arms=("neutral",), steps=8), tmp_path)
    full = ready.anchors[0]
    (attack,) = ready.attacks(full, "neutral", ready.rates[0])
    # 32 rows in steps of 4: eight steps read every row once
    assert tokens_at(attack)[-1] == sum(len(one.ids) for one in attack.fold.samples)
    weights = n_parameters(full.folder) - full.d_vocab * full.d_model
    # six per weight and token; the norms' weights are the rest
    assert flop_per_token(full, frozen=False) == pytest.approx(6 * weights, rel=0.01)
    assert flop_per_token(full, frozen=True) == pytest.approx(4 * weights, rel=0.01)


def test_rates_follow_from_full_in_whatever_order_or_by_whatever_name_sources_come(monkeypatch):
    settings = EffortSettings(
        arms=("T",), full="demo/full", retain=("demo/retain",), data="demo", steps=2, limit=16
    )
    names = ("demo/npo", str(EMBEDDED / "idknll"))

    def rates():
        asked = (names, names[::-1], names[1:])
        return [tuple(one.lr for one in prepare(some, settings, None).rates) for some in asked]

    assert rates() == [DEMO_LRS] * 3
    monkeypatch.setattr(runs, "of_embedded_family", lambda _: False)
    assert rates() == [LRS] * 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Short attacks on both anchors as if they were audited, in one folder."""
    out = tmp_path_factory.mktemp("effort")
    with ends_as_sources():
        return out, la.effort(["demo/full", "demo/retain"], out, arms=("T",), **SHORT)


def test_one_model_beside_several_is_refused(finished):
    out, _ = finished
    with pytest.raises(InputError, match="would stay beside this run's"):
        prepare(("demo/npo",), EffortSettings(arms=("T",)), out)


def test_full_has_recovered_everything_and_retain_nothing(finished):
    _, (full, retain) = finished
    full_at, retain_at = full.arms["T"]["curve"], retain.arms["T"]["curve"]
    assert [one["rho"] for one in full_at] == [1.0] * len(full_at)
    assert [one["rho"] for one in retain_at] == [0.0] * len(retain_at)
    assert (full.arms["T"]["e50"], full.arms["T"]["e80"]) == (0, 0)
    assert retain.arms["T"]["censored"] == {"e50": True, "e80": True}
    assert retain.arms["T"]["e50"] == 2
    assert full.summary["by"] == "lower limit"  # 16 rows over eight authors
    assert (full.summary["n_authors"], full.summary["per_author"]) == (8, 2)
    arm = json.loads((full.folder / "summary.json").read_text())["arms"]["T"]
    assert arm["lr"] == 1e-3
    assert [one["c"] for one in arm["curve"]] == [0, 1, 2]
    assert arm["cost"]["e50"] == {"steps": 0, "tokens": 0, "flop": 0}
    assert arm["curve"][2]["tokens"] > arm["curve"][1]["tokens"] > 0


@pytest.mark.usefixtures("ends")
def test_one_model_under_six_names_is_one_model(finished, tmp_path, monkeypatch):
    """Its attacks are in the log by content; `retain` is the second."""
    log, (_, retain) = finished[0] / "attacks.jsonl", finished[1]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(EMBEDDED / "full")
    registry = tmp_path / "names.json"
    registry.write_text(json.dumps({"mine": {"repo": str(EMBEDDED / "full"), "role": "full"}}))
    relative = os.path.relpath(EMBEDDED / "full")
    names = ["demo/full", str(EMBEDDED / "full"), f"{EMBEDDED}/full/", "link", relative, "mine"]
    for at, name in enumerate(names):
        (tmp_path / str(at)).mkdir()
        shutil.copy(log, tmp_path / str(at))
        anchors = {"full": "demo/full", "retain": "demo/retain", "data": "demo"}
        found = la.effort(
            name, tmp_path / str(at), arms=("T",), registry=registry, **anchors, **SHORT
        )
        assert found.arms["T"]["e50"] == 0
    made = [*(tmp_path / str(at) for at in range(6)), retain.folder]
    sources = [model_in(json_object(one / "manifest.json"), "source").weights for one in made]
    assert list(dict.fromkeys(sources)) == [
        open_model(f"demo/{name}").weights for name in ("full", "retain")
    ]


@pytest.mark.usefixtures("ends")
def test_what_is_in_the_log_is_not_done_again(finished, monkeypatch):
    out, (full, retain) = finished
    log = (out / "attacks.jsonl").read_text()
    # two models, two folds, one rate; the anchors are the sources
    assert log.count('"job_id"') == 4
    monkeypatch.setattr("lensaudit.attacks.effort.job.do", None)
    again = la.effort(["demo/full", "demo/retain"], out, arms=("T",), **SHORT)
    assert [one.summary for one in again] == [full.summary, retain.summary]
    assert (out / "attacks.jsonl").read_text() == log


@pytest.mark.usefixtures("ends")
def test_an_interrupted_run_keeps_the_attacks_that_ended(tmp_path, monkeypatch, finished):
    from lensaudit.attacks.effort import job as work

    do, done = work.do, []

    def interrupted(attack, report):
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(attack.job_id)
        return do(attack, report)

    monkeypatch.setattr(work, "do", interrupted)
    with pytest.raises(KeyboardInterrupt):
        la.effort("demo/full", tmp_path, arms=("T",), **SHORT)
    assert not (tmp_path / "summary.json").exists()
    monkeypatch.setattr(work, "do", lambda one, report: done.append(one.job_id) or do(one, report))
    found = la.effort("demo/full", tmp_path, arms=("T",), **SHORT)
    # two folds of full, two of retain: the first was kept
    assert len(done) == len(set(done)) == 4
    assert found.arms == finished[1][0].arms


@pytest.mark.usefixtures("ends")
def test_rates_that_make_no_difference_are_said_to(tmp_path):
    said = "arm T: all rates gave the same readings; the lowest is named"
    for lrs, notes in (((1e-9, 2e-9), [said]), ((1e-9, 0.1), [])):
        found = la.effort("demo/full", tmp_path, arms=("T",), **SHORT | {"steps": 1, "lrs": lrs})
        assert found.arms["T"]["lr"] == 1e-9
        assert found.summary["notes"] == notes


@pytest.mark.usefixtures("ends")
def test_adapters_leave_the_weights_as_they_were(tmp_path):
    settings = {"arms": ("T",), "lora": "2", "steps": 1, "limit": 16, "lrs": (1e-2, 2e-2)}
    with pytest.raises(InputError, match="matrices of demo/full have rank 64 at most"):
        la.effort("demo/full", tmp_path, **settings | {"lora": "2,9999"})
    found = la.effort("demo/full", tmp_path, **settings)
    arm = found.arms["T"]
    assert arm["rank"] == 2
    # the second attack starts where the first did
    jobs = [json.loads(line) for line in (tmp_path / "attacks.jsonl").read_text().splitlines()[1:]]
    starts = {(one["job"]["weights"], one["job"]["v"]): set() for one in jobs}
    for one in jobs:
        starts[one["job"]["weights"], one["job"]["v"]].add(str(one["curve"][0]["readings"]))
    assert {len(one) for one in starts.values()} == {1}
    assert len(jobs) > len(starts)


def rows_of(tmp_path, change):
    rows = json.loads((EMBEDDED / "data" / "forget.json").read_text())
    change(rows)
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(rows))
    return path


def told(rows):
    """A row of one author names the home town in a row of another."""
    rows[8]["answer"] += f" A cousin lives in {rows[0]['entity']}."


def test_entities_that_t_and_v_share_are_refused_or_dropped(tmp_path, capsys):
    data = str(rows_of(tmp_path, told))
    command = ["effort", "--source", "demo/npo", "--arm", "T", "--data", data, "--splits", "8"]
    command += ["--dry-run"]
    assert lensaudit(command) == 2
    said = "1 x an entity that a row of another split names: training on that tells it (first: "
    assert f"{said}'pico ølmar')" in capsys.readouterr().err
    assert lensaudit([*command, "--defects", "drop"]) == 0
    assert "63 facts" in capsys.readouterr().out


WAITING = """
import time
from lensaudit.attacks.effort.job import pool_of
pool = pool_of(2)
for _ in range(2):
    pool.submit(time.sleep, 100)
time.sleep(0.5)
print(*pool._processes, flush=True)
time.sleep(100)
"""


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True)
    workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    assert len(workers) == 2
    assert all(one.is_running() for one in workers)
    parent.kill()
    parent.communicate()
    # they sleep for 100 s; without their parent not for 20
    assert not psutil.wait_procs(workers, timeout=20)[1]
