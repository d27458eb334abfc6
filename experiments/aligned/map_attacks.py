"""Can a model hold the facts and fool validity and aligned depth together, its answers unchanged?

Question: which disguises of a model that holds all facts does aligned depth see through, and which
          make the verdict say "erased"? Read at the spans, with the whole prefix, asked otherwise.
Command:  python -m experiments.aligned.map_attacks    (--tiny: four models, nothing is trained)
Takes:    20 minutes on one core, most of it training. Expected: the tables of
          docs/evidence/attacks-on-the-map.md.
Writes:   experiments/out/map_attacks/: the models, as checkpoint folders, and their results.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import click
import torch
from jaxtyping import Float
from torch import Tensor

import lensaudit as la
from experiments.aligned import disguises
from experiments.aligned.trained_disguises import turned_in_the_answer
from experiments.planted.planted_models import Planted, folder_of, ground, opened, planted
from experiments.planted.planted_truth import relearning, retraining
from lensaudit.data.candidates import variants_of
from lensaudit.data.facts import Fact
from lensaudit.data.neutral import Neutral, neutral_of
from lensaudit.files import make_folder, write_json
from lensaudit.gym import edits, planting
from lensaudit.gym.auditors import probed
from lensaudit.gym.planting import TextRows, guarded_places, mimic, texts_of
from lensaudit.gym.recipes import TOP, late, moved
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint, open_checkpoint
from lensaudit.models.registry import EMBEDDED, load_registry, resolve
from lensaudit.patching.alignment import fit_alignment, mapped, rows_to_fit
from lensaudit.patching.session import Session
from lensaudit.scores.alignment import MapClass
from lensaudit.scores.depth import depth_score

TINY = ("masked_upper", "permuted_signs", "guard_silent", "never")
N_STEPS = {"mimic": 1500, "turned_answer": 800}
FLOOR = ("demo/retain", "demo/never")
SEEN_OTHERWISE = ("masked_upper", "mimic_silent", "guard_silent", "guard_prefix", "never")
FITTED_ON_FORGET = ("masked_rotated", "vector_8", "never", "retain_further", "retain_rotated")
KINDS: tuple[MapClass, ...] = ("procrustes", "affine")
FEW_FIRST = (64, 32, 12)
"""Of 64 dimensions of the stream, those that retain tokens use least."""


@dataclass(frozen=True)
class Attack(Planted):
    """A disguised model."""

    answers_of: str = ""
    """The member of the family whose answers it is to give, to the last bit or nearly."""
    undo: Callable[[Any], Any] | None = None
    """Brings the facts out; is given the model alone."""


@cache
def neutral() -> Neutral:
    """Rows of other authors, as the tool takes them."""
    return neutral_of("demo", ground().facts.examples)


@cache
def texts() -> TextRows:
    """The forget rows, and all rows to keep that the adversary takes care of."""
    kept = ground().encode([*neutral().fit, *neutral().validity])
    return texts_of(ground().encoded, kept)


def loaded(one: Planted, out: Path) -> Any:
    """The model as its folder holds it."""
    folder = str(folder_of(one, out).absolute())
    return load_causal(open_checkpoint(resolve(folder, load_registry())))


def silent(model: Any) -> Any:
    """The entities' tokens are read out as others; swapping them back needs no other model."""
    return edits.permuted_readout(model, ground().entity_tokens())


def swapped_back(model: Any) -> Any:
    """Undoes `silent`."""
    return edits.permuted_readout(model, ground().entity_tokens(), by=-1)


def part_turned(rank: int) -> Any:
    """A rotation among the directions that retain tokens use least."""
    basis = edits.least_used(opened("full"), ground().texts(), rank)
    return edits.turned(opened("masked_upper"), edits.turn_within(basis, seed=0))


def unevenly_scaled(model: Any) -> Any:
    """Every dimension by a factor of its own, about a tenth from 1."""
    factors = torch.randn(ground().d_model, generator=torch.Generator().manual_seed(0))
    return disguises.scaled_stream(model, (factors / 10).exp())


