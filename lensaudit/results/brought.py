"""Which models that a pattern, a list or a project file brings along may be sources?"""

from collections.abc import Sequence

from lensaudit.results.roles import InRole, clash


def without_ends(
    brought: Sequence[InRole], ends: Sequence[InRole]
) -> tuple[list[InRole], str | None]:
    """Sources that a pattern, a list or a project file brought along, without `full` and the like.

    Whoever names such a model as the source by itself is refused (`check_roles`).

    Args:
        brought: the sources.
        ends: the models in the other roles.

    Returns:
        Those that may be sources, and a remark on the others; None: there are none.

    >>> full = InRole("full", "b", "1")
    >>> kept, told = without_ends([InRole("source", "a", "1"), InRole("source", "c", "2")], [full])
    >>> [one.name for one in kept], told
    (['c'], 'left out of the sources: a is full b')
    """
    same = {one: end for one in brought for end in reversed(ends) if clash([one, end]) is not None}
    told = ", ".join(f"{one.name} is {end.role} {end.name}" for one, end in same.items())
    kept = [one for one in brought if one not in same]
    return kept, f"left out of the sources: {told}" if told else None
