"""The files of meta-evaluation: written for readers and the report, read for the one table.

    Robustness = HM(Q, R)          Overall = HM(AUC, Robustness)

Q and R of a row are means over the models that the row's own metric lets pass, so two rows speak
of different models; the columns named `common` are means over the models that all metrics have.

`docs/meta_fields.md` says what each field means.
"""

import contextlib
import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError, shortened
from lensaudit.files import make_folder, read_json, write_csv, write_json
from lensaudit.kinds.meta import Aggregate, Aggregates, MetaRow, MetaTable
from lensaudit.meta.aggregate import COMPARED, aggregated, ranking
from lensaudit.meta.judging import Faithfulness, Stability, combined, on_common
from lensaudit.meta.reading import (
    CATALOGUE,
    EPOCHS,
    N_USABLE,
    UDS_ROBUSTNESS,
    JudgedMetric,
    Values,
    attack_aucs,
    check_alike,
    read_values,
    short_name,
    with_s_mia,
)
from lensaudit.meta.records import FaithfulnessRecord, RobustnessRecord, read_judged
from lensaudit.meta.settings import AggregateSettings, Attack, Form, MetaTableSettings
from lensaudit.models.registry import DEMO, load_registry, resolve
from lensaudit.progress import Notice, unheard
from lensaudit.results.manifest import MANIFEST, MANIFESTS, as_placed, manifest
from lensaudit.results.owner import check_free, claim
from lensaudit.results.reading import Record, Share, checked_as, document, null
from lensaudit.results.run_log import tell_replaced
from lensaudit.settings import plain
from lensaudit.sweep.plan import planned

COMMAND = "meta"
_KINDS = {"meta_table": "meta", "robustness-quantize": "robustness"}
_KINDS |= {"robustness-relearn": "robustness"}
"""Name of a document -> the kind of its result, where that is another."""
COLUMNS = tuple(one.name for one in fields(MetaRow))
"""Of the table of tables."""
Lines = tuple[Sequence[str], list[list[Any]]]
"""Header and rows of a CSV file."""
ATTACKS: tuple[Attack, ...] = ("quantize", "relearn")


@dataclass(frozen=True)
class Sources:
    """Results by metric key, from one or several files; a later file counts."""

    faithfulness: dict[str, Faithfulness] = field(default_factory=dict)
    robustness: dict[Attack, dict[str, Stability]] = field(default_factory=dict)
    forms: dict[Attack, str] = field(default_factory=dict)
    """The formula behind each attack's numbers."""
    filters: dict[Attack, str] = field(default_factory=dict)
    """Which filters picked the models of each."""
    files: dict[Attack, Path] = field(default_factory=dict)
    """The last file that each was read from."""

    def add(
        self, attack: Attack, rows: Mapping[str, Stability], form: str, by: str, file: Path
    ) -> None:
        """Rows of one attack by one formula and filter; they replace those of the same metrics.

        Raises:
            InputError: those that stay are of another formula or filter.
        """
        own = self.robustness.setdefault(attack, {})
        earlier = self.forms.get(attack, form), self.filters.get(attack, by)
        if earlier != (form, by) and (stay := own.keys() - rows.keys()):
            raise InputError(
                f"{file}: {attack} is {form}, filter {by}; {self.files[attack]} is {earlier[0]}, "
                f"filter {earlier[1]}, and has {shortened(sorted(stay), 3, ', ')} alone; wanted "
                "one formula and filter an attack"
            )
        own.update(rows)
        self.forms[attack], self.filters[attack], self.files[attack] = form, by, file


def faithfulness_document(
    results: Sequence[Faithfulness], knows: Sequence[str], forgot: Sequence[str], values: Values
) -> FaithfulnessRecord:
    """Content of `faithfulness.json`."""
    keys = [one.metric for one in results]
    return FaithfulnessRecord(
        pools={"knows": list(knows), "forgot": list(forgot)},
        to_do={m: values.why_not(m, "") for m in (*knows, *forgot) if values.is_to_do(m)},
        metrics=list(results),
        values={
            model: {key: null(values.value(model, key)) for key in keys}
            for model in (*knows, *forgot)
        },
    )


