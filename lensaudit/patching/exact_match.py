"""Does `full` still give the answer with one layer patched? Exact match in two forms.

`generation`: the last prompt token is patched and `full` generates; the reference is what `full`
says unpatched. `teacher`: the span is patched, the true answer is fed, and hits are counted.
Definitions: gnueaj/unlearning-depth-score @ fc31639, seed 0: `exp_em_eval.py`, and `--metric em` of
the first public commit. Models are loaded in turn; all layers of an example are one batch.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError, VerificationError
from lensaudit.groups import Group, assumption, batched, unit_of
from lensaudit.models.bridge import TransformerBridge
from lensaudit.models.checkpoint import Checkpoint, generation_config_of, load_tokenizer
from lensaudit.models.generation import stop_ids
from lensaudit.patching.generation import (
    PATCHED_TOKENS,
    PatchedPrompts,
    generate,
    patched_rows,
    rows_that_fit,
)
from lensaudit.patching.outcome import finite
from lensaudit.patching.preflight import check_model
from lensaudit.patching.score_cache import UNPATCHED, TextCache, TextKey, example_hash
from lensaudit.patching.scoring import plan_of, run
from lensaudit.patching.session import Session
from lensaudit.patching.settings import PatchSettings
from lensaudit.patching.sources import CachedSource
from lensaudit.progress import Plan
from lensaudit.scores.erasure import (
    EM_THRESHOLD,
    Erasure,
    ExactMatch,
    erasure_score,
    exact_match,
    first_sentence,
    layer_status,
    tally,
)
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import clustered_mean
from lensaudit.settings import EmForm

REFERENCE_TOKENS = 30
"""Tokens that each unpatched model generates; `exp_em_eval.py`. The reference is made of `full`'s,
so one longer than `max_new_tokens` cannot be matched in full."""
TEXT_BATCH = 64
"""Examples per batch of texts: an interruption loses at most this many."""
NO_REFERENCE = "full says nothing before the first full stop: no reference to match"


@dataclass(frozen=True)
class EmOptions:
    """How exact match is measured."""

    form: EmForm = "generation"
    threshold: float = EM_THRESHOLD
    max_new_tokens: int = PATCHED_TOKENS
    reference_tokens: int = REFERENCE_TOKENS


def em_given(settings: PatchSettings) -> dict[str, Any]:
    """The settings of exact match that were named."""
    given = {
        "form": settings.em_form,
        "threshold": settings.em_threshold,
        "max_new_tokens": settings.max_new_tokens,
    }
    return {name: value for name, value in given.items() if value is not None}


def em_options(settings: PatchSettings) -> EmOptions:
    """The settings of exact match, with their defaults."""
    return EmOptions(**em_given(settings))


@dataclass(frozen=True)
class Spoken:
    """Texts by weights hash, then by example in the order of the session."""

    own: Mapping[str, tuple[str, ...]]
    """What each model says unpatched."""
    patched: Mapping[str, tuple[tuple[str, ...], ...]]
    """What `full` says with each source patched in, by layer."""


@dataclass(frozen=True)
class EmFound:
    """Exact match of every source, and of the models by themselves; by weights hash."""

    patched: Mapping[str, ExactMatch]
    """Of `full` with a source patched in; NaN rows where the example has no reference."""
    own: Mapping[str, tuple[float, ...]]
    """Of a model by itself against the true entity; the teacher-forced form knows `full` alone."""
    spoken: Spoken | None = None
    """None in the teacher-forced form."""
    unscored: Mapping[int, str] = field(default_factory=dict)
    """Examples without a reference."""
    n_cut: int = 0
    """References longer than a patched run may grow."""


def check_em_score(settings: PatchSettings) -> None:
    """Refuse settings of exact match for another score; before any model is opened.

    Raises:
        InputError: names the options.
    """
    if settings.score != "em" and em_given(settings):
        raise InputError("--em-form, --em-threshold, --max-new-tokens: need --score em")


def check_em(session: Session) -> None:
    """Refuse settings that have no meaning for exact match.

    Raises:
        InputError: names the option.
    """
    if session.settings.score != "em":
        return
    options, em = session.options, em_options(session.settings)
    if not 0 < em.threshold <= 1:
        raise InputError(f"--em-threshold {em.threshold}: wanted above 0 and at most 1")
    if options.profile == "ke":
        raise InputError("--profile ke: categories count all layers; leave it out with --score em")
    if em.form == "teacher":
        return
    if options.component != "resid":
        raise InputError(
            f"--component {options.component_name}: generation patches resid only; "
            "use --em-form teacher"
        )
    if options.scope == "prefix":
        raise InputError(
            "--scope prefix: generation patches the last prompt token only; use --em-form teacher"
        )


def run_em(session: Session, em: EmOptions) -> EmFound:
    """Exact match of `full` with every source patched in; computes what is not kept yet.

    Raises:
        VerificationError: the preflight failed.
    """
    with session:
        return _teacher(session) if em.form == "teacher" else _generation(session, em)


def em_plan_of(session: Session, em: EmOptions) -> Plan:
    """What a run would do; nothing is loaded or written."""
    if em.form == "teacher":
        return plan_of(session.under(measure="hit"))
    layers, encoded = session.options.layers, session.encoded
    n_own = n_models = len(session.patched_in()) * len(encoded)
    n_patched = n_models * len(layers)
    if not session.fresh:
        speech = _speech(session, em)
        n_own = sum(len(speech.own_todo(weights)) for weights in speech.own)
        missing = (kept.missing(e, layers) for kept in speech.patched.values() for e in encoded)
        n_patched = sum(map(len, missing))
    lines = (
        f"examples: {len(encoded)}; layers: {len(layers)}",
        f"to generate: {n_own} texts of up to {em.reference_tokens} tokens, unpatched",
        f"to generate: {n_patched} texts of up to {em.max_new_tokens} tokens, "
        "patched (example x source x layer)",
    )
    return Plan(lines, n_own, n_patched)


def _teacher(session: Session) -> EmFound:
    hits = session.under(measure="hit")
    run(hits)
    layers, encoded, full = hits.options.layers, hits.encoded, hits.full.weights
    patched, own = {}, ()
    for weights in hits.patched_in():
        entries = [(hits.scores(weights).known[example_hash(e)], e) for e in encoded]
        shares = [[_share(one.scores[layer], e) for layer in layers] for one, e in entries]
        patched[weights] = torch.tensor(shares, dtype=torch.float64)
        own = tuple(_share(one.baseline, e) for one, e in entries)
    return EmFound(patched, {full: own})


def _share(mean: float, encoded: Encoded) -> float:
    """A share of the span's tokens, without the rounding of the float32 mean."""
    n_hits = round(mean * encoded.n_span)
    if not 0 <= n_hits <= encoded.n_span or abs(n_hits - mean * encoded.n_span) > 1e-3:
        raise VerificationError(
            f"example {encoded.idx}: {mean} is not a share of {encoded.n_span} tokens; "
            "run again with --fresh"
        )
    return n_hits / encoded.n_span


