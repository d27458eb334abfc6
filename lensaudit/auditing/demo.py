"""The embedded family: what its models still hold, and what they say."""

from dataclasses import dataclass
from pathlib import Path

from lensaudit.auditing.patch import Patched, patch_into
from lensaudit.auditing.progress import Notice, Tell, unheard
from lensaudit.auditing.settings import PatchSettings
from lensaudit.errors import WorkError
from lensaudit.models.registry import DEMO, is_demo, load_registry
from lensaudit.results.verdict import Code
from lensaudit.settings import ACTIVATIONS, Place

FULL, RETAIN = f"{DEMO}full", f"{DEMO}retain"


@dataclass(frozen=True)
class Demo:
    """The family, audited."""

    patched: Patched

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
    return Demo(patch_into(names, settings, folder, notice=notice, progress=progress))
