"""The families that come along: what their models still hold, and what they say."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lensaudit.association.run import know_into
from lensaudit.association.settings import quick
from lensaudit.auditing.evaluate import evaluate_into
from lensaudit.auditing.patch import patch_into
from lensaudit.auditing.patch_result import Patched
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.errors import WorkError
from lensaudit.files import slug
from lensaudit.models.bridge import opened_once
from lensaudit.models.checkpoint import peft_for
from lensaudit.models.fetch import fetch
from lensaudit.models.registry import DEMO, FETCHED, REAL, load_registry
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.settings import ACTIVATIONS, Place, several
from lensaudit.verdict.collect import verdicts
from lensaudit.verdict.decide import Verdict

ANSWERS = "forget_Q_A_ROUGE"
"""Of what a model answers when it is asked: ROUGE-L recall of the true answer."""


@dataclass(frozen=True)
class Demo:
    """A family, audited."""

    patched: Patched
    full: str
    retain: str
    answers: Mapping[str, float | None]
    """Model, the anchors too -> `ANSWERS` of its greedy answers; empty where none was asked."""
    associations: Mapping[str, Mapping[str, Any]]
    """Model -> which values it binds to whom, as `know` writes summary.json."""
    verdicts: Mapping[str, Verdict]
    """Model -> what may be said of it after all of this."""


@opened_once()
def demo_into(
    folder: Path,
    *,
    real: bool = False,
    activations: Place = ACTIVATIONS,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> Demo:
    """Audit every unlearned model of a family; the planted ones show the scale.

    `real`: that of adapters on a pretrained model, which is fetched if it is not here. It is
    patched alone, as writing answers would take most of the time.

    Raises:
        WorkError: the package was built without the family.
        InputError | TryAgainError: the pretrained model cannot be fetched, or not be adapted.
    """
    family = REAL if real else DEMO
    listed = [one for one in load_registry().listed() if one.name.startswith(family)]
    names = [one.name for one in listed if one.role == "unlearned"]
    if not names:
        raise WorkError("this build of lensaudit has no embedded family; install a released one")
    if real:
        peft_for("demo --real")
        fetch(FETCHED[0].partition("/")[0], notice=notice)
    full, retain, *more = (one.name for one in listed if one.role in ("full", "retain"))
    settings = PatchSettings(
        full=full,
        retain=(retain, *more) if real else retain,
        profile="full",
        activations=activations,
    )
    known = {
        name: know_into(
            name,
            quick(several(settings.retain), activations=activations),
            folder / "know" / slug(name),
            progress=progress,
        ).summary
        for name in names
    }
    patched = patch_into(names, settings, folder, notice=notice, progress=progress)
    asked = EvaluateSettings(metrics=(ANSWERS,))
    answers = {
        name: evaluate_into(
            name, asked, folder / "answers" / slug(name), notice=notice, progress=progress
        ).summary[ANSWERS]
        for name in (() if real else (full, retain, *names))
    }
    judged = verdicts([folder])
    said = {one.source: judged.of_run(one.folder) or one.verdict for one in patched.results}
    return Demo(patched, full, retain, answers, known, said)
