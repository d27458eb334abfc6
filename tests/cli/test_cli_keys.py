"""A number that was kept is never given for another question.

Each option of each command that keeps numbers is changed once. In a folder that earlier runs have
filled, the changed command says what it says in an empty one: it computes again, or it finds what
does not depend on the option.
"""

import csv
import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import support

from lensaudit.cli.main import run
from lensaudit.cli.measure import cache_command, evaluate_command, patch_command
from lensaudit.data.tofu import filters
from lensaudit.evaluation import passes
from lensaudit.evaluation import passes as opening
from lensaudit.models.registry import EMBEDDED

FILTER = "v2_full_wrong"
EVERYWHERE = {
    "--out": "where results go: every run here has its own",
    "--activations": "what is kept goes there: the empty folder is another one",
    "--dry-run": "computes nothing",
    "--project": "names what other options name",
    "--from": "brings metrics and suites that others name; its hash is held by test_outside",
    "--benchmark": "a suite of those; held by test_outside",
    "--quiet": "says less",
    "--help-all": "shows options",
    "--set": "says what other options say",
}
"""Options that say nothing about numbers."""


@dataclass(frozen=True)
class Change:
    """One option, changed."""

    to: str
    """Words of the command line, added to the base's; the last of two wins."""
    computes: bool
    """Something is run, because of the change alone."""
    differs: bool
    """The base has other numbers."""
    after: str = ""
    """Another change that was run before."""


def kept(to: str, *, after: str = "") -> Change:
    return Change(to, computes=False, differs=False, after=after)


def another(to: str, *, after: str = "") -> Change:
    return Change(to, computes=True, differs=True, after=after)


def same(to: str, *, after: str = "") -> Change:
    """Another key and, for all that can be told here, the same number."""
    return Change(to, computes=True, differs=False, after=after)


PATCH = {
    "--source": another("--source fourth"),
    "--full": another("--full fourth"),
    # a further one is for the floor, and is asked; the anchor is the first
    "--retain": (same("--retain fifth"), another("--registry other_retain.json")),
    "--ask": kept("--ask none"),
    "--align": kept("--align none"),
    "--align-tokens": kept("--align-tokens 7"),
    # rows of the forget set's own authors are left out: nothing is measured on them
    "--align-data": kept("--align-data other_entities.json"),
    "--validity-data": kept("--validity-data kept.json"),
    "--also": same("--also kept.json"),
    "--base": same("--also kept.json --base fourth"),
    # a name stands for other weights: trained again, in the same place; those of the source were
    # patched in before, under retain's name, and are asked in the other types of numbers
    "--registry": (
        another("--registry other_source.json"),
        another("--registry other_full.json"),
    ),
    "--layers": kept("--layers 1"),
    "--tau": kept("--tau 0.01"),
    "--profile": kept("--profile ke"),
    "--last-layer": another("--last-layer reference"),
    # rows whose tokens are the same in both ways
    "--seam": kept("--seam reference"),
    "--scope": (another("--scope prefix"), another("--scope boundary")),
    "--component": (
        another("--component mlp"),
        another("--component head:1", after="--component head:0"),
    ),
    "--engine": same("--engine oracle"),
    "--data": another("--data other_entities.json"),
    "--exclude": kept(f"--exclude {FILTER}"),
    "--limit": kept("--limit 2"),
    "--dtype": another("--dtype float16", after="--dtype bfloat16"),
    "--device": kept("--device cpu"),
    # in half precision, in which the source is asked too, the size of a batch counts
    "--batch-size": (same("--batch-size 1"), another("--dtype bfloat16 --batch-size 1")),
    "--memory": kept("--memory 1G"),
    "--score": another("--score lens"),
    "--lens": kept("--lens"),  # the depth just read
    "--json": kept("--json"),
    "--fresh": same("--fresh"),
}

EM = {
    "--score": kept("--score em"),
    "--registry": (another("--registry other_source.json"), another("--registry other_full.json")),
    "--em-form": another("--em-form teacher"),
    "--em-threshold": kept("--em-threshold 1.0"),
    "--max-new-tokens": another("--max-new-tokens 2"),
    "--last-layer": another("--last-layer reference"),
    "--dtype": another("--dtype float16", after="--dtype bfloat16"),
}
"""Exact match keeps texts; what patching alone knows is in PATCH."""

