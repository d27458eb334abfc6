"""`meta` behind the options: settings, runs, files and exit codes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from lensaudit.attacks.relearn import DEMO_RELEARNING, Relearning
from lensaudit.cli import show_meta
from lensaudit.cli.options import check_names, notice
from lensaudit.data.suites import DEMO_DATA
from lensaudit.errors import InputError, PartialError
from lensaudit.files import canonical_json, make_folder, read_json, write_csv, write_json
from lensaudit.meta.aggregate import EPOCHS, SCORES, aggregated, ranking
from lensaudit.meta.attacked import Attacking
from lensaudit.meta.catalogue import judged
from lensaudit.meta.documents import (
    aggregate_document,
    read_sources,
    read_thresholds,
    table_document,
)
from lensaudit.meta.published import PUBLISHED, THRESHOLDS
from lensaudit.meta.reading import attack_aucs, read_values, with_s_mia
from lensaudit.meta.runs import Judgement, Settings, judge_faithfulness, judge_robustness, pool
from lensaudit.meta.scoring import Scoring, plan_lines, suite_names
from lensaudit.meta.table import COLUMNS, csv_rows, null, table_rows
from lensaudit.meta.values import short_name
from lensaudit.metrics.measure.job import Job
from lensaudit.models.registry import DEMO, load_registry
from lensaudit.patching.prepare import default_anchor

RESULTS = "results"
"""As --models: every model of the results but the anchors."""
_JOB = ("data", "forget", "holdout", "classifier", "batch_size", "max_new_tokens", "dtype",
        "device", "attn", "limit", "registry", "activations")  # fmt: skip


def run_faithfulness(
    *, knows: Sequence[str], forgot: Sequence[str], results: Sequence[Path], run: bool,
    as_json: bool, dry_run: bool, seed: int, **options: Any,
) -> int:  # fmt: skip
    """Judge, print, and say what is still to do."""
    registry = load_registry(options["registry"])
    first, second = pool(knows, "knows", registry), pool(forgot, "forgot", registry)
    settings = _settings(first + second, options, measuring=run or not results)
    if dry_run:
        return _plan(first + second, settings)
    found = judge_faithfulness(first, second, settings, results=results, seed=seed)
    _show(found, show_meta.faithfulness_table(found.results), as_json=as_json)
    return _finished(found)


def run_robustness(
    *, models: Sequence[str], attack: Any, thresholds: str | None, form: Any, by: Any,
    before: Sequence[Path], after: Sequence[Path], run: bool, as_json: bool, dry_run: bool,
    relearn_data: str | None, relearn_lr: float | None, keep: bool, **options: Any,
) -> int:  # fmt: skip
    """Judge one attack, print, and say what is still to do."""
    names = _models(models, before, options)
    measuring = run or not (before and after)
    settings = _settings(names, options, measuring=measuring)
    limits = _thresholds(thresholds, by)
    if dry_run:
        return _plan(names, settings)
    attacking = Attacking(
        attack, settings.names, settings.out / "attacked" / attack,
        data=relearn_data or _relearn_data(options, names), device=options["device"],
        relearning=_relearning(relearn_lr, names, options), keep=keep, notice=notice,
    )  # fmt: skip
    found = judge_robustness(
        names, attack, settings, thresholds=limits, before=before, after=after,
        attacking=attacking if measuring else None, form=form, by=by,
    )  # fmt: skip
    document = read_json(found.path)
    _show(found, show_meta.robustness_table(document), as_json=as_json)
    return _finished(found)


def run_aggregate(
    *, results: Sequence[Path], full: str | None, retain: str | None, no_fluency: bool,
    out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Aggregate, print the ranking and the gaps, write the files."""
    values = read_values(results)
    anchors = {
        name: given or (f"{DEMO}{name}" if f"{DEMO}{name}" in values.models else name)
        for name, given in (("full", full), ("retain", retain))
    }
    values = with_s_mia(values, attack_aucs(values, anchors["retain"]))
    if not values.models:
        raise InputError(f"{', '.join(map(str, results))}: no model has results")
    rows = aggregated(values, full=anchors["full"], fluency=not no_fluency)
    document = aggregate_document(rows, ranking(rows))
    if out is not None:
        make_folder(out)
        header = ["model", "method", "epoch", "uds", *SCORES, "reasons"]
        lines = [[_cell(getattr(row, name)) for name in header[:-1]] for row in rows]
        reasons = ["; ".join(f"{k}: {why}" for k, why in row.reasons.items()) for row in rows]
        write_csv(
            out / "aggregate.csv", header,
            [[*line, why] for line, why in zip(lines, reasons, strict=True)],
        )  # fmt: skip
        write_json(out / "aggregate.json", document)
    if as_json:
        click.echo(canonical_json(document))
        return
    show_meta.show(show_meta.ranking_table(document))
    show_meta.show(show_meta.aggregate_table(document))
    if out is not None:
        click.echo(f"written: {out}")


