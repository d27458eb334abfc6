"""The metrics that are judged, and their values on models, read from results on disk.

What is understood, told apart by content:

    TOFU_EVAL.json                          a log of `lensaudit eval` or of open-unlearning
    summary.json with `source`              a run of `lensaudit patch`
    ep5/, ep10/ of category/model/          the run folder of the UDS repository
    method_results.json, results.json       its published files
    a folder of any of these                all of them; `to_do.json` names models that failed
    a folder with the plan of a sweep       its finished units, as they are or attacked

The published files are those of gnueaj/unlearning-depth-score, docs/data/{method_results,
meta_eval}.json and runs/; none of them come with this package. Short keys of metrics are theirs,
`suite` is the name in `lensaudit eval`; any other metric of the suite can be judged as well, under
its name there where it has no short key.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

from lensaudit.auditing.question import LOG
from lensaudit.errors import InputError
from lensaudit.files import read_json
from lensaudit.groups import grouped
from lensaudit.metrics.privacy import ATTACKS, similarity
from lensaudit.metrics.registry import Read, metric_of, reads_in_all
from lensaudit.models.registry import published
from lensaudit.results.integrity import check_result
from lensaudit.results.kinds.eval import HOW, EvaluationResult, log_in
from lensaudit.results.kinds.patch import SAME, rows_hash
from lensaudit.results.locate import NO_RESULTS, Found, folders_below, locate
from lensaudit.results.manifest import MANIFEST, model_in
from lensaudit.results.planned import PLAN, RESULT, TO_DO, UNITS
from lensaudit.results.reading import SUMMARY, Number, checked_as, json_object, part
from lensaudit.results.roles import roles_in
from lensaudit.settings import GENERATED
from lensaudit.sweep.plan import Variant

Means = Literal["knows", "forgot"]


def number(value: Any, where: str) -> float | None:
    """A finite number, or None for null.

    Raises:
        InputError: anything else.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{where}: found {str(value)[:60]!r}, wanted a number or null")
    return float(value)


@dataclass(frozen=True)
class JudgedMetric:
    """Metric that is judged: its names, and what a high value means."""

    key: str
    label: str
    category: str
    suite: str
    """Its name in `lensaudit eval`."""
    high_means: Means
    usable_as: str | None = None
    """The metric whose threshold picks its models: s_MIA takes that of the attack itself."""

    def knowledge(self, value: float) -> float:
        """The value turned so that higher means more knowledge: 1 - v where high means forgot.

        >>> CATALOGUE["uds"].knowledge(0.25), CATALOGUE["es"].knowledge(0.25)
        (0.75, 0.25)
        """
        return value if self.high_means == "knows" else 1 - value

    @property
    def named(self) -> dict[str, Any]:
        """How a row of a judgement begins."""
        own = {"label": self.label, "category": self.category, "high_means": self.high_means}
        return {"metric": self.key, **own}


def _fisher(share: str, label: str) -> JudgedMetric:
    key = f"fisher_masked_{share}"
    return JudgedMetric(key, f"Fisher Masked ({label})", "representation", key, "forgot")


