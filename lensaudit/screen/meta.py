"""What metrics and auditors are worth: faithfulness, robustness, aggregates, the gym."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from lensaudit.errors import shortened
from lensaudit.kinds.meta import Aggregates, MetaTable, RankedModel
from lensaudit.report.shelf import labels
from lensaudit.screen.cells import BLOCKS, interval, number
from lensaudit.screen.depth import percent
from lensaudit.screen.tables import Part, table

if TYPE_CHECKING:
    from lensaudit.gym.make import Listed
    from lensaudit.gym.scoring import Submitted
    from lensaudit.meta.check import CheckedNumber
    from lensaudit.meta.methods import MethodRow
    from lensaudit.meta.records import FaithfulnessRecord, RobustnessRecord


def bars(histogram: Mapping[str, Any] | None, side: str) -> str:
    """Counts as a line of bars, scaled to the tallest of either pool.

    >>> bars({"knows": (0, 2), "forgot": (4, 0)}, "knows")
    ' ▄'
    """
    if histogram is None:
        return ""
    tallest = max(*histogram["knows"], *histogram["forgot"])
    return "".join(BLOCKS[math.ceil(8 * n / tallest)] if n else " " for n in histogram[side])


def of_check(found: "Sequence[CheckedNumber]") -> Iterator[Part]:
    """Counts by table and metric, then every number that was measured, and what is wide why."""
    named = dict.fromkeys((one.table, one.metric) for one in found)
    counted = {
        at: Counter(one.found for one in found if (one.table, one.metric) == at) for at in named
    }
    yield table(
        "published numbers",
        ("table", "metric", "equal", "differs", "not measured"),
        (
            (*at, *(str(n[one]) for one in ("equal", "differs", "not measured")))
            for at, n in counted.items()
        ),
        left=("table", "metric"),
    )
    yield table(
        "what was measured",
        ("table", "row", "metric", "published", "here", "tolerance", ""),
        (
            (
                *(one.table, one.row, one.metric),
                *map(number, (one.published, one.value, one.within)),
                one.found,
            )
            for one in sorted(found, key=lambda one: one.found != "differs")
            if one.value is not None
        ),
        left=("table", "row", "metric", ""),
    )
    for why in dict.fromkeys(one.why for one in found if one.found == "differs"):
        yield f"the tolerance takes into account: {why}"


def of_methods(found: "Sequence[MethodRow]") -> Iterator[Part]:
    """The method table, and what its rows have not in common."""
    label = labels(one.model for one in found)
    yield table(
        "exact match, by UDR; shares of facts, without general knowledge",
        ("model", "UDR", "95 % interval", "retention", "over", "exact", "under", "n", "known"),
        (
            (
                label[one.model],
                number(one.udr),
                interval(one.ci95, "–"),
                number(one.retention),
                *map(percent, (one.over, one.exact, one.under)),
                str(one.n),
                str(one.n_general_knowledge),
            )
            for one in found
        ),
        left=("model",),
    )
    if len({one.form for one in found}) > 1:
        yield "rows of two forms of exact match are not to be compared: generated, teacher-forced"


def faithfulness_table(record: "FaithfulnessRecord") -> Table:
    """AUC, interval, means, threshold, and what is missing."""
    return table(
        "AUC of more knowledge, pool that knows against pool that forgot; means are raw values",
        (
            "metric",
            "AUC",
            "interval",
            "n",
            "knows",
            "forgot",
            "t",
            "accuracy",
            "histogram",
            "remark",
        ),
        (
            (
                one.metric,
                number(one.auc)
                if one.preliminary_auc is None
                else f"({number(one.preliminary_auc)})",
                interval(one.interval_95, one.interval_95_why or ""),
                f"{one.n_knows}+{one.n_forgot}",
                number(one.knows_mean),
                number(one.forgot_mean),
                number(one.threshold, 4),
                number(one.threshold_accuracy),
                "│".join(bars(one.histogram, side) for side in ("knows", "forgot")),
                _remark(one.reason, one.excluded),
            )
            for one in sorted(
                record.metrics, key=lambda one: math.inf if one.auc is None else -one.auc
            )
        ),
        left=("metric", "interval", "histogram", "remark"),
    )


def robustness_table(record: "RobustnessRecord") -> Table:
    """Stability, the number of models behind it, and the value on the common ones."""
    kind = "Q" if record.attack == "quantize" else "R"
    return table(
        f"{kind} under {record.attack}, {record.form}, filter {record.filter}; "
        f"common: {len(record.common)} models of every metric",
        ("metric", kind, "n", "usable", "common", "remark"),
        (
            (
                one.metric,
                number(one.value)
                if one.value is not None or one.preliminary is None
                else f"({number(one.preliminary)})",
                str(one.n),
                f"{one.n_utility} of {one.n_candidates} by utility",
                number(one.common_value),
                _remark(one.reason, one.excluded),
            )
            for one in sorted(record.metrics, key=lambda one: -(one.value or -1))
        ),
        left=("metric", "usable", "remark"),
    )


def of_aggregates(record: Aggregates) -> Iterator[Part]:
    """Methods ranked, and every model."""
    yield _ranking_table(record)
    yield _aggregate_table(record)


def _ranking_table(record: Aggregates) -> Table:
    """The best configuration of each method, with and without UDS."""
    none = RankedModel(model="–", overall_without_uds=None, overall=None, uds=None)
    found = (
        (one, one.best_without_uds or none, one.best_with_uds or none) for one in record.ranking
    )
    return table(
        "methods by their best Overall without UDS",
        (
            "method",
            "best",
            "without",
            "with UDS",
            "UDS",
            "best with UDS",
            "UDS mean",
            "range",
        ),
        (
            (
                f"{one.method} ({one.n_models})",
                best.model,
                number(best.overall_without_uds),
                number(best.overall),
                number(best.uds),
                "same" if other == best and best != none else other.model,
                number(one.uds_mean),
                f"{number(one.uds_low)} to {number(one.uds_high)}",
            )
            for one, best, other in found
        ),
        left=("method", "best", "best with UDS", "range"),
    )


def _aggregate_table(record: Aggregates) -> Table:
    """Every model with its aggregates; why one is missing."""
    scores = ("mem", "privacy", "utility_rel", "overall", "overall_without_uds")
    return table(
        "aggregates: memorisation, privacy, utility, overall",
        ("model", "uds", *(one.replace("_", " ") for one in scores), "remark"),
        (
            (
                one.model,
                number(one.uds),
                *(number(getattr(one, name)) for name in scores),
                shortened([f"{name}: {why}" for name, why in one.reasons.items()]),
            )
            for one in record.models
        ),
        left=("model", "remark"),
    )


def of_meta_table(record: MetaTable) -> Iterator[Part]:
    """Table of metrics, a row each."""
    forms = [
        f"{attack} {form}, filter {record.filters.get(attack)}"
        for attack, form in record.forms.items()
    ]
    yield table(
        "Robustness = HM(Q, R), Overall = HM(faithfulness, robustness); "
        + "; ".join(["n: models behind Q and R", *forms]),
        (
            "metric",
            "faithfulness",
            "interval",
            "Q",
            "n Q",
            "R",
            "n R",
            "robustness",
            "common",
            "overall",
            "remark",
        ),
        (
            (
                one.label or one.metric,
                number(one.faithfulness),
                interval((one.faithfulness_low, one.faithfulness_high), missing=""),
                number(one.quantization),
                number(one.n_quantization, 0),
                number(one.relearning),
                number(one.n_relearning, 0),
                number(one.robustness),
                number(one.common_robustness),
                number(one.overall),
                "; ".join(one.notes),
            )
            for one in record.metrics
        ),
        left=("metric", "interval", "remark"),
    )


def _remark(reason: str | None, excluded: Mapping[str, str]) -> str:
    """Why there is no number, and which models have none."""
    parts = [reason] if reason else []
    if excluded:
        first, why = next(iter(excluded.items()))
        parts.append(f"without {len(excluded)}: {first}: {why}")
    return "; ".join(parts)


def of_plan(found: "Sequence[Listed]") -> Iterator[Part]:
    """Table of planted models, a line each."""
    columns = ["mechanism", "truth", "strength", "seed", "split", "how"]
    rows = (
        (
            *(one.mechanism, one.truth, f"{one.strength:g} {one.unit}" if one.unit else ""),
            *(str(one.seed), "held out" if one.held_out else "tune", one.how),
        )
        for one in found
    )
    yield table("", columns, rows, left=("mechanism", "truth", "split", "how"))


def of_submission(found: "Sequence[Submitted]") -> Iterator[str]:
    """Each recipe, each auditor's answer, and whether the recipe enters."""
    for one in found:
        yield f"{one.mechanism} ({one.truth}): {one.certificate}; utility {one.utility:.2f} of full"
        for judge in one.auditors:
            lacks = "no score" if judge.value is None else "no threshold"
            says = {True: "fooled", False: "right", None: lacks}[judge.fooled]
            yield f"  {judge.auditor} {number(judge.value)}: {says}"
        enters = "enters the next version" if one.enters else "does not enter"
        yield f"  best auditor {one.best or '–'}; {enters}"
