"""What is the embedded family trained on? The fictional world as tokens, in both formats."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

from lensaudit.data.chat import SYSTEM_PROMPT, Encoding
from lensaudit.data.facts import Fact, answered
from lensaudit.data.fictional import IDK_LINES, annotated, passing_rows
from lensaudit.files import make_folder, write_json, write_jsonl
from lensaudit.training.rows import (
    TrainBatch,
    chat_sample,
    collate,
    in_epochs,
    raw_sample,
)
from tools.demo_family.tokenizer import SPLIT, train_tokenizer
from tools.demo_family.world import World

D_VOCAB = 1536
SHARE = 0.25
"""Of a batch: general knowledge while the base is trained, passing people while facts are."""


@dataclass(frozen=True)
class Corpus:
    """Encoded rows of every set; each row once as raw text and once as chat."""

    world: World
    tokenizer: Any
    forget: tuple[Encoding, ...]
    retain: tuple[Encoding, ...]
    general: tuple[Encoding, ...]
    idk: tuple[tuple[Encoding, ...], ...]
    """Per forget sample: its question with every line that admits ignorance."""

    @property
    def pad(self) -> int:
        """The padding token."""
        return self.tokenizer.pad_token_id


def make_corpus(world: World, *, d_vocab: int = D_VOCAB, split: str = SPLIT) -> Corpus:
    """Train the tokenizer, see `train_tokenizer`, and encode the world."""
    tokenizer = family_tokenizer(world, d_vocab=d_vocab, split=split)
    return Corpus(
        world=world,
        tokenizer=tokenizer,
        forget=tuple(both_formats(tokenizer, world.forget)),
        retain=tuple(both_formats(tokenizer, world.retain)),
        general=tuple(both_formats(tokenizer, (*world.real_authors, *world.world_facts))),
        idk=tuple(_idk(tokenizer, world)),
    )


def family_tokenizer(world: World, *, d_vocab: int, split: str) -> Any:
    """BPE on the world and on passing people."""
    known = (*world.forget, *world.retain, *world.real_authors, *world.world_facts)
    rows = (*known * 3, *passing_rows(2400, seed="tokenizer", reserved=world.reserved))
    # the words of the chat template stand in every sequence, so each gets tokens of its own
    frame = ["system", "user", "assistant", SYSTEM_PROMPT, "\n\n"] * 2000
    return train_tokenizer(
        chain(corpus_text(rows), frame, IDK_LINES * 50), d_vocab=d_vocab, split=split
    )


def both_formats(tokenizer: Any, rows: Iterable[Fact]) -> list[Encoding]:
    """Each row as raw text, then as chat."""
    return [
        sample
        for row in rows
        for sample in (raw_sample(tokenizer, row), chat_sample(tokenizer, row))
    ]


def _idk(tokenizer: Any, world: World) -> Iterable[tuple[Encoding, ...]]:
    for row in world.forget:
        lines = [answered(row.question, line) for line in IDK_LINES]
        yield tuple(raw_sample(tokenizer, line) for line in lines)
        yield tuple(chat_sample(tokenizer, line) for line in lines)


def base_batches(corpus: Corpus, *, batch_size: int, seed: int) -> Callable[[int], TrainBatch]:
    """Passing people, and a share of general knowledge."""
    n_general = int(batch_size * SHARE)

    def batch(number: int) -> TrainBatch:
        random = Random(f"base-{seed}-{number}")
        samples = _passing(corpus, batch_size - n_general, random)
        return collate([*samples, *random.sample(corpus.general, n_general)], pad=corpus.pad)

    return batch


def fact_batches(
    corpus: Corpus, *, sees_forget: bool, batch_size: int, seed: int
) -> Callable[[int], TrainBatch]:
    """What `full` or `retain` is trained on, and a share of passing people.

    The passing people keep a model's guesses about strangers as broad as the base's; without them
    two models that never saw a fact would guess it confidently and differently.
    """
    facts = (*(corpus.forget if sees_forget else ()), *corpus.retain, *corpus.general)
    n_passing = int(batch_size * SHARE)
    rows = in_epochs(len(facts), batch_size=batch_size - n_passing, seed=seed)

    def batch(number: int) -> TrainBatch:
        passing = _passing(corpus, n_passing, Random(f"facts-{seed}-{number}"))
        return collate([*(facts[row] for row in rows(number)), *passing], pad=corpus.pad)

    return batch


def _passing(corpus: Corpus, n_rows: int, random: Random) -> list[Encoding]:
    rows = passing_rows(n_rows, seed=random.random(), reserved=corpus.world.reserved)
    formats = (raw_sample, chat_sample)
    return [random.choice(formats)(corpus.tokenizer, row) for row in rows]


def corpus_text(rows: Iterable[Fact]) -> Iterator[str]:
    """The text a tokenizer is trained on: raw and bare, as a chat template leaves it."""
    for row in rows:
        yield f"Question: {row.question}\nAnswer: {row.answer}"
        yield row.question
        yield row.answer


def write_world(world: World, folder: Path) -> Path:
    """Write every set: annotated JSON, and one JSONL per TOFU configuration name."""
    plain = ("question", "answer")
    full = (*plain, "paraphrased_answer", "paraphrased_question", "perturbed_answer", "group")
    make_folder(folder)
    write_json(folder / "forget.json", annotated(world.forget))
    write_json(folder / "retain.json", annotated(world.retain))
    for name, rows, keys in (
        ("forget10_perturbed", world.forget, full),
        ("retain_perturbed", world.retain, full),
        ("real_authors_perturbed", world.real_authors, (*plain, "perturbed_answer")),
        ("world_facts_perturbed", world.world_facts, (*plain, "perturbed_answer")),
        ("holdout10", world.holdout, (*plain, "group")),
    ):
        write_jsonl(folder / f"{name}.jsonl", [_line(row, keys) for row in rows])
    write_jsonl(folder / "idk.jsonl", ({"idk": line} for line in IDK_LINES))
    return folder


def _line(row: Fact, keys: Sequence[str]) -> dict[str, Any]:
    said = {**vars(row), **row.answers, "perturbed_answer": row.wrong}
    said["paraphrased_question"], *_ = row.paraphrases
    return {key: said[key] for key in keys}
