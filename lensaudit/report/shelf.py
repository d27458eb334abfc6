"""The models of a page, one per set of weights, with all that results say; their runs, paired."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations, zip_longest
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.groups import unit_of
from lensaudit.models.registry import shipped
from lensaudit.report.document import (
    ANCHORS,
    Condition,
    Depth,
    PageModel,
    Pair,
    floats,
    shares,
    stepped,
)
from lensaudit.results.eval_runs import EvalRun, MetricKind, MetricValue
from lensaudit.results.patch_runs import PatchRun
from lensaudit.results.reading import JsonObject, Number, checked_as, part
from lensaudit.results.sentences import by_rule
from lensaudit.scores.intervals import clustered_mean
from lensaudit.verdict.collect import Model
from lensaudit.verdict.decide import Code, Verdict

AGGREGATES = {
    "overall": None,
    "overall_without_uds": None,
    "uds": "forgot",
    "mem": "forgot",
    "privacy": "forgot",
    "privacy_mia": "forgot",
    "utility_rel": "knows",
    "utility": "knows",
    "model_utility": "knows",
}
"""Aggregates of `lensaudit meta aggregate`, and what a high value means."""


@dataclass
class Shelf:
    """Models by weights, and manifests in the order in which they are asked for."""

    names: dict[str, str]
    folders: dict[str, Path]
    """Where a model was first met."""
    evals: dict[str, EvalRun]
    anchors: dict[str, str]
    """Name or weights -> `full` or `retain`."""
    aggregates: dict[str, JsonObject]
    """By name."""
    depths: dict[str, dict[str, MetricValue]]
    """Weights -> the metrics that runs of `patch` under the suite's own settings stand for."""
    manifests: list[Mapping[str, Any]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        runs: Sequence[PatchRun],
        evals: Sequence[EvalRun],
        aggregates: Sequence[JsonObject],
        judged: Sequence[Model] = (),
    ) -> "Shelf":
        """Every model that any result names."""
        names = {run.weights: run.source for run in runs}
        folders = {run.weights: run.folder for run in reversed(runs)}
        # by name, and whatever it is called by its weights
        anchors = {
            known: role
            for run in runs
            for role, one in run.models.items()
            for known in (one.name, one.weights)
            if known
        }
        evaluated: dict[str, EvalRun] = {}
        for run in evals:
            names.setdefault(run.weights, run.model)
            folders.setdefault(run.weights, run.folder)
            known_run = evaluated.get(run.weights)
            # a retain reference made on the way holds only what others were compared with
            if known_run is None or len(run.values) > len(known_run.values):
                evaluated[run.weights] = run
        for one in judged:
            # what names no weights is of a model of that name, if there is one
            if one.weights not in names and one.source not in names.values():
                names[one.weights], folders[one.weights] = one.source, one.folders[0]
        known = set(names.values())
        by_name = {str(row["model"]): row for row in aggregates}
        names |= {f"name {name}": name for name in by_name if name not in known}
        depths: dict[str, dict[str, MetricValue]] = {}
        for run in runs:
            if _as_in_suite(run):
                depths.setdefault(run.weights, {})[METRIC_OF[run.score]] = _depth(run)
        return cls(names, folders, evaluated, anchors, by_name, depths)

    def place(self, weights: str) -> int:
        """Where a model stands in `models`."""
        return list(self.names).index(weights)

    def manifest(self, folder: Path, content: Mapping[str, Any]) -> int:
        """Where a manifest stands, now that it is kept."""
        self.manifests.append({"folder": str(folder), "content": content})
        return len(self.manifests) - 1

    def models(self, verdicts: Mapping[str, Code]) -> list[PageModel]:
        """One record per set of weights; weights of the same name are told apart by folder.

        `verdicts`: by weights.
        """
        label = labels(self.names.values())
        shown = {weights: label[name] for weights, name in self.names.items()}
        for name in set(self.names.values()):
            same = [weights for weights, other in self.names.items() if other == name]
            if len(same) > 1:
                parts = told_apart([self.folders[weights] for weights in same])
                shown |= {w: f"{label[name]} · {part}" for w, part in zip(same, parts, strict=True)}
        return [self._model(w, shown[w], verdicts.get(w)) for w in self.names]

    def _model(self, weights: str, label: str, verdict: Code | None) -> PageModel:
        name = self.names[weights]
        row, run, spec = self.aggregates.get(name, {}), self.evals.get(weights), shipped().get(name)
        role = self.anchors.get(weights) or self.anchors.get(name) or (spec and spec.role)
        method = spec.method if spec else method_in(Path(name))
        epoch = spec and _EPOCH.search(spec.alias_of or spec.name)
        measured = _aggregated(row) | (dict(run.values) if run else {})
        # a suite that had no retain model says so of what `patch` measured beside it
        for metric, value in self.depths.get(weights, {}).items():
            if metric in measured and measured[metric].value is None:
                measured[metric] = value
        return PageModel(
            name=name,
            label=label,
            method=method or (None if role in ANCHORS else row.get("method")),
            epoch=epoch[1] if epoch else _digits(row.get("epoch")),
            role=role,
            metrics={metric: _listed(value) for metric, value in measured.items()},
            manifest=self.manifest(run.folder, run.manifest) if run and run.manifest else None,
            verdict=None if role in ANCHORS else verdict,
        )


