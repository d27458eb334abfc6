"""What an option may be given, by its kind; and few calls that hold every pair of values."""

import functools
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import click

from lensaudit.cli.main import cli
from lensaudit.cli.options import RareOption

SHARED = {
    "quiet",
    "quieter",
    "help",
    "help_all",
    "project",
    "registry",
    "as_json",
    "dry_run",
    "version",
    None,
}
"""Parameters of every command, which other relations hold."""
ASKED = {
    "real",
    "address",
    "cluster",
    "slurm",
    "gpus",
    "per_gpu",
    "wheel",
    "yes",
    "watch",
    "max_hours",
    "every",
    "workers",
    "base_url",
    "key_env",
    "key_file",
    "run",
}
"""Parameters that reach for another machine, a person or hours."""
TEXTS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "layers": (("8", "8-9"), ("99", "x-y")),
    "component": (("attn", "head:1"), ("tail", "head:99")),
    "exclude": (("placeholder",), ("nothing",)),
    "data": (("demo", "rows.jsonl"), ("nothing.json",)),
    "also": (("retain", "kept.jsonl"), ("nothing.json",)),
    "metrics": (("extraction_strength",), ("nothing",)),
    "metric": (("extraction_strength",), ("nothing",)),
    "memory": (("200M", "1G"), ("much", "-1")),
    "device": (("cpu", "auto"), ("tpu", "cuda:99")),
    "forget_split": (("forget10",), ("forget99",)),
    "question_key": (("question",), ("frage",)),
    "answer_key": (("answer",), ("antwort",)),
    "group_key": (("group",), ("gruppe",)),
    "lora": (("4",), ("0", "x")),
    "by": (("words:idk",), ("words:nothing",)),
    "words": (("idk",), ("nothing",)),
    "context": (("forget",), ("nothing",)),
    "coefficients": (("0,1",), ("x",)),
    "strengths": (("1",), ("x", "-1")),
    "trait": (("demo_idk",), ("nothing",)),
    "judge": (("idk", "entity"), ("words:nothing",)),
    "coherence_judge": (("variety",), ("words:nothing",)),
    "filter_by": (("none", "idk"), ("nothing",)),
    "filter": (("none", "idk"), ("nothing",)),
    "method": (("GradAscent", "NPO"), ("Prayer",)),
    "classifier": ((), ("nothing",)),
    "trainable": ((r".*mlp.*",), ("(",)),
    "variants": (("base", "base,int8"), ("base,none",)),
    "retain_data": (("kept.jsonl", "demo"), ("nothing.json",)),
    "relearn_on": (("rows.jsonl",), ("nothing.json",)),
    "relearn_data": (("rows.jsonl",), ("nothing.json",)),
    "only": (("T1",), ("nothing",)),
    "hold_out": (("1",), ("99",)),
    "pool_knows": (("demo/full",), ("nobody",)),
    "pool_forgot": (("demo/retain",), ("nobody",)),
    "faithfulness": (("published",), ("nothing.csv",)),
    "mode": (("auto", "int100"), ("loud",)),
    "attacks": (("greedy", "few_shot"), ("prayer",)),
    "attack": (("greedy", "few_shot"), ("prayer",)),
    "title": (("Audit",), ()),
    "command": (("patch",), ("nothing",)),
    "model": (("demo/npo",), ("nobody",)),
    "full": (("demo/full",), ("nobody",)),
    "retain": (("demo/retain",), ("nobody",)),
    "dataset": (("lab/rows",), ("x/y/z",)),
    "organization": (("lab",), ()),
    "api_model": (("m",), ()),
    "mechanism": (("weights",), ("nothing",)),
    "auditors": (("uds",), ("nothing",)),
    "tasks": (("none",), ()),
    "keep": (("demo-full",), ("nothing",)),
    "score": (("uds",), ("nothing",)),
    "seal": ((), ("0",)),
}
"""Parameter -> texts that it takes, and texts that it does not."""
FILES: Mapping[str, str] = {
    "holdout": "holdout.jsonl",
    "retain_set": "kept.jsonl",
    "align_data": "ordinary.txt",
    "validity_data": "kept.jsonl",
    "neutral_data": "ordinary.txt",
    "forget": "rows.jsonl",
    "idk": "idk.txt",
    "retain_log": "eval-own/TOFU_EVAL.json",
    "tokenizer": "tokenizer",
    "template": "template.jinja",
    "labels": "labels.jsonl",
    "review": "review.json",
    "gate": "policy.toml",
    "calibration": "calibration.json",
    "vector": "steer-extract/vectors/mean_diff_layer8.safetensors",
    "vectors": "steer-extract/vectors",
    "results": "meta-faithfulness",
    "positive": "positive.jsonl",
    "negative": "negative.jsonl",
    "activations": "other-caches",
    "cache": "answers.sqlite",
    "judge_cache": "answers.sqlite",
    "figures": "figures",
    "picture": "picture.png",
    "write": "splits",
    "from_log": "eval/TOFU_EVAL.json",
    "data": "rows.jsonl",
    "out": "out",
}
"""Parameter -> a file or folder of the working folder that it can be given."""

MADE = {
    *("out", "activations", "cache", "judge_cache", "figures", "picture", "write", "gym"),
    *("calibration", "review"),
}
"""Files and folders that need not be there: they are written."""


