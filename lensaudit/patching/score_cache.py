"""Scores and texts of patched models, kept by content: none is computed twice.

Scores are span log-probs of `full` with one source patched in, by example and layer; S1, S2 and the
calibration rows are scores of different sources. Texts are what a model says after each prompt:
unpatched, or with one source patched in, by layer. Thresholds are applied on reading, so nothing
here depends on tau. Keys are content hashes of everything that determines what is kept.
"""

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.data.spans import Encoded
from lensaudit.errors import WorkError
from lensaudit.models.conditions import Conditions
from lensaudit.patching.options import ANSWER_TOKENS, ResolvedSettings
from lensaudit.progress import Notice
from lensaudit.results.ledger import Ledger, ledger_path
from lensaudit.results.manifest import computed_by
from lensaudit.text import digest

SCORE_ALGORITHM = 1
"""Raised when a change of code changes scores."""
TEXT_ALGORITHM = 1
"""Raised when a change of code changes texts."""
UNPATCHED = -1
"""Stands for the layer of a text that was generated without a patch."""
DIGITS = 3
"""Of what is kept by token: it is looked at, and no score is computed from it."""
ByToken = list[list[float]]
"""Log-probability, nats, of each token of one span by layer."""


class KeptByContent:
    """A ledger under the key of everything its lines depend on; each finished batch survives."""

    kind: ClassVar[str]
    """Of the ledger, and its folder."""
    of: ClassVar[str] = "example"
    """Field of a line: whose it is."""
    by_layer: ClassVar[tuple[str, ...]] = ()
    """Fields of a line with a value for each layer."""

    def __init__(self, root: Path, key: Mapping[str, Any], name: str, notice: Notice | None = None):
        self.path = ledger_path(root / self.kind, name, key)
        self.ledger = Ledger(self.path, self.kind, key, notice=notice)
        self.known: dict[str, Any] = {}
        self.forget(0)

    def forget(self, n: int) -> None:
        """Know nothing of what the first `n` lines say; they stay on disk."""
        self.known.clear()
        for row in self.ledger.rows[n:]:
            self._merge(row)

    def supersede(self, n: int) -> int:
        """Drop those of the first `n` lines that later ones repeat; returns how many are left."""
        left: list[Any] = []

        def newest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
            again: dict[str, set[str]] = {}
            for row in rows[n:]:
                known = again.setdefault(row[self.of], set())
                known.update(*(row[one] for one in self.by_layer[:1]))
            found = (self._without(row, again) for row in rows[:n])
            left[:] = [one for one in found if one is not None]
            return [*left, *rows[n:]]

        Ledger(self.path, self.kind, self.ledger.key).exchange(newest)
        return len(left)

    def _without(
        self, row: Mapping[str, Any], again: Mapping[str, set[str]]
    ) -> Mapping[str, Any] | None:
        """A line without the layers that were computed again; None where nothing is left."""
        if row[self.of] not in again:
            return row
        known = again[row[self.of]]
        left = {
            name: {layer: one for layer, one in row[name].items() if layer not in known}
            for name in self.by_layer
            if name in row
        }
        return {**row, **left} if any(left.values()) else None

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep a finished batch."""
        self.ledger.append(rows)
        for row in rows:
            self._merge(row)

    def _merge(self, row: Mapping[str, Any]) -> None:
        raise NotImplementedError


def score_key(full: Conditions, donor: str, settings: ResolvedSettings) -> dict[str, Any]:
    """Everything that determines patched scores, beside the examples.

    Args:
        full: how it runs.
        donor: what decides the streams that are patched in: weights, and a map or other rows.
        settings: of the run.
    """
    conditions = full.document()
    return {
        "full": conditions.pop("weights"),
        "donor": donor,
        **conditions,
        "scope": settings.scope,
        "component": settings.component,
        "last_layer": settings.last_layer,
        "engine": settings.computed_with,
        "measure": settings.measure,
        "algorithm": SCORE_ALGORITHM,
    }


@dataclass
class ScoreEntry:
    """Scores of one example, nats per token."""

    baseline: float
    """Of the batch that came first."""
    scores: dict[int, float] = field(default_factory=dict)
    """Layer -> span log-prob with the source patched in there."""
    computed_by: dict[int, str] = field(default_factory=dict, compare=False)
    """Layer -> the versions that computed it; see `records.computed_by`."""
    by_token: dict[int, list[float]] = field(default_factory=dict, compare=False)
    """Layer -> log-prob of each token of the span, nats; only where streams were read."""
    baselines: dict[int, float] = field(default_factory=dict, compare=False)
    """Layer -> baseline of the batch that scored it: in bfloat16 those of two batches differ."""

    def delta(self, layer: int) -> float:
        """Baseline minus score, both of one batch; NaN where there is no score."""
        return self.baselines.get(layer, self.baseline) - self.scores.get(layer, math.nan)


class ScoreCache(KeptByContent):
    """Entries by `example_hash`."""

    kind = "scores"
    by_layer = ("scores", "by_token")

    def _merge(self, row: Mapping[str, Any]) -> None:
        entry = self.known.setdefault(row["example"], ScoreEntry(row["baseline"]))
        scores = {int(layer): score for layer, score in row["scores"].items()}
        entry.scores |= scores
        entry.baselines |= dict.fromkeys(scores, row["baseline"])
        entry.by_token |= {int(at): values for at, values in row.get("by_token", {}).items()}
        entry.computed_by |= dict.fromkeys(scores, row["computed_by"])

    def computed_by(self, encoded: Sequence[Encoded], layers: Sequence[int]) -> dict[str, int]:
        """Versions -> how many scores of these examples and layers they computed."""
        entries = filter(None, map(self.entry, encoded))
        found = Counter(entry.computed_by.get(at) for entry in entries for at in layers)
        return {by: found[by] for by in sorted(filter(None, found))}

    def missing(self, encoded: Encoded, layers: Sequence[int]) -> list[int]:
        """The layers of an example that have no score yet."""
        entry = self.entry(encoded)
        return [layer for layer in layers if entry is None or layer not in entry.scores]

    def lacks(self, encoded: Encoded, layers: Sequence[int]) -> bool:
        """Whether something of an example, if only the baseline, is still to be computed."""
        return self.entry(encoded) is None or bool(self.missing(encoded, layers))

    def entry(self, encoded: Encoded) -> ScoreEntry | None:
        """What is known of an example."""
        return self.known.get(example_hash(encoded))

    def baselines(self, encoded: Sequence[Encoded]) -> Float[Tensor, " batch"]:
        """Span log-prob of the unpatched `full`, nats per token."""
        return torch.tensor(
            [self.known[example_hash(e)].baseline for e in encoded], dtype=torch.float32
        )

    def deltas(
        self, encoded: Sequence[Encoded], layers: Sequence[int]
    ) -> Float[Tensor, "batch layer"]:
        """Baseline minus patched, nats per token; NaN where no score was asked for."""
        entries = map(self.entry, encoded)
        rows = [[one.delta(at) if one else math.nan for at in layers] for one in entries]
        return torch.tensor(rows, dtype=torch.float64).reshape(len(encoded), len(layers)).float()

    def add(self, scored: Sequence[tuple[Encoded, ScoreEntry]]) -> None:
        """Append a finished batch.

        Raises:
            WorkError: a score is not finite.
        """
        rows = []
        for encoded, entry in scored:
            if not all(map(math.isfinite, [entry.baseline, *entry.scores.values()])):
                raise WorkError(
                    f"example {encoded.idx}: a score is not finite; the model's logits overflow, "
                    "try --dtype float32"
                )
            tokens = {
                str(at): [round(one, DIGITS) for one in values]
                for at, values in entry.by_token.items()
            }
            rows.append(
                {
                    "example": example_hash(encoded),
                    "idx": encoded.idx,
                    "baseline": entry.baseline,
                    "scores": {str(layer): score for layer, score in entry.scores.items()},
                    "computed_by": computed_by(),
                    **({"by_token": tokens} if tokens else {}),
                }
            )
        self.append(rows)


@functools.lru_cache(maxsize=1 << 14)
def example_hash(encoded: Encoded) -> str:
    """Content hash of what a score depends on: tokens and span, not the example's number."""
    return digest([encoded.token_ids, encoded.n_prompt, encoded.start, encoded.end])


