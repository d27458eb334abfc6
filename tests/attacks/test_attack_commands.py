"""`lensaudit relearn`, `quantize`, `unlearn`: folders that every command reads, clear refusals."""

import json
import shlex
import shutil
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import llama_of, tiny_model_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from lensaudit.attacks.quantize import quantised
from lensaudit.cli.main import run
from lensaudit.errors import InputError
from lensaudit.models.checkpoint import load_tokenizer, open_model
from lensaudit.models.hashing import TOKENIZER_FILES
from lensaudit.models.hub_files import WANTED
from lensaudit.training.trainee import copy_tokenizer
from tools.demo_family.tokenizer import train_tokenizer
from tools.demo_family.world import make_world

ROWS, KEPT = make_world(0).forget[:8], make_world(0).forget[8:12]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A two-layer model in bfloat16, and rows; `start` names the model's folder."""
    place = tmp_path_factory.mktemp("attacks")
    tokenizer = train_tokenizer([f"{row.question} {row.answer}" for row in ROWS], d_vocab=300)
    model = llama_of(tokenizer, hidden_size=32, intermediate_size=48)
    model.to(torch.bfloat16).save_pretrained(place / "start")
    tokenizer.save_pretrained(place / "start")
    for name, some in (("forget", ROWS), ("half", ROWS[:4]), ("retain", KEPT)):
        rows = [{"question": row.question, "answer": row.answer} for row in some]
        (place / f"{name}.json").write_text(json.dumps(rows))
    return place


def relearn(place, out, *more):
    places = ["--source", str(place / "start"), "--data", str(place / "forget.json")]
    how = shlex.split("--lr 1e-3 --batch-size 1 --accumulate 2 --device cpu --store float32")
    return ["relearn", *places, "--out", str(out), *how, *more]


def quantize(place, out, *more):
    # bitsandbytes takes 20 s to import
    places = ["--source", str(place / "start"), "--out", str(out)]
    return ["quantize", *places, "--engine", "torch", *more]


def unlearn(place, out, *more):
    places = ["--model", str(place / "start"), "--data", str(place / "forget.json")]
    places += ["--kept", str(place / "retain.json"), "--out", str(out)]
    how = shlex.split("--method npo --steps 2 --lr 1e-3 --batch-size 2 --accumulate 1 --device cpu")
    return ["unlearn", *places, *how, *more]


def weights(folder):
    return load_file(folder / "model.safetensors")


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("method", ["nf4", "int8"])
def test_a_quantised_checkpoint_holds_the_rounded_weights_and_opens_by_its_folder(
    method, place, tmp_path, capsys
):
    assert run(quantize(place, tmp_path / "q", "--method", method, "--json")) == 0
    said = json.loads(capsys.readouterr().out)
    model = AutoModelForCausalLM.from_pretrained(place / "start", dtype=torch.bfloat16)
    twin, errors = quantised(model, method, engine="torch")
    assert same(weights(tmp_path / "q"), dict(twin.state_dict()))
    assert (said["matrices"], len(errors), said["share"]) == (14, 14, 1.0)
    assert said["relative_error"] == pytest.approx({"nf4": 0.092, "int8": 0.006}[method], rel=0.2)
    start, made = (open_model(str(folder)) for folder in (place / "start", tmp_path / "q"))
    assert made.weights != start.weights
    assert (made.tokenizer, made.dtype) == (start.tokenizer, "bfloat16")
    record = json.loads((tmp_path / "q" / "manifest.json").read_text())["inputs"]
    assert record["weights"] == start.weights
    assert (record["method"], record["block"]) == (method, 64 if method == "nf4" else None)


