"""What does a model say? A finished run of `lensaudit eval`, or another tool's log."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_serializer, model_validator

from lensaudit.errors import Failure, FailureKind, InputError, WorkError
from lensaudit.results.integrity import check_result
from lensaudit.results.manifest import MANIFEST, model_in
from lensaudit.results.reading import (
    JsonObject,
    Number,
    check_inside,
    checked,
    document,
    json_object,
    null,
    part,
)
from lensaudit.scores.estimate import Estimate
from lensaudit.settings import Suite

_SHARE = re.compile(
    r"uds|logit_lens|em_erasure|mia_.+|\w+_(Prob|ROUGE)|exact_memorization|extraction_strength\w*|"
    r"forget_quality|model_utility"
)
"""Metrics that are a share, a probability or an area: from 0 to 1."""


Record = Mapping[str, Any]
"""The scores of one row under open-unlearning's names; lists where a row has alternatives."""
_SIDES = ("forget", "holdout")
"""Of a membership attack: rows that were trained on, and others."""
_OWN = {
    *("agg_value", "value_by_index", "unscored", "reason", "failed"),
    *("interval_95", "interval_95_why", "interval_95_assumes", *_SIDES),
}
"""Fields of an entry of a log; others are `details`."""
_TEXTS = ("input", "ground_truth", "generation")
HOW = {
    "template": "template",
    "mask": "--mask",
    "empty": "--set empty",
    "cleanup": "--cleanup",
    "think": "--think",
    "n_new": "--max-new-tokens",
}
"""Conditions under which a row is asked, encoded and scored, and what chooses them."""


@dataclass(frozen=True)
class MetricResult(Estimate):
    """A metric of one model, its interval by authors; `why` there is no value, or no interval.

    Computed, written in a log of open-unlearning's layout, and read from one.
    """

    value: Annotated[Number | None, Field(alias="agg_value")] = None
    unscored: Mapping[int, str] = field(default_factory=dict)
    """idx -> reason; counted in the report, never averaged as 0."""
    records: Annotated[Mapping[int, Record], Field(alias="value_by_index")] = field(
        default_factory=dict
    )
    """idx -> what `value_by_index` of a log holds."""
    parts: Mapping[str, "MetricResult"] = field(default_factory=dict)
    """Membership inference: its two sides."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further numbers worth logging: a KS statistic, sample sizes, the parts of a mean."""
    failed: FailureKind | None = None
    """How a pass that it reads broke: `why` is no answer, it is worth another try."""
    assumes: str | None = None
    """What the interval takes for granted of rows that name no author."""
    family: str = "other"
    """Of a log that was read: what its manifest says."""
    high_means: Literal["knows", "forgot"] | None = None
    """The same; None where no manifest says."""
    source: str = ""

    @property
    def betrayal(self) -> Mapping[str, Any]:
        """Of a membership attack, what `metrics.betrayal` says of it; of others nothing."""
        return part(self.details, "betrayal")

    @model_validator(mode="before")
    @classmethod
    def _in_log(cls, entry: Any) -> Any:
        """An entry of a log, by field."""
        if not isinstance(entry, Mapping):
            return entry
        if "agg_value" not in entry:
            raise ValueError("has no 'agg_value'")
        rows, ends = part(entry, "value_by_index"), entry.get("interval_95") or (None, None)
        if not isinstance(ends, list | tuple) or len(ends) != 2:
            raise ValueError(f"interval_95: found {ends!r:.40}, wanted two numbers")
        gaps = {idx: "null in the log" for idx, row in rows.items() if None in part(row).values()}
        known = {idx: row for idx, row in rows.items() if idx not in gaps}
        sides = {side: entry[side] for side in _SIDES if entry.get(side) is not None}
        return {
            "agg_value": null(entry["agg_value"]),
            "low": ends[0],
            "high": ends[1],
            "why": entry.get("reason") or entry.get("interval_95_why"),
            "value_by_index": known if rows else entry.get("value_by_index") or {},
            "unscored": gaps | part(entry, "unscored"),
            "parts": sides if len(sides) == len(_SIDES) else {},
            "failed": entry.get("failed"),
            "assumes": entry.get("interval_95_assumes"),
            "details": {name: one for name, one in entry.items() if name not in _OWN},
        }

    @model_serializer
    def _written(self) -> dict[str, Any]:
        """An entry in open-unlearning's layout, with reasons where it has gaps."""
        rows = {str(idx): null(record) for idx, record in self.records.items()}
        fields = next(iter(rows.values()), {"score": None})
        headline = {key: None for key in fields if key not in _TEXTS}
        gaps = {str(idx): headline for idx in self.unscored if str(idx) not in rows}
        out: dict[str, Any] = {name: document(part) for name, part in self.parts.items()}
        out |= {name: null(value) for name, value in self.details.items()}
        out["agg_value"] = null(self.value)
        if rows or (gaps and not self.parts):
            out["value_by_index"] = dict(sorted((rows | gaps).items(), key=lambda row: int(row[0])))
        if self.unscored:
            out["unscored"] = {str(idx): reason for idx, reason in sorted(self.unscored.items())}
        out |= {name: one for name in ("reason", "failed") if (one := getattr(self, name))}
        if self.ends:
            out["interval_95"] = list(self.ends)
        elif self.value is not None and self.why:
            out |= self.limits("interval_95")
        if self.assumes:
            out["interval_95_assumes"] = self.assumes
        return out

    @property
    def reason(self) -> str | None:
        """Why there is no value; None where there is one."""
        return self.why if self.value is None else None

    @property
    def sides(self) -> "tuple[MetricResult, ...]":
        """Values of an attack on members and on strangers; of any other metric the value itself."""
        return (*self.parts.values(),) or (self,)

    @property
    def n_scored(self) -> int:
        """Rows with a score; of an attack on both sides."""
        return sum(len(one.records) for one in self.sides)

    @property
    def n_unscored(self) -> int:
        """Rows without one."""
        return sum(len(one.unscored) for one in self.sides)


