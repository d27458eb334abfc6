"""What a run found, as its folders hold it; no model library is imported.

Examples and layers as frames, a table and a picture are read from the same files; pandas and
matplotlib are imported when they are asked for.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lensaudit.auditing.settings import AuditSettings
from lensaudit.data.suites import DEMO_DATA
from lensaudit.data.tofu import DEMO, FORGET10
from lensaudit.errors import Failure, InputError, WorkError
from lensaudit.files import slug
from lensaudit.models.registry import default_anchor
from lensaudit.results.patch_runs import SCORES
from lensaudit.results.reading import csv_rows, json_object
from lensaudit.results.records import COMPARISON, MANIFEST, RunResult
from lensaudit.settings import Kept, Score, results_folder, several
from lensaudit.verdict.collect import Verdicts, verdicts
from lensaudit.verdict.decide import Verdict
from lensaudit.verdict.decide import said as sentence
from lensaudit.verdict.depth import calibration_problem
from lensaudit.verdict.keeps import Keeps

SUMMARY = "summary.json"


class Shown:
    """What the result of patching one model shows of itself."""

    @property
    def _run(self) -> tuple[str, Path, Mapping[str, Any]]:
        """Name of the model, folder of the patching run, and its summary."""
        raise NotImplementedError

    @property
    def examples(self) -> "pd.DataFrame":
        """A row per example: text, score, or why it has none; see `la.frames.examples`."""
        from lensaudit.results import frames

        return frames.examples(self._run[1])

    @property
    def layers(self) -> "pd.DataFrame":
        """A row per example and layer: S1, S2, erasure; see `la.frames.layers`."""
        from lensaudit.results import frames

        return frames.layers(self._run[1])

    def plot(self, what: str = "layers", *, ax: "Axes | None" = None) -> "Axes":
        """Draw S1 and S2 by `layers`, the erasure of `examples`, or the `depth` with its interval.

        Of exact match S1 and S2 are the shares of the answer that are lost.

        `.figure.savefig(…)` of what is returned keeps the picture.

        Raises:
            InputError: matplotlib is not installed.
            ValueError: there is no such picture.
        """
        from lensaudit.results import plot

        pictures = {"layers": plot.layer_profile, "examples": plot.heatmap, "depth": plot.depth}
        if what not in pictures:
            raise ValueError(f"{what!r}: wanted one of {', '.join(pictures)}")
        return pictures[what](self._run[1], ax=ax)

    def _repr_html_(self) -> str:
        """The verdict, and S1, S2 and erasure by layer, for Jupyter."""
        source, folder, summary = self._run
        if summary["score"] == "em":
            words = f"{source}: exact-match erasure {_number(summary['udr'])}"
        else:
            words = sentence(summary)
        layers: Sequence[Mapping[str, Any]] = summary["per_layer"]
        known = [key for key in _COLUMNS if layers and key in layers[0]]
        rows = "".join(
            f"<tr>{''.join(f'<td>{_number(one[key])}</td>' for key in known)}</tr>"
            for one in layers
        )
        head = "".join(f"<th>{key}</th>" for key in known)
        where = escape(str(folder))
        return (
            f"<p>{escape(words)}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
            f"</table><p><small>{summary['n_scored']} of {summary['n']} examples scored; "
            f"<code>{where}</code></small></p>"
        )


class PatchResult(Shown, RunResult):
    """What patching found of one model, and where it is: results.jsonl and layers.csv, too."""

    @property
    def _run(self) -> tuple[str, Path, Mapping[str, Any]]:
        return self.source, self.folder, self.summary

    @property
    def score(self) -> Score | Literal["counterfactual"]:
        """Kind of score that was computed; `counterfactual` is that of a run without retain."""
        return self.summary["score"]

    @property
    def value(self) -> float | None:
        """The score; None where no example could be scored: `reason` says why."""
        return self.summary[SCORES[self.score]]

    @property
    def uds(self) -> float | None:
        """Unlearning Depth Score, 0 intact to 1 erased; None where there is none: see `reason`."""
        return self.value if self.score == "uds" else None

    @property
    def aligned(self) -> float | None:
        """UDS after a map to `full`'s basis: all there is of a source of another size; or None."""
        return self.summary.get("aligned", {}).get("uds")

    @property
    def found_nothing(self) -> bool:
        """Is there no depth at all, neither plain nor aligned?"""
        return self.value is None and self.aligned is None

    @property
    def verdict(self) -> Verdict:
        """What may be said of the model, and what decided it."""
        return Verdict(**self.summary["verdict"])

    @property
    def off(self) -> str | None:
        """What is wrong with the scale of this run; None where its depths may be read."""
        if self.uds is None and self.aligned is None:
            return None
        return calibration_problem(self.summary["calibration"])

    @property
    def ci95(self) -> tuple[float, float] | None:
        """95 % interval of `value` by authors; None where there is none: `summary["ci95_why"]`."""
        ends = self.summary["ci95"]
        return None if ends is None else (ends[0], ends[1])

    @property
    def unscored(self) -> Mapping[int, str]:
        """Idx -> why this example has no score."""
        return {int(idx): why for idx, why in self.summary["unscored"].items()}

    @property
    def reason(self) -> str | None:
        """Why there is no UDS; None where there is one."""
        if self.uds is not None:
            return None
        if self.value is not None:
            return f"the score is {self.score}; UDS was not asked for"
        first = next(iter(self.unscored.values()), "")
        return f"no example could be scored ({first})"