_ROWS = (
    JudgedMetric("es", "Extraction Strength", "memorization", "extraction_strength", "knows"),
    JudgedMetric("em", "Exact Memorization", "memorization", "exact_memorization", "knows"),
    JudgedMetric("prob", "Probability", "memorization", "forget_Q_A_Prob", "knows"),
    JudgedMetric("paraprob", "Para. Probability", "memorization", "forget_Q_A_PARA_Prob", "knows"),
    JudgedMetric(
        "truth_ratio", "Truth Ratio", "memorization", "forget_truth_ratio_prob_mean", "knows"
    ),
    JudgedMetric("rouge", "ROUGE", "generation", "forget_Q_A_ROUGE", "knows"),
    JudgedMetric("para_rouge", "Para. ROUGE", "generation", "forget_Q_A_PARA_ROUGE", "knows"),
    JudgedMetric(
        "jailbreak_rouge", "Jailbreak ROUGE", "generation", "forget_Q_A_jailbreak_ROUGE", "knows"
    ),
    JudgedMetric("mia_loss", "MIA-LOSS", "mia", "mia_loss", "knows"),
    JudgedMetric("mia_zlib", "MIA-ZLib", "mia", "mia_zlib", "knows"),
    JudgedMetric("mia_min_k", "MIA-Min-K", "mia", "mia_min_k", "knows"),
    JudgedMetric("mia_min_kpp", "MIA-Min-K++", "mia", "mia_min_k_plus_plus", "knows"),
    JudgedMetric("s_mia_loss", "s_LOSS", "mia", "s_mia_loss", "forgot", "mia_loss"),
    JudgedMetric("s_mia_zlib", "s_ZLib", "mia", "s_mia_zlib", "forgot", "mia_zlib"),
    JudgedMetric("s_mia_min_k", "s_Min-K", "mia", "s_mia_min_k", "forgot", "mia_min_k"),
    JudgedMetric(
        "s_mia_min_kpp", "s_Min-K++", "mia", "s_mia_min_k_plus_plus", "forgot", "mia_min_kpp"
    ),
    JudgedMetric("cka", "CKA", "representation", "cka", "forgot"),
    _fisher("0.0001", "0.01%"),
    _fisher("0.001", "0.1%"),
    _fisher("0.01", "1%"),
    JudgedMetric("logit_lens", "Logit Lens", "representation", "logit_lens", "forgot"),
    JudgedMetric("uds", "UDS", "representation", "uds", "forgot"),
)
CATALOGUE: Mapping[str, JudgedMetric] = {one.key: one for one in _ROWS}
"""Rows of the UDS paper's table; Fisher counts once among the paper's 20 metrics."""

UTILITY_PARTS: Mapping[str, str] = {
    "retain_q_prob": "retain_Q_A_Prob",
    "retain_q_rouge": "retain_Q_A_ROUGE",
    "retain_truth_ratio": "retain_Truth_Ratio",
    "ra_q_prob": "ra_Q_A_Prob_normalised",
    "ra_q_rouge": "ra_Q_A_ROUGE",
    "ra_truth_ratio": "ra_Truth_Ratio",
    "wf_q_prob": "wf_Q_A_Prob_normalised",
    "wf_q_rouge": "wf_Q_A_ROUGE",
    "wf_truth_ratio": "wf_Truth_Ratio",
}
"""Published key -> name in `lensaudit eval`, for the nine parts of model utility."""
FLUENCY = "fluency"
SUITE_NAMES: Mapping[str, str] = {
    **{one.key: one.suite for one in _ROWS},
    **UTILITY_PARTS,
    FLUENCY: "forget_Q_A_gibberish",
}
"""Key -> name in `lensaudit eval`, for everything that is read from a log."""


def judged(names: Iterable[str]) -> list[JudgedMetric]:
    """The named metrics, by key or by their name in `lensaudit eval`; none means the catalogue.

    Raises:
        InputError: neither the catalogue nor the suite has the name.
    """
    asked = [*(names or CATALOGUE)]
    known = {**CATALOGUE, **{one.suite: one for one in _ROWS}}
    if not known.keys() >= {*asked}:
        from lensaudit.metrics.registry import all_metrics  # imports torch

        for name, one in all_metrics().items():
            if "tofu" in one.reads:
                key = _KEYS.get(name, name)
                own = JudgedMetric(key, name, "other", name, one.high_means)
                known = {key: own, name: own} | known
    if unknown := [name for name in asked if name not in known]:
        raise InputError(
            f"no metric {unknown[0]!r} to judge; known: {', '.join(CATALOGUE)}, and every metric "
            "of `lensaudit eval --suite tofu`"
        )
    return list({known[name].key: known[name] for name in asked}.values())


@dataclass(frozen=True)
class RowsAsked:
    """What a value was asked of, and how."""

    path: Path
    """Of the result that says so."""
    content: Mapping[str, Any]
    """See `_asked_of`."""


