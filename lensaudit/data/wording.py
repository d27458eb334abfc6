"""How alike are two questions in their words, whoever they are about?"""

import re

from lensaudit.data.facts import Fact

_WORD = re.compile(r"[^\W\d_][\w']*")


def wording(row: Fact) -> frozenset[str]:
    """The words of question and answer that name nothing: in lower case, and the question's first.

    >>> sorted(wording(Fact(0, "When was Ada born?", "Ada was born in May.", "", "May", 0)))
    ['born', 'in', 'was', 'when']
    """
    asked, said = _WORD.findall(row.question), _WORD.findall(row.answer)
    first = [one.casefold() for one in asked[:1]]
    found = frozenset((*first, *(one for one in (*asked, *said) if one.islower())))
    return found or frozenset(("",))


def likeness(a: frozenset[str], b: frozenset[str]) -> float:
    """Jaccard: shared words of all words.

    >>> likeness(frozenset("ab"), frozenset("bc"))
    0.3333333333333333
    """
    return len(a & b) / len(a | b)
