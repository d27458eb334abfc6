"""Do aligned depth and verdict hold on models of another shape, and between shapes?

Question: two families of 5 layers of 96 and 6 layers of 128, with an ordinary byte-level BPE, have
          members whose truth is planted. Are those that hold the facts and those that never saw
          them apart by the aligned depth: within a family, and read by the `full` of another, of
          another width, depth and tokenizer?
Command:  python -m experiments.aligned.other_families
Takes:    12 minutes to train the first family and half an hour the second, on one of two cores
          that had other work; 5 to read them. What is there is not made again. Expected: the
          tables of docs/evidence/families.md and docs/evidence/other-sizes.md.
Writes:   experiments/out/other_families/: the models by family, and their results.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click
import torch
import transformers

import lensaudit as la
from experiments.planted.planted_models import Planted, folder_of
from lensaudit.files import write_json
from lensaudit.gym import edits
from lensaudit.gym.ground import Ground, facts_of
from lensaudit.gym.planting import ignorant_rows, push_of, turn_of, unlearned, wrong_rows
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import load_tokenizer, open_checkpoint
from lensaudit.models.registry import load_registry, resolve
from tools.demo_family.family import Shape, make_family
from tools.demo_family.tokenizer import GPT2_SPLIT

SHAPES = {
    "d96": Shape(d_model=96, d_mlp=256, n_layers=5, d_vocab=1280, split=GPT2_SPLIT),
    "d128": Shape(d_model=128, d_mlp=344, n_layers=6, d_vocab=1280, split=GPT2_SPLIT),
}
"""Both with one tokenizer; that of the embedded family (16 layers of 64) is another."""
SCALES = {"base": 0.5, "full": 0.75, "retain": 0.5, "never": 0.5}
"""Of the embedded family's steps: these learn faster, and `full` has a third more rows to learn."""
READOUT = r"^(lm_head|model\.norm)\."
EMBEDDED: Mapping[str, str] = {
    "full": "intact",
    "masked_readout": "hidden",
    "masked_upper": "hidden",
    "idknll": "hidden",
    "retain": "absent",
    "never": "absent",
}
"""Members of the embedded family whose truth is known."""
CODES: Mapping[str, tuple[str, ...]] = {
    "intact": ("answers", "hidden", "hidden_other_basis"),
    "hidden": ("answers", "hidden", "hidden_other_basis"),
    "absent": ("erased",),
}
"""Verdicts that are right: whoever says the facts holds them."""