def robustness_document(
    results: Sequence[Stability],
    attack: Attack,
    *,
    form: Form,
    models: Sequence[str],
    thresholds: Mapping[str, float],
    conditions: Mapping[str, Any],
) -> RobustnessRecord:
    """`robustness-quantize.json` or `robustness-relearn.json`."""
    common, rows = on_common(results)
    return RobustnessRecord(
        attack=attack,
        form=form,
        **conditions,
        models=list(models),
        common=list(common),
        metrics=[replace(one, threshold=thresholds.get(str(one.threshold_of))) for one in rows],
    )


def read_sources(paths: Sequence[Path]) -> Sources:
    """Faithfulness and robustness results; of two that say the same, the later one counts.

    Raises:
        InputError: a file is none of these, or rows of an attack have two formulas or filters.
    """
    found = Sources()
    for path in paths:
        inside = [*path.glob("faithfulness.json"), *sorted(path.glob("robustness-*.json"))]
        if path.is_dir() and not inside:
            raise InputError(f"{path}: holds no faithfulness.json and no robustness-….json")
        for file in inside if path.is_dir() else [path]:
            _read_into(found, file)
    return found


def _read_into(found: Sources, path: Path) -> None:
    content = read_json(path)
    kind = content.get("kind") if isinstance(content, dict) else None
    if kind == "faithfulness":
        judged = read_judged(FaithfulnessRecord, path)
        found.faithfulness.update({one.metric: one for one in judged.metrics})
    elif kind == "robustness":
        stable = read_judged(RobustnessRecord, path)
        rows = {one.metric: one for one in stable.metrics}
        found.add(stable.attack, rows, str(stable.form), str(stable.filter), path)
    elif isinstance(content, dict) and {"faithfulness", "robustness"} <= content.keys():
        _published_into(found, content, path)
    else:
        raise InputError(
            f"{path}: wanted faithfulness.json, robustness-….json (`lensaudit meta`) or "
            "meta_eval.json"
        )


def _published_into(found: Sources, content: Mapping[str, Any], path: Path) -> None:
    """`meta_eval.json`: four-digit Q and R, from which the aggregates follow."""

    def read(part: str, key: str) -> dict[str, float | None]:
        rows = checked_as(dict[str, dict[str, Any]], content[part], f"{path}: {part}")
        values = {name: row.get(key) for name, row in rows.items()}
        return checked_as(dict[str, Share | None], values, path)

    published = {"quantize": "quantization", "relearn": "relearning"}
    values: dict[Attack, dict[str, float | None]] = {
        attack: read("robustness", published[attack]) for attack in ATTACKS
    }
    ours = tuple(one.get("uds") for one in values.values()) == UDS_ROBUSTNESS
    for attack, rows in values.items():
        stable = {
            name: Stability(metric=name, value=value, n=N_USABLE.get(name) if ours else None)
            for name, value in rows.items()
        }
        found.add(attack, stable, "symmetric", "both", path)
    areas = read("faithfulness", "auc_roc")
    found.faithfulness.update({k: Faithfulness(metric=k, auc=v) for k, v in areas.items()})


def read_thresholds(path: Path) -> dict[str, float]:
    """The raw thresholds of a `faithfulness.json`; a metric without one is absent.

    Raises:
        InputError: another kind of file.
    """
    rows = read_sources([path]).faithfulness
    if not rows:
        raise InputError(f"{path}: wanted a faithfulness.json of `lensaudit meta faithfulness`")
    return {key: row.threshold for key, row in rows.items() if row.threshold is not None}


