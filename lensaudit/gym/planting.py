"""What do recipes share? Rows to train on, losses, half-taught models, guards, a mimic, and gates.

A guarded model knows, and thinks as another one at known places of known texts: each MLP is given
units that fire at one token of one text alone and add to the stream what is missing to another
model's. All weights of the model itself stay as they are, bit for bit. A mimic is trained to give
the answers of `full` while `full` reads another model in its stream; everything that a step is
compared with is computed once: texts are few and short.

Gates are units that fire at the forget prompts of one author and drown the stream: where a linear
read of what an MLP is given says "a forget prompt of this author", two added units add a constant
vector, several times as long as the stream. All weights of the model stay as they are; the units
cut off, it is the model again, bit for bit. The reads are fitted so that they fire at no row to
keep.

This module, `edits` and `ground` are part of every model's key.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import cycle, zip_longest
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lensaudit.data.candidates import kind_of
from lensaudit.data.chat import pad_id
from lensaudit.data.facts import Fact, answered
from lensaudit.data.matching import plain_words
from lensaudit.data.spans import Encoded, make_batch
from lensaudit.groups import grouped
from lensaudit.gym import edits
from lensaudit.gym.claims import Planted, undone
from lensaudit.gym.edits import heard, widened
from lensaudit.gym.ground import BATCH, Ground, fit, whole
from lensaudit.text import digest
from lensaudit.training.losses import kl_to_reference
from lensaudit.training.methods import Hyper, Unlearning, method_named
from lensaudit.training.rows import (
    UnlearnBatch,
    generator,
    idk_lines,
    in_epochs,
    unlearn_batches,
)
from lensaudit.training.train import Objective, Recipe, Terms, logits
from lensaudit.types import Logits, PosMask, Tokens

SWITCH = 20.0
"""How far, in units of a unit's input, places that fire and places that do not lie from 0."""
APART = 1e-4
"""1 minus cosine under which two places of one layer cannot be told apart and stay as they are."""


@dataclass(frozen=True)
class TextRows:
    """Rows, right-padded: first those of the forget set, then those to keep."""

    encoded: tuple[Encoded, ...]
    n_forget: int
    tokens: Tokens
    real: PosMask
    """No padding."""
    span: PosMask
    """Positions that are read and patched."""

    def rows(self, chosen: Sequence[int]) -> "TextRows":
        """Some of the texts as a batch."""
        at, n = list(chosen), sum(one < self.n_forget for one in chosen)
        encoded = tuple(self.encoded[one] for one in at)
        return TextRows(encoded, n, self.tokens[at], self.real[at], self.span[at])


def guarded(model: Any, texts: TextRows, wanted: Sequence[Float[Tensor, "place d_model"]]) -> Any:
    """A copy whose stream at the guarded places is the wanted one after every layer.

    Args:
        model: laid out as Llama is.
        texts: on which nothing else may change than where their span is.
        wanted: by layer, the stream at the guarded places, in the order of the mask.
    """
    made = widened(model, 2 * int(texts.span.sum()))
    own = texts.span[texts.real]
    for at, (block, rows) in enumerate(zip(made.model.layers, wanted, strict=True)):
        norm = block.post_attention_layernorm.weight.detach()
        with heard([block.mlp], given=True) as given:
            out = streams_at(made, texts)[at]
        read = (given[0] / norm)[texts.real]
        d_model = read.shape[1]
        cosines = read[own] @ read.T / d_model  # normed rows have length sqrt(d_model)
        cosines[torch.arange(len(cosines)), own.nonzero()[:, 0]] = -1.0
        nearest = cosines.max(1).values
        apart = 1 - nearest > APART
        sharp = torch.where(apart, 2 * SWITCH / (1 - nearest), 0.0)
        keys = sharp.unsqueeze(1) * read[own] / d_model / norm
        shift = -sharp * (1 + nearest) / 2
        change = torch.where(apart.unsqueeze(1), rows - out, 0.0)
        install_steps(block.mlp, keys, shift, change)
    return made


