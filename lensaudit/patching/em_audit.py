"""Does `full` still give the answer with one layer patched? Exact match in two forms.

`generation`: the last prompt token is patched and `full` generates; the reference is what `full`
says unpatched. `teacher`: the span is patched, the true answer is fed, and hits are counted.
Definitions: gnueaj/unlearning-depth-score @ fc31639, seed 0: `exp_em_eval.py`, and `--metric em` of
the first public commit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError, VerificationError
from lensaudit.models.checkpoint import load_tokenizer
from lensaudit.patching.audit import Audit, run
from lensaudit.patching.generation import PATCHED_TOKENS
from lensaudit.patching.plan import plan_of
from lensaudit.patching.spoken import n_rows, speak
from lensaudit.scores.erasure import EM_THRESHOLD, ExactMatch, exact_match, first_sentence

EmForm = Literal["generation", "teacher"]

REFERENCE_TOKENS = 30
"""Tokens that each unpatched model generates; `exp_em_eval.py`. The reference is made of `full`'s,
so one longer than `max_new_tokens` cannot be matched in full."""


@dataclass(frozen=True)
class EmOptions:
    """How exact match is measured."""

    form: EmForm = "generation"
    threshold: float = EM_THRESHOLD
    max_new_tokens: int = PATCHED_TOKENS
    reference_tokens: int = REFERENCE_TOKENS


@dataclass(frozen=True)
class Patched:
    """`full` with one donor patched in at one layer at a time."""

    em: ExactMatch
    """NaN rows where the example has no reference."""
    texts: tuple[tuple[str, ...], ...] | None
    """By example and layer; None in the teacher-forced form."""


@dataclass(frozen=True)
class Unpatched:
    """One model by itself."""

    em: tuple[float, ...]
    """Against the true entity."""
    texts: tuple[str, ...] | None


@dataclass(frozen=True)
class EmFound:
    """Exact match of every donor, and of the models by themselves; weights hash -> record."""

    patched: Mapping[str, Patched]
    unpatched: Mapping[str, Unpatched]
    """The teacher-forced form knows `full` alone."""
    unscored: Mapping[int, str]
    """Examples without a reference."""
    n_cut: int
    """References longer than a patched run may grow."""


NO_REFERENCE = "full says nothing before the first full stop: no reference to match"


def check_em(audit: Audit, em: EmOptions) -> None:
    """Refuse settings that have no meaning for exact match.

    Raises:
        InputError: names the option.
    """
    if not 0 < em.threshold <= 1:
        raise InputError(f"--em-threshold {em.threshold}: wanted above 0 and at most 1")
    if audit.options.profile == "ke":
        raise InputError("--profile ke: categories count all layers; leave it out with --score em")
    if em.form == "teacher":
        return
    if audit.options.component != "resid":
        raise InputError(
            f"--component {audit.options.component_name}: generation patches resid only; "
            "use --em-form teacher"
        )
    if audit.options.scope == "prefix":
        raise InputError(
            "--scope prefix: generation patches the last prompt token only; use --em-form teacher"
        )


def run_em(audit: Audit, em: EmOptions) -> EmFound:
    """Exact match of `full` with every donor patched in; computes what no book holds yet.

    Raises:
        InputError: a setting has no meaning here.
        VerificationError: the preflight failed.
    """
    check_em(audit, em)
    return _teacher(audit) if em.form == "teacher" else _generation(audit, em)


def plan_text(audit: Audit, em: EmOptions) -> str:
    """What a run would do, in a few lines; nothing is loaded or written."""
    if em.form == "teacher":
        options = replace(audit.options, measure="hit")
        return plan_of(replace(audit, options=options)).text()
    own, patched = n_rows(
        audit, load_tokenizer(audit.full),
        max_new_tokens=em.max_new_tokens, reference_tokens=em.reference_tokens,
    )  # fmt: skip
    return "\n".join(
        [
            f"examples: {len(audit.encoded)}; layers: {len(audit.options.layers)}",
            f"to generate: {own} texts of up to {em.reference_tokens} tokens, unpatched",
            f"to generate: {patched} texts of up to {em.max_new_tokens} tokens, patched "
            "(example x donor x layer)",
        ]
    )


def _teacher(audit: Audit) -> EmFound:
    audit = replace(audit, options=replace(audit.options, measure="hit"))
    engine = run(audit).engine
    options = replace(audit.options, engine=engine)
    filled = replace(audit, options=options, fresh=False)  # fresh books would be emptied again
    layers, patched, own = audit.options.layers, {}, ()
    for weights, checkpoint in audit.donors().items():
        book = filled.book(checkpoint)
        entries = [book.entry(e) for e in audit.encoded]
        hits = [
            [_share(entry.scores[layer], e) for layer in layers]
            for entry, e in zip(entries, audit.encoded, strict=True)
            if entry is not None
        ]
        patched[weights] = Patched(torch.tensor(hits, dtype=torch.float64), None)
        own = tuple(_share(x.baseline, e) for x, e in zip(entries, audit.encoded, strict=True) if x)
    return EmFound(patched, {audit.full.weights: Unpatched(own, None)}, {}, 0)


def _share(mean: float, encoded: Encoded) -> float:
    """A share of the span's tokens, without the rounding of the float32 mean."""
    n_hits = round(mean * encoded.n_span)
    if not 0 <= n_hits <= encoded.n_span or abs(n_hits - mean * encoded.n_span) > 1e-3:
        raise VerificationError(
            f"example {encoded.idx}: {mean} is not a share of {encoded.n_span} tokens; "
            "run again with --fresh"
        )
    return n_hits / encoded.n_span


def _generation(audit: Audit, em: EmOptions) -> EmFound:
    tokenizer = load_tokenizer(audit.full)
    spoken = speak(
        audit,
        tokenizer,
        max_new_tokens=em.max_new_tokens,
        reference_tokens=em.reference_tokens,
    )

    def compared(text: str) -> list[int]:
        return tokenizer(first_sentence(text), add_special_tokens=False)["input_ids"]

    def match(text: str, reference: Sequence[int]) -> float:
        return exact_match(compared(text), reference) if reference else math.nan

    def matches(texts: Sequence[Sequence[str]]) -> ExactMatch:
        rows = zip(texts, reference, strict=True)
        found = [[match(text, ids) for text in said] for said, ids in rows]
        return torch.tensor(found, dtype=torch.float64)

    entities = {example.idx: example.entity for example in audit.examples}
    truth = [compared(entities[e.idx]) for e in audit.encoded]
    reference = [compared(text) for text in spoken.own[audit.full.weights]]
    silent = [e.idx for e, ids in zip(audit.encoded, reference, strict=True) if not ids]
    return EmFound(
        patched={
            weights: Patched(matches(texts), texts) for weights, texts in spoken.patched.items()
        },
        unpatched={
            weights: Unpatched(tuple(map(match, texts, truth)), texts)
            for weights, texts in spoken.own.items()
        },
        unscored=dict.fromkeys(silent, NO_REFERENCE),
        n_cut=sum(len(ids) > em.max_new_tokens for ids in reference),
    )
