"""What does training on the answers bring back? A finished run of `lensaudit relearn --audit`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Len

from lensaudit.results.reading import Number


@dataclass(frozen=True, kw_only=True)
class ScoreChange:
    """The scores of one model before and after an attack, by what a table calls them."""

    model: str
    remark: str | None = None
    """That the attack did next to nothing; None where it did something."""
    before: Mapping[str, Number | None]
    """`uds`: high means forgotten; others: knows. None where nothing could be scored."""
    after: Mapping[str, Number | None]


@dataclass(frozen=True, kw_only=True)
class RelearnRecord:
    """`audit.json` of a relearning."""

    key: str = ""
    """Of the models, the training and what is asked."""
    shifts: Annotated[list[ScoreChange], Len(1)]
    """Of the model, then of `retain`, which had nothing to recover."""

    @property
    def source(self) -> str:
        """The model that is attacked."""
        return self.shifts[0].model
