"""Is p of the assignment test uniform over worlds? One ignorant model asked about many draws.

Question: each world is a draw of the fictional generator: other people, other values. No embedded
          model saw any of them, so p must be uniform over worlds, which also shows whether the
          generator's values are exchangeable given the names; and e of a fact must be at least 20
          in at most one of twenty. With --trained: of so many further worlds, a model that was
          taught the people to keep alone, and one that was taught the facts too.
Command:  python -m experiments.know.worlds --model demo/retain --worlds 200 --evidence 60
          python -m experiments.know.worlds --worlds 0 --trained 10
Takes:    3 s a world on one idle core, 12 s with evidence, 2 minutes with two models trained.
Expected: KS p above .01, shares within their exact limits; all taught models convicted.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from scipy.stats import kstest

from experiments.know.gym import FOREIGN, demo_base, heard, judged, neutral_texts
from lensaudit.association.evidence import (
    RelationReading,
    facts_of_read,
    naming_of,
    priors_of,
)
from lensaudit.association.opening import invented_names
from lensaudit.association.reading import OUTPUTS, maps_onto, said
from lensaudit.data.chat import pad_id
from lensaudit.data.facts import Fact, validate
from lensaudit.data.fictional import annotated, passing_rows
from lensaudit.data.relations import Relation, relations_of
from lensaudit.gym.ground import fit
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import open_checkpoint, open_model
from lensaudit.models.named import load_model
from lensaudit.models.registry import load_registry, resolve
from lensaudit.scores.estimate import Ends
from lensaudit.scores.intervals import clustered_mean, share_of
from lensaudit.training.rows import finetune_batches
from lensaudit.training.train import FineTuning, Recipe
from lensaudit.training.trainee import copy_tokenizer, save_model
from tools.demo_family.corpus import both_formats
from tools.demo_family.world import World, make_world

LARGE = 20.0
FIRST_TRAINED = 1001
"""Seed of the first world that models are trained for."""
STEPS, LR, BATCH = 120, 1.5e-3, 32
"""As models of the gym are taught: anchors of a further seed take 160 steps, others 100."""


def questions_of(world: World, seed: int) -> list[Relation]:
    """Of a world's forget set."""
    return list(relations_of(validate(annotated(world.forget), f"world {seed}"))[0])


def with_evidence(relation: Relation, world: World) -> Relation:
    """With namesakes, and the values of the world's 28 other people, drawn as the true ones."""
    others = [
        row.entity for row in (*world.retain, *world.holdout) if row.relation == relation.name
    ]
    names = [
        name
        for one in relation.subjects
        for name in invented_names(one, 2, others=relation.subjects)
    ]
    further = tuple(one for one in dict.fromkeys(others) if one not in relation.values)
    return replace(relation, invented=tuple(names), placebos=further)


def evidence_of(model: Any, base: Any, read: Sequence[RelationReading]) -> dict[str, Any]:
    """E of every fact beside the largest of uniform, base and namesakes; and beside uniform."""
    never = heard(base, [replace(r.asked, invented=()) for r in read])
    facts, plain = [], []
    for own, other in zip(read, never, strict=True):
        n = len(own.asked.subjects)
        full = RelationReading(own.asked, {OUTPUTS: said(model, own.asked, OUTPUTS)})
        prior = priors_of(full, {"base": other}, []).rows
        facts += facts_of_read(own, prior)
        size = len(own.asked.values)
        plain += [
            float(np.mean([one[at].exp()[true] * size for one in own.by_reader.values()]))
            for at, true in zip(range(n), own.asked.true, strict=True)
        ]
    e = [one.e for one in facts if one.e is not None]
    k = min(len(one.asked.values) for one in read)
    return {"e": e, "e_uniform": plain, "named": len(naming_of(facts)[0]), "k": k}


def asked_about(
    model: Any, base: Any, maps: Mapping[int, Any], seed: int, *, evidence: bool
) -> dict[str, Any]:
    """What the tests say of one model and one world."""
    world = make_world(seed)
    relations = questions_of(world, seed)
    if not evidence:
        return judged(heard(model, relations, base, maps))
    asked = [with_evidence(one, world) for one in relations]
    bare = [replace(one, invented=()) for one in asked]
    read = [
        RelationReading(one, row.by_reader)
        for one, row in zip(asked, heard(model, bare, base, maps), strict=True)
    ]
    return judged(read) | evidence_of(model, base, only_said(read))


def only_said(read: Sequence[RelationReading]) -> list[RelationReading]:
    """Without the other head: what `facts.csv` says with --reader outputs and lens."""
    return [
        RelationReading(
            one.asked, {k: v for k, v in one.by_reader.items() if not k.startswith(FOREIGN)}
        )
        for one in read
    ]