_OF_TEXTS = {"cleanup", "think", "n_new"}
_OF_LIKELIHOODS = {"mask", "empty"}
"""Conditions that move metrics of the one or the other; those that look inside have neither."""


def _asked_of(log: EvaluationResult, metric: str) -> dict[str, Any]:
    """Split, or condition -> what a value of a log was asked of, as far as the log says."""
    reads = {Read("text", "forget")}
    with suppress(InputError):  # a metric that is not known here
        reads = reads_in_all(metric_of(metric))
    splits, kinds = sorted({one.of for one in reads}), {one.kind for one in reads}
    acting = {*splits, "template"}
    acting |= _OF_TEXTS if kinds & {*GENERATED} else set()
    acting |= _OF_LIKELIHOODS if kinds - {*GENERATED, "patched"} else set()
    said = log.asked(*splits).items()
    return {name: one for name, one in said if name in acting and one is not None}


TOLERANCE = 1e-9
"""Two files may give the same value of a model and a metric, differing by no more."""


@dataclass(frozen=True)
class Values:
    """Sparse table of values, model by metric, with a reason for each gap."""

    rows: Mapping[str, Mapping[str, float | str]] = field(default_factory=dict)
    """Model -> metric key -> value, as the metric gives it and never NaN, or why there is none."""
    to_do: Mapping[str, str] = field(default_factory=dict)
    """Model -> why nothing was measured yet: it failed to load, or its run failed."""
    weights: Mapping[str, str] = field(default_factory=dict)
    """Model -> content hash of its weights, where known."""
    full_utility: Mapping[str | None, float] = field(default_factory=dict)
    """Epoch -> utility of the full model, where the results name it; None is any epoch."""
    broken: Mapping[str, Set[str]] = field(default_factory=dict)
    """Model -> metrics whose pass broke: their reasons are no answers, they are worth a try."""
    asked: Mapping[str, Mapping[str, RowsAsked]] = field(default_factory=dict)
    """Model -> metric key -> what its value was asked of."""
    ends: Mapping[str, Set[str]] = field(default_factory=dict)
    """`full` and `retain` -> names and weights of the models that manifests have in that role."""

    def value(self, model: str, key: str) -> float:
        """The value, or NaN."""
        found = self.rows.get(model, {}).get(key)
        return found if isinstance(found, float) else math.nan

    def why_not(self, model: str, key: str) -> str:
        """Why `value` is NaN."""
        if model not in self.rows or model in self.to_do:
            return f"to do: {self.to_do.get(model, 'no result of this model was found')}"
        return str(self.rows[model].get(key, "its results lack this metric"))

    def is_to_do(self, model: str, key: str = "") -> bool:
        """Not measured yet, or its pass broke: not the same as measured in vain."""
        if model not in self.rows or model in self.to_do:
            return True
        return key in self.broken.get(model, ()) and isinstance(self.rows[model].get(key), str)

    def anchors(self, role: str) -> list[str]:
        """The models that others are held to here, as `full` or as `retain`."""
        ends = self.ends.get(role, ())
        return [one for one in self.models if one in ends or self.weights.get(one) in ends]

    @property
    def models(self) -> tuple[str, ...]:
        """Every model with a value, a reason or something to do."""
        return tuple(dict.fromkeys((*self.rows, *self.to_do)))


def values_of(rows: Mapping[str, Mapping[str, float | None]]) -> Values:
    """Values from plain rows; null and non-finite numbers become reasons."""
    return Values({m: {key: _cell(one) for key, one in row.items()} for m, row in rows.items()})


def _cell(value: float | None) -> float | str:
    if value is None:
        return "null in the results"
    return float(value) if math.isfinite(value) else f"{value} in the results"


