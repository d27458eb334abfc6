"""How much of an evaluation is left to do?"""

import json
from pathlib import Path

from lensaudit.auditing.calls import found_or
from lensaudit.auditing.evaluate import (
    OpenedEvaluation,
    compared,
    counted_in,
    inputs_of,
    open_in,
    reference_of,
    run_in,
)
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.files import read_json
from lensaudit.plans.plan import Plan
from lensaudit.results.integrity import is_whole
from lensaudit.results.locate import PASSES
from lensaudit.results.manifest import MANIFEST, from_outside
from lensaudit.results.owner import differences
from lensaudit.text import canonical_json


def plan_evaluation(model: str, settings: EvaluateSettings, folder: Path | None = None) -> Plan:
    """What a run would do, pass by pass; loads and writes nothing.

    Args:
        model: name, Hub id or folder.
        settings: what is computed, and how.
        folder: of the results; None: experiments/out/<model>-<suite>.

    Raises:
        InputError: as `evaluate_into`.
    """
    found = found_or(lambda question: (None, ()), model, settings, folder)
    if found is not None:
        return Plan((f"nothing to do: {found.folder} holds this result",), done=True)
    opened = open_in(model, settings, folder, rated=False)
    compared(settings, opened.passes)
    return plan_of(opened)


def is_there(opened: OpenedEvaluation) -> bool:
    """Whether its folder holds this result, whole, of the same rows and models compared with."""
    settings, passes, place = opened.settings, opened.passes, opened.place
    if settings.fresh or not is_whole(place) or differences(place, opened.run, run_in):
        return False
    made = read_json(place / MANIFEST)["inputs"]
    inputs = inputs_of(passes) | reference_of(settings, place) | {"model": made["model"]}
    return made == made | json.loads(canonical_json(inputs | from_outside()))


def plan_of(opened: OpenedEvaluation, *, done: bool = False) -> Plan:
    """What an opened evaluation would do, whose retain model's log may be made before it.

    Args:
        opened: the evaluation.
        done: its result is there, and only read again from passes that are kept.
    """
    settings, passes, place = opened.settings, opened.passes, opened.place
    counted = counted_in(settings, passes)
    n_texts, n_answers = (
        sum(n for n, kind in counted.values() if kind == what) for what in ("texts", "questions")
    )
    n_kept = 0 if settings.fresh else len(list((place / PASSES).glob("*.npz")))
    kept = f"; {n_kept} passes kept from before" if n_kept and not done else ""
    lines = [f"{name}: {n} {what}" for name, (n, what) in counted.items()]
    return Plan(
        tuple(lines),
        n_texts + n_answers,
        n_kept=n_kept,
        done=done,
        brief=f"{n_texts} texts scored, {n_answers} answers generated{kept}",
    )
