"""How deep does forgetting go? The model's residuals patched into `full`, against retain's.

Both read the annotated forget set (prefix and entity of every answer), not the suite's split, and
both are 0 where the knowledge is intact and 1 where it is erased as in a model that never saw it.
"""

import math
from typing import Any

from lensaudit.metrics.records import mean_of
from lensaudit.metrics.registry import (
    ANNOTATED,
    MetricContext,
    MetricResult,
    Read,
    metric,
    unscored,
)
from lensaudit.scores.estimate import Estimate

_UDS = Read("patched", ANNOTATED, "uds")
_EM = Read("patched", ANNOTATED, "em")
_KEPT = Read("patched", ANNOTATED, "collateral")
_CONTROLS = Read("patched", ANNOTATED, "controls")
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
    return _entry(context, "uds")


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
    return _entry(context, "udr")


def _kept(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "high_means": "forgot",
        "source": f"{_SOURCE} on facts to keep; knowledge holes: arXiv:2511.00030",
        "tofu": (_KEPT,),
        "on_request": True,
    }


@metric(**_kept("collateral"))
def collateral(context: MetricContext) -> MetricResult:
    """UDS on the retain facts: 0 kept as `full` keeps them, 1 as lost as in the anchor.

    Equal to `depth` under `collateral` of `lensaudit patch --also retain`.
    """
    return _of_kept(context, "collateral")


@metric(**_kept("selectivity"))
def selectivity(context: MetricContext) -> MetricResult:
    """UDS of the forget set minus that of the retain facts, -1 to 1."""
    return _of_kept(context, "selectivity")


def _control(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "high_means": "forgot",
        "source": "docs/uds.md; rotation of Schönemann, doi:10.1007/BF02289451",
        "tofu": (_CONTROLS,),
        "on_request": True,
    }


@metric(**_control("uds_aligned"))
def uds_aligned(context: MetricContext) -> MetricResult:
    """UDS after a linear map, fitted on neutral text, to the basis of `full`.

    UDS itself where it is below 0.1: `full` reads the stream, and nothing has to be aligned.
    Equal to `uds` under `aligned` of `lensaudit patch`.
    """
    return _of_kept(context, "uds_aligned")


@metric(**_control("uds_validity"))
def uds_validity(context: MetricContext) -> MetricResult:
    """Drop on facts the model still says, in units of what a stream that does not fit makes.

    Below 0.1 `full` can read the model; near 1 a high UDS says nothing about the facts. Equal to
    `d_share` under `validity` of `lensaudit patch`.
    """
    return _of_kept(context, "uds_validity")


def _of_kept(context: MetricContext, name: str) -> MetricResult:
    found = dict(context.passes.measured(context.reads[0]).details)
    value, ends = found.pop("values")[name]
    if value is None:
        return unscored(found.get("why", {}).get(name) or "no retain fact could be scored")
    return MetricResult(value, details=found, interval=Estimate.within(value, ends))


def _entry(context: MetricContext, field: str) -> MetricResult:
    found = context.passes.measured(context.reads[0])
    return MetricResult(
        math.nan,
        records={idx: {field: value} for idx, (value,) in found.rows.items()},
        unscored=found.unscored,
        details=found.details,
    )
