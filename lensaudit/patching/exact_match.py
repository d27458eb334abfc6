"""Does `full` still give the answer with one layer patched? Exact match in two forms.

`generation`: the last prompt token is patched and `full` generates; the reference is what `full`
says unpatched. `teacher`: the span is patched, the true answer is fed, and hits are counted.
Definitions: gnueaj/unlearning-depth-score @ fc31639, seed 0: `exp_em_eval.py`, and `--metric em` of
the first public commit. Models are loaded in turn; all layers of an example are one batch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError
from lensaudit.groups import assumption, batched
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.generation import stop_of
from lensaudit.patching.generation import generate, patched_rows, rows_that_fit
from lensaudit.patching.options import REFERENCE_TOKENS, ResolvedSettings
from lensaudit.patching.outcome import Summarised, mean_of, scored_groups
from lensaudit.patching.preflight import check_model
from lensaudit.patching.score_cache import UNPATCHED, TextCache, example_hash, text_key
from lensaudit.patching.scoring import compute
from lensaudit.patching.session import Session
from lensaudit.patching.sources import CachedSource
from lensaudit.progress import Progress
from lensaudit.results.kinds.patch import PatchSummary
from lensaudit.results.reading import null
from lensaudit.scores.depth import (
    Erasure,
    ExactMatch,
    erasure_score,
    exact_match,
    first_sentence,
    layer_status,
    tally,
)

TEXT_BATCH = 64
"""Examples per batch of texts: an interruption loses at most this many."""
NO_REFERENCE = "full says nothing before the first full stop: no reference to match"


@dataclass(frozen=True)
class Matches:
    """Exact match of every source, and of the models by themselves; by weights hash."""

    patched: Mapping[str, ExactMatch]
    """Of `full` with a source patched in; NaN rows where the example has no reference."""
    own: Mapping[str, tuple[float, ...]]
    """Of a model by itself against the true entity; the teacher-forced form knows `full` alone."""
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What each model says unpatched, in the order of the session; not in the teacher-forced
    form."""
    patched_texts: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    """What `full` says with each source patched in, by layer."""
    unscored: Mapping[int, str] = field(default_factory=dict)
    """Examples without a reference."""
    n_cut: int = 0
    """References longer than a patched run may grow."""


def check_em(settings: ResolvedSettings) -> None:
    """Refuse settings that have no meaning for exact match.

    Raises:
        InputError: names the option.
    """
    if settings.score != "em":
        return
    if not 0 < settings.em_threshold <= 1:
        raise InputError(f"--em-threshold {settings.em_threshold}: wanted above 0 and at most 1")
    if settings.profile == "ke":
        raise InputError("--profile ke: categories count all layers; leave it out with --score em")


def run_em(session: Session) -> Matches:
    """Exact match of `full` with every source patched in; computes what is not kept yet.

    Raises:
        VerificationError: the preflight failed.
    """
    with session:
        return _teacher(session) if session.settings.em_form == "teacher" else _generation(session)


def _teacher(session: Session) -> Matches:
    hits = session.under(measure="hit")
    compute(hits)
    layers, encoded, full = hits.settings.at_layers, hits.encoded, hits.full.weights
    patched, own = {}, ()

    def share(mean: float, e: Encoded) -> float:
        # of the span's tokens, without the rounding of the float32 mean
        return round(mean * e.n_span) / e.n_span

    for weights in hits.patched_in():
        entries = [(hits.scores(weights).known[example_hash(e)], e) for e in encoded]
        shares = [[share(one.scores[layer], e) for layer in layers] for one, e in entries]
        patched[weights] = torch.tensor(shares, dtype=torch.float64)
        own = tuple(share(one.baseline, e) for one, e in entries)
    return Matches(patched, {full: own})


