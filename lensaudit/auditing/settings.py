"""What can be chosen of a cache, a patching run, an evaluation and a whole audit.

None means that a choice follows from the models or the data.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from lensaudit.settings import (
    TAU,
    AnswerGroups,
    Caches,
    Cleanup,
    EmForm,
    EmptyRows,
    Holdout,
    Kept,
    LastLayer,
    Machine,
    Names,
    NeutralRows,
    Option,
    PatchGroups,
    Place,
    Positions,
    Profile,
    RetainSet,
    Rows,
    Scope,
    Score,
    ScoreFiles,
)


@dataclass(frozen=True, kw_only=True)
class CacheSettings(Caches, Machine, Rows, Names):
    """What of a model is kept: its residual streams, or components of its layers."""

    component: Annotated[
        Kept | tuple[Kept, ...],
        Option(
            "What is cached of every layer: the residual stream after it, what attention or the "
            "MLP adds, the stream between them, or all heads' outputs. Repeatable. "
            "[default: resid]",
            expert=True,
        ),
    ] = ()
    positions: Annotated[
        Positions,
        Option("The read positions and the last prompt token, or every token.", expert=True),
    ] = "span"


@dataclass(frozen=True, kw_only=True)
class PatchSettings(PatchGroups):
    """How models are patched into `full` and scored."""

    score: Annotated[
        Score,
        Option("Unlearning Depth Score; Logit Lens depth, a fast screen; or exact-match erasure."),
    ] = "uds"
    lens: Annotated[bool, Option("Report the Logit Lens depth beside UDS.")] = False
    em_form: Annotated[
        EmForm | None,
        Option("EM: full generates, or is fed the true answer. [default: generation]", expert=True),
    ] = None
    em_threshold: Annotated[
        float | None, Option("EM from which a layer counts as KEPT. [default: 0.5]", expert=True)
    ] = None
    max_new_tokens: Annotated[
        int | None,
        Option("EM: tokens that a patched run generates. [default: 20]", least=1, expert=True),
    ] = None
    layers: Annotated[str, Option("all, 3, 0-7, 0-15:3, -1, 0-3,8.")] = "all"
    tau: Annotated[float, Option("KE threshold, nats.")] = TAU
    last_layer: Annotated[
        LastLayer,
        Option(
            "What is patched in at the last layer; reference is post-norm, as published.",
            expert=True,
        ),
    ] = "resid_post"
    scope: Annotated[
        Scope,
        Option(
            "Positions replaced: the span's, the last prompt token, or all up to the span's end."
        ),
    ] = "span"
    component: Annotated[str, Option("resid, attn, mlp, resid_mid, head:N.")] = "resid"
    engine: Annotated[
        Literal["sweep", "oracle"],
        Option(
            "One sweep over all layers, or one hooked pass per layer (the definition).", expert=True
        ),
    ] = "sweep"
    profile: Annotated[
        Profile | None,
        Option(
            "S2 at all layers, or only where it can change UDS. [default: ke for several sources]",
            expert=True,
        ),
    ] = None
    also: Annotated[
        tuple[str, ...],
        Option(
            "Facts to keep, to see what was lost of them: retain, world, authors, or a file of "
            "annotated rows. Repeatable.",
            metavar="NAME|FILE",
        ),
    ] = ()
    base: Annotated[
        str | None,
        Option(
            "With --also: a model that never saw these facts, best trained as full was; or the "
            "one before fine-tuning. [default: demo/base for demo/… models; else counterfactual "
            "answers]",
            is_a="model",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings(ScoreFiles, NeutralRows, AnswerGroups):
    """Which metrics are computed, on what, under which conventions."""

    metrics: Annotated[
        tuple[str, ...], Option("Only this one and its needs. Repeatable.", flag="--metric")
    ] = ()
    """Empty means all whose needs are met."""
    retain_log: Annotated[
        Place | None,
        Option("Log of the retain model: TOFU_EVAL.json, MUSE_EVAL.json, or the older layout."),
    ] = None
    """PatchGroups with in place of evaluating `retain`, which then is only patched in."""
    retain: Annotated[
        str | None,
        Option("Retain model, evaluated first; also patched in, for UDS.", is_a="model"),
    ] = None
    ref_value: Annotated[
        float | None,
        Option(
            "AUC that stands in for a missing retain reference (0.5 in open-unlearning).",
            least=0,
            most=1,
            expert=True,
        ),
    ] = None
    reference: Annotated[
        str | None, Option("Reference model of mia_reference.", is_a="model", expert=True)
    ] = None
    tokenizer: Annotated[
        Place | None, Option("Folder. [default: the model's own]", expert=True)
    ] = None
    template: Annotated[
        Place | None,
        Option("JSON with the prompt's tags, date and system text.", is_a="file", expert=True),
    ] = None
    cleanup: Annotated[
        Cleanup,
        Option(
            "Blanks before punctuation in decoded text: removed as by transformers 4, or kept.",
            expert=True,
        ),
    ] = "upstream"
    empty: Annotated[
        EmptyRows,
        Option(
            "Rows with nothing to score: unscored, or 0 as upstream; auto follows --mask.",
            expert=True,
        ),
    ] = "auto"


@dataclass(frozen=True, kw_only=True)
class AuditSettings(PatchGroups):
    """What a whole audit consists of: the depth, and what the models say."""

    suite: Annotated[
        Literal["tofu", "none"],
        Option("Output-level metrics beside the depth; none leaves them out."),
    ] = "tofu"
    inside: Annotated[
        bool,
        Option(
            "Also the suite's metrics that look inside: EM-erasure, CKA, Logit Lens, Fisher. Slow."
        ),
    ] = False
    holdout: Holdout = None
    retain_set: RetainSet = None
