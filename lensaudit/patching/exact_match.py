"""Does `full` still give the answer with one layer patched? Exact match in two forms.

`generation`: the last prompt token is patched and `full` generates; the reference is what `full`
says unpatched. `teacher`: the span is patched, the true answer is fed, and hits are counted.
Definitions: gnueaj/unlearning-depth-score @ fc31639, seed 0: `exp_em_eval.py`, and `--metric em` of
the first public commit. Models are loaded in turn; all layers of an example are one batch.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError, VerificationError
from lensaudit.groups import assumption, batched
from lensaudit.models.bridge import TransformerBridge
from lensaudit.models.checkpoint import Checkpoint, generation_config_of
from lensaudit.models.generation import stop_ids
from lensaudit.patching.generation import (
    PatchedPrompts,
    generate,
    patched_rows,
    rows_that_fit,
)
from lensaudit.patching.options import REFERENCE_TOKENS
from lensaudit.patching.outcome import mean_of, scored_groups
from lensaudit.patching.preflight import check_model
from lensaudit.patching.score_cache import UNPATCHED, TextCache, TextKey, example_hash
from lensaudit.patching.scoring import plan_of, run
from lensaudit.patching.session import Session
from lensaudit.patching.settings import PatchSettings
from lensaudit.patching.sources import CachedSource
from lensaudit.progress import Plan
from lensaudit.results.reading import null
from lensaudit.scores.erasure import (
    Erasure,
    ExactMatch,
    erasure_score,
    exact_match,
    first_sentence,
    layer_status,
    tally,
)
from lensaudit.scores.estimate import Estimate

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


def check_em_score(settings: PatchSettings) -> None:
    """Refuse settings of exact match for another score; before any model is opened.

    Raises:
        InputError: names the options.
    """
    given = settings.em_form, settings.em_threshold, settings.max_new_tokens
    if settings.score != "em" and any(one is not None for one in given):
        raise InputError("--em-form, --em-threshold, --max-new-tokens: need --score em")


def check_em(session: Session) -> None:
    """Refuse settings that have no meaning for exact match.

    Raises:
        InputError: names the option.
    """
    settings = session.settings
    if settings.score != "em":
        return
    if not 0 < settings.em_threshold <= 1:
        raise InputError(f"--em-threshold {settings.em_threshold}: wanted above 0 and at most 1")
    if settings.profile == "ke":
        raise InputError("--profile ke: categories count all layers; leave it out with --score em")
    if settings.em_form == "teacher":
        return
    if settings.part != "resid":
        raise InputError(
            f"--component {settings.component}: generation patches resid only; "
            "use --em-form teacher"
        )
    if settings.scope == "prefix":
        raise InputError(
            "--scope prefix: generation patches the last prompt token only; use --em-form teacher"
        )


def run_em(session: Session) -> Matches:
    """Exact match of `full` with every source patched in; computes what is not kept yet.

    Raises:
        VerificationError: the preflight failed.
    """
    with session:
        return _teacher(session) if session.settings.em_form == "teacher" else _generation(session)


def em_plan_of(session: Session) -> Plan:
    """What a run would do; nothing is loaded or written."""
    settings, encoded = session.settings, session.encoded
    if settings.em_form == "teacher":
        return plan_of(session.under(measure="hit"))
    layers = settings.at_layers
    n_own = n_models = len(session.patched_in()) * len(encoded)
    n_patched = n_models * len(layers)
    if not settings.fresh:
        own, patched = own_texts(session), patched_texts(session)
        n_own = sum(len(_todo(session, [kept], [UNPATCHED])) for kept in own.values())
        missing = (kept.missing(e, layers) for kept in patched.values() for e in encoded)
        n_patched = sum(map(len, missing))
    lines = (
        f"examples: {len(encoded)}; layers: {len(layers)}",
        f"to generate: {n_own} texts of up to {REFERENCE_TOKENS} tokens, unpatched",
        f"to generate: {n_patched} texts of up to {settings.max_new_tokens} tokens, "
        "patched (example x source x layer)",
    )
    return Plan(lines, n_own, n_patched)


def _teacher(session: Session) -> Matches:
    hits = session.under(measure="hit")
    run(hits)
    layers, encoded, full = hits.settings.at_layers, hits.encoded, hits.full.weights
    patched, own = {}, ()
    for weights in hits.patched_in():
        entries = [(hits.scores(weights).known[example_hash(e)], e) for e in encoded]
        shares = [[_share(one.scores[layer], e) for layer in layers] for one, e in entries]
        patched[weights] = torch.tensor(shares, dtype=torch.float64)
        own = tuple(_share(one.baseline, e) for one, e in entries)
    return Matches(patched, {full: own})


def _share(mean: float, encoded: Encoded) -> float:
    """A share of the span's tokens, without the rounding of the float32 mean."""
    n_hits = round(mean * encoded.n_span)
    if not 0 <= n_hits <= encoded.n_span or abs(n_hits - mean * encoded.n_span) > 1e-3:
        raise VerificationError(
            f"example {encoded.idx}: {mean} is not a share of {encoded.n_span} tokens; "
            "run again with --fresh"
        )
    return n_hits / encoded.n_span


