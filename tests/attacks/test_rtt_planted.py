"""Planted truth: retraining tells knowledge that is hidden from knowledge that is not there.

And `lensaudit rtt` from outside, on the same studies: files, exit codes, one line per error.
"""

import csv
import json
import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from support import rtt_support as world
from support.rtt_support import command

from lensaudit.attacks import rtt
from lensaudit.attacks.rtt.fork import read_csvs
from lensaudit.attacks.rtt.log import Finished, Point, Reading
from lensaudit.attacks.rtt.readout import others_than
from lensaudit.attacks.rtt.summary import _accuracy, csv_row, gate_of
from lensaudit.attacks.settings import Cut, SummarySettings
from lensaudit.cli.main import run as lensaudit
from lensaudit.errors import InputError, PartialError, VerificationError
from lensaudit.scores.intervals import clustered_mean

QUICK = rtt.StudySettings(
    names=(), lrs=(1e-3,), epochs=1, batch_size=32, warmup=0, loss_on="answer", readout="answer"
)
UNGATED = {"min_baseline": 0.0, "min_drop": 0.0}


def study(unlearned=None, how=QUICK, **changes):
    """A study of a model that never knew, or of `unlearned`; settings or models by name."""
    models = {
        "data": world.dataset(),
        "tokenizer": world.tokenizer(),
        "original": rtt.in_memory("knows", world.knows()),
        "unlearned": unlearned or rtt.in_memory("never", world.fresh(1)),
        "control": rtt.in_memory("control", world.fresh(2)),
    }
    asked = {name: one for name, one in changes.items() if name not in models}
    given = {name: one for name, one in changes.items() if name in models}
    return rtt.Study(**models | given, settings=replace(how, **asked))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders: the original, the one that hides, the one that never knew."""
    root = tmp_path_factory.mktemp("models")
    made = {"knows": world.knows(), "hidden": world.hidden()}
    for name, model in (made | {"never": world.fresh(1), "control": world.fresh(2)}).items():
        model.save_pretrained(root / name)
        world.tokenizer().save_pretrained(root / name)
    return root


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return rtt.save_mcq(world.dataset(), tmp_path_factory.mktemp("data") / "births")


@pytest.fixture(scope="module")
def finished(models, data, tmp_path_factory):
    """Two studies: one model hides the years, the other never saw them."""
    out = tmp_path_factory.mktemp("out")
    assert lensaudit(command(models, data, out, unlearned=("hidden", "never"))) == 0
    return out


@pytest.fixture
def log(finished):
    return rtt.read_log(finished)


def test_hidden_knowledge_comes_back_and_absent_knowledge_does_not(log):
    hidden, never = rtt.summarize(log)
    # alike before: nobody could tell them apart by asking
    assert abs(hidden.as_they_are["A"].value - never.as_they_are["A"].value) < 0.05
    assert hidden.main.adjusted.value > 0.9
    assert never.main.adjusted.value < 0.15
    assert hidden.main.accuracies["C"].value > 0.9
    assert never.main.accuracies["N"].value < 0.4
    assert len(hidden.others) == len(never.others) == 5
    for a, b in zip(hidden.others, never.others, strict=True):
        assert a.adjusted.value > 0.9
        assert b.adjusted.value < 0.15
    # B / C alone has the floor f / C: why the control is needed
    assert never.main.ratios["recovery_rate"].value > 0.25
    assert never.main.adjusted.least < 0 < never.main.adjusted.most


@pytest.mark.parametrize("status", ["missing", "diverged"])
def test_the_best_of_fewer_models_is_no_floor(log, status):
    whole = rtt.summarize(log)[0].main
    (highest,) = {max(one.study.sweep["lrs"]) for one in rtt.summarize(log)}
    first = next(iter(log.studies.values()))
    lost = [one.job_id for one in first.places if (one.condition, one.lr) == ("N", highest)]
    for one in lost:
        job = log.finished.pop(one)
        if status == "diverged":
            log.finished[one] = replace(job, status=status, curve=job.curve[:1])
    summary = rtt.summarize(log)[0]
    why = f"N lacks epochs at lr {highest:g} that others have: the best of each do not compare"
    assert {one.adjusted.why for one in (summary.main, *summary.others)} == {why}
    assert summary.reading == f"Recovery is not scored: {why}."
    assert whole.adjusted.value is not None
    for name in ("recovery_rate", "gap_closed"):
        assert summary.main.ratios[name] == whole.ratios[name]


def test_the_best_of_fewer_models_is_no_ceiling(log):
    """C of fewer learning rates than B: no ratio over it has a value."""
    (highest,) = {max(one.study.sweep["lrs"]) for one in rtt.summarize(log)}
    first = next(iter(log.studies.values()))
    for one in first.places:
        if (one.condition, one.lr) == ("C", highest):
            log.finished.pop(one.job_id)
    ratios = rtt.summarize(log)[0].main.ratios
    why = f"C lacks epochs at lr {highest:g} that others have: the best of each do not compare"
    assert {one.why for one in ratios.values()} == {why}


def test_an_accuracy_lies_in_its_interval_where_splits_differ_in_size():
    """0 of 4 rows and 60 of 60: the mean of both splits is .5, that of all rows .94."""
    marks, groups = (np.zeros(4), np.ones(60)), [*range(4), *(n % 12 for n in range(60))]
    found = _accuracy(marks, groups)
    assert found.value == 0.5
    assert 0 <= found.low < 0.5 < found.high <= 1
    assert found.low <= found.lower < 0.5 < found.upper <= found.high
    alike = (np.zeros(32), np.ones(32))
    assert _accuracy(alike, groups) == clustered_mean(np.concatenate(alike), groups)


def test_runs_beside_the_log_are_read_as_the_forks_and_come_to_the_same(finished, log):
    studies = read_csvs(SummarySettings(from_csv=finished))
    for ours, theirs in zip(rtt.summarize(log), studies, strict=True):
        assert theirs.source == ours.study.models["unlearned"]
        accuracies = {**ours.as_they_are, **ours.main.accuracies}
        for condition, found in {**theirs.as_they_are, **theirs.main.accuracies}.items():
            assert found.value == pytest.approx(accuracies[condition].value)
        assert set(theirs.main.accuracies) == {"B", "C", "N"}
        assert theirs.all_splits["A"].value == pytest.approx(ours.all_splits["A"].value)
        assert theirs.main.recovery_adjusted.value == pytest.approx(ours.main.adjusted.value)
        ways = {(one.selection, f"{one.rule}_epoch"): one for one in ours.others}
        for one in theirs.others:
            if one.selection != "fork":
                by_log = ways[one.selection, one.acc_selection_rule].accuracies
                for condition, accuracy in one.accuracies.items():
                    assert accuracy.value == pytest.approx(by_log[condition].value)


@pytest.mark.parametrize("match", [False, True])
def test_an_exchanged_readout_is_put_back_before_retraining_where_asked(match):
    from lensaudit.gym.edits import permuted_readout

    years = world.tokenizer().convert_tokens_to_ids(list(world.YEARS))
    silent = permuted_readout(world.knows(), years)
    before = silent.lm_head.weight.clone()
    # a rate that moves nothing: what comes back is what was put back
    asked = study(rtt.in_memory("silent", silent), lrs=(1e-7,), match_readout=match)
    log = rtt.run(asked)
    (found,) = rtt.summarize(log)
    assert found.as_they_are["A"].value < 0.4
    assert (found.main.accuracies["B"].value > 0.9) == match
    assert found.main.accuracies["N"].value < 0.4
    assert torch.equal(silent.lm_head.weight, before)
    ids = [job.job_id for job in rtt.plan_of(asked) if job.condition == "B"]
    for first, _ in (log.finished[one].curve for one in ids):
        assert (first.readings[0].accuracy > 0.9) == match


def test_without_it_jobs_are_known_as_before():
    hidden = rtt.in_memory("hidden", world.hidden())
    plain, matched = (
        {job.condition: job.job_id for job in rtt.plan_of(study(hidden, match_readout=match))}
        for match in (False, True)
    )
    assert {name for name in plain if plain[name] != matched[name]} == {"B", "N"}
    assert study(hidden).study_id != study(hidden, match_readout=True).study_id


def test_the_log_holds_every_curve_from_epoch_0_and_compares_the_same_items(log):
    jobs = [{place.job_id for place in one.places} for one in log.studies.values()]
    # original and control are run once for both models: four splits, two rates on two of them
    n_each = len(world.dataset().splits) + 2 * 2
    assert len(log.finished) == 4 * n_each == len(jobs[0] | jobs[1])
    assert len(jobs[0] & jobs[1]) == 2 * n_each
    for summary in rtt.summarize(log):
        held, places = summary.study.held_out, summary.study.places
        assert len(held) == 2
        accuracies = [*summary.as_they_are.values(), *summary.main.accuracies.values()]
        assert {one.n for one in accuracies} == {48}
        assert {one.n for one in summary.all_splits.values()} == {96}
        for selected in summary.main.chosen.values():
            assert tuple(split for split, _ in selected.choices) == held
        curves = {place: log.finished[place.job_id].curve for place in places}
        for place, curve in curves.items():
            assert [point.at for point in curve] == list(range(1 if place.lr is None else 4))
        before = {
            place.split: curve[0] for place, curve in curves.items() if place.condition == "A"
        }
        assert all(
            curve[0] == before[place.split]
            for place, curve in curves.items()
            if place.condition == "B"
        )


def test_numbers_follow_from_the_marks(log):
    hidden, _ = rtt.summarize(log)
    b, c, n = (
        np.mean([marks.mean() for marks in hidden.main.chosen[name].marks]) for name in "BCN"
    )
    a = hidden.as_they_are["A"].value
    assert hidden.main.ratios["recovery_rate"].value == pytest.approx(b / c)
    assert hidden.main.adjusted.value == pytest.approx((b - n) / (c - n))
    assert hidden.main.ratios["gap_closed"].value == pytest.approx((b - a) / (c - a))


def test_what_is_the_best_of_several_cells_has_an_interval_beside_such_a_floor_alone(log):
    _, never = rtt.summarize(log)
    n_cells = len(never.study.sweep["lrs"]) * never.study.sweep["n_epochs"]
    why = f"best of {n_cells} cells: no interval"
    ways = {(one.selection, one.rule): one for one in (never.main, *never.others)}
    for best in (ways["per_v", "max"], ways["global", "max"]):
        chosen = {**best.accuracies, **best.ratios}
        assert chosen.pop("recovery_adjusted").ends is not None
        assert {chosen[name].why for name in ("B", "N", "gap_closed", "recovery_rate")} == {why}
        assert {one.ends for one in chosen.values()} == {None}
    nested = ways["nested", "max"]
    marks = np.concatenate(nested.chosen["N"].marks).astype(float)
    by_name = {split.name: split.groups for split in never.study.splits}
    groups = [group for name in never.study.held_out for group in by_name[name]]
    assert nested.accuracies["N"].ends == clustered_mean(marks, groups).ends
    assert nested.accuracies["N"].least < nested.accuracies["N"].value
    assert nested.ratios["recovery_rate"].ends is not None


def test_a_killed_run_goes_on_where_it_was(tmp_path):
    one = study()
    whole = rtt.run(one, rtt.read_log(tmp_path / "whole.jsonl"))
    lines = whole.path.read_text().splitlines(keepends=True)
    cut = tmp_path / "cut.jsonl"
    cut.write_text("".join(lines[:10]) + lines[10][:40])  # killed while it wrote
    resumed = rtt.run(one, rtt.read_log(cut))
    assert resumed.n_added == whole.n_added - 8
    assert numbers(rtt.read_log(cut)) == numbers(whole)


def numbers(log):
    """Everything but seconds."""
    return {key: (one.status, one.curve, one.t_accuracy) for key, one in log.finished.items()}


def test_any_setting_makes_other_jobs():
    changes = [
        {"epochs": 2},
        {"batch_size": 8},
        {"warmup": 1},
        {"loss_on": "all"},
        {"weight_decay": 0.1},
        {"trainable": "lm_head"},
        {"cut": Cut(seed=1)},
        {"lrs": (2e-3,)},
        {"readout": "letter"},
    ]
    keys = {
        tuple(job.job_id for job in rtt.plan_of(one) if job.lr is not None)
        for one in (study(), *(study(**change) for change in changes))
    }
    assert len(keys) == len(changes) + 1


def test_where_a_gate_fails_nothing_is_trained_and_a_gate_can_be_switched_off():
    same, log = rtt.in_memory("same", world.knows()), rtt.Log()
    with pytest.raises(VerificationError, match="nothing is unlearned") as failed:
        rtt.run(study(same), log)
    assert "--min-baseline 0 --min-drop 0" in str(failed.value)
    assert all(one.curve[-1].at == 0 for one in log.finished.values())
    (summary,) = rtt.summarize(log)
    assert summary.failure
    assert summary.main.ratios["recovery_rate"].value is None
    assert "nothing is unlearned" in summary.main.ratios["recovery_rate"].why
    with pytest.raises(VerificationError, match=r"stranger answers .* does not know"):
        rtt.run(study(original=rtt.in_memory("stranger", world.fresh(7))))
    (summary,) = rtt.summarize(rtt.run(study(same, **UNGATED)))
    assert summary.main.ratios["recovery_rate"].value == 1.0
    assert summary.main.ratios["gap_closed"].value is None
    assert "C is not above A" in summary.main.ratios["gap_closed"].why


@pytest.mark.parametrize(("n_lost", "passes"), [(1, False), (3, False), (5, True)])
def test_the_drop_must_be_two_standard_errors(log, n_lost, passes):
    # 48 of 48 against 48 - k: SE = sqrt(p (1 - p) / 48); k = 3: 0.0625 < 2 x 0.0349; k = 5:
    # 0.1042 > 2 x 0.0441
    hidden = next(iter(log.studies.values()))
    changed = rtt.Log(studies={hidden.study_id: hidden}, finished=dict(log.finished))
    for place in hidden.places:
        if place.condition == "A":
            n_right = 24 - (n_lost if place.split == hidden.held_out[0] else 0)
            reading = Reading("answer", 24, tuple(range(n_right)))
            done = Finished(place.job_id, "ok", (Point(0, (reading,)),))
            changed.finished[place.job_id] = done
    assert bool(gate_of(hidden, changed)) != passes


def test_the_gate_looks_at_the_readout_that_is_reported(log):
    # answers are known and letters are not: by letters there is nothing to recover
    finished = {
        job_id: replace(done, curve=tuple(mute(point) for point in done.curve))
        for job_id, done in log.finished.items()
    }
    by_answer, by_letter = (
        rtt.summarize(rtt.Log(studies=dict(log.studies), finished=finished), readout=one)[0]
        for one in ("answer", "letter")
    )
    assert by_answer.main.ratios["recovery_rate"].value is not None
    assert by_letter.main.ratios["recovery_rate"].value is None
    assert "(readout letter)" in by_letter.failure
    # the log holds the fit to T by the study's own readout alone
    assert by_answer.checks["B"].t_accuracy == 1.0
    assert by_letter.checks["B"].t_accuracy is None


def mute(point):
    """No letter is right."""
    letter = Reading("letter", point.reading("letter").n, (), option_mass=0.0)
    return replace(point, readings=(point.reading("answer"), letter))


def test_without_a_control_there_is_no_floor():
    one = study(control=None)
    (summary,) = rtt.summarize(rtt.run(one))
    assert summary.main.ratios["recovery_rate"].value is not None
    assert summary.main.adjusted.value is None
    assert summary.main.adjusted.why == "condition N is missing"
    assert any("no negative control" in note for note in summary.notes)


def test_a_diverging_learning_rate_is_told_and_not_tried_again():
    one = study(lrs=(1e-3, 1e30))
    log = rtt.Log()
    with pytest.raises(
        PartialError, match=r"6 of 12 runs diverged: C split_\d lr 1e\+30, C split_\d lr 1e\+30, B"
    ):
        rtt.run(one, log)
    done = log.n_added
    with pytest.raises(PartialError, match="diverged"):
        rtt.run(one, log)
    assert log.n_added == done
    (summary,) = rtt.summarize(log)
    assert csv_row(summary, log)["num_rtt_splits_c"] == 2
    assert math.isfinite(summary.main.accuracies["C"].value)
    assert csv_row(summary, log)["num_diverged"] == 6
    assert any("runs diverged" in note for note in summary.notes)


def test_a_study_that_cannot_be_run_is_refused_before_any_work():
    long = [
        [rtt.McqItem(f"When was {name} born {'born ' * 70}?", ("y0", "y1"), 0) for name in names]
        for names in (("n1", "n2"), ("n3", "n4"))
    ]
    log = rtt.Log()
    for changes, problem in (
        ({"lrs": (1e-3, 1e-3)}, "learning rates"),
        (
            {"data": rtt.make_dataset("long", {"split_0": long[0], "split_1": long[1]})},
            "knows: the longest row has",
        ),
    ):
        with pytest.raises(InputError, match=problem):
            rtt.run(study(**changes), log)
    assert log.finished == {}


def test_answers_are_read_where_letters_are_no_single_tokens():
    splits = {
        name: [replace(one, choices=one.choices * 2) for one in items[:4]]
        for name, items in world.dataset().splits.items()
    }
    given = {"data": rtt.make_dataset("eight", splits), "v_runs": 1} | UNGATED
    log = rtt.run(study(**given), defects="keep")
    points = [point for job in log.finished.values() for point in job.curve]
    assert {one.readout for point in points for one in point.readings} == {"answer"}
    assert rtt.summarize(log)[0].main.accuracies["B"].n == 4
    with pytest.raises(InputError, match="take --readout answer"):
        rtt.run(study(**given, readout="letter"), defects="keep")


def test_v_is_neither_trained_on_nor_in_the_sample_of_t():
    one = study()
    held = one.encoded["split_1"]
    trained = [sample for split in others_than("split_1", one.encoded) for sample in split.samples]
    assert len(trained) == 72
    assert not set(trained) & set(held.samples)
    assert len(one.sample_of_t("split_1")) == 24
    assert not {item.prompt for item in one.sample_of_t("split_1")} & {
        item.prompt for item in held.items
    }


def test_held_out_splits_are_drawn_as_upstream_draws_them():
    from hashlib import md5
    from random import Random

    def drawn(seed):
        numbers = Random(int(md5(f"{seed}-births".encode()).hexdigest(), 16)).sample(range(4), 2)
        return tuple(f"split_{n}" for n in sorted(numbers))

    cut = replace(QUICK.cut, seed=2)
    assert drawn(0) == study().held_out != drawn(3)
    assert study(eval_seed=3).held_out == drawn(3)
    assert study(eval_seed=4, cut=cut).held_out == drawn(4) != drawn(2)
    # without a seed of its own by that of the data, as upstream (`defaults to data_seed`)
    assert study(cut=cut).held_out == drawn(2)


def test_the_summary_says_whether_the_attack_fitted_and_whether_letters_were_spoken(log):
    hidden, _ = rtt.summarize(log)
    fits = {name: one.t_accuracy for name, one in hidden.checks.items()}
    assert fits["0"] is fits["A"] is fits["N0"] is None
    assert fits["B"] == fits["C"] == 1.0
    by_hand = [
        log.finished[place.job_id].t_accuracy
        for place in hidden.study.places
        if place.condition == "N" and place.lr
    ]
    assert fits["N"] == max(by_hand) < 0.9
    assert hidden.notes[1].startswith("T itself is answered rightly, at best: C 100%, B 100%, N ")
    assert "the attack did not fit" in hidden.notes[1]
    spoken, _ = rtt.summarize(log, readout="letter")
    mass = np.mean(
        [
            reading.option_mass
            for split, cell in spoken.main.chosen["B"].choices
            for place in spoken.study.places
            if (place.condition, place.split, place.lr) == ("B", split, cell.lr)
            for reading in log.finished[place.job_id].curve[cell.epoch].readings
            if reading.readout == "letter"
        ]
    )
    assert spoken.checks["B"].option_mass == pytest.approx(mass)
    assert any("below half a model says something else" in note for note in spoken.notes)


def test_the_edges_of_the_grid_are_told(log):
    hidden, _ = rtt.summarize(log)
    cells = {name: [cell for _, cell in one.choices] for name, one in hidden.main.chosen.items()}
    for said, is_edge in (
        ("last epoch was chosen", lambda cell: cell.epoch == 3),
        ("highest learning rate", lambda cell: cell.lr == 4e-3),
    ):
        at = {name for name, several in cells.items() if any(map(is_edge, several))}
        assert {note[0] for note in hidden.notes if said in note} == at != set()
    assert not any("no interval" in note for note in hidden.notes)


def rows(out):
    with (out / "summary.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_the_same_command_does_nothing_again(finished, models, data, capsys):
    before = (finished / "jobs.jsonl").read_bytes(), (finished / "summary.csv").read_bytes()
    again = command(models, data, finished, unlearned=("hidden", "never"))
    assert lensaudit([*again, "--dry-run"]) == 0
    assert "0 runs of 0 steps together to do" in capsys.readouterr().out
    assert lensaudit(again) == 0
    assert "0 jobs done, 32 were in the log" in capsys.readouterr().err
    assert (
        (finished / "jobs.jsonl").read_bytes(),
        (finished / "summary.csv").read_bytes(),
    ) == before


def test_the_log_gives_the_same_summary_again(finished, tmp_path, capsys):
    for name in ("jobs.jsonl", "manifest.json"):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    assert lensaudit(["rtt", "summarize", str(tmp_path)]) == 0
    assert (tmp_path / "summary.csv").read_bytes() == (finished / "summary.csv").read_bytes()
    assert "(B-N)/(C-N)" in capsys.readouterr().out
    hidden, never = rows(tmp_path)
    assert float(hidden["recovery_adjusted"]) > 0.9 > 0.15 > float(never["recovery_adjusted"])
    assert hidden["rtt_signature"] == never["rtt_signature"]
    assert lensaudit(["rtt", "summarize", str(tmp_path), "--selection", "nested", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [one["main"]["selection"] for one in shown] == ["nested", "nested"]


def redigited(content):
    """The first accuracy that a reading tells, in another digit."""
    at = content.index(b'"t_accuracy": ') + len(b'"t_accuracy": 0.')
    return content[:at] + str((content[at] - 47) % 10).encode() + content[at + 1 :]


EDITED = {
    "a digit": ("jobs.jsonl", redigited, "1 of 34 lines are damaged, edited"),
    "a line gone": (
        "jobs.jsonl",
        lambda content: content[: content.rindex(b"\n", 0, -1) + 1],
        "the manifest says",
    ),
    "the manifest": (
        "manifest.json",
        lambda content: content.replace(b"rtt run", b"rtt ran"),
        "manifest.json: was changed",
    ),
}


@pytest.mark.parametrize("how", EDITED)
def test_an_edited_log_is_not_summarised(finished, tmp_path, capsys, how):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    name, change, said = EDITED[how]
    before = (tmp_path / "summary.csv").read_bytes()
    content = (tmp_path / name).read_bytes()
    assert change(content) != content
    (tmp_path / name).write_bytes(change(content))
    assert lensaudit(["rtt", "summarize", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert (tmp_path / "summary.csv").read_bytes() == before


def test_the_log_of_an_unfinished_run_is_summarised_and_one_without_a_manifest_is_not(
    finished, tmp_path, capsys
):
    content = (finished / "jobs.jsonl").read_bytes()
    (tmp_path / "jobs.jsonl").write_bytes(content[: content.rindex(b"\n", 0, -1) + 1])
    assert lensaudit(["rtt", "summarize", str(tmp_path)]) == 2
    assert "no manifest.json to compare it with" in capsys.readouterr().err
    (tmp_path / "begun.json").write_text('{"command": "rtt run"}')
    assert lensaudit(["rtt", "summarize", str(tmp_path)]) == 0
    assert re.search(r"\b1 of \d+ jobs are not done", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--no-control"], "exclude each other"),
        (["--hold-out", "split_7"], "no split 'split_7'"),
        (["--v-runs", "9"], "9 splits to hold out"),
        (["--lr", "-1"], "learning rates"),
        (["--lr", "nan"], "--lr nan: wanted a finite"),
        (["--min-drop", "nan"], "--min-drop nan: wanted a finite"),
        (["--trainable", "nothing_like_it"], "no parameter matches"),
    ],
)
def test_wrong_usage_ends_with_code_2_and_one_message(
    models, data, tmp_path, capsys, more, problem
):
    arguments = command(models, data, tmp_path / "out", *more)
    assert lensaudit(arguments) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert "Traceback" not in error


def test_models_of_different_tokenizers_are_refused(models, data, tmp_path, capsys):
    arguments = command(models, data, tmp_path / "out")
    arguments[arguments.index("--retain") + 1] = "demo/retain"
    assert lensaudit(arguments) == 2
    assert re.search(
        r"its tokenizer differs from that of .* in \d+ tokens", capsys.readouterr().err
    )


def test_leaking_data_end_with_code_2_unless_they_are_dropped(models, tmp_path, capsys):
    splits = {
        name: [rtt.McqItem(one.question, one.choices, one.answer) for one in items]
        for name, items in world.dataset().splits.items()
    }
    splits["split_0"].append(splits["split_1"][0])
    data = rtt.save_mcq(rtt.make_dataset("leaking", splits), tmp_path / "leaking")
    dry = command(models, data, tmp_path / "out", "--dry-run")
    assert lensaudit(dry) == 2
    assert "the same question in several splits" in capsys.readouterr().err
    assert lensaudit([*dry, "--defects", "drop"]) == 0
    assert "95 items in 4 splits, 2 left out" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert lensaudit(["rtt", "validate", str(data)]) == 4
    assert lensaudit(["rtt", "validate", "demo", "--only", "split_0"]) == 2
    assert "--only names splits of a folder" in capsys.readouterr().err
