"""One part of a model on its rows, from the cache: what readings of cached streams begin with."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from lensaudit.activations.parts import parts_of
from lensaudit.activations.store import Activations, ActivationStore
from lensaudit.auditing.cache import filled, opened_for
from lensaudit.auditing.doors import check_keywords
from lensaudit.auditing.settings import CacheSettings
from lensaudit.data.spans import Encoded
from lensaudit.progress import Tell, unheard
from lensaudit.settings import DtypeName, Kept, Place, Positions, named


@dataclass(frozen=True)
class Streams:
    """A complete cache, and what was asked."""

    activations: Activations
    encoded: tuple[Encoded, ...]
    """In the order of the data."""
    unscored: dict[int, str]
    """idx -> why the tokenizer lost its span."""
    dtype: str
    device: str


class Asked(TypedDict, total=False):
    """Which rows, and how a model runs on them: options of `lensaudit cache`."""

    data: Place | None
    exclude: Sequence[str]
    limit: int | None
    registry: Place | None
    dtype: DtypeName
    device: str
    batch_size: int | None
    memory: str
    activations: Place


def asked(
    call: str, given: Asked, *, positions: Positions, component: Kept = "resid"
) -> CacheSettings:
    """The settings of a cache, from the keywords of `call`.

    Raises:
        TypeError: a keyword that it has not.
        InputError: no such component.
    """
    check_keywords(call, list(Asked.__annotations__), given)
    (part,) = parts_of(component)
    data = given.get("data")
    return CacheSettings(
        component=part,
        positions=positions,
        **{**given, "data": data and named(data), "exclude": tuple(given.get("exclude", ()))},
    )


@contextmanager
def streams(model: str, settings: CacheSettings, *, progress: Tell = unheard) -> Iterator[Streams]:
    """One part of a model on its rows, from the cache; the model runs only where there is none.

    A cache of all positions serves where the span is wanted.

    Raises:
        InputError: before any work.
    """
    opened = opened_for(model, settings)
    (fingerprint,) = opened.fingerprints.values()
    store = ActivationStore(Path(settings.activations))
    found = store.open(replace(fingerprint, positions="all"))
    with found or next(filled(model, settings, opened, progress)) as activations:
        yield Streams(activations, opened.encoded, opened.unscored, opened.dtype, opened.device)
