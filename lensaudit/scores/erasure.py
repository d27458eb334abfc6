"""Which layers lose the answer? Exact match, KEPT or LOST, and the erasure rates made of them.

Definitions: gnueaj/unlearning-depth-score @ fc31639, seed 0 (`exp_em_eval.py`), with one
correction: an example without FT layers has no rate, where the reference writes -1 or 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

EM_THRESHOLD = 0.5
"""Exact match from which a layer counts as KEPT; `exp_em_eval.py`, seed 0."""

Category = Literal["over", "exact", "under", "general_knowledge"]
CATEGORIES: tuple[Category, ...] = ("over", "exact", "under", "general_knowledge")

ExactMatch = Float[Tensor, "batch layer"]
"""Share of the reference's tokens, 0 to 1, that `full` still says with one layer patched."""


def first_sentence(text: str) -> str:
    r"""The part of a text that exact match compares: before the first full stop, first line.

    >>> first_sentence("  Ada Lovelace. She wrote"), first_sentence("Ada\nQuestion: Who")
    ('Ada Lovelace', 'Ada')
    """
    before = text.strip().split(".", 1)[0]
    return before.split("\n", 1)[0].strip()


def exact_match(found: Sequence[int], reference: Sequence[int]) -> float:
    """Share of positions of `reference` at which `found` has the same token.

    Tokens beyond the reference's end are free; missing ones count as wrong.

    >>> exact_match([1, 9, 3, 4, 5, 6], [1, 2, 3, 4, 5])
    0.8

    Raises:
        ValueError: an empty reference.
    """
    if not reference:
        raise ValueError("exact match: wanted at least one reference token")
    same = sum(a == b for a, b in zip(found, reference, strict=False))
    return same / len(reference)


def label_hit(
    logits: Float[Tensor, "row d_vocab"], labels: Int[Tensor, " row"]
) -> Float[Tensor, " row"]:
    """1 where the label is the most likely token, else 0; NaN where a logit is not finite.

    >>> label_hit(torch.tensor([[0.0, 2.0], [3.0, 1.0]]), torch.tensor([1, 1]))
    tensor([1., 0.])
    """
    hit = (logits.argmax(-1) == labels).float()
    return hit.where(logits.isfinite().all(-1), torch.nan)


@dataclass(frozen=True)
class Erasure:
    """What exact match says of each example, and the evidence."""

    s1_lost: Bool[Tensor, "batch layer"]
    """`retain` patched in: the answer is lost. These are the FT layers."""
    s2_lost: Bool[Tensor, "batch layer"]
    """The source patched in: the answer is lost."""
    udr: Float[Tensor, " batch"]
    """Unlearning depth rate: share of the FT layers where S2 is LOST; NaN without FT layers."""
    retention: Float[Tensor, " batch"]
    """Mean S2 exact match over the FT layers, 0 erased, 1 leaked; NaN without FT layers."""
    category: tuple[Category, ...]
    extra: Int[Tensor, " batch"]
    """LOST layers of S2 minus those of S1."""
    lead: Float[Tensor, " batch"]
    """First LOST layer of S1 minus that of S2; NaN where either has none."""

    def labels(self, row: int) -> list[str]:
        """Per layer: EXACT lost in both, UNDER in S1 only, OVER in S2 only, - in neither."""
        names = {(True, True): "EXACT", (True, False): "UNDER", (False, True): "OVER"}
        pairs = zip(self.s1_lost[row].tolist(), self.s2_lost[row].tolist(), strict=True)
        return [names.get(pair, "-") for pair in pairs]


def erasure_score(
    s1: ExactMatch,
    s2: ExactMatch,
    *,
    layers: Sequence[int] | None = None,
    threshold: float = EM_THRESHOLD,
) -> Erasure:
    """KEPT or LOST at every layer, and what follows for each example.

        FT = {l : s1_l < threshold},  UDR = |{l in FT : s2_l < threshold}| / |FT|

    Categories compare numbers of LOST layers, not which layers they are (as the reference).

    >>> erasure_score(torch.tensor([[0.9, 0.1, 0.2]]), torch.tensor([[1.0, 0.8, 0.0]])).udr
    tensor([0.5000], dtype=torch.float64)

    Args:
        s1: with `retain` patched in.
        s2: with the source patched in.
        layers: which layers the columns are; 0, 1, 2 … if not given.
        threshold: exact match from which a layer is KEPT.
    """
    s1_lost, s2_lost = s1 < threshold, s2 < threshold
    n_ft = s1_lost.sum(1)
    n_lost = s2_lost.sum(1)
    known_layers = torch.tensor(range(s1.shape[1]) if layers is None else layers)
    return Erasure(
        s1_lost=s1_lost,
        s2_lost=s2_lost,
        udr=(s1_lost & s2_lost).sum(1).double() / n_ft,  # no FT layer: 0 / 0 = NaN, unscored
        retention=s2.where(s1_lost, 0.0).sum(1) / n_ft,
        category=tuple(
            [_category(*pair) for pair in zip(n_ft.tolist(), n_lost.tolist(), strict=True)]
        ),
        extra=n_lost - n_ft,
        lead=_first(s1_lost, known_layers) - _first(s2_lost, known_layers),
    )


def _category(n_ft: int, n_lost: int) -> Category:
    if n_ft == 0:
        return "general_knowledge"
    if n_lost == n_ft:
        return "exact"
    return "over" if n_lost > n_ft else "under"


def _first(
    lost: Bool[Tensor, "batch layer"], layers: Int[Tensor, " layer"]
) -> Float[Tensor, " batch"]:
    """The first LOST layer; NaN where none is."""
    first = layers[lost.float().argmax(1)].float()
    return first.where(lost.any(1), torch.nan)


def tally(erasure: Erasure) -> dict[str, Any]:
    """Counts of the categories over a data set, as `summary.json` holds them.

    Percentages leave general knowledge out of their base; None where all is. `over_erased_by` is
    the mean over the over-erased examples of (LOST layers of S2 minus S1) and of (first LOST layer
    of S1 minus S2).
    """
    count: dict[Category, int] = {name: erasure.category.count(name) for name in CATEGORIES}
    base = sum(count.values()) - count["general_knowledge"]
    named: tuple[Category, ...] = ("over", "exact", "under")
    over = torch.tensor([name == "over" for name in erasure.category], dtype=torch.bool)
    return {
        "categories": count,
        "category_percent": {name: 100 * count[name] / base for name in named} if base else None,
        "over_erased_by": {
            "layers": _mean(erasure.extra[over].double()),
            "first_layer": _mean(erasure.lead[over].double()),
        },
    }


def layer_status(s1_lost: Bool[Tensor, " batch"], s2_lost: Bool[Tensor, " batch"]) -> str:
    """ERASED: most examples are LOST in both stages; LEAKED: in S1 only; else -."""
    if not float(s1_lost.double().mean()) > 0.5:
        return "-"
    return "ERASED" if float(s2_lost.double().mean()) > 0.5 else "LEAKED"


def _mean(values: Float[Tensor, " value"]) -> float | None:
    return float(values.mean()) if len(values) else None
