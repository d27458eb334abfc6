"""`la.know`, and `la.audit`, which asks who has what as well; what is answered is read."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lensaudit.ask.again import once_of_one
from lensaudit.ask.door import door, places_for
from lensaudit.association.question import asked_of_know, know_key
from lensaudit.association.result import COMMAND, KnowResult
from lensaudit.association.settings import KnowSettings
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.results.kinds.know import KnowRecord

if TYPE_CHECKING:
    from lensaudit.association.opening import Know

notice = logging.getLogger(__name__).warning
"""Remarks on a result; without a handler Python prints them on stderr."""


@dataclass(frozen=True)
class OpenedKnow:
    """A `know` run, opened and checked: the model, the questions and the settings."""

    know: "Know"

    def plan(self) -> list[str]:
        """What is left to read, in lines."""
        from lensaudit.association.run import plan_of

        return plan_of(self.know)

    def run(self, folder: Path, *, progress: Tell = unheard) -> KnowResult:
        """Fill, judge and write.

        Raises:
            InputError: the folder holds something else.
            WorkError: logits are not finite.
        """
        from lensaudit.association.run import answer_into

        return answer_into(self.know, folder, progress=progress)


class WhoHasWhat:
    """The step of an audit that asks who has what, by what a model says and by its own head."""

    def key(self, source: str, asked: PatchSettings, controls: Sequence[str]) -> str:
        """See `auditing.step.Step`."""
        return know_key(source, asked_of_know(source, asked, controls))

    def open(self, source: str, asked: PatchSettings, controls: Sequence[str]) -> OpenedKnow:
        """See `auditing.step.Step`."""
        from lensaudit.association.opening import open_know  # seconds to import

        return OpenedKnow(open_know(source, asked_of_know(source, asked, controls)))


WHO_HAS_WHAT = WhoHasWhat()


def known(
    source: str,
    settings: KnowSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> KnowResult:
    """Run `association.run.know_into`, or read the files of a finished run."""

    def made(tell: Notice, opened: Callable[[], None]) -> KnowResult:
        from lensaudit.association.run import know_into  # seconds to import

        found = know_into(source, settings, folder, notice=tell, progress=progress)
        opened()  # what a run of `know` remarks is true of its result
        return found

    kind, key = (KnowResult, KnowRecord), partial(know_key, source, settings)
    return once_of_one(COMMAND, source, settings, folder, kind, made, notice, key)


@door(KnowSettings)
def know(
    source: tuple[str, ...], settings: KnowSettings, out: Path | None, progress: Tell
) -> Sequence[KnowResult]:
    """Test which values a model binds to which subjects, without a model that never knew.

    As `lensaudit know`: `out` is experiments/out/know-<source>, of several models it holds a folder
    for each; base and forget set are those of the model's family where none is named.

    >>> found = la.know("demo/graddiff")  # doctest: +SKIP
    >>> found.headline, found.p, found.summary["bits"]  # doctest: +SKIP
    """
    return [
        known(one, settings, place, notice=notice, progress=progress)
        for one, place in places_for(source, out).items()
    ]
