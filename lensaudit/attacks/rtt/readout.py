"""Which choice does a model make? The letter it would say, or the answer it finds likeliest."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.attacks.rtt.encode import EncodedItem, Letters
from lensaudit.attacks.rtt.readings import Reading
from lensaudit.attacks.rtt.settings import Readout
from lensaudit.errors import WorkError
from lensaudit.unlearn.losses import labelled, token_nll
from lensaudit.unlearn.rows import Sample, TrainBatch, collate
from lensaudit.unlearn.train import logits

Scores = Float[Tensor, "item choice"]
"""Higher is preferred."""


def read(
    model: Any,
    items: Sequence[EncodedItem],
    *,
    readouts: Sequence[Readout],
    letters: Letters | None,
    batch_size: int,
) -> tuple[Reading, ...]:
    """The readings of `model` in eval mode, in the order of `readouts`.

    Raises:
        WorkError: a score is not finite.
    """
    return tuple(
        _letter(model, items, _given(letters), batch_size)
        if readout == "letter"
        else _answer(model, items, batch_size)
        for readout in readouts
    )


def _given(letters: Letters | None) -> Letters:
    if letters is None:
        raise ValueError("the letter readout needs the letters' tokens")
    return letters


def _letter(model: Any, items: Sequence[EncodedItem], letters: Letters, batch_size: int) -> Reading:
    prompts = [Sample(item.prompt, len(item.prompt)) for item in items]
    parts: dict[int, Tensor] = {}
    with torch.no_grad():
        for places, batch in _batches(prompts, batch_size, model.device):
            ends = batch.mask.sum(1) - 1
            rows = torch.arange(len(places), device=ends.device)
            said = logits(model, batch)[rows, ends].float().log_softmax(-1)
            by_letter = [said[:, list(ids)].logsumexp(-1) for ids in letters.ids]
            parts |= dict(zip(places, torch.stack(by_letter, -1).cpu(), strict=True))
    scores = _finite(torch.stack([parts[place] for place in range(len(items))]))
    centred = scores - scores.mean(0)
    return Reading(
        readout="letter",
        n=len(items),
        correct=_correct(scores, items),
        calibrated=len(_correct(centred, items)) / len(items),
        option_mass=scores.exp().sum(-1).mean().item(),
    )


def _answer(model: Any, items: Sequence[EncodedItem], batch_size: int) -> Reading:
    options = [option for item in items for option in item.options]
    parts: dict[int, Tensor] = {}
    with torch.no_grad():
        for places, batch in _batches(options, batch_size, model.device):
            nll = token_nll(logits(model, batch), batch.labels).sum(1)
            per_token = nll / labelled(batch.labels).sum(1)
            parts |= dict(zip(places, -per_token.cpu(), strict=True))
    flat = torch.stack([parts[place] for place in range(len(options))])
    scores = _finite(flat.view(len(items), -1))
    return Reading("answer", len(items), _correct(scores, items))


def _batches(
    samples: Sequence[Sample], batch_size: int, device: torch.device
) -> Iterator[tuple[list[int], TrainBatch]]:
    """Right-padded batches of samples alike in length, with their places."""
    order = sorted(range(len(samples)), key=lambda place: (len(samples[place].ids), place))
    for start in range(0, len(order), batch_size):
        places = order[start : start + batch_size]
        yield places, collate([samples[place] for place in places], pad=0).to(device)


def _finite(scores: Scores) -> Scores:
    if not scores.isfinite().all():
        raise WorkError("the scores of the model are not finite")
    return scores


def _correct(scores: Scores, items: Sequence[EncodedItem]) -> tuple[int, ...]:
    chosen = scores.argmax(-1).tolist()
    pairs = zip(items, chosen, strict=True)
    return tuple(place for place, (item, one) in enumerate(pairs) if one == item.answer)
