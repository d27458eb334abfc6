"""How much of an audit is left to do?"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lensaudit.auditing.audit import OpenedAudit
from lensaudit.auditing.question import anchor_of
from lensaudit.auditing.step import Opened
from lensaudit.plans import said
from lensaudit.plans.depth import planned
from lensaudit.plans.plan import Plan


@dataclass(frozen=True)
class AuditPlan:
    """What an audit would do."""

    folder: Path
    """Of all results."""
    patch: Plan
    evaluations: Mapping[str, Plan]
    """By model, the retain model's first: the others are compared with it."""
    associations: Mapping[str, Opened | str]
    """Source -> the questions on who has what, or why none are asked."""

    def text(self) -> str:
        """A line per step: what is done, what is missing."""
        asked = {
            name: one if isinstance(one, str) else "; ".join(one.plan())
            for name, one in self.associations.items()
        }
        return "\n".join(
            [
                *(f"patch: {line}" for line in self.patch.lines),
                *(f"know {name}: {line}" for name, line in asked.items()),
                *(
                    f"eval {name}: {'done' if one.done else 'to do'}; {one.brief}"
                    for name, one in self.evaluations.items()
                ),
            ]
        )


def plan_of(opened: OpenedAudit) -> AuditPlan:
    """What an opened audit would do.

    Raises:
        InputError: a model would not fit.
    """
    depth = planned(opened.depth, opened.neutral)
    steps = {
        model: said.plan_of(one, done=said.found_in(model, one.settings, one.place) is not None)
        for model, one in opened.said.items()
    }
    anchor = anchor_of(opened.names, opened.settings)
    if anchor in steps and not steps[anchor].done:
        # what is compared with the retain model follows from it
        steps = {model: replace(one, done=False) for model, one in steps.items()}
    return AuditPlan(opened.folder, depth, steps, opened.associations)
