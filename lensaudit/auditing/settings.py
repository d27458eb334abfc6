"""Settings of an evaluation and of a whole audit.

None means that a choice follows from the models or the data.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from lensaudit.settings import (
    GENERATED,
    OF_A_LOG,
    AnswerGroups,
    Association,
    Cleanup,
    DepthGroups,
    EmptyRows,
    Holdout,
    Needs,
    NeutralRows,
    Option,
    Own,
    Place,
    RetainSet,
    ScoreFiles,
    Thinking,
    needing,
)

_INSIDE = Needs("metrics", reads=("controls",))
_COMPARED = Needs("metrics", reads=(OF_A_LOG,))
_TOFU = Needs("suite", one_of=("tofu",))


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings(ScoreFiles, NeutralRows, AnswerGroups):
    """A run of `eval`: metrics, data, models and conventions."""

    needs: ClassVar = needing(NeutralRows, Needs("retain"), _INSIDE) | {
        "full": (Needs("metrics", reads=("patched",)),),
        "exclude": (Needs("metrics", reads=("patched",)),),
        "think": (
            Needs("metrics", reads=GENERATED),
            Needs("suite", one_of=("tofu",), unless=Needs("template")),  # MUSE has plain tags
        ),
    }

    metrics: Annotated[
        tuple[str, ...],
        Option(
            "Only this metric and those it needs; NAME:key=value sets an option. Repeatable.",
            flag="--metric",
        ),
    ] = ()
    """Empty means all whose needs are met."""
    benchmark: Annotated[
        str | None,
        Option(
            "Suite of --from or of an installed package: its metrics, data and report.", typed=True
        ),
    ] = None
    own: Own = ()
    retain_log: Annotated[
        Place | None,
        Option(
            "Log of the retain model: TOFU_EVAL.json, MUSE_EVAL.json, or the older layout.",
            needs=(_COMPARED,),
        ),
    ] = None
    """Compared with in place of evaluating `retain`, which then is only patched in."""
    retain: Annotated[
        str | None,
        Option(
            "Retain model, evaluated first; also patched in, for UDS.",
            is_a="model",
            needs=(Needs("metrics", reads=("patched", OF_A_LOG)),),
        ),
    ] = None
    ref_value: Annotated[
        float | None,
        Option(
            "AUC to use where the retain model has none (0.5 in open-unlearning).",
            least=0,
            most=1,
            rare="set",
            needs=(_COMPARED,),
        ),
    ] = None
    reference: Annotated[
        str | None,
        Option(
            "Reference model of mia_reference.",
            is_a="model",
            expert=True,
            needs=(Needs("metrics", reads=("reference",)),),
        ),
    ] = None
    tokenizer: Annotated[
        Place | None, Option("Folder of another tokenizer. [default: the model's own]", expert=True)
    ] = None
    template: Annotated[
        Place | None,
        Option("JSON with the prompt's tags, date and system text.", is_a="file", expert=True),
    ] = None
    think: Thinking = None
    cleanup: Annotated[
        Cleanup,
        Option(
            "Blanks before punctuation in decoded text: removed as by transformers 4, or kept.",
            rare="set",
            needs=(Needs("metrics", reads=GENERATED),),
        ),
    ] = "upstream"
    empty: Annotated[
        EmptyRows,
        Option(
            "Rows with nothing to score: unscored, or 0 as upstream; auto follows --mask.",
            rare="set",
        ),
    ] = "auto"


@dataclass(frozen=True, kw_only=True)
class AuditSettings(DepthGroups):
    """A run of `audit`: the depth, and what the models say."""

    needs: ClassVar = dict.fromkeys(("holdout", "inside"), (_TOFU,)) | {
        # beside own rows to forget they are rows for validity, and who has what reads them
        "retain_set": (
            replace(_TOFU, unless=Needs("data", a_file=True)),
            replace(_TOFU, unless=Needs("validity_data", one_of=(None,))),
        )
    }

    suite: Annotated[
        Literal["tofu", "none"],
        Option("Output-level metrics beside the depth; none leaves them out."),
    ] = "tofu"
    association: Association = "quick"
    inside: Annotated[
        bool,
        Option(
            "Also compute the metrics that look inside: EM-erasure, CKA, Logit Lens, Fisher. Slow."
        ),
    ] = False
    holdout: Holdout = None
    retain_set: RetainSet = None