def test_a_tokenizer_that_is_a_list_of_words_is_copied_like_any_other(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "where", "is", "it"]
    start = tmp_path / "start"
    start.mkdir()
    (start / "vocab.txt").write_text("\n".join(words))
    (start / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    llama_of(AutoTokenizer.from_pretrained(start)).save_pretrained(start)
    assert (
        run(["quantize", "--engine", "torch", "--source", str(start), "--out", str(tmp_path / "q")])
        == 0
    )
    before, made = (open_model(str(one)) for one in (start, tmp_path / "q"))
    assert made.tokenizer == before.tokenizer
    assert load_tokenizer(made)("where is it").input_ids == [2, 5, 6, 7, 3]


def test_all_that_a_tokenizer_is_told_by_is_fetched_and_copied(tmp_path):
    (tmp_path / "made").mkdir()
    for name in TOKENIZER_FILES:
        (tmp_path / name).write_text(name)
        assert any(fnmatch(name, one) for one in WANTED)
    copy_tokenizer(tmp_path, tmp_path / "made")
    assert sorted(one.name for one in (tmp_path / "made").iterdir()) == sorted(TOKENIZER_FILES)


def test_experts_stay_and_it_is_said_how_much_was_rounded(place, tmp_path, capsys):
    for one in (place / "start").glob("*token*"):
        shutil.copy(one, tmp_path / one.name)
    tiny_model_of("Mixtral", num_hidden_layers=1, vocab_size=300).save_pretrained(tmp_path)
    words = ["quantize", "--source", str(tmp_path), "--out", str(tmp_path / "q")]
    assert run([*words, "--engine", "torch", "--json"]) == 0
    told = capsys.readouterr()
    share = json.loads(told.out)["share"]
    assert 0 < share < 0.5
    assert f"{share:.0%} of the weights in blocks were rounded; those of experts" in told.err
    before, after = weights(tmp_path), weights(tmp_path / "q")
    experts = [one for one in before if "experts" in one]
    assert experts
    assert all(torch.equal(before[one], after[one]) for one in experts)


@pytest.mark.parametrize(
    ("command", "other", "table"),
    [
        (quantize, "--method int8", "errors.csv"),
        (relearn, "--seed 1", "losses.csv"),
        (unlearn, "--constant beta=0.5", "losses.csv"),
    ],
)
def test_a_finished_folder_is_left_alone_and_told_from_others(
    command, other, table, place, tmp_path, capsys
):
    out = tmp_path / "m"
    assert run(command(place, out, "--json")) == 0
    first, before = capsys.readouterr().out, (out / "model.safetensors").stat().st_mtime_ns
    assert run(command(place, out, "--json")) == 0
    again = capsys.readouterr()
    assert json.loads(again.out) == json.loads(first)
    assert "nothing to do" in again.err
    assert (out / "model.safetensors").stat().st_mtime_ns == before
    # another setting, other rows, another attack
    refused = [command(place, out, *other.split())]
    refused += [one(place, out) for one in (quantize, relearn, unlearn)]
    refused += [relearn(place, out, "--data", str(place / "half.json"))]
    codes = [run(one) for one in refused]
    assert sorted(codes) == [0, 2, 2, 2, 2]
    assert capsys.readouterr().err.count("name another --out") == 4
    (out / table).write_text("nothing\n")
    assert run(command(place, out, "--json")) == 2
    assert table in capsys.readouterr().err


@pytest.mark.parametrize("command", [quantize, relearn, unlearn])
@pytest.mark.parametrize("more", [(), ("--force",), ("--force", "--dry-run")])
def test_the_model_that_a_run_starts_from_is_never_replaced(command, more, place, tmp_path, capsys):
    made = Path(shutil.copytree(place / "start", tmp_path / "made"))
    files = [one.name for one in made.iterdir()]
    record = {"command": command.__name__, "inputs": {"key": "1"}, "files": dict.fromkeys(files)}
    (made / "manifest.json").write_text(json.dumps(record))
    (tmp_path / "link").symlink_to(made)
    for out in (made, tmp_path / "link"):
        given = command(place, out, *more)
        given[given.index(str(place / "start"))] = str(made)
        assert run(given) == 2
        assert f"holds the model {made}, which this run reads" in capsys.readouterr().err
    assert {one.name for one in made.iterdir()} == {*files, "manifest.json"}


@pytest.mark.parametrize("command", [quantize, relearn, unlearn])
def test_a_finished_checkpoint_is_found_where_nobody_writes(command, place, tmp_path, monkeypatch):
    out = tmp_path / "out"
    assert run(command(place, out)) == 0
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}

    def refused(folder):
        raise InputError(f"{folder}: access refused")

    monkeypatch.setattr("lensaudit.training.trainee.alone", refused)
    assert run(command(place, out)) == 0
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before


