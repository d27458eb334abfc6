"""From what readers say of every value to a p, bits of each fact, controls and a sentence.

Two questions, two numbers: is a value bound to its subject (association, the assignment test and
bits beside invented subjects called alike), and is it likelier than other values at all
(familiarity, bits beside a uniform guess). Neither says that a model is ignorant.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.association.address import Served
from lensaudit.association.assignment import (
    HEDGE,
    Assignment,
    Traces,
    assignment_test,
    bits,
    candidates_wanted,
    double_centred,
    evidence,
    gamma_of,
    named_facts,
    prior_of,
    tilted_p,
)
from lensaudit.association.opening import FEWEST_INVENTED, Know
from lensaudit.association.persons import COLUMNS, Person, people_of, said_of
from lensaudit.association.reading import LENS, OUTPUTS, RelationReading, upper_layers
from lensaudit.files import write_csv, write_json
from lensaudit.groups import Group, grouped, natural, unit_of
from lensaudit.results.kinds.know import (
    LEVEL,
    PERSONS,
    KnowControl,
    KnowMatrix,
    KnownRelation,
    KnowPower,
    KnowRecord,
)
from lensaudit.results.manifest import signed
from lensaudit.results.reading import document
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import clustered_mean
from lensaudit.verdict.thresholds import ALPHA

NEARLY = 0.05
"""P of a never-trained model above which names give it nothing away."""
FDR = 0.1
"""Of the facts that are named."""
POWER = 0.8
LEAST_TILT = 1.02
"""Above 1 by what `gamma_of` tells apart: a finding bears it, or has a model beside it."""
Strata = Mapping[tuple[int, ...], tuple[Group, ...]]
"""Numbers of relations -> subjects that are asked all of them: their values may be exchanged."""


@dataclass(frozen=True)
class FactEvidence:
    """What a model holds of one fact."""

    idx: int
    group: Group
    relation: str
    familiar: float
    """Bits beside a uniform guess among the values."""
    associated: float | None
    """Bits beside the prior of a model that never knew; None where there is no prior."""
    e: float | None
    """Evidence value of the association: at most the candidates."""
    n_candidates: int
    """Values that were put after its prompt."""
    named: bool = False


def strata_of(relations: Sequence[Sequence[Group]]) -> Strata:
    """Blocks of subjects and relations, such that each subject of a block is in all its relations.

    One permutation serves all relations only where the permuted subjects are asked the same.
    Subjects begin apart by what they are asked; two blocks are joined, on the relations that both
    have, where (subjects - 1) times relations grows; of equal pairs that of the first subjects.

    >>> strata_of([["a", "b", "c"], ["a", "b"]])
    {(0, 1): ('a', 'b')}
    """
    asked = grouped((one, at) for at, groups in enumerate(relations) for one in groups)
    blocks = grouped((frozenset(asked[one]), one) for one in sorted(asked, key=natural))

    def gain(pair: tuple[frozenset[int], frozenset[int]]) -> int:
        """What two blocks are worth as one beyond what they are worth apart."""
        a, b = pair
        n_a, n_b = len(blocks[a]), len(blocks[b])
        return (n_a + n_b - 1) * len(a & b) - (n_a - 1) * len(a) - (n_b - 1) * len(b)

    while len(blocks) > 1 and gain(best := max(combinations(blocks, 2), key=gain)) > 0:
        a, b = best
        joined = blocks.pop(a) + blocks.pop(b)
        blocks[a & b] = blocks.get(a & b, []) + joined
    return {
        tuple(sorted(pattern)): tuple(groups)
        for pattern, groups in blocks.items()
        if len(groups) > 1 and pattern
    }


def groups_of(read: Sequence[RelationReading]) -> list[list[Group]]:
    """Author of each fact, by relation."""
    return [[fact.group for fact in one.asked.facts] for one in read]


def traces_of(read: Sequence[RelationReading]) -> tuple[list[Traces], Strata]:
    """D of every stratum, summed over its relations; and the strata."""
    groups = groups_of(read)
    traces, strata = [], strata_of(groups)
    for relations, subjects in strata.items():
        parts = []
        for at in relations:
            places = [groups[at].index(one) for one in subjects]
            parts.append(double_centred(read[at].table[:, places][..., places].double()))
        traces.append(torch.stack(parts).sum(0))
    return traces, strata


def binding_of(read: Sequence[RelationReading], *, seed: int) -> Assignment:
    """The assignment test over all relations and readers, with the tilt that p at `LEVEL` bears."""
    traces, _ = traces_of(read)
    generator = np.random.default_rng(seed)
    test = assignment_test(traces, generator=generator)
    if not traces:
        return test
    alone = [one[test.reading] for one in traces]
    return replace(test, gamma=gamma_of(alone, LEVEL, generator=generator))


@dataclass(frozen=True)
class Priors:
    """What models that never knew would say of every subject's values in a relation."""

    names: tuple[str, ...]
    """Of those that were asked: "uniform", a base by its name, namesakes, a mean."""
    rows: Float[Tensor, "subject value"] | None
    """The largest of them at each value; None beside a uniform guess alone."""


