"""Do the model's representations look like those of one that never knew? Three baselines of UDS.

All three read the annotated forget set and are 0 at `full` and 1 at `retain`, as UDS is. They
follow gnueaj/unlearning-depth-score @ fc31639, compute_representation_baselines.py, with float32
accumulation.
"""

from typing import Any

from lensaudit.metrics.depth import number_inside, rows_inside
from lensaudit.metrics.registry import (
    ANNOTATED,
    MetricContext,
    MetricResult,
    Read,
    mean_of,
    metric,
)

_LENS = Read("patched", ANNOTATED, "lens")
_CKA = Read("patched", ANNOTATED, "cka")
_ALIKE = "no layer tells full from retain"
_SOURCE = "gnueaj/unlearning-depth-score @ fc31639 (compute_representation_baselines.py)"


@metric(
    "logit_lens",
    high_means="forgot",
    source=_SOURCE,
    tofu=(_LENS,),
    muse=(_LENS,),
    row_value=mean_of("lens"),
)
def logit_lens(context: MetricContext) -> MetricResult:
    """What the readout of `full` no longer finds in the model's residual streams, as UDS counts.

    Equal to `lensaudit patch --score lens`.
    """
    return rows_inside(context, "lens")


_FISHER: dict[str, Any] = {
    "high_means": "forgot",
    "source": _SOURCE,
    "tofu": (Read("patched", ANNOTATED, "fisher"),),
    "muse": (Read("patched", ANNOTATED, "fisher"),),
}


@metric("fisher_masked_0.01", **_FISHER)
@metric("fisher_masked_0.001", **_FISHER)
@metric("fisher_masked_0.0001", **_FISHER)
@metric("cka", high_means="forgot", source=_SOURCE, tofu=(_CKA,), muse=(_CKA,))
def by_layer(context: MetricContext) -> MetricResult:
    """One number for the whole set, summed over layers: no example has a value of its own.

    CKA: how far the streams' geometry went from that of `full` to that of `retain`. Linear CKA over
    all scored positions of all examples, per layer; layers weigh 1 - CKA(full, retain).

    Fisher: is the loss on the forgotten facts as curved as in `retain`, where `full` had settled?
    Diagonal Fisher information over a share of each layer's parameters, those in which `retain`
    exceeds `full` most; layers weigh by that excess. Costs one backward pass per example.
    """
    return number_inside(context, _ALIKE)
