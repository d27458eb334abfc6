"""Tables of what was measured: aggregates and the table of all metrics, from files alone."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.files import make_folder, write_csv, write_json
from lensaudit.meta.aggregate import SCORES, aggregated, ranking
from lensaudit.meta.documents import aggregate_document, read_sources, table_document
from lensaudit.meta.reading import attack_aucs, read_values, with_s_mia
from lensaudit.meta.settings import AggregateSettings, TableSettings
from lensaudit.meta.table import COLUMNS, csv_rows, null, table_rows
from lensaudit.models.registry import DEMO
from lensaudit.results.records import MANIFEST, MANIFESTS, claim, manifest
from lensaudit.settings import plain


def run_aggregate(settings: AggregateSettings) -> dict[str, Any]:
    """Aggregates of every model and the ranking of methods; the files, where a folder is named.

    Raises:
        InputError: no model has results.
    """
    values = read_values(settings.results)
    anchors = {
        name: given or (f"{DEMO}{name}" if f"{DEMO}{name}" in values.models else name)
        for name, given in (("full", settings.full), ("retain", settings.retain))
    }
    values = with_s_mia(values, attack_aucs(values, anchors["retain"]))
    if not values.models:
        raise InputError(f"{', '.join(map(str, settings.results))}: no model has results")
    rows = aggregated(values, full=anchors["full"], fluency=not settings.no_fluency)
    document = aggregate_document(rows, ranking(rows))
    if settings.out is not None:
        sealing = _sealing(settings, settings.out, "aggregate")
        header = ["model", "method", "epoch", "uds", *SCORES, "reasons"]
        lines = [
            [
                *(_cell(getattr(one, name)) for name in header[:-1]),
                "; ".join(f"{key}: {why}" for key, why in one.reasons.items()),
            ]
            for one in rows
        ]
        write_csv(settings.out / "aggregate.csv", header, lines)
        write_json(settings.out / "aggregate.json", document)
        sealing()
    return document


def run_table(settings: TableSettings) -> dict[str, Any]:
    """The table of tables; its files, where a folder is named."""
    sources = read_sources(settings.results)
    rows = table_rows(sources)
    document = table_document(rows, sources)
    if settings.out is not None:
        sealing = _sealing(settings, settings.out, "meta_table")
        write_csv(settings.out / "meta_table.csv", COLUMNS, csv_rows(rows))
        write_json(settings.out / "meta_table.json", document)
        sealing()
    return document


def _sealing(
    settings: AggregateSettings | TableSettings, out: Path, name: str
) -> Callable[[], Path]:
    """Take the folder for the files of `name`; what is returned writes their manifest."""
    started = time.monotonic()
    files, record = (f"{name}.csv", f"{name}.json"), f"{MANIFESTS}/{name}/{MANIFEST}"
    claim(out, f"meta {name}", files, record)
    make_folder((out / record).parent)
    options = plain(settings, without=("out", "results"))
    inputs = {"results": [str(one) for one in settings.results]}

    def seal() -> Path:
        made = manifest(
            f"meta {name}", options=options, inputs=inputs, device="none", started=started
        )
        return made.write(out, files, record)

    return seal


def _cell(value: Any) -> Any:
    return "" if null(value) is None else value
