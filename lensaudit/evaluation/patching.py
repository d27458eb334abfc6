"""The pass that looks inside: retain and the model patched into `full`, layer by layer.

TransformerLens is imported when the pass is asked for, not before: most evaluations do without.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from lensaudit.data.suites import Split
from lensaudit.errors import Failure, InputError, VerificationError, WorkError, failure_in
from lensaudit.metrics.registry import ANNOTATED, Measured
from lensaudit.models.device import one_memory_error
from lensaudit.progress import Notice, unheard

if TYPE_CHECKING:
    from lensaudit.patching.session import Session

NO_RETAIN = (
    "no retain model was patched in: run `lensaudit audit --inside`, or `eval` with --retain "
    "(a log holds no activations)"
)


@dataclass
class Patching:
    """The patched passes of a model; its session is opened when a score is asked for."""

    model: str
    opened: Callable[[], "Session"]
    """Opens the models and encodes the annotated rows; raises InputError where it cannot."""
    notice: Notice = unheard
    _scored: dict[str, Measured[float] | Failure] = field(default_factory=dict, repr=False)

    @cached_property
    def session(self) -> "Session | InputError":
        """What is patched, or why nothing can be."""
        try:
            return self.opened()
        except InputError as error:
            return error

    def missing(self, score: str) -> str | None:
        """Why a score cannot be had; opens the models and encodes the examples to find out."""
        if isinstance(self.session, InputError):
            return failure_in(self.model, score, self.session).message
        return _said(broken) if (broken := self.failed(score)) else None

    def failed(self, score: str) -> Failure | None:
        """How a score broke, if it was tried and did."""
        found = self._scored.get(score)
        return found if isinstance(found, Failure) else None

    def scored(self, score: str) -> Measured[float] | Failure:
        """The rows of a score, patched once.

        A failure is kept as the reason of this score: the other metrics are worth having.
        """
        from lensaudit.evaluation.depth import score_inside  # seconds to import

        if isinstance(self.session, InputError):
            raise self.session
        if score not in self._scored:
            try:
                with one_memory_error():
                    self._scored[score] = score_inside(self.session, self.model, score)
            except (InputError, WorkError, VerificationError, torch.OutOfMemoryError) as error:
                broken = self._scored[score] = failure_in(self.model, score, error)
                self.notice(f"{score}: {_said(broken)}")
        return self._scored[score]

    @property
    def _known(self) -> "Session | None":
        """What is patched, where it was opened."""
        found = vars(self).get("session")
        return None if isinstance(found, InputError) else found

    @property
    def split(self) -> Split | None:
        """The annotated examples as a split; None while nothing is opened."""
        if (known := self._known) is None:
            return None
        rows = (
            replace(one, answers={"answer": one.answer, "entity": one.entity})
            for one in known.examples
        )
        return Split(ANNOTATED, str(known.settings.data), tuple(rows))

    def inputs(self) -> dict[str, Any]:
        """What was patched, for a manifest; empty where nothing was."""
        if (known := self._known) is None:
            return {}
        return {
            "patched_full": {"name": known.full.spec.name, "weights": known.full.weights},
            "patched_retain": {"name": known.retain.spec.name, "weights": known.retain.weights},
            "annotated": known.examples_hash,
        }


def _said(failure: Failure) -> str:
    return f"patching failed: {failure.message}"