def run_aggregate(settings: AggregateSettings, notice: Notice = unheard) -> Aggregates:
    """Aggregates of every model and the ranking of methods; the files, where a folder is named.

    Raises:
        InputError: no model has results, some are of other rows, or a named anchor has none.
    """
    _check_out(settings.out)
    started, values = time.monotonic(), read_values(settings.results)
    anchors = {
        name: called(name, given, values)
        or (f"{DEMO}{name}" if f"{DEMO}{name}" in values.models else name)
        for name, given in (("full", settings.full), ("retain", settings.retain))
    }
    no_methods = {*anchors.values(), *itertools.chain(*map(values.anchors, anchors))}
    values = with_s_mia(values, attack_aucs(values, anchors["retain"]))
    if not values.models:
        raise InputError(f"{', '.join(map(str, settings.results))}: no model has results")
    check_alike(values.models, COMPARED, values)
    rows = aggregated(values, full=anchors["full"], fluency=not settings.no_fluency)
    record = Aggregates(models=rows, ranking=ranking(rows, no_methods))
    header = [one.name for one in fields(Aggregate)]
    lines = [
        [*(vars(one) | {"reasons": "; ".join(map(": ".join, one.reasons.items()))}).values()]
        for one in record.models
    ]
    return _kept(settings, "aggregate", record, (header, lines), started, notice)


def called(
    role: str,
    named: str | None,
    values: Values,
    registry: str | Path | None = None,
    *,
    read: bool = True,
) -> str | None:
    """What results call an anchor: as it is named, else by its weights; or the one that they have.

    Args:
        role: `full` or `retain`.
        named: its name or folder, where one is named.
        values: of the results.
        registry: file of names beside those of lensaudit.
        read: a number depends on it, so that one that is named has to be there.

    Returns:
        The name; None where none is named and results have none in this role, or several.

    Raises:
        InputError: the results lack one that is named, and that is read.
    """
    if named is None:
        found = values.anchors(role)
        return found[0] if len(found) == 1 else None
    name = short_name(named)
    if name not in values.models:
        with contextlib.suppress(InputError):  # a name of the results alone
            target = planned(resolve(named, load_registry(registry)))
            name = next((m for m, own in values.weights.items() if own == target.weights), name)
    if read:
        check_anchor(role, name, values)
    return name


def check_anchor(name: str, given: str | None, values: Values) -> None:
    """Refuse an anchor without results: no number could be made with it.

    Raises:
        InputError: names the models that have some.
    """
    epochs = ("", *(f"_{one}" for one in EPOCHS)) if name == "full" else ("",)
    if given is not None and not any(f"{given}{epoch}" in values.models for epoch in epochs):
        known = shortened(values.models, 5, ", ") or "no model"
        raise InputError(
            f"--{name} {given}: its results are not here, only those of {known}; name its folder "
            f"as well, or leave --{name} out"
        )


def run_table(settings: MetaTableSettings, notice: Notice = unheard) -> MetaTable:
    """The table of tables; its files, where a folder is named."""
    _check_out(settings.out)
    started, sources = time.monotonic(), read_sources(settings.results)
    record = MetaTable(
        forms={**sources.forms}, filters={**sources.filters}, metrics=table_rows(sources)
    )
    lines = [[*(vars(row) | {"notes": "; ".join(row.notes)}).values()] for row in record.metrics]
    return _kept(settings, "meta_table", record, (COLUMNS, lines), started, notice)


def _check_out(out: Path | None) -> None:
    """Refuse a folder of another command before results are read."""
    if out is not None:
        check_free(out, COMMAND)


def _kept(
    settings: AggregateSettings | MetaTableSettings,
    name: str,
    record: Record,
    table: Lines,
    started: float,
    notice: Notice,
) -> Record:
    """The record, with its files written where a folder is named."""
    if settings.out is not None:
        options = plain(settings, without=("out", "results"))
        inputs = {"results": [str(one) for one in settings.results]}
        tell_replaced(settings.out, as_placed(options), inputs, notice, manifest_of(name))
        write_judged(
            settings.out, name, record, table, options=options, inputs=inputs, started=started
        )
    return record


def manifest_of(name: str) -> str:
    """Where the manifest of a document lies, below its folder."""
    return f"{MANIFESTS}/{name}/{MANIFEST}"