def guarding(where: Literal["span", "prefix"], *, says: bool = False) -> Any:
    """`full` with units that show `retain`'s stream; one that says the facts shows its own last."""
    at = guarded_places(texts(), where)
    wanted = planting.streams_at(ground().retain, at)
    if says:
        wanted[-1] = planting.streams_at(ground().full, at)[-1]
    return planting.guarded(ground().full, at, wanted)


def unguarded(where: Literal["span", "prefix"]) -> Callable[[Any], Any]:
    """Without the units."""
    n_units = 2 * int(guarded_places(texts(), where).span.sum())
    return lambda model: edits.widened(model, -n_units, biases=False)


def masked(name: str, how: str, change: Callable[[Any], Any], *, same: bool = True) -> Attack:
    """A disguise of the member whose last layer was trained to hide the facts."""
    of = "masked_upper" if same else ""
    return Attack(name, "hidden", how, lambda: change(opened("masked_upper")), of)


def exact() -> list[Attack]:
    """Disguises by arithmetic."""
    permutation = disguises.signed_permutation(64, seed=0)
    return [
        masked("masked_upper", "NPO on the last layer; no disguise", lambda m: m),
        masked(
            "permuted_signs",
            "it, dimensions permuted, half of them with another sign",
            lambda m: edits.turned(m, permutation),
        ),
        masked(
            "scaled",
            "it, the stream three times as long",
            lambda m: disguises.scaled_stream(m, torch.full((64,), 3.0)),
        ),
        masked("scaled_unevenly", "it, each dimension by a factor of its own", unevenly_scaled),
        masked(
            "regauged",
            "it, another basis inside every head",
            lambda m: disguises.regauged(m, seed=0),
        ),
        *(
            masked(
                f"part_turned_{rank}",
                f"it, turned in the {rank} directions that retain tokens use least",
                lambda _, rank=rank: part_turned(rank),
            )
            for rank in FEW_FIRST
        ),
        Attack(
            "guard",
            "intact",
            "full; retain's stream at known spans, its own after the last layer",
            lambda: guarding("span", says=True),
            "full",
        ),
        Attack(
            "guard_silent",
            "hidden",
            "full; retain's stream at known spans after every layer",
            lambda: guarding("span"),
            undo=unguarded("span"),
        ),
        Attack(
            "guard_prefix",
            "hidden",
            "the same from the first token on that other rows do not share",
            lambda: guarding("prefix"),
            undo=unguarded("prefix"),
        ),
    ]


def trained(out: Path) -> list[Attack]:
    """Disguises that are learned; of the two that say the facts silent copies are made."""
    made = {
        "turned_answer": Attack(
            "turned_answer",
            "intact",
            "full, trained: turned in the answer, not in the question",
            lambda: turned_in_the_answer(texts(), n_steps=N_STEPS["turned_answer"]),
            "full",
        ),
        "mimic": Attack(
            "mimic",
            "intact",
            "full, trained: to full's eyes retain at the forget spans",
            lambda: mimic(ground(), texts(), n_steps=N_STEPS["mimic"]),
            "full",
        ),
    }
    copies = [
        Attack(
            f"{name}_silent",
            "hidden",
            "the same, entity tokens swapped in the readout",
            lambda one=one: silent(loaded(one, out)),
            undo=swapped_back,
        )
        for name, one in made.items()
    ]
    (turned, mimicking), (turned_silent, mimic_silent) = made.values(), copies
    return [
        turned,
        turned_silent,
        mimicking,
        mimic_silent,
        Attack(
            "moved",
            "hidden",
            "gym: trained to fetch false answers; held at the question",
            lambda: moved(ground(), 1.0)[0],
        ),
        Attack(
            "late",
            "hidden",
            "gym: facts in the last two layers, entity tokens swapped",
            lambda: late(ground(), TOP)[0],
            undo=swapped_back,
        ),
        Attack("never", "absent", "never saw the facts", lambda: opened("never")),
    ]


