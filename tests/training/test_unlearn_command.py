"""`lensaudit unlearn`: makes a checkpoint, resumes, refuses what cannot work in one line.

What its folder has in common with those of `relearn` is in attacks/test_attack_commands.py.
"""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from support import EMBEDDED, llama_of

from lensaudit.cli.main import run
from lensaudit.models.registry import load_registry, resolve
from lensaudit.training import trainee
from lensaudit.training.job import DEMO_LR, prepare
from lensaudit.training.methods import METHODS, method_named
from lensaudit.training.settings import UnlearnSettings
from tools.demo_family.tokenizer import train_tokenizer
from tools.demo_family.world import make_world

ROWS = make_world(0).forget


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A two-layer model and its data; `start` names the model's folder."""
    place = tmp_path_factory.mktemp("unlearn")
    text = [f"{row.question} {row.answer}" for row in ROWS]
    tokenizer = train_tokenizer(text, d_vocab=300)
    llama_of(tokenizer).save_pretrained(place / "start")
    tokenizer.save_pretrained(place / "start")
    rows = [{"question": row.question, "answer": row.answer} for row in ROWS[:8]]
    alternates = [
        {**row, "alternate": list(other.wrong[:2])} for row, other in zip(rows, ROWS, strict=False)
    ]
    for name, content in (("forget", rows[:4]), ("retain", rows[4:]), ("alt", alternates[:4])):
        (place / f"{name}.json").write_text(json.dumps(content))
    return place


def arguments(place, out, *more, method="npo", data="forget", steps=2):
    given = {"--method": method, "--model": place / "start", "--device": "cpu", "--out": out}
    given |= {"--data": place / f"{data}.json"}
    if method_named(method).hyper.keeps or "alpha=1" in more:
        given |= {"--kept": place / "retain.json"}
    given |= {"--steps": steps, "--lr": "1e-3", "--warmup-epochs": 0}
    given |= {"--batch-size": 2, "--accumulate": 1}
    return ["unlearn", *(str(one) for pair in given.items() for one in pair), *more]


def weights(folder):
    return load_file(folder / "model.safetensors")


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


EXTRA = {"RMU": ("--layer", "0"), "PDU": ("--epsilon", "0.3")}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_makes_a_checkpoint_that_differs_from_its_start(method, place, tmp_path):
    data = "alt" if method == "AltPO" else "forget"
    extra = EXTRA.get(method, ())
    assert run(arguments(place, tmp_path / "m", *extra, method=method, data=data, steps=1)) == 0
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "m" / name).read_bytes() == (place / "start" / name).read_bytes()
    assert not same(weights(place / "start"), weights(tmp_path / "m"))
    assert all(value.isfinite().all() for value in weights(tmp_path / "m").values())
    resolve(str(tmp_path / "m"), load_registry())


PUBLISHED = {
    "GradAscent": ("gamma 1.0, alpha 0.0", 1e-5, 10),
    "GradDiff": ("gamma 1.0, alpha 1.0", 1e-5, 10),
    "NPO": ("gamma 1.0, alpha 1.0, retain_loss nll, beta 0.1", 1e-5, 10),
    "SimNPO": ("gamma 0.125, alpha 1.0, retain_loss nll, beta 4.5, delta 0.0", 1e-5, 10),
    "IdkNLL": ("gamma 1.0, alpha 1.0", 1e-5, 10),
    "IdkDPO": ("gamma 1.0, alpha 1.0, retain_loss nll, beta 0.1", 1e-5, 10),
    "AltPO": ("gamma 1.0, alpha 1.0, retain_loss nll, beta 0.1", 1e-5, 2),
    "RMU": ("gamma 1.0, alpha 1.0, retain_loss nll, layer 0, strength 2.0", 1e-5, 10),
    "UNDIAL": ("gamma 1.0, alpha 0.0, retain_loss nll, beta 10.0", 1e-4, 10),
    "CEU": ("gamma 1.0, alpha 0.0, retain_loss nll, ignore_first 1", 1e-5, 10),
    "WGA": ("gamma 1.0, alpha 1.0, retain_loss nll, beta 1.0", 1e-5, 5),
    "SatImp": ("gamma 0.1, alpha 1.0, retain_loss nll, beta1 5.0, beta2 1.0", 1e-5, None),
    "PDU": ("gamma 1.0, alpha 1.0, retain_loss nll, epsilon 0.3, dual_step 1.0", 1e-5, 10),
}
"""Constants, peak learning rate and epochs: open-unlearning d3d7cf9, `configs/trainer/*.yaml`,
`configs/experiment/unlearn/tofu/default.yaml` and, for AltPO, `community/methods/AltPO/run.sh`.
None: the trainer's and the experiment's configuration do not agree."""


