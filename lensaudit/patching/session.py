"""A whole audit in one call: from opened models to scored outcomes and their record."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lensaudit.models.checkpoint import Checkpoint
from lensaudit.patching.audit import Audit, Deltas
from lensaudit.patching.bench import Bench
from lensaudit.patching.controls import Controls, Examined
from lensaudit.patching.evidence import examined
from lensaudit.patching.lens import lens_options, read_all
from lensaudit.patching.outcome import Outcome, calibration_of, outcome_of
from lensaudit.patching.run import run_on
from lensaudit.results.records import Manifest, computed_by, manifest

Scored = tuple[list[Outcome], dict[str, float | None]]
"""One outcome per source, and the scores of the two anchors."""


def score_all(audit: Audit) -> Scored:
    """UDS of every source, and of the two anchors."""
    with Bench(audit) as bench:
        return score_on(bench)


def score_on(bench: Bench) -> Scored:
    """As `score_all`, with the models of a bench."""
    return _scored(bench.audit, run_on(bench))


def score_examined(bench: Bench, controls: Controls) -> tuple[Scored, dict[str, Examined]]:
    """UDS of every source with the controls that say what it means, by source."""
    found = run_on(bench)
    return _scored(bench.audit, found), examined(bench, found, controls)


def score_lens(audit: Audit) -> Scored:
    """Logit Lens depth of every source, and of the two anchors."""
    audit = replace(audit, options=lens_options(audit.options))
    return _scored(audit, read_all(audit))


def _scored(audit: Audit, found: Deltas) -> Scored:
    audit = replace(audit, options=replace(audit.options, engine=found.engine))
    calibration = calibration_of(
        audit.encoded, audit.options, found.baseline, found.s1, found.self_patch
    )
    outcomes = [
        replace(
            outcome_of(
                *(name, audit.encoded, audit.lost, audit.options),
                *(found.baseline, found.s1, found.s2[name]),
                misfit=audit.misfit(source),
            ),
            computed_by=found.computed_by.get(name, {}),
            by_token=found.by_token.get(name, ()),
        )
        for name, source in audit.sources.items()
    ]
    for line in dict.fromkeys(map(_said_of_versions, found.computed_by.values())):
        if line:
            audit.notice(line)
    return outcomes, calibration


def _said_of_versions(found: Mapping[str, int]) -> str:
    """A line where scores were found that other versions computed than those that run."""
    other = {by: n for by, n in found.items() if by != computed_by()}
    if not other:
        return ""
    listed = "; ".join(f"{n} by {by}" for by, n in other.items())
    return (
        f"{sum(other.values())} of {sum(found.values())} scores were computed earlier under other "
        f"versions ({listed}; here {computed_by()}); --fresh computes them anew"
    )


def manifest_of(
    audit: Audit,
    source: str,
    options: Mapping[str, Any],
    started: float,
    scores_by: Mapping[str, int] | None = None,
) -> Manifest:
    """How the result of one source was made: options, content hashes, versions.

    `scores_by`: versions and how many of the scores they computed.
    """
    inputs = _inputs(audit, {"source": audit.sources[source]})
    if scores_by:
        inputs["scores_computed_by"] = dict(scores_by)
    device = audit.options.device
    return manifest("patch", options=options, inputs=inputs, device=device, started=started)


def comparison_manifest(audit: Audit, options: Mapping[str, Any], started: float) -> Manifest:
    """How the differences between the sources were made."""
    inputs = _inputs(audit, audit.sources)
    device = audit.options.device
    return manifest(
        "patch comparison", options=options, inputs=inputs, device=device, started=started
    )


def _inputs(audit: Audit, sources: Mapping[str, Checkpoint]) -> dict[str, Any]:
    """What names resolved to, and content hashes."""
    inputs: dict[str, Any] = {
        role: {
            "name": checkpoint.spec.name,
            "repo": checkpoint.spec.repo,
            "revision": checkpoint.spec.revision,
            "weights": checkpoint.weights,
            "tokenizer": checkpoint.tokenizer,
        }
        for role, checkpoint in {"full": audit.full, "retain": audit.retain, **sources}.items()
    }
    inputs["examples"] = {"n": len(audit.encoded) + len(audit.lost), "hash": audit.examples_hash}
    return inputs
