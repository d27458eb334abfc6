"""What can be chosen of a patching run; None means that it follows from the models or the data."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from lensaudit.settings import (
    TAU,
    DepthGroups,
    EmForm,
    LastLayer,
    Needs,
    NeutralRows,
    Option,
    Profile,
    Scope,
    Score,
    Seam,
    needing,
)

_UDS = Needs("score", one_of=("uds",))
_EM = Needs("score", one_of=("em",))
_FED = Needs("score", one_of=("uds", "lens"), unless=Needs("em_form", one_of=("teacher",)))
"""Generation patches the last prompt token of `resid`, and nothing else."""


@dataclass(frozen=True, kw_only=True)
class PatchSettings(DepthGroups):
    """How models are patched into `full` and scored."""

    needs: ClassVar = needing(NeutralRows, _UDS)

    score: Annotated[
        Score,
        Option("Unlearning Depth Score; Logit Lens depth, a fast screen; or exact-match erasure."),
    ] = "uds"
    lens: Annotated[bool, Option("Report the Logit Lens depth beside UDS.", needs=(_UDS,))] = False
    em_form: Annotated[
        EmForm | None,
        Option(
            "EM: full generates, or is fed the true answer. [default: generation]",
            expert=True,
            needs=(_EM,),
        ),
    ] = None
    em_threshold: Annotated[
        float | None,
        Option("EM from which a layer counts as KEPT. [default: 0.5]", expert=True, needs=(_EM,)),
    ] = None
    max_new_tokens: Annotated[
        int | None,
        Option(
            "EM: tokens that a patched run generates. [default: 20]",
            least=1,
            expert=True,
            needs=(_EM,),
        ),
    ] = None
    layers: Annotated[
        str, Option("Layers that are patched: all, 3, 0-7, 0-15:3, -1, 0-3,8.", commas=True)
    ] = "all"
    tau: Annotated[
        float, Option("KE threshold, nats.", needs=(Needs("score", one_of=("uds", "lens")),))
    ] = TAU
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
            "Positions replaced: the span's, the last prompt token, or all up to the span's end.",
            needs=(_FED,),
        ),
    ] = "span"
    seam: Annotated[
        Seam | None,
        Option(
            "How question, prefix and entity become tokens: text, as one text; reference, prompt "
            "and answer apart. [default: text; reference for the package's own rows, as published]",
            expert=True,
            needs=(Needs("score", one_of=("uds", "lens")),),
        ),
    ] = None
    component: Annotated[
        str, Option("What is patched: resid, attn, mlp, resid_mid, head:N.", needs=(_FED,))
    ] = "resid"
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
            needs=(_UDS,),
        ),
    ] = None
    also: Annotated[
        tuple[str, ...],
        Option(
            "Facts to keep, to see what was lost of them: retain, world, authors, or a file of "
            "annotated rows. Repeatable.",
            metavar="NAME|FILE",
            needs=(_UDS, Needs("component", one_of=("resid",))),
        ),
    ] = ()
    base: Annotated[
        str | None,
        Option(
            "With --also: a model that never saw these facts, best trained as full was; or the "
            "one before fine-tuning. [default: demo/base for demo/… models; else counterfactual "
            "answers]",
            is_a="model",
            needs=(Needs("also"),),
        ),
    ] = None
