"""Patch runs as the page holds them, and the paired differences of their scores."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from lensaudit.groups import unit_of
from lensaudit.report.document import Condition, Depth, Pair, floats, shares, stepped
from lensaudit.results.patch_runs import PatchRun
from lensaudit.results.reading import part
from lensaudit.results.sentences import by_rule
from lensaudit.scores.intervals import clustered_mean
from lensaudit.verdict.decide import Verdict

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