@pytest.mark.parametrize("command", [quantize, relearn, unlearn])
def test_nothing_is_written_by_a_dry_run_into_a_foreign_folder_or_where_memory_lacks(
    command, place, tmp_path, monkeypatch, capsys
):
    assert run(command(place, tmp_path / "m", "--dry-run")) == 0
    assert str(tmp_path / "m") in capsys.readouterr().out
    for room in ("attacks.rounding", "training.trainee"):
        monkeypatch.setattr(f"lensaudit.{room}.free_bytes", lambda device: 10)
    assert run(command(place, tmp_path / "m")) == 2
    assert "are free on cpu" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()
    monkeypatch.undo()
    (tmp_path / "notes.txt").write_text("mine")
    assert run(command(place, tmp_path)) == 2
    assert "not empty" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["notes.txt"]


def test_a_diverging_attack_keeps_the_last_state_and_writes_no_model(place, tmp_path, capsys):
    more = ("--lr", "1e30", "--max-grad-norm", "1e30", "--save-every", "1", "--epochs", "5")
    assert run(relearn(place, tmp_path / "m", *more)) == 1
    error = capsys.readouterr().err
    assert "not finite at step" in error
    assert "is kept in" in error
    assert not (tmp_path / "m" / "model.safetensors").exists()


def test_more_steps_than_can_be_counted_are_refused(place, tmp_path, capsys):
    assert run(relearn(place, tmp_path / "m", "--epochs", "1e308")) == 2
    assert "1e+308 epochs of" in capsys.readouterr().err


@pytest.mark.parametrize("warmup", [25, 24])
def test_a_rate_that_only_rises_is_told_and_refused_where_it_was_chosen(warmup, tmp_path, capsys):
    line = "rtt run --source demo/npo --epochs 1 --dry-run --warmup"
    code = run([*line.split(), str(warmup), "--out", str(tmp_path / "r")])
    said = capsys.readouterr().err
    assert code == (2 if warmup != 24 else 0)
    assert f"--warmup {warmup}" in said
    assert "the learning rate would never be reached" in said


def test_an_audit_finds_the_data_wrong_before_it_trains(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = relearn(place, tmp_path / "m", "--audit")
    for name in ("full", "retain"):  # others by content, of the same shape
        folder = Path(shutil.copytree(place / "start", name))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"called": name}))
    assert run([*arguments, "--full", "./full", "--retain", "./retain"]) == 2
    assert "prefix" in capsys.readouterr().err  # the rows are not annotated
    assert not (tmp_path / "m").exists()
    arguments = relearn(place, "retain", "--audit", "--full", "./full", "--retain", "./retain")
    assert run([*arguments, "--force"]) == 2
    assert "retain: holds the model ./retain, which this run reads" in capsys.readouterr().err


def test_a_run_killed_while_it_writes_is_finished_by_the_next(place, tmp_path, monkeypatch):
    def killed(*given):
        raise KeyboardInterrupt

    # one function makes the folders of all three
    monkeypatch.setattr("lensaudit.training.trainee.copy_tokenizer", killed)
    out = tmp_path / "m"
    assert run(relearn(place, out)) == 130
    assert (out / "model.safetensors").exists()
    assert not (out / "manifest.json").exists()
    monkeypatch.undo()
    assert run(relearn(place, out, "--store", "float16")) == 2
    assert run(relearn(place, out)) == 0
    assert (out / "manifest.json").exists()
    assert (out / "tokenizer.json").exists()
