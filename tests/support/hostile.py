"""Commands, and what somebody could hand them: every option with values that it cannot mean.

Cases follow from the commands themselves: a new option is covered from its first day.
"""

import hashlib
import json
import os
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from lensaudit.cli.main import cli

NOBODY = ("--base-url", "http://127.0.0.1:9/v1", "--set", "retries=0")
"""An address where no server is."""

BASES: dict[str, list[str]] = {
    "audit": ["--source", "demo/npo", "--limit", "1", "--dry-run"],
    "cache": ["--model", "demo/npo", "--limit", "1", "--dry-run"],
    "patch": ["--source", "demo/npo", "--limit", "1", "--dry-run"],
    "eval": ["--model", "demo/npo", "--limit", "1", "--dry-run"],
    "know": ["--source", "demo/npo", "--limit", "8", "--dry-run"],
    "canaries test": ["in/empty", "--canaries", "in/empty", "--seal", "0"],
    "activations export": ["none", "--output", "out.tar"],
    "activations gc": ["--dry-run"],
    "activations import": ["in/empty"],
    "activations info": ["none"],
    "activations ls": [],
    "activations repair": [],
    "activations verify": [],
    "models": [],
    "connect": ["open-unlearning", "in/empty", "--yes"],
    "models fetch": ["none"],
    "init": ["in", "--dry-run"],
    "runs ls": ["results"],
    "runs show": ["results/patch"],
    "runs diff": ["results/patch", "results/eval"],
    "runs rm": ["results/patch", "--dry-run"],
    "verify": ["results"],
    "verdict": ["results/patch"],
    "export": ["results/patch", "--to", "eee", "--out", "out"],
    "effort": ["--source", "demo/npo", "--dry-run"],
    "unlearn": ["--model", "demo/full", "--method", "GradDiff", "--out", "out", "--dry-run"],
    "rtt run": ["--source", "demo/npo", "--dry-run"],
    "rtt summarize": ["in/rows.jsonl"],
    "rtt validate": ["demo"],
    "relearn": ["--source", "demo/npo", "--out", "out", "--dry-run"],
    "quantize": ["--source", "demo/npo", "--out", "out", "--dry-run"],
    "annotate": ["in/pairs.json", "--out", "forget.json"],
    "data convert": ["tofu", "in/pairs.json", "--out", "rows.jsonl"],
    "report": ["results", "--out", "page.html"],
    "meta aggregate": ["results", "--out", "out"],
    "meta faithfulness": ["--pool-knows", "demo/full", "--pool-forgot", "demo/retain", "--dry-run"],
    "meta robustness": ["--source", "demo/npo", "--attack", "quantize", "--dry-run"],
    "explain": ["results/patch", "--fact", "0"],
    "meta check": ["results"],
    "meta methods": ["results"],
    "meta table": ["results", "--out", "out"],
    "steer audit": ["--source", "demo/npo", "--limit", "2", "--dry-run"],
    "steer cross": ["--model", "demo/npo", "--trait", "refusal,formality", "--judge", "idk"],
    "steer eval": [
        *("--model", "demo/npo", "--trait", "refusal", "--judge", "words:refusal"),
        *("--vector", "in/empty", "--dry-run"),
    ],
    "steer extract": ["--model", "demo/npo", "--trait", "refusal", "--dry-run"],
    "steer sweep": [
        *("--model", "demo/npo", "--trait", "refusal", "--judge", "words:refusal", "--dry-run"),
    ],
    "judge run": ["in/said.jsonl", "--by", "words:idk", "--out", "out"],
    "sweep collect": ["sweep"],
    "sweep gc": ["sweep", "--dry-run"],
    "sweep plan": ["demo/npo", "--out", "out", "--dry-run"],
    "sweep retry": ["sweep"],
    "sweep run": ["sweep", "--dry-run"],
    "sweep status": ["sweep"],
    "sweep fetch": ["sweep"],
    "sweep verify": ["sweep"],
    "worst": ["--source", "demo/npo", "--limit", "1", "--dry-run"],
    "sample": ["--source", "demo/npo", "--limit", "1", "--dry-run"],
    "watch": ["in/model", "--once", "--out", "out"],
    "doctor": [],
    "lm-eval": ["--model", "in/model", "--tasks", "none"],
    "judge probe": ["--judge", "m", *NOBODY],
    "judge calibrate": ["--words", "idk"],
    "judge batch run": ["in/said.jsonl", "--judge", "m", *NOBODY, "--out", "out"],
    "judge batch cancel": ["in", "--judge", "m", *NOBODY],
}
"""A call of each command that does no work that takes more than a second."""

NUMBERS = ("nan", "inf", "-inf", "1e400", "-1", "0", "9" * 30, "-" + "9" * 30, "٣", "0x10", "", "x")
SIZES = ("1e400G", "nanG", "-1G", "G", "", "1e-400G", "9" * 400, "infM", "\x1b[31m1G")
TEXTS = ("", "\x1b]0;owned\x07x", "../../victim", "a" * 5000, "\udcff", "{}", "0-99999999999", "(")
CHOICES = ("", "x", "\x1b[31m", "a" * 5000)
DEVICES = ("mps", "cuda:99", "cuda:-1", "meta", "", "cpu:x", "privateuseone", "cuda:" + "9" * 30)
NAMES = (*TEXTS, "demo/none", "demo/npo+demo/npo", "org/model@", "in/model", "in/deep_model", "in")
PLACES = (
    *("in/pipe", "in/device", "in/socket", "in/loop", "in/missing", "in", "in/empty", "in/binary"),
    *("in/nan.json", "in/deep.json", "in/surrogate.json", "in/list.json", "in/number.json"),
    *("in/rows.jsonl", "in/deep.jsonl", "in/latin.json", "a" * 5000, "\udcff", "in/deep.toml"),
)
OUTPUTS = ("in/pipe", "in/device", "in/socket", "in/loop", "victim/thesis.json", "a" * 5000, "")
OUTS = (
    *("out", "figures", "output", "write", "review", "target", "judge_cache", "cache"),
    "activations",
)
"""Parameters that are written to."""


