"""Which authors a direction is estimated on, which it is chosen on, and which it is scored on.

A patch of an example's own activations carries its answer; a direction from other authors cannot.
So what a direction from T brings back on V was suppressed, not erased (`steering.md` section 6).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lensaudit.data.spans import Encoded
from lensaudit.errors import InputError
from lensaudit.steer.settings import DirectionSettings

N_FOLDS = DirectionSettings.n_folds
DEV_SHARE = 0.2
"""Of the authors of T: layer and strength are chosen on them."""

Group = int | str


@dataclass(frozen=True)
class Fold:
    """A split of the authors in three."""

    number: int
    estimate: frozenset[Group]
    dev: frozenset[Group]
    score: frozenset[Group]

    def rows(self, encoded: Sequence[Encoded], part: frozenset[Group]) -> list[int]:
        """Places of a part's examples."""
        return [at for at, e in enumerate(encoded) if e.group in part]


def author_folds(groups: Sequence[Group], n_folds: int = N_FOLDS) -> list[Fold]:
    """Folds in which every author is scored once.

    >>> fold = author_folds(["a", "b", "c", "d"], 2)[0]
    >>> sorted(fold.estimate), sorted(fold.dev), sorted(fold.score)
    (['d'], ['b'], ['a', 'c'])

    Raises:
        InputError: too few authors to estimate, choose and score on different ones.
    """
    authors = sorted(dict.fromkeys(groups), key=lambda g: (str(type(g)), g))
    n_folds = min(n_folds, len(authors))
    if len(authors) < 3 or n_folds < 2:
        raise InputError(
            f"found {len(authors)} authors, wanted at least 3 (and 2 folds): a direction is "
            "estimated, chosen and scored on different ones; rows name theirs by `group`"
        )
    folds = []
    for number in range(n_folds):
        score = frozenset(authors[number::n_folds])
        rest = [author for author in authors if author not in score]
        # the dev authors rotate with the fold
        rest = rest[number % len(rest) :] + rest[: number % len(rest)]
        n_dev = min(len(rest) - 1, max(1, round(DEV_SHARE * len(rest))))
        folds.append(Fold(number, frozenset(rest[n_dev:]), frozenset(rest[:n_dev]), score))
    return folds