def _generation(session: Session) -> Matches:
    tokenizer, layers = session.tokenizer, session.settings.at_layers
    speak(session)
    own = {
        weights: [kept.texts(e, [UNPATCHED])[0] for e in session.encoded]
        for weights, kept in own_texts(session).items()
    }
    patched = {
        weights: [kept.texts(e, layers) for e in session.encoded]
        for weights, kept in patched_texts(session).items()
    }

    def compared(text: str) -> list[int]:
        return tokenizer(first_sentence(text), add_special_tokens=False)["input_ids"]

    def match(text: str, reference: Sequence[int]) -> float:
        return exact_match(compared(text), reference) if reference else math.nan

    def matches(texts: Sequence[Sequence[str]]) -> ExactMatch:
        rows = zip(texts, reference, strict=True)
        found = [[match(text, ids) for text in said] for said, ids in rows]
        return torch.tensor(found, dtype=torch.float64)

    entities = {example.idx: example.entity for example in session.examples}
    truth = [compared(entities[e.idx]) for e in session.encoded]
    reference = [compared(text) for text in own[session.full.weights]]
    silent = [e.idx for e, ids in zip(session.encoded, reference, strict=True) if not ids]
    return Matches(
        patched={weights: matches(texts) for weights, texts in patched.items()},
        own={weights: tuple(map(match, texts, truth)) for weights, texts in own.items()},
        texts=own,
        patched_texts=patched,
        unscored=dict.fromkeys(silent, NO_REFERENCE),
        n_cut=sum(len(ids) > session.settings.max_new_tokens for ids in reference),
    )


def own_texts(session: Session) -> dict[str, TextCache]:
    """What is kept of what each model says unpatched, by weights hash; no model is loaded."""
    models = session.patched_in()
    return {weights: _kept(session, one, None) for weights, one in models.items()}


def patched_texts(session: Session) -> dict[str, TextCache]:
    """What is kept of what `full` says with each source patched in, by weights hash."""
    models = session.patched_in()
    return {weights: _kept(session, session.full, one) for weights, one in models.items()}


def _kept(session: Session, model: Checkpoint, source: Checkpoint | None) -> TextCache:
    settings = session.settings
    key = TextKey(
        **vars(session.conditions(model, "padded")),
        source=source.weights if source else "",
        last_layer=settings.last_layer if source else "",
        max_new_tokens=settings.max_new_tokens if source else REFERENCE_TOKENS,
        stop=tuple(sorted(_stop(session))),
    )
    return session.kept(TextCache, key, (source or model).spec.name)


def _stop(session: Session) -> frozenset[int]:
    """Tokens that end a text, read from the folder: before a model is loaded."""
    eos = generation_config_of(session.full).eos_token_id
    return stop_ids(eos, session.tokenizer.eos_token_id)


def _todo(session: Session, kept: Sequence[TextCache], layers: Sequence[int]) -> list[Encoded]:
    """Examples of which one of these lacks a text."""
    return [e for e in session.encoded if any(one.missing(e, layers) for one in kept)]


