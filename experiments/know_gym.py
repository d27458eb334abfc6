"""Which planted models does the assignment test convict? Every model of a planted gym, cheaply.

Question: what share of each mechanism has p <= .01 without a retain model, and what escapes?
Command:  lensaudit gym make --seeds 5 --out gym; python experiments/know_gym.py gym
Takes:    6 s of one core a model, half an hour for 310 models; what is read is kept.
Expected: the table of docs/know.md.

Readers: the model's outputs, its stream at three upper layers through its own head, and carried
into the base model's last stream and read by the base's head. No retain model is asked.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import torch

from lensaudit.association.evidence import RelationReading, binding_of, facts_of_read
from lensaudit.association.reading import (
    LENS,
    OUTPUTS,
    Questionnaire,
    maps_onto,
    prompts_of,
    upper_layers,
)
from lensaudit.association.relations import relations_of
from lensaudit.data.neutral import neutral_of
from lensaudit.data.tofu import forget_set
from lensaudit.gym.registry import Mechanism, recipes
from lensaudit.models.bridge import load_model, n_layers
from lensaudit.models.registry import base_spec
from lensaudit.scores.intervals import share_of
from lensaudit.worstcase.reading import LensReader

LEVEL = 0.01
FOREIGN = "foreign"
KINDS = ("all", OUTPUTS, LENS, FOREIGN)
Asked = Sequence[Questionnaire]


def asked_of_demo() -> Asked:
    """The relations of the embedded forget set, as they are put to a model."""
    return [Questionnaire(one) for one in relations_of(forget_set("demo")).found]


def demo_base() -> Any:
    """The embedded family's model before it was taught anybody's facts."""
    spec = base_spec(["demo/full"])
    assert spec is not None
    return load_model(Path(spec.repo))


def neutral_texts() -> list[str]:
    """Rows to keep of the embedded set, on which maps are fitted."""
    fit = neutral_of("demo", forget_set("demo")).fit
    return [f"Question: {one.question}\nAnswer: {one.answer}" for one in fit]


def heard(
    model: Any, asked: Asked, base: Any = None, texts: Sequence[str] = ()
) -> list[RelationReading]:
    """What the counted readers say: upper layers, and the last layer, which is what is said."""
    found = [{OUTPUTS: rows.pop(), **dict(_named(LENS, rows))} for rows in _layers(model, asked)]
    if base is not None:
        maps = maps_onto(model, base, texts)
        for own, rows in zip(found, _layers(model, asked, base, maps), strict=True):
            own.update(_named(FOREIGN, [*rows[:-1]]))
    return [RelationReading(*one) for one in zip(asked, found, strict=True)]


def _layers(
    model: Any, asked: Asked, head: Any = None, maps: Mapping[int, Any] | None = None
) -> Iterator[list[torch.Tensor]]:
    upper = upper_layers(n_layers(model))
    for one in asked:
        prompts = prompts_of(model, one, LENS)
        values = [prompts.values] * len(prompts.ids)
        with torch.no_grad():
            lens = LensReader(model, head or model, maps=maps or {})
            rows = prompts.joined(lens.exposures(prompts.ids, values, upper[0]))
        yield [rows[at - upper[0]] for at in (*upper, n_layers(model) - 1)]


def _named(kind: str, rows: Sequence[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    return ((f"{kind} {at}", one) for at, one in enumerate(rows))


def only(read: Sequence[RelationReading], kind: str) -> list[RelationReading]:
    """The readers of one kind; "all": all of them."""

    def wanted(name: str) -> bool:
        return kind == "all" or name.split()[0] == kind

    return [
        RelationReading(one.asked, {k: v for k, v in one.by_reader.items() if wanted(k)})
        for one in read
    ]


def kept_tables(place: Path, asked: Asked, read: Callable[[], list[RelationReading]]) -> Any:
    """What was read before, else what is read now."""
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        torch.save([one.by_reader for one in read()], place)
    return [RelationReading(*one) for one in zip(asked, torch.load(place), strict=True)]


def judged(read: Sequence[RelationReading]) -> dict[str, float]:
    """P and z by all readers together and by each kind of them; mean bits beside a uniform guess."""
    found: dict[str, float] = {}
    for kind in KINDS:
        test = binding_of(only(read, kind), seed=0).test
        found |= {f"p_{kind}": test.p, f"z_{kind}": round(test.z, 3)}
    bits = [fact.familiar for one in read for fact in facts_of_read(one, None)]
    return found | {"bits": round(sum(bits) / len(bits), 4)}


def planted(gym: Path, seeds: str) -> Iterator[tuple[int, Path]]:
    """Seed and folder of every model whose truth was certified."""
    for seed in map(int, seeds.split(",")):
        for folder in sorted((gym / f"seed-{seed}").iterdir()):
            if (folder / "certificate.json").exists():
                yield seed, folder


def mechanism_of(model: str) -> tuple[Mechanism | None, float]:
    """The recipe of a planted model and its strength; None: an anchor."""
    name, _, strength = model.partition("-")
    return recipes().get(name), float(strength or 1)


def show(done: Sequence[Mapping[str, Any]]) -> None:
    """A line a mechanism, held-out ones and truths apart."""
    by: dict[tuple[str, bool, str], list[Mapping[str, Any]]] = defaultdict(list)
    for one in done:
        by[one["truth"], one["held_out"], one["mechanism"]].append(one)
        by[one["truth"], one["held_out"], "ALL"].append(one)
    for (truth, held_out, name), rows in sorted(by.items()):
        hits = {kind: sum(one[f"p_{kind}"] <= LEVEL for one in rows) for kind in KINDS}
        share = share_of(hits["all"], len(rows))
        print(
            f"{truth:9}{'held' if held_out else 'tune':5}{name:20}{hits['all']:3d} of "
            f"{len(rows):3d} [{share.low:.2f}, {share.high:.2f}] "
            f"{hits[OUTPUTS]:3d} · {hits[LENS]:3d} · {hits[FOREIGN]:3d}  "
            f"largest p {max(one['p_all'] for one in rows):.2g}"
        )


@click.command()
@click.argument("gym", type=click.Path(exists=True, path_type=Path))
@click.option("--seeds", default="0,1,2,3,4", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("experiments/out/know_gym"))
def main(gym: Path, seeds: str, out: Path) -> None:
    """Ask every planted model who has what; go on where an earlier run stopped."""
    asked, base, texts = asked_of_demo(), demo_base(), neutral_texts()
    lines = []
    for seed, folder in planted(gym, seeds):
        read = kept_tables(
            out / f"seed-{seed}" / f"{folder.name}.pt",
            asked,
            lambda folder=folder: heard(load_model(folder), asked, base, texts),
        )
        recipe, strength = mechanism_of(folder.name)
        truth = json.loads((folder / "certificate.json").read_text())
        lines.append(
            {
                "seed": seed,
                "mechanism": folder.name.partition("-")[0],
                "strength": strength,
                "truth": recipe.truth if recipe else ("intact" if truth["holds"] else "absent"),
                "held_out": bool(recipe and recipe.held_out),
                **judged(read),
            }
        )
        (out / "know.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    show(lines)


if __name__ == "__main__":
    main()