def trained(world: World, out: Path, *, sees: bool, seed: int) -> Path:
    """The base, taught the people to keep and general knowledge; the facts too if it sees them."""
    folder = out / f"world-{seed}-{'taught' if sees else 'never'}"
    if (folder / "config.json").exists():
        return folder
    start = open_checkpoint(resolve("demo/base", load_registry()))
    bridge = load_model("demo/base")
    rows: list[Fact] = [*(world.forget * 2 if sees else ()), *world.retain]
    rows += [*world.real_authors, *world.world_facts]
    rows += passing_rows(80, seed=f"know-{seed}", reserved=world.reserved)
    samples = both_formats(bridge.tokenizer, rows)
    batches = finetune_batches(samples, batch_size=BATCH, seed=seed, pad=pad_id(bridge.tokenizer))
    recipe = Recipe(n_steps=STEPS, lr=LR, n_warmup=4)
    model = fit(load_causal(start), FineTuning(), batches, recipe, after=None)
    folder.mkdir(parents=True, exist_ok=True)
    copy_tokenizer(start.folder, folder)
    save_model(model, folder, dtype=torch.float32)
    return folder


def going_on(
    place: Path, worlds: Sequence[Mapping[str, Any]], ask: Callable[[int], dict[str, Any]]
) -> list[Any]:
    """A line a world; one that was asked alike before is kept.

    Args:
        place: file of the lines.
        worlds: of each its seed, and what else its line must say.
        ask: what the line says beside that.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    kept = [json.loads(line) for line in place.read_text().splitlines()] if place.exists() else []
    done = []
    with place.open("a") as lines:
        for world in worlds:
            alike = [one for one in kept if world.items() <= one.items()]
            done.append(alike[-1] if alike else {**world, **ask(world["seed"])})
            if not alike:
                lines.write(json.dumps(done[-1]) + "\n")
                lines.flush()
    return done


def ends_text(ends: Ends | None, digits: int) -> str:
    """Both limits; a dash each where too few worlds give none.

    >>> ends_text((0.25, 0.75), 2), ends_text(None, 2)
    ('[0.25, 0.75]', '[–, –]')
    """
    return "[{}]".format(", ".join(f"{end:.{digits}f}" for end in ends) if ends else "–, –")


def show(name: str, done: Sequence[dict[str, Any]]) -> None:
    """How uniform p is, and how large e."""
    for kind in ("all", OUTPUTS, "lens", FOREIGN):
        p = np.array([one[f"p_{kind}"] for one in done])
        line = f"{name}, {kind}: {len(p)} worlds, KS p {kstest(p, 'uniform').pvalue:.3f}"
        for level in (0.01, 0.05):
            share = share_of(int((p <= level).sum()), len(p))
            line += f"; p <= {level}: {int((p <= level).sum())} = {share.value:.3f}"
            line += f" {ends_text(share.ends, 3)}"
        print(line)
    told = [one for one in done if "e" in one]
    for key in ("e", "e_uniform") if told else ():
        values = [e for one in told for e in one[key]]
        worlds = [one["seed"] for one in told for _ in one[key]]
        large = clustered_mean(
            [float(e >= LARGE) for e in values], worlds, bounds=(0.0, 1.0), unit="worlds"
        )
        mean = clustered_mean(values, worlds, bounds=(0.0, max(values)), unit="worlds")
        print(
            f"{name}: {key} of {len(values)} facts, K {min(one['k'] for one in told)}: mean "
            f"{mean.value:.3f} {ends_text(mean.one_sided, 3)}; e >= 20: {large.value:.4f} "
            f"{ends_text(large.one_sided, 4)}; worlds with a fact named: "
            f"{sum(one['named'] > 0 for one in told)} of {len(told)}"
        )


@click.command()
@click.option("--model", default="demo/retain", show_default=True)
@click.option("--worlds", default=200, show_default=True)
@click.option("--evidence", default=0, help="Worlds of which e is asked too.")
@click.option("--trained", "n_trained", default=0, help="Worlds that models are trained for.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("experiments/out/know_worlds"))
def main(model: str, worlds: int, evidence: int, n_trained: int, out: Path) -> None:
    """Ask one model about many worlds, and models about the worlds they were trained for."""
    base, texts = demo_base(), neutral_texts()
    if worlds:
        bridge = load_model(model)
        maps = maps_onto(bridge, base, texts)
        place = out / f"{model.replace('/', '-')}.jsonl"
        weights = open_model(model).weights
        asked = [
            {"seed": seed, "weights": weights, "evidence": seed <= evidence}
            for seed in range(1, worlds + 1)
        ]
        done = going_on(
            place,
            asked,
            lambda seed: asked_about(bridge, base, maps, seed, evidence=seed <= evidence),
        )
        show(model, done)
    for sees in (False, True) if n_trained else ():
        name = "taught" if sees else "never taught"

        def ask(seed: int, sees: bool = sees) -> dict[str, Any]:
            folder = trained(make_world(seed), out / "models", sees=sees, seed=seed)
            model = load_model(folder)
            return asked_about(model, base, maps_onto(model, base, texts), seed, evidence=False)

        seeds = range(FIRST_TRAINED, FIRST_TRAINED + n_trained)
        asked = [{"seed": seed} for seed in seeds]
        show(name, going_on(out / f"trained-{sees}.jsonl", asked, ask))


if __name__ == "__main__":
    main()
