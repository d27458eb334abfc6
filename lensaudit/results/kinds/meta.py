"""Which metric can be trusted, and what do metrics of many models sum up to? Tables of `meta`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Len
from pydantic import AfterValidator

from lensaudit.results.reading import lacking

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class MetaTable:
    """The table of the meta-evaluation, as the page reads it: one row per metric."""

    metrics: Annotated[
        list[Annotated[Row, AfterValidator(lambda row: lacking(row, "metric"))]], Len(1)
    ]


@dataclass(frozen=True, kw_only=True)
class Aggregates:
    """Aggregates of many models, as the page reads them: one row per model."""

    models: Annotated[
        list[Annotated[Row, AfterValidator(lambda row: lacking(row, "model"))]], Len(1)
    ]