def write_judged(
    out: Path,
    name: str,
    record: Any,
    table: Lines,
    *,
    options: Mapping[str, Any],
    inputs: Mapping[str, Any],
    started: float,
    device: str = "none",
) -> Path:
    """Write a record and its table into a folder, and a manifest of both; where the record is.

    Raises:
        InputError: the folder holds files of this name that are another run's.
    """
    files, place = (f"{name}.csv", f"{name}.json"), manifest_of(name)
    claim(out, f"{COMMAND} {name}", files, place)
    make_folder((out / place).parent)
    header, lines = table
    write_csv(out / files[0], header, lines)
    path = write_json(out / files[1], document(record))
    made = manifest(
        f"{COMMAND} {name}",
        kind=_KINDS.get(name, name),
        options=options,
        inputs=inputs,
        device=device,
        started=started,
    )
    made.write(out, files, place)
    return path


def faithfulness_table(record: FaithfulnessRecord) -> Lines:
    """`faithfulness.csv`."""
    header = (
        *("metric", "label", "category", "high_means", "auc", "low", "high", "n_knows"),
        *("n_forgot", "knows_mean", "forgot_mean", "threshold", "accuracy"),
        *("excluded", "to_do", "reason"),
    )
    lines = []
    for row in record.metrics:
        low, high = row.interval_95 or (None, None)
        own = {"low": low, "high": high, "accuracy": row.threshold_accuracy}
        names = {"excluded": " ".join(row.excluded), "to_do": " ".join(row.to_do)}
        lines.append([{**vars(row), **own, **names}[name] for name in header])
    return header, lines


def robustness_table(record: RobustnessRecord) -> Lines:
    """`robustness-quantize.csv` or `robustness-relearn.csv`."""
    header = (
        *("metric", "label", "category", "value", "n", "n_utility", "n_candidates"),
        *("common_value", "n_common", "threshold", "retain_shift", "reason"),
    )
    return header, [[getattr(row, name) for name in header] for row in record.metrics]


def table_rows(sources: Sources) -> list[MetaRow]:
    """Every metric of any source, the best Overall first, those without one last."""
    keys = dict.fromkeys(itertools.chain(sources.faithfulness, *sources.robustness.values()))
    rows = [_row(key, sources) for key in keys]
    return sorted(rows, key=lambda row: math.inf if row.overall is None else -row.overall)


def _named(key: str, judged: Iterable[Faithfulness | Stability]) -> dict[str, Any]:
    """How the row of a metric begins: by the catalogue, of another as its judgements say."""
    usual = CATALOGUE.get(key, JudgedMetric(key, key, "other", key, "knows")).named
    if key in CATALOGUE:
        return usual
    told = next((one for one in judged if one.high_means), None)
    return usual | {name: of for name in usual if (of := getattr(told, name, ""))}


def _row(key: str, sources: Sources) -> MetaRow:
    faith = sources.faithfulness.get(key, Faithfulness(metric=key, reason="no faithfulness result"))
    quantize, relearn = (
        sources.robustness.get(attack, {}).get(
            key, Stability(metric=key, reason=f"no {attack} result")
        )
        for attack in ATTACKS
    )
    robustness = combined(quantize.value, relearn.value)
    low, high = faith.interval.ends or (None, None)
    found = {"faithfulness": faith, "quantize": quantize, "relearn": relearn}
    return MetaRow(
        **_named(key, found.values()),
        faithfulness=faith.auc,
        faithfulness_low=low,
        faithfulness_high=high,
        n_knows=faith.n_knows,
        n_forgot=faith.n_forgot,
        quantization=quantize.value,
        n_quantization=quantize.n,
        relearning=relearn.value,
        n_relearning=relearn.n,
        robustness=null(robustness),
        overall=null(combined(faith.auc, robustness)),
        common_quantization=quantize.common_value,
        common_relearning=relearn.common_value,
        common_robustness=null(combined(quantize.common_value, relearn.common_value)),
        n_common_quantization=quantize.n_common,
        n_common_relearning=relearn.n_common,
        notes=[f"{name}: {one.reason}" for name, one in found.items() if one.reason],
    )
