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

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

import lensaudit as la
from lensaudit.attacks import relearn
from lensaudit.attacks.settings import RelearnSettings
from lensaudit.data.tofu import forget_set
from lensaudit.files import make_folder, write_json
from lensaudit.groups import spread
from lensaudit.models.registry import EMBEDDED
from lensaudit.unlearn import job
from lensaudit.unlearn.prepare import prepare
from lensaudit.unlearn.settings import UnlearnSettings
from lensaudit.unlearn.train import Progress

BASE = "smollm2/base"
LAST = r"layers\.29\.|model\.norm"
TUNED: Mapping[str, Any] = {
    "formats": "raw",
    "batch_size": 8,
    "accumulate": 1,
    "store": "bfloat16",
    "device": "cpu",
}
LR = 5e-5
"""Of unlearning."""


@dataclass(frozen=True)
class Made:
    """A model of the study, and how it is made."""

    name: str
    truth: str
    rows: Literal["both", "kept", "facts"]
    """Trained on these: the pretrained model, or, on the facts, `full` to unlearn them."""
    more: Mapping[str, Any]


MODELS = (
    Made("full", "knows", "both", {}),
    Made("retain", "never saw", "kept", {}),
    Made("retain_2", "never saw", "kept", {"seed": 7}),
    Made("idknll", "?", "facts", {"method": "IdkNLL", "epochs": 3.0}),
    Made("npo", "?", "facts", {"method": "NPO", "epochs": 4.0}),
    Made("graddiff", "?", "facts", {"method": "GradDiff", "epochs": 3.0}),
    Made(
        "masked_upper",
        "knows, whatever it says",
        "facts",
        {"method": "NPO", "epochs": 6.0, "trainable": LAST},
    ),
)
"""`masked_upper` may change the last block alone: what lies below it still holds the facts."""
RETAINS = ("retain", "retain_2")
NEUTRAL = ("holdout10", "real_authors_perturbed", "world_facts_perturbed")


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
    # nobody of these was trained on: what maps between streams are fitted on
    lines = [(EMBEDDED / "data" / f"{name}.jsonl").read_text().splitlines() for name in NEUTRAL]
    files["neutral"] = [
        {name: row[name] for name in ("question", "answer")}
        for row in map(json.loads, itertools.chain(*lines))
    ]
    for name, rows in files.items():
        write_json(place / f"{name}.json", rows)
    return {name: place / f"{name}.json" for name in files}


def make(one: Made, place: Path, files: Mapping[str, Path], epochs: float, lr: float) -> None:
    """Train a model, or go on where the training was cut; a finished one stays."""
    out = place / one.name

    def report(at: Progress) -> None:
        if at.step % 10 == 0 or at.step == at.n_steps:
            click.echo(f"{one.name}: step {at.step} of {at.n_steps}", err=True)

    if one.rows == "facts":
        given = {"model": str(place / "full"), "data": str(files["facts"]), "lr": LR}
        given |= {"retain_data": str(files["kept"]), "out": out, **one.more}
        new = job.make(prepare(UnlearnSettings(**given, **TUNED)), out, report=report)
    else:
        given = {"data": str(files[one.rows]), "epochs": epochs, "lr": lr, "out": out, **one.more}
        settings = RelearnSettings(model=BASE, **given, **TUNED)
        new = relearn.make(relearn.prepare(settings, BASE), out, report=report)
    click.echo(f"{one.name} ({one.truth}): {'made' if new else 'was there'}")


def audit(place: Path, files: Mapping[str, Path], names: Sequence[str]) -> list[dict[str, Any]]:
    """Patch every model into `full`; retains that it is not itself are the floor."""
    found = []
    for name in names:
        result = la.patch(
            str(place / name),
            place / "results" / name,
            full=str(place / "full"),
            retain=tuple(str(place / one) for one in RETAINS if one != name),
            data=str(files["facts"]),
            validity_data=files["kept"],
            align_data=files["neutral"],
            activations=place / "activations",
            profile="full",
            lens=True,
        )
        found.append({"model": name, **result.summary})
    return found


@click.command()
@click.option("--facts", default=32, show_default=True, help="Forget rows.")
@click.option("--kept", default=64, show_default=True, help="Rows to keep.")
@click.option("--epochs", default=8.0, show_default=True, help="Of full and the retains.")
@click.option("--lr", default=2e-4, show_default=True, help="Of full and the retains.")
@click.option("--only", multiple=True, help="Some of the models, beside the anchors.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("experiments/out/real_model"))
def main(facts: int, kept: int, epochs: float, lr: float, only: tuple[str, ...], out: Path) -> None:
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