def priors_of(
    own: RelationReading, bases: Mapping[str, RelationReading], never: Sequence[RelationReading]
) -> Priors:
    """Priors of a relation: of any model that never knew, and what each is called.

    Uniform; a base model; the source about invented subjects, by the reader that says most; the
    tempered mean of two and more never-trained models.

    Args:
        own: of the source.
        bases: name -> reading of a model that is ignorant by itself.
        never: of never-trained models, noisy guessers each.
    """
    n, n_values = len(own.asked.subjects), len(own.asked.values)
    parts = {"uniform": torch.full((n, n_values), 1 / n_values, dtype=torch.float64)}
    parts |= {name: one.by_reader[OUTPUTS][:n].exp() for name, one in bases.items()}
    if len(own.asked.invented) >= FEWEST_INVENTED and OUTPUTS in own.by_reader:
        parts["invented namesakes"] = _alike(own.by_reader[OUTPUTS][n:].exp(), n)
    if len(never) > 1:
        logs = torch.stack([one.by_reader[OUTPUTS][:n] for one in never])
        parts["mean of never-trained models"] = logs.mean(0).softmax(-1)
    if len(parts) == 1:
        return Priors(tuple(parts), None)
    largest = [prior_of([part[at] for part in parts.values()]) for at in range(n)]
    return Priors(tuple(parts), torch.stack(largest))


def named_priors(relations: Sequence[Priors]) -> list[str]:
    """The priors of a run; of one that not every relation has, in how many.

    >>> named_priors([Priors(("uniform", "base"), None), Priors(("uniform",), None)])
    ['uniform', 'base (1 of 2 relations)']
    """
    n_with = Counter(name for one in relations for name in one.names)
    n = len(relations)
    return [name if m == n else f"{name} ({m} of {n} relations)" for name, m in n_with.items()]


def _alike(rows: Float[Tensor, "invented value"], n: int) -> Float[Tensor, "subject value"]:
    """The mean over a subject's own invented namesakes: they stand subject after subject."""
    if len(rows) % n == 0 and len(rows) // n >= FEWEST_INVENTED:
        return rows.unflatten(0, (n, -1)).mean(1)
    return rows.mean(0).expand(n, -1)


def facts_of_read(
    own: RelationReading, prior: Float[Tensor, "subject value"] | None
) -> Iterator[FactEvidence]:
    """Bits of every fact of a relation."""
    relation, n_values = own.asked, len(own.asked.values)
    uniform = torch.full((n_values,), 1 / n_values, dtype=torch.float64)
    for at, (fact, true) in enumerate(zip(relation.facts, relation.true, strict=True)):
        order = [true, *(one for one in range(n_values) if one != true)]
        said = torch.stack([rows[at].exp() for rows in own.by_reader.values()])[:, order]
        given = None if prior is None else prior[at][order]
        yield FactEvidence(
            fact.idx,
            fact.group,
            relation.name,
            bits(said, uniform),
            None if given is None else bits(said, given),
            None if given is None else evidence(said, given),
            n_values,
        )


