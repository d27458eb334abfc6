"""Does a patched layer still tell the right answer from wrong ones? Six ways of asking.

The formats are those of gnueaj/unlearning-depth-score @ fc31639, patchscope/probes.py. Two things
differ. Candidates are scored as whole texts with the blank that the prompt calls for, where the
reference compares the first token without it; and options are shuffled, where it always puts the
correct one first (`uds.md` section 3.4).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lensaudit.data.joining import Tokenizer, joined
from lensaudit.data.spans import Encoded, make_batch
from lensaudit.errors import InputError
from lensaudit.models.bridge import TransformerBridge, n_layers, residuals
from lensaudit.patching import oracle
from lensaudit.patching.sources import as_patched
from lensaudit.settings import LastLayer

ProbeKind = Literal["qa", "qa_chat", "cloze", "choice_letter", "choice_inline", "binary"]
KINDS: tuple[ProbeKind, ...] = get_args(ProbeKind)

WRONG_ANSWERS = ("John Smith", "Jane Doe", "Michael Johnson")
"""patchscope/probes.py's default wrong answers."""

_PROMPTS: Mapping[str, str] = {
    "qa": "Question: {question}\nAnswer:",
    "qa_chat": "User: {question}\nAssistant:",
    "cloze": "Question: {question}\nThe answer is",
    "choice_inline": "{question}\nThe answer is either {listed}. The correct answer is",
}
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BLANK = re.compile(r"_{2,}\s*[.]?\s*$")


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


def cloze_of(template: str, answer: str, *, wrong: Sequence[str] = WRONG_ANSWERS) -> Probe:
    """A sentence that ends in a blank of two or more underscores, to be continued.

    >>> cloze_of("The author was born in ____.", "Oslo", wrong=["Bergen"]).prompt
    'The author was born in'

    Raises:
        InputError: the blank is not at the end; what follows it could not be read.
    """
    found = _BLANK.search(template)
    prompt = template[: found.start()].rstrip() if found else ""
    if not prompt:
        raise InputError(f"cloze {template!r}: wanted a sentence that ends in a blank, like ____.")
    return _open("cloze", prompt, [answer, *wrong], 0)


def _open(kind: ProbeKind, prompt: str, options: Sequence[str], correct: int) -> Probe:
    return Probe(kind, prompt, tuple(f" {option}" for option in options), correct)


def _stated(question: str, answer: str, wrong: str, generator: torch.Generator) -> Probe:
    right = bool(torch.rand((), generator=generator) < 0.5)
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


@dataclass(frozen=True)
class ProbeScore:
    """What `full` makes of the candidates, by layer patched."""

    layers: tuple[int, ...]
    """Where `full` is patched, one layer per row; -1: not at all."""
    logprob: Float[Tensor, "layer candidate"]
    """Log-prob of each candidate's whole text, nats; summed over its tokens."""
    correct: int

    @property
    def p(self) -> Float[Tensor, " layer"]:
        """Probability of the correct candidate among the candidates, 0 to 1."""
        return self.logprob.double().softmax(-1)[:, self.correct]

    @property
    def margin(self) -> Float[Tensor, " layer"]:
        """Probability of the correct candidate minus that of the likeliest wrong one."""
        p = self.logprob.double().softmax(-1)
        wrong = p.clone()
        wrong[:, self.correct] = -torch.inf
        return p[:, self.correct] - wrong.max(-1).values

    @property
    def detected(self) -> Bool[Tensor, " layer"]:
        """Is the correct candidate the likeliest?"""
        return self.margin > 0

    def over_layers(self) -> "LayerSummary":
        """Means and maxima over the layers."""
        detected = self.detected.tolist()
        return LayerSummary(
            mean_p=float(self.p.mean()),
            max_p=float(self.p.max()),
            mean_margin=float(self.margin.mean()),
            max_margin=float(self.margin.max()),
            detection_rate=sum(detected) / len(detected),
            detecting=tuple(at for at, yes in zip(self.layers, detected, strict=True) if yes),
        )


@dataclass(frozen=True)
class LayerSummary:
    """A probe's score over layers."""

    mean_p: float
    max_p: float
    mean_margin: float
    max_margin: float
    detection_rate: float
    detecting: tuple[int, ...]
    """Layers at which the correct candidate is the likeliest."""


def encode_probe(probe: Probe, tokenizer: Tokenizer) -> list[Encoded]:
    """One example per candidate: the candidate's tokens are the span, the prompt's end is patched.

    Raises:
        InputError: a candidate has no token.
    """
    encoded = []
    for number, candidate in enumerate(probe.candidates):
        found = joined(tokenizer, probe.prompt, candidate)
        prompt, ids = found.prompt_ids, found.ids
        if not ids:
            raise InputError(f"candidate {candidate!r}: the tokenizer makes no token of it")
        before = len(prompt) - 1
        encoded.append(
            Encoded(number, number, prompt + ids, len(prompt), before, before + len(ids))
        )
    return encoded


def ask(model: TransformerBridge, probe: Probe) -> ProbeScore:
    """What a model by itself makes of the candidates; one row, called layer -1."""
    encoded = encode_probe(probe, model.tokenizer)
    means = oracle.baseline(model, make_batch(encoded).to(_device(model)))
    return ProbeScore((-1,), _summed(means.unsqueeze(1), encoded), probe.correct)


def ask_patched(
    full: TransformerBridge,
    source: TransformerBridge,
    probe: Probe,
    *,
    layers: Sequence[int] | None = None,
    last_layer: LastLayer = "resid_post",
) -> ProbeScore:
    """What `full` makes of the candidates with `source` patched in at the last prompt token."""
    encoded = encode_probe(probe, full.tokenizer)
    batch = make_batch(encoded, scope="boundary")
    stack, final_norm = residuals(source, batch.tokens.to(_device(source)))
    stack = as_patched(stack.transpose(0, 1), final_norm, last_layer).transpose(0, 1)
    chosen = tuple(range(n_layers(full)) if layers is None else layers)
    device = _device(full)
    means = oracle.patched(full, stack.to(device), batch.to(device), layers=chosen)
    return ProbeScore(chosen, _summed(means, encoded), probe.correct)


def _summed(
    means: Float[Tensor, "candidate layer"], encoded: Sequence[Encoded]
) -> Float[Tensor, "layer candidate"]:
    """Whole-text log-probs from means per token."""
    n_span = torch.tensor([e.n_span for e in encoded], device=means.device)
    return (means * n_span.unsqueeze(1)).T.cpu()


def _device(model: TransformerBridge) -> torch.device:
    return next(model.original_model.parameters()).device
