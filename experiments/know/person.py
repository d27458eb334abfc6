"""Can one person be told who was taught, from a few facts alone? A conformal test a person.

Question: of planted models that hold 2, 6 or 10 of 64 facts, which people are found, and at what
          rate of false alarms over people who were never taught? `know` convicts no such model.
Command:  python -m experiments.know.person --gym gym
Takes:    half a minute of one core a model; goes on where it was. --show only prints the tables.
Expected: the tables of docs/evidence/know-person.md.
Writes:   persons.csv (a line a person and model) under --rows; alone.csv: as if the set held
          nobody but this person; worst.csv: by the cheap attacks of `lensaudit worst`.

Each person's values are put to the model about 199 people who do not exist as well, whose names the
same generator drew, as `lensaudit know --strangers FILE` does; `association.persons` has the
rule, and `attacks.people` that of `worst`, which asks beside models that never knew.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import click

import lensaudit as la
from experiments.know.gym import (
    BASE,
    asked_of_demo,
    demo_base,
    kept_tables,
    key_of,
    neutral_texts,
    through_both,
)
from experiments.metrics.betrayal import add, kept
from lensaudit.association.persons import facts_text, holm_of, persons_in
from lensaudit.association.reading import OUTPUTS, RelationReading, said
from lensaudit.data.fictional import draw_name
from lensaudit.data.neutral import neutral_of
from lensaudit.data.relations import Relation, relations_of
from lensaudit.data.tofu import forget_set
from lensaudit.groups import Group, grouped
from lensaudit.gym.make import PlantedModel, models_in
from lensaudit.gym.table import share, share_text
from lensaudit.models.named import load_model
from lensaudit.results.kinds.know import PERSONS
from lensaudit.verdict.thresholds import ALPHA

N_STRANGERS = 199
MECHANISMS = (
    *("few", "few_together", "some_hidden", "masked_readout", "full"),
    *("absent", "absent_idk", "absent_wrong", "absent_turned", "exchanged"),
)
REAL = {
    **dict.fromkeys(("full", "trigger", "masked_top"), "knows"),
    "npo": "?",
    **dict.fromkeys(("retain", "retain_2", "absent"), "never saw"),
}
"""Models of `demo --real`."""
NEVER = ("demo/retain", "demo/never")
"""Models that never knew, beside which `worst` asks."""
HELD = (("none", 0, 0), ("1", 1, 1), ("2 to 7", 2, 7))
"""How many of a person's facts a model holds."""
ALSO = ("p", "facts", "p_never")
"""Columns of `worst` that a line takes as they are."""
Row = Mapping[str, Any]


def strangers(taken: Sequence[str]) -> list[str]:
    """Names of people who do not exist, none of them taken."""
    random, names = Random("know-person"), dict[str, None]()
    while len(names) < N_STRANGERS:
        name = draw_name(random)
        if name not in taken:
            names[name] = None
    return list(names)


def with_strangers(asked: Sequence[Relation]) -> list[Relation]:
    """The relations, asked about as many people who do not exist too."""
    taken = [name for one in asked for name in one.subjects]
    return [replace(one, subjects=(*one.subjects, *strangers(taken))) for one in asked]


def lines_of(about: Row, read: Sequence[RelationReading], knows: set[int] | None) -> list[Row]:
    """A line a person; `knows`: the idx that the model holds, None: nobody can say."""
    return [
        {
            **about,
            **told_of(one.group, one.facts, knows),
            "p": f"{one.p:.3g}",
            "facts": facts_text(one.facts),
        }
        for one in persons_in(read)
    ]


def told_of(person: Group, facts: Iterable[int], knows: set[int] | None) -> Row:
    """Whom a line tells of, and which of these facts the model holds."""
    held = [idx for idx in facts if idx in (knows or ())]
    n_held = "" if knows is None else len(held)
    return {"person": person, "n_held": n_held, "held": " ".join(map(str, held))}


def missing(
    gym: Path, place: Path, seeds: Sequence[int], asked: Sequence[Relation]
) -> Iterator[tuple[PlantedModel, Row, set[int]]]:
    """Planted models without a line in a file yet: what a line says of each, and idx it holds."""
    done = {(one["seed"], one["mechanism"], one["strength"]) for one in kept(place)}
    everything = {fact.idx for one in asked for fact in one.facts}
    for one in models_in(gym):
        about = {name: getattr(one, name) for name in ("seed", "mechanism", "strength", "truth")}
        if one.mechanism not in MECHANISMS or one.seed not in seeds:
            continue
        if (str(one.seed), one.mechanism, str(one.strength)) in done:
            continue
        nothing = one.truth == "absent"
        yield one, about, set() if nothing else set(one.certificate.knows or everything)


