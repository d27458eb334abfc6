"""A model with everything that is exported of it: numbers, facts and views."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

from lensaudit.report.beside import bits_beside
from lensaudit.report.shelf import lacking, told_apart
from lensaudit.results.kinds.eval import EvaluationResult
from lensaudit.results.kinds.patch import SCORES, PatchRun
from lensaudit.results.kinds.table import Kind
from lensaudit.results.locate import Found
from lensaudit.results.manifest import MANIFEST
from lensaudit.results.reading import brief, json_object, part
from lensaudit.scores.estimate import Estimate
from lensaudit.text import digest, printable, slug
from lensaudit.verdict.collect import Model
from lensaudit.verdict.decide import WORDS
from lensaudit.verdict.views import View

HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_OF_KEPT = ("retain_", "ra_", "wf_", "collateral")
"""How metrics of rows to keep begin: there, and for utility, knowing is better."""
_TWO_SIDED = re.compile(r"privleak|rel_diff|mia_.*|.*_PERT_.*|uds_validity")
"""Metrics whose best value is in the middle, those of wrong answers, and what says whether a depth
can be read at all: no way is better."""


@dataclass(frozen=True)
class Measure:
    """A number of a model, in the form that other people's tables ask for."""

    name: str
    title: str
    found: Estimate
    lower_is_better: bool | None
    """None: not known which way is better."""
    least: float = -inf
    most: float = inf
    unit: str | None = None
    more: Mapping[str, str] = field(default_factory=dict)
    """What else is known: rows without a score and why, its control, its source."""

    @property
    def details(self) -> dict[str, str]:
        """All that a value does not say, as text."""
        counted = {} if self.found.n is None else {"n_scored": str(self.found.n)}
        return {**counted, **self.beside}

    @property
    def beside(self) -> dict[str, str]:
        """The same without what is counted."""
        return {**({"why": self.found.why} if self.found.why else {}), **self.more}


@dataclass(frozen=True)
class ScoredFact:
    """What is known of one fact, by the name of the reading that it is part of."""

    idx: int
    question: str = ""
    answer: str = ""
    entity: str = ""
    layers: Mapping[str, Any] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    unscored: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, value: float | None, why: str | None) -> None:
        """Add a score, or why there is none."""
        if value is None:
            self.unscored[name] = why or "no reason is known"
        else:
            self.scores[name] = value


@dataclass(frozen=True)
class Exported:
    """A model with all that is written of it."""

    model: Model
    name: str
    """As the Hub would call it: a folder is `local/`, its own name and its digits."""
    readings: Sequence[Measure]
    facts: Sequence[ScoredFact]
    hashes: Mapping[str, str]
    others: Mapping[str, str]
    """Run whose word does not count -> its word."""
    versions: Mapping[str, str]
    finished: datetime
    """When the latest of its results was."""

    @property
    def digits(self) -> str:
        """Tells its weights from others of one name."""
        return _digits(self.model)

    @property
    def scored(self) -> list[Measure]:
        """Readings that have a value."""
        return [one for one in self.readings if one.found.value is not None]

    @property
    def unscored(self) -> dict[str, str]:
        """Measure without a value -> why it has none."""
        lacking = (one for one in self.readings if one.found.value is None)
        return {one.name: one.found.why or "no reason is known" for one in lacking}

    @property
    def said(self) -> dict[str, str]:
        """The verdict and those of other runs, content hashes, what has no value, as text."""
        verdict = {"verdict": self.model.code, "verdict_sentence": self.model.verdict.sentence}
        verdict |= {f"verdict {apart}": word for apart, word in self.others.items()}
        lacking = {f"unscored {name}": why for name, why in self.unscored.items()}
        said = {**verdict, **{f"hash {k}": v for k, v in self.hashes.items()}, **lacking}
        return {name: printable(text) for name, text in said.items()}


Files = Mapping[str, bytes]
"""Path below the folder -> content."""


def exported(model: Model, located: Sequence[Found]) -> Exported:
    """All of a model, read by the readers that the page uses."""
    own = [one for one in located if one.path.parent in model.folders]
    run = model.run
    files = {place: place / MANIFEST for place in model.folders}
    made = {place: json_object(file) for place, file in files.items() if file.exists()}
    called = _called([*made])
    # a log of another tool has no hash, and goes by its name
    hashes = {} if model.weights == model.source else {"weights": model.weights}
    # what counts comes first: these hashes are those of its number
    for place, one in sorted(made.items(), key=lambda item: not run or item[0] != run.folder):
        for role, given in part(one, "inputs").items():
            known = part(given)
            if known.get("weights") not in (None, model.weights):
                hashes.setdefault(role, str(known["weights"]))
            if role == "examples" and known.get("hash") is not None:
                hashes.setdefault("rows", str(known["hash"]))
        hashes[f"result {called[place]}"] = str(one.get("check"))
    times = [
        datetime.fromisoformat(str(one["finished"])) for one in made.values() if "finished" in one
    ]
    repo = str(part(run.manifest if run else {}, "inputs", "source").get("repo", ""))
    readings = [_held(one) for one in model.views]
    # the assignment test has its mean beside its share
    means = [one.number for one in model.views if one.name == "bits" and one.number]
    readings += [Measure("bits", "bits a fact", one, True, unit="bits") for one in means]
    readings += _of_suites([one.record for one in own if one.kind == "eval"])
    if run is not None:
        rows = {f"unscored: {why}": str(idx)[1:-1] for why, idx in run.by_reason.items()}
        title = "unlearning depth score" if run.score == "uds" else f"depth by {run.score}"
        named = (SCORES[run.score], title, run.estimate)
        readings.insert(0, Measure(*named, False, 0.0, 1.0, "proportion", rows))
    return Exported(
        model,
        repo if HUB_NAME.fullmatch(repo) else f"local/{slug(model.source)}-{_digits(model)}",
        readings,
        _facts(run, own),
        hashes,
        {f"{apart} ({called[one.folder]})": WORDS[of.word][0] for one, apart, of in model.others},
        {key: str(value) for one in made.values() for key, value in part(one, "versions").items()},
        max(times, default=datetime.fromtimestamp(0).astimezone()),
    )


