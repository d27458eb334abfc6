"""How is an item read? As tokens, by the letter a model would say or the likeliest answer.

It is read again along a retraining, whose loop `rtt` and `effort` share. The learning rate is
constant after its rise, so the model after step s of a long run is that of a run of s steps.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.attacks.rtt.data import LETTERS, McqItem
from lensaudit.attacks.rtt.log import Finished, Point, Reading
from lensaudit.attacks.settings import LossOn, Readout
from lensaudit.data.chat import Encoding
from lensaudit.data.facts import answered
from lensaudit.errors import InputError, WorkError
from lensaudit.groups import by_length
from lensaudit.progress import unheard
from lensaudit.text import digest
from lensaudit.training.losses import labelled, token_nll
from lensaudit.training.rows import TrainBatch, collate, finetune_batches, raw_sample
from lensaudit.training.train import FineTuning, Recipe, TrainingRun, TrainingStep, logits, train
from lensaudit.types import Logits

Letters = tuple[tuple[int, ...], ...]
"""The tokens that a letter may be said with: of each without and with a blank before it, once where
they are one."""


@dataclass(frozen=True)
class EncodedItem:
    """One item, ready to be scored."""

    answer: int
    prompt: tuple[int, ...]
    """Question and options, up to `Answer:`."""
    options: tuple[Encoding, ...]
    """`Question: …`, `Answer: …` with each choice; the choice's tokens are labelled. Of a fact that
    is said the text up to its entity's end alone, whose tokens are labelled."""


@dataclass(frozen=True)
class EncodedSplit:
    """What a model reads: facts that are scored, and what is trained on."""

    items: tuple[EncodedItem, ...]
    samples: tuple[Encoding, ...]
    """Of a split, held out or trained on, one per item."""
    places: tuple[int, ...] = ()
    """Of the items among all facts, where `effort` trains on rows that say nothing of them."""

    @cached_property
    def scored_digest(self) -> str:
        """Content hash of what is scored."""
        options = [[(one.ids, one.start) for one in item.options] for item in self.items]
        pairs = zip(self.items, options, strict=True)
        return digest([[item.prompt, item.answer, *own] for item, own in pairs])

    @cached_property
    def trained_digest(self) -> str:
        """Content hash of what is trained on."""
        return digest([(one.ids, one.start) for one in self.samples])

    @property
    def sequences(self) -> Iterator[Encoding]:
        """Everything that a model reads."""
        for one in self.items:
            yield from (Encoding(one.prompt, 0), *one.options)
        yield from self.samples


def others_than(held_out: str, encoded: Mapping[str, EncodedSplit]) -> list[EncodedSplit]:
    """T: all other splits."""
    return [one for name, one in encoded.items() if name != held_out]


def mcq_prompt(item: McqItem) -> str:
    r"""Question and options, as upstream writes them; nothing follows the colon.

    >>> mcq_prompt(McqItem("When?", ("1901", "1902"), 1))
    'When?\nA. 1901\nB. 1902\nAnswer:'
    """
    options = (f"{letter}. {one}" for letter, one in zip(LETTERS, item.choices, strict=False))
    return "\n".join((item.question, *options, "Answer:"))


def mcq_text(item: McqItem) -> str:
    r"""The prompt with letter and answer.

    >>> mcq_text(McqItem("When?", ("1901", "1902"), 1)).splitlines()[-1]
    'Answer: B. 1902'
    """
    return f"{mcq_prompt(item)} {LETTERS[item.answer]}. {item.right}"


def train_sample(tokenizer: Any, item: McqItem, loss_on: LossOn) -> Encoding:
    """One training sequence; see `LossOn`."""
    if loss_on in ("question_answer", "answer"):
        sample = raw_sample(tokenizer, answered(item.question, item.right))
        return Encoding(sample.ids, 0) if loss_on == "question_answer" else sample
    text = mcq_text(item)
    if loss_on == "letter":
        text = f"{mcq_prompt(item)} {LETTERS[item.answer]}"
    ids = tuple(tokenizer(text)["input_ids"])
    if loss_on == "all":
        return Encoding(ids, 0)
    return Encoding(ids, _n_common(ids, tokenizer(mcq_prompt(item))["input_ids"]))