def planted_in(family: Path) -> list[Planted]:
    """Every model of one family; none is made yet."""

    @cache
    def opened(name: str) -> Any:
        return load_causal(open_checkpoint(resolve(str(family / name), load_registry())))

    @cache
    def ground() -> Ground:
        full = open_checkpoint(resolve(str(family / "full"), load_registry()))
        trio = (copy.deepcopy(opened(name)) for name in ("full", "retain", "never"))
        return Ground(*trio, load_tokenizer(full), facts_of("demo", None), seed=0)

    def rotated(make: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: edits.turned(make(), turn_of(ground()))

    @cache
    def masked_upper() -> Any:
        top = rf"^model\.layers\.{ground().n_layers - 1}\."
        return unlearned(ground(), trainable=top, lr=2e-3, n_steps=120)

    def masked_readout() -> Any:
        return unlearned(ground(), trainable=READOUT, lr=2e-3, n_steps=120)

    def trained(name: str, rows: Callable[[Ground], Any], lr: float) -> Callable[[], Any]:
        return lambda: ground().trained(opened(name), rows(ground()), lr=lr)

    def with_vector() -> Any:
        layer = ground().n_layers // 2
        return edits.with_vector(opened("full"), layer, push_of(ground(), layer))

    return [
        Planted("full", "intact", "the model before unlearning", lambda: opened("full")),
        Planted("full_rotated", "intact", "another basis", rotated(lambda: opened("full"))),
        Planted("masked_readout", "hidden", "NPO on norm and readout", masked_readout),
        Planted("masked_upper", "hidden", "NPO on the last layer", masked_upper),
        Planted("idk_all", "hidden", "IDK-tuned", trained("full", ignorant_rows, 3e-4)),
        Planted("vector_half", "hidden", "a constant vector at half the depth", with_vector),
        Planted("masked_rotated", "hidden", "in another basis", rotated(masked_upper)),
        Planted("retain", "absent", "never saw the facts", lambda: opened("retain")),
        Planted("never", "absent", "other order of data", lambda: opened("never")),
        Planted("retain_rotated", "absent", "another basis", rotated(lambda: opened("retain"))),
        Planted(
            "retain_noise",
            "absent",
            "noise of 2 %",
            lambda: edits.noisy(opened("retain"), share=0.02),
        ),
        Planted("retain_idk", "absent", "IDK-tuned", trained("retain", ignorant_rows, 3e-4)),
        Planted("never_wrong", "absent", "taught wrong", trained("never", wrong_rows, 1e-3)),
    ]


def audited(
    sources: Mapping[str, str], truths: Mapping[str, str], family: str, out: Path, work: Path
) -> list[dict[str, Any]]:
    """Rows of a table: the sources, by their name, read by the `full` of one family.

    Args:
        sources: name -> model.
        truths: name -> what is true of it.
        family: folder or prefix of `full` and `retain`.
        out: of the results.
        work: holds the caches.
    """
    found = la.patch(
        list(sources.values()),
        out,
        full=f"{family}/full",
        retain=(f"{family}/retain",),
        data="demo",
        activations=work / "activations",
    )
    return [
        {
            "model": name,
            "truth": truths[name],
            "uds": one.uds,
            "aligned": one.aligned if one.aligned is not None else one.uds,
            "carried": one.aligned is not None,
            "r2": one.summary["aligned"]["r2"],
            "d_share": one.summary["validity"]["d_share"],
            "after": one.summary["aligned"]["d_share"],
            "n": one.summary["n"] - len(lost_in(one)),
            "verdict": one.verdict.code,
            "because": one.verdict.because,
        }
        for name, one in zip(sources, found, strict=True)
    ]


def lost_in(one: Any) -> Mapping[str, str]:
    """Facts without a depth; of a source that no plain patch fits, without an aligned one."""
    of = one.summary if one.uds is not None else one.summary["aligned"]
    return of.get("unscored", {})


def shown(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """A table in Markdown, and whether the pools are apart."""

    def cell(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f}"

    numbers = ("uds", "aligned", "r2", "d_share", "after")
    head = "| model | truth | UDS | aligned | r2 | d_share | after alignment | facts | verdict |"
    lines = [
        f"| {row['model']} | {row['truth']} | {' | '.join(cell(row[one]) for one in numbers)} | "
        f"{row['n']} | {row['verdict']} |"
        for row in rows
    ]
    pools = {
        truth: [row["aligned"] for row in rows if (row["truth"] == "absent") == (truth == "absent")]
        for truth in ("holds", "absent")
    }
    holds, absent = max(pools["holds"]), min(pools["absent"])
    others = [
        f"{row['model']} {row['verdict']} ({row['because']})"
        for row in rows
        if row["verdict"] not in CODES[row["truth"]]
    ]
    return "\n".join(
        [
            f"{title}",
            "",
            head,
            f"|{'---|' * 9}",
            *lines,
            "",
            f"aligned: holders up to {holds:.2f}, absent from {absent:.2f}: "
            f"{'apart' if holds < absent else 'NOT apart'}; without the right verdict: "
            f"{'; '.join(others) or 'none'}",
            "",
        ]
    )


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default="experiments/out/other_families")
def main(out: Path) -> None:
    """Make the families and what is planted in them, read every model by every `full`."""
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    models: dict[str, dict[str, str]] = {}
    truths: dict[str, str] = dict(EMBEDDED)
    families = {name: (out / name / "family").absolute() for name in SHAPES}
    for name, shape in SHAPES.items():
        for member, scale in SCALES.items():
            make_family(families[name], shape=shape, scale=scale, only=(member,))
        full = str(families[name] / "full")
        chosen = planted_in(families[name])
        truths |= {one.name: one.truth for one in chosen}
        models[name] = {
            one.name: str(folder_of(one, out / name, full).absolute()) for one in chosen
        }
    models["embedded"] = {name: f"demo/{name}" for name in EMBEDDED}
    fulls = {**{name: str(one) for name, one in families.items()}, "embedded": "demo"}
    pairs = [(name, name) for name in SHAPES]
    pairs += [(source, full) for full in fulls for source in models if source != full]
    tables = {}
    for source, full in pairs:
        title = f"{source}, read by full of {full}" if source != full else source
        rows = audited(
            models[source], truths, fulls[full], out / "results" / f"{source}-{full}", out
        )
        tables[title] = rows
        click.echo(shown(title, rows))
    write_json(out / "tables.json", tables)


if __name__ == "__main__":
    main()
