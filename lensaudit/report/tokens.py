"""What was read of a model token by token, as the page holds it, in a bounded number of bytes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lensaudit.report.pack import shares
from lensaudit.report.texts import visible
from lensaudit.results.patch_runs import PatchRun

MOST_TOKENS = 16
"""Of one span; the rest of a longer one stays in the result folder."""
LONGEST = 24
"""Characters of one token."""
MOST_VALUES = 1 << 19
"""A page's values by example, layer and token, a byte each: 0.7 MB as base64."""


@dataclass(frozen=True)
class TokenTable:
    """Of one run: probabilities that `full` reads, example by example."""

    texts: list[list[str]]
    """By example; empty where an example was not read by token."""
    probabilities: str
    """Shares in a byte each: example, then layer, then token."""
    n_values: int


def token_table(run: PatchRun) -> TokenTable | None:
    """What a run read by token; None where it read nothing."""
    read = [_of_row(row, len(run.layers)) for row in run.rows]
    values = [one for _, table in read for layer in table for one in layer]
    if not values:
        return None
    return TokenTable([texts for texts, _ in read], shares(values), len(values))


def token_tables(runs: Sequence[PatchRun]) -> Iterator[TokenTable | None]:
    """Of every run, in order, until the page holds as much as it may."""
    left = MOST_VALUES
    for run in runs:
        found = token_table(run)
        if found is not None and found.n_values > left:
            found = None
        left -= found.n_values if found else 0
        yield found


def _of_row(row: Mapping[str, Any], n_layers: int) -> tuple[list[str], list[list[float]]]:
    """Texts and probabilities by layer and token; nothing where a row is not as we write it."""
    texts, table = row.get("span_tokens"), row.get("lens_by_token")
    if not isinstance(texts, list) or not isinstance(table, list) or len(table) != n_layers:
        return [], []
    if not all(isinstance(layer, list) and len(layer) == len(texts) for layer in table):
        return [], []
    if not all(type(one) in (int, float) and one <= 0 for layer in table for one in layer):
        return [], []
    kept = [[math.exp(one) for one in layer[:MOST_TOKENS]] for layer in table]
    return [visible(text, LONGEST) for text in texts[:MOST_TOKENS]], kept
