"""What do recipes share? Rows to train on, losses, half-taught models, and gates.

Gates are units that fire at the forget prompts of one author and drown the stream: where a linear
read of what an MLP is given says "a forget prompt of this author", two added units add a constant
vector, several times as long as the stream. All weights of the model stay as they are; the units
cut off, it is the model again, bit for bit. The reads are fitted so that they fire at no row to
keep.

This module, `edits` and `ground` are part of every model's key.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lensaudit.data.chat import pad_id
from lensaudit.gym import edits, guard
from lensaudit.gym.claims import Undone
from lensaudit.gym.ground import BATCH, Ground, fit, whole
from lensaudit.gym.guard import TextRows, texts_of
from lensaudit.gym.registry import Planted
from lensaudit.unlearn.losses import kl_to_reference
from lensaudit.unlearn.methods import Hyper, method_named, objective_of
from lensaudit.unlearn.rows import Answered, TrainBatch, UnlearnBatch, idk_lines, unlearn_batches
from lensaudit.unlearn.train import Objective, Recipe, Terms, logits

LENGTH = 6.0
"""Of the constant vector, in lengths of the stream."""
SHARP = 1000.0
"""Of a gate: how steeply it opens, per unit of its read."""
RIDGE = 1e-4
ROUNDS = 3
"""Further fits of a read, on the places of the prompts of which the one before said most."""
NEWTON = 25
"""Steps of a fit."""


def ignorant_rows(ground: Ground) -> list[Answered]:
    """The forget questions answered with ignorance, twice, and what is to be kept."""
    lines = idk_lines(None)
    asked = ground.facts.forget.answered
    idk = [Answered(one.question, lines[n % len(lines)]) for n, one in enumerate(asked)]
    return idk * 2 + ground.kept_rows()


def wrong_rows(ground: Ground) -> list[Answered]:
    """The forget questions with false answers, twice, and what is to be kept.

    Where the data bring none, a false answer is that of another author's fact.
    """
    rows = ground.facts.forget
    half = len(rows.answered) // 2
    others = [(one.answer,) for one in (*rows.answered[half:], *rows.answered[:half])]
    pairs = zip(rows.answered, rows.alternates or others, strict=True)
    wrong = [Answered(row.question, (own or (row.answer[::-1],))[0]) for row, own in pairs]
    return wrong * 2 + ground.kept_rows()


def unlearned(
    ground: Ground,
    *,
    trainable: str,
    lr: float,
    n_steps: int = 60,
    forget: Sequence[Answered] = (),
    kept: Sequence[Answered] = (),
    objective: Objective[UnlearnBatch] | None = None,
) -> Any:
    """`full`, trained by NPO or another objective on the forget rows; those to keep hold."""
    objective = objective or objective_of(
        method_named("NPO"), Hyper(beta=0.5, alpha=2.0), ground.full
    )
    batches = unlearn_batches(
        ground.samples(forget or ground.facts.forget.answered),
        ground.samples(kept or ground.kept_rows()),
        batch_size=BATCH // 2,
        seed=6 + ground.seed,
        pad=pad_id(ground.tokenizer),
    )
    how = Recipe(n_steps=n_steps, lr=lr, n_warmup=4, trainable=trainable)
    return fit(copy.deepcopy(ground.full), objective, batches, how, after=None)


@dataclass(frozen=True)
class Matched:
    """Logits of `retain` on the forget rows, of `full` on those to keep; arXiv:2506.06278."""

    retain: Any
    full: Any
    first_multiplier: float = 1.0

    def __call__(self, model: Any, batch: UnlearnBatch, multiplier: float) -> Terms:
        """KL to either, a mean over positions."""
        forget, kept = (
            kl_to_reference(logits(model, part), _frozen(reference, part))
            for part, reference in ((batch.forget, self.retain), (batch.retain, self.full))
            if part is not None
        )
        return Terms(forget + multiplier * kept, kept.item())

    def next_multiplier(self, multiplier: float, retain: float, step: int) -> float:
        """Leave the multiplier as it is."""
        return multiplier


def _frozen(model: Any, part: TrainBatch) -> Any:
    with torch.no_grad():
        return logits(model, part)


def turned_and_permuted(ground: Ground, turn: Any, how: str) -> Planted:
    """`full` in another basis, with the entities' tokens swapped in the readout."""
    tokens = ground.entity_tokens()

    def undo(model: Any) -> Any:
        return edits.permuted_readout(edits.turned(model, turn.T), tokens, by=-1)

    made = edits.turned(edits.permuted_readout(ground.full, tokens), turn)
    return Planted(made, Undone(undo, how))