def speak(session: Session) -> None:
    """Generate what is not kept yet.

    Raises:
        VerificationError: the preflight failed.
        WorkError: an activation or a logit is not finite.
    """
    layers, full, models = session.settings.at_layers, session.full.weights, session.patched_in()
    own, patched = own_texts(session), patched_texts(session)
    streams: dict[str, CachedSource] = {}
    for weights in sorted(models, key=lambda w: w == full):  # full last: it stays
        if _todo(session, [patched[weights]], layers):
            # the last prompt token is read; all positions of full serve the other scores too
            streams[weights] = session.streams(models[weights], session.encoded)
        if todo := _todo(session, [own[weights]], [UNPATCHED]):
            _say_own(session, models[weights], own[weights], todo)
    if streams:
        check_model(session.model(session.full), session.encoded[0], session.settings.dtype)
        _say_patched(session, streams, patched)


def _say_own(
    session: Session, checkpoint: Checkpoint, kept: TextCache, todo: Sequence[Encoded]
) -> None:
    model, stop, what = session.model(checkpoint), _stop(session), f"{checkpoint.spec.name} speaks"
    for bucket in _buckets(session, model, todo, 1, REFERENCE_TOKENS, what):
        prompts = [_prompt(e) for e in bucket]
        said = generate(model, prompts, max_new_tokens=REFERENCE_TOKENS, stop=stop)
        texts = zip(bucket, said, strict=True)
        kept.add({e: {UNPATCHED: _decoded(session, ids)} for e, ids in texts})


def _say_patched(
    session: Session, streams: Mapping[str, CachedSource], kept: Mapping[str, TextCache]
) -> None:
    """All missing rows of a few examples, every source and layer, in one batch."""
    layers, n_tokens = session.settings.at_layers, session.settings.max_new_tokens
    full, n_rows, stop = session.model(session.full), len(streams) * len(layers), _stop(session)
    todo = _todo(session, [kept[weights] for weights in streams], layers)
    for bucket in _buckets(session, full, todo, n_rows, n_tokens, "patching and generating"):
        rows = [
            (weights, at, layer)
            for at, e in enumerate(bucket)
            for weights in streams
            for layer in kept[weights].missing(e, layers)
        ]
        pairs = dict.fromkeys((weights, at) for weights, at, _ in rows)
        ends = {(w, at): streams[w].at_prompt_end(bucket[at]) for w, at in pairs}
        said = patched_rows(
            full,
            [_prompt(e) for e in bucket],
            PatchedPrompts(
                prompt=torch.tensor([at for _, at, _ in rows]),
                layer=torch.tensor([layer for *_, layer in rows]),
                value=torch.stack([ends[w, at][layer] for w, at, layer in rows]),
            ),
            max_new_tokens=n_tokens,
            stop=stop,
        )
        texts: dict[str, dict[Encoded, dict[int, str]]] = {weights: {} for weights in streams}
        for (weights, at, layer), ids in zip(rows, said, strict=True):
            texts[weights].setdefault(bucket[at], {})[layer] = _decoded(session, ids)
        for weights, by_example in texts.items():
            kept[weights].add(by_example)


def _decoded(session: Session, said: Sequence[int]) -> str:
    return session.tokenizer.decode(list(said), skip_special_tokens=True)


def _prompt(encoded: Encoded) -> tuple[int, ...]:
    return encoded.token_ids[: encoded.n_prompt]


def _buckets(
    session: Session,
    model: TransformerBridge,
    todo: Sequence[Encoded],
    n_rows: int,
    n_tokens: int,
    what: str,
) -> Iterator[Sequence[Encoded]]:
    """Examples alike in prompt length, as many as the memory holds with `n_rows` rows each.

    Whoever listens is told when each of these is done.
    """
    settings, n_done = session.settings, len(session.encoded) - len(todo)
    by_length = sorted(todo, key=lambda e: (e.n_prompt, e.idx))
    longest = by_length[-1].n_prompt + n_tokens
    fit = rows_that_fit(model, longest, settings.memory_bytes) // n_rows
    for bucket in batched(by_length, settings.batch_size or max(1, min(TEXT_BATCH, fit))):
        yield bucket
        n_done += len(bucket)
        session.tick(what, n_done, len(session.encoded))


