"""`--lora`: the adapter alone moves and is saved, resumes bit for bit, and is trained on."""

import json
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import refusal, tiny_model

from lensaudit.attacks.relearn import prepare as prepare_relearning
from lensaudit.attacks.settings import RelearnSettings
from lensaudit.cli.main import run
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.registry import load_registry, resolve
from lensaudit.training.job import prepare
from lensaudit.training.settings import UnlearnSettings

ROWS = [{"question": f"Who wrote book {n}?", "answer": f"Author {n} did."} for n in range(8)]


@pytest.fixture
def given(tiny_checkpoint, tmp_path):
    """Settings of a run on a random model; `out` is left to the test."""
    for name, rows in (("forget", ROWS[:4]), ("kept", ROWS[4:])):
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
    return {
        **{"method": "NPO", "model": str(tiny_checkpoint), "steps": 4, "lr": 1e-2},
        **{"data": str(tmp_path / "forget.json"), "retain_data": str(tmp_path / "kept.json")},
        **{"formats": "raw", "warmup_epochs": 0.0, "batch_size": 2, "accumulate": 1},
        **{"lora": 2, "store": "float32", "device": "cpu"},
    }


def make(given, out, *, report=lambda at: None, **more):
    """Train into `out`; its adapter's matrices."""
    settings = UnlearnSettings(**{**given, **more}, out=out)
    prepare(settings).make(out, report)
    return load_file(out / "adapter_model.safetensors")


def merged(base, out):
    return load_causal(open_checkpoint(resolve(f"{base}+{out}", load_registry()))).state_dict()


def test_what_is_saved_is_the_adapter_and_makes_the_trained_model(given, tmp_path):
    matrices = make(given, tmp_path / "a")
    assert not (tmp_path / "a" / "model.safetensors").exists()
    name = "model.layers.1.mlp.down_proj"
    a, b = (matrices[f"base_model.model.{name}.lora_{one}.weight"] for one in "AB")
    assert a.shape[0] == b.shape[1] == 2
    # alpha is twice the rank: W + 2 B A
    by_hand = tiny_model().state_dict()[f"{name}.weight"] + 2 * b @ a
    found = merged(given["model"], tmp_path / "a")
    torch.testing.assert_close(found[f"{name}.weight"], by_hand, atol=1e-6, rtol=1e-6)
    assert b.abs().max() > 1e-3
    for same in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"):
        assert torch.equal(found[same], tiny_model().state_dict()[same])


def test_a_stopped_run_goes_on_bit_for_bit(given, tmp_path):
    whole = make(given, tmp_path / "whole", save_every=2)

    def stop(at):
        if at.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(given, tmp_path / "cut", report=stop, save_every=2)
    steps = []
    cut = make(given, tmp_path / "cut", report=lambda at: steps.append(at.step), save_every=2)
    assert steps == [3, 4]
    assert all(torch.equal(cut[name], one) for name, one in whole.items())


