"""Texts that were generated once are never generated again; the sibling of `scorebook`.

A book holds what a model says after each prompt: unpatched, or with one donor patched in, by
layer. Exact match and thresholds are applied on reading.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lensaudit.data.spans import Encoded
from lensaudit.files import append_jsonl, digest, make_folder, read_appended, slug

ALGORITHM = 1
"""Raised when a change of code changes texts."""

UNPATCHED = -1
"""Stands for the layer of a text that was generated without a patch."""


@dataclass(frozen=True)
class TextKey:
    """Everything that determines generated texts, beside the prompts."""

    model: str
    """Content hash of the weights that generate."""
    donor: str
    """Content hash of the weights the activations come from; empty: no patch."""
    tokenizer: str
    dtype: str
    device_class: str
    attention: str
    batch_policy: str
    last_layer: str
    max_new_tokens: int
    stop: tuple[int, ...]
    algorithm: int = ALGORITHM


class TextBook:
    """An append-only file of texts; every finished batch survives a kill."""

    def __init__(self, root: Path, key: TextKey, name: str):
        self.path = root / "texts" / f"{slug(name)}--{digest(asdict(key))}.jsonl"
        self.key = key
        self._texts: dict[str, dict[int, str]] = {}
        for row in read_appended(self.path):
            if "prompt" in row:
                self._merge(row["prompt"], row["texts"])

    def _merge(self, prompt: str, texts: Mapping[str, str]) -> None:
        self._texts.setdefault(prompt, {}).update({int(at): text for at, text in texts.items()})

    def emptied(self) -> "TextBook":
        """This book without its texts, on disk too."""
        self.path.unlink(missing_ok=True)
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
        make_folder(self.path.parent)
        rows = [
            {
                "prompt": prompt_hash(encoded),
                "idx": encoded.idx,
                "texts": {str(layer): text for layer, text in texts.items()},
            }
            for encoded, texts in said.items()
            if texts
        ]
        header = [] if self.path.exists() else [{"key": asdict(self.key)}]
        append_jsonl(self.path, [*header, *rows])
        for row in rows:
            self._merge(row["prompt"], row["texts"])


def prompt_hash(encoded: Encoded) -> str:
    """Content hash of the prompt's tokens: all that a greedy continuation depends on."""
    return digest(encoded.token_ids[: encoded.n_prompt])