@dataclass(frozen=True)
class Case:
    """One call."""

    command: str
    parameter: str
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """For the list of tests."""
        return f"{self.command} {self.parameter} {self.arguments[-1][:30]!r}"


def commands(
    group: click.Command = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    """Every command, with its name."""
    if not isinstance(group, click.Group) or group.invoke_without_command:
        yield " ".join(path), group
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            inner = group.get_command(context, name)
            assert inner is not None
            yield from commands(inner, (*path, name))


def values(one: click.Parameter) -> tuple[str, ...]:
    """What cannot be meant by a parameter."""
    kind, name = one.type.name, one.name or ""
    if name in ("device", "memory"):
        return DEVICES if name == "device" else SIZES
    if kind in ("integer", "integer range", "float", "float range", "auto|N"):
        return NUMBERS
    if kind == "SIZE":
        return SIZES
    if kind == "choice":
        return CHOICES
    if kind == "name":
        return NAMES
    if kind in ("file", "path", "directory"):
        return OUTPUTS if name in OUTS else PLACES
    return (*TEXTS, *PLACES) if kind == "text" else ()


def cases() -> list[Case]:
    """Every option of every command with each of its values."""
    return [
        Case(name, one.name or "", tuple(_call(name, one, value, BASES[name])))
        for name, command in commands()
        if name in BASES
        for one in command.params
        for value in values(one)
    ]


def _call(name: str, one: click.Parameter, value: str, base: list[str]) -> list[str]:
    """The call with this value; an argument takes the place of the base's own."""
    if isinstance(one, click.Option):
        return [*name.split(), *base, one.opts[-1], value]
    kept = [part for at, part in enumerate(base) if at > 0 or part.startswith("-")]
    return [*name.split(), *kept, "--", value]


def sample(every: list[Case], n: int, seed: int) -> list[Case]:
    """Some cases, of each command about as many."""
    chosen = list(every)
    random.Random(seed).shuffle(chosen)
    counts: dict[str, int] = {}
    ranked = []
    for one in chosen:
        counts[one.command] = counts.get(one.command, 0) + 1
        ranked.append((counts[one.command], one))
    return [one for _, one in sorted(ranked, key=lambda pair: pair[0])[:n]]


def build(root: Path) -> None:
    """The folder in which cases run: inputs, results, a sweep, and a witness."""
    from support.report_cases import eval_run, patch_run
    from support.sweep_helpers import toy_sweep

    (root / "in").mkdir()
    files = {
        "empty": b"",
        "binary": bytes(range(256)),
        "nan.json": b'{"a": NaN, "b": [Infinity, -Infinity]}',
        "deep.json": b"[" * 100_000 + b"]" * 100_000,
        "deep.jsonl": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        "deep.toml": b"a = " + b"[" * 100_000 + b"]" * 100_000,
        "surrogate.json": b'[{"question": "\\ud800", "answer": "\\ud800 x", "entity": "x"}]',
        "list.json": b"[1, null, [], {}]",
        "number.json": b"1" + b"0" * 5000,
        "rows.jsonl": b'{"a": 1}\n{"a": \n[]\n5\n',
        "latin.json": '{"a": "é"}'.encode("latin-1"),
        "said.jsonl": b'{"idx": 0, "question": "Who?", "answer": "Ada.", "generation": "Bo."}\n',
        "pairs.json": b'[{"question": "Who is Ada?", "answer": "Ada is a civil engineer."}]',
    }
    for name, content in files.items():
        (root / "in" / name).write_bytes(content)
    os.mkfifo(root / "in" / "pipe")
    socket.socket(socket.AF_UNIX).bind(os.path.relpath(root / "in" / "socket"))
    (root / "in" / "device").symlink_to("/dev/null")
    (root / "in" / "loop").symlink_to("loop")
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 10}
    for name, layers in (("model", 10_000), ("deep_model", None)):
        (root / "in" / name).mkdir()
        content = json.dumps({**config, "num_hidden_layers": layers, "hidden_size": -1})
        text = content if layers else "[" * 100_000 + "]" * 100_000
        (root / "in" / name / "config.json").write_text(text)
        (root / "in" / name / "model.safetensors").write_bytes(b"\xff" * 100)
    patch_run(root / "results" / "patch", "npo")
    eval_run(root / "results" / "eval", "npo", forget_Q_A_ROUGE=0.5, model_utility=0.5)
    toy_sweep(root / "sweep", n=1)
    (root / "victim").mkdir()
    (root / "victim" / "thesis.json").write_text('{"years": 5}')


def witness(root: Path) -> str:
    """Of what no case may change: hashes, kinds, times."""
    found = []
    for top in ("victim", "in", "results"):
        for path in sorted((root / top).rglob("*")):
            state = os.lstat(path)
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found.append((str(path), state.st_mode, hashlib.sha256(content).hexdigest()))
    device = os.lstat("/dev/null")
    return repr((found, device.st_mode, device.st_rdev))