def log_name(suite: Suite) -> str:
    """Name of the log of an evaluation, in open-unlearning's layout.

    >>> log_name("muse")
    'MUSE_EVAL.json'
    """
    return f"{suite.upper()}_EVAL.json"


LOGS = tuple(map(log_name, get_args(Suite)))
"""Names that a log may have."""


@dataclass(frozen=True)
class EvaluationResult:
    """What an evaluation found of one model, as its log holds it."""

    source: str
    path: Path
    """Of the log, <SUITE>_EVAL.json; beside it results.jsonl and manifest.json."""
    suite: Suite
    entries: Mapping[str, MetricResult]
    """Metric -> what was found of it; a reason where that is nothing."""
    notes: tuple[str, ...] = ()
    """How texts were encoded, where that needs saying."""
    manifest: JsonObject | None = None
    """Of a log that was read; None of another tool's, which has none."""

    @property
    def folder(self) -> Path:
        """Folder of the log."""
        return self.path.parent

    @property
    def weights(self) -> str:
        """Content hash of the model; its name where no manifest says."""
        return model_in(self.manifest, "model").weights or self.source

    @property
    def conditions(self) -> Mapping[str, Any]:
        """How its rows were asked; nothing where another tool's log does not say."""
        made, options = part(self.manifest, "inputs", "conditions"), part(self.manifest, "options")
        return {**{name: options[name] for name in HOW if name in options}, **made} if made else {}

    def asked(self, *splits: str) -> dict[str, Any]:
        """Content of rows by split, and `HOW` they were asked; None where a log does not say.

        Args:
            splits: of the suite; `annotated` are the facts that were patched.
        """
        inputs, how = part(self.manifest, "inputs"), self.conditions
        n_new = {name: n for name, n in part(how, "n_new").items() if name in splits}
        return {
            **{of: (inputs if of == "annotated" else self.rows).get(of) for of in splits},
            **{name: how.get(name) for name in HOW},
            "n_new": n_new or None,
        }

    @property
    def rows(self) -> Mapping[str, Any]:
        """Split -> content hash of its rows; nothing of another tool's log."""
        return part(self.manifest, "inputs", "data")

    @property
    def summary(self) -> Mapping[str, float | None]:
        """Metric -> value; None where it has none: see `why_not`."""
        return {name: entry.value for name, entry in self.entries.items()}

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Metrics whose pass broke; the others are there."""
        entries = self.entries.items()
        return tuple(Failure(self.source, n, e.failed, e.why or "") for n, e in entries if e.failed)

    def why_not(self, metric: str) -> str | None:
        """Why a metric has no value; None where it has one."""
        return self.entries[metric].reason

    @property
    def uds(self) -> float | None:
        """Unlearning Depth Score, where a retain model was named; else None: see `reason`."""
        return self.summary.get("uds")

    @property
    def ci95(self) -> tuple[float, float] | None:
        """95 % interval of `uds` by authors; None where there is none."""
        return None if self.uds is None else self.entries["uds"].ends

    @property
    def reason(self) -> str | None:
        """Why there is no UDS; None where there is one."""
        return self.why_not("uds") if "uds" in self.entries else "UDS was not asked for"

    def checked(self) -> "EvaluationResult":
        """Itself, if any metric has a value.

        Raises:
            WorkError: none has; the first reason is named.
        """
        if any(entry.value is not None for entry in self.entries.values()):
            return self
        first = next(iter(self.entries.values()))
        raise WorkError(f"no metric has a value; {first.reason}; see {self.folder}")


def entries_of(content: Mapping[str, Any], where: object) -> dict[str, MetricResult]:
    """The metrics of a log by name.

    Raises:
        InputError: one of them is no metric.
    """
    found = {}
    for name, raw in content.items():
        place = f"{where}: {name}"
        one = checked(MetricResult, raw, place)
        check_inside(one, place)
        check_share(name, one.value, place)
        found[name] = replace(one, n=one.n_scored)
    return found


def check_share(name: str, value: float | None, where: object) -> None:
    """Refuse a share, a probability or an area that is none; other metrics pass.

    Raises:
        InputError: it is not from 0 to 1.
    """
    plain = name.partition(":")[0]  # options stand behind it
    if value is not None and _SHARE.fullmatch(plain) and not -1e-6 <= value <= 1 + 1e-6:
        raise InputError(f"{where} is {value:g}, wanted 0 to 1")


def read_eval(log_file: Path) -> EvaluationResult:
    """A log in open-unlearning's layout, with the manifest beside it where there is one.

    Raises:
        InputError: it is not a log.
    """
    check_result(log_file)
    return log_in(json_object(log_file), log_file)


def log_in(content: Mapping[str, Any], log_file: Path) -> EvaluationResult:
    """The evaluation that a log's content describes."""
    entries = entries_of(content, log_file)
    if not entries:
        raise InputError(f"{log_file}: holds no metric")
    manifest_file = log_file.with_name(MANIFEST)
    manifest = json_object(manifest_file) if manifest_file.exists() else None
    inputs = part(manifest, "inputs")
    for name, told in part(inputs, "metrics").items():
        if name in entries:
            said = {key: told[key] for key in ("family", "high_means", "source") if key in told}
            entries[name] = replace(entries[name], **said)
    is_muse = log_file.name.startswith("MUSE") or any("mem_ROUGE" in name for name in entries)
    return EvaluationResult(
        model_in(manifest, "model", manifest_file).name or log_file.parent.name,
        log_file,
        "muse" if is_muse else "tofu",
        entries,
        tuple(inputs.get("notes") or ()),
        manifest,
    )
