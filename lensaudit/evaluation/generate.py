"""Greedy continuations of prompts, the fluency of what was said, and the text of both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from lensaudit.data.chat import Cleanup, decode
from lensaudit.data.suites import Split
from lensaudit.errors import InputError, WorkError
from lensaudit.evaluation.texts import Tokenization, by_length, padded
from lensaudit.models.generation import stop_ids

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
    for places in by_length(prompts, batch_size):
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


@dataclass(frozen=True)
class Classifier:
    """A text classifier whose class 0 is "clean" text."""

    name: str
    model: Any
    tokenizer: Any

    @torch.no_grad()
    def clean(self, texts: Sequence[str], *, max_tokens: int) -> list[float]:
        """Probability of class 0 for each text, cut to `max_tokens`."""
        found: list[float] = []
        for start in range(0, len(texts), FLUENCY_BATCH):
            batch = self.tokenizer(
                list(texts[start : start + FLUENCY_BATCH]),
                padding=True,
                truncation=True,
                max_length=max_tokens,
                return_tensors="pt",
            ).to(self.model.device)
            found += self.model(**batch).logits.float().softmax(-1)[:, 0].tolist()
        return found


def open_classifier(name: str, device: str) -> Classifier:
    """The classifier in a folder or Hub repository.

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
    return Classifier(name, model.to(device).eval(), tokenizer)
