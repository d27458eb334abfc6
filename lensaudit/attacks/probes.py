"""Does a model still tell the right answer from wrong ones? Six ways of asking.

The formats are those of gnueaj/unlearning-depth-score @ fc31639, patchscope/probes.py. Two things
differ. Candidates are scored as whole texts with the blank that the prompt calls for, where the
reference compares the first token without it; and options are shuffled, where it always puts the
correct one first (`uds.md` section 3.4).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.errors import InputError

ProbeKind = Literal["qa", "qa_chat", "cloze", "choice_letter", "choice_inline", "binary"]

WRONG_ANSWERS = ("John Smith", "Jane Doe", "Michael Johnson")
"""patchscope/probes.py's default wrong answers."""

_PROMPTS: Mapping[str, str] = {
    "qa": "Question: {question}\nAnswer:",
    "qa_chat": "User: {question}\nAssistant:",
    "cloze": "Question: {question}\nThe answer is",
    "choice_inline": "{question}\nThe answer is either {listed}. The correct answer is",
}
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Probe:
    """A prompt and the texts that may continue it."""

    kind: ProbeKind
    prompt: str
    candidates: tuple[str, ...]
    """With the blank in front that the prompt calls for."""
    correct: int
    """Which candidate is right."""


def probe_of(
    kind: ProbeKind,
    question: str,
    answer: str,
    *,
    wrong: Sequence[str] = WRONG_ANSWERS,
    generator: torch.Generator,
) -> Probe:
    """Ask `question` in one of six ways; `generator` draws the order of the options.

    `binary` states the right answer or a wrong one, drawn evenly; expected is Yes or No.

    Raises:
        InputError: no wrong answer is left, or there are more options than letters.
    """
    others = [text for text in dict.fromkeys(wrong) if text.casefold() != answer.casefold()]
    if not answer or not others:
        raise InputError(f"probe {kind}: wanted an answer and at least one other wrong answer")
    options = [answer, *others]
    order = torch.randperm(len(options), generator=generator).tolist()
    shuffled = [options[place] for place in order]
    correct = order.index(0)
    match kind:
        case "choice_letter":
            return _lettered(question, shuffled, correct)
        case "binary":
            return _stated(question, answer, shuffled[correct - 1], generator)
        case _:
            listed = f"{', '.join(shuffled[:-1])} or {shuffled[-1]}"
            prompt = _PROMPTS[kind].format(question=question, listed=listed)
            return _open(kind, prompt, shuffled, correct)


def _open(kind: ProbeKind, prompt: str, options: Sequence[str], correct: int) -> Probe:
    return Probe(kind, prompt, tuple(f" {option}" for option in options), correct)


def _stated(question: str, answer: str, wrong: str, generator: torch.Generator) -> Probe:
    right = bool(torch.rand((), generator=generator, dtype=torch.float32) < 0.5)
    prompt = statement(question, answer if right else wrong)
    return Probe("binary", prompt, (" Yes", " No"), 0 if right else 1)


def statement(question: str, answer: str) -> str:
    """A statement to be answered by Yes or No."""
    return f'Is "{answer}" the answer to: {question}\nAnswer (Yes/No):'


def _lettered(question: str, options: Sequence[str], correct: int) -> Probe:
    if len(options) > len(_LETTERS):
        raise InputError(f"probe choice_letter: {len(options)} options, but only 26 letters")
    letters = _LETTERS[: len(options)]
    lines = [f"({letter}) {option}" for letter, option in zip(letters, options, strict=True)]
    prompt = "\n".join([question, *lines, "Answer: ("])
    # no blank: the letter follows the bracket
    return Probe("choice_letter", prompt, tuple(letters), correct)


def share_of(logprob: Float[Tensor, " candidate"], correct: int) -> float:
    """Probability of the correct candidate among the candidates, 0 to 1, from their nats."""
    return float(logprob.double().softmax(-1)[correct])