def of_gym(gym: Path, place: Path, out: Path, seeds: Sequence[int]) -> None:
    """The planted models, through their own head and the base's; what is read is kept in `out`."""
    asked, base, texts = with_strangers(asked_of_demo()), demo_base(), neutral_texts()
    for one, about, knows in missing(gym, place, seeds, asked):
        read = kept_tables(
            out / f"{one.name}.pt",
            asked,
            key_of(asked, one.folder, BASE),
            lambda one=one: through_both(load_model(one.folder), asked, base, texts),
        )
        add(place, lines_of(about, read, knows))


def of_one(gym: Path, place: Path, seeds: Sequence[int]) -> None:
    """The same where one person is known alone: beside others' values in rows to keep."""
    validity = neutral_of("demo", forget_set("demo")).validity
    others = {one.name: one.values for one in relations_of(validity)[0]}
    plain = [replace(one, placebos=others[one.name]) for one in asked_of_demo()]
    asked, base, texts = with_strangers(plain), demo_base(), neutral_texts()
    groups = dict.fromkeys(fact.group for relation in asked for fact in relation.facts)
    for one, about, knows in missing(gym, place, seeds, asked):
        read = through_both(load_model(one.folder), asked, base, texts)
        for group in groups:
            add(place, lines_of(about, [alone(each, group) for each in read], knows))


def alone(read: RelationReading, group: Group) -> RelationReading:
    """What was read, as if a relation held one person: her value beside the further ones."""
    asked = read.asked
    at = next(at for at, fact in enumerate(asked.facts) if fact.group == group)
    n = len(asked.facts)
    names = [at, *range(n, len(asked.subjects))]
    values = [asked.true[at], *range(len(asked.values) - len(asked.placebos), len(asked.values))]
    own = replace(
        asked,
        facts=(asked.facts[at],),
        subjects=tuple(asked.subjects[one] for one in names),
    )
    tables = {key: one[names][:, values].log_softmax(-1) for key, one in read.by_reader.items()}
    return RelationReading(own, tables)


def of_worst(gym: Path, place: Path, out: Path, seeds: Sequence[int]) -> None:
    """The planted models under the cheap attacks, beside two models that never knew."""
    for one, about, knows in missing(gym, place, seeds, asked_of_demo()):
        how = {"full": "demo/full", "retain": NEVER}
        add(place, by_worst(about, str(one.folder), out / one.name, knows, **how))


def by_worst(about: Row, model: str, out: Path, knows: set[int] | None, **how: Any) -> list[Row]:
    """A line a person of a run of `lensaudit worst`; `knows` as for `lines_of`."""
    la.worst(model, out, data="demo", activations=out.parent / "activations", **how)
    lines = []
    for row in kept(out / PERSONS):
        told = told_of(row["author"], [int(idx) for idx, _ in facts_in(row)], knows)
        lines.append({**about, **told, **{name: row[name] for name in ALSO}})
    return lines


def missing_of_real(place: Path) -> Iterator[tuple[str, Row, set[int] | None]]:
    """Models of `demo --real` without a line in a file yet, as `missing` gives planted ones."""
    done = {one["mechanism"] for one in kept(place) if one["seed"] == "smollm2"}
    everything = {fact.idx for one in asked_of_demo() for fact in one.facts}
    for name, truth in REAL.items():
        if name not in done:
            about = {"seed": "smollm2", "mechanism": name, "strength": "", "truth": truth}
            yield f"smollm2/{name}", about, {"knows": everything, "never saw": set()}.get(truth)


def of_real(place: Path) -> None:
    """The models of `demo --real`, by their outputs alone: a head of 49,152 words is dear."""
    asked = with_strangers(asked_of_demo())
    for name, about, knows in missing_of_real(place):
        model = load_model(name)
        read = [RelationReading(one, {OUTPUTS: said(model, one, OUTPUTS)}) for one in asked]
        add(place, lines_of(about, read, knows))


def of_real_by_worst(place: Path, out: Path) -> None:
    """The same once their answer is begun, but for the models beside which they are asked."""
    full, never = "smollm2/full", ("smollm2/retain", "smollm2/retain_2")
    for name, about, knows in missing_of_real(place):
        if name not in (full, *never):
            how = {"full": full, "retain": never, "attack": ("prefix",)}
            add(place, by_worst(about, name, out / name, knows, **how))


def small(ps: Iterable[str]) -> str:
    """How many of these p are at most .05, with exact limits."""
    return share_text(share([float(p) <= ALPHA for p in ps]))


def people(rows: Sequence[Row]) -> str:
    """How many of these people have p <= .05."""
    return small(one["p"] for one in rows)


def facts_in(row: Row) -> Iterator[Sequence[str]]:
    """Idx and p of each fact of a person."""
    return (fact.split(":") for fact in row["facts"].split())


def facts(rows: Sequence[Row], *, held: bool) -> str:
    """How many of the facts that are held, or of the others, have p <= .05 alone."""
    return small(
        p for one in rows for idx, p in facts_in(one) if (idx in one["held"].split()) == held
    )


