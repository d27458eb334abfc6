"""Passes over texts: what a model gives each token, what it says next, and how fluent that is."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from lensaudit.data.chat import Cleanup, Encoding, decode
from lensaudit.data.suites import Split
from lensaudit.errors import InputError, WorkError
from lensaudit.evaluation.texts import Tokenization, padded
from lensaudit.groups import by_length
from lensaudit.metrics.registry import Trace
from lensaudit.models.generation import stop_ids
from lensaudit.models.large.streaming import streamed
from lensaudit.types import PosMask, Resid

CHUNK_BYTES = 16 * 2**20
"""Float32 logits computed at once; 32 positions of a vocabulary of 128 256."""


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
    chunked = _head_reads_the_trunk(model)
    found: dict[int, Trace] = {}
    for places in by_length([text.ids for text in texts], batch_size, longest_first=True):
        batch = _batch_traces(model, asked, [texts[place] for place in places], chunked)
        found.update(zip(places, batch, strict=True))
    return [found[place] for place in range(len(texts))]


def _batch_traces(
    model: Any, asked: Tokenization, texts: Sequence[Encoding], chunked: bool
) -> list[Trace]:
    tokens, mask = padded([t.ids for t in texts], asked, side="right", device=model.device)
    scored = _scored_positions(texts, mask)
    given = {"input_ids": tokens, "attention_mask": mask.long(), "use_cache": False}
    if chunked:
        head = model.get_output_embeddings()
        hidden = model.base_model(**given).last_hidden_state[scored]
        chunks = (head(part) for part in hidden.split(_chunk_positions(head.weight.shape[0])))
    else:
        logits = model(**given).logits
        chunks = logits[scored].split(_chunk_positions(logits.shape[-1]))
    targets = tokens[:, 1:][scored[:, :-1]]
    return token_traces(chunks, targets, [len(text.labels) for text in texts])


def _chunk_positions(d_vocab: int) -> int:
    return max(1, CHUNK_BYTES // (4 * d_vocab))


def _scored_positions(texts: Sequence[Encoding], mask: PosMask) -> PosMask:
    """Positions whose logits score a label: one left of each."""
    scored = torch.zeros_like(mask)
    for row, text in enumerate(texts):
        scored[row, text.start - 1 : len(text.ids) - 1] = True
    return scored


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
    scores = {name: score.cpu() for name, score in scores.items()}
    pieces = {name: score.split(list(lengths)) for name, score in scores.items()}
    return [
        Trace(**{name: pieces[name][row].numpy() for name in pieces}) for row in range(len(lengths))
    ]


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


IN_BLOCKS = "needs all weights at once, and the model is brought block by block"


def gradient_norms(model: Any, asked: Tokenization, texts: Sequence[Encoding]) -> list[float]:
    """Mean over parameter tensors of the 2-norm of the gradient of each text's loss.

    The loss is the mean negative log-probability of the content tokens; NaN where there are
    none. A tied embedding is one tensor. Upstream puts the model in train mode, where dropout
    would make the norm random; here it stays in eval mode, which is the same without dropout.

    Raises:
        InputError: the model's blocks are brought one by one.
    """
    if streamed(model):
        raise InputError(f"mia_gradnorm {IN_BLOCKS}; name a --device or --dtype it fits in")
    return [_norm(model, asked, text) for text in texts]


def _norm(model: Any, asked: Tokenization, text: Encoding) -> float:
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
        WorkError: a logit is not a number; `name` says of which prompt, by its place.
    """
    eos: Any = asked.tokenizer.eos_token_id
    stop = stop_ids(model.generation_config.eos_token_id, eos)
    found: dict[int, list[int]] = {}
    for places in by_length(prompts, batch_size, longest_first=True):
        asking = [prompts[place] for place in places]
        tokens, mask = padded(asking, asked, side="left", device=model.device)
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
        new = answer[:, tokens.shape[1] :].tolist()
        found.update(zip(places, (_until(ids, stop) for ids in new), strict=True))
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
    """What is said of a text to which a model gives no number."""
    return (
        f"{what}: the model's logits are not finite; try --dtype float32, or check the checkpoint"
    )


def _until(ids: Sequence[int], stop: frozenset[int]) -> list[int]:
    """The ids before the first stop token."""
    end = next((place for place, token in enumerate(ids) if token in stop), len(ids))
    return list(ids[:end])


def said(ids: Sequence[int], split: Split, asked: Tokenization, cleanup: Cleanup) -> str:
    """The text of a generation, cut at the split's first stop word and stripped."""
    text = decode(asked.tokenizer, ids, cleanup)
    for word in split.stop_words:
        text = text.split(word, 1)[0]
    return text.strip()


@torch.no_grad()
def share_clean(
    texts: Sequence[str], *, model: Any, tokenizer: Any, max_tokens: int
) -> list[float]:
    """Probability of a classifier's class 0, "clean", for each text, cut to `max_tokens`."""
    found: list[float] = []
    for start in range(0, len(texts), FLUENCY_BATCH):
        batch = tokenizer(
            list(texts[start : start + FLUENCY_BATCH]),
            padding=True,
            truncation=True,
            max_length=max_tokens,
            return_tensors="pt",
        ).to(model.device)
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
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        if not any("SequenceClassification" in one for one in config.architectures or ()):
            raise ValueError(f"it is a {(config.architectures or ['model without a name'])[0]}")
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        model: Any = AutoModelForSequenceClassification.from_pretrained(
            name, use_safetensors=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{name}: is not a text classifier ({reason})") from error
    return functools.partial(
        share_clean, model=model.to(device).eval(), tokenizer=tokenizer, max_tokens=max_tokens
    )
