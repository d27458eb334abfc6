"""The models of a page, one per set of weights, with all that results say; their runs, paired."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import combinations, count, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from lensaudit.errors import InputError
from lensaudit.groups import grouped, unit_of
from lensaudit.kinds.meta import Aggregate
from lensaudit.models.registry import shipped
from lensaudit.report.packing import floats, rooted, shares
from lensaudit.results.kinds.eval import HOW, EvaluationResult, MetricResult
from lensaudit.results.kinds.patch import PatchRun, rows_hash
from lensaudit.results.manifest import MANIFEST, signed_object
from lensaudit.results.owner import short_name
from lensaudit.results.reading import part
from lensaudit.results.sentences import by_rule
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import clustered_mean
from lensaudit.settings import COUNTERFACTUAL, TAU
from lensaudit.text import digest
from lensaudit.verdict.collect import Called, Verdicts
from lensaudit.verdict.decide import Code, Evidence, Word
from lensaudit.verdict.rows import facts_in, facts_of_run, shared

ANCHORS = ("full", "retain")
"""Roles that calibrate the scale; who has one is never judged."""
ROLES: Mapping[str, str] = {"full": "full", "retain": "retain", "base": "retain"}
"""Role of an end in a result -> of an anchor of the page."""
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


NO_LIMITS = "from other metrics: no interval"
NOT_LOGGED = "the log gives no interval"
OTHERS = "another question"
"""In the place of retain, where there is none: whose stream it is that full reads."""
METRIC_OF = {"uds": "uds", "lens": "logit_lens"}
"""Score of a run -> the metric of the suite that is the same number."""
IN_SUITE = {"scope": "span", "component": "resid", "last_layer": "resid_post", "tau": TAU}
"""Settings of the suite, which are the defaults of `patch`; it asks all layers."""
ANNOTATED = 0.9
"""Share of a suite's rows that can be patched, at least: of TOFU's forget10 367 of 400."""


@dataclass(frozen=True)
class PageModel:
    """One set of weights."""

    name: str
    label: str
    method: str | None
    epoch: str | None
    role: str | None
    metrics: Mapping[str, list[Any]]
    """Name -> value, low, high, scored, unscored, reason; of an attack what its p says too."""
    manifest: int | None
    """Of its evaluation."""
    verdict: Code | None
    """After all that is known of it; None: nothing is, or it is an anchor."""
    word: Word | None
    """The verdict in words."""

    @property
    def is_anchor(self) -> bool:
        """`full` or `retain`."""
        return self.role in ANCHORS


def models_of(
    runs: Sequence[PatchRun],
    evals: Mapping[str, EvaluationResult],
    aggregates: Sequence[Aggregate],
    verdicts: Verdicts,
) -> dict[str, PageModel]:
    """Weights -> the model, of every one that any result names.

    Weights of the same name are told apart by folder.
    """
    judged, called = verdicts.models, verdicts.called
    names = {one.weights: called[one.weights][0] for one in (*runs, *evals.values())}
    for one in judged:
        # what names no weights is of a model of that name, if there is one
        if one.weights != one.source or one.source not in names.values():
            names[one.weights] = one.source
    rows = {row.model: row for row in aggregates}
    lone = {f"name {name}": name for name in rows if name not in names.values()}
    names |= lone
    measured = {one.weights: one for one in judged if one.measured}
    shown = told_names({**called, **{at: (name, Path()) for at, name in lone.items()}})
    manifests, found = count(len(runs)), {}
    for weights, name in names.items():
        row, run, spec = rows.get(name), evals.get(weights), shipped().get(name)
        end = verdicts.end(name if weights in lone else weights, name)
        role = ROLES[end] if end else spec and spec.role
        method = spec.method if spec else method_in(Path(name))
        known = None if role in ANCHORS else measured.get(weights)
        epoch = spec and _EPOCH.search(spec.alias_of or spec.name)
        digits = "".join(filter(str.isdigit, str(row and row.epoch)))
        found[weights] = PageModel(
            name=name,
            label=shown[weights],
            method=method or (None if role in ANCHORS or row is None else row.method),
            epoch=epoch[1] if epoch else digits or None,
            role=role,
            metrics=_metrics(row, run, [one for one in runs if one.weights == weights]),
            manifest=next(manifests) if run and run.manifest is not None else None,
            verdict=None if known is None else known.code,
            word=None if known is None else known.word,
        )
    return found


def apart(evals: Mapping[str, EvaluationResult]) -> dict[str, dict[str, str]]:
    """Weights -> in which rows and settings evaluations differ, each as a short hash."""
    splits = [{*run.rows} for run in evals.values() if run.rows]
    shared_by_all = sorted(set.intersection(*splits)) if splits else []
    said = {
        weights: {
            HOW.get(name, f"{name} rows"): digest(one)[:8]
            for name, one in run.asked(*shared_by_all).items()
            if one is not None
        }
        for weights, run in evals.items()
    }
    known = grouped((name, one) for asked in said.values() for name, one in asked.items())
    differ = [name for name, every in known.items() if len({*every}) > 1]
    found = {at: {name: one[name] for name in differ if name in one} for at, one in said.items()}
    return {at: one for at, one in found.items() if one}


def told_names(called: Called) -> dict[str, str]:
    """Weights -> label; where several models have one name, with the folder of their results.

    What names no weights makes no model of its name ambiguous, and has its folder alone.
    """
    label = labels(name for name, _ in called.values())
    shown = {weights: label[name] for weights, (name, _) in called.items()}
    for name, same in grouped((name, weights) for weights, (name, _) in called.items()).items():
        parts = told_apart([called[weights][1] for weights in same]) if len(same) > 1 else ()
        several = len(set(same) - {name}) > 1
        shown |= {
            weights: f"{label[name]} · {part}"
            for weights, part in zip(same, parts, strict=False)
            if several or weights == name
        }
    return shown


def _metrics(
    row: Aggregate | None, run: EvaluationResult | None, patched: Sequence[PatchRun]
) -> dict[str, list[Any]]:
    """Metrics of a model: aggregates, of its evaluation, and what `patch` measured beside it."""
    found = {
        name: _listed(Estimate(getattr(row, name), n=0, why=row.reasons.get(name)), 0)
        for name in AGGREGATES
        if row is not None
    }
    for name, entry in (run.entries if run else {}).items():
        told = entry.betrayal.get("says")
        found[name] = _listed(entry, entry.n_unscored) + ([str(told)] if told else [])
    for one in patched:
        # a suite that had no retain model says so
        metric = METRIC_OF.get(one.score, "")
        if run and metric in found and found[metric][0] is None and _as_in_suite(one, run):
            found[metric] = _listed(one.estimate, one.n - one.n_scored)
    return found


def _as_in_suite(patched: PatchRun, run: EvaluationResult) -> bool:
    """Whether `patch` ran as a suite does, on the rows of its evaluation that have an entity."""
    rows = shared(facts_in(run.manifest or {}, None, run.path), facts_of_run(patched))
    same = rows.known and rows.n == rows.n_asked >= ANNOTATED * rows.n_own
    return same and IN_SUITE.items() <= patched.summary.items() and not patched.n_unpatched


def _listed(one: Estimate, n_unscored: int) -> list[Any]:
    """An estimate for the page: value, low, high, scored, unscored, why something is missing."""
    return [one.value, one.low, one.high, one.n, n_unscored, lacking(one)]


def lacking(one: Estimate) -> str | None:
    """Why a number has no value or no limits; None where it has both.

    >>> lacking(Estimate(0.5)), lacking(Estimate(0.5, n=8)), lacking(Estimate(0.5, 0.2, 0.8))
    ('from other metrics: no interval', 'the log gives no interval', None)
    """
    if one.why or one.value is None or one.ends:
        return one.why
    return NOT_LOGGED if one.n else NO_LIMITS


def kinds_of(
    runs: Sequence[EvaluationResult], aggregates: Sequence[Aggregate]
) -> list[Mapping[str, Any]]:
    """Every metric once; a log that says its direction wins over one that does not."""
    known: dict[str, MetricResult] = {}
    for run in runs:
        for name, one in run.entries.items():
            if name not in known or known[name].high_means is None:
                known[name] = one
    told = {name: (one.family, one.high_means, one.source) for name, one in known.items()} | {
        name: ("aggregate", high, "lensaudit meta aggregate")
        for name, high in AGGREGATES.items()
        if name not in known and aggregates
    }
    kinds = [
        {"name": name, "family": family, "high_means": high, "source": source}
        for name, (family, high, source) in told.items()
    ]
    return sorted(kinds, key=lambda kind: (kind["family"], kind["name"]))


_EPOCH = re.compile(r"(?:^|[_-])(?:ep|epoch)_?(\d+)(?=$|[_-])")


def method_in(folder: Path) -> str | None:
    """What `lensaudit unlearn` wrote beside the weights; None of a folder that is not there.

    A folder may have any name: nothing is read off it.
    """
    with suppress(InputError):
        method = part(signed_object(folder / MANIFEST), "inputs").get("method")
        return method if isinstance(method, str) else None
    return None


def labels(names: Iterable[str]) -> dict[str, str]:
    """Short names for a table: a folder's or adapter's last part, where that is not ambiguous.

    >>> labels(["demo/npo", "runs/a/npo", "/data/b", "/data/full"])["/data/b"]
    'b'
    """
    known = list(dict.fromkeys(names))
    taken = [short_name(name) for name in known]
    return {
        name: short if taken.count(short) == 1 else name
        for name, short in zip(known, taken, strict=True)
    }


def told_apart(folders: Sequence[Path]) -> list[str]:
    """The first part of each path in which they all differ; numbers where there is none.

    >>> told_apart([Path("out/base/npo/patch"), Path("out/nf4/npo/patch")])
    ['base', 'nf4']
    >>> told_apart([Path("out/npo"), Path("out/npo/tau")])  # one lies in the other
    ['npo', 'tau']
    """
    found = (
        [part or folder.name for part, folder in zip(parts, folders, strict=True)]
        for parts in zip_longest(*(folder.parts for folder in folders), fillvalue="")
    )
    numbers = [str(n) for n in range(1, len(folders) + 1)]
    return next((names for names in found if len({*names}) == len(names)), numbers)


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


def condition_of(run: PatchRun) -> dict[str, Any]:
    """What a run shares with all that can be compared with it row by row, as the page has it.

    `unit` is what an interval counts; `baseline` and `s1` are float32 per example and layer, nats
    per token, or shares in a byte each.
    """
    em = run.score == "em"
    return {
        "id": run.condition[:8],
        "rows": rows_hash(run.manifest),
        "score": run.score,
        "full": run.models["full"].name or "?",
        "retain": OTHERS if run.scale else run.models["retain"].name or "?",
        "scale": run.scale,
        "settings": {name: run.summary[name] for name in _SETTINGS if name in run.summary}
        | {"dtype": part(run.manifest, "options").get("dtype")},
        "calibration": run.calibration,
        "layers": run.layers,
        "examples": list(map(asdict, run.examples)),
        "unit": unit_of(one.group for one in run.examples),
        "by_rule": list(by_rule(run.spans)),
        "baseline": "" if em else floats(run.baselines),
        "s1": shares(run.s1) if em else floats(run.s1),
    }


def depth_of(
    run: PatchRun, known: Evidence | None, *, with_texts: bool, tokens: Mapping[str, Any]
) -> dict[str, Any]:
    """Depth of one run as the page has it, with what decided the verdict.

    `profile` has the columns of `per_layer`; `scores` are float32 per example, `s2` as `s1`.
    """
    em, per_layer, floor = run.score == "em", run.per_layer, run.floor
    names = ("retention", "retention_ci95", "retention_ci95_why", "categories")
    # what models say, where those that never knew lie, what was lost of facts to keep
    beside = {
        "outputs": part(run.summary, "outputs"),
        "floor": floor and floor.aligned and [floor.low, floor.high],
        "collateral": part(run.summary, "collateral"),
    }
    extra = {name: one for name, one in beside.items() if one}
    if em:
        extra = {name: run.summary[name] for name in names if name in run.summary}
        extra["category"] = [row.get("category") for row in run.rows]
        extra |= {"texts": [part(row, "texts") for row in run.rows]} if with_texts else {}
    return {
        "value": run.estimate.value,
        "low": run.estimate.low,
        "high": run.estimate.high,
        "why": None if run.estimate.ends else run.estimate.why,
        "assumes": run.ci95_assumes,
        "n": run.n,
        "n_scored": run.n_scored,
        "verdict": known.word if known and run.score in ("uds", COUNTERFACTUAL) else None,
        "because": "\n".join([known.verdict.sentence, *known.verdict.because]) if known else "",
        "unscored": run.by_reason,
        "profile": {
            name: [row.get(name) for row in per_layer] for name in next(iter(per_layer), {})
        },
        "bands": {} if em else _bands(run),
        "scores": floats(run.scores),
        "s2": shares(run.s2) if em else rooted(run.s2),
        "extra": extra | ({"tokens": tokens} if tokens else {}),
    }


def _bands(run: PatchRun) -> dict[str, list[list[float | None]]]:
    """Means over examples by layer with their 95 % limits, nats per token.

    A layer that does not encode a fact holds none of it: all of its S1 counts as reached. Where S2
    was computed at KE layers only, means are over the examples that the layer encodes.
    """
    tau = run.tau
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


MOST_RUNS = 16
"""Runs of one condition up to which every pair gets an interval: 120 pairs, under a second."""


def paired(runs: Sequence[PatchRun]) -> list[dict[str, Any]]:
    """Every pair of runs of one condition, `a` and `b` by place, as the page has it.

    The score of one minus that of the other over the examples that both score, with its interval.
    None of conditions with too many runs.
    """
    found = []
    for places in grouped((run.condition, at) for at, run in enumerate(runs)).values():
        for a, b in combinations(places, 2) if len(places) <= MOST_RUNS else ():
            gap, _ = runs[a].minus(runs[b])
            ends = {"low": gap.low, "high": gap.high, "why": gap.why}
            if gap.value is not None:
                found.append({"a": a, "b": b, "difference": gap.value, **ends})
    return found