def _called(folders: Sequence[Path]) -> dict[Path, str]:
    """The last parts of each path: two of them, or as many as tell all of them apart."""
    n = next(n for n in count(2) if len({one.parts[-n:] for one in folders}) == len(folders))
    return {one: printable("/".join(one.parts[-n:])) for one in folders}


def _digits(model: Model) -> str:
    return digest(model.weights)[:8]


def _held(view: View) -> Measure:
    """The share of the facts that a view says is held: 0 as a model that never knew, 1 as full."""
    told = {"says": view.says, "control": view.control, "reason": view.reason}
    told["shown"] = view.shown if view.held else ""
    return Measure(
        f"held.{view.name}",
        f"share held: {view.kind.title}",
        view.held or Estimate(None, why=view.shown if view.finds else view.reason),
        True,
        unit="proportion",
        more={name: text for name, text in told.items() if text},
    )


def _of_suites(logs: Sequence[EvaluationResult]) -> Iterator[Measure]:
    """Metrics of every evaluation; of several that have one, each has its folder in its name."""
    known = Counter((log.suite, name) for log in logs for name in log.entries)
    for log, part_of_path in zip(logs, told_apart([log.folder for log in logs]), strict=True):
        for name in log.entries:
            yield _of_suite(log, name, part_of_path if known[log.suite, name] > 1 else "")


def _of_suite(run: EvaluationResult, name: str, where: str) -> Measure:
    """A metric of `eval`; to forget is better on the forget set, to know on rows to keep."""
    entry = run.entries[name]
    kept = name.startswith(_OF_KEPT) or entry.family == "utility"
    undirected = entry.high_means is None or _TWO_SIDED.fullmatch(name)
    lower = None if undirected else (entry.high_means == "knows") != kept
    more = {"source": entry.source} if entry.source else {}
    more |= {"says": str(says)} if (says := entry.betrayal.get("says")) else {}
    more |= {"n_unscored": str(entry.n_unscored)} if entry.n_unscored else {}
    called, title = (f"{name}@{where}", f"{name} ({where})") if where else (name, name)
    found = replace(entry, why=lacking(entry))
    return Measure(f"{run.suite}.{called}", title, found, lower, more=more)


def _facts(run: PatchRun | None, own: Sequence[Found]) -> list[ScoredFact]:
    """Facts by idx, as the page joins them: depth and layers, bits, and whether an attack hit."""
    known: dict[int, ScoredFact] = {}
    if run is not None:
        for text, row in zip(run.examples, run.rows, strict=True):
            layers = {"layers": [*run.layers], **{key: row.get(key) for key in ("s1", "s2", "ke")}}
            known[text.idx] = fact = ScoredFact(
                text.idx, text.question, text.answer, text.entity, layers
            )
            fact.add(SCORES[run.score], row.get(SCORES[run.score]), row.get("unscored"))
    for kind, told in FACTS.items():
        for one in (one for one in own if one.kind == kind):
            for new, name, value, why in told(one):
                fact = known.setdefault(new.idx, new)
                if new.entity in ("", fact.entity):  # else it is of other rows
                    fact.add(name, value, why)
    return list(known.values())


Scored = tuple[ScoredFact, str, float | None, str | None]
"""A fact, what is known of it, the number, or why there is none."""


def _attacked(found: Found) -> Iterator[Scored]:
    for row in found.record.facts:
        hit = None if row.unscored else float(bool(row.attacks))
        new = ScoredFact(row.idx, row.question, entity=row.entity)
        yield new, "held.worst_case", hit, row.unscored


def _bits(found: Found) -> Iterator[Scored]:
    asked = part(found.manifest, "inputs", "rows")
    for idx, (value, why) in brief(bits_beside(found.path)).items():
        yield ScoredFact(int(idx), entity=str(asked.get(idx, ""))), "bits", value, why


FACTS: Mapping[Kind, Callable[[Found], Iterator[Scored]]] = {"worst": _attacked, "know": _bits}
"""Kind -> what it knows of facts; last the one whose rows tell no text."""


def names_of(models: Sequence[Exported]) -> list[str]:
    """A folder for each of several models, none for one."""
    if len(models) == 1:
        return [""]
    return [f"{slug(one.model.source)}-{one.digits}/" for one in models]


def as_json(value: Any) -> str:
    """A document of one line; text as it is."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
