"""The models of a run by their roles, each opened once, and told apart by their weights."""

from collections.abc import Sequence

from lensaudit.models.checkpoint import Checkpoint, in_role, open_checkpoint, place_of
from lensaudit.models.hashing import looking
from lensaudit.models.registry import anchors_of, load_registry, resolve
from lensaudit.results.brought import without_ends
from lensaudit.results.roles import check_roles
from lensaudit.settings import Place


def brought_along(
    sources: Sequence[str],
    full: Sequence[str],
    never: Sequence[str],
    registry: Place | None = None,
) -> tuple[tuple[str, ...], str | None]:
    """Sources of a list without those that stand in another role; and a remark on these, if any.

    Nothing is fetched, and what earlier processes hashed is believed.

    Raises:
        InputError: no such name, or files that are missing or broken.
    """
    known = load_registry(registry)
    with looking():
        ends = [place_of("full", resolve(name, known)) for name in full]
        ends += [place_of("retain", resolve(name, known)) for name in never]
        every = {name: place_of("source", resolve(name, known)) for name in sources}
    kept, told = without_ends([*every.values()], ends)
    return tuple(name for name, one in every.items() if one in kept), told


def open_family(
    sources: Sequence[str],
    full: str | None,
    never: Sequence[str] | None,
    registry: Place | None = None,
) -> tuple[Checkpoint, dict[str, Checkpoint], dict[str, Checkpoint]]:
    """`full`, and by name the models under attack and those that never knew, each opened once.

    Args:
        sources: under attack; a name counts once.
        full: None: the one of the sources' family.
        never: None: the family's `retain`.
        registry: file that adds names.

    Raises:
        InputError: no such name, files that are missing or broken, or weights in two roles; or as
            `anchors_of`.
    """
    known = load_registry(registry)
    full, usual = anchors_of(sources, full, never, known, without=never is not None)
    never = usual if never is None else never
    names = dict.fromkeys((full, *never, *sources))
    opened = {name: open_checkpoint(resolve(name, known)) for name in names}
    check_roles(
        [
            *in_role("source", *(opened[name] for name in dict.fromkeys(sources))),
            *in_role("full", opened[full]),
            *in_role("retain", *(opened[name] for name in never)),
        ]
    )
    of_sources, of_never = ({name: opened[name] for name in some} for some in (sources, never))
    return opened[full], of_sources, of_never