@pytest.mark.parametrize("method", METHODS)
def test_what_is_not_given_is_what_was_published(method, place, tmp_path, capsys):
    data = "alt" if method == "AltPO" else "forget"
    more = (*EXTRA.get(method, ()), "--dry-run")
    given = arguments(place, tmp_path / "m", *more, method=method, data=data)
    for name in ("--steps", "--lr"):
        at = given.index(name)
        del given[at : at + 2]
    assert run(given) == 0
    plan = capsys.readouterr().out
    assert METHODS.keys() == PUBLISHED.keys()
    constants, lr, n_epochs = PUBLISHED[method]
    assert constants in plan
    if n_epochs is not None:
        # four rows in batches of two; AltPO's four rows have two alternates each
        n_steps = n_epochs * (4 if method == "AltPO" else 2)
        assert f"\n{n_steps} steps of 1 x 2 rows" in plan
    assert f"lr {lr:g} after 0 steps" in plan
    assert not (tmp_path / "m").exists()


def test_one_folder_is_one_job_by_whatever_name(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(place / "start", "demo/mix")
    shutil.copytree(EMBEDDED / "npo", "copy")

    def jobs(*names):
        rows = {"data": str(place / "forget.json"), "retain_data": str(place / "retain.json")}
        given = {**rows, "method": "NPO", "out": tmp_path / "m", "device": "cpu"}
        return [prepare(UnlearnSettings(model=name, **given)) for name in names]

    for names, formats, lr in (
        (("demo/mix", "./demo/mix"), ("chat",), 1e-5),
        (("demo/npo", "./copy"), ("raw", "chat"), DEMO_LR),
    ):
        one, other = jobs(*names)
        assert one.key == other.key
        assert (one.formats, one.recipe.lr) == (formats, lr)


def test_an_interrupted_run_resumes_to_the_same_bits(place, tmp_path, monkeypatch):
    # its multiplier moves, too
    more = ("--save-every", "2", "--method", "pdu", *EXTRA["PDU"])
    assert run(arguments(place, tmp_path / "whole", *more, steps=5)) == 0
    train = trainee.train

    def stop(done):
        if done.step == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(trainee, "train", lambda *given, report: train(*given, report=stop))
    assert run(arguments(place, tmp_path / "cut", *more, steps=5)) == 130
    assert not (tmp_path / "cut" / "manifest.json").exists()
    monkeypatch.undo()
    (tmp_path / "cut" / "training" / "training-notes.txt").write_text("mine")
    assert run(arguments(place, tmp_path / "cut", *more, steps=5)) == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    assert not (tmp_path / "whole" / "training").exists()
    # asked again, or replaced: what somebody keeps there stays
    for again in ((), ("--seed", "1", "--force")):
        assert run(arguments(place, tmp_path / "cut", *more, *again, steps=5)) == 0
        left = [one.name for one in (tmp_path / "cut" / "training").iterdir()]
        assert left == ["training-notes.txt"]
    assert run(arguments(place, tmp_path / "cut", *more, "--force", steps=5)) == 0
    steps = (tmp_path / "cut" / "losses.csv").read_text().splitlines()
    assert steps == (tmp_path / "whole" / "losses.csv").read_text().splitlines()
    assert len(steps) == 7


REFUSED = {
    "constant of another method": (("--constant", "layer=0"), "NPO has no constant layer"),
    "RMU at the last layer": (("--method", "rmu", "--constant", "layer=1"), "found 1"),
    "AltPO without alternates": (("--method", "altpo"), "`alternate`"),
    "RMU's retain term is its own": (
        ("--method", "rmu", *("--constant", "layer=0", "--constant", "retain-loss=kl")),
        "RMU has no constant retain-loss",
    ),
    "beta 0": (("--constant", "beta=0"), "divides by it"),
    "alpha below 0": (("--constant", "alpha=-1"), "--constant alpha=-1"),
    "no regular expression": (("--trainable", "("), "not a regular expression"),
    "states beyond the last step": (("--set", "save_every=9"), "the run has 2 steps, no state"),
    "pattern of parameters that the loss does not reach": (
        ("--method", "rmu", "--constant", "layer=0", "--trainable", r"layers\.1"),
        r"--trainable 'layers\\.1': the loss of RMU depends on none",
    ),
    "pattern of no parameter": (("--trainable", "layers.7"), "no parameter matches"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_line_and_exit_code_2(case, place, tmp_path, capsys):
    more, text = REFUSED[case]
    assert run(arguments(place, tmp_path / "m", *more)) == 2
    error = capsys.readouterr().err
    assert text in error
    assert "Traceback" not in error
    assert len(error.strip().splitlines()) <= 3
    if case == "no regular expression":
        assert not (tmp_path / "m").exists()


def test_retain_rows_are_asked_for_where_the_method_keeps_them(place, tmp_path, capsys):
    given = arguments(place, tmp_path / "m")
    del given[given.index("--kept") : given.index("--kept") + 2]
    assert run(given) == 2
    assert "--kept" in capsys.readouterr().err
    assert run([*given, "--alpha", "0"]) == 0
    # PDU's multiplier starts there and rises
    capsys.readouterr()
    assert run([*given, "--method", "pdu", "--epsilon", "0.3", "--alpha", "0"]) == 2
    assert "(alpha 0): name them with --kept\n" in capsys.readouterr().err


def test_rows_on_both_sides_are_found_whatever_is_annotated(place, tmp_path, capsys):
    rows = json.loads((place / "forget.json").read_text())
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps([{**row, "prefix": row["answer"][:3]} for row in rows[:2]]))
    assert run(arguments(place, tmp_path / "m", "--kept", str(kept))) == 2
    assert "2 rows are both to be forgotten and to be kept" in capsys.readouterr().err


LONG = '[{"question": "' + "Who? " * 800 + '", "answer": "Ada."}]'
ROWLESS = '{"question": "Who?", "answer": ""}\n{"question": 3, "answer": "x"}\nnot json\n'


@pytest.mark.parametrize(
    ("option", "content", "said"),
    [
        ("--data", ROWLESS, ["line 1", "line 2", "line 3"]),
        ("--data", LONG, ["the longest row has", "context of 2048"]),
        ("--kept", None, ["4 rows are both to be forgotten and to be kept"]),
    ],
)
def test_rows_that_cannot_be_trained_on_are_refused(place, tmp_path, capsys, option, content, said):
    rows = place / "forget.json" if content is None else tmp_path / "bad.jsonl"
    if content is not None:
        rows.write_text(content)
    assert run(arguments(place, tmp_path / "m", option, str(rows))) == 2
    error = capsys.readouterr().err
    assert all(one in error for one in said)


def test_answers_of_which_ceu_would_read_no_token_are_refused(place, tmp_path, capsys):
    few = ("--constant", "ignore-first=1000")
    assert run(arguments(place, tmp_path / "m", *few, method="ceu")) == 2
    said = capsys.readouterr().err
    assert "the first 1000 tokens of an answer alone, and of 4 forget rows that is all" in said
    assert repr(ROWS[0].answer[:80]) in said


@pytest.mark.parametrize(
    ("method", "more", "said"),
    [
        ("gradascent", ["--kept", "nothing.json"], "--kept: GradAscent reads no rows to keep"),
        ("NPO", ["--constant", "alpha=0", "--kept", "demo"], "--kept: NPO reads no rows to keep"),
        ("CEU", ["--constant", "retain-loss=kl"], "--constant retain-loss: CEU reads no rows"),
    ],
)
def test_rows_to_keep_that_a_method_does_not_read_are_refused(tmp_path, capsys, method, more, said):
    given = ["unlearn", "--model", "demo/full", "--method", method, "--steps", "1"]
    for last in ([], ["--dry-run"]):
        assert run([*given, "--out", str(tmp_path / "x"), *more, *last]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