def merged(tables: Iterable[Values]) -> Values:
    """All tables as one; a value beats a reason, a result beats "to do".

    Raises:
        InputError: two tables give different values for one metric of one model, or one value of
            different rows.
    """
    rows: dict[str, dict[str, float | str]] = {}
    to_do: dict[str, str] = {}
    weights: dict[str, str] = {}
    utility: dict[str | None, float] = {}
    broken: dict[str, Set[str]] = {}
    asked: dict[str, dict[str, RowsAsked]] = {}
    ends: dict[str, Set[str]] = {}
    for table in tables:
        for model, row in table.rows.items():
            said, own = asked.setdefault(model, {}), table.asked.get(model, {})
            for key in own.keys() & _add(rows.setdefault(model, {}), row, model):
                said[key] = _also_asked(said.get(key), own[key], key, model)
        to_do |= table.to_do
        weights |= table.weights
        utility |= table.full_utility
        broken |= {model: broken.get(model, set()) | keys for model, keys in table.broken.items()}
        ends |= {role: ends.get(role, set()) | some for role, some in table.ends.items()}
    waiting = {model: why for model, why in to_do.items() if model not in rows}
    return Values(rows, waiting, weights, utility, broken, asked, ends)


def joined(results: Sequence[Values]) -> Values:
    """All results as one table, of one model under each name.

    Raises:
        InputError: one name stands for two models, or two results disagree.
    """
    weights: dict[str, str] = {}
    for model, own in (pair for one in results for pair in one.weights.items()):
        if weights.setdefault(model, own) != own:
            raise InputError(f"{model}: results of two different weights; name only one of them")
    return merged(results)


def check_alike(models: Iterable[str], keys: Iterable[str], *tables: Values) -> None:
    """Refuse values that were asked of other rows, or in another way, where results say so.

    Args:
        models: that are compared.
        keys: of the metrics.
        tables: of values; more than one where an attack lies between.

    Raises:
        InputError: names two such values, and where they lie.
    """
    known: dict[tuple[str, str], tuple[str, Any]] = {}
    for table, model, key in product(tables, [*models], [*keys]):
        asked = table.asked.get(model, {}).get(key)
        if asked is None or math.isnan(table.value(model, key)):
            continue
        told = f"{key} of {model} in {asked.path}"
        for name, content in asked.content.items():
            # rows are those of every metric, settings those of one
            at = (key if name in _SETTINGS else "", name)
            other, first = known.setdefault(at, (told, content))
            if content != first:
                raise InputError(
                    f"{told} was asked {_otherwise(name)} than {other}; wanted the same rows, "
                    "asked in the same way: measure one again with the other's data, --limit, "
                    "template and options"
                )


def _otherwise(name: str) -> str:
    """How two values were asked that differ in a content."""
    return f"with another {_SETTINGS[name]}" if name in _SETTINGS else f"of other {name} rows"


_SETTINGS = {
    **HOW,
    **{name: f"--{name.replace('_', '-')}" for name in SAME},
    "threshold": "--em-threshold",
}
"""What a value was asked with beside rows -> what chooses it."""


def _also_asked(old: RowsAsked | None, new: RowsAsked, key: str, model: str) -> RowsAsked:
    """What one value in two files was asked of: the one of both that says more."""
    if old is None:
        return new
    for name in old.content.keys() & new.content.keys():
        if old.content[name] != new.content[name]:
            raise InputError(
                f"{model}: {key} in {new.path} was asked {_otherwise(name)} than in {old.path}; "
                "name only one of them"
            )
    return new if len(new.content) > len(old.content) else old


def _add(known: dict[str, float | str], row: Mapping[str, float | str], model: str) -> list[str]:
    """Add a row; the keys of the values in it, which count."""
    for key, one in row.items():
        old = known.get(key)
        if isinstance(one, float) and isinstance(old, float) and abs(old - one) > TOLERANCE:
            raise InputError(
                f"{model}: {key} is {old:.6g} in one result and {one:.6g} in another; "
                "name only one of them"
            )
        if isinstance(one, float) or not isinstance(old, float):
            known[key] = one
    return [key for key, one in row.items() if isinstance(one, float)]


