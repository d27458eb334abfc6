"""The published results: thresholds as printed, and readers of the authors' result files.

Source: gnueaj/unlearning-depth-score, docs/data/{method_results,meta_eval}.json and the run files
under runs/. None of these files come with this package.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError
from lensaudit.meta.values import Values, merged, short_name, values_of

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
_AS_THEY_ARE = (
    "uds",
    "logit_lens",
    "fluency",
    "retain_q_prob",
    "retain_q_rouge",
    "retain_truth_ratio",
    "ra_q_prob",
    "ra_q_rouge",
    "ra_truth_ratio",
    "wf_q_prob",
    "wf_q_rouge",
    "wf_truth_ratio",
)
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
    rows: dict[str, dict[str, float | None]] = {}
    for place, raw in enumerate(content["models"]):
        where = f"{path}: model {place + 1}"
        if not isinstance(raw, Mapping) or not isinstance(raw.get("model"), str):
            raise InputError(f"{where}: has no name; wanted the layout of method_results.json")
        if raw["model"] in rows:
            raise InputError(f"{where}: {raw['model']} is there twice")
        rows[raw["model"]] = _method_row(raw, where)
    utility: dict[str | None, float] = {
        epoch: checked_number(value, f"{path}: full_utility.{epoch}")
        for epoch, value in checked_object(
            content.get("full_utility"), f"{path}: full_utility"
        ).items()
    }
    if "ep10" in utility:  # the two anchors have no epoch in their names and are marked so there
        utility[None] = utility["ep10"]
    if not rows:
        raise InputError(f"{path}: its list of models is empty")
    found = values_of(rows)
    return Values(found.by_model, found.reasons, full_utility=utility)


def _method_row(raw: Mapping[str, Any], where: str) -> dict[str, float | None]:
    row: dict[str, float | None] = {}
    for key, value in raw.items():
        name = _INVERTED.get(key) or _RENAMED.get(key) or (key if key in _AS_THEY_ARE else None)
        if name is not None:
            number = number_or_none(value, f"{where} ({raw['model']}): {key}")
            row[name] = 1 - number if number is not None and key in _INVERTED else number
    return row


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
    rows: dict[str, dict[str, float | None]] = {}
    failed: dict[str, str] = {}
    for model, raw in content.items():
        name, where = short_name(model), f"{path}: {model}"
        own = raw.get(side, raw if attack is None else None)
        if not isinstance(own, Mapping):
            failed[name] = f"no {side} in {path.name}"
            continue
        metrics = {k: v for k, v in own.items() if not isinstance(v, str | Mapping)}
        if not any(isinstance(v, int | float) for v in metrics.values()):
            failed[name] = f"{raw['error']}" if "error" in raw else f"no value in {path.name}"
            continue
        rows[name] = {k: number_or_none(v, f"{where}: {k}") for k, v in metrics.items()}
    if not rows:
        raise InputError(f"{path}: no model has {side}")
    return merged([values_of(rows), Values(to_do=failed)])


def checked_object(value: Any, where: str) -> Mapping[str, Any]:
    """An object of a result file; null counts as empty.

    Raises:
        InputError: it is none.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f"{where} is {str(value)[:40]!r}, wanted an object")
    return value


def number_or_none(value: Any, where: str) -> float | None:
    """A number of a result file; null stays null.

    Raises:
        InputError: neither.
    """
    return None if value is None else checked_number(value, where)


def checked_number(value: Any, where: str) -> float:
    """A number of a result file.

    Raises:
        InputError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{where} is {value!r}, wanted a number")
    return float(value)
