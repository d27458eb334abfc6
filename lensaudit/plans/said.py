"""How much of an evaluation is left to do?"""

from pathlib import Path

from lensaudit.auditing.calls import found_or
from lensaudit.auditing.evaluate import (
    OpenedEvaluation,
    compared,
    counted_in,
    open_in,
)
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.plans.plan import Plan
from lensaudit.results.kinds.eval import EvaluationResult
from lensaudit.results.locate import PASSES


def plan_evaluation(model: str, settings: EvaluateSettings, folder: Path | None = None) -> Plan:
    """What a run would do, pass by pass; loads and writes nothing.

    Args:
        model: name, Hub id or folder.
        settings: what is computed, and how.
        folder: of the results; None: experiments/out/<model>-<suite>.

    Raises:
        InputError: as `evaluate_into`.
    """
    if (found := found_in(model, settings, folder)) is not None:
        return Plan((f"nothing to do: {found.folder} holds this result",), done=True)
    opened = open_in(model, settings, folder, rated=False)
    compared(settings, opened.passes)
    return plan_of(opened)


def found_in(
    model: str, settings: EvaluateSettings, folder: Path | None
) -> EvaluationResult | None:
    """The result that a run would read from its files, computing and writing nothing; or None.

    Arguments are those of `plan_evaluation`.
    """
    return found_or(lambda question: (None, ()), model, settings, folder)


def plan_of(opened: OpenedEvaluation, *, done: bool = False) -> Plan:
    """What an opened evaluation would do, whose retain model's log may be made before it.

    Args:
        opened: the evaluation.
        done: its result is there, and only read, see `found_in`.
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
