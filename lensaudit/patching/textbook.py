"""Texts that were generated once are never generated again; the sibling of `scorebook`.

A book holds what a model says after each prompt: unpatched, or with one source patched in, by
layer. Exact match and thresholds are applied on reading.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lensaudit.data.spans import Encoded
from lensaudit.files import digest
from lensaudit.models.conditions import Conditions
from lensaudit.progress import Notice
from lensaudit.results.ledger import Ledger, ledger_path
from lensaudit.results.schema import AtLayer

ALGORITHM = 1
"""Raised when a change of code changes texts."""

UNPATCHED = -1
"""Stands for the layer of a text that was generated without a patch."""


@dataclass(frozen=True, kw_only=True)
class TextKey(Conditions):
    """Everything that determines generated texts, beside the prompts; of the model that speaks."""

    source: str
    """Content hash of the weights the activations come from; empty: no patch."""
    last_layer: str
    max_new_tokens: int
    stop: tuple[int, ...]
    algorithm: int = ALGORITHM

    def document(self) -> dict[str, Any]:
        """What the key is the hash of."""
        own = super().document()
        # what a source is called in the books of the first release
        return {"model": own.pop("weights"), "donor": own.pop("source"), **own}


@dataclass(frozen=True)
class _Line:
    """What a line of a book must hold."""

    prompt: str
    texts: dict[AtLayer, str]


class TextBook:
    """A ledger of texts; every finished batch survives a kill."""

    def __init__(self, root: Path, key: TextKey, name: str, notice: Notice | None = None):
        record = key.document()
        path = ledger_path(root / "texts", name, record)
        self.key = key
        self.ledger = Ledger(path, "texts", record, record=_Line, notice=notice)
        self._texts: dict[str, dict[int, str]] = {}
        for row in self.ledger.rows:
            self._merge(row["prompt"], row["texts"])

    @property
    def path(self) -> Path:
        """The file."""
        return self.ledger.path

    def _merge(self, prompt: str, texts: Mapping[str, str]) -> None:
        self._texts.setdefault(prompt, {}).update({int(at): text for at, text in texts.items()})

    def emptied(self) -> "TextBook":
        """This book without its texts, on disk too."""
        self.ledger.clear()
        self._texts.clear()
        return self

    def missing(self, encoded: Encoded, layers: Sequence[int]) -> list[int]:
        """The layers whose text is not here yet."""
        known = self._texts.get(prompt_hash(encoded), {})
        return [layer for layer in layers if layer not in known]

    def texts(self, encoded: Encoded, layers: Sequence[int]) -> list[str]:
        """What was said with each layer patched; all of them must be here."""
        known = self._texts[prompt_hash(encoded)]
        return [known[layer] for layer in layers]

    def add(self, said: Mapping[Encoded, Mapping[int, str]]) -> None:
        """Append a finished batch: texts by example and layer."""
        rows = [
            {
                "prompt": prompt_hash(encoded),
                "idx": encoded.idx,
                "texts": {str(layer): text for layer, text in texts.items()},
            }
            for encoded, texts in said.items()
            if texts
        ]
        self.ledger.append(rows)
        for row in rows:
            self._merge(row["prompt"], row["texts"])


def prompt_hash(encoded: Encoded) -> str:
    """Content hash of the prompt's tokens: all that a greedy continuation depends on."""
    return digest(encoded.token_ids[: encoded.n_prompt])
