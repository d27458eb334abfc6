"""The door to open-unlearning, on a stand-in checkout with its contract."""

import ast
import importlib
import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from lensaudit.cli.main import run
from lensaudit.doors.open_unlearning import CONFIG, EVALUATOR, REGISTRY, carry_out, connection
from lensaudit.errors import InputError
from lensaudit.models.registry import EMBEDDED

REGISTERING = """HANDLERS = {}

def _register_evaluator(evaluator_class):
    HANDLERS[evaluator_class.__name__] = evaluator_class

def get_evaluator(name, eval_cfg, **kwargs):
    return HANDLERS[eval_cfg.get("handler")](eval_cfg, **kwargs)

def get_evaluators(eval_cfgs, **kwargs):
    return {name: get_evaluator(name, one, **kwargs) for name, one in eval_cfgs.items()}
"""
BASE = """class Evaluator:
    def __init__(self, name, eval_cfg, **kwargs):
        self.name, self.eval_cfg, self.metrics = name, eval_cfg, dict(eval_cfg.metrics)

    def evaluate(self, model, output_dir=None, overwrite=None, **kwargs):
        raise NotImplementedError
"""


@pytest.fixture
def checkout(tmp_path):
    """The files of the contract, and one that is nobody's business."""
    root = tmp_path / "open-unlearning"
    files = {REGISTRY: REGISTERING, "src/evals/base.py": BASE, "configs/eval/tofu.yaml": "a: 1\n"}
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def content_of(root):
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def connect(root, *more):
    return run(["connect", "open-unlearning", str(root), "--yes", *more])


@pytest.mark.parametrize("end", ["\n", "", "\r\n", "\n\n  # last"])
def test_connecting_writes_two_files_and_a_line_and_is_undone_exactly(checkout, end, capsys):
    text = REGISTERING.rstrip("\n").replace("\n", "\r\n" if end == "\r\n" else "\n") + end
    (checkout / REGISTRY).write_bytes(text.encode())
    before = content_of(checkout)
    assert connect(checkout) == 0
    diff = capsys.readouterr().out
    after = content_of(checkout)
    assert after.keys() - before.keys() == {EVALUATOR, CONFIG}
    assert {name for name in before if before[name] != after[name]} == {REGISTRY}
    added = re.findall(r"^\+(?!\+\+ )(.*)$", diff, re.M)
    assert sum("_register_evaluator(" in line for line in added) == 1
    assert [line for line in added if "handler:" in line] == ["handler: LensAuditEvaluator"]
    assert connect(checkout, "--remove") == 0
    assert content_of(checkout) == before


def test_other_registrations_since_do_not_stand_in_the_way(checkout):
    assert connect(checkout) == 0
    registry = checkout / REGISTRY
    registry.write_text(registry.read_text() + "OTHER = 1\n")
    assert connect(checkout, "--remove") == 0
    assert registry.read_text() == REGISTERING + "OTHER = 1\n"


@pytest.mark.parametrize("name", [EVALUATOR, CONFIG, REGISTRY])
def test_what_was_edited_since_is_named_and_nothing_is_changed(checkout, name, capsys):
    assert connect(checkout) == 0
    path = checkout / name
    path.write_text(path.read_text().replace("LensAuditEvaluator", "LensAuditEvaluator2"))
    before = content_of(checkout)
    assert connect(checkout, "--remove") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"lensaudit: {path}: edited or deleted since")
    assert content_of(checkout) == before


def test_it_asks_and_no_is_no(checkout, monkeypatch, capsys):
    before = content_of(checkout)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    assert run(["connect", "open-unlearning", str(checkout)]) == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert content_of(checkout) == before
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert run(["connect", "open-unlearning", str(checkout)]) == 0
    assert content_of(checkout).keys() - before.keys() == {EVALUATOR, CONFIG}


def outside(root):
    moved = root.parent / "outside.py"
    (root / REGISTRY).rename(moved)
    (root / REGISTRY).symlink_to(moved)


def folder_outside(root):
    (root / "configs").rename(root.parent / "elsewhere")
    (root / "configs").symlink_to(root.parent / "elsewhere")


