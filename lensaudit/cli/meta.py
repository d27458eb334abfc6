"""`lensaudit meta`: which metric can be trusted?"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lensaudit.cli.options import options, shared
from lensaudit.cli.terminal import (
    BLOCKS,
    emit,
    interval,
    notice,
    number,
    row,
    say,
    show,
    table,
    written,
)
from lensaudit.meta.settings import (
    AggregateSettings,
    FaithfulnessSettings,
    RobustnessSettings,
    TableSettings,
)

if TYPE_CHECKING:
    from rich.table import Table

    from lensaudit.meta.faithfulness import Faithfulness, Histogram

Document = Mapping[str, Any]
RESULTS = click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))


@click.group()
def meta() -> None:
    """Judge the metrics themselves, over many models."""


@meta.command()
@options(FaithfulnessSettings)
@shared("json", "dry_run")
def faithfulness(settings: FaithfulnessSettings, as_json: bool, dry_run: bool) -> None:
    """Does a metric tell models that know from models that do not? AUC over two pools.

    Models are measured one at a time and finished ones are not measured again. A model that
    cannot be measured stays to do: it is named, no AUC is given without it, and the exit code is 3.
    """
    from lensaudit.meta.prepare import prepare_faithfulness, run_faithfulness

    prepared = prepare_faithfulness(settings, notice)
    if dry_run:
        say("\n".join(prepared.plan()))
        return
    found = run_faithfulness(settings, prepared)
    _finish(found, faithfulness_table(found.results), as_json=as_json)


@meta.command()
@options(RobustnessSettings)
@shared("json", "dry_run")
def robustness(settings: RobustnessSettings, as_json: bool, dry_run: bool) -> None:
    """Does a metric survive quantisation or relearning? Its stability over models that forgot.

    Every metric is judged on the models its own filter leaves; n is always shown, and the value on
    the models that all metrics share.
    """
    from lensaudit.files import read_json
    from lensaudit.meta.prepare import prepare_robustness, run_robustness

    prepared = prepare_robustness(settings, notice)
    if dry_run:
        say("\n".join(prepared.plan()))
        return
    found = run_robustness(settings, prepared)
    _finish(found, robustness_table(read_json(found.path)), as_json=as_json)


@meta.command()
@RESULTS
@options(AggregateSettings)
@shared("json")
def aggregate(settings: AggregateSettings, as_json: bool) -> None:
    """Memorisation, privacy, utility and overall of every model; methods ranked.

    RESULTS: folders of lensaudit eval and patch, ep5/ and ep10/ of the UDS repository, or
    method_results.json.
    """
    from lensaudit.meta.tables import run_aggregate

    document = run_aggregate(settings)
    if as_json:
        emit(document)
        return
    show(ranking_table(document), aggregate_table(document))
    if settings.out is not None:
        written(settings.out)


@meta.command("table")
@RESULTS
@options(TableSettings)
@shared("json")
def table_(settings: TableSettings, as_json: bool) -> None:
    """One table of all metrics: faithfulness, quantisation, relearning, robustness, overall.

    RESULTS: folders of meta faithfulness and robustness, their files, or meta_eval.json.
    """
    from lensaudit.meta.tables import run_table

    document = run_table(settings)
    if as_json:
        emit(document)
        return
    show(meta_table(document))
    if settings.out is not None:
        written(settings.out)


def _finish(found: Any, shown: "Table", *, as_json: bool) -> None:
    """The document or its table, and the models that are still to do."""
    from lensaudit.files import read_json
    from lensaudit.meta.prepare import unfinished

    if as_json:
        emit(read_json(found.path))
    else:
        show(shown)
        written(found.path.parent)
    if error := unfinished(found):
        raise error


def bars(histogram: "Histogram | None", side: str) -> str:
    """Counts as a line of bars, scaled to the tallest of either pool.

    >>> from lensaudit.meta.faithfulness import Histogram
    >>> bars(Histogram((0.0, 0.5, 1.0), (0, 2), (4, 0)), "knows")
    ' ▄'
    """
    if histogram is None:
        return ""
    tallest = max(*histogram.knows, *histogram.forgot)
    return "".join(BLOCKS[math.ceil(8 * n / tallest)] for n in getattr(histogram, side))


def faithfulness_table(results: Sequence["Faithfulness"]) -> "Table":
    """AUC, interval, means, threshold, and what is missing."""
    made = table(
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
        left=("metric", "interval", "histogram", "remark"),
    )
    order = sorted(results, key=lambda one: math.inf if math.isnan(one.auc) else -one.auc)
    for one in order:
        ends, threshold = one.interval, one.threshold
        row(
            made,
            one.metric.key,
            number(one.auc) if math.isnan(one.preliminary) else f"({number(one.preliminary)})",
            interval((ends.low, ends.high)) if ends else one.interval_why or "",
            f"{one.n_knows}+{one.n_forgot}",
            number(one.knows_mean),
            number(one.forgot_mean),
            number(one.raw_threshold, 4),
            number(threshold.accuracy if threshold else None),
            f"{bars(one.histogram, 'knows')}│{bars(one.histogram, 'forgot')}",
            _remark(one.reason, one.excluded),
        )
    return made


def robustness_table(document: Document) -> "Table":
    """Stability, the number of models behind it, and the value on the common ones."""
    kind = "Q" if document["attack"] == "quantize" else "R"
    made = table(
        f"{kind} under {document['attack']}, {document['form']}, filter {document['filter']}; "
        f"common: {len(document['common'])} models of every metric",
        ("metric", kind, "n", "usable", "common", "remark"),
        left=("metric", "usable", "remark"),
    )
    for one in sorted(document["metrics"], key=lambda one: -(one["value"] or -1)):
        value = one["value"]
        shown = number(value) if value is not None else f"({number(one['preliminary'])})"
        row(
            made,
            one["metric"],
            shown if shown != "(–)" else "–",
            str(one["n"]),
            f"{one['n_utility']} of {one['n_candidates']} by utility",
            number(one["common_value"]),
            _remark(one["reason"], one["excluded"]),
        )
    return made


def ranking_table(document: Document) -> "Table":
    """The best configuration of each method, with and without UDS."""
    made = table(
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
        left=("method", "best", "best with UDS", "range"),
    )
    for one in document["ranking"]:
        best, other = one["best_without_uds"] or {}, one["best_with_uds"] or {}
        row(
            made,
            f"{one['method']} ({one['n_models']})",
            best.get("model", "–"),
            number(best.get("overall_without_uds")),
            number(best.get("overall")),
            number(best.get("uds")),
            "same" if other == best and best else other.get("model", "–"),
            number(one["uds_mean"]),
            f"{number(one['uds_low'])} to {number(one['uds_high'])}",
        )
    return made


def aggregate_table(document: Document) -> "Table":
    """Every model with its aggregates; why one is missing."""
    scores = ("mem", "privacy", "utility_rel", "overall", "overall_without_uds")
    made = table(
        "aggregates: memorisation, privacy, utility, overall",
        ("model", "uds", *(one.replace("_", " ") for one in scores), "remark"),
        left=("model", "remark"),
    )
    for one in document["models"]:
        missing = one["reasons"]
        remark = next((f"{name}: {why}" for name, why in missing.items()), "")
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        numbers = (number(one[name]) for name in scores)
        row(made, one["model"], number(one["uds"]), *numbers, remark + more)
    return made


def meta_table(document: Document) -> "Table":
    """One row per metric."""
    forms = [
        f"{attack} {form}, filter {document['filters'].get(attack)}"
        for attack, form in document["forms"].items()
    ]
    made = table(
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
        left=("metric", "interval", "remark"),
    )
    for one in document["metrics"]:
        ends = (one["faithfulness_low"], one["faithfulness_high"])
        row(
            made,
            one["label"],
            number(one["faithfulness"]),
            interval(ends, missing=""),
            number(one["quantization"]),
            _count(one["n_quantization"]),
            number(one["relearning"]),
            _count(one["n_relearning"]),
            number(one["robustness"]),
            number(one["common_robustness"]),
            number(one["overall"]),
            "; ".join(one["notes"]),
        )
    return made


def _count(n: int | None) -> str:
    return "–" if n is None else str(n)


def _remark(reason: str | None, excluded: Mapping[str, str]) -> str:
    """Why there is no number, and which models have none."""
    parts = [reason] if reason else []
    if excluded:
        first, why = next(iter(excluded.items()))
        parts.append(f"without {len(excluded)}: {first}: {why}")
    return "; ".join(parts)