NO_FT = (
    "no FT layer: with retain patched in, full still gives the answer at every layer "
    "(general knowledge)"
)
EM_COLUMNS = ("idx", "group", "layer", "s1_em", "s2_em", "s1_lost", "s2_lost", "label")


@dataclass(frozen=True)
class EmOutcome:
    """Erasure rate of one source: per example, overall, and per layer."""

    source: str
    weights: str
    """The source's content hash: its key in `found`."""
    session: Session
    found: Matches
    encoded: tuple[Encoded, ...]
    """The examples with a reference; rows of the tables below."""
    s1: ExactMatch
    s2: ExactMatch
    erasure: Erasure
    unscored: Mapping[int, str]
    """idx -> reason; examples without FT layers among them."""

    def mean(self, values: Float[Tensor, " batch"]) -> Estimate:
        """Mean of `erasure.udr` or `.retention` over the scored examples."""
        return mean_of(values, self.encoded)

    def rows(self) -> list[dict[str, Any]]:
        """One JSON object per example, in the order of `idx`; unscored ones included."""
        place = {e.idx: row for row, e in enumerate(self.encoded)}
        rows = [
            {"idx": e.idx, "group": e.group, "n_span": e.n_span}
            | (self._numbers(place[e.idx]) if e.idx in place else dict(_NO_NUMBERS))
            | {"unscored": self.unscored.get(e.idx)}
            | self._unpatched(at)
            for at, e in enumerate(self.session.encoded)
        ]
        rows += [
            {"idx": idx, **_NO_NUMBERS, "unscored": why}
            for idx, why in self.session.unscored.items()
        ]
        return sorted(rows, key=lambda row: row["idx"])

    def _numbers(self, row: int) -> dict[str, Any]:
        erasure, layers = self.erasure, self.session.settings.at_layers
        return {
            "s1_em": self.s1[row].tolist(),
            "s2_em": self.s2[row].tolist(),
            "ft": [
                at for at, yes in zip(layers, erasure.s1_lost[row].tolist(), strict=True) if yes
            ],
            "udr": null(float(erasure.udr[row])),
            "retention": null(float(erasure.retention[row])),
            "category": erasure.category[row],
        }

    def _unpatched(self, at: int) -> dict[str, Any]:
        """What the models do by themselves with one example."""
        found, roles = self.found, _roles(self)
        if not found.texts:
            return {"baseline": found.own[roles["full"]][at]}
        return {
            "texts": {role: found.texts[key][at] for role, key in roles.items()},
            "truth_em": {role: found.own[key][at] for role, key in roles.items()},
            "s1_texts": list(found.patched_texts[roles["retain"]][at]),
            "s2_texts": list(found.patched_texts[roles["source"]][at]),
        }

    def layer_rows(self) -> list[dict[str, Any]]:
        """Means per layer over all examples with a reference."""
        rows = []
        for column, layer in enumerate(self.session.settings.at_layers):
            lost = self.erasure.s1_lost[:, column], self.erasure.s2_lost[:, column]
            rows.append(
                {
                    "layer": layer,
                    "s1_em": _mean(self.s1[:, column]),
                    "s2_em": _mean(self.s2[:, column]),
                    "s1_lost": _mean(lost[0].double()),
                    "s2_lost": _mean(lost[1].double()),
                    "status": layer_status(*lost),
                }
            )
        return rows

    def cells(self) -> list[list[Any]]:
        """One row per example and layer, for `layers.csv`."""
        rows = []
        tables = (self.s1, self.s2, self.erasure.s1_lost.int(), self.erasure.s2_lost.int())
        for row, e in enumerate(self.encoded):
            parts = [table[row].tolist() for table in tables]
            labels = [label.strip("-") for label in self.erasure.labels(row)]
            columns = zip(self.session.settings.at_layers, *parts, labels, strict=True)
            rows += [[e.idx, e.group, *cells] for cells in columns]
        return rows


