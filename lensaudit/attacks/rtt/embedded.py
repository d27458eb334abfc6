"""The rows that come along, as they lie in their files."""

from typing import Any, Literal

from lensaudit.data.facts import EMBEDDED
from lensaudit.data.rows import read_values
from lensaudit.files import read_json


def embedded_rows(part: Literal["forget", "retain"]) -> list[dict[str, Any]]:
    """The annotated rows that come along, each with its paraphrases and perturbed answers."""
    beside = "forget10_perturbed" if part == "forget" else "retain_perturbed"
    rows, variants = read_json(EMBEDDED / f"{part}.json"), read_values(EMBEDDED / f"{beside}.jsonl")
    return [{**other, **row} for row, other in zip(rows, variants, strict=True)]
