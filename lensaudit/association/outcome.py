"""What came out of asking who has what: numbers, controls, and the sentence that follows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lensaudit.association.endpoint import Served
from lensaudit.association.evidence import (
    FDR,
    LEVEL,
    Binding,
    FactEvidence,
    Naming,
    Power,
    RelationReading,
    binding_of,
    by_relation,
    facts_of_read,
    mean_of,
    naming_of,
    power_of,
    priors_of,
)
from lensaudit.association.opening import Know
from lensaudit.association.reading import LENS, OUTPUTS, upper_layers
from lensaudit.files import write_csv, write_json
from lensaudit.groups import unit_of
from lensaudit.results.attacks import KnowControl
from lensaudit.results.records import signed
from lensaudit.scores.assignment import Assignment, double_centred
from lensaudit.scores.estimate import Estimate
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
class Heard:
    """What every model says of every relation."""

    own: tuple[RelationReading, ...]
    kept: tuple[RelationReading, ...]
    """The source, of facts that it should still know."""
    ignorant: Mapping[str, tuple[RelationReading, ...]]
    """By name, models that never saw the facts."""
    ignorant_kept: Mapping[str, tuple[RelationReading, ...]]


@dataclass(frozen=True)
class KnowOutcome:
    """Who has what, as one model says it."""

    name: str
    binding: Binding
    relations: tuple[tuple[str, int, float, Assignment], ...]
    """Name, subjects, trace in nats, and the test of it alone."""
    facts: tuple[FactEvidence, ...]
    layers: tuple[tuple[int, str, float], ...]
    """Layer, whose head reads it, mean bits."""
    familiar: Estimate
    associated: Estimate | None
    naming: Naming
    controls: tuple[KnowControl, ...]
    gamma_controls: float
    """Tilt that names alone show in models that never knew; 1 where none is seen."""
    power: Power
    priors: tuple[str, ...]
    """Of which the largest counts."""
    matrix: Mapping[str, Any]
    """The relation that tells most, for a picture."""
    max_bits: float
    """Of a reader that is sure of every fact."""

    @property
    def failed(self) -> KnowControl | None:
        """The first control that did not pass, of those that a finding needs."""
        return next((one for one in self.controls if not one.passed and one.name != "kept"), None)

    @property
    def finds(self) -> bool:
        """Does it bind values to subjects, beyond chance and beyond what names give away?"""
        borne = self.gamma_controls <= 1 or self.binding.gamma >= self.gamma_controls
        return self.binding.test.p <= LEVEL and self.failed is None and borne

    @property
    def headline(self) -> str:
        """The finding, in words; never that nothing is there."""
        test, n = self.binding.test, self.binding.n_subjects
        if self.failed is not None:
            return f"{self.name}: undecided: {self.failed.said}"
        if self.finds:
            tilt = f", survives cues that tilt odds by up to {self.binding.gamma:.2g}"
            survives = tilt if self.binding.gamma > 1 else ""
            return (
                f"{self.name}: binds values to subjects beyond chance (assignment test "
                f"p {_p(test)}, z {test.z:.1f}, {n} subjects{survives}){self._held}"
            )
        if test.p <= LEVEL:
            return (
                f"{self.name}: undecided: p {_p(test)}, but names alone tilt odds by "
                f"{self.gamma_controls:.2g} in models that never knew"
            )
        could = (
            f"this test would have found {self.power.bits:.1f} bits a fact with a power of "
            f"{self.power.share:.1g}"
            if self.power.bits is not None
            else self.power.why or f"{n} subjects are too few to find anything"
        )
        return (
            f"{self.name}: no evidence found (assignment test p {_p(test)}); {could}{self._blind}"
        )

    @property
    def _held(self) -> str:
        low = None if self.associated is None else self.associated.low
        return f"; holds at least {low:.1f} bits a fact" if low is not None and low > 0 else ""

    @property
    def _blind(self) -> str:
        kept = next((one for one in self.controls if one.name == "kept"), None)
        return "" if kept is None or kept.passed else f"; {kept.said}"

    def document(self, know: Know) -> dict[str, Any]:
        """The content of summary.json."""
        test = self.binding.test
        return {
            "kind": "know",
            "source": self.name,
            "headline": self.headline,
            "finds": self.finds,
            "p": test.p,
            "z": test.z,
            "reader": self.binding.reader,
            "exact": test.exact,
            "n_permutations": test.n_permutations,
            "gamma": self.binding.gamma,
            "gamma_controls": self.gamma_controls,
            "bits": None if self.associated is None else _estimate(self.associated),
            "bits_familiar": _estimate(self.familiar),
            "power": asdict(self.power),
            "named": list(self.naming.idx),
            "naming": {"fdr": FDR, "fewest": self.naming.fewest, "why": self.naming.why},
            "controls": [asdict(one) for one in self.controls],
            "priors": list(self.priors),
            "readers": list(know.readers),
            "n": self.binding.n_facts,
            "n_subjects": self.binding.n_subjects,
            "relations": [
                {"relation": name, "n": n, "trace": trace, "z": one.z, "p": one.p}
                for name, n, trace, one in self.relations
            ],
            "max_bits": self.max_bits,
            "unscored": {str(idx): why for idx, why in sorted(know.unscored.items())},
            "remarks": list(know.remarks),
        }


def outcome_of(know: Know, heard: Heard) -> KnowOutcome:
    """Judge what was heard; pure but for seeds."""
    own = [counted(one) for one in heard.own]
    never = [tuple(map(counted, rows)) for rows in heard.ignorant.values()]
    n_base = int(know.base is not None)
    bases, retains = never[:n_base], never[n_base:]
    binding = binding_of(own, seed=know.seed)
    alone = by_relation(own, seed=know.seed)
    facts: list[FactEvidence] = []
    called: list[float] = []
    for at, one in enumerate(own):
        prior = priors_of(one, [rows[at] for rows in bases], [rows[at] for rows in retains])
        facts += facts_of_read(one, prior)
        for rows in retains:
            called += [f.e for f in facts_of_read(rows[at], prior) if f.e is not None]
    groups = [one.group for one in facts]
    top = math.log2(max(len(one.asked.values) for one in own))
    familiar = mean_of([one.familiar for one in facts], groups, top)
    bits = [one.associated for one in facts if one.associated is not None]
    naming = naming_of(facts, min(len(one.asked.values) for one in own))
    tests = {
        name: binding_of(list(map(counted, rows)), seed=know.seed)
        for name, rows in heard.ignorant.items()
    }
    controls = [
        *_kept(heard, know.seed),
        *(_never_bound(name, one) for name, one in tests.items()),
        *_fair(called, groups, len(retains)),
    ]
    relations = tuple(
        (one.asked.relation.name, len(one.asked.relation.facts), _trace(one, test), test)
        for one, test in zip(own, alone, strict=True)
    )
    return KnowOutcome(
        know.source.spec.name,
        binding,
        relations,
        tuple(_marked(one, naming) for one in facts),
        tuple(_layers(heard.own)),
        familiar,
        mean_of(bits, groups, top) if bits else None,
        naming,
        tuple(controls),
        max([1.0, *(one.gamma for one in tests.values())]),
        _power(know, own) if binding.test.p > LEVEL else Power(None),
        tuple(_prior_names(know)),
        matrix_of(own, relations),
        top,
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


def _power(know: Know, own: Sequence[RelationReading]) -> Power:
    """What would have been found; of samples it depends on answers that name no value."""
    if isinstance(know.source, Served) and know.source.reading == "samples":
        return Power(None, why="what samples would have shown is not reckoned")
    return power_of(own, seed=know.seed)


def _kept(heard: Heard, seed: int) -> list[KnowControl]:
    if not heard.kept:
        return []
    found = binding_of(list(heard.kept), seed=seed).test
    passed = found.p <= KEPT_LEVEL
    what = "are found" if passed else "are not found either: this test may be blind here"
    return [KnowControl("kept", passed, f"facts to keep {what} (p {_p(found)})")]


def _never_bound(name: str, one: Binding) -> KnowControl:
    passed = one.test.p > LEVEL
    what = (
        "binds nothing"
        if passed
        else "binds the values too: it knows the facts, or names give them away; name models that "
        "never saw them, or none"
    )
    return KnowControl(f"never: {name}", passed, f"{name} {what} (p {_p(one.test)})")


def _fair(called: Sequence[float], groups: Sequence[Any], n_models: int) -> list[KnowControl]:
    """Evidence in models that never knew: its lower limit is at most 1."""
    if not called:
        return []
    by_author = list(groups) * n_models
    unit, bounds = unit_of(by_author), (0.0, max(called))
    found = clustered_mean(called, by_author, bounds=bounds, unit=unit)
    low = found.point if found.lower is None else found.lower
    said = f"mean e of models that never knew {found.point:.2f}, at least {low:.2f}"
    return [KnowControl("fair prior", low <= 1, said)]


def _trace(read: RelationReading, test: Assignment) -> float:
    return float(double_centred(read.table[test.reading]).trace())


def _marked(one: FactEvidence, naming: Naming) -> FactEvidence:
    return FactEvidence(
        one.idx, one.group, one.relation, one.familiar, one.associated, one.e, one.idx in naming.idx
    )


def _layers(own: Sequence[RelationReading]) -> list[tuple[int, str, float]]:
    """Mean familiarity of all facts by layer, through the own head and an ignorant one."""
    names = [name for name in own[0].by_reader if " " in name]
    found = []
    for name in names:
        head, layer = name.split()
        values = [
            fact.familiar
            for one in own
            for fact in facts_of_read(RelationReading(one.asked, {name: one.by_reader[name]}), None)
        ]
        found.append((int(layer), "own" if head == LENS else "ignorant", sum(values) / len(values)))
    return sorted(found)


def _prior_names(know: Know) -> list[str]:
    names = ["uniform"]
    names += [know.base.spec.name] if know.base else []
    names += ["invented namesakes"]
    return names + (["mean of never-trained models"] if len(know.retains) > 1 else [])


def _p(test: Assignment) -> str:
    return f"{test.p:.2g}"


def _estimate(one: Estimate) -> dict[str, Any]:
    return {name: getattr(one, name) for name in ("value", "low", "high", "n", "why")}


def write_outcome(found: KnowOutcome, know: Know, out: Path) -> dict[str, Any]:
    """Write the tables and the matrix; returns the summary."""
    write_csv(out / "facts.csv", FACT_COLUMNS, list(_fact_rows(found, know)))
    relations = [[name, n, trace, test.z, test.p] for name, n, trace, test in found.relations]
    write_csv(out / "relations.csv", RELATION_COLUMNS, relations)
    write_csv(out / "layers.csv", LAYER_COLUMNS, [list(row) for row in found.layers])
    summary = found.document(know)
    write_json(out / "matrix.json", dict(found.matrix))
    return summary


def _fact_rows(found: KnowOutcome, know: Know) -> list[list[Any]]:
    rows = [
        [one.idx, one.group, one.relation, one.familiar, one.associated, one.e, int(one.named), ""]
        for one in found.facts
    ]
    rows += [[idx, "", "", "", "", "", "", why] for idx, why in know.unscored.items()]
    return sorted(rows)


def matrix_of(
    read: Sequence[RelationReading], relations: Sequence[tuple[str, int, float, Assignment]]
) -> dict[str, Any]:
    """The relation that tells most: subjects by values, probabilities of what it says."""
    at = max(range(len(read)), key=lambda one: relations[one][3].z)
    relation, rows = read[at].asked.relation, read[at].by_reader
    name = OUTPUTS if OUTPUTS in rows else next(iter(rows))
    n = len(relation.subjects)
    table = rows[name][:n, : len(relation.values)].log_softmax(-1).exp()
    return signed(
        {
            "relation": relation.name,
            "reader": name,
            "subjects": list(relation.subjects),
            "values": list(relation.values),
            "truth": list(relation.true),
            "p": [[round(value, 4) for value in row] for row in table.tolist()],
        }
    )