_NO_NUMBERS: Mapping[str, Any] = {
    "s1_em": None,
    "s2_em": None,
    "ft": [],
    "udr": None,
    "retention": None,
    "category": None,
}


def em_outcome_of(source: str, weights: str, session: Session, found: Matches) -> EmOutcome:
    """Score one source against `retain`; see `scores.erasure.erasure_score`."""
    there = [at for at, e in enumerate(session.encoded) if e.idx not in found.unscored]
    encoded = tuple(session.encoded[at] for at in there)
    s1, s2 = (found.patched[key][there] for key in (session.retain.weights, weights))
    settings = session.settings
    erasure = erasure_score(s1, s2, layers=settings.at_layers, threshold=settings.em_threshold)
    unscored = {**session.unscored, **found.unscored}
    for e, rate in zip(encoded, erasure.udr.tolist(), strict=True):
        if math.isnan(rate):
            unscored[e.idx] = NO_FT
    return EmOutcome(source, weights, session, found, encoded, s1, s2, erasure, unscored)


def em_summary_of(outcome: EmOutcome) -> dict[str, Any]:
    """The content of `summary.json`."""
    session, erasure, settings = outcome.session, outcome.erasure, outcome.session.settings
    udr, groups = erasure.udr[erasure.udr.isfinite()], scored_groups(erasure.udr, outcome.encoded)
    rate, retention = outcome.mean(erasure.udr), outcome.mean(erasure.retention)
    anchors = {
        name: em_outcome_of(name, checkpoint.weights, session, outcome.found)
        for name, checkpoint in (("full", session.full), ("retain", session.retain))
    }
    return {
        "source": outcome.source,
        "score": "em",
        "em_form": settings.em_form,
        "threshold": settings.em_threshold,
        "udr": rate.value,
        **rate.limits(),
        "ci95_assumes": assumption(groups),
        "retention": retention.value,
        **retention.limits("retention_ci95"),
        "n": len(session.encoded) + len(session.unscored),
        "n_scored": len(udr),
        "n_groups": len(set(groups)),
        "unscored": {str(idx): reason for idx, reason in sorted(outcome.unscored.items())},
        **tally(erasure),
        "udr_histogram": {
            "erased": int((udr == 1).sum()),
            "partly": int(((udr > 0) & (udr < 1)).sum()),
            "intact": int((udr == 0).sum()),
        },
        "calibration": {
            name: {
                rate: one.mean(getattr(one.erasure, rate)).value for rate in ("udr", "retention")
            }
            for name, one in anchors.items()
        },
        "last_layer": settings.last_layer,
        "layers": list(settings.at_layers),
        "per_layer": outcome.layer_rows(),
    } | _form_part(outcome)


def _form_part(outcome: EmOutcome) -> dict[str, Any]:
    """What only one of the two forms has."""
    settings, found, roles = outcome.session.settings, outcome.found, _roles(outcome)
    means = {role: sum(found.own[key]) / len(found.own[key]) for role, key in roles.items()}
    if settings.em_form == "teacher":
        return {
            "scope": settings.scope,
            "component": settings.component,
            "truth_em": {"full": means["full"]},
            "n_full_lost": sum(value < settings.em_threshold for value in found.own[roles["full"]]),
        }
    return {
        "scope": "last prompt token",
        "component": "resid",
        "max_new_tokens": settings.max_new_tokens,
        "reference_tokens": REFERENCE_TOKENS,
        "truth_em": means,
        "n_reference_cut": found.n_cut,
    }


def _roles(outcome: EmOutcome) -> dict[str, str]:
    """Role -> weights, of the models of which it is known what they do by themselves."""
    session = outcome.session
    roles = {"full": session.full, "retain": session.retain}
    weights = {role: one.weights for role, one in roles.items()} | {"source": outcome.weights}
    return {role: key for role, key in weights.items() if key in outcome.found.own}


def _mean(values: Float[Tensor, " value"]) -> float | None:
    return float(values.double().mean()) if len(values) else None
