"""How deep does forgetting go? The model's residuals patched into `full`, against retain's.

Both read the annotated forget set (prefix and entity of every answer), not the suite's split, and
both are 0 where the knowledge is intact and 1 where it is erased as in a model that never saw it.
"""

from typing import Any

from lensaudit.metrics.registry import (
    ANNOTATED,
    MetricContext,
    MetricResult,
    Read,
    mean_of,
    metric,
    unscored,
)

_UDS = Read("patched", ANNOTATED, "uds")
_EM = Read("patched", ANNOTATED, "em")
_NONE = "no retain fact could be scored"
_SOURCE = "gnueaj/unlearning-depth-score @ fc31639"


@metric(
    "uds",
    high_means="forgot",
    source=f"{_SOURCE} (compute_uds.py)",
    tofu=(_UDS,),
    muse=(_UDS,),
    row_value=mean_of("uds"),
)
def uds(context: MetricContext) -> MetricResult:
    """Unlearning Depth Score: what `lensaudit patch` gives under its defaults."""
    return rows_inside(context, "uds")


@metric(
    "em_erasure",
    high_means="forgot",
    source=f"{_SOURCE} (exp_em_eval.py; teacher-forced: --metric em of its first public commit)",
    tofu=(_EM,),
    muse=(_EM,),
    row_value=mean_of("udr"),
)
def em_erasure(context: MetricContext) -> MetricResult:
    """Share of the layers at which retain loses the entity that the model loses as well.

    Erasure rate (UDR) of the teacher-forced form, as `lensaudit patch --score em --em-form
    teacher` gives it: it costs no generation.
    """
    return rows_inside(context, "udr")


_OF_KEPT: dict[str, Any] = {
    "high_means": "forgot",
    "source": f"{_SOURCE} on facts to keep; knowledge holes: arXiv:2511.00030",
    "tofu": (Read("patched", ANNOTATED, "collateral"),),
    "on_request": True,
}


_CONTROL: dict[str, Any] = {
    "high_means": "forgot",
    "source": "docs/uds.md; rotation of Schönemann, doi:10.1007/BF02289451",
    "tofu": (Read("patched", ANNOTATED, "controls"),),
    "on_request": True,
}


@metric("uds_validity", **_CONTROL)
@metric("uds_aligned", **_CONTROL)
@metric("selectivity", **_OF_KEPT)
@metric("collateral", **_OF_KEPT)
def beside_depth(context: MetricContext) -> MetricResult:
    """What stands beside a depth: facts to keep, the aligned one, and whether `full` can read it.

    Collateral: UDS on the retain facts, 0 kept as `full` keeps them, 1 as lost as in the anchor;
    equal to `depth` under `collateral` of `lensaudit patch --also retain`. Selectivity is the UDS
    of the forget set minus it, -1 to 1.

    Aligned: UDS after a linear map, fitted on neutral text, to the basis of `full`; UDS itself
    where it is below 0.1: `full` reads the stream, and nothing has to be aligned. Validity: the
    drop on facts the model still says, in units of what a stream that does not fit makes; below 0.1
    `full` can read the model, near 1 a high UDS says nothing about the facts. Equal to `uds` under
    `aligned` and to `d_share` under `validity` of `lensaudit patch`.
    """
    return number_inside(context, _NONE)


def rows_inside(context: MetricContext, field: str) -> MetricResult:
    """The rows of a patched pass, the score of each under `field`."""
    found = context.passes.measured(context.reads[0])
    records = {idx: {field: value} for idx, (value,) in found.rows.items()}
    return MetricResult(records=records, unscored=found.unscored, details=found.details)


def number_inside(context: MetricContext, none: str) -> MetricResult:
    """A patched pass's one number for the whole set; `none`: why there is none, else unsaid."""
    found = dict(context.passes.measured(context.reads[0]).details)
    value, ends = found.pop("values")[context.name]
    if value is None:
        return unscored(found.get("why", {}).get(context.name) or none)
    if "layers" in found:
        found["per_layer"] = found.pop("layers")[context.name]
    low, high = ends or (None, None)
    return MetricResult(value, low, high, details=found)