def _generation(session: Session, em: EmOptions) -> EmFound:
    tokenizer, spoken = load_tokenizer(session.full), speak(session, em)

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
    reference = [compared(text) for text in spoken.own[session.full.weights]]
    silent = [e.idx for e, ids in zip(session.encoded, reference, strict=True) if not ids]
    return EmFound(
        patched={weights: matches(texts) for weights, texts in spoken.patched.items()},
        own={weights: tuple(map(match, texts, truth)) for weights, texts in spoken.own.items()},
        spoken=spoken,
        unscored=dict.fromkeys(silent, NO_REFERENCE),
        n_cut=sum(len(ids) > em.max_new_tokens for ids in reference),
    )


@dataclass(frozen=True)
class _Speech:
    """What is kept of a run's texts, by weights hash, and what generation needs to know."""

    session: Session
    em: EmOptions
    tokenizer: Any
    stop: frozenset[int]
    own: Mapping[str, TextCache]
    patched: Mapping[str, TextCache]

    def own_todo(self, weights: str) -> list[Encoded]:
        """Examples that a model has not continued yet."""
        return [e for e in self.session.encoded if self.own[weights].missing(e, [UNPATCHED])]

    def patched_todo(self, sources: Iterable[str]) -> list[Encoded]:
        """Examples with a layer at which one of these was not patched in yet."""
        layers, kept = self.session.options.layers, [self.patched[one] for one in sources]
        return [e for e in self.session.encoded if any(one.missing(e, layers) for one in kept)]

    def decoded(self, said: Sequence[int]) -> str:
        """The text of generated tokens."""
        return self.tokenizer.decode(list(said), skip_special_tokens=True)

    def told(self, what: str, n_todo: int, n_done: int) -> None:
        """Of examples: so many were to be done, so many are."""
        n_all = len(self.session.encoded)
        self.session.tick(what, n_all - n_todo + n_done, n_all)


