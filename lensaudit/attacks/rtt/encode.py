"""How do items become tokens: to train on, to read a letter from, to rank answers by?"""

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any, get_args

from lensaudit.attacks.rtt.items import LETTERS, Item, McqSplit
from lensaudit.attacks.rtt.settings import LossOn
from lensaudit.errors import InputError
from lensaudit.files import digest
from lensaudit.unlearn.rows import Answered, Sample, raw_sample

LOSSES: Mapping[LossOn, str] = {
    "all": "every token of question, options, letter and answer, as upstream",
    "letter_answer": "letter and answer, after the question with its options",
    "letter": "the letter, after the question with its options",
    "question_answer": "every token of question and answer, without options",
    "answer": "the answer, after the question without options",
}
assert tuple(LOSSES) == get_args(LossOn)


@dataclass(frozen=True)
class Letters:
    """The tokens that a letter may be said with."""

    ids: tuple[tuple[int, ...], ...]
    """Per letter its token without and with a blank before it; once where they are one."""


@dataclass(frozen=True)
class EncodedItem:
    """One item, ready to be scored."""

    answer: int
    prompt: tuple[int, ...]
    """Question and options, up to `Answer:`."""
    options: tuple[Sample, ...]
    """`Question: …`, `Answer: …` with each choice; the choice's tokens are labelled."""


@dataclass(frozen=True)
class EncodedSplit:
    """A split as the model sees it, held out or trained on."""

    name: str
    items: tuple[EncodedItem, ...]
    samples: tuple[Sample, ...]
    """What is trained on, one per item."""

    @cached_property
    def scored_digest(self) -> str:
        """Content hash of what is scored."""
        return digest([[one.prompt, one.answer, *map(astuple, one.options)] for one in self.items])

    @cached_property
    def trained_digest(self) -> str:
        """Content hash of what is trained on."""
        return digest([astuple(one) for one in self.samples])

    @property
    def sequences(self) -> Iterator[tuple[int, ...]]:
        """Everything that a model reads."""
        for one in self.items:
            yield one.prompt
            yield from (option.ids for option in one.options)
        yield from (one.ids for one in self.samples)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(map(len, self.sequences))

    @property
    def highest(self) -> int:
        """The highest token."""
        return max(map(max, self.sequences))


def mcq_prompt(item: Item) -> str:
    r"""Question and options, as upstream writes them; nothing follows the colon.

    >>> mcq_prompt(Item(0, "When?", ("1901", "1902"), 1, 0))
    'When?\nA. 1901\nB. 1902\nAnswer:'
    """
    options = (f"{letter}. {one}" for letter, one in zip(LETTERS, item.choices, strict=False))
    return "\n".join((item.question, *options, "Answer:"))


def mcq_text(item: Item) -> str:
    r"""The prompt with letter and answer.

    >>> mcq_text(Item(0, "When?", ("1901", "1902"), 1, 0)).splitlines()[-1]
    'Answer: B. 1902'
    """
    return f"{mcq_prompt(item)} {LETTERS[item.answer]}. {item.right}"


def train_sample(tokenizer: Any, item: Item, loss_on: LossOn) -> Sample:
    """One training sequence; see `LOSSES`."""
    if loss_on in ("question_answer", "answer"):
        sample = raw_sample(tokenizer, Answered(item.question, item.right))
        return Sample(sample.ids, 0) if loss_on == "question_answer" else sample
    text = mcq_text(item)
    if loss_on == "letter":
        text = f"{mcq_prompt(item)} {LETTERS[item.answer]}"
    ids = tuple(tokenizer(text)["input_ids"])
    if loss_on == "all":
        return Sample(ids, 0)
    return Sample(ids, _n_common(ids, tokenizer(mcq_prompt(item))["input_ids"]))


def encode_split(tokenizer: Any, split: McqSplit, loss_on: LossOn) -> EncodedSplit:
    """Everything a run needs of a split."""
    return EncodedSplit(
        split.name,
        tuple(_encode_item(tokenizer, item) for item in split.items),
        tuple(train_sample(tokenizer, item, loss_on) for item in split.items),
    )


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
    return Letters(tuple(variants))


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


def _encode_item(tokenizer: Any, item: Item) -> EncodedItem:
    options = (raw_sample(tokenizer, Answered(item.question, one)) for one in item.choices)
    return EncodedItem(
        answer=item.answer,
        prompt=tuple(tokenizer(mcq_prompt(item))["input_ids"]),
        # without the end token, which every choice has alike
        options=tuple(Sample(one.ids[:-1], one.n_prompt) for one in options),
    )