CACHE = {
    "--model": another("--model fourth"),
    "--registry": another("--registry other_source.json"),
    "--component": another("--component attn", after="--component mlp"),
    "--positions": another("--positions all"),
    "--data": another("--data other_entities.json"),
    "--exclude": another(f"--exclude {FILTER}"),
    "--limit": another("--limit 1"),
    "--dtype": another("--dtype float16 --batch-size 1", after="--dtype bfloat16 --batch-size 1"),
    "--device": kept("--device cpu"),
    "--batch-size": (
        kept("--batch-size 1"),
        another("--dtype float16 --batch-size 2", after="--dtype float16 --batch-size 1"),
    ),
    "--memory": kept("--memory 1G"),
    "--json": kept("--json"),
}

PADDED = "--tokenizer padded_with_end_of_text"
BARE = "--template bare.json"
LOSS = "--metric s_mia_loss"
EVAL = {
    "--model": another("--model demo/simnpo"),
    "--metric": same("--metric forget_Q_A_PARA_Prob"),
    "--data": (
        another("--data rows"),
        # the same words, of which one less is scored
        another(f"{BARE} --data one_less", after=f"{BARE} --data one_more"),
    ),
    "--question-key": another("--question-key paraphrased_question"),
    "--template": another("--template short.json"),
    "--memory": kept("--memory 1G"),
    "--tokenizer": kept(PADDED),
    "--mask": another(f"{PADDED} --mask upstream"),
    "--cleanup": kept("--cleanup none"),
    "--empty": kept("--empty upstream"),
    "--batch-size": kept("--batch-size 1"),
    "--max-new-tokens": another("--max-new-tokens 5"),
    "--dtype": another("--dtype float16", after="--dtype bfloat16"),
    "--device": kept("--device cpu"),
    "--attn": same("--attn sdpa"),
    "--limit": same("--limit 2"),
    "--registry": another("--registry other_npo.json"),
    "--ref-value": kept(f"{LOSS} --ref-value 0.5", after=LOSS),
    "--reference": same(
        "--metric mia_reference --reference demo/retain",
        after="--metric mia_reference --reference demo/full",
    ),
    "--json": kept("--json"),
    "--fresh": same("--fresh"),
}
EVAL_OTHERWISE = {
    "--suite": "asks other questions, of files that --data tells apart",
    "--forget-split": "as --data: other rows",
    "--forget": "as --data: other rows",
    "--holdout": "as --data: other rows",
    "--kept": "as --data: other rows",
    "--retain-log": "read anew every time",
    "--retain": "another model's passes: as --model",
    "--full": "patched into: as in PATCH",
    "--exclude": "of what is patched: as in PATCH",
    "--align": "of what is patched: as in PATCH",
    "--align-data": "of what is patched: as in PATCH",
    "--align-tokens": "of what is patched: as in PATCH",
    "--validity-data": "of what is patched: as in PATCH",
    "--think": "another prompt: as --template; refused where a template has no thought",
    "--classifier": "rates kept texts anew every time",
    "--from-log": "computes at once",
}


Number = Mapping[Any, Any]
"""What a run says, by what it is said of."""


def of_layers(out: Path, said: str) -> Number:
    """S1 and S2 by example and layer, where they were computed."""
    with (out / "layers.csv").open() as file:
        return {
            (row["idx"], row["layer"], name): float(row[name])
            for row in csv.DictReader(file)
            for name in ("s1", "s2")
            if row[name]
        }


def of_texts(out: Path, said: str) -> Number:
    """What was said, by example and layer, and how much of it matched."""
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    names = ("texts", "s1_em", "s2_em", "s1_texts", "s2_texts")
    return {(row["idx"], name): row[name] for row in rows for name in names if name in row}


def of_key(out: Path, said: str) -> Number:
    """The key of a cache, in the name of its folder."""
    lines = said.splitlines()
    folder = json.loads(said)["folder"] if said.startswith("{") else lines[-1]
    return {"key": folder.rpartition("--")[2]}


def of_rows(out: Path, said: str) -> Number:
    """Scores and generations by row."""
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    scores = {
        (row["split"], row["idx"], name): score
        for row in rows
        for name, score in row["scores"].items()
    }
    return scores | {(row["split"], row["idx"]): row.get("generation") for row in rows}