def run_table(*, results: Sequence[Path], out: Path | None, as_json: bool) -> None:
    """The table of tables."""
    sources = read_sources(results)
    rows = table_rows(sources)
    document = table_document(rows, sources)
    if out is not None:
        make_folder(out)
        write_csv(out / "meta_table.csv", COLUMNS, csv_rows(rows))
        write_json(out / "meta_table.json", document)
    if as_json:
        click.echo(canonical_json(document))
        return
    show_meta.show(show_meta.meta_table(document))
    if out is not None:
        click.echo(f"written: {out}")


def _cell(value: Any) -> Any:
    return "" if null(value) is None else value


def _settings(names: Sequence[str], options: Mapping[str, Any], *, measuring: bool) -> Settings:
    """The settings of a run; every name is checked before anything is loaded."""
    full = options["full"] or _anchor("full", names)
    retain = options["retain"] or _anchor("retain", names)
    metrics = tuple(judged(options["metrics"]))
    job = None
    if measuring:
        check_names([*names, full, retain], options["registry"])
        chosen = {name: options[name] for name in _JOB}
        chosen["data"] = chosen["data"] or _default_data(names, options)
        job = Job(model="", full=full, retain=retain, **chosen)
    return Settings(
        metrics, options["out"], job, full, retain, fluency=not options.get("no_fluency", False),
        registry=options["registry"], notice=notice,
    )  # fmt: skip


def _anchor(anchor: str, names: Sequence[str]) -> str:
    return default_anchor(anchor, names) if names else anchor


def _default_data(names: Sequence[str], options: Mapping[str, Any]) -> str | None:
    """The embedded data where any model is of the embedded family: attacked ones are folders."""
    demo = options["forget"] is None and any(name.startswith(DEMO) for name in names)
    return DEMO_DATA if demo else None


def _models(names: Sequence[str], before: Sequence[Path], options: Mapping[str, Any]) -> list[str]:
    """The named models; `results` stands for all in the results but the anchors."""
    found: list[str] = []
    for name in (part for text in names for part in text.split(",") if part):
        if name != RESULTS:
            found.append(short_name(name))
            continue
        if not before:
            raise InputError("--models results: needs --before, the results to take them from")
        anchors = {options["full"] or "full", options["retain"] or "retain"}
        anchors |= {f"{one}_{epoch}" for one in anchors for epoch in EPOCHS}
        anchors |= {f"{DEMO}full", f"{DEMO}retain"}
        listed = read_values(before, attack="before").models
        found += [model for model in listed if model not in anchors]
    return list(dict.fromkeys(found))


def _thresholds(named: str | None, by: str) -> Mapping[str, float]:
    if by != "both":
        return {}
    if named is None:
        raise InputError(
            "--filter both needs the pools' thresholds: name a faithfulness.json (or published) "
            "with --faithfulness, or filter by utility alone"
        )
    return THRESHOLDS if named == PUBLISHED else read_thresholds(Path(named))


def _relearn_data(options: Mapping[str, Any], names: Sequence[str]) -> str:
    if options["forget"] is not None:
        return str(options["forget"])
    demo = (options["data"] or _default_data(names, options)) == DEMO_DATA
    return DEMO_DATA if demo else "forget10"


def _relearning(lr: float | None, names: Sequence[str], options: Mapping[str, Any]) -> Relearning:
    demo = (options["data"] or _default_data(names, options)) == DEMO_DATA
    settings = Relearning(lr=DEMO_RELEARNING.lr, formats=("chat", "raw")) if demo else Relearning()
    return settings if lr is None else Relearning(lr=lr, formats=settings.formats)


def _plan(names: Sequence[str], settings: Settings) -> int:
    """What would be measured; nothing is loaded or written."""
    if settings.job is None:
        click.echo(f"{len(names)} models, values from results; nothing is measured")
        return 0
    scoring = Scoring(settings.job, suite_names(settings.metrics), settings.out / "before")
    click.echo("\n".join(plan_lines(list(names), scoring)))
    return 0


def _show(found: Judgement, table: Any, *, as_json: bool) -> None:
    if as_json:
        click.echo(canonical_json(read_json(found.path)))
        return
    show_meta.show(table)
    click.echo(f"written: {found.path.parent}")


def _finished(found: Judgement) -> int:
    """0, or the error that names what is to do."""
    if found.to_do:
        first = list(found.to_do.items())[:3]
        names = ", ".join(f"{name} ({why.removeprefix('to do: ')})" for name, why in first)
        more = f" and {len(found.to_do) - 3} more" if len(found.to_do) > 3 else ""
        raise PartialError(
            f"to do: {names}{more}; results so far are in {found.path.parent}, "
            "run the same command again"
        )
    return 0