def _generation(session: Session) -> Matches:
    speak(session)
    own, patched = (
        {weights: [kept.texts(e, layers) for e in session.encoded] for weights, kept in one.items()}
        for one, layers in kept_texts(session)
    )
    said = {weights: [text for (text,) in texts] for weights, texts in own.items()}

    def compared(text: str) -> list[int]:
        return session.tokenizer(first_sentence(text), add_special_tokens=False)["input_ids"]

    def match(text: str, reference: Sequence[int]) -> float:
        return exact_match(compared(text), reference) if reference else math.nan

    entities = {example.idx: example.entity for example in session.examples}
    truth = [compared(entities[e.idx]) for e in session.encoded]
    reference = [compared(text) for text in said[session.full.weights]]
    matches = {
        weights: [
            [match(text, ids) for text in row] for row, ids in zip(texts, reference, strict=True)
        ]
        for weights, texts in patched.items()
    }
    silent = [e.idx for e, ids in zip(session.encoded, reference, strict=True) if not ids]
    return Matches(
        patched={one: torch.tensor(rows, dtype=torch.float64) for one, rows in matches.items()},
        # an entity without a first sentence, as ".NET", is never said
        own={
            weights: tuple(
                match(text, ids) if ids else 0.0 for text, ids in zip(texts, truth, strict=True)
            )
            for weights, texts in said.items()
        },
        texts=said,
        patched_texts=patched,
        unscored=dict.fromkeys(silent, NO_REFERENCE),
        n_cut=sum(len(ids) > session.settings.max_new_tokens for ids in reference),
    )


Texts = tuple[dict[str, TextCache], Sequence[int]]
"""What is kept of texts by weights hash, and the layers that are wanted of each."""


def kept_texts(session: Session) -> tuple[Texts, Texts]:
    """What each model says unpatched, and `full` with each patched in; no model is loaded."""
    settings, models = session.settings, session.patched_in()

    def kept(model: Checkpoint, source: Checkpoint | None) -> TextCache:
        key = text_key(
            session.conditions(model, "padded"),
            donor=source.weights if source else "",
            last_layer=settings.last_layer if source else "",
            max_new_tokens=settings.max_new_tokens if source else REFERENCE_TOKENS,
            stop=stop_of(session.full, session.tokenizer),
        )
        return session.kept(TextCache, key, (source or model).spec.name)

    own = {weights: kept(one, None) for weights, one in models.items()}
    patched = {weights: kept(session.full, one) for weights, one in models.items()}
    return (own, [UNPATCHED]), (patched, settings.at_layers)


def speak(session: Session) -> None:
    """Generate what is not kept yet.

    Raises:
        VerificationError: the preflight failed.
        WorkError: an activation or a logit is not finite.
    """
    full, models = session.full.weights, session.patched_in()
    (own, unpatched), (patched, layers) = kept_texts(session)
    streams: dict[str, CachedSource] = {}
    for weights in sorted(models, key=lambda w: w == full):  # full last: it stays
        if any(patched[weights].missing(e, layers) for e in session.encoded):
            # the last prompt token is read; all positions of full serve the other scores too
            streams[weights] = session.streams(models[weights], session.encoded)
        _say(session, models[weights], {weights: own[weights]}, unpatched, {})
    if streams:
        check_model(session.model(session.full), session.encoded[0], session.settings.dtype)
        _say(session, session.full, {one: patched[one] for one in streams}, layers, streams)