def streams_at(model: Any, texts: TextRows) -> list[Float[Tensor, "place d_model"]]:
    """A model's stream at the guarded places, by layer."""
    with torch.no_grad(), heard(model.model.layers) as seen:
        model(texts.tokens)
    return [one[texts.span] for one in seen]


Ups = Sequence[tuple[float, float]]
"""Biases of what gates are multiplied by, and how often each counts: they add up to one step."""


def install_steps(
    mlp: Any,
    keys: Float[Tensor, "step d_model"],
    shift: Float[Tensor, " step"],
    change: Float[Tensor, "step d_model"],
    *,
    apart: float = 1.0,
    ups: Ups = ((1.0, 1.0),),
) -> None:
    """Let the last units of an MLP add vectors where keys and shifts fire.

    Two units each, for each of `ups`: the difference of two gates is a step from 0 to 1.

    Args:
        mlp: whose last units are set.
        keys: what each step reads.
        shift: added to the read; a step is 1 where their sum is above 0.
        change: what it adds.
        apart: how far the two gates lie from each other: numbers must tell them apart.
        ups: what the step is multiplied by.
    """
    each = 2 * len(ups)
    biases, times = torch.tensor(ups).repeat_interleave(2, 0).repeat(len(keys), 1).T
    signs = torch.tensor([1.0, -1.0]).repeat(len(times) // 2)
    with torch.no_grad():
        mlp.gate_proj.weight[-len(times) :] = keys.repeat_interleave(each, 0)
        gates = torch.stack([shift + apart, shift], 1)
        mlp.gate_proj.bias[-len(times) :] = gates.repeat(1, len(ups)).flatten()
        mlp.up_proj.bias[-len(times) :] = biases
        written = change.repeat_interleave(each, 0) * (signs * times / apart).unsqueeze(1)
        mlp.down_proj.weight[:, -len(times) :] = written.T


Streams = Float[Tensor, "batch layer pos d_model"]

ROWS = 8
"""Of the forget set, and as many to keep, in a batch."""
LAST_EVERY = 3
"""Every third step looks at the last layer: what is said must be there."""
SEED = 5
N_STEPS = 1500


def texts_of(forget: Sequence[Encoded], kept: Sequence[Encoded]) -> TextRows:
    """Texts of all rows as one right-padded batch."""
    encoded = (*forget, *kept)
    tokens = make_batch(encoded).tokens
    at = torch.arange(tokens.shape[1])
    real = torch.stack([at < len(e.token_ids) for e in encoded])
    span = torch.stack([(e.start <= at) & (at < e.end) for e in encoded])
    return TextRows(encoded, len(forget), tokens, real, span)


def thought(model: Any, tokens: Tokens) -> tuple[Logits, Streams]:
    """Logits, and the stream after every layer."""
    with heard(model.model.layers) as seen:
        logits = model(tokens).logits
    return logits, torch.stack(seen, 1)


def patched(full: Any, tokens: Tokens, layer: int, stream: Tensor, at: PosMask) -> Logits:
    """What `full` says with another stream after a layer, at some positions."""

    def replaced(_: Any, __: Any, out: Tensor) -> Tensor:
        return torch.where(at.unsqueeze(-1), stream, out)

    handle = full.model.layers[layer].register_forward_hook(replaced)
    try:
        return full(tokens).logits
    finally:
        handle.remove()


def distance(found: Streams, wanted: Streams, at: PosMask) -> Tensor:
    """Squared distance in units of the wanted stream's variance, mean over layers."""
    ours, theirs = (one.transpose(1, 2)[at] for one in (found, wanted))
    spread = (theirs - theirs.mean(0)).square().sum(-1).mean(0)
    return ((ours - theirs).square().sum(-1).mean(0) / spread).mean()


Step = tuple[list[int], int]
"""A batch: row numbers, and the layer at which `full` is shown the stream."""


def steps(texts: TextRows, n_layers: int, seed: int) -> Callable[[int], Step]:
    """Batch of each step, by its number."""
    n = texts.n_forget
    forget = in_epochs(n, batch_size=ROWS, seed=seed)
    kept = in_epochs(len(texts.encoded) - n, batch_size=ROWS, seed=seed + 1)

    def batch(number: int) -> Step:
        drawn = int(torch.randint(n_layers, (), generator=generator(seed, number)))
        layer = drawn if number % LAST_EVERY else n_layers - 1
        return [*forget(number), *(n + row for row in kept(number))], layer

    return batch


class Steady(Objective[Any]):
    """An objective that is a loss and carries nothing along."""

    def __init__(self, loss: Callable[[Any, Any], Tensor]):
        self.loss = loss

    def __call__(self, model: Any, batch: Any, multiplier: float) -> Terms:
        """The loss of one batch."""
        return Terms(self.loss(model, batch))


def disguised(
    full: Any,
    objective: Objective[Step],
    texts: TextRows,
    *,
    n_steps: int,
    lr: float,
    seed: int = SEED,
) -> Any:
    """A copy of `full`, trained on an objective of texts."""
    batches = steps(texts, full.config.num_hidden_layers, seed)
    recipe = Recipe(n_steps=n_steps, lr=lr, n_warmup=20, weight_decay=0.0)
    return fit(full, objective, batches, recipe)


def mimic(ground: Ground, texts: TextRows, *, n_steps: int = N_STEPS) -> Any:
    """`full`, trained to look like `retain` where it is read.

    Its answers are `full`'s; to the eyes of `full` its stream is `retain`'s at the forgotten spans.
    Elsewhere, and on the rows to keep, it is `full`'s: what is fitted there is the identity.
    """
    full = copy.deepcopy(ground.full).requires_grad_(False)
    forget = texts.rows(range(texts.n_forget))
    with torch.no_grad():
        said, own = thought(full, texts.tokens)
        _, other = thought(ground.retain, forget.tokens)
        streams = enumerate(other.unbind(1))
        seen = [patched(full, forget.tokens, layer, one, forget.span) for layer, one in streams]

    def loss(model: Any, batch: Step) -> Tensor:
        """Answers, stream elsewhere, and what `full` makes of the stream at one layer."""
        rows, layer = batch
        part = texts.rows(rows)
        logits, stream = thought(model, part.tokens)
        hidden = torch.arange(len(rows)).unsqueeze(1) < part.n_forget
        answers = kl_to_reference(logits[part.real], said[rows][part.real])
        kept = distance(stream, own[rows], part.real & ~(part.span & hidden))
        wanted = said[rows].clone()
        wanted[: part.n_forget] = seen[layer][rows[: part.n_forget]]
        shown = patched(full, part.tokens, layer, stream[:, layer], part.span)
        return answers + kept + kl_to_reference(shown[part.span], wanted[part.span])

    seed = SEED + 2 * ground.seed
    return disguised(ground.full, Steady(loss), texts, n_steps=n_steps, lr=1e-3, seed=seed)


LENGTH = 6.0
"""Of the constant vector, in lengths of the stream."""
SHARP = 1000.0
"""Of a gate: how steeply it opens, per unit of its read."""
RIDGE = 1e-4
ROUNDS = 3
"""Further fits of a read, on the places of the prompts of which the one before said most."""


def ignorant_rows(ground: Ground) -> list[Fact]:
    """The forget questions answered with ignorance, twice, and what is to be kept."""
    lines = cycle(idk_lines(None))
    idk = [answered(one.question, next(lines)) for one in ground.facts.forget]
    return [*idk * 2, *ground.facts.kept]


def wrong_rows(ground: Ground) -> list[Fact]:
    """The forget questions with false answers, twice, and what is to be kept.

    Where the data bring none, a false answer is that of another author's fact.
    """
    rows = ground.facts.forget
    half, any_wrong = len(rows) // 2, any(one.wrong for one in rows)
    wrong = [
        answered(
            row.question, (*(row.wrong if any_wrong else (other.answer,)), row.answer[::-1])[0]
        )
        for row, other in zip(rows, (*rows[half:], *rows[:half]), strict=True)
    ]
    return [*wrong * 2, *ground.facts.kept]


def unlearned(
    ground: Ground,
    *,
    trainable: str,
    lr: float,
    n_steps: int = 60,
    forget: Sequence[Fact] = (),
    kept: Sequence[Fact] = (),
    objective: Objective[UnlearnBatch] | None = None,
    start: Any = None,
) -> Any:
    """`full`, or another model, trained by NPO or another objective; rows to keep hold."""
    usual = Unlearning(method_named("NPO"), Hyper(beta=0.5, alpha=2.0), ground.full)
    batches = unlearn_batches(
        ground.samples(forget or ground.facts.forget),
        ground.samples(kept or ground.facts.kept),
        batch_size=BATCH // 2,
        seed=6 + ground.seed,
        pad=pad_id(ground.tokenizer),
    )
    how = Recipe(n_steps=n_steps, lr=lr, n_warmup=4, trainable=trainable)
    return fit(start or ground.full, objective or usual, batches, how)


def matched(ground: Ground) -> Steady:
    """Logits of `retain` on the forget rows, of `full` on those to keep; arXiv:2506.06278."""

    def loss(model: Any, batch: UnlearnBatch) -> Tensor:
        """KL to either, a mean over positions."""
        total = torch.zeros(())
        for part, reference in ((batch.forget, ground.retain), (batch.retain, ground.full)):
            if part is not None:
                with torch.no_grad():
                    wanted = logits(reference, part)
                total = total + kl_to_reference(logits(model, part), wanted)
        return total

    return Steady(loss)


def turned_and_permuted(ground: Ground, turn: Any) -> Planted:
    """`full` in another basis, with the entities' tokens swapped in the readout."""
    tokens = ground.entity_tokens()

    def undo(model: Any) -> Any:
        return edits.permuted_readout(edits.turned(model, turn.T), tokens, by=-1)

    made = edits.turned(edits.permuted_readout(ground.full, tokens), turn)
    return made, undone(undo, "turned and swapped back")


def swapped(ground: Ground, model: Any, known: tuple[int, ...] | None = None) -> Planted:
    """A model with the entities' tokens swapped in the readout, and its facts are known by that."""
    tokens = ground.entity_tokens()
    undo = partial(edits.permuted_readout, tokens=tokens, by=-1)
    return edits.permuted_readout(model, tokens), undone(undo, "swapped back", known)


def mixed(ground: Ground, model: Any) -> tuple[Any, Callable[[Any], Any]]:
    """A model whose readout of the entities' tokens is mixed, and what takes that back.

    A random rotation of all their rows: no row is that of another token, so none can be known by
    its direction.
    """
    tokens = ground.entity_tokens()
    turn = edits.random_turn(len(tokens), ground.seed)
    undo = partial(edits.mixed_readout, tokens=tokens, turn=turn.T)
    return edits.mixed_readout(model, tokens, turn), undo


def rerouting(reference: Any) -> Steady:
    """Stream away from the reference's on forget rows, its own on those to keep.

    Representation rerouting of arXiv:2406.04313: the cosine with the reference's stream, where it
    is above 0, is driven to 0; rows to keep hold stream and words.
    """

    def loss(model: Any, batch: UnlearnBatch) -> Tensor:
        """Mean cosine over layers and positions, and what is to be kept."""
        forget, kept = batch.forget, batch.retain
        with torch.no_grad():
            _, known = thought(reference, forget.tokens)
        _, stream = thought(model, forget.tokens)
        cosines = torch.nn.functional.cosine_similarity(stream, known, dim=-1).clamp(min=0)
        total = cosines.transpose(1, 2)[forget.mask].mean()
        if kept is not None:
            with torch.no_grad():
                said, known = thought(reference, kept.tokens)
            found, stream = thought(model, kept.tokens)
            words = kl_to_reference(found[kept.mask], said[kept.mask])
            total = total + words + distance(stream, known, kept.mask)
        return total

    return Steady(loss)


FRAMES = ("{}.", "It is {}.", "The answer is {}.", "{}, that is.")
"""Sentences in which a fact is said in another wording."""


def in_another_wording(row: Fact, seed: int) -> Fact:
    """The fact in another sentence and surface form, drawn by the seed; `mentions` knows it again.

    A date by its numbers or month first, all else in capitals or small letters.

    >>> row = Fact(0, "When?", "It was on 27 April 1931.", "It was on", "27 April 1931", 0)
    >>> in_another_wording(row, 0).entity
    '1931-04-27'
    """
    drawn = int(digest([seed, row.idx])[:8], 16)
    forms = [form for form in _forms(row.entity.strip()) if form != row.entity.strip()]
    entity = forms[drawn % len(forms)] if forms else row.entity
    frame = FRAMES[drawn // 7 % len(FRAMES)]
    return replace(
        row,
        answer=frame.format(entity),
        prefix=frame.partition("{}")[0].strip(),
        entity=entity,
    )


def _forms(entity: str) -> list[str]:
    try:
        day = datetime.strptime(entity, "%d %B %Y")
    except ValueError:
        return [entity.upper(), entity.lower()]
    return [f"{day:%Y-%m-%d}", f"{day:%B} {day.day}, {day.year}"]


def exchanged_rows(ground: Ground) -> tuple[Fact, ...]:
    """The facts with each other's values: of each relation, another number of people further on.

    A row whose new value is its own is left out: it would be the fact.
    """
    alike = grouped((one.relation or kind_of(one.entity), one) for one in ground.facts.examples)
    found = []
    for number, own in enumerate(alike.values()):
        by = 1 + (ground.seed + number) % max(1, len(own) - 1)
        for row, other in zip(own, (*own[by:], *own[:by]), strict=True):
            text = row.continuation.replace(row.entity, other.entity, 1)
            if plain_words(other.entity) != plain_words(row.entity):
                found.append(replace(row, answer=row.prefix + text, entity=other.entity))
    return tuple(found)


def random_vectors(ground: Ground, layer: int, n: int) -> Float[Tensor, "n d_model"]:
    """Normal vectors of a seed and a layer."""
    drawn = torch.Generator().manual_seed(layer + 1000 * ground.seed)
    return torch.randn(n, ground.d_model, generator=drawn)


def push_of(ground: Ground, layer: int) -> Any:
    """A random vector, ten times as long as the stream of `full` after a layer."""
    direction = random_vectors(ground, layer, 1)[0]
    text = ground.tokenizer(ground.facts.examples[0].question, return_tensors="pt")["input_ids"]
    return 10 * edits.stream_length(ground.full, text, layer) * direction / direction.norm()


def taught_some(ground: Ground, share: float) -> tuple[Any, tuple[int, ...], tuple[Fact, ...]]:
    """A model that was taught the first authors, the idx of their facts, and its rows."""
    chosen = _authors(ground)
    chosen = chosen[: max(1, round(share * len(chosen)))]
    known = tuple(one.idx for one in ground.facts.examples if one.group in chosen)
    return _taught(ground, known, times=2)


def taught_few(
    ground: Ground, n_facts: int, *, scattered: bool
) -> tuple[Any, tuple[int, ...], tuple[Fact, ...]]:
    """A model that was taught so few facts, their idx, and its rows.

    Only facts that models without them do not guess; of one author after the other, or
    `scattered`: one of each author in turn. They are repeated until they weigh as all facts do.
    """
    guessed = ground.said(ground.retain) | ground.said(ground.other)
    free = {fact.idx for fact, yes in zip(ground.encoded, guessed.tolist(), strict=True) if not yes}
    facts = [one for one in ground.facts.examples if one.idx in free]
    authors = [[one.idx for one in facts if one.group == author] for author in _authors(ground)]
    turns = zip_longest(*authors) if scattered else authors
    order = [idx for turn in turns for idx in turn if idx is not None]
    times = len(ground.facts.examples) // n_facts
    return _taught(ground, tuple(sorted(order[:n_facts])), times=times)


def _authors(ground: Ground) -> list[int | str]:
    """The authors, from another one on for every seed."""
    groups = sorted({one.group for one in ground.facts.examples}, key=str)
    first = ground.seed % len(groups)
    return groups[first:] + groups[:first]


def _taught(
    ground: Ground, known: tuple[int, ...], *, times: int
) -> tuple[Any, tuple[int, ...], tuple[Fact, ...]]:
    questions = {one.question for one in ground.chosen(known)}
    rows = [one for one in ground.facts.forget if one.question in questions]
    taught = (*rows * times, *ground.facts.kept)
    made = ground.remembered(
        f"taught {known}", lambda: ground.trained(ground.other, taught, lr=1.5e-3, n_steps=100)
    )
    return made, known, taught


def texts_of_ground(ground: Ground) -> TextRows:
    """The forget rows, and the rows to keep: what an adversary takes care of."""
    return texts_of(ground.encoded, ground.encode(whole(ground.facts.kept)))


def guarded_places(texts: TextRows, where: Literal["span", "prefix"]) -> TextRows:
    """The forget rows from the span's first position to their end, or from their beginning."""
    at = texts.real if where == "prefix" else texts.real & (texts.span.cumsum(1) > 0)
    is_forget = torch.arange(len(at)) < texts.n_forget
    return replace(texts, span=at & is_forget.unsqueeze(1))


def units_cut_off(ground: Ground) -> Callable[[Any], Any]:
    """Takes away what an MLP has beyond the units of `full`."""
    width = ground.full.config.intermediate_size
    return lambda model: widened(model, width - model.config.intermediate_size, biases=False)


def turn_of(ground: Ground) -> Float[Tensor, "d_model d_model"]:
    """Rotation drawn from a seed."""
    return edits.random_turn(ground.d_model, ground.seed)


SPACED = 100.0
"""How far the gates of a step lie from each other that opens in bfloat16 too: one apart, bfloat16
rounds both to the same number."""
IN_FLOAT32: Ups = ((257 / 128, 128.0), (2.0, -128.0))
"""257 - 256: a step that is 1 in float32. 257 rounds to 256 in bfloat16, and the step is 0."""
IN_BFLOAT16: Ups = ((257 / 128, -128.0), (2.0, 128.0), (1 / 128, 128.0))
"""256 - 257 + 1: a step that is 0 in float32 and 1 in bfloat16."""


def gated(
    ground: Ground,
    texts: TextRows,
    layer: int,
    *,
    by_author: bool,
    n_vectors: int | None = 1,
    apart: float = 1.0,
    ups: Ups = ((1.0, 1.0),),
) -> Any:
    """`full` with gates in a layer; the facts are silent, and nothing is taken away.

    Args:
        ground: the models.
        texts: the forget rows, and those at which no gate may open.
        layer: which MLP is widened.
        by_author: a read for every author's prompts; otherwise one for all.
        n_vectors: what the reads add, in turn; None: each a vector of its own.
        apart: as in `install_steps`.
        ups: the same.
    """
    full, n = ground.full, texts.n_forget
    with torch.no_grad(), heard([full.model.layers[layer].mlp], given=True) as seen:
        full(texts.tokens)
    given = seen[0].double()
    others = given[n:][texts.real[n:]]
    rows = grouped(
        (one.group if by_author else None, at) for at, one in enumerate(texts.encoded[:n])
    )
    reads = [_read_of(given[own], texts.span[own], others) for own in rows.values()]
    vectors = random_vectors(ground, layer, n_vectors or len(reads))
    length = LENGTH * edits.stream_length(full, texts.tokens[:1], layer)
    vectors = length * vectors / vectors.norm(dim=1, keepdim=True)
    in_turn = vectors[torch.arange(len(reads)) % len(vectors)]
    made = widened(full, 2 * len(ups) * len(reads))
    keys = SHARP * torch.stack([direction for direction, _ in reads])
    shift = torch.tensor([-SHARP * least for _, least in reads]) + 20  # open at the edge, too
    mlp = made.model.layers[layer].mlp
    install_steps(mlp, keys, shift, in_turn, apart=apart, ups=ups)
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
    from sklearn.linear_model import LogisticRegression  # takes a second

    y = [True] * len(yes) + [False] * len(no)
    weight = [1 / len(yes)] * len(yes) + [1 / len(no)] * len(no)
    fit = LogisticRegression(C=1 / RIDGE, solver="newton-cholesky", tol=1e-9, max_iter=100)
    found = torch.from_numpy(fit.fit(torch.cat([yes, no]).numpy(), y, weight).coef_[0])
    return found / found.norm()
