"""How much of an audit is left to do?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lensaudit.auditing.audit import OpenedAudit, open_audit
from lensaudit.auditing.question import anchor_of
from lensaudit.auditing.settings import AuditSettings
from lensaudit.auditing.step import Opened, Step
from lensaudit.plans import said
from lensaudit.plans.depth import planned
from lensaudit.plans.plan import Plan
from lensaudit.progress import Notice, unheard


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


def plan_audit(
    sources: Sequence[str],
    settings: AuditSettings,
    folder: Path | None = None,
    *,
    who: Step | None = None,
    notice: Notice = unheard,
) -> AuditPlan:
    """What an audit would do; arguments and errors are those of `auditing.audit.open_audit`."""
    return plan_of(open_audit(sources, settings, folder, who=who, notice=notice))


def plan_of(opened: OpenedAudit) -> AuditPlan:
    """The same of an opened audit.

    Raises:
        InputError: a model would not fit.
    """
    depth = planned(opened.depth)
    steps = {model: said.plan_of(one) for model, one in opened.said.items()}
    anchor = anchor_of(opened.names, opened.settings)
    if anchor in steps and not steps[anchor].done:
        # what is compared with the retain model follows from it
        steps = {model: replace(one, done=False) for model, one in steps.items()}
    return AuditPlan(opened.folder, depth, steps, opened.associations)