def short_name(model: str) -> str:
    """The name that `lensaudit models` lists for a published repository; others as they are.

    >>> short_name("open-unlearning/tofu_Llama-3.2-1B-Instruct_retain90")
    'retain'
    """
    return _by_repository().get(model, model)


@cache
def _by_repository() -> Mapping[str, str]:
    return {spec.repo: spec.name for spec in published() if spec.alias_of is None}


EPOCHS = ("ep5", "ep10")
SWEEP = "sweep"
"""Of a folder of `meta`: the sweep of what it measured."""
VARIANTS: Mapping[str | None, Variant] = {"quantize": "nf4", "relearn": "relearn-1ep"}
"""Attack -> the variant of a sweep that it is; others are of models as they are."""
_WANTED = (
    f"holds no results; wanted {LOG} (lensaudit eval), {SUMMARY} (lensaudit patch), "
    "ep5/ and ep10/ with memorization/MODEL/summary.json, method_results.json, or folders of these"
)
_KEYS = {suite: key for key, suite in SUITE_NAMES.items()}
_DEPTHS = {"uds": "uds", "lens": "logit_lens", "udr": "em_erasure"}
"""Field of a summary of `patch` -> our key."""
_NUMBERS = ("memorization", "privacy", "utility", "uds", "gen_rouge")
"""Categories of an epoch folder."""
_ATTACKED = {"loss": "loss", "zlib": "zlib", "min_k": "min_k", "min_k++": "min_kpp"}
_UTILITY = {suite: key for key, suite in UTILITY_PARTS.items()} | {
    # the plain name means the probability among options there
    f"{split}_Q_A_Prob": f"{split}_q_prob"
    for split in ("ra", "wf")
}


def read_values(paths: Iterable[Path], *, attack: str | None = None) -> Values:
    """The values in files and folders.

    Args:
        paths: files or folders.
        attack: which side of a robustness file is meant: `before`, `quantize` or `relearn`.

    Raises:
        InputError: a path holds no results, two give different values, or one name stands for two
            models.
    """
    tables: list[Values] = []
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: no such file or folder")
        found = [_file(path, attack)] if path.is_file() else _folder(path, attack)
        if not found:
            raise InputError(f"{path}: {_WANTED}")
        tables += found
    return joined(tables)


def _file(path: Path, attack: str | None) -> Values:
    check_result(path)
    content = read_json(path)
    if not isinstance(content, dict) or not content:
        raise InputError(f"{path}: {_WANTED}")
    if isinstance(content.get("models"), list):
        return method_results(content, path)
    if path.name == SUMMARY and "source" in content:
        name, beside = short_name(str(content["source"])), path.with_name(MANIFEST)
        made = json_object(beside) if beside.exists() else {}
        found, row = model_in(made, "source", beside).weights, _picked(content, _DEPTHS, path)
        said = {"annotated": one} if (one := rows_hash(made)) else {}
        said |= {field: content[field] for field in SAME if field in content}
        asked = {name: dict.fromkeys(row, RowsAsked(path, said))}
        known = {name: found} if found else {}
        return replace(values_of({name: row}), weights=known, asked=asked, ends=_ends(made))
    if all(isinstance(row, dict) and "agg_value" in row for row in content.values()):
        return read_log(content, path)
    if all(isinstance(row, dict) for row in content.values()):
        return run_results(content, path, attack=attack)
    raise InputError(f"{path}: {_WANTED}")


