"""The models of a directions audit and what they think: loaded once, read from caches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.activations.fill import CACHE_BATCH, fill, fingerprint_of_run
from lensaudit.activations.store import ActivationStore
from lensaudit.data.spans import Encoded
from lensaudit.directions.measure import Scores, scored
from lensaudit.models.bridge import DTYPES, TransformerBridge, load
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer
from lensaudit.progress import Tick
from lensaudit.steer.edits import NO_EDITS, Edits
from lensaudit.steer.generate import Format, prompt_ids

Role = Literal["full", "unlearned", "retain"]
ROLES: tuple[Role, ...] = ("full", "unlearned", "retain")
At = Literal["prefix", "span"]
"""Where activations are read: the last prefix token, or the mean over the entity's positions."""
Part = Literal["forget", "retain"]
Streams = Float[Tensor, "_ layer d_model"]


@dataclass(frozen=True)
class Runs:
    """How models are run."""

    dtype: str = "float32"
    device: str = "cpu"
    memory_bytes: int = 2 << 30
    root: Path = Path("activations")
    progress: Tick | None = None


@dataclass(frozen=True)
class Bench:
    """Three models of one base, and the two sets of questions."""

    models: Mapping[Role, TransformerBridge]
    checkpoints: Mapping[Role, Checkpoint]
    encoded: Mapping[Part, tuple[Encoded, ...]]
    questions: Mapping[Part, tuple[Encoded, ...]]
    """The same examples without any of the answer."""
    streams: Mapping[tuple[Role, Part], Streams]
    """After every block, one row per example."""
    asked: Mapping[Part, Streams]
    """Of the unlearned model at the last token of the question's prompt."""
    runs: Runs

    @property
    def n_layers(self) -> int:
        """Number of blocks."""
        return self.checkpoints["full"].n_layers

    def gap(
        self, minuend: Role, subtrahend: Role, rows: Sequence[int], part: Part = "forget"
    ) -> Float[Tensor, "layer d_model"]:
        """Mean difference of two models' streams over some examples, at every layer."""
        first, second = (self.streams[role, part][list(rows)] for role in (minuend, subtrahend))
        return (first.double() - second.double()).mean(0).float()

    def scored(
        self, role: Role, rows: Sequence[int], settings: Sequence[Edits], part: Part = "forget"
    ) -> Scores:
        """Scores of some examples under every setting."""
        chosen = [self.encoded[part][row] for row in rows]
        return scored(self.models[role], chosen, settings, memory_bytes=self.runs.memory_bytes)

    def plain(self, role: Role) -> Scores:
        """Scores of all forget examples without an intervention."""
        return self.scored(role, range(len(self.encoded["forget"])), [NO_EDITS])

    def similarity(self, layer: int) -> float:
        """Mean cosine of the full and the unlearned model's streams on retain examples.

        Models of one base stay near 1; below 0.9 their axes may not mean the same.
        """
        first, second = (self.streams[role, "retain"][:, layer] for role in ROLES[:2])
        return float(torch.nn.functional.cosine_similarity(first, second).mean())


def question_only(encoded: Encoded, tokenizer: object, form: Format, question: str) -> Encoded:
    """The prompt that ends where an answer begins; its last token is what a cache keeps."""
    ids = prompt_ids(tokenizer, form, question, None)
    return Encoded(encoded.idx, encoded.group, ids, len(ids), len(ids) - 1, len(ids))


def open_bench(
    checkpoints: Mapping[Role, Checkpoint],
    encoded: Mapping[Part, tuple[Encoded, ...]],
    texts: Mapping[Part, Mapping[int, str]],
    *,
    form: Format,
    at: At,
    runs: Runs,
) -> Bench:
    """Load the models, and read their streams from caches that are filled where they lack rows.

    Args:
        checkpoints: of one base; all three stay in memory.
        encoded: annotated examples with the prefix forced.
        texts: question of each example, by part and idx.
        form: how a question is asked where the model may say what it likes.
        at: where streams are read.
        runs: how models are run.
    """
    tokenizer = load_tokenizer(checkpoints["full"])
    questions: dict[Part, tuple[Encoded, ...]] = {
        part: tuple(question_only(e, tokenizer, form, texts[part][e.idx]) for e in rows)
        for part, rows in encoded.items()
    }
    models: dict[Role, TransformerBridge] = {
        role: load(one, dtype=DTYPES[runs.dtype], device=runs.device)
        for role, one in checkpoints.items()
    }

    def read(role: Role, rows: Sequence[Encoded], place: At) -> Streams:
        return _streams(checkpoints[role], lambda: models[role], rows, place, runs)

    asked: dict[Part, Streams] = {
        part: read("unlearned", rows, "prefix") for part, rows in questions.items()
    }
    streams: dict[tuple[Role, Part], Streams] = {
        (role, part): read(role, rows, at) for role in ROLES for part, rows in encoded.items()
    }
    return Bench(models, checkpoints, encoded, questions, streams, asked, runs)


def _streams(
    checkpoint: Checkpoint,
    loaded: Callable[[], TransformerBridge],
    rows: Sequence[Encoded],
    at: At,
    runs: Runs,
) -> Streams:
    fingerprint = fingerprint_of_run(
        checkpoint,
        rows,
        positions="span",
        dtype=runs.dtype,
        device=runs.device,
    )
    name = checkpoint.spec.name
    with fill(
        ActivationStore(runs.root),
        fingerprint,
        rows,
        name=name,
        load=loaded,
        batch_size=CACHE_BATCH,
        provenance={"made_by": "lensaudit steer audit", "model": name},
        progress=runs.progress,
    ) as activations:
        found = []
        for e in rows:
            wanted = range(e.start, e.end) if at == "span" else range(e.n_prompt - 1, e.n_prompt)
            example = activations.example(e.idx).at(torch.tensor(list(wanted)))
            found.append(example.resid.double().mean(1).float())
    return torch.stack(found)
