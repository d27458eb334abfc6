"""What did an attack bring back? The same scores of a model before and after it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lensaudit.activations.fill import Progress
from lensaudit.data.suites import DEMO_DATA
from lensaudit.data.tofu import DEMO
from lensaudit.files import slug
from lensaudit.metrics.measure.job import Job as EvalJob
from lensaudit.metrics.measure.job import run_job
from lensaudit.models.registry import load_registry
from lensaudit.patching.audit import Audit
from lensaudit.patching.prepare import prepare
from lensaudit.patching.session import score_all
from lensaudit.unlearn.rows import TOFU_PAIRS

OUTPUT_SCORES = {
    "prob": "forget_Q_A_Prob",
    "em": "exact_memorization",
    "es": "extraction_strength",
}
"""What a table calls the output-level metrics, and their names in the suite."""

Scores = Mapping[str, float]
"""Score -> value; NaN where nothing could be scored. `uds`: high means forgotten; others: knows."""


@dataclass(frozen=True)
class Auditing:
    """The models and data that before and after are measured with."""

    full: str
    retain: str
    data: str
    """Annotated forget set: `demo`, `forget10` or a file."""
    registry: Path | None = None
    dtype: str = "auto"
    device: str = "auto"
    attn: str = "eager"
    limit: int | None = None
    activations: Path = Path("activations")
    notice: Callable[[str], None] = field(default=lambda _: None, compare=False)
    progress: Progress | None = field(default=None, compare=False)

    def audit(self, sources: Sequence[str]) -> Audit:
        """A patching audit of the sources, opened and checked."""
        return prepare(
            sources, registry=load_registry(self.registry), full=self.full, retain=self.retain,
            data=self.data, limit=self.limit, activations=self.activations, notice=self.notice,
            progress=self.progress, dtype=self.dtype, device=self.device, attn=self.attn,
        )  # fmt: skip

    def evaluation(self, model: str, out: Path) -> EvalJob:
        """The output-level part, of one model."""
        named = self.data in (DEMO, *TOFU_PAIRS)
        return EvalJob(
            model=model,
            metrics=tuple(OUTPUT_SCORES.values()),
            data=DEMO_DATA if self.data == DEMO else None,
            forget_split=self.data if self.data in TOFU_PAIRS else "forget10",
            forget=None if named else Path(self.data),
            dtype=self.dtype, device=self.device, attn=self.attn, limit=self.limit,
            registry=self.registry, activations=self.activations, out=out,
        )  # fmt: skip


@dataclass(frozen=True)
class Shift:
    """The scores of one model before and after an attack."""

    model: str
    before: Scores
    after: Scores

    def as_json(self) -> dict[str, Any]:
        """As strict JSON: null where nothing could be scored."""
        scores = {"before": self.before, "after": self.after}
        return {"model": self.model} | {
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
        return cls(content["model"], before, after)


def shifts(pairs: Mapping[str, Path], auditing: Auditing, work: Path) -> tuple[Shift, ...]:
    """Score every model and what the attack made of it; results of the suite go to `work`.

    Args:
        pairs: name of a model -> folder of the attacked one.
        auditing: what both are measured with.
        work: a folder.
    """
    sources = [name for pair in pairs.items() for name in map(str, pair)]
    outcomes, _ = score_all(auditing.audit(sources))
    depth = {one.source: math.nan if one.uds is None else one.uds for one in outcomes}

    def scores(source: str, out: Path) -> Scores:
        return {"uds": depth[source], **_said(auditing.evaluation(source, out))}

    return tuple(
        Shift(
            name,
            before=scores(name, work / "before" / slug(name)),
            after=scores(str(folder), work / "after" / slug(name)),
        )
        for name, folder in pairs.items()
    )


def _said(job: EvalJob) -> dict[str, float]:
    entries = run_job(job).entries
    return {short: entries[name].value for short, name in OUTPUT_SCORES.items()}