@dataclass(frozen=True)
class Patched:
    """The results of one run."""

    results: tuple[PatchResult, ...]
    comparison: tuple[Sequence[Any], ...] = ()
    """Paired differences between the models, the rows of comparison.csv; of several only."""


def read_patched(folders: Mapping[str, Path]) -> Patched:
    """The results of a finished run.

    Args:
        folders: of each source; of several, beside their comparison if the score has one.

    Raises:
        InputError: a file is missing or damaged.
    """
    results = [PatchResult(name, one, json_object(one / SUMMARY)) for name, one in folders.items()]
    table = next(iter(folders.values())).parent / COMPARISON
    if len(results) == 1 or results[0].score == "em":
        return Patched(tuple(results))
    try:
        rows = zip(combinations(folders, 2), csv_rows(table), strict=True)
        return Patched(tuple(results), tuple(_pair(names, row) for names, row in rows))
    except ValueError as error:
        raise InputError(f"{table}: holds other rows than pairs of these models") from error


def _pair(names: tuple[str, str], row: Mapping[str, str]) -> list[Any]:
    """A row of comparison.csv; names as they were given, which a table may spell otherwise."""
    *numbers, n, n_groups, why = list(row.values())[2:]
    return [*names, *(float(one) if one else "" for one in numbers), int(n), int(n_groups), why]


if TYPE_CHECKING:
    import pandas as pd  # pyright: ignore[reportMissingTypeStubs]
    from matplotlib.axes import Axes

    from lensaudit.metrics.registry import MetricResult

_COLUMNS = ("layer", "n_ke", "s1", "s2", "erasure", "s1_em", "s2_em")


def _number(value: float | int | None) -> str:
    """Three decimals; whole numbers as they are, a dash for none.

    >>> _number(0.12345), _number(3), _number(None)
    ('0.123', '3', '–')
    """
    if value is None:
        return "–"
    return str(value) if isinstance(value, int) else f"{value:.3f}"


@dataclass(frozen=True)
class EvaluationResult:
    """What an evaluation found of one model, and where it is."""

    source: str
    folder: Path | None
    """Holds <SUITE>_EVAL.json, results.jsonl and manifest.json; None: nothing was written."""
    entries: "Mapping[str, MetricResult]"
    """Metric -> what was found of it; a reason where that is nothing."""
    notes: tuple[str, ...] = ()
    """How texts were encoded, where that needs saying."""
    failures: tuple[Failure, ...] = ()
    """Patched scores that broke; the other metrics are there."""

    @property
    def summary(self) -> Mapping[str, float | None]:
        """Metric -> value; None where it has none: see `why_not`."""
        return {name: entry.value for name, entry in self.entries.items()}

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
        if self.uds is not None:
            return None
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


def read_evaluation(model: str, folder: Path) -> EvaluationResult:
    """The result of a finished evaluation, from its files.

    Raises:
        InputError: they hold no log.
    """
    from lensaudit.evaluation.log import read_log  # a second to import

    return EvaluationResult(model, folder, read_log(folder).entries)


class CacheResult(RunResult):
    """The complete caches of one model; or, under `parts`, that of one part of its layers."""

    @property
    def key(self) -> str:
        """Hash of all that decides the numbers of the first part."""
        return self.summary["key"]

    @property
    def n_bytes(self) -> int:
        """Size of all parts, bytes."""
        return self.summary["bytes"]

    @property
    def n(self) -> int:
        """Examples."""
        return self.summary["n"]

    @property
    def unscored(self) -> Mapping[int, str]:
        """Idx -> why the tokenizer lost its span."""
        return {int(idx): why for idx, why in self.summary["unscored"].items()}

    @property
    def parts(self) -> "Mapping[Kept, CacheResult]":
        """By part: `resid`, `attn` …; those that were asked for."""
        found = self.summary.get("parts", {"resid": self.summary})
        own = {name: self.summary[name] for name in ("n", "unscored")}
        return {
            part: CacheResult(self.source, Path(one["folder"]), own | one)
            for part, one in found.items()
        }