def text_key(
    model: Conditions, *, donor: str, last_layer: str, max_new_tokens: int, stop: frozenset[int]
) -> dict[str, Any]:
    """Everything that determines generated texts, beside the prompts.

    Args:
        model: that speaks, and how it runs.
        donor: content hash of the weights that are patched in; empty: no patch.
        last_layer: what is patched in there; empty: no patch.
        max_new_tokens: of a text.
        stop: tokens that end it.
    """
    conditions = model.document()
    return {
        "model": conditions.pop("weights"),
        "donor": donor,
        **conditions,
        "last_layer": last_layer,
        "max_new_tokens": max_new_tokens,
        "stop": sorted(stop),
        "algorithm": TEXT_ALGORITHM,
    }


class TextCache(KeptByContent):
    """Texts by `prompt_hash` and layer."""

    kind = "texts"
    of = "prompt"
    by_layer = ("texts",)

    def _merge(self, row: Mapping[str, Any]) -> None:
        texts = {int(at): text for at, text in row["texts"].items()}
        self.known.setdefault(row["prompt"], {}).update(texts)

    def missing(self, encoded: Encoded, layers: Sequence[int]) -> list[int]:
        """The layers whose text is not here yet."""
        known = self.known.get(prompt_hash(encoded), {})
        return [layer for layer in layers if layer not in known]

    def texts(self, encoded: Encoded, layers: Sequence[int]) -> list[str]:
        """What was said with each layer patched; all of them must be here."""
        return [self.known[prompt_hash(encoded)][layer] for layer in layers]

    def add(self, said: Mapping[Encoded, Mapping[int, str]]) -> None:
        """Append a finished batch: texts by example and layer."""
        self.append(
            [
                {
                    "prompt": prompt_hash(encoded),
                    "idx": encoded.idx,
                    "texts": {str(layer): text for layer, text in texts.items()},
                }
                for encoded, texts in said.items()
                if texts
            ]
        )


