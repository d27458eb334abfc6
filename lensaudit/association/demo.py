"""The demo: every unlearned model of an embedded family, audited."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from lensaudit.ask.again import Asked, once
from lensaudit.association.calls import WHO_HAS_WHAT
from lensaudit.auditing.result import Audited, joined, read_evaluation, read_patched
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.errors import WorkError
from lensaudit.models.fetch import fetch
from lensaudit.models.registry import DEMO, FETCHED, REAL, load_registry
from lensaudit.orphans import when_orphaned
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.results.manifest import KNOW
from lensaudit.results.owner import check_beside, folders_for
from lensaudit.settings import Place, activations_folder, several
from lensaudit.text import slug

if TYPE_CHECKING:
    from lensaudit.auditing.measuring import Steps

ANSWERS = "forget_Q_A_ROUGE"
"""Of what a model answers when it is asked: ROUGE-L recall of the true answer."""
Demonstrated = tuple[Audited, dict[str, float | None]]


def demo_into(
    folder: Path,
    *,
    real: bool = False,
    activations: Place | None = None,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> Demonstrated:
    """Audit every unlearned model of a family; the planted ones show the scale.

    `real`: that of adapters on a pretrained model, which is fetched if it is not here. It is
    patched alone, as writing answers would take most of the time.

    Returns:
        What was found of every model, and what `full` and `retain` answer: `ANSWERS` of their
        greedy answers, None where nothing was asked.

    Raises:
        WorkError: the package was built without the family.
        InputError | TryAgainError: the pretrained model cannot be fetched, or not be adapted.
    """
    family = REAL if real else DEMO
    listed = [one for one in load_registry().values() if one.name.startswith(family)]
    names = [one.name for one in listed if one.role == "unlearned"]
    if not names:
        raise WorkError("this build of lensaudit has no embedded family; install a released one")
    check_beside(folder, "patch", len(names))
    full, retain, *more = (one.name for one in listed if one.role in ("full", "retain"))
    retains = (retain, *more) if real else (retain,)
    place = activations or activations_folder()
    asked = PatchSettings(full=full, retain=retains, profile="full", activations=place)
    answers = {name: folder / "answers" / slug(name) for name in (full, retain, *names)}
    answers = {} if real else answers
    known, depths = folders_for(names, folder / KNOW), folders_for(names, folder)

    def read(_: Sequence[Path]) -> Demonstrated:
        said = {name: read_evaluation(name, one).summary for name, one in answers.items()}
        anchors = {name: said[name][ANSWERS] if said else None for name in (full, retain)}
        return joined(folder, read_patched(depths), answers, known), anchors

    def made(tell: Notice, opened: Callable[[], None]) -> Demonstrated:
        from lensaudit.auditing.measuring import Steps, measure  # seconds to import
        from lensaudit.models.adapter import peft_for
        from lensaudit.models.bridge import opened_once

        if real:
            peft_for("demo --real")
            fetch(FETCHED[0].partition("/")[0], notice=tell)
        how = EvaluateSettings(metrics=(ANSWERS,))
        evaluations = [(name, how, place) for name, place in answers.items()]
        with opened_once():
            said, depth = _said(names, asked, evaluations), Steps(patch=asked)
            opened()
            # two processes would hold a pretrained model twice
            with nullcontext() if real else _ahead(_say, names, asked, evaluations, folder):
                measure(names, depth, folder, depths_in=folder, notice=tell, progress=progress)
            measure(names, said, folder, notice=tell, progress=progress)
        return read([])

    places = [*depths.values(), *known.values(), *answers.values()]
    return once(
        Asked(settings=asked, names=names, by="demo"),
        places,
        read,
        made,
        notice=notice,
        says=False,
    )


Evaluations = Sequence[tuple[str, EvaluateSettings, Path]]


def _said(names: Sequence[str], asked: PatchSettings, evaluations: Evaluations) -> "Steps":
    """What is measured beside depth: who has what, and what is answered."""
    from lensaudit.auditing.measuring import Steps

    know = {name: WHO_HAS_WHAT.open(name, asked, several(asked.retain)) for name in names}
    return Steps(know=know, evaluations=evaluations)


def _say(
    names: Sequence[str], asked: PatchSettings, evaluations: Evaluations, folder: Path
) -> None:
    """Measure all that stands beside depth, and ask what depth asks: of the last model first."""
    from lensaudit.auditing.measuring import measure
    from lensaudit.models.bridge import opened_once
    from lensaudit.patching.asking import DirectQuestions
    from lensaudit.patching.prepare import prepare

    with opened_once():
        measure(names, _said(names, asked, evaluations), folder)
        with prepare(names, asked, notice=unheard) as session:
            for source in reversed([*session.sources.values()]):
                DirectQuestions(session).told(source)


@contextmanager
def _ahead(work: Callable[..., object], *arguments: object) -> Iterator[None]:
    """While the block lasts a second process does `work`, each with half of the threads.

    What it leaves in files is found again, and what it fails in fails again for who comes after:
    it says nothing. With one thread there is no second process.
    """
    import torch

    if (n_threads := torch.get_num_threads()) == 1:
        yield
        return
    context, own = multiprocessing.get_context("spawn"), (n_threads + 1) // 2
    beside = context.Process(target=_unheard, args=(work, n_threads - own, *arguments), daemon=True)
    beside.start()
    torch.set_num_threads(own)
    try:
        yield
        beside.join()
    finally:
        beside.terminate()
        torch.set_num_threads(n_threads)


def _unheard(work: Callable[..., object], n_threads: int, *arguments: object) -> None:
    """Do `work` in a process that was begun for it, and that is ended by who began it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    when_orphaned(lambda: os._exit(1))
    import torch

    torch.set_num_threads(n_threads)
    work(*arguments)
