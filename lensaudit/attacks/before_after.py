"""What did an attack bring back? The same scores of a model before and after it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lensaudit.auditing.evaluate import evaluate_into
from lensaudit.auditing.patch import depth_of, open_patch
from lensaudit.auditing.settings import EvaluateSettings, PatchSettings
from lensaudit.data.suites import DEMO_DATA
from lensaudit.data.tofu import DEMO
from lensaudit.files import slug
from lensaudit.patching.session import Session
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.settings import FORGET_SPLIT, Anchors, Caches, Precision, Rows, shared
from lensaudit.unlearn.rows import TOFU_PAIRS

OUTPUT_SCORES = {
    "prob": "forget_Q_A_Prob",
    "em": "exact_memorization",
    "es": "extraction_strength",
}
"""What a table calls the output-level metrics, and their names in the suite."""

Scores = Mapping[str, float]
"""Score -> value; NaN where nothing could be scored. `uds`: high means forgotten; others: knows."""


@dataclass(frozen=True, kw_only=True)
class Auditing(Caches, Precision, Rows, Anchors):
    """The models and data that before and after are measured with; all of them are named."""

    notice: Notice = field(default=unheard, compare=False)
    progress: Tell = field(default=unheard, compare=False)

    @property
    def patching(self) -> PatchSettings:
        """The depth, of several models at once."""
        return PatchSettings(**shared(self, Anchors, Rows, Precision, Caches))

    @property
    def evaluation(self) -> EvaluateSettings:
        """The output-level part, of one model."""
        data = str(self.data)
        named = data in (DEMO, *TOFU_PAIRS)
        given = shared(
            self,
            *(Rows, Precision, Caches),
            data=DEMO_DATA if data == DEMO else None,
            forget_split=data if data in TOFU_PAIRS else FORGET_SPLIT,
            forget=None if named else Path(data),
            registry=self.registry,
        )
        return EvaluateSettings(metrics=tuple(OUTPUT_SCORES.values()), **given)

    def audit(self, sources: Sequence[str]) -> Session:
        """A patching audit of the sources, opened and checked."""
        return open_patch(sources, self.patching, notice=self.notice, progress=self.progress)


@dataclass(frozen=True)
class Shift:
    """The scores of one model before and after an attack."""

    model: str
    before: Scores
    after: Scores
    remark: str | None = None
    """That the attack did next to nothing; None where it did something."""

    def as_json(self) -> dict[str, Any]:
        """As strict JSON: null where nothing could be scored."""
        scores = {"before": self.before, "after": self.after}
        return {"model": self.model, "remark": self.remark} | {
            when: {name: value if math.isfinite(value) else None for name, value in found.items()}
            for when, found in scores.items()
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Shift":
        """What `as_json` made."""
        before, after = (
            {name: math.nan if value is None else value for name, value in content[when].items()}
            for when in ("before", "after")
        )
        return cls(content["model"], before, after, content.get("remark"))


def shifts(pairs: Mapping[str, Path], auditing: Auditing, work: Path) -> tuple[Shift, ...]:
    """Score every model and what the attack made of it; results of the suite go to `work`.

    Args:
        pairs: name of a model -> folder of the attacked one.
        auditing: what both are measured with.
        work: a folder.
    """
    sources = [name for pair in pairs.items() for name in map(str, pair)]
    outcomes, _ = depth_of(auditing.audit(sources))
    depth = {one.source: math.nan if one.uds is None else one.uds for one in outcomes}

    def scores(source: str, out: Path) -> Scores:
        return {"uds": depth[source], **_said(source, auditing.evaluation, out)}

    return tuple(
        Shift(
            name,
            before=scores(name, work / "before" / slug(name)),
            after=scores(str(folder), work / "after" / slug(name)),
        )
        for name, folder in pairs.items()
    )


def _said(model: str, settings: EvaluateSettings, out: Path) -> dict[str, float]:
    entries = evaluate_into(model, settings, out).checked().entries
    return {short: entries[name].value for short, name in OUTPUT_SCORES.items()}