METRIC_OF = {"uds": "uds", "lens": "logit_lens"}
"""Score of a run -> the metric of the suite that is the same number."""


def _as_in_suite(run: PatchRun) -> bool:
    """Under the defaults, which are the suite's settings, too."""
    asked = {name: run.summary.get(name) for name in ("scope", "component", "last_layer")}
    wanted = {"scope": "span", "component": "resid", "last_layer": "resid_post"}
    return run.score in METRIC_OF and asked == wanted


def _depth(run: PatchRun) -> MetricValue:
    n_unscored = int(run.summary["n"]) - int(run.summary["n_scored"])
    return MetricValue(**vars(run.estimate), n_unscored=n_unscored)


def kinds_of(runs: Sequence[EvalRun], aggregates: Sequence[JsonObject]) -> list[Mapping[str, Any]]:
    """Every metric once; a log that says its direction wins over one that does not."""
    kinds: dict[str, MetricKind] = {}
    for run in runs:
        for name, kind in run.kinds.items():
            if name not in kinds or kinds[name].high_means is None:
                kinds[name] = kind
    for name, high in AGGREGATES.items():
        if name not in kinds and any(name in row for row in aggregates):
            kinds[name] = MetricKind(name, "aggregate", high, "lensaudit meta aggregate")
    return [asdict(kind) for kind in sorted(kinds.values(), key=lambda k: (k.family, k.name))]


def _aggregated(row: JsonObject) -> dict[str, MetricValue]:
    reasons = row.get("reasons")
    why = reasons if isinstance(reasons, Mapping) else {}
    return {
        name: MetricValue(
            checked_as(Number | None, row[name], f"aggregate of {row['model']}: {name}"),
            n=0,
            why=why.get(name),
        )
        for name in AGGREGATES
        if name in row
    }


NO_LIMITS = "from other metrics: no interval"


def _listed(value: MetricValue) -> list[Any]:
    """As the page reads it: value, low, high, scored, unscored, why something is missing."""
    why = value.why or (None if value.value is None or value.ends else NO_LIMITS)
    return [value.value, value.low, value.high, value.n, value.n_unscored, why]


def _digits(epoch: Any) -> str | None:
    return "".join(filter(str.isdigit, str(epoch))) or None if epoch else None


_EPOCH = re.compile(r"(?:^|[_-])(?:ep|epoch)_?(\d+)(?=$|[_-])")


def method_in(folder: Path) -> str | None:
    """What `lensaudit unlearn` wrote beside the weights; None of a folder that is not there.

    A folder may have any name: nothing is read off it.
    """
    try:
        method = part(read_json(folder / "manifest.json"), "inputs").get("method")
    except InputError:
        return None
    return method if isinstance(method, str) else None


def labels(names: Iterable[str]) -> dict[str, str]:
    """Short names for a table: a folder's last part, where that is not ambiguous.

    >>> labels(["demo/npo", "runs/a/npo", "/data/b", "/data/full"])["/data/b"]
    'b'
    """
    known = list(dict.fromkeys(names))
    last = {name: PurePath(name).name for name in known if name[:1] in ("/", ".", "~")}
    taken = [last.get(name, name) for name in known]
    return {
        name: short if taken.count(short) == 1 else name
        for name, short in zip(known, taken, strict=True)
    }


def told_apart(folders: Sequence[Path]) -> list[str]:
    """The first part of each path in which they all differ; numbers where there is none.

    >>> told_apart([Path("out/base/npo/patch"), Path("out/nf4/npo/patch")])
    ['base', 'nf4']
    """
    for parts in zip_longest(*(folder.parts for folder in folders), fillvalue=""):
        if len(set(parts)) == len(parts):
            return list(parts)
    return [str(n) for n in range(1, len(folders) + 1)]


_SETTINGS = (
    "tau",
    "threshold",
    "em_form",
    "scope",
    "component",
    "last_layer",
    "engine",
    "profile",
    "max_new_tokens",
)


