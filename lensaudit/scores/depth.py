"""How deep was the knowledge erased? The Unlearning Depth Score, and which layers lose the answer.

Definitions: gnueaj/unlearning-depth-score (fc31639). Of span log-probability and UDS
compute_uds.py:282-350 and 840-862, with two corrections: numbers are reduced in float32, and an
example without KE layer has no score. Of exact match, KEPT or LOST, and the rates made of it
`exp_em_eval.py`, seed 0, with one: an example without FT layers has no rate, where the reference
writes -1 or 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lensaudit.errors import InputError
from lensaudit.settings import TAU
from lensaudit.types import LayerDeltas, Logits, PosMask, SpanLogProb, Tokens

LabelScore = Callable[[Float[Tensor, "row d_vocab"], Int[Tensor, " row"]], Float[Tensor, " row"]]
"""A number per row of logits and its label."""
_AT_ONCE = 2**16
"""Logits that a processor reduces at once: its caches hold them, and what a sum of exponentials
makes of them, for which memory would be new each time."""


def label_logprob(
    logits: Float[Tensor, "row d_vocab"], labels: Int[Tensor, " row"]
) -> Float[Tensor, " row"]:
    """Log-probability of each row's label, nats, reduced in float32 whatever the logits' type.

    >>> label_logprob(torch.zeros(1, 4), torch.tensor([2])).exp()
    tensor([0.2500])
    """
    at_once = max(1, _AT_ONCE // logits.shape[-1]) if logits.is_cpu else len(logits) or 1
    pieces = zip(map(Tensor.float, logits.split(at_once)), labels.split(at_once), strict=True)
    return torch.cat(
        [wide.gather(-1, of.unsqueeze(-1)).squeeze(-1) - wide.logsumexp(-1) for wide, of in pieces]
    )


def mean_per_example(
    values: Float[Tensor, " row"], example: Int[Tensor, " row"], n_examples: int
) -> Float[Tensor, " batch"]:
    """Mean over the rows of each example; NaN for an example without rows.

    Added on the processor, always in the same order: a card adds as its threads come, and a mean
    would differ from itself.

    >>> mean_per_example(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 1]), 2)
    tensor([2., 5.])
    """
    rows, of = values.cpu(), example.cpu()
    total, count = (
        rows.new_zeros(n_examples).index_add_(0, of, one) for one in (rows, torch.ones_like(rows))
    )
    return (total / count).to(values.device)


def span_mean(
    logits: Logits, tokens: Tokens, predict_at: PosMask, label_score: LabelScore
) -> Float[Tensor, " batch"]:
    """Mean of `label_score` over the span's tokens.

    Position p scores token p + 1. NaN for an example whose `predict_at` is empty.
    """
    example, position = predict_at.nonzero(as_tuple=True)
    scores = label_score(logits[example, position], tokens[example, position + 1])
    return mean_per_example(scores, example, len(tokens))


def span_logprob(logits: Logits, tokens: Tokens, predict_at: PosMask) -> SpanLogProb:
    """Mean log-probability of the span's tokens, nats per token; see `span_mean`."""
    return span_mean(logits, tokens, predict_at, label_logprob)


@dataclass(frozen=True)
class DepthScore:
    """The score of each example, and its evidence."""

    uds: Float[Tensor, " batch"]
    """0 intact, 1 erased to the level of `retain`; NaN where no layer encodes the fact, or where s1
    is not known at a layer."""
    erasure: Float[Tensor, "batch layer"]
    """s2 / s1 clipped to [0, 1]; NaN outside the KE layers."""
    ke: Bool[Tensor, "batch layer"]
    """Layers that encode the knowledge: s1 > tau."""


def depth_score(s1: LayerDeltas, s2: LayerDeltas, *, tau: float = TAU) -> DepthScore:
    """Unlearning Depth Score: the s1-weighted mean erasure over the KE layers.

        UDS = sum_l s1_l * clip(s2_l / s1_l, 0, 1) / sum_l s1_l,    over {l : s1_l > tau}

    Erasure beyond `retain` is not seen: the ratio is clipped at 1.

    >>> depth_score(torch.tensor([[1.0, 3.0, 0.01]]), torch.tensor([[0.5, 9.0, 9.0]])).uds
    tensor([0.8750])

    Raises:
        InputError: one is no tensor with a row an example and a column a layer.
    """
    if not (
        isinstance(s1, Tensor) and isinstance(s2, Tensor) and s1.shape == s2.shape and s1.ndim == 2
    ):
        raise InputError(
            f"depth_score({s1!r:.40}, {s2!r:.40}): wanted two tensors of one shape, with a row "
            "per example and a column per layer"
        )
    ke = s1 > tau
    erasure = (s2 / s1).clamp(0, 1).where(ke, torch.nan)
    weight = s1.where(ke, 0.0)
    weighted = (weight * erasure).where(ke, s1 * 0)  # NaN where s1 is: it could be a KE layer
    uds = weighted.sum(1) / weight.sum(1)  # no KE layer: 0 / 0 = NaN, unscored
    return DepthScore(uds, erasure, ke)


def over_erasure(
    s1: Float[Tensor, "batch layer"], s2: Float[Tensor, "batch layer"], *, tau: float
) -> float | None:
    """What UDS clips: mean of max(0, s2 - s1), nats per token; None where nothing is scored.

    The mean over the KE layers of a row, then over the rows that have any.

    >>> import torch
    >>> over_erasure(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[3.0, 1.0, 9.0]]), tau=0.05)
    1.0
    """
    ke = depth_score(s1, s2, tau=tau).ke
    beyond = (s2 - s1).clamp(min=0).where(ke, 0.0).double()
    per_row = beyond.sum(1) / ke.sum(1)
    kept = per_row[per_row.isfinite()]
    return float(kept.mean()) if len(kept) else None


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
    return text.strip().split(".", 1)[0].split("\n", 1)[0].strip()


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
    n_ft, n_lost = s1_lost.sum(1), s2_lost.sum(1)
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
            "layers": mean_if_any(erasure.extra[over].double()),
            "first_layer": mean_if_any(erasure.lead[over].double()),
        },
    }


def layer_status(s1_lost: Bool[Tensor, " batch"], s2_lost: Bool[Tensor, " batch"]) -> str:
    """ERASED: most examples are LOST in both stages; LEAKED: in S1 only; else -."""
    if not float(s1_lost.double().mean()) > 0.5:
        return "-"
    return "ERASED" if float(s2_lost.double().mean()) > 0.5 else "LEAKED"


def mean_if_any(values: Float[Tensor, " value"]) -> float | None:
    """Mean of numbers; None of none."""
    return float(values.mean()) if len(values) else None