def _speech(session: Session, em: EmOptions) -> _Speech:
    """Read what is kept; no model is loaded."""
    tokenizer = load_tokenizer(session.full)
    # read from the folder: texts are looked up before a model is loaded
    stop = stop_ids(generation_config_of(session.full).eos_token_id, tokenizer.eos_token_id)

    def kept(model: Checkpoint, source: Checkpoint | None, n_tokens: int) -> TextCache:
        key = TextKey(
            **vars(session.conditions(model, "padded")),
            source=source.weights if source else "",
            last_layer=session.options.last_layer if source else "",
            max_new_tokens=n_tokens,
            stop=tuple(sorted(stop)),
        )
        return session.kept(TextCache, key, (source or model).spec.name)

    models = session.patched_in()
    own = {weights: kept(one, None, em.reference_tokens) for weights, one in models.items()}
    patched = {w: kept(session.full, one, em.max_new_tokens) for w, one in models.items()}
    return _Speech(session, em, tokenizer, stop, own, patched)


def speak(session: Session, em: EmOptions) -> Spoken:
    """Generate what is not kept yet, and read the rest.

    Raises:
        VerificationError: the preflight failed.
        WorkError: an activation or a logit is not finite.
    """
    speech, layers = _speech(session, em), session.options.layers
    full, models = session.full.weights, session.patched_in()
    streams: dict[str, CachedSource] = {}
    for weights in sorted(models, key=lambda w: w == full):  # full last: it stays
        if speech.patched_todo([weights]):
            # the last prompt token is read; all positions of full serve the other scores too
            streams[weights] = session.streams(models[weights], session.encoded)
        if speech.own_todo(weights):
            _say_own(speech, models[weights])
    if streams:
        check_model(session.model(session.full), session.encoded[0], session.options.dtype)
        _say_patched(speech, streams)
    return Spoken(
        own={
            weights: tuple(kept.texts(e, [UNPATCHED])[0] for e in session.encoded)
            for weights, kept in speech.own.items()
        },
        patched={
            weights: tuple(tuple(kept.texts(e, layers)) for e in session.encoded)
            for weights, kept in speech.patched.items()
        },
    )


def _say_own(speech: _Speech, checkpoint: Checkpoint) -> None:
    model, kept = speech.session.model(checkpoint), speech.own[checkpoint.weights]
    n_tokens, n_done = speech.em.reference_tokens, 0
    todo = speech.own_todo(checkpoint.weights)
    for bucket in _buckets(speech, model, todo, 1, n_tokens):
        prompts = [_prompt(e) for e in bucket]
        said = generate(model, prompts, max_new_tokens=n_tokens, stop=speech.stop)
        texts = zip(bucket, map(speech.decoded, said), strict=True)
        kept.add({e: {UNPATCHED: text} for e, text in texts})
        n_done += len(bucket)
        speech.told(f"{checkpoint.spec.name} speaks", len(todo), n_done)


