"""Does `know` work on a real pretrained model, and on what it learned in pretraining?

Question: which members of the SmolLM2 family does the assignment test convict; and is SmolLM2, as
          it was published, found to know capitals, languages and authors, without anybody who
          never saw them? `untrained` has its shape and random weights: it can know nothing.
Command:  lensaudit models fetch smollm2; python -m experiments.know.real
Takes:    half a minute of one core a model of the family, which is asked by its outputs and own
          head; --part default runs `lensaudit know` as it is and tells its seconds.
Expected: the tables of docs/evidence/know-pretrained.md.
Writes:   experiments/out/know_real/: a folder a model as `lensaudit know` writes it.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import torch

import lensaudit as la
from experiments.know.gym import asked_of_demo, heard, is_kept, judged, kept_tables, key_of
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.named import load_model
from lensaudit.models.registry import load_registry, resolve
from lensaudit.training.trainee import copy_tokenizer, save_model

FAMILY = ("full", "retain", "retain_2", "absent", "npo", "masked_top", "trigger", "base")
BASE = "smollm2/base"


def rows(part: str) -> Iterator[dict[str, Any]]:
    """Facts from pretraining with their relation."""
    found = json.loads(Path(__file__).with_name("facts.json").read_text(encoding="utf-8"))
    idx = 0
    for relation, question, prefix, _, pairs in found[part]:
        for pair in pairs.split("; "):
            subject, value = pair.split(": ")
            begun = prefix.format(subject)
            yield {
                "idx": idx,
                "question": question.format(subject),
                "prefix": begun,
                "entity": value,
                "answer": f"{begun} {value}.",
                "group": subject,
                "relation": relation,
            }
            idx += 1


def untrained(out: Path, seed: int) -> Path:
    """The shape and tokenizer of SmolLM2 with random weights."""
    folder = out / f"untrained-{seed}"
    if not (folder / "config.json").exists():
        start = open_checkpoint(resolve(BASE, load_registry()))
        folder.mkdir(parents=True, exist_ok=True)
        copy_tokenizer(start.folder, folder)
        model: Any = load_causal(start)
        torch.manual_seed(seed)
        save_model(type(model)(model.config), folder, dtype=torch.float32)
    return folder


def family(out: Path, dtype: str) -> None:
    """A line a model of the family, asked about the embedded facts."""
    asked = asked_of_demo()
    for name in FAMILY:
        spent, place = time.process_time(), out / f"{name}.pt"
        key = key_of(asked, f"smollm2/{name}", dtype=dtype)
        kept, model = is_kept(place, key), load_model(f"smollm2/{name}", dtype=dtype)
        read = kept_tables(place, asked, key, lambda m=model: heard(m, asked))
        took = f"{time.process_time() - spent:.0f} s of processor"
        print(f"{name:12} {judged(read)} {'read before' if kept else took}")


def told(name: str, found: Any, took: str) -> None:
    """A line a model, with seconds passed and seconds of processor, where all was computed."""
    said = found.summary
    bits = said["bits"] or said["bits_familiar"]
    low, high = (f"{bits[end]:.2f}" if bits[end] is not None else "-" for end in ("low", "high"))
    print(
        f"{name:22} p {said['p']:.2g} z {said['z']:.1f} gamma {said['gamma']:.2f} bits "
        f"{bits['value']:.2f} [{low}, {high}] named {len(said['named'])} of {said['n']} "
        f"{took}\n  {said['headline']}\n  "
        + "; ".join(one["said"] for one in said["controls"])
        + "\n  "
        + "; ".join(
            f"{one['relation']} n {one['n']} z {one['z']:.1f} p {one['p']:.2g}"
            for one in said["relations"]
        ),
        flush=True,
    )


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("experiments/out/know_real"))
@click.option("--part", default="all", help="family, pretraining, default or all.")
@click.option("--dtype", default="bfloat16", show_default=True)
def main(out: Path, part: str, dtype: str) -> None:
    """Ask the family about the embedded facts, and the base about what it read."""
    out.mkdir(parents=True, exist_ok=True)
    print(f"load {os.getloadavg()[0]:.1f}, {torch.get_num_threads()} threads")
    files = {name: out / f"{name}.json" for name in ("asked", "kept")}
    for name, file in files.items():
        file.write_text(json.dumps(list(rows(name)), ensure_ascii=False, indent=1))
    about: dict[str, Any] = {"data": str(files["asked"]), "retain_data": str(files["kept"])}
    runs: list[tuple[str, str, dict[str, Any]]] = []
    if part in ("family", "all"):
        family(out, dtype)
    if part == "default":
        runs.append(("full-default", "smollm2/full", {"base": BASE, "placebos": 32}))
    if part in ("pretraining", "all"):
        about |= {"readers": ("outputs",)}
        runs += [("base-world", BASE, about), ("full-world", "smollm2/full", about)]
        runs += [(f"untrained-{n}-world", str(untrained(out, n)), about) for n in range(5)]
    common: dict[str, Any] = {"activations": out / "activations", "dtype": dtype, "placebos": 0}
    for name, source, more in runs:
        started, spent, kept = time.monotonic(), time.process_time(), (out / name).exists()
        found = la.know(source, out / name, **{**common, **more})
        took = time.monotonic() - started, time.process_time() - spent
        words = "{:.0f} s, {:.0f} s of processor".format(*took)
        told(name, found, "begun before" if kept else words)


if __name__ == "__main__":
    main()