def encode_split(tokenizer: Any, split: Sequence[McqItem], loss_on: LossOn) -> EncodedSplit:
    """Everything a run needs of a split."""
    options = (
        [raw_sample(tokenizer, answered(item.question, one)) for one in item.choices]
        for item in split
    )
    items = tuple(
        EncodedItem(
            item.answer,
            tuple(tokenizer(mcq_prompt(item))["input_ids"]),
            # without the end token, which every choice has alike
            tuple(Encoding(one.ids[:-1], one.start) for one in own),
        )
        for item, own in zip(split, options, strict=True)
    )
    return EncodedSplit(items, tuple(train_sample(tokenizer, item, loss_on) for item in split))


def letters_of(tokenizer: Any, n_choices: int) -> Letters:
    """The tokens of the first `n_choices` letters.

    Text to train on continues `Answer:` with a blank and the letter, in byte-level vocabularies
    another token than the bare letter that upstream reads; both are read here.

    Raises:
        InputError: a letter is not one token, or two letters share one.
    """
    variants = [_variants(tokenizer, letter) for letter in LETTERS[:n_choices]]
    every = [one for ids in variants for one in ids]
    if len(set(every)) != len(every):
        raise InputError(
            "the tokenizer does not tell the option letters apart; take --readout answer"
        )
    return tuple(variants)


def _variants(tokenizer: Any, letter: str) -> tuple[int, ...]:
    """The bare letter by itself, and the letter as it follows `Answer:`."""
    bare = tokenizer(letter, add_special_tokens=False)["input_ids"]
    start = tokenizer("Answer:", add_special_tokens=False)["input_ids"]
    whole = tokenizer(f"Answer: {letter}", add_special_tokens=False)["input_ids"]
    spaced = whole[_n_common(whole, start) :]
    for text, ids in ((letter, bare), (f" {letter}", spaced)):
        if len(ids) != 1:
            raise InputError(
                f"option letter {text!r} is {len(ids)} tokens of this tokenizer, wanted 1; take "
                "--readout answer, which needs no letters"
            )
    return tuple(dict.fromkeys((*bare, *spaced)))