PATCH, EVAL, KNOW = "patch", "eval", "know"
"""Of an audit's folder: depth, what each model says, and which values it binds to whom."""
LOG = "TOFU_EVAL.json"
AUDIT_MANIFEST = f"audit_{MANIFEST}"
"""Beside the page: what the whole run asked, and every file of its parts."""


@dataclass(frozen=True)
class AuditResult(Shown):
    """What an audit found of one model, and where it is."""

    source: str
    folder: Path
    """Of the whole audit."""
    patch: PatchResult
    evaluated: Callable[[], "EvaluationResult | None"]
    """Reads what it says: that takes a moment."""
    failures: tuple[Failure, ...]
    """Steps of this model, or of the retain model it is compared with, that failed."""
    verdict: Verdict
    """What may be said of the model after all that lies in the folder, and what decided it."""
    keeps: tuple[Keeps, ...] = ()
    """What it keeps beside `full`; none where no rows to keep were given."""
    association: Mapping[str, Any] | None = None
    """Who has what, as `know` writes summary.json; None where it was not asked."""

    @cached_property
    def evaluation(self) -> "EvaluationResult | None":
        """What it says; None where that was not asked, or failed: see `failures`."""
        return self.evaluated()

    @property
    def _run(self) -> tuple[str, Path, Mapping[str, Any]]:
        shown = {**self.summary, "verdict": self.verdict.document()}
        return self.source, self.patch.folder, shown

    @property
    def uds(self) -> float | None:
        """Unlearning Depth Score, 0 intact to 1 erased; None where there is none: see `reason`."""
        return self.patch.uds

    @property
    def ci95(self) -> tuple[float, float] | None:
        """95 % interval of `uds` by authors; None where there is none: see `patch.summary`."""
        return self.patch.ci95

    @property
    def reason(self) -> str | None:
        """Why there is no UDS; None where there is one."""
        return self.patch.reason

    @property
    def summary(self) -> Mapping[str, Any]:
        """The content of summary.json."""
        return self.patch.summary

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """Output-level metrics by name; None where one has no value."""
        return self.evaluation.summary if self.evaluation else {}


@dataclass(frozen=True)
class Audited:
    """The results of one run."""

    folder: Path
    results: tuple[AuditResult, ...]
    failures: tuple[Failure, ...]
    folders: tuple[Path, ...]
    """With results: for a page."""
    verdicts: Verdicts
    """What may be said after all that lies in the folder."""


def audited(
    folder: Path,
    depths: Sequence[PatchResult],
    said: Callable[[str], EvaluationResult | None],
    known: Mapping[str, Path],
    folders: Sequence[Path],
    failures: Sequence[Failure] = (),
    beside: Collection[str] = (),
) -> Audited:
    """The results of an audit, joined from those of its steps.

    Args:
        folder: of all results.
        depths: what patching found of each source.
        said: reads what the evaluation found of a source.
        known: folder of what `know` found, of the sources that were asked.
        folders: with results, for a page.
        failures: steps that failed.
        beside: models that every source is compared with.
    """
    judged = verdicts([folder])
    results = tuple(
        AuditResult(
            one.source,
            folder,
            one,
            partial(said, one.source),
            tuple(f for f in failures if f.model in (one.source, *beside)),
            judged.of_model(one.folder, one.source) or one.verdict,
            judged.keeps(one.folder),
            json_object(known[one.source] / SUMMARY) if one.source in known else None,
        )
        for one in depths
    )
    return Audited(folder, results, tuple(failures), tuple(folders), judged)


def audit_folder(sources: Sequence[str], folder: Path | None = None) -> Path:
    """Where the results of an audit go."""
    first, *others = dict.fromkeys(sources)
    more = f"-and-{len(others)}-more" if others else ""
    return folder or results_folder() / f"audit-{slug(first)}{more}"


def own_data(data: str | None) -> tuple[str | None, Path | None]:
    """The suite's data and own forget rows: a known set, a folder of TOFU's files, or rows."""
    if data in (None, FORGET10):
        return None, None
    if data == DEMO:
        return DEMO_DATA, None
    path = Path(data or "").expanduser()
    return (str(path), None) if path.is_dir() else (None, path)


def anchor_and_models(
    names: Sequence[str], settings: AuditSettings
) -> tuple[str | None, tuple[str, ...]]:
    """The retain model, if there is one, and every model that is evaluated, that one first.

    Where own rows to keep are given, `full` is the last: what others keep stands beside it.
    """
    anchor = None
    if not settings.without_retain:
        anchor, *_ = several(settings.retain) or (default_anchor("retain", names),)
    if settings.suite != "tofu":
        return anchor, ()
    full = settings.full or default_anchor("full", names)
    wanted = (anchor, *names, full if settings.retain_set else None)
    return anchor, tuple(dict.fromkeys(filter(None, wanted)))