def condition_of(run: PatchRun) -> Condition:
    """What a run shares with all of its condition."""
    em = run.score == "em"
    return Condition(
        id=run.condition[:8],
        score=run.score,
        full=run.models["full"].name or "?",
        retain=run.models["retain"].name or "?",
        settings={name: run.summary[name] for name in _SETTINGS if name in run.summary},
        calibration=run.summary["calibration"],
        layers=run.layers,
        examples=run.examples,
        unit=unit_of(one.group for one in run.examples),
        by_rule=tuple(by_rule(run.summary)),
        baseline="" if em else floats(run.baseline),
        s1=shares(run.s1) if em else floats(run.s1),
    )


def depth_of(
    run: PatchRun,
    *,
    model: int,
    condition: int,
    manifest: int,
    verdict: Verdict | None,
    with_texts: bool,
    tokens: Mapping[str, Any],
) -> Depth:
    """Depth of one run, as the page has it."""
    em, per_layer = run.score == "em", run.said.per_layer
    return Depth(
        model=model,
        condition=condition,
        value=run.estimate.value,
        low=run.estimate.low,
        high=run.estimate.high,
        why=None if run.estimate.ends else run.estimate.why,
        assumes=run.said.ci95_assumes,
        n=run.said.n,
        n_scored=run.said.n_scored,
        verdict=verdict.code if verdict and run.score == "uds" else None,
        because="\n".join([verdict.sentence, *verdict.because]) if verdict else "",
        unscored=run.said.by_reason,
        profile={name: [row.get(name) for row in per_layer] for name in next(iter(per_layer), {})},
        bands={} if em else _bands(run),
        scores=floats(run.scores),
        s2=shares(run.s2) if em else stepped(run.s2),
        extra=_em_extra(run, with_texts)
        if em
        else _controls_extra(run) | ({"tokens": tokens} if tokens else {}),
        manifest=manifest,
    )


def _bands(run: PatchRun) -> dict[str, list[list[float | None]]]:
    """By layer, means over examples with their 95 % limits, nats per token.

    A layer that does not encode a fact holds none of it: all of its S1 counts as reached. Where S2
    was computed at KE layers only, means are over the examples that the layer encodes.
    """
    tau = run.said.tau
    ke = run.s1 > (np.inf if tau is None else tau)
    reached = np.where(ke, run.s2.clip(0, run.s1), run.s1)
    counted = np.isfinite(run.s2) & ke if np.isnan(run.s2).any() else np.isfinite(run.s1)
    groups = np.array([one.group for one in run.examples], dtype=object)
    found = {}
    for name, values in (("s1", run.s1), ("reached", reached), ("held", run.s1 - reached)):
        columns = zip(values.T, counted.T, strict=True)
        means = [clustered_mean(v[rows], list(groups[rows]), bounds=None) for v, rows in columns]
        found[name] = [[one.value, one.low, one.high] for one in means]
    return found


def _controls_extra(run: PatchRun) -> dict[str, Any]:
    """What models say, where those that never knew lie, what was lost of facts to keep.

    Absent where it was not measured.
    """
    floor = run.said.floor
    found = {
        "outputs": part(run.summary, "outputs"),
        "floor": floor and [floor.low, floor.high],
        "collateral": part(run.summary, "collateral"),
    }
    return {name: one for name, one in found.items() if one}


def _em_extra(run: PatchRun, with_texts: bool) -> dict[str, Any]:
    summary = run.summary
    names = (
        "retention",
        "retention_ci95",
        "retention_ci95_why",
        "categories",
    )
    extra = {name: summary[name] for name in names if name in summary}
    extra["category"] = [row.get("category") for row in run.rows]
    if with_texts:
        extra["texts"] = [_said(row) for row in run.rows]
    return extra


def _said(row: Mapping[str, Any]) -> dict[str, str]:
    texts = row.get("texts")
    return {role: str(text) for role, text in texts.items()} if isinstance(texts, dict) else {}


MOST_RUNS = 16
"""Runs of one condition up to which every pair gets an interval: 120 pairs, under a second."""


def paired(runs: Sequence[PatchRun], places: Sequence[int]) -> list[Pair]:
    """All pairs of the runs of one condition; none where they are too many.

    Intervals are by authors, or by rows, as for the scores themselves.

    Args:
        runs: of one condition, so that their examples agree.
        places: where each run stands in `Document.depths`.
    """
    if len(runs) > MOST_RUNS:
        return []
    both = combinations(zip(places, runs, strict=True), 2)
    found = [_pair(first, second, a, b) for (first, a), (second, b) in both]
    return [pair for pair in found if pair is not None]


def _pair(first: int, second: int, a: PatchRun, b: PatchRun) -> Pair | None:
    gaps = a.scores - b.scores
    both = np.isfinite(gaps)
    if not both.any():
        return None
    groups = [one.group for one, yes in zip(a.examples, both, strict=True) if yes]
    difference = float(gaps[both].mean())
    limits = clustered_mean(gaps[both], groups, bounds=(-1.0, 1.0), unit=unit_of(groups))
    return Pair(first, second, difference, limits.low, limits.high, limits.why)