def mean_of(facts: Sequence[FactEvidence], name: str, top: float) -> Estimate:
    """Mean of a field with its interval by authors; `top` is the most that a value can be.

    The interval is that of shares of the way from the least bits to the most: many facts sit on an
    end of it, and a t interval would say too much of them.
    """
    values, groups = [getattr(one, name) for one in facts], [one.group for one in facts]
    least = math.log2(HEDGE)
    way = max(top, *values) - least
    found = clustered_mean([(one - least) / way for one in values], groups, unit=unit_of(groups))
    found = found.on(-least / way, (1 - least) / way)
    return replace(found, lower=None, upper=None)  # the record holds the 95 % interval


def naming_of(
    facts: Sequence[FactEvidence], *, more: bool = True
) -> tuple[list[int], dict[str, Any]]:
    """e-BH over all facts: idx of those that are named, and how, or why none can be.

    `fewest` facts must be known before any can be named: the least k such that k facts have
    candidates for an e of n / (k `FDR`). Refused where there is none, with the candidates that
    would do; `more` says whether further placebos may be had.
    """
    e, how = {one.idx: one.e for one in facts if one.e is not None}, {"fdr": FDR, "fewest": None}
    if not e:
        return [], {
            **how,
            "why": "no model that never knew was asked for a prior: name one with --base",
        }
    caps = sorted((one.n_candidates for one in facts if one.e is not None), reverse=True)
    reached = (k for k, cap in enumerate(caps, 1) if k >= len(e) / (cap * FDR) - 1e-9)
    if fewest := next(reached, None):
        return named_facts(e, FDR), {**how, "fewest": fewest, "why": None}
    some = max(1, len(e) // 10)
    wanted = candidates_wanted(len(e), some, FDR)
    have = f"facts have {caps[-1]} to" if caps[-1] < caps[0] else "each fact has"
    why = f"{have} {caps[0]} candidates; to name {some} facts takes {wanted}"
    return [], {**how, "why": f"{why} (--placebos)" if more else why}


def power_of(
    read: Sequence[RelationReading], *, seed: int, borne: float = 1.0, n_worlds: int = 40
) -> KnowPower:
    """Power of the test: planted knowledge that it finds in the model's readings of others.

    The values are given out anew, so that nothing is bound, and each true one is made likelier by
    the same factor, in every reader and in every relation that a subject is asked in its stratum.
    The least factor whose p is at `LEVEL` in four of five draws, also under the tilt by cues that
    must be `borne` (power of a sensitivity analysis: Rosenbaum 2010, chapter 14); 1: none.
    """
    generator = np.random.default_rng(seed)
    traces, strata = traces_of(read)
    worlds = [
        [one[..., torch.from_numpy(generator.permutation(one.shape[-1]))] for one in traces]
        for _ in range(n_worlds)
    ]
    for nats in (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0):
        found = 0
        for world in worlds:
            planted = [
                double_centred(
                    one + nats * len(relations) * torch.eye(one.shape[-1], dtype=torch.float32)
                )
                for one, relations in zip(world, strata, strict=True)
            ]
            test = assignment_test(planted, generator=generator, n_draws=400)
            alone = [one[test.reading] for one in planted]
            found += test.p <= LEVEL and (borne <= 1 or _bears(alone, borne, seed))
        if found >= POWER * n_worlds:
            return KnowPower(_bits_of(nats, read), POWER)
    return KnowPower(None, POWER)


def _bears(alone: Sequence[Float[Tensor, "_ _"]], tilt: float, seed: int) -> bool:
    """Whether p is at `LEVEL` under a tilt, by a few pairings: it is asked of every world."""
    p = tilted_p(alone, tilt, generator=np.random.default_rng(seed), n_pairings=11)
    return p <= LEVEL


def _bits_of(nats: float, read: Sequence[RelationReading]) -> float:
    """Mean bits that a factor of exp(nats) at the true value adds to a uniform guess."""
    sizes = [len(one.asked.values) for one in read]
    shares = [math.exp(nats) / (math.exp(nats) + k - 1) for k in sizes]
    return float(np.mean([math.log2(share * k) for share, k in zip(shares, sizes, strict=True)]))


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
    """Who has what in one model: the summary, and the tables beside it."""

    run: KnowRecord
    facts: tuple[FactEvidence, ...]
    layers: tuple[tuple[int, str, float], ...]
    """Layer, whose head reads it, mean bits."""
    matrix: KnowMatrix
    """The relation that tells most, for a picture."""
    people: tuple[Person, ...] = ()


def _headline(run: KnowRecord) -> str:
    """The finding, in words; never that nothing is there."""
    p = f"{run.p:.2g}"
    if failed := run.failed:
        return f"{run.source}: undecided: {failed.said}"
    if run.p <= LEVEL and run.refused:
        return f"{run.source}: undecided: p {p}, but {run.refused}"
    if run.finds:
        low = None if run.bits is None else run.bits.low
        held = f"; holds at least {low:.1f} bits a fact" if low is not None and low > 0 else ""
        return (
            f"{run.source}: binds values to subjects beyond chance (assignment test "
            f"p {p}, z {run.z:.1f}, {run.n_subjects} subjects, {run.tilt}){held}"
        )
    power = run.power
    could = (
        f"this test would have found {power.bits:.1f} bits a fact with a power of {power.share:.1g}"
        if power.bits is not None
        else power.why or f"{run.n_subjects or 1} subjects are too few to find anything"
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
    kept = [one[n_asked : n_asked + len(know.kept)] for one in heard]
    alone_read, *alone_never = (one[n_asked + len(know.kept) :] for one in heard)
    people = people_of(alone_read, alone_never) if know.people else []
    test, strata = binding_of(own, seed=seed), strata_of(groups_of(own))
    facts, called, priors = _evidence_of(know, own, never)
    bound = [one for one in facts if one.associated is not None]
    top = math.log2(max(len(one.asked.values) for one in own))
    more = any(len(one.placebos) == know.settings.placebos for one in know.asked)
    named, naming = naming_of(facts, more=more)
    names = [one.spec.name for one in know.ignorant]
    tests = [binding_of(rows, seed=seed) for rows in never]
    tilt = max([1.0, *(one.gamma for one in tests)])
    alike = _taught_alike(know, tests, kept[1:])
    run = KnowRecord(
        source=know.source.spec.name,
        headline="",
        finds=False,
        p=test.p,
        z=test.z,
        reader=list(own[0].by_reader)[test.reading],
        exact=test.exact,
        n_permutations=test.n_permutations,
        gamma=test.gamma,
        gamma_controls=tilt,
        bits=mean_of(bound, "associated", top) if bound else None,
        bits_familiar=mean_of(facts, "familiar", top),
        power=_power_of(know, own, tilt, bool(alike)) if test.p > LEVEL else KnowPower(None, POWER),
        named=named,
        naming=naming,
        controls=[
            *_kept(kept[0], seed),
            *(_never_bound(*one) for one in zip(names, tests, strict=True)),
            *_fair(called),
        ],
        alike=alike,
        priors=named_priors(priors),
        readers=list(know.readers),
        n=sum(len(asked) * len(subjects) for asked, subjects in strata.items()) or len(facts),
        n_subjects=sum(map(len, strata.values())),
        people=said_of(people, know.n_names) if people else "",
        relations=[_alone(one, seed) for one in own],
        max_bits=top,
        unscored={str(idx): why for idx, why in sorted(know.unscored.items())},
        remarks=list(know.remarks),
    )
    run = replace(run, finds=run.p <= LEVEL and run.refused is None)
    return KnowOutcome(
        replace(run, headline=_headline(run)),
        tuple(replace(one, named=one.idx in named) for one in facts),
        tuple(_layers(heard[0][:n_asked])),
        matrix_of(own),
        tuple(people),
    )


def _evidence_of(
    know: Know, own: Sequence[RelationReading], never: Sequence[Sequence[RelationReading]]
) -> tuple[list[FactEvidence], list[FactEvidence], list[Priors]]:
    """Of every fact in the source, and in models that never knew; and the priors by relation."""
    names = [know.base.spec.name] if know.base else []
    facts, called, priors = list[FactEvidence](), list[FactEvidence](), list[Priors]()
    for one, *others in zip(own, *never, strict=True):
        retains = others[len(names) :]
        found = priors_of(one, dict(zip(names, others, strict=False)), retains)
        facts += facts_of_read(one, found.rows)
        called += (fact for rows in retains for fact in facts_of_read(rows, found.rows))
        priors.append(found)
    return facts, called, priors


def _taught_alike(
    know: Know, tests: Sequence[Assignment], kept: Sequence[Sequence[RelationReading]]
) -> list[str]:
    """Never-trained models that bind none of the values, and know the kept rows."""
    seed, n_base = know.settings.seed, int(know.base is not None)
    return [
        one.spec.name
        for one, test, rows in list(zip(know.ignorant, tests, kept, strict=True))[n_base:]
        if test.p > NEARLY and all(control.passed for control in _kept(rows, seed))
    ]


def _alone(one: RelationReading, seed: int) -> KnownRelation:
    """The test of a relation alone."""
    traces = double_centred(one.table)
    test = assignment_test([traces], generator=np.random.default_rng(seed))
    trace = float(traces[test.reading].trace())
    return KnownRelation(one.asked.name, len(one.asked.facts), trace, test.z, test.p)


def _power_of(know: Know, own: Sequence[RelationReading], tilt: float, alike: bool) -> KnowPower:
    """Power of what finds: p, the tilt of models that never knew, and any tilt unless `alike`."""
    if isinstance(know.source, Served) and know.source.reading == "samples":
        # it depends on answers that name no value
        why = "its power is not computed for a model that is read by samples"
        return KnowPower(None, POWER, why)
    seed = know.settings.seed
    found = power_of(own, seed=seed, borne=max(tilt, 1.0 if alike else LEAST_TILT))
    if found.bits is None and not alike and power_of(own, seed=seed, borne=tilt).bits is not None:
        return replace(found, why=_NOT_ALONE)
    return found


_NOT_ALONE = (
    "so few subjects show nothing without a never-trained model of the same kept rows (--retain)"
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
    what = "are found" if p <= ALPHA else "are not found either: this test may be blind here"
    return [KnowControl("kept", p <= ALPHA, f"facts to keep {what} (p {p:.2g})")]


def _never_bound(name: str, one: Assignment) -> KnowControl:
    p, what = one.p, "binds nothing"
    if p <= LEVEL:
        what = (
            "binds the values too: it knows the facts, or names give them away; name models that "
            "never saw them, or none"
        )
    return KnowControl(f"never: {name}", p > LEVEL, f"{name} {what} (p {p:.2g})")


def _fair(called: Sequence[FactEvidence]) -> list[KnowControl]:
    """Evidence in models that never knew, by authors: its lower limit is at most 1."""
    known = [(one.e, one.group) for one in called if one.e is not None]
    if not known:
        return []
    e, groups = zip(*known, strict=True)
    found = clustered_mean(e, groups, bounds=(0.0, max(e)), unit=unit_of(groups))
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


def write_outcome(found: KnowOutcome, know: Know, out: Path) -> KnowRecord:
    """Write the tables and the matrix; returns the record."""
    rows: list[list[Any]] = [
        [one.idx, one.group, one.relation, one.familiar, one.associated, one.e, int(one.named), ""]
        for one in found.facts
    ]
    rows += [[idx, "", "", "", "", "", "", why] for idx, why in know.unscored.items()]
    write_csv(out / "facts.csv", FACT_COLUMNS, sorted(rows))
    relations = [list(vars(one).values()) for one in found.run.relations]
    write_csv(out / "relations.csv", RELATION_COLUMNS, relations)
    write_csv(out / "layers.csv", LAYER_COLUMNS, [list(row) for row in found.layers])
    write_json(out / "matrix.json", signed(document(found.matrix)))
    if found.people:
        write_csv(out / PERSONS, COLUMNS, [one.row for one in found.people])
    return found.run


def matrix_of(read: Sequence[RelationReading]) -> KnowMatrix:
    """The largest relation, one for all models: probabilities of values by subject."""
    largest = max(read, key=lambda one: len(one.asked.facts))
    relation, rows = largest.asked, largest.by_reader
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
