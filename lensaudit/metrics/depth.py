"""How deep does forgetting go? The model's residuals patched into `full`, against retain's.

All read the annotated forget set (prefix and entity of every answer), not the suite's split. The
depths and the three baselines of UDS are 0 where the knowledge is intact and 1 where it is erased
as in a model that never saw it.
"""

import math
from typing import Any

import numpy as np

from lensaudit.metrics.records import mean_of
from lensaudit.metrics.registry import (
    ANNOTATED,
    MetricContext,
    MetricResult,
    Read,
    metric,
    unscored,
)
from lensaudit.scores.leakage import leak_exact
from lensaudit.scores.stats import Interval

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
    interval = None if ends is None else Interval(*ends)
    return MetricResult(value, details=found, interval=interval)


def _entry(context: MetricContext, field: str) -> MetricResult:
    found = context.passes.measured(context.reads[0])
    return MetricResult(
        math.nan,
        records={idx: {field: value} for idx, (value,) in found.rows.items()},
        unscored=found.unscored,
        details=found.details,
    )


KS = (1, 8, 64, 128)
MAIN_K = 64
"""Whose mean is the metric's value; the others stand beside it."""


@metric(
    "leak_exact",
    high_means="knows",
    source="arXiv:2511.04934 (leak@k), here from the span's own log-probs; arXiv:2410.03523",
    tofu=(Read("patched", ANNOTATED, "leak"),),
    muse=(Read("patched", ANNOTATED, "leak"),),
    row_value=mean_of(f"leak_{MAIN_K}"),
)
def leakage(context: MetricContext) -> MetricResult:
    """Mean over the facts of leak@64 = 1 - (1 - p)^64, p = exp(sum of the entity's log-probs).

    What 64 samples at temperature 1 and top-p 1 would say, without drawing one. `retain` has a
    leak@k too, from guessing: the excess over it, fact by fact, stands beside the value.
    """
    found = context.passes.measured(context.reads[0])
    retain = found.details["retain"]
    records = {
        idx: {f"leak_{k}": leak_exact(min(0.0, total), k) for k in KS}
        | {f"retain_{k}": leak_exact(min(0.0, retain[idx]), k) for k in KS}
        for idx, (total,) in found.rows.items()
    }
    details = {"retain_model": found.details["retain_model"]}
    for k in KS if records else ():
        own, other = (
            float(np.mean([record[f"{which}_{k}"] for record in records.values()]))
            for which in ("leak", "retain")
        )
        details |= {f"leak@{k}": own, f"retain_leak@{k}": other, f"excess@{k}": own - other}
    return MetricResult(np.nan, records=records, unscored=found.unscored, details=details)


_LENS = Read("patched", ANNOTATED, "lens")
_CKA = Read("patched", ANNOTATED, "cka")
_FISHER = Read("patched", ANNOTATED, "fisher")
_BASELINES = "gnueaj/unlearning-depth-score @ fc31639 (compute_representation_baselines.py)"


@metric(
    "logit_lens",
    high_means="forgot",
    source=_BASELINES,
    tofu=(_LENS,),
    muse=(_LENS,),
    row_value=mean_of("lens"),
)
def logit_lens(context: MetricContext) -> MetricResult:
    """What the readout of `full` no longer finds in the model's residual streams, as UDS counts.

    Equal to `lensaudit patch --score lens`.
    """
    found = context.passes.measured(context.reads[0])
    records = {idx: {"lens": value} for idx, (value,) in found.rows.items()}
    return MetricResult(math.nan, records=records, unscored=found.unscored, details=found.details)


@metric("cka", high_means="forgot", source=_BASELINES, tofu=(_CKA,), muse=(_CKA,))
def cka(context: MetricContext) -> MetricResult:
    """How far the streams' geometry went from that of `full` to that of `retain`.

    Linear CKA over all scored positions of all examples, per layer; layers weigh 1 - CKA(full,
    retain). One number for the whole set: no example has a value of its own.
    """
    return _whole(context, "cka")


def _fisher(share: str) -> dict:
    return {
        "name": f"fisher_masked_{share}",
        "high_means": "forgot",
        "source": _BASELINES,
        "tofu": (_FISHER,),
        "muse": (_FISHER,),
    }


@metric(**_fisher("0.0001"))
def fisher_masked_hundredth_percent(context: MetricContext) -> MetricResult:
    """As `fisher_masked_0.001`, on 0.01 % of each layer's parameters."""
    return _whole(context, "0.0001")


@metric(**_fisher("0.001"))
def fisher_masked_tenth_percent(context: MetricContext) -> MetricResult:
    """Is the loss on the forgotten facts as curved as in `retain`, where `full` had settled?

    Diagonal Fisher information over the 0.1 % of each layer's parameters in which `retain`
    exceeds `full` most; layers weigh by that excess. Costs one backward pass per example.
    """
    return _whole(context, "0.001")


@metric(**_fisher("0.01"))
def fisher_masked_one_percent(context: MetricContext) -> MetricResult:
    """As `fisher_masked_0.001`, on 1 % of each layer's parameters."""
    return _whole(context, "0.01")


def _whole(context: MetricContext, name: str) -> MetricResult:
    """A metric that has one number for the set."""
    found = context.passes.measured(context.reads[0])
    kept = dict(found.details)
    layers = kept.pop("layers")[name]
    value = kept.pop("values")[name]
    if value is None:
        return unscored("full and retain do not differ at any layer")
    return MetricResult(value, details={**kept, "per_layer": layers})