def _say_patched(speech: _Speech, streams: Mapping[str, CachedSource]) -> None:
    session, n_tokens, n_done = speech.session, speech.em.max_new_tokens, 0
    full, n_rows = session.model(session.full), len(streams) * len(session.options.layers)
    todo = speech.patched_todo(streams)
    for bucket in _buckets(speech, full, todo, n_rows, n_tokens):
        _say_bucket(speech, full, streams, bucket)
        n_done += len(bucket)
        speech.told("patching and generating", len(todo), n_done)


def _say_bucket(
    speech: _Speech,
    full: TransformerBridge,
    streams: Mapping[str, CachedSource],
    bucket: Sequence[Encoded],
) -> None:
    """All missing rows of a few examples, every source and layer, in one batch."""
    layers = speech.session.options.layers
    rows = [
        (weights, at, layer)
        for at, e in enumerate(bucket)
        for weights in streams
        for layer in speech.patched[weights].missing(e, layers)
    ]
    value = {(w, at): streams[w].at_prompt_end(bucket[at]) for w, at in {row[:2] for row in rows}}
    said = patched_rows(
        full,
        [_prompt(e) for e in bucket],
        PatchedPrompts(
            prompt=torch.tensor([at for _, at, _ in rows]),
            layer=torch.tensor([layer for *_, layer in rows]),
            value=torch.stack([value[w, at][layer] for w, at, layer in rows]),
        ),
        max_new_tokens=speech.em.max_new_tokens,
        stop=speech.stop,
    )
    texts: dict[str, dict[Encoded, dict[int, str]]] = {weights: {} for weights in streams}
    for (weights, at, layer), ids in zip(rows, said, strict=True):
        texts[weights].setdefault(bucket[at], {})[layer] = speech.decoded(ids)
    for weights, by_example in texts.items():
        speech.patched[weights].add(by_example)


def _prompt(encoded: Encoded) -> tuple[int, ...]:
    return encoded.token_ids[: encoded.n_prompt]


def _buckets(
    speech: _Speech, model: TransformerBridge, todo: Sequence[Encoded], n_rows: int, n_tokens: int
) -> Iterator[Sequence[Encoded]]:
    """Examples alike in prompt length, as many as the memory holds with `n_rows` rows each."""
    options = speech.session.options
    by_length = sorted(todo, key=lambda e: (e.n_prompt, e.idx))
    longest = by_length[-1].n_prompt + n_tokens
    fit = rows_that_fit(model, longest, options.memory_bytes) // n_rows
    size = options.batch_size or max(1, min(TEXT_BATCH, fit))
    return batched(by_length, size)


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
    em: EmOptions
    found: EmFound
    encoded: tuple[Encoded, ...]
    """The examples with a reference; rows of the tables below."""
    s1: ExactMatch
    s2: ExactMatch
    erasure: Erasure
    unscored: Mapping[int, str]
    """idx -> reason; examples without FT layers among them."""

    def rate(self, values: Float[Tensor, " batch"]) -> float | None:
        """Mean of `erasure.udr` or `.retention` over the scored examples; None without any."""
        return _mean(values[self.erasure.udr.isfinite()])

    def interval(self, values: Float[Tensor, " batch"]) -> Estimate:
        """95 % interval of that mean by authors, or why there is none."""
        chosen, groups = self.erasure.udr.isfinite(), self.groups()
        return clustered_mean(values[chosen].tolist(), groups, unit=unit_of(groups))

    def groups(self) -> list[Group]:
        """Author of each scored example."""
        chosen = self.erasure.udr.isfinite().tolist()
        return [e.group for e, yes in zip(self.encoded, chosen, strict=True) if yes]

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
        erasure, layers = self.erasure, self.session.options.layers
        udr, retention = finite([float(erasure.udr[row]), float(erasure.retention[row])])
        return {
            "s1_em": self.s1[row].tolist(),
            "s2_em": self.s2[row].tolist(),
            "ft": [
                at for at, yes in zip(layers, erasure.s1_lost[row].tolist(), strict=True) if yes
            ],
            "udr": udr,
            "retention": retention,
            "category": erasure.category[row],
        }

    def _unpatched(self, at: int) -> dict[str, Any]:
        """What the models do by themselves with one example."""
        session, spoken, own = self.session, self.found.spoken, self.found.own
        if spoken is None:
            return {"baseline": own[session.full.weights][at]}
        roles = _roles(self)
        return {
            "texts": {role: spoken.own[key][at] for role, key in roles.items()},
            "truth_em": {role: own[key][at] for role, key in roles.items()},
            "s1_texts": list(spoken.patched[roles["retain"]][at]),
            "s2_texts": list(spoken.patched[roles["source"]][at]),
        }

    def layer_rows(self) -> list[dict[str, Any]]:
        """Means per layer over all examples with a reference."""
        rows = []
        for column, layer in enumerate(self.session.options.layers):
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
            columns = zip(self.session.options.layers, *parts, labels, strict=True)
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


