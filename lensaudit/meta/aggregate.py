"""One number per model, and which method is best: the aggregates of the published result files.

Definitions: gnueaj/unlearning-depth-score @ fc31639, docs/data/method_results.json, whose rows they
reproduce. `EPS` goes on each term of every harmonic mean but that of `mem`.
"""

import math
from collections.abc import Collection, Sequence

from lensaudit.kinds.meta import Aggregate, RankedMethod, RankedModel
from lensaudit.meta.reading import EPOCHS, FLUENCY, UTILITY_PARTS, Values
from lensaudit.results.reading import null
from lensaudit.scores.means import harmonic_mean, mean_known

EPS = 1e-12
"""On each term: a component of 0 gives about n * 1e-12, not 0."""
MEMORIZATION = ("es", "em", "paraprob", "truth_ratio")
ATTACKS = ("s_mia_loss", "s_mia_zlib", "s_mia_min_k", "s_mia_min_kpp")
READ = (*MEMORIZATION, *ATTACKS, "uds", *UTILITY_PARTS, FLUENCY)
COMPARED = (*READ, *(one.removeprefix("s_") for one in ATTACKS))
"""What must be asked alike of all models: also what s_MIA is made of."""
SCORES = (
    "mem",
    "privacy_mia",
    "privacy",
    "model_utility",
    "utility",
    "utility_rel",
    "overall",
    "overall_without_uds",
)


def aggregated(values: Values, *, full: str = "full", fluency: bool = True) -> list[Aggregate]:
    """The aggregates of every model, in the order of the results.

    Args:
        values: of the forget-set metrics, s_MIA, UDS, the nine utility parts and fluency. The
            utility to divide by is the one the results name, else that of the full model's own
            row of the same epoch (`full_ep5`), else of the row `full`.
        full: name of that row.
        fluency: False where no text classifier rated the generations: utility is then the
            model utility alone, and the full model's is always that of its row.
    """
    reference: dict[str | None, float] = {}
    for epoch in (None, *EPOCHS):
        for name in (f"{full}_{epoch}", full):
            found, _ = _aggregate(name, values, math.nan, fluency=fluency)
            if math.isfinite(found["utility"]):
                reference.setdefault(epoch, found["utility"])
    if fluency:  # the one the results name holds it
        reference |= values.full_utility
    rows = []
    for model in values.models:
        epoch = epoch_of(model)
        of_full = reference.get(epoch, reference.get(None, math.nan))
        found, reasons = _aggregate(model, values, of_full, fluency=fluency)
        # the method that a name begins with
        method = model.rpartition("/")[2].partition("_")[0]
        numbers = {name: null(found[name]) for name in ("uds", *SCORES)}
        row = Aggregate(model=model, method=method, epoch=epoch, **numbers, reasons=reasons)
        rows.append(row)
    return rows


def ranking(rows: Sequence[Aggregate], anchors: Collection[str] = ()) -> list[RankedMethod]:
    """Methods by their best Overall without UDS; models that no method made are left out.

    Of each its best configuration under each of the two Overalls, and its UDS.

    Args:
        rows: of every model.
        anchors: names of `full` and `retain`, whatever they are called; of any epoch.
    """
    made = [
        row
        for row in rows
        if row.method not in ("full", "retain")
        and not {row.model, row.model.removesuffix(f"_{row.epoch}")} & {*anchors}
    ]
    ranked: list[RankedMethod] = []
    for method in dict.fromkeys(row.method for row in made):
        theirs = [row for row in made if row.method == method]
        depths = [row.uds for row in theirs if row.uds is not None]
        ranked.append(
            RankedMethod(
                method=str(method),
                n_models=len(theirs),
                best_without_uds=_best(theirs, "overall_without_uds"),
                best_with_uds=_best(theirs, "overall"),
                uds_mean=mean_known(depths),
                uds_low=min(depths, default=None),
                uds_high=max(depths, default=None),
            )
        )
    return sorted(ranked, key=lambda one: -_score(one.best_without_uds))


def _score(one: RankedModel | None) -> float:
    """Overall without UDS; below every other where there is none."""
    return -1.0 if one is None or one.overall_without_uds is None else one.overall_without_uds


def _best(rows: Sequence[Aggregate], by: str) -> RankedModel | None:
    known = [row for row in rows if getattr(row, by) is not None]
    best = max(known, key=lambda row: getattr(row, by), default=None)
    if best is None:
        return None
    kept = ("model", "overall_without_uds", "overall", "uds")
    return RankedModel(**{name: getattr(best, name) for name in kept})


def _aggregate(
    model: str, values: Values, full_utility: float, *, fluency: bool
) -> tuple[dict[str, float], dict[str, str]]:
    """Values and aggregates of a model by name, and why an aggregate is NaN."""
    found = {key: values.value(model, key) for key in READ}
    reasons: dict[str, str] = {}

    def mean(name: str, parts: Sequence[str], *, inverted: bool = False) -> None:
        """`name` = harmonic mean of `parts`, or of 1 - each, which then has no eps."""
        found[name] = math.nan
        if missing := next((part for part in parts if math.isnan(found[part])), None):
            why = reasons[missing] if missing in reasons else values.why_not(model, missing)
            reasons[name] = f"{missing}: {why}"
            return
        components = [1 - found[part] if inverted else found[part] for part in parts]
        low, part = min(zip(components, parts, strict=True))
        if low < 0 or (inverted and low == 0):
            shown = f"1 - {part}" if inverted else part
            reasons[name] = f"{shown} is {low:.3g}: no harmonic mean"
            return
        found[name] = harmonic_mean(components, eps=0.0 if inverted else EPS)

    mean("mem", MEMORIZATION, inverted=True)
    mean("privacy_mia", ATTACKS)
    mean("privacy", ("privacy_mia", "uds"))
    mean("model_utility", tuple(UTILITY_PARTS))
    if fluency:
        mean("utility", ("model_utility", FLUENCY))
    else:
        found["utility"] = found["model_utility"]
        if "model_utility" in reasons:
            reasons["utility"] = reasons["model_utility"]
    found["utility_rel"] = min(1.0, found["utility"] / (full_utility + EPS))
    if math.isnan(found["utility"]):
        found["utility_rel"], reasons["utility_rel"] = math.nan, reasons["utility"]
    elif not full_utility > 0:
        epoch = epoch_of(model)
        reasons["utility_rel"] = (
            f"no utility of the full model{f' of {epoch}' if epoch else ''} to divide by"
        )
        found["utility_rel"] = math.nan
    mean("overall", ("mem", "privacy", "utility_rel"))
    mean("overall_without_uds", ("mem", "privacy_mia", "utility_rel"))
    return found, reasons


def epoch_of(model: str) -> str | None:
    """`ep5` or `ep10`, by which the full model of the same run is chosen.

    >>> epoch_of("npo_lr5e5_b01_a1_ep10"), epoch_of("demo/npo")
    ('ep10', None)
    """
    ending = model.rpartition("_")[2]
    return ending if ending in EPOCHS else None