def _folder(folder: Path, attack: str | None) -> list[Values]:
    """Values of the results in a folder, of a sweep one side's units; and of the layout of UDS."""
    found, sweeps = list[Values](), list[Path]()
    skipped = (*NO_RESULTS, *EPOCHS, *_NUMBERS)
    for place, names in folders_below(folder, closed_by=[PLAN], skipped=skipped, links=True):
        if PLAN in names:
            sweeps.append(place)
            continue
        waiting = [place / TO_DO] if TO_DO in names else []
        found += [Values(to_do=checked_as(dict[str, str], read_json(one), one)) for one in waiting]
        own = {place: place.name if place.name in EPOCHS else None}
        for layout, epoch in {**{place / one: one for one in EPOCHS}, **own}.items():
            found += _epoch(layout, epoch)
    ours = locate([unit for sweep in sweeps for unit in _units(sweep, attack)])[0]
    ours += [one for one in locate([folder])[0] if not {*sweeps}.intersection(one.path.parents)]
    read = set[Path]()
    for one in filter(_has_values, ours):
        place = one.path.parent
        # below an evaluation lies that of the retain model which it was compared with
        if read.isdisjoint((place, *place.parents)):
            found.append(_file(one.path, attack))
            read.add(place)
    return found


def _units(sweep: Path, attack: str | None) -> list[Path]:
    """Finished units of one side, by the models' names."""
    said = {one.parent: part(read_json(one)) for one in sweep.glob(f"{UNITS}/*/{RESULT}")}
    by_name = sorted(said, key=lambda unit: (str(said[unit].get("target")), unit))
    return [one for one in by_name if said[one].get("variant") == VARIANTS.get(attack, "base")]


def _has_values(found: Found) -> bool:
    """Whether a result has values of metrics: files of UDS have the names of ours."""
    if found.path.name == LOG:
        return True
    is_depth = found.kind in ("patch", "counterfactual") and found.path.name == SUMMARY
    return is_depth and "source" in part(read_json(found.path))


def read_log(
    content: Mapping[str, Any], path: Path, *, name: str = "", metrics: Iterable[str] = ()
) -> Values:
    """One model's log.

    Args:
        content: of the log.
        path: of the log.
        name: what the model is called here; else by the manifest beside the log, or the folder.
        metrics: what is read of the log, by the names of the suite; all without.
    """
    log, broken = log_in(content, path), set[str]()
    name, weights = name or short_name(log.source), model_in(log.manifest, "model").weights
    row: dict[str, float | str] = {}
    asked: dict[str, RowsAsked] = {}
    for suite in metrics or log.entries:
        key, entry = _KEYS.get(suite, suite), log.entries[suite]
        asked[key] = RowsAsked(path, _asked_of(log, suite))
        row[key] = (entry.reason or "null in the log") if entry.value is None else entry.value
        broken |= {key} if entry.value is None and entry.failed else set()
    known = {name: weights} if weights else {}
    own = Values({name: row}, weights=known, broken={name: broken}, asked={name: asked})
    return replace(own, ends=_ends(log.manifest or {}))


def _ends(manifest: Mapping[str, Any]) -> Mapping[str, Set[str]]:
    """`full` and `retain` -> what a manifest calls them, and their weights."""
    # an evaluation that read nothing of them names them alone
    named = part(manifest, "options")
    known = [(role, one) for role in ("full", "retain") if (one := named.get(role))]
    known += [(one.role, each) for one in roles_in(manifest) for each in (one.name, one.weights)]
    found = grouped((role, short_name(str(one))) for role, one in known)
    return {role: {*some} for role, some in found.items()}


Readings = dict[str, float | None]
_PLAIN: Mapping[str, Mapping[str, str]] = {
    "memorization": {f"avg_{k}": k for k in ("em", "es", "prob", "paraprob", "truth_ratio")},
    "uds": {"avg_uds": "uds"},
    "utility": {FLUENCY: FLUENCY},
}
"""Category -> its fields and our keys."""
_INNER: Mapping[str, Mapping[str, str]] = {
    "utility": _UTILITY,
    "gen_rouge": {key: key for key in ("rouge", "para_rouge", "jailbreak_rouge")},
}
"""The same of what lies in `metrics`."""