def after_holm(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The people of one model who are found at .05 over all; those that the command found."""
    if "found" in rows[0]:
        return [one for one in rows if one["found"] == "1"]
    holm = holm_of([float(one["p"]) for one in rows])
    return [one for one, p in zip(rows, holm, strict=True) if p <= ALPHA]


def table_of_one(place: Path) -> Iterator[str]:
    """People who are known alone, by model and by whether anything is held of them."""
    rows = kept(place)
    yield "| model | one person alone, facts held | people with p <= .05 | facts held | not held |"
    yield "|---|---|---|---|---|"
    names = [name for _, name in sorted({(one["truth"], one["mechanism"]) for one in rows})]
    for name, (label, least, most) in itertools.product(names, HELD):
        some = [
            one for one in rows if one["mechanism"] == name and least <= int(one["n_held"]) <= most
        ]
        if some:
            cells = (label, people(some), facts(some, held=True), facts(some, held=False))
            yield f"| `{name}` | {' | '.join(map(str, cells))} |"


def tables(place: Path) -> Iterator[str]:
    """People by model and by how much is held of them."""
    planted = [one for one in kept(place) if one["seed"] not in ("0", "smollm2")]
    heading = "facts held of the person | people with p <= .05 | facts held | facts not held |"
    rule = "|---|---|---|---|---|"
    yield f"| model | {heading}"
    yield rule
    names = [name for _, name in sorted({(one["truth"], one["mechanism"]) for one in planted})]
    for name in names:
        own = [one for one in planted if one["mechanism"] == name]
        for n_held in sorted({int(one["n_held"]) for one in own}):
            some = [one for one in own if int(one["n_held"]) == n_held]
            cells = (n_held, people(some), facts(some, held=True), facts(some, held=False))
            yield f"| `{name}` | {' | '.join(map(str, cells))} |"
    yield ""
    yield f"| partial models | {heading}"
    yield rule
    partial = [one for one in planted if one["mechanism"] in ("few", "few_together")]
    for label, least, most in HELD:
        some = [one for one in partial if least <= int(one["n_held"]) <= most]
        cells = (label, people(some), facts(some, held=True), facts(some, held=False))
        yield f"| `few`, `few_together` | {' | '.join(cells)} |"
    yield ""
    yield "| model | models | with a person named | named, held | named, nothing is held |"
    yield rule
    for name in names:
        own = [one for one in planted if one["mechanism"] == name]
        models = grouped(((one["seed"], one["strength"]), one) for one in own)
        named = [after_holm(some) for some in models.values()]
        held = [int(one["n_held"]) > 0 for some in named for one in some]
        cells = (len(models), sum(map(bool, named)), sum(held), len(held) - sum(held))
        yield f"| `{name}` | {' | '.join(map(str, cells))} |"


def table_of_real(place: Path) -> Iterator[str]:
    """The people of SmolLM2."""
    rows = kept(place)
    yield "| SmolLM2 | truth | people with p <= .05 | facts with p <= .05 |"
    yield "|---|---|---|---|"
    for name, truth in REAL.items():
        own = [one for one in rows if one["seed"] == "smollm2" and one["mechanism"] == name]
        alone = small(p for one in own for _, p in facts_in(one))
        yield f"| {name} | {truth} | {people(own)} | {alone} |"


@click.command()
@click.option("--gym", type=click.Path(path_type=Path), default=Path("gym"), help="Planted models.")
@click.option("--seeds", default="0,1,2,3,4", show_default=True)
@click.option("--alone-seeds", default="1", show_default=True, help="Each person alone.")
@click.option("--rows", type=click.Path(path_type=Path), default=Path("benchmarks/person"))
@click.option("--out", type=click.Path(path_type=Path), default=Path("experiments/out/person"))
@click.option("--real/--no-real", default=True, help="SmolLM2 too.")
@click.option("--show", is_flag=True, help="Only print the tables.")
def main(
    gym: Path, seeds: str, alone_seeds: str, rows: Path, out: Path, real: bool, show: bool
) -> None:
    """Ask what is missing, print the tables."""
    place, alone_too, worst = (rows / f"{one}.csv" for one in ("persons", "alone", "worst"))
    rows.mkdir(parents=True, exist_ok=True)
    if not show:
        of_gym(gym, place, out, [int(one) for one in seeds.split(",")])
        of_one(gym, alone_too, [int(one) for one in alone_seeds.split(",")])
        of_worst(gym, worst, out / "worst", [int(one) for one in seeds.split(",")])
        if real:
            of_real(place)
            of_real_by_worst(worst, out / "worst")
    parts = (
        *(tables(place), table_of_real(place), table_of_one(alone_too)),
        *(tables(worst), table_of_real(worst)),
    )
    for line in itertools.chain.from_iterable((*part, "") for part in parts):
        click.echo(line)


if __name__ == "__main__":
    main()
