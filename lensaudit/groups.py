"""Which rows belong together, which are taken first, and how are they taken in batches?

A row's group is its author: what intervals count, what folds keep together and what no two splits
share. It stands under `group`, or else under `author`; a row with neither is a group of its own.

Two rows have one author where they name the same whole number, be it a number or text (1 and "1"),
or the same text. `named_group` reads it so for everybody. One author in two spellings would be
counted twice, so a set that names somebody so is refused (`author_key`).
"""

import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, TypeVar

AnyKey = TypeVar("AnyKey", bound=Hashable)
AnyRow = TypeVar("AnyRow")
Group = int | str
GROUPS = ("group", "author")
"""Fields that name a row's author; the first that says something counts."""
_OWN = "idx "
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")


def own_group(idx: int) -> str:
    """The group of a row that names none: text, so that it never equals a numbered one."""
    return f"{_OWN}{idx}"


def named_group(row: Mapping[str, Any]) -> Any:
    """What a row of a file says of its author, whatever that is; None where it says nothing.

    A blank text says nothing, as an empty cell of a table.

    >>> named_group({"author": "Ada"}), named_group({"group": "0", "author": "Ada"})
    ('Ada', 0)
    >>> named_group({"group": " ", "author": "Ada"}), named_group({"author": ""})
    ('Ada', None)
    """
    told = (row.get(key) for key in GROUPS)
    return numbered(next((one for one in told if one is not None and str(one).strip()), None))


def numbered(name: Any) -> Any:
    """A whole number that is written as text, as that number; anything else as it is.

    >>> numbered("1"), numbered("-1"), numbered("01"), numbered("@ada")
    (1, -1, '01', '@ada')
    """
    return int(name) if isinstance(name, str) and _WHOLE.fullmatch(name) else name


def normalised(text: str) -> str:
    r"""A text as it is compared: case, blanks and Unicode form do not count.

    >>> normalised("When  was Ada\nborn?") == normalised("when was ADA born?")
    True
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def author_key(group: object) -> str:
    """What all spellings of an author share: a leading @ or zero does not count either.

    >>> author_key("@Ada ") == author_key("ada"), author_key("01") == author_key(1)
    (True, True)
    """
    text = normalised(str(group))
    return text.lstrip("@").lstrip("0" if text.isdecimal() else "") or text


def natural(group: Group) -> str:
    """What authors are sorted by: numbers in a name count as numbers.

    >>> sorted([10, 9, "retain 10", "retain 9"], key=natural)
    [9, 10, 'retain 9', 'retain 10']
    """
    return re.sub(r"\d+", lambda digits: digits[0].zfill(20), str(group))


def is_group(value: Any) -> bool:
    """Can this name an author: a whole number or text?"""
    return isinstance(value, int | str) and not isinstance(value, bool)


def group_problem(row: Mapping[str, Any]) -> str | None:
    """What is wrong with a row's group.

    >>> group_problem({"author": 1.5}), group_problem({})
    ('author is 1.5, wanted a whole number or text', None)
    """
    named = named_group(row)
    if named is None or is_group(named):
        return None
    key = "group" if row.get("group") is named else "author"
    return f"{key} is {repr(named)[:40]}, wanted a whole number or text"


def group_of(row: Mapping[str, Any], idx: int) -> Group:
    """The group of a row of a file; its own where it names none that can be used."""
    named = named_group(row)
    return named if is_group(named) else own_group(idx)


def unit_of(groups: Iterable[object]) -> str:
    """What a group is called: `author`, or `row` where no row names one.

    >>> unit_of(["idx 0", "idx 1"]), unit_of([0, "idx 1"])
    ('row', 'author')
    """
    return "row" if all(map(is_own, groups)) else "author"


def assumption(groups: Iterable[object]) -> str | None:
    """What an interval over these groups takes for granted; None where every author is named.

    >>> assumption([0, 0, 1])
    >>> assumption(["idx 0", 7])
    '1 of 2 rows names no author and is counted as its own author: intervals may be too narrow'
    """
    listed = list(groups)
    own, n = sum(map(is_own, listed)), len(listed)
    if not own:
        return None
    verb = "names no author and is" if own == 1 else "name no author and are each"
    who = f"{own} of {n} rows {verb}" if own < n else "no row names an author: each row is"
    return f"{who} counted as its own author: intervals may be too narrow"


def spread(
    rows: Sequence[AnyRow], limit: int | None, group: Callable[[AnyRow], Hashable]
) -> list[AnyRow]:
    """At most `limit` rows over as many groups as there are, in the order of the rows.

    One row of each group, then a second of each, and so on: every limit takes all rows of a lower
    one. Rows that are groups of their own are taken from the start.

    >>> spread(["a1", "a2", "a3", "b1"], 3, lambda row: row[0])
    ['a1', 'a2', 'b1']
    """
    places = grouped((group(row), at) for at, row in enumerate(rows)).values()
    turns = sorted((turn, at) for own in places for turn, at in enumerate(own))
    return [rows[at] for at in sorted(at for _, at in turns[:limit])]


def batched(rows: Sequence[AnyRow], size: int) -> Iterator[Sequence[AnyRow]]:
    """Neighbours, `size` at a time; the last batch may be shorter.

    >>> list(batched("abcde", 2))
    ['ab', 'cd', 'e']
    """
    return (rows[start : start + size] for start in range(0, len(rows), size))


def grouped(pairs: Iterable[tuple[AnyKey, AnyRow]]) -> dict[AnyKey, list[AnyRow]]:
    """Values by key, in the order in which they come.

    >>> grouped([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    found: dict[AnyKey, list[AnyRow]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def by_length(
    rows: Sequence[Sized], size: int, *, longest_first: bool = False
) -> Iterator[Sequence[int]]:
    """Places of rows alike in length, at most `size` at once: padding is wasted work.

    Where the longest come first, what does not fit into memory fails at once, and later batches
    fit where earlier ones were.

    >>> list(by_length(["abc", "a", "ab"], 2))
    [[1, 2], [0]]
    """
    sign = -1 if longest_first else 1
    return batched(sorted(range(len(rows)), key=lambda at: (sign * len(rows[at]), at)), size)


def is_own(group: object) -> bool:
    """Does it stand for one row that names no author? Of rows of two files it says nothing."""
    return isinstance(group, str) and group.startswith(_OWN)
