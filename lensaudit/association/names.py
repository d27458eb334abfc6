"""Who does not exist, but is called as the subjects are? Names with the cues of a real one.

A name tells script, gender and origin, and a model that has never heard of a person guesses from
them. So ignorance about a person is what a model says of invented people called alike.
"""

import json
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random

from lensaudit.files import digest

_DATA = Path(__file__).parent / "names.json"


def invented_names(name: str, n: int, *, others: Sequence[str] = ()) -> tuple[str, ...]:
    """`n` names that nobody in the set has, called like `name`; the same for the same name.

    Given and family names of its origin and gender where one of its parts is known; else parts of
    the others' names put together anew, where none of its origin is known.

    Args:
        name: of a real subject.
        n: how many.
        others: names of all subjects: none of them is given out.
    """
    random = Random(digest(["invented", name, n]))
    known, found = {one.casefold() for one in (*others, name)}, dict[str, None]()
    pairs = _pairs(*(_parts_like(name) or _parts_of([*others, name])))
    random.shuffle(pairs)
    for one in (*pairs, *_varied(pairs, random)):
        if one.casefold() not in known:
            found[one] = None
        if len(found) == n:
            break
    return tuple(found)


def _pairs(given: Sequence[str], family: Sequence[str]) -> list[str]:
    """Every given name with every family name; of single words the halves put together anew.

    >>> _pairs(["Japan", "Peru"], [])
    ['Japan', 'Japru', 'Pean', 'Peru']
    """
    if family:
        return [f"{first} {last}" for first in given for last in family]
    return [
        one[: (len(one) + 1) // 2] + two[(len(two) + 1) // 2 :] for one in given for two in given
    ]


@cache
def _origins() -> dict[str, dict[str, list[str]]]:
    return json.loads(_DATA.read_text(encoding="utf-8"))["origins"]


def _parts_like(name: str) -> tuple[list[str], list[str]] | None:
    """Given and family names of the origin, and the gender, that the name shows."""
    parts = {_folded(part) for part in name.split()}
    for origin in _origins().values():
        shown = {kind for kind, known in origin.items() if parts & {_folded(k) for k in known}}
        if shown:
            genders = sorted(shown - {"family"}) or ["female", "male"]
            return [one for gender in genders for one in origin[gender]], origin["family"]
    return None


def _parts_of(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """First and last parts of the names themselves, those in one script with the last alone."""
    script = _script(names[-1])
    alike = [one.split() for one in names if _script(one) == script]
    return [one[0] for one in alike], [one[-1] for one in alike if len(one) > 1]


def _varied(pairs: Sequence[str], random: Random) -> Iterator[str]:
    """Names with an initial between: there are always enough."""
    for letter in random.sample("ABCDEFGHJKLMNPRSTVW", 19):
        for one in pairs:
            first, _, last = one.partition(" ")
            yield f"{first} {letter}. {last}".strip()


def _folded(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", text.casefold()) if c.isalnum())


def _script(name: str) -> str:
    """The script of the first letter, e.g. LATIN."""
    letter = next((c for c in name if c.isalpha()), "A")
    return unicodedata.name(letter, "LATIN").split()[0]