def _n_common(a, b) -> int:
    """Length of the common beginning."""
    return next(
        (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


Scores = Float[Tensor, "item choice"]
"""Higher is preferred."""


def read(
    model: Any,
    items: Sequence[EncodedItem],
    *,
    readouts: Sequence[Readout | Literal["said"]],
    letters: Letters | None = None,
    batch_size: int,
) -> tuple[Reading, ...]:
    """The readings of `model` in eval mode, in the order of `readouts`.

    What is `said` is answered rightly where every labelled token is the likeliest one.

    Raises:
        WorkError: a score is not finite.
    """

    def by_letter(logits: Logits, batch: TrainBatch) -> Scores:
        ends = batch.mask.sum(1) - 1
        said = logits[torch.arange(len(ends), device=ends.device), ends].float().log_softmax(-1)
        return torch.stack([said[:, list(ids)].logsumexp(-1) for ids in letters or ()], -1)

    def by_answer(logits: Logits, batch: TrainBatch) -> Scores:
        nll = token_nll(logits, batch.labels).sum(1)
        per_token = nll / labelled(batch.labels).sum(1)
        return -per_token.unsqueeze(-1)

    def by_token(logits: Logits, batch: TrainBatch) -> Scores:
        # of equal logits, as half precision has them, one is said; one that is not finite stays so
        top, said = logits[:, :-1].max(-1)
        wrong = (said != batch.tokens[:, 1:]) + 0 * top
        return -wrong.masked_fill(~labelled(batch.labels), 0.0).amax(1, keepdim=True)

    found = []
    options = [option for item in items for option in item.options]
    for readout in readouts:
        if readout == "said":
            said = _scored(model, options, by_token, batch_size).flatten() == 0
            found.append(Reading("said", len(items), tuple(said.nonzero().flatten().tolist())))
        elif readout == "answer":
            flat = _scored(model, options, by_answer, batch_size)
            found.append(Reading("answer", len(items), _correct(flat.view(len(items), -1), items)))
        else:
            prompts = [Encoding(item.prompt, len(item.prompt)) for item in items]
            scores = _scored(model, prompts, by_letter, batch_size)
            reading = Reading(
                readout="letter",
                n=len(items),
                correct=_correct(scores, items),
                calibrated=len(_correct(scores - scores.mean(0), items)) / len(items),
                option_mass=scores.exp().sum(-1).mean().item(),
            )
            found.append(reading)
    return tuple(found)


def _scored(
    model: Any,
    samples: Sequence[Encoding],
    score: Callable[[Logits, TrainBatch], Scores],
    batch_size: int,
) -> Scores:
    """What `score` makes of each sample, read in batches of samples alike in length."""
    parts: dict[int, Tensor] = {}
    with torch.no_grad():
        for places in by_length([one.ids for one in samples], batch_size):
            batch = collate([samples[place] for place in places], pad=0).to(model.device)
            parts |= dict(zip(places, score(logits(model, batch), batch).cpu(), strict=True))
    scores = torch.stack([parts[place] for place in range(len(samples))])
    if not scores.isfinite().all():
        raise WorkError("the scores of the model are not finite")
    return scores


def _correct(scores: Scores, items: Sequence[EncodedItem]) -> tuple[int, ...]:
    pairs = zip(items, scores.argmax(-1).tolist(), strict=True)
    return tuple(place for place, (item, one) in enumerate(pairs) if one == item.answer)


class StartWeights:
    """The weights that every run of a sweep begins with, kept once, in main memory."""

    def __init__(self, model: Any) -> None:
        tensors = (*model.named_parameters(), *model.named_buffers())
        self._kept = {name: one.detach().to("cpu", copy=True) for name, one in tensors}

    def restore(self, model: Any) -> None:
        """Put them back, bit for bit, and let go of gradients that a diverged run left behind."""
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                tensor.copy_(self._kept[name])


def read_along(
    model: Any,
    samples: Sequence[Encoding],
    *,
    recipe: Recipe,
    batch_size: int,
    seed: int,
    at: Collection[int],
    read_v: Callable[[], tuple[Reading, ...]],
    unit: int = 1,
    report: Callable[[int], None] = unheard,
) -> Finished:
    """Train `model` in place on `samples` and read V along the way, from the first step on.

    A run that diverges is a result: it ends with the points before, and says at which step.

    Args:
        model: in float32, but for what is frozen.
        samples: T.
        recipe: how long and how fast.
        batch_size: samples a step.
        seed: of their order, and of what dropout leaves out.
        at: units after which V is read.
        read_v: the readings of V by the model as it is.
        unit: steps that points and reports count by.
        report: told each finished unit.
    """
    points: list[Point] = []
    losses: list[float] = []
    last = 0

    def after(step: TrainingStep) -> None:
        nonlocal last
        losses.append(step.loss)
        done, begun = divmod(step.step, unit)
        if begun:
            return
        if done in at:
            model.eval()
            points.append(Point(done, read_v(), sum(losses[last:]) / (step.step - last)))
            last = step.step
            model.train()
        report(done)

    batches = finetune_batches(samples, batch_size=batch_size, seed=seed, pad=0)
    run = TrainingRun(
        FineTuning(),
        lambda number: batches(number).to(model.device),
        recipe,
        identity={},
        seed=seed,
    )
    try:
        train(model, run, report=after)
    except WorkError:
        failure = f"not finite after {len(losses)} of {recipe.n_steps} steps"
        return Finished("", "diverged", tuple(points), reason=failure)
    finally:
        model.eval()
    return Finished("", "ok", tuple(points))
