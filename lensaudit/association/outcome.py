"""What came out of asking who has what: numbers, controls, and the sentence that follows."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lensaudit.association.endpoint import Served
from lensaudit.association.evidence import (
    LEVEL,
    POWER,
    FactEvidence,
    RelationReading,
    binding_of,
    by_relation,
    facts_of_read,
    mean_of,
    naming_of,
    power_of,
    priors_of,
    traces_of,
)
from lensaudit.association.opening import Know
from lensaudit.association.reading import LENS, OUTPUTS, upper_layers
from lensaudit.files import write_csv, write_json
from lensaudit.groups import Group, unit_of
from lensaudit.results.attacks import KnowControl, KnowMatrix, KnownRelation, KnowPower, KnowRun
from lensaudit.results.records import signed
from lensaudit.scores.assignment import Assignment, double_centred
from lensaudit.scores.intervals import clustered_mean

KEPT_LEVEL = 0.05
"""Below it kept facts are found: the test can see what this model knows."""
FACT_COLUMNS = (
    "idx",
    "author",
    "relation",
    "bits_familiar",
    "bits_associated",
    "e",
    "named",
    "unscored",
)
RELATION_COLUMNS = ("relation", "n", "trace", "z", "p")
LAYER_COLUMNS = ("layer", "head", "bits_familiar")


@dataclass(frozen=True)
class KnowOutcome:
    """Who has what, as one model says it: the summary, and the tables beside it."""

    run: KnowRun
    facts: tuple[FactEvidence, ...]
    layers: tuple[tuple[int, str, float], ...]
    """Layer, whose head reads it, mean bits."""
    matrix: KnowMatrix
    """The relation that tells most, for a picture."""


def _headline(run: KnowRun) -> str:
    """The finding, in words; never that nothing is there."""
    p = f"{run.p:.2g}"
    if failed := run.failed:
        return f"{run.source}: undecided: {failed.said}"
    if run.finds:
        low = None if run.bits is None else run.bits.low
        held = f"; holds at least {low:.1f} bits a fact" if low is not None and low > 0 else ""
        tilt = f", survives cues that tilt odds by up to {run.gamma:.2g}" if run.gamma > 1 else ""
        return (
            f"{run.source}: binds values to subjects beyond chance (assignment test "
            f"p {p}, z {run.z:.1f}, {run.n_subjects} subjects{tilt}){held}"
        )
    if run.p <= LEVEL:
        return (
            f"{run.source}: undecided: p {p}, but names alone tilt odds by "
            f"{run.gamma_controls:.2g} in models that never knew"
        )
    power = run.power
    could = (
        f"this test would have found {power.bits:.1f} bits a fact with a power of {power.share:.1g}"
        if power.bits is not None
        else power.why or f"{run.n_subjects} subjects are too few to find anything"
    )
    kept = next((one for one in run.controls if one.name == "kept" and not one.passed), None)
    blind = f"; {kept.said}" if kept else ""
    return f"{run.source}: no evidence found (assignment test p {p}); {could}{blind}"


def outcome_of(know: Know, heard: Sequence[Sequence[RelationReading]]) -> KnowOutcome:
    """Judge what was heard of the source, then of ignorant models; pure but for seeds.

    Of each model the relations that are asked, then those of facts that it should still know.
    """
    n_asked, seed = len(know.asked), know.settings.seed
    own, *never = ([counted(one) for one in read[:n_asked]] for read in heard)
    n_base = int(know.base is not None)
    test, strata = binding_of(own, seed=seed), traces_of(own)[1]
    facts: list[FactEvidence] = []
    called: list[float] = []
    for one, *others in zip(own, *never, strict=True):
        prior = priors_of(one, others[:n_base], others[n_base:])
        facts += facts_of_read(one, prior)
        for rows in others[n_base:]:
            called += [f.e for f in facts_of_read(rows, prior) if f.e is not None]
    groups = [one.group for one in facts]
    top = math.log2(max(len(one.asked.values) for one in own))
    bits = [one.associated for one in facts if one.associated is not None]
    named, naming = naming_of(facts, min(len(one.asked.values) for one in own))
    tests = [binding_of(rows, seed=seed) for rows in never]
    names = [one.spec.name for one in know.ignorant]
    alone, power = by_relation(own, seed=seed), KnowPower(None, POWER)
    if test.p > LEVEL and isinstance(know.source, Served) and know.source.reading == "samples":
        # it depends on answers that name no value
        power = replace(power, why="what samples would have shown is not reckoned")
    elif test.p > LEVEL:
        power = power_of(own, seed=seed)
    run = KnowRun(
        source=know.source.spec.name,
        headline="",
        finds=False,
        p=test.p,
        z=test.z,
        reader=list(own[0].by_reader)[test.reading],
        exact=test.exact,
        n_permutations=test.n_permutations,
        gamma=test.gamma,
        gamma_controls=max([1.0, *(one.gamma for one in tests)]),
        bits=mean_of(bits, groups, top) if bits else None,
        bits_familiar=mean_of([one.familiar for one in facts], groups, top),
        power=power,
        named=named,
        naming=naming,
        controls=[
            *_kept(heard[0][n_asked:], seed),
            *(_never_bound(*one) for one in zip(names, tests, strict=True)),
            *_fair(called, groups * len(know.retains)),
        ],
        priors=[
            "uniform",
            *([know.base.spec.name] if know.base else []),
            "invented namesakes",
            *(["mean of never-trained models"] if len(know.retains) > 1 else []),
        ],
        readers=list(know.readers),
        n=sum(len(asked) * len(subjects) for asked, subjects in strata.items()),
        n_subjects=sum(map(len, strata.values())),
        relations=[
            KnownRelation(
                one.asked.name,
                len(one.asked.facts),
                float(double_centred(one.table[own_test.reading]).trace()),
                own_test.z,
                own_test.p,
            )
            for one, own_test in zip(own, alone, strict=True)
        ],
        max_bits=top,
        unscored={str(idx): why for idx, why in sorted(know.unscored.items())},
        remarks=list(know.remarks),
    )
    borne = run.gamma_controls <= 1 or run.gamma >= run.gamma_controls
    run = replace(run, finds=run.p <= LEVEL and run.failed is None and borne)
    return KnowOutcome(
        replace(run, headline=_headline(run)),
        tuple(replace(one, named=one.idx in named) for one in facts),
        tuple(_layers(heard[0][:n_asked])),
        matrix_of(own, run.relations),
    )


def counted(read: RelationReading) -> RelationReading:
    """The readers that the test takes the largest of: of layers three upper ones."""
    layers = [int(name.split()[1]) for name in read.by_reader if name.startswith(f"{LENS} ")]
    layers = layers or [int(n.split()[1]) for n in read.by_reader if n.startswith("foreign ")]
    upper = upper_layers(1 + max(layers)) if layers else ()  # the last is always read
    kept = {
        name: table
        for name, table in read.by_reader.items()
        if " " not in name or int(name.split()[1]) in upper
    }
    return RelationReading(read.asked, kept)


def _kept(read: Sequence[RelationReading], seed: int) -> list[KnowControl]:
    if not read:
        return []
    p = binding_of(read, seed=seed).p
    what = "are found" if p <= KEPT_LEVEL else "are not found either: this test may be blind here"
    return [KnowControl("kept", p <= KEPT_LEVEL, f"facts to keep {what} (p {p:.2g})")]


def _never_bound(name: str, one: Assignment) -> KnowControl:
    p, what = one.p, "binds nothing"
    if p <= LEVEL:
        what = (
            "binds the values too: it knows the facts, or names give them away; name models that "
            "never saw them, or none"
        )
    return KnowControl(f"never: {name}", p > LEVEL, f"{name} {what} (p {p:.2g})")


def _fair(called: Sequence[float], groups: Sequence[Group]) -> list[KnowControl]:
    """Evidence in models that never knew: its lower limit is at most 1."""
    if not called:
        return []
    found = clustered_mean(called, groups, bounds=(0.0, max(called)), unit=unit_of(groups))
    low = found.point if found.lower is None else found.lower
    said = f"mean e of models that never knew {found.point:.2f}, at least {low:.2f}"
    return [KnowControl("fair prior", low <= 1, said)]


def _layers(own: Sequence[RelationReading]) -> list[tuple[int, str, float]]:
    """Mean familiarity of all facts by layer, through the own head and an ignorant one."""
    found = []
    for name in (one for one in own[0].by_reader if " " in one):
        head, layer = name.split()
        alone = [RelationReading(one.asked, {name: one.by_reader[name]}) for one in own]
        values = [fact.familiar for one in alone for fact in facts_of_read(one, None)]
        found.append((int(layer), "own" if head == LENS else "ignorant", sum(values) / len(values)))
    return sorted(found)


def write_outcome(found: KnowOutcome, know: Know, out: Path) -> dict[str, Any]:
    """Write the tables and the matrix; returns the summary."""
    rows: list[list[Any]] = [
        [one.idx, one.group, one.relation, one.familiar, one.associated, one.e, int(one.named), ""]
        for one in found.facts
    ]
    rows += [[idx, "", "", "", "", "", "", why] for idx, why in know.unscored.items()]
    write_csv(out / "facts.csv", FACT_COLUMNS, sorted(rows))
    relations = [list(vars(one).values()) for one in found.run.relations]
    write_csv(out / "relations.csv", RELATION_COLUMNS, relations)
    write_csv(out / "layers.csv", LAYER_COLUMNS, [list(row) for row in found.layers])
    write_json(out / "matrix.json", signed(asdict(found.matrix)))
    return found.run.document()


def matrix_of(read: Sequence[RelationReading], relations: Sequence[KnownRelation]) -> KnowMatrix:
    """The relation that tells most: subjects by values, probabilities of what it says."""
    at = max(range(len(read)), key=lambda one: relations[one].z)
    relation, rows = read[at].asked, read[at].by_reader
    name = OUTPUTS if OUTPUTS in rows else next(iter(rows))
    values = relation.values[: len(relation.values) - len(relation.placebos)]
    table = rows[name][: len(relation.subjects), : len(values)].log_softmax(-1).exp()
    return KnowMatrix(
        relation=relation.name,
        reader=name,
        subjects=list(relation.subjects),
        values=list(values),
        truth=list(relation.true),
        p=[[round(value, 4) for value in row] for row in table.tolist()],
    )