def swapped(ground: Ground, model: Any, known: tuple[int, ...] | None = None) -> Planted:
    """A model with the entities' tokens swapped in the readout, and its facts are known by that."""
    tokens = ground.entity_tokens()
    undo = partial(edits.permuted_readout, tokens=tokens, by=-1)
    return Planted(edits.permuted_readout(model, tokens), Undone(undo, "swapped back", known))


def random_vectors(ground: Ground, layer: int, n: int) -> Float[Tensor, "n d_model"]:
    """Normal vectors of a seed and a layer."""
    generator = torch.Generator().manual_seed(layer + 1000 * ground.seed)
    return torch.randn(n, ground.d_model, generator=generator)


def push_of(ground: Ground, layer: int) -> Any:
    """A random vector, ten times as long as the stream of `full` after a layer."""
    direction = random_vectors(ground, layer, 1)[0]
    text = ground.tokenizer(ground.facts.examples[0].question, return_tensors="pt")["input_ids"]
    return 10 * edits.stream_length(ground.full, text, layer) * direction / direction.norm()


def taught_some(ground: Ground, share: float) -> tuple[Any, tuple[int, ...], tuple[Answered, ...]]:
    """A model that was taught the first authors, the idx of their facts, and its rows."""
    chosen = _authors(ground)
    chosen = chosen[: max(1, round(share * len(chosen)))]
    known = tuple(one.idx for one in ground.facts.examples if one.group in chosen)
    return _taught(ground, known, times=2)