def em_outcome_of(
    source: str, weights: str, session: Session, em: EmOptions, found: EmFound
) -> EmOutcome:
    """Score one source against `retain`; see `scores.erasure.erasure_score`."""
    there = [at for at, e in enumerate(session.encoded) if e.idx not in found.unscored]
    encoded = tuple(session.encoded[at] for at in there)
    s1, s2 = (found.patched[key][there] for key in (session.retain.weights, weights))
    erasure = erasure_score(s1, s2, layers=session.options.layers, threshold=em.threshold)
    unscored = {**session.unscored, **found.unscored}
    for e, rate in zip(encoded, erasure.udr.tolist(), strict=True):
        if math.isnan(rate):
            unscored[e.idx] = NO_FT
    return EmOutcome(source, weights, session, em, found, encoded, s1, s2, erasure, unscored)


def em_summary_of(outcome: EmOutcome) -> dict[str, Any]:
    """The content of `summary.json`."""
    session, em, erasure = outcome.session, outcome.em, outcome.erasure
    udr = erasure.udr[erasure.udr.isfinite()]
    anchors = {
        name: em_outcome_of(name, checkpoint.weights, session, em, outcome.found)
        for name, checkpoint in (("full", session.full), ("retain", session.retain))
    }
    return {
        "source": outcome.source,
        "score": "em",
        "em_form": em.form,
        "threshold": em.threshold,
        "udr": outcome.rate(erasure.udr),
        **outcome.interval(erasure.udr).limits(),
        "ci95_assumes": assumption(outcome.groups()),
        "retention": outcome.rate(erasure.retention),
        **outcome.interval(erasure.retention).limits("retention_ci95"),
        "n": len(session.encoded) + len(session.unscored),
        "n_scored": len(udr),
        "n_groups": len(set(outcome.groups())),
        "unscored": {str(idx): reason for idx, reason in sorted(outcome.unscored.items())},
        **tally(erasure),
        "udr_histogram": {
            "erased": int((udr == 1).sum()),
            "partly": int(((udr > 0) & (udr < 1)).sum()),
            "intact": int((udr == 0).sum()),
        },
        "calibration": {
            name: {"udr": one.rate(one.erasure.udr), "retention": one.rate(one.erasure.retention)}
            for name, one in anchors.items()
        },
        "last_layer": session.options.last_layer,
        "layers": list(session.options.layers),
        "per_layer": outcome.layer_rows(),
    } | _form_part(outcome)


def _form_part(outcome: EmOutcome) -> dict[str, Any]:
    """What only one of the two forms has."""
    session, em, found, roles = outcome.session, outcome.em, outcome.found, _roles(outcome)
    means = {role: sum(found.own[key]) / len(found.own[key]) for role, key in roles.items()}
    if em.form == "teacher":
        return {
            "scope": session.options.scope,
            "component": session.options.component_name,
            "truth_em": {"full": means["full"]},
            "n_full_lost": sum(value < em.threshold for value in found.own[roles["full"]]),
        }
    return {
        "scope": "last prompt token",
        "component": "resid",
        "max_new_tokens": em.max_new_tokens,
        "reference_tokens": em.reference_tokens,
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