WRONG = {
    "no checkout": (lambda root: root.rename(root.parent / "gone"), "no such folder"),
    "no registry": (lambda root: (root / REGISTRY).unlink(), "no such file"),
    "no function": (
        lambda root: (root / REGISTRY).write_text("x = 1\n"),
        "no _register_evaluator(",
    ),
    "no configs": (
        lambda root: ((root / "configs/eval/tofu.yaml").unlink(), (root / "configs/eval").rmdir()),
        "no such folder",
    ),
    "there already": (lambda root: connect(root), "is there already; --remove"),
    "a link to a file": (outside, "is a link"),
    "a link to a folder": (folder_outside, "does not lie in"),
    "binary": (lambda root: (root / REGISTRY).write_bytes(b"\xff_register_evaluator("), "UTF-8"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_checkout_is_told_in_one_line_and_left_as_it_is(checkout, case, capsys):
    spoil, told = WRONG[case]
    spoil(checkout)
    before = content_of(checkout.parent)
    capsys.readouterr()
    assert connect(checkout) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert content_of(checkout.parent) == before


def test_a_read_only_file_leaves_the_checkout_as_it_was(checkout, monkeypatch):
    """A folder without the right to write says so to others than root; this is what they meet."""
    before, replace = content_of(checkout), os.replace

    def refused(old, new):
        if Path(new).name == "__init__.py":
            raise PermissionError(13, "Permission denied", str(new))
        replace(old, new)

    monkeypatch.setattr(os, "replace", refused)
    with pytest.raises(InputError, match="access refused"):
        carry_out(checkout, connection(checkout))
    assert content_of(checkout) == before


def test_the_evaluator_is_of_any_python_since_3_9_and_imports_nothing_of_ours(checkout):
    assert connect(checkout) == 0
    tree = ast.parse((checkout / EVALUATOR).read_text(), feature_version=(3, 9))
    names = {
        one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names
    }
    froms = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names | froms == {
        "json",
        "logging",
        "os",
        "subprocess",
        "tempfile",
        "pathlib",
        "evals.base",
    }


@pytest.fixture
def called(checkout, tmp_path, monkeypatch):
    """As their evaluation does: a loop over the configurations, and each evaluator called."""
    assert connect(checkout) == 0
    monkeypatch.syspath_prepend(checkout / "src")
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "evals"]:
        monkeypatch.delitem(sys.modules, name)

    def inside(command, **how):
        """What their subprocess comes to, here: lensaudit's imports take seconds."""
        if command[0] != sys.executable:
            return subprocess.run(command, **how)
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = run(command[3:])
        return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())

    def call(model, tokenizer, **settings):
        text = (checkout / CONFIG).read_text()
        assert text.startswith("# @package eval.lensaudit\n")
        given = {"output_dir": str(tmp_path / "evals"), "python": sys.executable, **settings}
        config = yaml.safe_load(text) | given
        config |= {"full": "demo/full", "retain": "demo/retain", "data": "demo", "limit": 4}
        evals = importlib.import_module("evals")
        theirs = sys.modules["evals.lensaudit"]
        monkeypatch.setattr(theirs, "subprocess", SimpleNamespace(run=inside))
        evaluators = evals.get_evaluators({"lensaudit": config | settings})
        shared = {"model": model, "tokenizer": tokenizer, "template_args": {}}
        return next(one.evaluate(**shared) for one in evaluators.values())

    return call


@pytest.fixture(scope="module")
def npo():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = EMBEDDED / "npo"
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def test_their_call_writes_our_numbers_in_their_layout(called, npo, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text('[gate]\npass = ["erased"]\n')
    with pytest.raises(RuntimeError, match="lensaudit: 1 of 1 fail the gate"):
        called(*npo, gate=str(policy))
    folder = tmp_path / "evals"
    logs = json.loads((folder / "LENSAUDIT_EVAL.json").read_text())
    summary = json.loads((folder / "LENSAUDIT_SUMMARY.json").read_text())
    assert summary == {name: one["agg_value"] for name, one in logs.items()}
    assert all({"agg_value", "values_by_index"} <= one.keys() for one in logs.values())
    ours = json.loads((folder / "lensaudit/patch/summary.json").read_text())
    rows = (folder / "lensaudit/patch/results.jsonl").read_text().splitlines()
    assert summary["uds"] == ours["uds"] is not None
    assert logs["uds"]["values_by_index"] == {
        str(row["idx"]): {"uds": row["uds"]} for row in map(json.loads, rows)
    }
    assert summary["verdict"] == ours["verdict"]["code"]
    assert summary["gate_passed"] == 0
    assert not list(folder.glob("lensaudit-*")), "the copy of the model is gone"
    # again: what is written is read; the interpreter, which is none, is not asked
    (folder / "LENSAUDIT_EVAL.json").write_text(
        json.dumps(logs | {"gate_passed": {"agg_value": 1}})
    )
    found = called(*npo, python="/nowhere")
    assert found == {name: summary[name] for name in ("uds", "assignment_p", "bits")} | {
        "gate_passed": 1
    }


def test_what_could_not_be_scored_is_null_with_its_reason(checkout, tmp_path, monkeypatch):
    assert connect(checkout) == 0
    monkeypatch.syspath_prepend(checkout / "src")
    for name in [name for name in sys.modules if name.partition(".")[0] == "evals"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "patch").mkdir()
    (tmp_path / "patch/summary.json").write_text('{"unscored": {"8": "longer than the context"}}')
    (tmp_path / "patch/results.jsonl").write_text('{"idx": 0, "uds": 0.5}\n{"idx": 8}\n')
    source = {"uds": 0.5, "association": None, "verdict": {"code": "hidden", "sentence": "…"}}
    logs = importlib.import_module("evals.lensaudit")._metrics(source, tmp_path)
    lost = {"uds": None, "reason": "longer than the context"}
    assert logs["uds"] == {"agg_value": 0.5, "values_by_index": {"0": {"uds": 0.5}, "8": lost}}
    for name in ("assignment_p", "bits"):
        assert logs[name]["agg_value"] is None
        assert logs[name]["reason"] == "who has what was not asked of these rows"


OTHER = """#!/bin/sh
echo "begun" >&2
echo "lensaudit: $1 $2 $3 ${PYTHONPATH:-in a room of its own}" >&2
exit 2
"""


@pytest.mark.parametrize(
    ("python", "told"),
    [
        ("/nowhere/python", "eval.lensaudit.python: /nowhere/python: No such file"),
        ("./other", "lensaudit audit ended with code 2: lensaudit: -m lensaudit audit in a"),
    ],
)
def test_our_error_is_theirs_with_our_one_line(called, npo, tmp_path, python, told):
    (tmp_path / "other").write_text(OTHER)
    (tmp_path / "other").chmod(0o755)
    with pytest.raises(RuntimeError, match=re.escape(told)):
        called(*npo, python=python)
    assert not (tmp_path / "evals/LENSAUDIT_EVAL.json").exists()