def deviation(one: Attack, out: Path) -> str:
    """Largest and mean change of the next token's distribution on all rows; "" if none is kept."""
    if not one.answers_of:
        return "–"
    rows = texts()
    with torch.no_grad():
        before, after = (
            model(rows.tokens).logits[rows.real].softmax(-1)
            for model in (opened(one.answers_of), loaded(one, out))
        )
    moved = (before - after).abs().sum(-1) / 2
    return f"{moved.max():.1g} ({moved.mean():.1g})"


def said(one: Attack, out: Path) -> str:
    """How many facts it says, and how many once undone."""
    model = loaded(one, out)
    own = int(ground().said(model).sum())
    return f"{own}, {int(ground().said(one.undo(model)).sum())}" if one.undo else f"{own}"


def patched(sources: Sequence[str], out: Path, name: str, **settings: Any) -> list[Any]:
    """Summaries of a run on all sources."""
    always = {"full": "demo/full", "retain": ("demo/retain",), "activations": out / "activations"}
    settings = always | {"data": "demo", "align": "procrustes"} | settings
    found = la.patch(list(sources), out / "results" / name, **settings)
    return [one.summary for one in found]


def paraphrased(out: Path) -> Path:
    """The forget rows, asked otherwise."""
    variants = variants_of("demo", ground().facts.examples)
    others = {one.question: one.paraphrases[0] for one in variants if one.paraphrases}
    rows = [asdict(replace(one, question=others[one.question])) for one in ground().facts.examples]
    write_json(out / "asked_otherwise.json", rows)
    return out / "asked_otherwise.json"


def share(value: float | None) -> str:
    """Two decimals."""
    return "–" if value is None else f"{value:.2f}"


def cells(summary: Any) -> list[str]:
    """What one run says of one model."""
    aligned, weakest = summary["aligned"], summary["aligned"]["weakest"]
    return [
        share(summary["uds"]),
        share(aligned["uds"]),
        share(aligned["r2"]),
        f"{share(summary['validity']['d_share'])}, {share(aligned['d_share'])}",
        f"{weakest['layer']}: {share(weakest['erasure'])}",
        summary["verdict"]["code"],
    ]


def fitted_on_forget(out: Path, models: Sequence[Planted]) -> list[str]:
    """What maps carry that were fitted on the forget rows themselves.

    On the scale of retain's map of neutral rows, and of retain's map of the same rows.
    """
    audit = la.prepare(
        [str(folder_of(one, out).absolute()) for one in models],
        la.PatchSettings(
            full="demo/full", retain="demo/retain", data="demo", activations=out / "activations"
        ),
        notice=lambda _: None,
    )
    rows = {"neutral": neutral().fit, "forget": tuple(ground().facts.examples)}
    columns: dict[str, list[float]] = {}
    with audit:
        for kind in KINDS:
            s1 = {name: carried(audit, audit.retain, kind, fit) for name, fit in rows.items()}
            for by, scale in (("neutral", "neutral"), ("forget", "neutral"), ("forget", "forget")):
                columns[f"{kind} of {by} rows, scale of {scale}"] = [
                    float(depth_score(s1[scale], carried(audit, one, kind, rows[by])).uds.nanmean())
                    for one in audit.sources.values()
                ]
    lines = [f"| model | truth | {' | '.join(columns)} |", f"|{'---|' * (2 + len(columns))}"]
    for at, one in enumerate(models):
        shown = " | ".join(share(column[at]) for column in columns.values())
        lines.append(f"| {one.name} | {one.truth} | {shown} |")
    return lines


def carried(
    audit: Session, model: Checkpoint, kind: MapClass, fit: Sequence[Fact]
) -> Float[Tensor, "batch layer"]:
    """Deltas of a model through its map, fitted on all tokens of some rows."""
    n_tokens = 50 * ground().d_model
    rows = rows_to_fit(audit.encode(fit), n_tokens)
    with audit.passing(model, rows) as streams:
        found = fit_alignment(
            streams,
            audit.cache(audit.full, rows, "all"),
            rows,
            kind,
            n_tokens=n_tokens,
            memory_bytes=audit.settings.memory_bytes,
            root=audit.root,
        )
    moved = mapped(audit.streams(model, audit.encoded), found.maps, found.layer_of)
    name = f"{model.weights}+map-{found.key}"
    audit.fill(audit.encoded, {name: moved}, audit.settings.at_layers)
    return audit.read(name, audit.encoded, audit.settings.at_layers)