@dataclass(frozen=True)
class Kept:
    """A command that keeps numbers."""

    command: click.Command
    base: str
    table: Mapping[str, Change | tuple[Change, ...]]
    number: Callable[[Path, str], Number]


TINY = "--registry names.json --data forget.json"
COMMANDS = {
    "patch": Kept(
        patch_command,
        f"patch {TINY} --tau 0 --full tiny-full --retain tiny-retain",
        PATCH,
        of_layers,
    ),
    "patch --score em": Kept(
        patch_command,
        f"patch {TINY} --full tiny-full --retain tiny-retain --score em --max-new-tokens 3",
        EM,
        of_texts,
    ),
    "cache": Kept(cache_command, f"cache {TINY} --model tiny-third", CACHE, of_key),
    "eval": Kept(
        evaluate_command,
        "eval --model demo/npo --limit 1 --max-new-tokens 4 "
        "--metric forget_Q_A_Prob --metric forget_Q_A_ROUGE",
        EVAL,
        of_rows,
    ),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory, tiny_tokenizer):
    """Tiny models by name, names that stand for other weights, and entities one word further."""
    folder = tmp_path_factory.mktemp("world")
    for seed, name in enumerate(("full", "retain", "third", "fourth", "fifth", "sixth")):
        model = support.tiny_model(20 + seed, num_hidden_layers=2)
        model.generation_config.eos_token_id = [2, *range(10, 20)]  # what is said is short
        model.save_pretrained(folder / name)
        tiny_tokenizer.save_pretrained(folder / name)
    names = {f"tiny-{name}": name for name in ("full", "retain", "third")}
    registries = {
        "names": names,
        "other_source": names | {"tiny-third": "sixth"},
        "other_full": names | {"tiny-full": "sixth"},
        "other_retain": names | {"tiny-retain": "sixth"},
        "other_npo": {"demo/npo": str(EMBEDDED / "graddiff")},
    }
    for name, content in registries.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    save_questions(folder, "forget.json", further=0)
    save_questions(folder, "other_entities.json", further=1)
    save_questions(folder, "kept.json", further=2)
    save_asked(folder)
    return folder


def save_questions(folder: Path, name: str, *, further: int) -> None:
    """Three rows in the tiny tokenizer's words; `further` moves the entities, and nothing else."""
    rows = []
    for at, idx in enumerate((0, 1, min(filters()[FILTER]))):
        words = [f"w{5 + (7 * at + 3 * k) % 50}" for k in range(7)]
        low = 1 + at + further
        entity = " ".join(words[low : low + 1 + at])
        prefix = " ".join(words[: 1 + at])
        question = " ".join(f"w{9 + at + k}" for k in range(3 + at))
        row = {"idx": idx, "question": question, "answer": " ".join(words)}
        rows.append(row | {"prefix": prefix, "entity": entity})
    (folder / name).write_text(json.dumps(rows))


def save_asked(folder: Path) -> None:
    """For the evaluation: other rows, another template, and a tokenizer as many pad it."""
    from transformers import AutoTokenizer

    (folder / "rows").mkdir()
    name = "forget10_perturbed.jsonl"
    rows = (EMBEDDED / "data" / name).read_text().splitlines(keepends=True)
    (folder / "rows" / name).write_text("".join(rows[3:6]))
    for place, question, answer in (
        ("one_more", "Born where? She was", " born in Oslo."),
        ("one_less", "Born where? She was born", " in Oslo."),
    ):
        (folder / place).mkdir()
        row = json.dumps({"question": question, "answer": answer})
        (folder / place / name).write_text(row + "\n")
    tags = ("user_start_tag", "user_end_tag", "asst_start_tag", "asst_end_tag")
    bare = {"apply_chat_template": False, "system_prompt": None} | dict.fromkeys(tags, "")
    (folder / "bare.json").write_text(json.dumps(bare))
    short = {"apply_chat_template": False, "user_start_tag": "Q: ", "asst_start_tag": "A: "}
    (folder / "short.json").write_text(json.dumps(short))
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED / "npo")
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(folder / "padded_with_end_of_text")


GPUS = {"cuda:0": "cuda:0", "cuda:1": "cuda:1", "auto": "cpu"}


