"""How deep does forgetting go? The model's residuals patched into `full`, against retain's.

Both read the annotated forget set (prefix and entity of every answer), not the suite's split, and
both are 0 where the knowledge is intact and 1 where it is erased as in a model that never saw it.
"""

import math

from lensaudit.metrics.records import mean_of
from lensaudit.metrics.registry import ANNOTATED, Context, Entry, Read, metric

_UDS = Read("patched", ANNOTATED, "uds")
_EM = Read("patched", ANNOTATED, "em")
_SOURCE = "gnueaj/unlearning-depth-score @ fc31639"


@metric(
    "uds",
    high_means="forgot",
    source=f"{_SOURCE} (compute_uds.py)",
    tofu=(_UDS,),
    muse=(_UDS,),
    row_value=mean_of("uds"),
)
def uds(context: Context) -> Entry:
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
def em_erasure(context: Context) -> Entry:
    """Share of the layers at which retain loses the entity that the model loses as well.

    Erasure rate (UDR) of the teacher-forced form, as `lensaudit patch --score em --em-form
    teacher` gives it: it costs no generation.
    """
    return _entry(context, "udr")


def _entry(context: Context, field: str) -> Entry:
    found = context.passes.measured(context.reads[0])
    return Entry(
        math.nan,
        records={idx: {field: value} for idx, (value,) in found.rows.items()},
        unscored=found.unscored,
        details=found.details,
    )
