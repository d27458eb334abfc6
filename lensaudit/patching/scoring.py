"""Scores of a run: what no cache holds is patched; then outcomes and their record."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.activations.spec import kept_as
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.sizes import sizes_on_disk
from lensaudit.patching.audit import Audit, Deltas, cached_sources
from lensaudit.patching.bench import Bench
from lensaudit.patching.books import Books
from lensaudit.patching.budget import Room
from lensaudit.patching.controls import Controls, Examined, examined
from lensaudit.patching.lens import lens_options, read_all
from lensaudit.patching.outcome import Outcome, calibration_of, outcome_of
from lensaudit.patching.preflight import agrees_with_oracle, planned_engine
from lensaudit.patching.sources import CachedComponent, CachedSource, LiveSource, SourceStreams
from lensaudit.patching.stages import Runner, baselines, complete, deltas
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


def run(audit: Audit) -> Deltas:
    """As `run_on`, with models of its own."""
    with Bench(audit) as bench:
        return run_on(bench)


def run_on(bench: Bench) -> Deltas:
    """Compute what no book of the bench's audit holds yet, and read the rest.

    Raises:
        VerificationError: the preflight failed.
        WorkError: an activation or a score is not finite.
    """
    audit = bench.audit
    books = audit.books(planned_engine(audit.full.architecture, audit.options, audit.notice))
    bench.use(books.engine)
    if books.incomplete():
        books = _compute(bench, books)
    layers, encoded = audit.options.layers, audit.encoded
    s1 = deltas(books.by_weights[audit.retain.weights], encoded, layers)

    def s2(source: Checkpoint) -> Float[Tensor, "batch layer"]:
        if audit.misfit(source) is not None:
            return torch.full_like(s1, torch.nan)
        found = deltas(books.by_weights[source.weights], encoded, layers)
        # rows that another run left in the book are not part of this one
        return found if audit.options.profile == "full" else found.where(s1 > tau, torch.nan)

    tau = audit.options.tau
    return Deltas(
        baseline=baselines(books.by_weights[audit.retain.weights], encoded),
        s1=s1,
        s2={name: s2(checkpoint) for name, checkpoint in audit.sources.items()},
        self_patch=s2(audit.full),
        engine=books.engine,
        computed_by={
            name: _computed_by(audit, books, checkpoint)
            for name, checkpoint in audit.sources.items()
        },
    )


def _computed_by(audit: Audit, books: Books, source: Checkpoint) -> dict[str, int]:
    found: Counter[str] = Counter()
    read = [audit.retain] if audit.misfit(source) is not None else [audit.retain, source]
    for one in read:
        found.update(books.by_weights[one.weights].computed_by(audit.encoded, audit.options.layers))
    return dict(sorted(found.items()))


def _compute(bench: Bench, books: Books) -> Books:
    """Fill the books; those of the oracle, if the sweep turns out not to be usable."""
    audit = bench.audit
    options = audit.options
    room = Room(sizes_on_disk(audit.full, options.dtype), options, books.engine == "sweep")
    room.check(audit.encoded, n_sources=len(books.incomplete()))
    with ExitStack() as opened:
        caches = cached_sources(audit, books, opened, bench.model)
        runner = bench.runner(audit.encoded)
        if bench.audit.options.positions_needed(of_full=True):
            caches[audit.full.weights] = bench.streams(audit.full, audit.encoded)
        checked = agrees_with_oracle(
            runner, audit.encoded, _self_streams(bench, caches, opened), audit.notice
        )
        if checked.engine != books.engine:
            bench.use(checked.engine)
            books = audit.books(checked.engine)
            checked.room.check(audit.encoded, n_sources=len(books.incomplete()))
            caches |= cached_sources(audit, books, opened, bench.model, there=caches)
        if options.component == "resid":
            _fill_books(audit, checked, caches, books)
        else:
            _fill_components(bench, checked, books, opened)
    return books


def _self_streams(
    bench: Bench, caches: Mapping[str, CachedSource], opened: ExitStack
) -> SourceStreams:
    if bench.audit.options.component != "resid":
        return _component_streams(bench, bench.audit.full, opened)
    return caches[bench.audit.full.weights]


def _fill_components(bench: Bench, runner: Runner, books: Books, opened: ExitStack) -> None:
    """One source at a time: what is not cached runs beside `full`."""
    patched_in = bench.audit.patched_in()
    for weights in books.incomplete():
        streams = _component_streams(bench, patched_in[weights], opened)
        _fill_books(bench.audit, runner, {weights: streams}, books)


def _component_streams(bench: Bench, checkpoint: Checkpoint, opened: ExitStack) -> SourceStreams:
    """From the cache that `lensaudit cache --component` made; else the model runs."""
    audit = bench.audit
    component = audit.options.component
    kept = audit.there(checkpoint, audit.options.positions_replaced, kept_as(component))
    if kept is None:
        return LiveSource(bench.model(checkpoint), component, checkpoint.spec.name)
    sizes = sizes_on_disk(audit.full, audit.options.dtype)
    return CachedComponent(opened.enter_context(kept), sizes.n_heads)


def _fill_books(
    audit: Audit, runner: Runner, streams: Mapping[str, SourceStreams], books: Books
) -> None:
    """S1 first where S2 is wanted at KE layers only; else everything in one sweep."""

    def fill_them(names: Sequence[str], what: str) -> None:
        chosen = {name: streams[name] for name in names if name in streams}
        if chosen:
            complete(
                runner,
                audit.encoded,
                chosen,
                books.by_weights,
                books.wanted(names[0]),
                what=what,
                progress=audit.progress,
            )

    if audit.options.profile == "full":
        fill_them(list(streams), "patching")
        return
    fill_them([books.s1], "patching S1")
    fill_them([name for name in streams if name != books.s1], "patching S2")