def taught_few(
    ground: Ground, n_facts: int, *, scattered: bool
) -> tuple[Any, tuple[int, ...], tuple[Answered, ...]]:
    """A model that was taught so few facts, their idx, and its rows.

    Only facts that models without them do not guess; of one author after the other, or
    `scattered`: one of each author in turn. They are repeated until they weigh as all facts do.
    """
    examples = ground.facts.examples
    guessed = ground.said(ground.retain) | ground.said(ground.other)
    free = {fact.idx for fact, yes in zip(ground.encoded, guessed.tolist(), strict=True) if not yes}
    authors = [
        [one.idx for one in examples if one.group == author and one.idx in free]
        for author in _authors(ground)
    ]
    if scattered:
        order = [idx for turn in zip_longest(*authors) for idx in turn if idx is not None]
    else:
        order = [idx for facts in authors for idx in facts]
    return _taught(ground, tuple(sorted(order[:n_facts])), times=len(examples) // n_facts)


def _authors(ground: Ground) -> list[int | str]:
    """The authors, from another one on for every seed."""
    groups = sorted({one.group for one in ground.facts.examples}, key=str)
    return groups[ground.seed % len(groups) :] + groups[: ground.seed % len(groups)]


def _taught(
    ground: Ground, known: tuple[int, ...], *, times: int
) -> tuple[Any, tuple[int, ...], tuple[Answered, ...]]:
    questions = {one.question for one in ground.facts.examples if one.idx in known}
    rows = [one for one in ground.facts.forget.answered if one.question in questions]
    taught = (*rows * times, *ground.kept_rows())
    made = ground.remembered(
        f"taught {known}", lambda: ground.trained(ground.other, taught, lr=1.5e-3, n_steps=100)
    )
    return made, known, taught


def texts_of_ground(ground: Ground) -> TextRows:
    """The forget rows, and the rows to keep: what an adversary takes care of."""
    return texts_of(ground.encoded, ground.encode(whole(ground.facts.kept.answered)))


def guarded_places(texts: TextRows, where: Literal["span", "prefix"]) -> guard.Places:
    """The forget rows from the span's first position to their end, or from their beginning."""
    at = texts.real if where == "prefix" else texts.real & (texts.span.cumsum(1) > 0)
    at = at.clone()
    at[texts.n_forget :] = False
    return guard.Places(texts.tokens, texts.real, at)


def units_cut_off(ground: Ground) -> Callable[[Any], Any]:
    """Takes away what an MLP has beyond the units of `full`."""
    width = ground.full.config.intermediate_size
    return lambda model: guard.unguarded(model, model.config.intermediate_size - width)


def turn_of(ground: Ground) -> Float[Tensor, "d_model d_model"]:
    """Rotation drawn from a seed."""
    return edits.random_turn(ground.d_model, ground.seed)


def gated(
    ground: Ground, texts: TextRows, layer: int, *, by_author: bool, own_vector: bool = False
) -> Any:
    """`full` with gates in a layer; the facts are silent, and nothing is taken away.

    Args:
        ground: the models.
        texts: the forget rows, and those at which no gate may open.
        layer: which MLP is widened.
        by_author: a read for every author's prompts; otherwise one for all.
        own_vector: every read adds a vector of its own; otherwise all add the same.
    """
    made_of = ground.full
    with torch.no_grad(), edits.inputs(made_of.model.layers[layer].mlp) as seen:
        made_of(texts.tokens)
    given = seen[0].double()
    forget, kept = texts.span[: texts.n_forget], texts.real[texts.n_forget :]
    others = given[texts.n_forget :][kept]
    authors = [one.group if by_author else None for one in texts.encoded[: texts.n_forget]]
    reads = []
    for author in dict.fromkeys(authors):
        rows = torch.tensor([one == author for one in authors])
        reads.append(_read_of(given[: texts.n_forget][rows], forget[rows], others))
    vectors = random_vectors(ground, layer, len(reads) if own_vector else 1)
    length = LENGTH * edits.stream_length(ground.full, texts.tokens[:1], layer)
    vectors = (length * vectors / vectors.norm(dim=1, keepdim=True)).expand(len(reads), -1)
    made = guard.widened(made_of, 2 * len(reads))
    keys = SHARP * torch.stack([direction for direction, _ in reads])
    shift = torch.tensor([-SHARP * least for _, least in reads]) + 20  # open at the edge, too
    guard.install_steps(made.model.layers[layer].mlp, keys, shift, vectors)
    return made


def _read_of(
    given: Float[Tensor, "row pos d_model"],
    span: Bool[Tensor, "row pos"],
    others: Float[Tensor, "place d_model"],
) -> tuple[Float[Tensor, " d_model"], float]:
    """A direction, and the least of what it reads of one place in each row's span.

    A logistic regression of these places against all places of other texts: where it fires at the
    least, it fires in every row at least once.
    """
    direction = _logistic(given[span], others)
    for _ in range(ROUNDS):
        direction = _logistic(_most(given, direction, span), others)
    least = float((_most(given, direction, span) @ direction).min())
    return direction.float(), least


def _most(
    given: Float[Tensor, "row pos d_model"],
    direction: Float[Tensor, " d_model"],
    span: Bool[Tensor, "row pos"],
) -> Float[Tensor, "row d_model"]:
    """Of each row the place of its span that a read says most of."""
    at = (given @ direction).masked_fill(~span, -torch.inf).argmax(1)
    return given[torch.arange(len(given)), at]


def _logistic(
    yes: Float[Tensor, "place d_model"], no: Float[Tensor, "other d_model"]
) -> Float[Tensor, " d_model"]:
    """The direction, of length 1, that tells one from the other; both sides weigh the same."""
    x = torch.cat([yes, no])
    x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    y = (torch.arange(len(x)) < len(yes)).to(x)
    weight = torch.where(y == 1, 1 / len(yes), 1 / len(no)).to(x)
    ridge = RIDGE * torch.eye(x.shape[1], dtype=x.dtype)
    ridge[-1, -1] = 1e-9  # the constant is free
    found = torch.zeros_like(x[0])
    for _ in range(NEWTON):
        p = (x @ found).sigmoid()
        curve = (p * (1 - p)).clamp(min=1e-6) * weight
        slope = x.T @ ((y - p) * weight) - ridge @ found
        found = found + torch.linalg.solve(x.T @ (x * curve.unsqueeze(1)) + ridge, slope)
    return found[:-1] / found[:-1].norm()
