"""Is the answer linearly there, in the model's own basis?

Rows that are to be kept are said by models that know and by models that never saw the facts. A
linear map fitted on them, from the stream at the position that predicts the answer's first token
to a code of that token, is carried to the forget facts: if a model holds those as it holds the
others, their answers are read too. A rotation of the stream or a swapped readout changes nothing.

The control (selectivity, arXiv:1909.03368): the same map fitted on shuffled answers. The layer is
chosen on kept rows that were not fitted, so no forget fact decides anything.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lensaudit.data.spans import Encoded, buckets, make_batch
from lensaudit.gym.ground import BATCH, Facts, tokens_of, whole

RIDGE = 1e-2
"""Of the fit, in units of the mean variance of a dimension."""
CODE = 64
"""Dimensions of the random code of a token."""
FEWEST = 32
"""Kept rows below which nothing is fitted."""
SELECTIVE = 0.1
"""How far the probe must be above the shuffled one, on kept rows, for its score to mean much."""


@dataclass(frozen=True)
class Probed:
    """What the probe reads."""

    score: float | None
    """Mean over facts of the share of other answers that the true one beats: 0.5 by guess."""
    facts: Mapping[int, float] | None
    layer: int | None
    kept: float | None
    """The same on kept rows that were not fitted."""
    shuffled: float | None
    """The same, fitted on shuffled answers."""
    why: str | None = None

    @property
    def selective(self) -> bool:
        """Does the map carry anything?"""
        return (
            self.kept is not None
            and self.shuffled is not None
            and self.kept - self.shuffled >= SELECTIVE
        )


def probed(model: Any, facts: Facts, tokenizer: Any) -> Probed:
    """Fit on the rows to keep, choose the layer on a third of them, read the forget facts."""
    kept = tokens_of(whole(facts.kept.answered), tokenizer)
    asked = tokens_of(facts.examples, tokenizer)
    if len(kept) < FEWEST or len(asked) < 2:
        why = f"{len(kept)} rows to keep, wanted {FEWEST}"
        return Probed(None, None, None, None, None, why)
    x_kept, y_kept = streams(model, kept)
    x_asked, y_asked = streams(model, asked)
    order = torch.randperm(len(kept), generator=torch.Generator().manual_seed(0))
    fit, check = order[len(kept) // 3 :], order[: len(kept) // 3]
    code = torch.randn(
        int(max(y_kept.max(), y_asked.max())) + 1, CODE, generator=torch.Generator().manual_seed(1)
    )
    code = code / code.norm(dim=1, keepdim=True)
    mixed = y_kept[fit].roll(len(fit) // 2)
    right, wrong = (
        [ranks(fitted(x[fit], code[labels]), x[check], y_kept[check], code).mean() for x in x_kept]
        for labels in (y_kept[fit], mixed)
    )
    layer = int(torch.stack(right).argmax())
    found = ranks(fitted(x_kept[layer][fit], code[y_kept[fit]]), x_asked[layer], y_asked, code)
    by_fact = {one.idx: value for one, value in zip(asked, found.tolist(), strict=True)}
    known = {idx: value for idx, value in by_fact.items() if math.isfinite(value)}
    return Probed(
        sum(known.values()) / len(known) if known else None,
        known,
        layer,
        float(right[layer]),
        float(wrong[layer]),
    )


def streams(
    model: Any, rows: Sequence[Encoded]
) -> tuple[Float[Tensor, "layer row d_model"], Int[Tensor, " row"]]:
    """The stream before the answer's first token, of every layer but the last, and that token.

    transformers gives the last one after the final norm, so it is left out.
    """
    found: dict[int, tuple[Tensor, int]] = {}
    for bucket in buckets(rows, BATCH):
        batch = make_batch(bucket)
        with torch.no_grad():
            hidden = model(batch.tokens, output_hidden_states=True).hidden_states[1:-1]
        stack = torch.stack(hidden)
        for at, one in enumerate(bucket):
            found[id(one)] = stack[:, at, one.start], one.token_ids[one.start + 1]
    kept = [found[id(one)] for one in rows]
    return torch.stack([x for x, _ in kept], dim=1), torch.tensor([y for _, y in kept])


@dataclass(frozen=True)
class Affine:
    """`(x - mean) @ matrix`, each dimension in units of its own spread."""

    mean: Float[Tensor, " d_model"]
    matrix: Float[Tensor, "d_model code"]


def fitted(x: Float[Tensor, "row d_model"], y: Float[Tensor, "row code"]) -> Affine:
    """Weights of a ridge regression."""
    mean = x.mean(0)
    centred = (x - mean).double()
    gram = centred.T @ centred
    ridge = RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    targets = (y - y.mean(0)).double()
    return Affine(mean, torch.linalg.solve(gram + ridge, centred.T @ targets).float())


def ranks(
    probe: Affine,
    x: Float[Tensor, "row d_model"],
    labels: Int[Tensor, " row"],
    code: Float[Tensor, "token code"],
) -> Float[Tensor, " row"]:
    """Share of the other rows' answers that each row's own one beats; ties count half.

    NaN for a row whose answer all others share.
    """
    choices = labels.unique()
    scores = (x - probe.mean) @ probe.matrix @ code[choices].T
    own = scores.gather(1, (choices == labels[:, None]).int().argmax(1, keepdim=True))
    beaten = (own > scores).double() + (own == scores).double() / 2
    others = len(choices) - 1
    return (beaten.sum(1) - 0.5) / others if others else torch.full((len(x),), torch.nan)
