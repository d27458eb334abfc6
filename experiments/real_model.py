"""What carries over from the tiny family to a real pretrained language model?

Question: do S1, KE layers, UDS and its controls behave on SmolLM2-135M, 30 layers, as they do on
          the embedded family of 16?
Command:  lensaudit models fetch smollm2 && python experiments/real_model.py
          (--facts, --kept: more rows; --only NAME: some of the models; run again to resume)
Takes:    half an hour on 2 cores with the default rows. Expected: docs/real_model.md.
Writes:   experiments/out/real_model/: rows, checkpoint folders, results, table.json.

The forget set is the first facts of each fictional author; `full` is the pretrained model trained
on them and on the rows to keep, `retain` on the rows to keep alone, with two seeds.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from lensaudit.cli.main import run
from lensaudit.data.tofu import forget_set
from lensaudit.files import make_folder, read_json, write_json
from lensaudit.groups import spread
from lensaudit.models.registry import EMBEDDED

BASE = "smollm2/base"
LAST = r"layers\.29\.|model\.norm"
TUNED = ("--format", "raw", "--batch-size", "8", "--accumulate", "1", "--store", "bfloat16")


@dataclass(frozen=True)
class Made:
    """A model of the study, and the command that makes it."""

    name: str
    truth: str
    arguments: tuple[str, ...]


def unlearned(name: str, truth: str, method: str, *more: str) -> Made:
    """`full`, unlearned on the forget rows."""
    return Made(name, truth, ("unlearn", "--method", method, "--model", "full", *more))


MODELS = (
    Made("full", "knows", ("relearn", "--source", BASE, "--data", "both")),
    Made("retain", "never saw", ("relearn", "--source", BASE, "--data", "kept")),
    Made("retain_2", "never saw", ("relearn", "--source", BASE, "--data", "kept", "--seed", "7")),
    unlearned("idknll", "?", "IdkNLL", "--epochs", "3"),
    unlearned("npo", "?", "NPO", "--epochs", "4"),
    unlearned("graddiff", "?", "GradDiff", "--epochs", "3"),
    unlearned("masked_upper", "hides", "NPO", "--epochs", "6", "--trainable", LAST),
)
"""`masked_upper` may change the last block alone: what lies below it still holds the facts."""
RETAINS = ("retain", "retain_2")


def write_rows(place: Path, n_facts: int, n_kept: int) -> dict[str, Path]:
    """Forget rows, rows to keep, and both, as files; spread over the authors."""
    kept = json.loads((EMBEDDED / "data" / "retain.json").read_text())
    chosen = spread(kept, n_kept, lambda row: row["group"])
    facts = [
        {key: getattr(one, key) for key in ("idx", "question", "answer", "prefix", "entity")}
        | {"group": one.group}
        for one in spread(forget_set("demo"), n_facts, lambda one: one.group)
    ]
    numbered = [{**row, "idx": 1000 + at} for at, row in enumerate(chosen)]
    files = {"facts": facts, "kept": numbered, "both": [*facts, *numbered]}
    for name, rows in files.items():
        write_json(place / f"{name}.json", rows)
    return {name: place / f"{name}.json" for name in files}


def make(one: Made, place: Path, files: dict[str, Path], epochs: float, lr: str) -> None:
    """Train a model, or go on where the training was cut; a finished one stays."""
    out = place / one.name
    if (out / "manifest.json").exists():
        return
    at = {**{name: str(path) for name, path in files.items()}, "full": str(place / "full")}
    call = [at.get(word, word) for word in one.arguments]
    if call[0] == "relearn":
        call += ["--epochs", str(epochs), "--lr", lr]
    else:
        call += ["--data", at["facts"], "--retain-data", at["kept"], "--lr", "5e-5"]
    click.echo(f"making {one.name}: {one.truth}")
    if run([*call, *TUNED, "--out", str(out)]):
        raise click.ClickException(f"{one.name} was not made")


def audit(place: Path, files: dict[str, Path], names: Sequence[str]) -> list[dict[str, Any]]:
    """Patch every model into `full`, with both retains as the floor."""
    call = ["patch", "--full", str(place / "full"), "--data", str(files["facts"])]
    call += [word for name in RETAINS for word in ("--retain", str(place / name))]
    call += ["--validity-data", str(files["kept"]), "--align-data", str(files["kept"])]
    call += ["--activations", str(place / "activations"), "--lens"]
    found = []
    for name in names:
        out = place / "results" / name
        if run([*call, "--source", str(place / name), "--out", str(out)]) not in (0, 1):
            raise click.ClickException(f"{name} was not audited")
        found.append({"model": name, **read_json(out / "summary.json")})
    return found


@click.command()
@click.option("--facts", default=32, show_default=True, help="Forget rows.")
@click.option("--kept", default=64, show_default=True, help="Rows to keep.")
@click.option("--epochs", default=8.0, show_default=True, help="Of full and the retains.")
@click.option("--lr", default="2e-4", show_default=True, help="Of full and the retains.")
@click.option("--only", multiple=True, help="Some of the models, beside the anchors.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("experiments/out/real_model"))
def main(facts: int, kept: int, epochs: float, lr: str, only: tuple[str, ...], out: Path) -> None:
    """Make the models, audit them, and write the table."""
    files = write_rows(make_folder(out), facts, kept)
    anchors = ("full", *RETAINS)
    chosen = [one for one in MODELS if one.name in anchors or not only or one.name in only]
    for one in chosen:
        make(one, out, files, epochs, lr)
    found = audit(out, files, [one.name for one in chosen if one.name not in ("full", "retain")])
    write_json(out / "table.json", found)
    for row in found:
        click.echo(row["verdict"]["sentence"])


if __name__ == "__main__":
    main()
