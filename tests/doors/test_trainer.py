"""The door to training, in real runs of `transformers.Trainer` on the embedded family."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import lay_out
from support.tolerance import NATS
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

import lensaudit as la
from lensaudit.auditing.result import PatchResult
from lensaudit.doors import trainer as door
from lensaudit.doors.trainer import FEWEST, AuditCallback, CheckpointAudit
from lensaudit.errors import InputError, PartialError, WorkError
from lensaudit.models.registry import EMBEDDED
from lensaudit.results.kinds.eval import EvaluationResult, MetricResult
from lensaudit.results.kinds.patch import PatchSummary
from lensaudit.results.manifest import MANIFEST
from lensaudit.results.reading import read_as
from lensaudit.verdict.collect import Keeps
from lensaudit.verdict.decide import Verdict

ASKED = {"full": "demo/full", "retain": "demo/retain", "data": "demo", "limit": 4, "align": "none"}


class Ascent(Trainer):
    """Gradient ascent on the forget rows."""

    def compute_loss(self, model, inputs, return_outputs=False, **more):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
        return (-loss, outputs) if return_outputs else -loss


class Heard(TrainerCallback):
    """An integration: keeps what it is told."""

    def __init__(self):
        self.rows = []

    def on_log(self, args, state, control, logs=None, **more):
        self.rows.append((state.global_step, dict(logs)))


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(EMBEDDED / "full")


def made(tokenizer, folder, *callbacks, model=None, **arguments):
    """A trainer of `demo/full` on eight of its forget rows."""
    rows = []
    for one in la.forget_set("demo", limit=8):
        ids = tokenizer(f"Question: {one.question}\nAnswer: {one.answer}")["input_ids"]
        rows.append({"input_ids": ids, "labels": ids})
    given = {"max_steps": 4, "save_steps": 2, "per_device_train_batch_size": 1, "seed": 0}
    given |= {"learning_rate": 1e-4, "save_strategy": "steps", "logging_steps": 1}
    return Ascent(
        model=model or AutoModelForCausalLM.from_pretrained(EMBEDDED / "full"),
        args=TrainingArguments(
            output_dir=str(folder),
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            **given | arguments,
        ),
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )


def audited(trainer, out, **settings):
    given = {"out": out, "activations": out / "cache", **ASKED, **settings}
    callback = la.AuditCallback(trainer, **given)
    trainer.add_callback(callback)
    return callback


def logged(trainer):
    """Step -> what was logged of its audit."""
    rows = [one for one in trainer.state.log_history if "lensaudit/verdict" in one]
    return {one["step"]: one for one in rows}


@pytest.fixture(scope="module")
def run(tokenizer, tmp_path_factory, one_type):
    """A run of four steps with two saves, audited."""
    root = tmp_path_factory.mktemp("trained")
    heard = Heard()
    trainer = made(tokenizer, root / "run", heard, save_total_limit=3)
    callback = audited(trainer, root / "out", keep_best=True, budget_s=3600)
    trainer.train()
    return SimpleNamespace(root=root, trainer=trainer, callback=callback, heard=heard)


def test_each_save_is_audited_and_logged_to_whatever_the_trainer_logs_to(run):
    found = logged(run.trainer)
    assert list(found) == [2, 4]
    told = {step: one for step, one in run.heard.rows if "lensaudit/verdict" in one}
    for step, row in found.items():
        one = run.callback.audits[step]
        assert row["lensaudit/uds"] == one.patch.uds
        assert row["lensaudit/p"] == one.known.p
        assert row["lensaudit/keeps"] == one.utility
        assert row["lensaudit/verdict"] == one.verdict.code
        assert {**told[step], "step": step} == row
    assert run.callback.failures == {}
    json.dumps(run.trainer.state.log_history, allow_nan=False)


@pytest.mark.slow
def test_the_numbers_are_those_of_the_same_checkpoint_asked_from_outside(run, tmp_path):
    folder = run.root / "run" / "checkpoint-4"
    depth = la.patch(folder, tmp_path / "patch", activations=tmp_path / "a", **ASKED)
    assert depth.uds == pytest.approx(run.callback.audits[4].patch.uds, abs=NATS)
    rows = {"data": "demo", "limit": 4, "metrics": ["retain_Q_A_Prob"]}
    own, full = (
        la.evaluate(one, tmp_path / name, **rows).summary["retain_Q_A_Prob"]
        for one, name in ((folder, "own"), ("demo/full", "full"))
    )
    assert run.callback.audits[4].utility == pytest.approx(own / full)


def test_auditing_changes_nothing_of_the_training(run, tokenizer, tmp_path):
    alone = made(tokenizer, tmp_path / "alone")
    alone.train()
    mine, theirs = (one.model.state_dict() for one in (alone, run.trainer))
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert run.trainer.model.training == alone.model.training


def test_after_a_kill_finished_audits_are_found_and_the_others_made(
    run, tokenizer, tmp_path, monkeypatch
):
    """As a kill between the save and the audit of step 4 leaves it."""
    import shutil

    from lensaudit.auditing import patch as patching

    root = tmp_path / "again"
    shutil.copytree(run.root / "out", root / "out")
    shutil.rmtree(root / "out" / "step-4")
    place = run.root / "run"
    computed, patch_into = [], patching.patch_into
    monkeypatch.setattr(
        patching, "patch_into", lambda *a, **k: computed.append(a[2]) or patch_into(*a, **k)
    )
    trainer = made(tokenizer, place, max_steps=6, save_total_limit=3)
    callback = audited(trainer, root / "out", keep_best=True, activations=run.root / "out/cache")
    trainer.train(resume_from_checkpoint=str(place / "checkpoint-4"))
    assert [one.parent.name for one in computed] == ["step-4", "step-6"], "step 2 is read"
    assert list(logged(trainer)) == [2, 4, 6]
    same = ("lensaudit/uds", "lensaudit/p", "lensaudit/keeps", "lensaudit/verdict")
    for step, row in logged(run.trainer).items():
        assert {key: logged(trainer)[step][key] for key in same} == {key: row[key] for key in same}
    assert set(callback.audits) == {2, 4, 6}


def measured(tmp_path, step, code="hidden", uds=0.5, share=1.0):
    folder = tmp_path / f"checkpoint-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    record = read_as(PatchSummary, lay_out("patch:out", tmp_path / "patched") / "summary.json")
    patch = PatchResult("x", folder, replace(record, uds=uds))
    keeps = () if share is None else (Keeps("retain_Q_A_Prob", share, 1.0),)
    return CheckpointAudit(step, folder, patch, Verdict(code, "", []), None, keeps, ())


def test_bits_that_no_prior_was_known_for_are_left_out_of_the_log(run, tmp_path):
    known = run.callback.audits[4].known
    assert "lensaudit/bits" in replace(measured(tmp_path, 1), known=known).logs
    known = replace(known, record=replace(known.record, bits=None))
    told = replace(measured(tmp_path, 1), known=known).logs
    assert told["lensaudit/p"] == known.p
    assert "lensaudit/bits" not in told


def test_rotation_keeps_the_best_by_utility_then_verdict_then_depth(
    tokenizer, tmp_path, monkeypatch
):
    say = {1: ("hidden", 0.2, 1.0), 2: ("undecided", 0.5, 1.0), 3: ("undecided", 0.4, 1.0)}
    say |= {4: ("erased", 0.9, 0.5), 5: ("erased", 0.9, None), 6: ("unscored", None, 1.0)}
    trainer = made(tokenizer, tmp_path, max_steps=6, save_steps=1, save_total_limit=1)
    callback = audited(trainer, tmp_path / "out", keep_best=True, stop_when="erased")
    monkeypatch.setattr(callback, "_audited", lambda step, _: measured(tmp_path, step, *say[step]))
    trainer.train()
    assert trainer.state.global_step == 6, "erased at the cost of utility does not end it"
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    assert [one.name for one in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]
    assert "lensaudit/uds" not in logged(trainer)[6], "no score is no number"


def test_training_ends_where_the_verdict_holds_with_utility(tokenizer, tmp_path, monkeypatch):
    trainer = made(tokenizer, tmp_path, max_steps=6, save_steps=1)
    callback = audited(trainer, tmp_path / "out", stop_when="erased")
    shares = {1: 0.8, 2: 0.95}
    monkeypatch.setattr(
        callback, "_audited", lambda step, _: measured(tmp_path, step, "erased", 0.9, shares[step])
    )
    trainer.train()
    assert trainer.state.global_step == 2


def test_every_second_save_and_the_last_are_audited(tokenizer, tmp_path, monkeypatch):
    trainer = made(tokenizer, tmp_path, max_steps=5, save_steps=1)
    callback = audited(trainer, tmp_path / "out", every=2)
    monkeypatch.setattr(callback, "_audited", lambda step, _: measured(tmp_path, step))
    trainer.train()
    assert list(callback.audits) == [2, 4, 5]


class Stops(TrainerCallback):
    """Ends training after a step, as early stopping does."""

    def on_step_end(self, args, state, control, **more):
        control.should_training_stop |= state.global_step == 3


def test_the_last_save_is_audited_where_training_ends_early_too(tokenizer, tmp_path, monkeypatch):
    trainer = made(tokenizer, tmp_path, Stops(), max_steps=6, save_steps=1)
    callback = audited(trainer, tmp_path / "out", every=2, strict=True)
    monkeypatch.setattr(callback, "_audited", lambda step, _: measured(tmp_path, step))
    trainer.train()
    assert list(callback.audits) == list(logged(trainer)) == [2, 3]
    monkeypatch.setattr(callback, "_audited", lambda *_: 1 / 0)
    del callback.audits[3]
    with pytest.raises(PartialError, match="1 audits failed: step 3"):
        callback.on_train_end(trainer.args, trainer.state, trainer.control)


def test_a_resumed_run_audits_what_it_saved_and_nothing_that_is_called_alike(
    tokenizer, tmp_path, monkeypatch
):
    for name in ("checkpoint-2", "checkpoint-1", "good-checkpoint-1", "checkpoint-01", "step_2"):
        (tmp_path / name).mkdir()
    callback = audited(made(tokenizer, tmp_path, save_steps=1), tmp_path / "out")
    taken = []
    monkeypatch.setattr(callback, "_take", lambda step, folder, *_: taken.append(folder.name))
    monkeypatch.setattr(callback, "_kept", lambda *_: None)
    state = TrainerState(global_step=2, max_steps=4, save_steps=1)
    callback.on_train_begin(callback.trainer.args, state, TrainerControl())
    assert taken == ["checkpoint-1", "checkpoint-2"]


def resumed(tokenizer, tmp_path, monkeypatch, *callbacks, audited_before=()):
    """A callback whose run goes on from its third save, of which some were audited before."""
    trainer = made(tokenizer, tmp_path, *callbacks, save_steps=1)
    callback = audited(trainer, tmp_path / "out", strict=True)
    monkeypatch.setattr(callback, "_audited", lambda step, _: measured(tmp_path, step))
    monkeypatch.setattr(callback, "_kept", lambda *_: None)
    for step in (1, 2, 3):
        (tmp_path / f"checkpoint-{step}").mkdir(parents=True)
    rows = [{**measured(tmp_path, step).logs, "step": step} for step in audited_before]
    trainer.state = TrainerState(global_step=3, max_steps=4, save_steps=1, log_history=rows)
    return callback


def begin(callback):
    callback.on_train_begin(callback.trainer.args, callback.trainer.state, TrainerControl())


@pytest.mark.parametrize("before", [(), (1,), (1, 2, 3)])
def test_audits_made_after_a_kill_are_logged_once_each_at_its_own_step(
    tokenizer, tmp_path, monkeypatch, before
):
    heard = Heard()
    callback = resumed(tokenizer, tmp_path, monkeypatch, heard, audited_before=before)
    begin(callback)
    rows = callback.trainer.state.log_history
    assert [(one["step"], one["lensaudit/step"]) for one in rows] == [(1, 1), (2, 2), (3, 3)]
    # an integration stamps what it hears with the step of the training
    assert [step for step, _ in heard.rows] == ([] if 3 in before else [3])


def test_an_audit_that_is_made_after_all_is_no_failure(tokenizer, tmp_path, monkeypatch):
    callback = resumed(tokenizer, tmp_path, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(callback, "_audited", lambda *_: 1 / 0)
        begin(callback)
    assert list(callback.failures) == [1, 2, 3]
    begin(callback)
    assert (callback.failures, list(callback.audits)) == ({}, [1, 2, 3])
    callback.on_train_end(callback.trainer.args, callback.trainer.state, TrainerControl())


def test_a_person_who_interrupts_the_second_try_of_an_audit_is_heard(
    tokenizer, tmp_path, monkeypatch
):
    def interrupted(step, folder):
        raise KeyboardInterrupt

    callback = resumed(tokenizer, tmp_path, monkeypatch)
    monkeypatch.setattr(callback, "_audited", lambda *_: 1 / 0)
    begin(callback)
    monkeypatch.setattr(callback, "_audited", interrupted)
    with pytest.raises(KeyboardInterrupt):
        begin(callback)


def test_an_audit_that_fails_costs_a_line_and_no_training(tokenizer, tmp_path, monkeypatch, caplog):
    def fails(step, folder):
        raise WorkError("logits are not finite") if step == 1 else ZeroDivisionError("a bug")

    trainer = made(tokenizer, tmp_path, max_steps=2, save_steps=1)
    callback = audited(trainer, tmp_path / "out", strict=True)
    monkeypatch.setattr(callback, "_audited", fails)
    with pytest.raises(PartialError, match="2 audits failed: step 1: logits are not finite"):
        trainer.train()
    assert trainer.state.global_step == 2
    assert [one.reason for one in callback.failures.values()] == [
        "logits are not finite",
        "ZeroDivisionError: a bug",
    ]
    told = [one.message for one in caplog.records if one.name == "lensaudit.doors.trainer"]
    assert told[0] == "step 1: not audited: logits are not finite"


def patched(place, rows, source):
    """A finished run of `patch`, as far as its manifest tells of which weights it is."""
    folder = place / f"{door._PATCHED}{rows}"
    folder.mkdir(parents=True, exist_ok=True)
    inputs = {"source": {"name": source, "weights": source}}
    (folder / MANIFEST).write_text(json.dumps({"inputs": inputs}))


def clocked(monkeypatch, callback, per_row=1.0, know=5.0, kept=2.0):
    """A world in which time passes by asking alone; what was asked, in order."""
    asked, now = [], [0.0]

    def passing(name, seconds, found):
        def work(source, place, rows=0):
            asked.append(rows or name)
            now[0] += seconds * (rows or 1)
            if rows:
                patched(place, rows, source)
            return (seconds * rows, found) if rows else found

        return work

    entries = {"retain_Q_A_Prob": MetricResult(value=0.9)}
    summary = EvaluationResult("x", Path("TOFU_EVAL.json"), "tofu", entries)
    patch = measured(callback.out, 0).patch
    monkeypatch.setattr(door.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(callback, "_known", passing("know", know, None))
    monkeypatch.setattr(callback, "_patched", passing("patch", per_row, patch))
    monkeypatch.setattr(callback, "_kept", passing("kept", kept, summary))
    monkeypatch.setattr(door, "verdicts", lambda _: SimpleNamespace(of=lambda _: (None, None)))
    monkeypatch.setattr(door, "resolve", lambda name, _: name)
    monkeypatch.setattr(door, "open_checkpoint", lambda name: SimpleNamespace(weights=name))
    callback._full, callback._kept_s = summary, kept
    return asked


@pytest.mark.parametrize(
    ("budget", "wanted", "left"),
    [
        # 5 + 8 + 2 = 15; 16 more would be 31, 32 more 63: each only where twice the last is left
        (1000.0, ["know", 8, "kept", 16, 32, 64], 0),
        (31.0, ["know", 8, "kept", 16], 48),
        (30.0, ["know", 8, "kept"], 56),
        (14.0, ["know", 8], 56),
        (None, ["know", 64, "kept"], 0),
    ],
)
def test_rows_are_doubled_while_time_is_left_and_what_is_left_out_is_said(
    tokenizer, tmp_path, monkeypatch, budget, wanted, left
):
    trainer = made(tokenizer, tmp_path / "run")
    callback = audited(trainer, tmp_path / "out", limit=None, budget_s=budget)
    asked = clocked(monkeypatch, callback)
    found = callback._audited(2, tmp_path)
    assert asked == wanted
    told = [one for one in found.left_out if "rows are not patched" in one]
    assert told == ([f"{left} of 64 rows are not patched"] if left else [])
    assert any("rows to keep" in one for one in found.left_out) == ("kept" not in wanted)


def test_later_saves_are_patched_on_as_many_rows_and_on_fewer_where_time_ran_over(
    tokenizer, tmp_path, monkeypatch
):
    trainer = made(tokenizer, tmp_path / "run")
    callback = audited(trainer, tmp_path / "out", limit=None, budget_s=31.0)
    clocked(monkeypatch, callback)
    callback._audited(2, tmp_path)
    asked = clocked(monkeypatch, callback)
    callback._audited(4, tmp_path)
    assert asked == ["know", 16, "kept"]
    clocked(monkeypatch, callback, per_row=4.0)
    callback._audited(6, tmp_path)
    asked = clocked(monkeypatch, callback)
    callback._audited(8, tmp_path)
    assert asked == ["know", FEWEST, "kept"]
    # a step that was patched before is patched on as many again
    asked = clocked(monkeypatch, callback)
    callback._audited(4, tmp_path)
    assert asked == ["know", 16, "kept"]


@pytest.mark.parametrize("budget", [None, 1000.0])
def test_what_an_earlier_run_left_in_the_folder_does_not_say_how_many_rows_are_patched(
    tokenizer, tmp_path, monkeypatch, budget
):
    trainer = made(tokenizer, tmp_path / "run")
    callback = audited(trainer, tmp_path / "out", limit=10, budget_s=budget)
    asked = clocked(monkeypatch, callback)
    place = callback.out / "step-2"
    patched(place, 4, str(tmp_path))  # by a first run with limit=4
    patched(place, 9, "other weights")
    (place / "patch-10").mkdir()  # a killed one
    found = callback._audited(2, tmp_path)
    assert asked == ["know", 10, "kept"] if budget is None else ["know", 8, "kept", 10]
    assert found.left_out == ()
    patched(place, 64, str(tmp_path))  # by a run without limit
    callback._audited(2, tmp_path)
    assert asked[-2:] == [10, "kept"]


def test_two_trainings_whose_output_folders_are_called_alike_have_results_of_their_own(
    tokenizer, tmp_path
):
    first, second = (
        AuditCallback(made(tokenizer, tmp_path / one / "run"), **ASKED).out for one in "ab"
    )
    assert first != second
    assert first.name.startswith("trainer-run-")


WRONG = [
    ({"data": None}, {}, "name full"),
    ({"every": 0}, {}, "every=0"),
    ({"budget_s": math.nan}, {}, "budget_s"),
    ({"stop_when": "gone"}, {}, "stop_when"),
    ({}, {"save_strategy": "no"}, "save_strategy is 'no'"),
    (
        {"keep_best": True},
        {"metric_for_best_model": "loss"},
        "keep_best beside metric_for_best_model='loss'",
    ),
    ({"retain": "demo/full"}, {}, "full demo/full and retain demo/full have the same weights"),
    ({"retain_set": "nowhere.jsonl"}, {}, "nowhere.jsonl: no such file"),
]


@pytest.mark.parametrize(("settings", "arguments", "told"), WRONG)
def test_what_is_wrong_is_told_before_training(tokenizer, tmp_path, settings, arguments, told):
    trainer = made(tokenizer, tmp_path, **arguments)
    with pytest.raises(InputError, match=told) as found:
        AuditCallback(trainer, **ASKED | settings)
    assert len(str(found.value).splitlines()) == 1


@pytest.mark.parametrize("retain", ["none", "demo/retain"])
def test_models_of_another_shape_are_told_before_training(tokenizer, tmp_path, retain):
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "full")
    tokenizer.save_pretrained(tmp_path / "full")
    with pytest.raises(InputError, match=r"of different shape: .*: width 64, but .*full has 32"):
        AuditCallback(
            made(tokenizer, tmp_path), **ASKED | {"full": tmp_path / "full", "retain": retain}
        )


def test_a_trainer_without_a_tokenizer_and_an_unknown_keyword_are_refused(tokenizer, tmp_path):
    trainer = made(tokenizer, tmp_path)
    with pytest.raises(TypeError, match="did you mean retain"):
        AuditCallback(trainer, **ASKED, retains="x")
    trainer.processing_class = None
    with pytest.raises(InputError, match="processing_class"):
        AuditCallback(trainer, **ASKED)


def test_rows_to_keep_that_nobody_named_leave_utility_open(tokenizer, tmp_path):
    rows = [vars(one) for one in la.forget_set("demo", limit=4)]
    (tmp_path / "rows.json").write_text(json.dumps(rows, default=list))
    callback = audited(
        made(tokenizer, tmp_path / "run"), tmp_path / "out", data=tmp_path / "rows.json"
    )
    assert "retain_set" in door._why_not_kept(callback.settings)
    assert not measured(tmp_path, 1, "erased", 1.0, None).rank(0.0)[0]


def test_adapters_are_audited_with_the_model_that_they_were_trained_on(tokenizer, tmp_path):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(EMBEDDED / "full"),
        peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"),
    )
    trainer = made(tokenizer, tmp_path / "run", model=model, max_steps=1, save_steps=1)
    callback = audited(trainer, tmp_path / "out", association="none", limit=2)
    trainer.train()
    assert callback.failures == {}
    (one,) = callback.audits.values()
    assert not (one.folder / "config.json").exists()
    assert one.patch.source == f"{callback.settings.full}+{one.folder}"
    assert one.patch.uds == pytest.approx(0, abs=0.05), "a step of a new adapter changes little"


def test_every_code_that_is_no_proof_of_erasure_is_worse_than_erased():
    assert door.BADNESS[-1] == "erased"
    assert len(set(door.BADNESS)) == 8
