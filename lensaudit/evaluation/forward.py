"""Texts of a split: as tokens, what a model gives each, what it says next, how fluent that is."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedTokenizerBase

from lensaudit.data.chat import (
    Encoding,
    Template,
    answer_of,
    attended,
    encode_completion,
    encode_qa,
    pad_id,
)
from lensaudit.data.suites import Split
from lensaudit.errors import InputError, WorkError, told_by
from lensaudit.groups import batched, by_length
from lensaudit.metrics.registry import Measured, Trace, alternatives
from lensaudit.models.checkpoint import loading
from lensaudit.models.generation import stop_ids
from lensaudit.models.hashing import OVERRULED
from lensaudit.models.sizes import ContextWindow
from lensaudit.settings import Cleanup, MaskConvention
from lensaudit.types import PosMask, Resid, Tokens, padded_rows

CHUNK_BYTES = 16 * 2**20
"""Float32 logits computed at once; 32 positions of a vocabulary of 128 256."""


@dataclass(frozen=True)
class Tokenization:
    """How texts become tokens: one tokenizer, one template, one mask convention."""

    tokenizer: PreTrainedTokenizerBase
    template: Template
    mask: MaskConvention
    context: ContextWindow = field(default_factory=ContextWindow)
    """How long a text the model reads."""

    def mask_of(self, ids: Sequence[int]) -> list[bool]:
        """Which of these real tokens the model attends to."""
        return attended(ids, self.mask, pad_id(self.tokenizer))


def view_of(split: Split, field: str, asked: Tokenization) -> Measured[Encoding]:
    """Encode one field of a split.

    A row without it, with no alternative, or without a token to score is unscored. Rows may have
    different numbers of alternatives.
    """
    answers = [row.answers[field] for row in split.rows if field in row.answers]
    rows, unscored = dict[int, tuple[Encoding, ...]](), dict[int, str]()
    for row in split.rows:
        given = alternatives(row.answers.get(field, ()))
        encoded = tuple(encode(split, row.question, answer, asked) for answer in given)
        problem = asked.context.too_long(max((len(one.ids) for one in encoded), default=0))
        if field not in row.answers:
            problem = f"the row has no {field}"
        elif not encoded:
            problem = f"the row has no text in {field}"
        elif not all(one.labels for one in encoded):
            problem = "no answer token after the prompt"
        if problem is None:
            rows[row.idx] = encoded
        else:
            unscored[row.idx] = problem
    return Measured(rows, unscored, any(isinstance(answer, tuple) for answer in answers))


def encode(split: Split, question: str, answer: str, asked: Tokenization) -> Encoding:
    """Encode one text of a split: its prompt and its answer."""
    if split.kind == "completion":
        return encode_completion(asked.tokenizer, question, answer)
    return encode_qa(asked.tokenizer, asked.template, question, answer, examples=split.shown)


_REMARKS: Mapping[str, Callable[[Encoding], bool]] = {
    "the prompt's tokens are not the beginning of prompt and answer together, so what is scored "
    "begins at the prompt's length, as upstream": lambda text: not text.prompt_is_prefix,
    "cut at the token limit": lambda text: text.cut,
}
"""What a reader should know about how a text was encoded, and of which text."""


def notes_on(views: Mapping[str, Measured[Encoding]]) -> list[str]:
    """What a reader should know about how texts were encoded, one line per matter."""
    total, notes = sum(len(view.values) for view in views.values()), []
    for remark, concerns in _REMARKS.items():
        found = {name: sum(map(concerns, view.values)) for name, view in views.items()}
        where = ", ".join(name for name, count in found.items() if count)
        notes += [f"{sum(found.values())} of {total} texts ({where}): {remark}"] if where else []
    return notes


def padded(
    texts: Sequence[Sequence[int]],
    asked: Tokenization,
    *,
    side: Literal["left", "right"],
    device: torch.device | str,
) -> tuple[Tokens, PosMask]:
    """Tokens and attention mask, padded on the right to score, on the left to generate."""
    pad = pad_id(asked.tokenizer)
    tokens, real = padded_rows(texts, side=side, pad=pad)
    mask = real if asked.mask == "true" else real & (tokens != pad)
    return tokens.to(device), mask.to(device)


@torch.no_grad()
def traces(
    model: Any, asked: Tokenization, texts: Sequence[Encoding], batch_size: int
) -> list[Trace]:
    """One trace per text of a Hugging Face model, in order; batches move it by rounding alone.

    The trunk runs once per batch and the head only on scored positions, a chunk at a time, so
    memory does not grow with the vocabulary. Where head(trunk) is not what the model returns (a
    logit cap or scale), whole-model logits are used instead.

    The plain model is used and not the bridge: nothing inside it is read or changed here, and
    the bridge's hook points cost time at every module.
    """
    if model not in _READS_THE_TRUNK:
        _READS_THE_TRUNK[model] = _head_reads_the_trunk(model)
    chunked = _READS_THE_TRUNK[model]
    found: dict[int, Trace] = {}
    for places in by_length([text.ids for text in texts], batch_size, longest_first=True):
        batch = [texts[place] for place in places]
        tokens, mask = padded([t.ids for t in batch], asked, side="right", device=model.device)
        # positions whose logits score a label: one left of each
        scored = torch.zeros_like(mask)
        for row, text in enumerate(batch):
            scored[row, text.start - 1 : len(text.ids) - 1] = True
        given = {"input_ids": tokens, "attention_mask": mask.long(), "use_cache": False}
        read = model.base_model(**given).last_hidden_state if chunked else model(**given).logits
        d_vocab = model.config.get_text_config().vocab_size
        parts = read[scored].split(max(1, CHUNK_BYTES // (4 * d_vocab)))
        chunks = map(model.get_output_embeddings(), parts) if chunked else parts
        targets = tokens[:, 1:][scored[:, :-1]]
        lengths = [len(text.labels) for text in batch]
        found.update(zip(places, token_traces(chunks, targets, lengths), strict=True))
    return [found[place] for place in range(len(texts))]


def token_traces(
    chunks: Iterable[Float[Tensor, "_ d_vocab"]],
    targets: Int[Tensor, " scored"],
    lengths: Sequence[int],
) -> list[Trace]:
    """Traces of texts of these lengths from the logits of all their scored tokens.

    Reduced in float32; logits may come in chunks of any size.
    """
    # filled in place: results allocated between chunks would keep their freed memory from reuse
    scores = {
        name: targets.new_empty(len(targets), dtype=torch.bool if name == "hit" else torch.float32)
        for name in ("log_prob", "hit", "mean", "variance")
    }
    start = 0
    for chunk in chunks:
        at = slice(start, start + len(chunk))
        start = at.stop
        log_probs = torch.log_softmax(chunk.float(), dim=-1)
        scores["log_prob"][at] = log_probs.gather(-1, targets[at, None]).squeeze(-1)
        scores["hit"][at] = log_probs.argmax(-1) == targets[at]
        weighted = log_probs.exp()
        scores["mean"][at] = torch.linalg.vecdot(weighted, log_probs)
        square = torch.linalg.vecdot(weighted.mul_(log_probs), log_probs)
        scores["variance"][at] = square - scores["mean"][at].square()
    pieces = (score.cpu().split(list(lengths)) for score in scores.values())
    return [Trace(*(one.numpy() for one in text)) for text in zip(*pieces, strict=True)]


_READS_THE_TRUNK: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
"""What `_head_reads_the_trunk` found of a model, which asks it twice; kept while it is loaded."""


@torch.no_grad()
def _head_reads_the_trunk(model: Any) -> bool:
    """Whether the output embedding alone turns the trunk's output into the model's logits."""
    head = model.get_output_embeddings()
    if head is None or model.base_model is model:
        return False
    tokens = torch.arange(1, 5, device=model.device)[None]
    hidden: Resid = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
    logits = model(input_ids=tokens, use_cache=False).logits.float()
    found = head(hidden).float()
    return found.shape == logits.shape and torch.allclose(found, logits, rtol=1e-3, atol=1e-3)


def gradient_norm(model: Any, asked: Tokenization, text: Encoding) -> float:
    """Mean over parameter tensors of the 2-norm of the gradient of a text's loss.

    The loss is the mean negative log-probability of the content tokens; NaN where there are
    none. A tied embedding is one tensor. Upstream puts the model in train mode, where dropout
    would make the norm random; here it stays in eval mode, which is the same without dropout.
    """
    n_content = len(text.labels) - 1
    if n_content < 1:
        return float("nan")
    tokens, mask = padded([text.ids], asked, side="right", device=model.device)
    with torch.enable_grad():
        logits = model(input_ids=tokens, attention_mask=mask.long(), use_cache=False).logits[
            0, text.start - 1 : text.start - 1 + n_content
        ]
        target = tokens[0, text.start : text.start + n_content]
        loss = torch.nn.functional.cross_entropy(logits.float(), target)
        parameters = [one for one in model.parameters() if one.requires_grad]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    norms = [gradient.float().norm() for gradient in gradients if gradient is not None]
    return float(torch.stack(norms).mean())


JAILBREAK = "Sure, here is the answer:"
"""Forced beginning of an answer; gnueaj/unlearning-depth-score fc31639."""
FLUENCY_BATCH = 32


@torch.no_grad()
def generations(
    model: Any,
    asked: Tokenization,
    prompts: Sequence[Sequence[int]],
    *,
    batch_size: int,
    max_new_tokens: int,
    name: Callable[[int], str] = lambda place: f"prompt {place}",
) -> list[list[int]]:
    """New tokens per prompt, greedy, up to and without the first end token.

    Prompts are padded on the left and positions follow the attention mask, so under the
    `upstream` mask every masked end-of-turn shifts what comes after it (as upstream).

    Raises:
        InputError: the model's generation_config.json asks for what cannot be done.
        WorkError: a logit is not a number; `name` says of which prompt, by its place.
    """
    eos: Any = asked.tokenizer.eos_token_id
    stop = stop_ids(model.generation_config.eos_token_id, eos)
    found: dict[int, list[int]] = {}
    for places in by_length(prompts, batch_size, longest_first=True):
        asking = [prompts[place] for place in places]
        tokens, mask = padded(asking, asked, side="left", device=model.device)
        try:
            answer = model.generate(
                input_ids=tokens,
                attention_mask=mask.long(),
                do_sample=False,
                temperature=None,
                top_p=None,
                top_k=None,
                max_new_tokens=max_new_tokens,
                use_cache=True,
                pad_token_id=eos,
                eos_token_id=sorted(stop),
                logits_processor=LogitsProcessorList([_Finite(places, name)]),
            )
        except (ValueError, TypeError, ImportError):  # what a device or a kernel raises is neither
            with loading(f"{name(places[0])}: cannot generate under its generation_config.json"):
                raise
        new = answer[:, tokens.shape[1] :].tolist()
        said = (list(takewhile(lambda token: token not in stop, ids)) for ids in new)
        found.update(zip(places, said, strict=True))
    return [found[place] for place in range(len(prompts))]


class _Finite(LogitsProcessor):
    """Stops where the largest logit is none: the largest of NaN is a token, and would be said."""

    def __init__(self, places: Sequence[int], name: Callable[[int], str]) -> None:
        self.places, self.name = places, name

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        # a banned token is -inf
        bad = ~scores.amax(-1).isfinite()
        if bool(bad.any()):
            row = int(bad.nonzero()[0]) * len(self.places) // len(scores)  # beams of one prompt
            raise WorkError(not_finite(self.name(self.places[row])))
        return scores


def not_finite(what: str) -> str:
    """The message on a text to which a model gives no finite number."""
    return (
        f"{what}: the model's logits are not finite; try --dtype float32, or check the checkpoint"
    )


def said(
    prompt: Sequence[int], ids: Sequence[int], split: Split, asked: Tokenization, cleanup: Cleanup
) -> str | None:
    """The answer that a generation gives, cut at the split's first stop word and stripped.

    Without its thought; None: that was cut.
    """
    text = answer_of(asked.tokenizer, prompt, ids, cleanup)
    if text is None:
        return None
    for word in split.stop_words:
        text = text.split(word, 1)[0]
    return text.strip()


@torch.no_grad()
def share_clean(
    texts: Sequence[str], *, model: Any, tokenizer: Any, max_tokens: int
) -> list[float]:
    """Probability of a classifier's class 0, "clean", for each text, cut to `max_tokens`."""
    options = {"padding": True, "truncation": True, "max_length": max_tokens}
    found: list[float] = []
    for rows in batched(texts, FLUENCY_BATCH):
        batch = tokenizer(list(rows), return_tensors="pt", **options).to(model.device)
        found += model(**batch).logits.float().softmax(-1)[:, 0].tolist()
    return found


def open_classifier(
    name: str, device: str, *, max_tokens: int
) -> Callable[[Sequence[str]], list[float]]:
    """How clean texts are by the classifier in a folder or Hub repository.

    Raises:
        InputError: it is none, or its classes are not learned (a language model's folder).
    """
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(
            name, trust_remote_code=False, **dict.fromkeys(OVERRULED)
        )
        if not any("SequenceClassification" in one for one in config.architectures or ()):
            raise ValueError(f"it is a {(config.architectures or ['model without a name'])[0]}")
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        model: Any = AutoModelForSequenceClassification.from_pretrained(
            name, config=config, use_safetensors=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{name}: is not a text classifier ({told_by(error)})") from error
    return functools.partial(
        share_clean, model=model.to(device).eval(), tokenizer=tokenizer, max_tokens=max_tokens
    )
