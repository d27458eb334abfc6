"""How much of an evaluation is left to do?"""

import json
from pathlib import Path

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
    opened = open_in(model, settings, folder, rated=False)
    compared(settings, opened.passes)
    return plan_of(opened)


def plan_of(opened: OpenedEvaluation) -> Plan:
    """The same of an opened evaluation, whose retain model's log may be made before it."""
    settings, passes, place = opened.settings, opened.passes, opened.place
    counted = counted_in(settings, passes)
    n_texts, n_answers = (
        sum(n for n, kind in counted.values() if kind == what) for what in ("texts", "questions")
    )
    done = not settings.fresh and is_whole(place) and not differences(place, opened.run, run_in)
    if done:  # what it compares with must be the same, too
        made = read_json(place / MANIFEST)["inputs"]
        inputs = inputs_of(passes) | reference_of(settings, place) | {"model": made["model"]}
        inputs |= from_outside()
        done = made == made | json.loads(canonical_json(inputs))
    n_kept = 0 if settings.fresh else len(list((place / PASSES).glob("*.npz")))
    kept = f"; {n_kept} passes kept from before" if n_kept and not done else ""
    lines = [f"{name}: {n} {what}" for name, (n, what) in counted.items()]
    return Plan(
        (f"nothing to do: {place} holds this result",) if done else tuple(lines),
        n_texts + n_answers,
        n_kept=n_kept,
        done=done,
        brief=f"{n_texts} texts scored, {n_answers} answers generated{kept}",
    )
