"""One model that is asked questions: its prompts, its batches, its end of text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lensaudit.models.bridge import DTYPES, TransformerBridge, load
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.patching.generation import ends_of, rows_that_fit
from lensaudit.steer.edits import NO_EDITS, Edits
from lensaudit.steer.form import Format, prompt_ids
from lensaudit.steer.generate import MAX_NEW_TOKENS, TEMPERATURE, continuations, draws_of

MOST_ROWS = 64


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn."""

    temperature: float = TEMPERATURE
    max_new_tokens: int = MAX_NEW_TOKENS
    seed: int = 0


@dataclass(frozen=True)
class Ask:
    """One question, asked once."""

    key: str
    """What its random numbers belong to."""
    question: str
    system: str | None = None


@dataclass(frozen=True)
class Speaker:
    """A loaded model and how it is written to."""

    model: TransformerBridge
    form: Format
    sampling: Sampling
    memory_bytes: int = 2 << 30
    batch_size: int | None = None

    def answers(
        self, asks: Sequence[Ask], edits: Edits = NO_EDITS
    ) -> Iterator[list[tuple[Ask, str]]]:
        """What it says, batch by batch, in the order of `asks`."""
        tokenizer = self.model.tokenizer
        prompts = [prompt_ids(tokenizer, self.form, one.question, one.system) for one in asks]
        n_pos = max(map(len, prompts), default=0) + self.sampling.max_new_tokens
        size = self.batch_size or min(
            MOST_ROWS, rows_that_fit(self.model, n_pos, self.memory_bytes)
        )
        for start in range(0, len(asks), size):
            some = asks[start : start + size]
            said = continuations(
                self.model,
                prompts[start : start + size],
                max_new_tokens=self.sampling.max_new_tokens,
                stop=ends_of(self.model),
                edits=edits,
                draws=draws_of(
                    [one.key for one in some],
                    n_steps=self.sampling.max_new_tokens,
                    seed=self.sampling.seed,
                    temperature=self.sampling.temperature,
                ),
            )
            texts = [tokenizer.decode(list(ids), skip_special_tokens=True).strip() for ids in said]
            yield list(zip(some, texts, strict=True))


def speaker_of(
    checkpoint: Checkpoint,
    *,
    form: Format,
    sampling: Sampling,
    dtype: str,
    device: str,
    memory_bytes: int = 2 << 30,
    batch_size: int | None = None,
) -> Speaker:
    """Load the model of a checkpoint."""
    model = load(checkpoint, dtype=DTYPES[dtype], device=device)
    return Speaker(model, form, sampling, memory_bytes, batch_size)
