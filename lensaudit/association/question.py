"""What does `know` ask? Its settings beside a depth, and one hash of what decides it."""

from collections.abc import Sequence

from lensaudit.association.settings import KnowSettings, quick
from lensaudit.auditing.question import content_key, rows_hash
from lensaudit.data.candidates import facts_of
from lensaudit.data.neutral import neutral_of
from lensaudit.data.tofu import forget_set
from lensaudit.errors import InputError
from lensaudit.files import read_text
from lensaudit.models.registry import base_spec, default_data, load_registry, resolve
from lensaudit.patching.settings import PatchSettings
from lensaudit.settings import Caches, Names, Precision, Rows, path_of, shared
from lensaudit.text import digest


def know_key(source: str, settings: KnowSettings) -> str:
    """Content hash of all that decides what `know` says of a model; 32 hex digits.

    Raises:
        InputError: a name, a file or a setting is wrong; or the source is behind an address, which
            nobody vouches for.
    """
    registry = load_registry(settings.registry)
    data = str(settings.data or default_data(source, settings.registry))
    models = {"source": resolve(source, registry)}
    if base := base_spec([*models.values()], settings.base, registry):
        models["base"] = base
    models |= {f"retain {name}": resolve(name, registry) for name in settings.retain}
    rows = forget_set(data, exclude=settings.exclude, limit=settings.limit)
    try:
        found = neutral_of(data, rows, validity_data=path_of(settings.retain_data))
        neutral = [rows_hash(found.fit), rows_hash(found.validity)]
    except InputError as error:
        neutral = [str(error)]
    placebos = rows_hash(facts_of(data, rows)[0]) if settings.placebos else None
    names = path_of(settings.strangers)
    asked = {"placebos": placebos, "people": None if names is None else digest(read_text(names))}
    return content_key(settings, models, rows=rows_hash(rows), neutral=neutral, **asked)


def asked_of_know(source: str, asked: PatchSettings, controls: Sequence[str]) -> KnowSettings:
    """What is asked of who has what beside a depth: of the same rows, and the same rows to keep.

    Args:
        source: that is asked.
        asked: what `patch` is asked.
        controls: models that never saw the facts; the source is none.
    """
    shares = shared(asked, Names, Rows, Precision, Caches, retain_data=asked.validity_data)
    return quick(tuple(one for one in controls if one != source), **shares)
