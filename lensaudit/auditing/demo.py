"""The embedded family: what its models still hold, and what they say."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lensaudit.auditing.evaluate import evaluate_into
from lensaudit.auditing.patch import patch_into
from lensaudit.auditing.patched import Patched
from lensaudit.auditing.settings import EvaluateSettings, PatchSettings
from lensaudit.errors import WorkError
from lensaudit.files import slug
from lensaudit.models.registry import DEMO, is_demo, load_registry
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.results.verdict import Code
from lensaudit.settings import ACTIVATIONS, Place

FULL, RETAIN = f"{DEMO}full", f"{DEMO}retain"
ANSWERS = "forget_Q_A_ROUGE"
"""Of what a model answers when it is asked: ROUGE-L recall of the true answer."""


@dataclass(frozen=True)
class Demo:
    """The family, audited."""

    patched: Patched
    answers: Mapping[str, float | None]
    """Model, the anchors too -> `ANSWERS` of its greedy answers."""

    def found(self, *codes: Code) -> list[str]:
        """The models of which one of these verdicts is said."""
        return [one.source for one in self.patched.results if one.verdict.code in codes]


def demo_into(
    folder: Path,
    *,
    activations: Place = ACTIVATIONS,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> Demo:
    """Audit every unlearned model of the family; the planted ones show the scale.

    Raises:
        WorkError: the package was built without the family.
    """
    names = [one.name for one in load_registry().listed("unlearned") if is_demo(one.name)]
    if not names:
        raise WorkError("this build of lensaudit has no embedded family; install a released one")
    settings = PatchSettings(profile="full", activations=activations)
    patched = patch_into(names, settings, folder, notice=notice, progress=progress)
    asked = EvaluateSettings(metrics=(ANSWERS,))
    answers = {
        name: evaluate_into(
            name, asked, folder / "answers" / slug(name), notice=notice, progress=progress
        ).summary[ANSWERS]
        for name in (FULL, RETAIN, *names)
    }
    return Demo(patched, answers)