def test_a_pass_of_a_gpu_is_not_one_of_the_processor_but_of_any_gpu(
    world, tmp_path, monkeypatch, capsys
):
    """Two devices that this machine need not have: what they are given runs where it can."""
    monkeypatch.chdir(world)
    monkeypatch.setattr(opening, "resolve_device", GPUS.get)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    load = opening.load_causal
    monkeypatch.setattr(opening, "load_causal", lambda c, **o: load(c, **(o | {"device": "cpu"})))

    def computed(words):
        words += " --dtype float32"
        return answer(COMMANDS["eval"], words, tmp_path, capsys)[1]

    assert [computed(f"--device {name}") for name in GPUS] == [True, False, True]


def test_a_jailbreak_is_asked_in_the_published_words(tmp_path, monkeypatch, capsys):
    asked = []
    generate = passes.generations

    def listens(model, how, prompts, **options):
        asked.append([how.tokenizer.decode(prompt) for prompt in prompts])
        return generate(model, how, prompts, **options)

    monkeypatch.setattr(passes, "generations", listens)
    words = f"{COMMANDS['eval'].base} --metric forget_Q_A_jailbreak_ROUGE --out {tmp_path}"
    assert run(words.split()) == 0
    (plain,), (forced,) = asked
    assert forced == f"{plain}Sure, here is the answer:"


def options_of(command: click.Command) -> set[str]:
    shown = (getattr(one, "shown", one.opts) for one in command.params)
    return {name for names in shown for name in names if name.startswith("--")}


@pytest.mark.parametrize(
    ("command", "tried"),
    [
        (patch_command, PATCH | EM),
        (cache_command, CACHE),
        (evaluate_command, EVAL | EVAL_OTHERWISE),
    ],
    ids=["patch", "cache", "eval"],
)
def test_every_option_of_a_command_is_tried(command, tried):
    assert options_of(command) - set(EVERYWHERE) == set(tried)


def files(folder: Path) -> dict[Path, int]:
    """What is kept; a seal is touched when its cache is read, and it is said what was asked."""
    said = ("SEAL.json", "asked.json")
    kept = (path for path in folder.rglob("*") if path.is_file() and path.name not in said)
    return {path: path.stat().st_mtime_ns for path in kept}


def agree(a: Number, b: Number) -> bool:
    """Both say the same of what both speak of."""
    both = a.keys() & b.keys()
    return bool(both) and all(a[key] == pytest.approx(b[key], abs=1e-5) for key in both)


def answer(one: Kept, words: str, place: Path, capsys) -> tuple[Number, bool]:
    """What the base with these words says in a folder, and whether it computed anything."""
    # a folder holds results of one kind
    out = place / ("lens" if "--score lens" in words else "out")
    activations = place / "activations"
    before = files(activations) | files(out / "passes")
    base = one.base
    for flag in {"--model", "--full"} & {*words.split()}:  # one model is wanted
        base = re.sub(rf"{flag} \S+", "", base)
    words = f"{base} {words}"
    if one.command is patch_command and "--source" not in words:
        words += " --source tiny-third"
    places = ["--activations", str(activations)]
    places += [] if one.command is cache_command else ["--out", str(out)]
    off = "--last-layer reference" in words and "--score em" not in words
    # what the reference patches at the last layer puts the scale of tiny models off: no verdict
    assert run([*words.split(), *places]) == (4 if off else 0), words
    computed = files(activations) | files(out / "passes") != before
    return one.number(out, capsys.readouterr().out), computed


@pytest.mark.parametrize("name", COMMANDS)
def test_a_kept_number_is_not_given_for_another_question(
    name, world, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(world)
    support.taken_for_tofu(monkeypatch)
    one, used = COMMANDS[name], tmp_path / "used"
    base, _ = answer(one, "", used, capsys)
    assert answer(one, "", used, capsys) == (base, False)
    given = (change if isinstance(change, tuple) else (change,) for change in one.table.values())
    for at, change in enumerate(itertools.chain.from_iterable(given)):
        if change.after:
            answer(one, change.after, used, capsys)
        number, computed = answer(one, change.to, used, capsys)
        assert computed == change.computes, change.to
        assert agree(number, base) != change.differs, change.to
        if computed:
            alone, _ = answer(one, change.to, tmp_path / f"empty-{at}", capsys)
            assert number.keys() == alone.keys(), change.to
            assert agree(number, alone), change.to