def _say(
    session: Session,
    speaker: Checkpoint,
    kept: Mapping[str, TextCache],
    layers: Sequence[int],
    streams: Mapping[str, CachedSource],
) -> None:
    """All missing rows of a few examples, every source and layer, in one batch.

    Args:
        session: of the run.
        speaker: who speaks.
        kept: where the texts go, by source.
        layers: of which texts are wanted.
        streams: what is patched in, by source; none: nothing is.
    """
    todo = [e for e in session.encoded if any(one.missing(e, layers) for one in kept.values())]
    if not todo:
        return
    model, settings = session.model(speaker), session.settings
    if streams:
        what, n_new = "patching and generating", settings.max_new_tokens
    else:
        what, n_new = f"{speaker.spec.name} speaks", REFERENCE_TOKENS
    how = {"max_new_tokens": n_new, "stop": stop_of(session.full, session.tokenizer)}
    longest = max(e.n_prompt for e in todo) + n_new
    fit = rows_that_fit(model, longest, settings.memory_bytes) // (len(kept) * len(layers))
    n_done = len(session.encoded) - len(todo)
    by_length = sorted(todo, key=lambda e: (e.n_prompt, e.idx))
    for bucket in batched(by_length, settings.batch_size or max(1, min(TEXT_BATCH, fit))):
        rows = [
            (weights, at, layer)
            for at, e in enumerate(bucket)
            for weights, cache in kept.items()
            for layer in cache.missing(e, layers)
        ]
        prompts = [e.token_ids[: e.n_prompt] for e in bucket]
        if streams:
            pairs = {(weights, at) for weights, at, _ in rows}
            ends = {(w, at): streams[w].at_prompt_end(bucket[at]) for w, at in pairs}
            said = patched_rows(
                *(model, prompts),
                row_prompt=[at for _, at, _ in rows],
                layer=[layer for *_, layer in rows],
                value=torch.stack([ends[w, at][layer] for w, at, layer in rows]),
                **how,
            )
        else:
            said = generate(model, prompts, **how)
        texts: dict[str, dict[Encoded, dict[int, str]]] = {weights: {} for weights in kept}
        for (weights, at, layer), ids in zip(rows, said, strict=True):
            text = session.tokenizer.decode(list(ids), skip_special_tokens=True)
            texts[weights].setdefault(bucket[at], {})[layer] = text
        for weights, by_example in texts.items():
            kept[weights].add(by_example)
        n_done += len(bucket)
        session.progress(Progress(what, n_done, len(session.encoded)))


NO_FT = (
    "no FT layer: with retain patched in, full still gives the answer at every layer "
    "(general knowledge)"
)
EM_COLUMNS = ("idx", "group", "layer", "s1_em", "s2_em", "s1_lost", "s2_lost", "label")


_NO_NUMBERS: dict[str, Any] = {
    "s1_em": None,
    "s2_em": None,
    "ft": [],
    "udr": None,
    "retention": None,
    "category": None,
}


@dataclass(frozen=True)
class SourceMatch:
    """Exact match with one source patched in, of the examples that have a reference."""

    encoded: Sequence[Encoded]
    layers: Sequence[int]
    s1: ExactMatch
    s2: ExactMatch
    erasure: Erasure

    def numbers(self) -> dict[int, dict[str, Any]]:
        """Idx -> the numbers of an example in results.jsonl."""
        found = {}
        for row, e in enumerate(self.encoded):
            lost = self.erasure.s1_lost[row].tolist()
            found[e.idx] = {
                "s1_em": self.s1[row].tolist(),
                "s2_em": self.s2[row].tolist(),
                "ft": [layer for layer, yes in zip(self.layers, lost, strict=True) if yes],
                "udr": null(float(self.erasure.udr[row])),
                "retention": null(float(self.erasure.retention[row])),
                "category": self.erasure.category[row],
            }
        return found

    def cells(self) -> list[list[Any]]:
        """Rows of layers.csv: one for each example and layer."""
        found = []
        for row, e in enumerate(self.encoded):
            columns = (
                self.layers,
                self.s1[row].tolist(),
                self.s2[row].tolist(),
                self.erasure.s1_lost[row].int().tolist(),
                self.erasure.s2_lost[row].int().tolist(),
                [label.strip("-") for label in self.erasure.labels(row)],
            )
            found += [[e.idx, e.group, *cell] for cell in zip(*columns, strict=True)]
        return found

    def per_layer(self) -> list[dict[str, Any]]:
        """Means over the examples at each layer, and what most of them are."""
        s1_lost, s2_lost = self.erasure.s1_lost, self.erasure.s2_lost
        return [
            {
                "layer": layer,
                "s1_em": null(float(self.s1[:, at].mean())),
                "s2_em": null(float(self.s2[:, at].mean())),
                "s1_lost": null(float(s1_lost[:, at].double().mean())),
                "s2_lost": null(float(s2_lost[:, at].double().mean())),
                "status": layer_status(s1_lost[:, at], s2_lost[:, at]),
            }
            for at, layer in enumerate(self.layers)
        ]