@dataclass(frozen=True)
class Choice:
    """A parameter with a value, or left out."""

    flag: str
    value: str | None
    """None: left out; empty: a switch."""
    valid: bool = True

    def typed(self) -> list[str]:
        """As it is typed."""
        if self.value is None:
            return []
        shared, _, name = self.flag.partition(" ")
        if name:
            return [shared, f"{name}={self.value}"]
        return [self.flag] if self.value == "" else [self.flag, self.value]


@functools.cache
def commands() -> dict[str, click.Command]:
    """Every command by its words."""
    found = {}

    def walk(group: click.Command, path: tuple[str, ...]) -> None:
        if not isinstance(group, click.Group) or group.invoke_without_command:
            found[" ".join(path)] = group
        if isinstance(group, click.Group):
            context = click.Context(group)
            for name in group.list_commands(context):
                if (inner := group.get_command(context, name)) is not None:
                    walk(inner, (*path, name))

    walk(cli, ())
    return found


def values(one: click.Option) -> tuple[list[str], list[str]]:
    """Values that an option takes, and values that it does not."""
    name, kind = one.name or "", one.type.name
    if one.is_flag:
        return [""], []
    if isinstance(one.type, click.Choice):
        taken = [choice for choice in map(str, one.type.choices) if choice != str(one.default)]
        return taken[:3], ["nothing"]
    if kind in BY_KIND:
        return BY_KIND[kind](one)
    if kind in ("path", "file", "directory"):
        return ([FILES[name]] if name in FILES else []), ["no/such/file"] * (name not in MADE)
    taken, refused = TEXTS.get(name, ((), ()))
    return list(taken), list(refused)


def _whole(one: click.Option) -> tuple[list[str], list[str]]:
    low, most = getattr(one.type, "min", None), getattr(one.type, "max", None)
    least = low if low is not None else 1
    own = one.default if isinstance(one.default, int) else None
    tried = [
        str(n) for n in (least, least + 1, least + 2) if n != own and (most is None or n <= most)
    ]
    return tried[:2], ["1.5", "x", *([str(low - 1)] if low is not None else [])]


def _real(one: click.Option) -> tuple[list[str], list[str]]:
    low, most = getattr(one.type, "min", None), getattr(one.type, "max", None)
    tried = [
        n for n in (0.25, 0.75, 2.0) if (low is None or n > low) and (most is None or n <= most)
    ]
    return [str(n) for n in tried[:2]], ["nan", "x"]


BY_KIND: Mapping[str, Callable[[click.Option], tuple[list[str], list[str]]]] = {
    "integer": _whole,
    "integer range": _whole,
    "float": _real,
    "float range": _real,
    "auto|N": lambda _: (["1", "3"], ["0", "none"]),
    "SIZE": lambda _: (["1GB"], ["much"]),
    "name": lambda _: (["demo/npo", "demo/never"], ["nobody"]),
}
"""Kind of an option -> values that it takes, and values that it does not."""


def options(command: str) -> list[click.Option]:
    """Options of a command that its own relations ask about."""
    return [
        one
        for one in commands()[command].params
        if isinstance(one, click.Option)
        and one.name not in SHARED | ASKED
        and not (one.name or "").startswith(("price", "max_cost", "max_calls", "max_tokens_total"))
    ]


def flag(one: click.Option) -> str:
    """The long form; of an option that nobody turns `--set` and its name."""
    if isinstance(one, RareOption) and one.is_shared:
        return one.said_as
    return max(one.opts, key=len)


def choices(command: str, base: Sequence[str]) -> list[list[Choice]]:
    """For each option what it may be in a row: left out, and two or three values."""
    found = []
    for one in options(command):
        if any(opt in base for opt in one.opts) and one.name in (
            "out",
            "name",
            "names",
            "sources",
            "model",
            "source",
            "limit",
        ):
            continue
        taken, _ = values(one)
        if taken:
            left_out = Choice(flag(one), None)
            found.append([left_out, *(Choice(flag(one), value) for value in taken[:2])])
    return found


def covering(factors: Sequence[Sequence[Choice]], seed: int) -> Iterator[tuple[Choice, ...]]:
    """Rows that together hold every pair of values of every two factors; greedy.

    >>> letters = [[Choice(name, value) for value in "ab"] for name in "xyz"]
    >>> rows = list(covering(letters, 0))
    >>> len(rows) < 8, len({(r[0].value, r[1].value) for r in rows})
    (True, 4)
    """
    chance = random.Random(seed)
    open_pairs = {
        (i, a, j, b)
        for (i, one), (j, other) in itertools.combinations(enumerate(factors), 2)
        for a in range(len(one))
        for b in range(len(other))
    }
    n = len(factors)
    while open_pairs:
        row: dict[int, int] = {}
        i, a, j, b = chance.choice(sorted(open_pairs)) if chance.random() < 0.2 else min(open_pairs)
        row[i], row[j] = a, b
        places = [at for at in range(n) if at not in row]
        chance.shuffle(places)
        for at in places:
            row[at] = _best(at, row, factors[at], open_pairs, chance)
        pairs = {(i, row[i], j, row[j]) for i, j in itertools.combinations(range(n), 2)}
        open_pairs -= pairs
        yield tuple(factors[at][row[at]] for at in range(n))


def _best(
    at: int,
    row: Mapping[int, int],
    values_of: Sequence[Choice],
    open_pairs: set,
    chance: random.Random,
) -> int:
    def gain(value: int) -> tuple[int, float]:
        pairs = (
            (other, row[other], at, value) if other < at else (at, value, other, row[other])
            for other in row
        )
        return sum(pair in open_pairs for pair in pairs), chance.random()

    return max(range(len(values_of)), key=gain)