def prompt_hash(encoded: Encoded) -> str:
    """Content hash of the prompt's tokens: all that a greedy continuation depends on."""
    return digest(encoded.token_ids[: encoded.n_prompt])


ANSWER_ALGORITHM = 1
"""Raised when a change of code changes answers."""


def answer_key(model: Conditions, stop: frozenset[int]) -> dict[str, Any]:
    """Everything that determines greedy answers of a model by itself, beside the prompts."""
    return {
        **model.document(),
        "max_new_tokens": ANSWER_TOKENS,
        "stop": sorted(stop),
        "answers": ANSWER_ALGORITHM,
    }


def prompt_key(ids: Sequence[int]) -> str:
    """Content hash of a prompt's tokens."""
    return digest(list(ids))


class AnswerCache(KeptByContent):
    """Greedy answers of a model by itself, by `prompt_key`: tokens and text."""

    kind = "texts"
    of = "prompt"

    def _merge(self, row: Mapping[str, Any]) -> None:
        self.known[row["prompt"]] = (tuple(row["ids"]), row["text"])

    def add(
        self,
        prompts: Sequence[Sequence[int]],
        said: Sequence[Sequence[int]],
        texts: Sequence[str],
    ) -> None:
        """Append a finished batch."""
        rows = zip(prompts, said, texts, strict=True)
        self.append(
            [{"prompt": prompt_key(ids), "ids": list(new), "text": text} for ids, new, text in rows]
        )

    def finished(self, prompt: Sequence[int]) -> tuple[int, ...] | None:
        """The tokens of an answer that came to its end; None: it did not, or was not asked for."""
        ids, _ = self.known.get(prompt_key(prompt), (None, ""))
        return ids if ids is not None and len(ids) < ANSWER_TOKENS else None


class OwnAnswerCache(KeptByContent):
    """Log-prob of a span, nats per token, and whether all of it comes first, by `example_hash`."""

    kind = "said"

    def _merge(self, row: Mapping[str, Any]) -> None:
        self.known[row["example"]] = (row["logprob"], row["exact"])

    def add(
        self, bucket: Sequence[Encoded], logprob: Sequence[float], hits: Sequence[float]
    ) -> None:
        """Append a finished batch."""
        rows = zip(bucket, logprob, hits, strict=True)
        self.append(
            [{"example": example_hash(e), "logprob": p, "exact": hit == 1.0} for e, p, hit in rows]
        )