def em_result(source: str, checkpoint: Checkpoint, session: Session, found: Matches) -> Summarised:
    """Erasure rate of one source: per example, overall, and per layer.

    Args:
        source: its name.
        checkpoint: the source.
        session: of the run.
        found: matches of all sources.
    """
    settings = session.settings
    roles = {"full": session.full, "retain": session.retain, "source": checkpoint}
    weights = {role: one.weights for role, one in roles.items()}
    own = {role: key for role, key in weights.items() if key in found.own}
    there = [at for at, e in enumerate(session.encoded) if e.idx not in found.unscored]
    encoded = [session.encoded[at] for at in there]
    patched = {role: found.patched[key][there] for role, key in weights.items()}
    erasures = {
        role: erasure_score(
            patched["retain"], s2, layers=settings.at_layers, threshold=settings.em_threshold
        )
        for role, s2 in patched.items()
    }
    erasure = erasures["source"]
    match = SourceMatch(encoded, settings.at_layers, patched["retain"], patched["source"], erasure)
    unscored = {**session.unscored, **found.unscored}
    for e, rate in zip(encoded, erasure.udr.tolist(), strict=True):
        if math.isnan(rate):
            unscored[e.idx] = NO_FT
    numbers = match.numbers()
    rows: list[dict[str, Any]] = [
        {
            "idx": e.idx,
            "group": e.group,
            "n_span": e.n_span,
            **numbers.get(e.idx, _NO_NUMBERS),
            "unscored": unscored.get(e.idx),
            **_unpatched(at, found, own),
        }
        for at, e in enumerate(session.encoded)
    ]
    rows += [{"idx": i, **_NO_NUMBERS, "unscored": why} for i, why in session.unscored.items()]
    udr, groups = erasure.udr[erasure.udr.isfinite()], scored_groups(erasure.udr, encoded)
    rate, retention = mean_of(erasure.udr, encoded), mean_of(erasure.retention, encoded)
    summary = PatchSummary(
        source=source,
        score="em",
        em_form=settings.em_form,
        threshold=settings.em_threshold,
        udr=rate.value,
        ci95=rate.ends,
        ci95_why=None if rate.ends else rate.why,
        ci95_assumes=assumption(groups),
        retention=retention.value,
        retention_ci95=retention.ends,
        retention_ci95_why=None if retention.ends else retention.why,
        n=len(session.encoded) + len(session.unscored),
        n_scored=len(udr),
        n_groups=len(set(groups)),
        unscored={str(idx): reason for idx, reason in sorted(unscored.items())},
        **tally(erasure),
        udr_histogram={
            "erased": int((udr == 1).sum()),
            "partly": int(((udr > 0) & (udr < 1)).sum()),
            "intact": int((udr == 0).sum()),
        },
        calibration={
            role: {
                "udr": mean_of(erasures[role].udr, encoded).value,
                "retention": mean_of(erasures[role].retention, encoded).value,
            }
            for role in ("full", "retain")
        },
        last_layer=settings.last_layer,
        layers=list(settings.at_layers),
        per_layer=match.per_layer(),
        **_form_part(settings, found, own),
    )
    rows.sort(key=lambda row: row["idx"])
    return Summarised(summary, rows, (EM_COLUMNS, match.cells()), None)


def _unpatched(at: int, found: Matches, own: Mapping[str, str]) -> dict[str, Any]:
    """What the models do by themselves with one example; `own`: role -> weights."""
    if not found.texts:
        return {"baseline": found.own[own["full"]][at]}
    return {
        "texts": {role: found.texts[key][at] for role, key in own.items()},
        "truth_em": {role: found.own[key][at] for role, key in own.items()},
        "s1_texts": list(found.patched_texts[own["retain"]][at]),
        "s2_texts": list(found.patched_texts[own["source"]][at]),
    }


def _form_part(
    settings: ResolvedSettings, found: Matches, own: Mapping[str, str]
) -> dict[str, Any]:
    """What only one of the two forms has."""
    means = {role: sum(found.own[key]) / len(found.own[key]) for role, key in own.items()}
    if settings.em_form == "teacher":
        return {
            "scope": settings.scope,
            "component": settings.component,
            "truth_em": {"full": means["full"]},
            "n_full_lost": sum(value < settings.em_threshold for value in found.own[own["full"]]),
        }
    return {
        "scope": "last prompt token",
        "component": "resid",
        "max_new_tokens": settings.max_new_tokens,
        "reference_tokens": REFERENCE_TOKENS,
        "truth_em": means,
        "n_reference_cut": found.n_cut,
    }
