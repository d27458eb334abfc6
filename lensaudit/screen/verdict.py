"""The verdict over all views: a sentence a model."""

from collections.abc import Iterable, Iterator

from lensaudit.gym.verdict import Combined


def sentences(found: Iterable[Combined]) -> Iterator[str]:
    """What may be said of each model, and which views disagree."""
    for one in found:
        yield one.sentence
        if one.disagreement is not None:
            yield f"  views disagree: {one.disagreement}"