def _epoch(folder: Path, epoch: str | None) -> list[Values]:
    """Every `category/model/summary.json` of one epoch's folder."""
    found = []
    for path in (one for name in _NUMBERS for one in sorted(folder.glob(f"{name}/*/{SUMMARY}"))):
        row = _category(path.parts[-3], checked_object(read_json(path), f"{path}"), path)
        model = path.parent.name
        # the anchors are there once per epoch under one name, measured twice
        name = f"{model}_{epoch}" if epoch and model in ("full", "retain") else model
        found.append(values_of({name: row}))
    return found


def _category(name: str, content: Mapping[str, Any], path: Path) -> Readings:
    row = _picked(content, _PLAIN.get(name, {}), path)
    if name in _INNER:
        inner = checked_object(content.get("metrics"), f"{path}: metrics")
        row = _picked(inner, _INNER[name], path) | row
    attacks = content.get("attacks") if name == "privacy" else None
    for attack, raw in checked_object(attacks, f"{path}: attacks").items():
        own = _ATTACKED.get(attack)
        if own is None or not isinstance(raw, Mapping):
            raise InputError(f"{path}: unknown attack {attack!r}; wanted {', '.join(_ATTACKED)}")
        row |= _picked(raw, {"auc": f"mia_{own}", "s_mia": f"s_mia_{own}"}, path)
    return row


def _picked(content: Mapping[str, Any], keys: Mapping[str, str], path: Path) -> Readings:
    return {
        key: number(content[own], f"{path}: {own}") for own, key in keys.items() if own in content
    }


def attack_aucs(values: Values, retain: str) -> dict[str, float]:
    """What membership attacks reach on the retain model: the reference of s_MIA."""
    row = values.rows.get(retain, {}).items()
    return {key: one for key, one in row if key.startswith("mia_") and isinstance(one, float)}


def with_s_mia(values: Values, reference: Mapping[str, float]) -> Values:
    """s_MIA added where the attack's AUC is known and it is not.

    Args:
        values: the table.
        reference: attack key (`mia_loss`) -> AUC of the retain model, before any attack on it.
    """
    rows: dict[str, dict[str, float | str]] = {}
    for model, given in values.rows.items():
        rows[model] = dict(given)
        for key, own in ((_KEYS[suite], _KEYS[attack]) for suite, attack in ATTACKS.items()):
            area, of_retain = given.get(own), reference.get(own)
            if isinstance(given.get(key), float) or not isinstance(area, float):
                continue
            found: float | str = f"the retain model has no {own} to compare with"
            if of_retain is not None:
                found = similarity(area, of_retain)
                if not math.isfinite(found):
                    found = f"the retain model's {own} is {of_retain:g}, no denominator"
            rows[model][key] = found
    return replace(values, rows=rows)


PUBLISHED = "published"
"""As a pool: the 30 models of that side; as thresholds: `THRESHOLDS`."""

THRESHOLDS: Mapping[str, float] = {
    "em": 0.6134,
    "es": 0.0650,
    "prob": 0.2044,
    "paraprob": 0.0502,
    "truth_ratio": 0.5854,
    "rouge": 0.3931,
    "para_rouge": 0.2994,
    "jailbreak_rouge": 0.3728,
    "mia_loss": 0.6236,
    "mia_zlib": 0.3753,
    "mia_min_k": 0.6196,
    "mia_min_kpp": 0.4988,
    "uds": 0.7724,
    "logit_lens": 0.6754,
}
"""Raw value that tells the published pools apart; runs/meta_eval/robustness."""

N_USABLE: Mapping[str, int] = {
    "em": 16,
    "es": 14,
    "prob": 43,
    "paraprob": 40,
    "truth_ratio": 17,
    "rouge": 80,
    "para_rouge": 102,
    "jailbreak_rouge": 74,
    "mia_loss": 33,
    "mia_zlib": 18,
    "mia_min_k": 32,
    "mia_min_kpp": 28,
    "s_mia_loss": 33,
    "s_mia_zlib": 18,
    "s_mia_min_k": 32,
    "s_mia_min_kpp": 28,
    "uds": 12,
    "logit_lens": 16,
    "cka": 9,
    "fisher_masked_0.0001": 49,
    "fisher_masked_0.001": 48,
    "fisher_masked_0.01": 49,
}
"""Of 150 models, those behind a metric's published robustness; the file itself does not say."""

