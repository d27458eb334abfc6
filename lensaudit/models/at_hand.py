"""Whether a model of the Hub can be had, asked before anything takes time."""

from lensaudit.hub import reachable
from lensaudit.models.hub_files import fetch
from lensaudit.models.registry import ModelSpec


def check_at_hand(spec: ModelSpec) -> None:
    """Refuse a Hub model that can neither be fetched nor is kept, before anything takes time.

    Raises:
        InputError: there is no network, and it is not in the cache.
    """
    for one in (spec, spec.adapter):
        if one is not None and one.local is None and not reachable():
            fetch(one)