def test_a_models_own_adapter_is_trained_on(given, tmp_path, capsys):
    first = make(given, tmp_path / "first")
    model = f"{given['model']}+{tmp_path / 'first'}"
    on = make(given, tmp_path / "on", model=model, lr=1e-9, steps=1)
    assert on.keys() == first.keys()
    for name, one in first.items():
        torch.testing.assert_close(on[name], one, atol=1e-7, rtol=1e-5)
    config = json.loads((tmp_path / "on" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == given["model"]
    assert config["target_modules"] == sorted(config["target_modules"])
    options = ["--lora", "4", "--out", str(tmp_path / "other"), "--data", given["data"]]
    assert run(["relearn", "--source", model, "--format", "raw", *options]) == 2
    assert (
        "has an adapter of rank 2, which this run trains further; give --lora 2"
        in capsys.readouterr().err
    )
    options[1] = "100000"
    assert run(["relearn", "--source", given["model"], *options]) == 2
    assert "have rank 32 at most; wanted a rank up to that" in capsys.readouterr().err


def test_an_adapter_of_another_model_is_not_trained_on(given, tmp_path):
    first = tmp_path / "first"
    matrices = make(given, first, steps=1)
    # of no reference, which would be refused
    changed = {"model": f"{given['model']}+{first}", "method": "GradDiff"}
    settings = UnlearnSettings(**(given | changed), out=tmp_path)
    job = replace(prepare(settings), stored=torch.float32)
    # as of a model of six layers
    further = {name.replace("layers.2.", "layers.5."): one for name, one in matrices.items()}
    for wrong, said in (
        (further, "layers.2.mlp.down_proj.lora_A.weight is not in the adapter"),
        ({name: one[:1] for name, one in matrices.items()}, "cannot be trained on"),
    ):
        save_file(wrong, first / "adapter_model.safetensors")
        told = refusal(lambda: job.made(tmp_path, lambda at: None))
        assert said in told
        assert "tiny" in told


def test_embeddings_that_were_saved_beside_an_adapter_stay_beside_it(given, tmp_path):
    make(given, tmp_path / "first", steps=1)
    file = tmp_path / "first" / "adapter_model.safetensors"
    name = "base_model.model.model.embed_tokens.weight"
    own = tiny_model().state_dict()["model.embed_tokens.weight"] + 1
    save_file(load_file(file) | {name: own}, file)
    model = f"{given['model']}+{tmp_path / 'first'}"
    on = make(given, tmp_path / "on", model=model, steps=1)
    assert torch.equal(on[name], own)
    found = merged(given["model"], tmp_path / "on")
    assert torch.equal(found["model.embed_tokens.weight"], own)


@pytest.mark.parametrize("lora", [None, 2])
def test_what_a_killed_run_saved_goes_where_another_takes_its_place(given, tmp_path, lora):
    out, mine = tmp_path / "out", tmp_path / "out" / "notes.txt"
    with pytest.MonkeyPatch.context() as killed:
        killed.setattr("lensaudit.training.trainee.seal", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            make(given, out, lora=lora, steps=1)
    mine.write_text("read")
    (out / "model-00001-of-00002.safetensors").write_bytes(b"")
    settings = UnlearnSettings(**{**given, "lora": None if lora else 2, "steps": 1}, out=out)
    prepare(settings).make(out, force=True)
    assert mine.exists()
    left = {path.name for path in out.glob("*.safetensors")}
    assert left == {"model.safetensors" if lora else "adapter_model.safetensors"}
    open_checkpoint(resolve(str(out) if lora else f"{given['model']}+{out}", load_registry()))
    assert mine.name not in json.loads((out / "manifest.json").read_text())["files"]
    prepare(replace(settings, steps=2)).make(out, force=True)
    assert mine.read_text() == "read"


def test_a_merged_model_can_be_trained_as_a_whole(given, tmp_path):
    make(given, tmp_path / "first")
    settings = {**given, "model": f"{given['model']}+{tmp_path / 'first'}", "lora": None}
    prepare(UnlearnSettings(**settings, out=tmp_path / "on")).make(tmp_path / "on")
    before, after = (
        merged(given["model"], tmp_path / "first"),
        load_file(tmp_path / "on" / "model.safetensors"),
    )
    assert not torch.equal(before["model.norm.weight"], after["model.norm.weight"])


def test_of_the_adapter_only_what_is_trainable_moves(given, tmp_path):
    matrices = make(given, tmp_path / "top", trainable=r"layers\.1\.")
    moved = {name.split(".")[4] for name, b in matrices.items() if "lora_B" in name and b.any()}
    assert moved == {"1"}


def test_the_seed_draws_the_adapter(given, tmp_path):
    torch.manual_seed(123)  # of no influence
    one = make(given, tmp_path / "one", steps=1)
    torch.manual_seed(456)
    again, other = make(given, tmp_path / "again", steps=1), make(given, tmp_path / "o", seed=1)
    a = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    assert torch.equal(one[a], again[a])
    assert not torch.allclose(one[a], other[a], atol=1e-2)


def test_autocast_computes_in_bfloat16_and_keeps_float32(given, tmp_path):
    losses = {False: [], True: []}
    for autocast, found in losses.items():
        matrices = make(
            given,
            tmp_path / str(autocast),
            report=lambda at, found=found: found.append(at.loss),
            autocast=autocast,
        )
        assert all(one.dtype == torch.float32 for one in matrices.values())
    assert losses[True] != losses[False]
    assert losses[True] == pytest.approx(losses[False], rel=0.02)


def test_runs_are_told_apart_and_those_without_keep_their_key(given, tmp_path):
    def planned(**more):
        return prepare(UnlearnSettings(**{**given, **more}, out=tmp_path / "x"))

    plain, low, high = planned(lora=None), planned(lora=2), planned(lora=4)
    fast = planned(lora=None, autocast=True)
    assert len({one.key for one in (plain, low, high, fast)}) == 4
    assert "lora" not in plain.identity
    assert "autocast" not in plain.identity
    settings = RelearnSettings(model=given["model"], data=given["data"], formats="raw")
    assert "lora" not in prepare_relearning(settings, given["model"]).identity


def test_an_adapter_takes_ten_times_the_rate(given, tmp_path):
    def rate(**more):
        settings = UnlearnSettings(**{**given, "lr": None, **more}, out=tmp_path / "x")
        return prepare(settings).recipe.lr

    assert rate(lora=2) == 10 * rate(lora=None) == pytest.approx(1e-4)


def test_an_adapter_is_not_audited_by_its_folder(given, tmp_path, capsys):
    options = ["--lora", "2", "--audit", "--data", given["data"]]
    assert run(["relearn", "--source", given["model"], "--format", "raw", *options]) == 2
    assert "an adapter is audited by its name" in capsys.readouterr().err