UDS_ROBUSTNESS = (0.9677, 0.8997)
"""Q and R of UDS in that file: in another one of its layout, n is not known."""

_INVERTED = {
    "one_minus_es": "es",
    "one_minus_em": "em",
    "one_minus_paraprob": "paraprob",
    "one_minus_truth": "truth_ratio",
}
_RENAMED = {
    "s_loss": "s_mia_loss",
    "s_zlib": "s_mia_zlib",
    "s_mink": "s_mia_min_k",
    "s_minkpp": "s_mia_min_kpp",
}
_AS_THEY_ARE = ("uds", "logit_lens", FLUENCY, *UTILITY_PARTS)
_SIDES = {
    "before": "metrics_before",
    "quantize": "metrics_after_quant",
    "relearn": "metrics_after_relearn",
}
"""Side of a robustness file -> its field."""


def method_results(content: Mapping[str, Any], path: Path) -> Values:
    """The measured values of `method_results.json`; its aggregates are computed again.

    Raises:
        InputError: a row is not what that file has.
    """
    names = {**_INVERTED, **_RENAMED, **{name: name for name in _AS_THEY_ARE}}
    rows: dict[str, Readings] = {}
    for place, raw in enumerate(content["models"], 1):
        where = f"{path}: model {place}"
        if not isinstance(raw, Mapping) or not isinstance(raw.get("model"), str):
            raise InputError(f"{where}: has no name; wanted the layout of method_results.json")
        if raw["model"] in rows:
            raise InputError(f"{where}: {raw['model']} is there twice")
        given = {key: one for key, one in raw.items() if key in names}
        row = {key: number(v, f"{where} ({raw['model']}): {key}") for key, v in given.items()}
        rows[raw["model"]] = {
            names[key]: 1 - one if one is not None and key in _INVERTED else one
            for key, one in row.items()
        }
    given = content.get("full_utility") or {}
    utility: dict[str | None, float] = checked_as(dict[str, Number], given, f"{path}: full_utility")
    if "ep10" in utility:  # the two anchors have no epoch in their names and are marked so there
        utility[None] = utility["ep10"]
    if not rows:
        raise InputError(f"{path}: its list of models is empty")
    return replace(values_of(rows), full_utility=utility)


def run_results(content: Mapping[str, Any], path: Path, *, attack: str | None) -> Values:
    """The authors' `results.json`: model -> {metrics}, or {metrics_before, metrics_after_…}.

    Args:
        content: the file.
        path: of the file, for messages.
        attack: which side of a robustness file: `before`, `quantize` or `relearn`; None for a
            file without sides.

    Raises:
        InputError: the file has no such side, or a value is not a number.
    """
    side = _SIDES[attack] if attack else "metrics"
    if attack == "before" and not any(side in raw for raw in content.values()):
        side, attack = "metrics", None
    rows: dict[str, Readings] = {}
    failed: dict[str, str] = {}
    for model, raw in content.items():
        name, own = short_name(model), raw.get(side, raw if attack is None else None)
        if not isinstance(own, Mapping):
            failed[name] = f"no {side} in {path.name}"
            continue
        metrics = {k: v for k, v in own.items() if not isinstance(v, str | Mapping)}
        if any(isinstance(v, int | float) for v in metrics.values()):
            rows[name] = {k: number(v, f"{path}: {model}: {k}") for k, v in metrics.items()}
        else:
            failed[name] = str(raw.get("error", f"no value in {path.name}"))
    if not rows:
        raise InputError(f"{path}: no model has {side}")
    return replace(values_of(rows), to_do=failed)


def checked_object(value: Any, where: str) -> Mapping[str, Any]:
    """An object of a result file; null counts as empty.

    Raises:
        InputError: it is none.
    """
    return checked_as(dict[str, Any] | None, value, where) or {}