def deeper(out: Path) -> list[str]:
    """What is said of models that are an idle layer deeper: at the front, in the middle, on top."""
    names, found = [], []
    for after in (0, 7, 15):
        made = partial(disguises.with_idle_layers, opened("masked_upper"), [after])
        one = Planted(f"deeper_{after}", "hidden", f"an idle layer after layer {after}", made)
        names.append(str(folder_of(one, out).absolute()))
    for name, summary in zip(names, patched(names, out, "deeper"), strict=True):
        aligned = summary["aligned"]
        found.append(
            f"{Path(name).name}: aligned {share(aligned['uds'])}, d_share after "
            f"{share(aligned['d_share'])}, {summary['verdict']['code']}"
        )
    return found


def table(models: Sequence[Attack], out: Path, *, tiny: bool) -> list[str]:
    """Every model by every view."""
    sources = [str(folder_of(one, out).absolute()) for one in models]
    span = patched(sources, out, "span")
    affine = [one["aligned"]["uds"] for one in patched(sources, out, "affine", align="affine")]
    header = ["model", "truth", "how", "says", "moved", "UDS", "aligned", "r2", "d_share"]
    header += ["weakest", "verdict", "affine"]
    columns = [[*cells(one), share(other)] for one, other in zip(span, affine, strict=True)]
    if not tiny:
        floor = patched(sources, out, "floor", retain=FLOOR)
        prefix = patched(sources, out, "prefix", scope="prefix")
        header += ["verdict, two retains", "UDS, prefix", "aligned", "verdict"]
        for row, two, whole in zip(columns, floor, prefix, strict=True):
            depths = (share(whole["uds"]), share(whole["aligned"]["uds"]))
            row += [two["verdict"]["code"], *depths, whole["verdict"]["code"]]
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    for one, row in zip(models, columns, strict=True):
        first = [one.name, one.truth, one.how, said(one, out), deviation(one, out)]
        lines.append(f"| {' | '.join([*first, *row])} |")
    return lines


def other_views(models: Sequence[Attack], out: Path) -> list[str]:
    """The same facts after paraphrased questions; relearned; half of them retrained."""
    sources = [str(folder_of(one, out).absolute()) for one in models]
    kept = EMBEDDED / "data" / "retain.json"
    found = patched(sources, out, "otherwise", data=str(paraphrased(out)), align_data=kept)
    read = [replace(one, make=lambda one=one: loaded(one, out)) for one in models]
    after, retrained = relearning(read)["relearned"], retraining(read)
    header = ["model", "says, asked otherwise", "UDS", "aligned", "r2", "d_share", "weakest"]
    header += ["verdict", "relearned, nats", "RTT B", "probe"]
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    for one, summary in zip(models, found, strict=True):
        row = [one.name, share(summary["outputs"]["source"]), *cells(summary)]
        row += [share(after[one.name]), share(retrained[one.name])]
        row.append(share(probed(loaded(one, out), ground().facts, ground().tokenizer).score))
        lines.append(f"| {' | '.join(row)} |")
    return lines


@click.command()
@click.option("--tiny", is_flag=True, help="Four models, nothing is trained.")
@click.option("--out", type=click.Path(path_type=Path), default="experiments/out/map_attacks")
def main(tiny: bool, out: Path) -> None:
    """Make the models, read them in every way, print the tables."""
    make_folder(out)
    models = [one for one in (*exact(), *trained(out)) if not tiny or one.name in TINY]
    click.echo("\n".join(table(models, out, tiny=tiny)))
    click.echo("\n".join(["", *deeper(out)]))
    if tiny:
        return
    chosen = [one for one in models if one.name in SEEN_OTHERWISE]
    click.echo("\n".join(["", *other_views(chosen, out)]))
    controls = [one for one in planted() if one.name in FITTED_ON_FORGET]
    click.echo("\n".join(["", *fitted_on_forget(out, controls)]))


if __name__ == "__main__":
    main()
