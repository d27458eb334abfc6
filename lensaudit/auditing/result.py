"""Results of a run, read from its folders; no model library is imported."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from lensaudit.auditing.question import anchored, evaluations
from lensaudit.auditing.settings import AuditSettings
from lensaudit.errors import Failure
from lensaudit.evaluation.log import read_log
from lensaudit.results.kinds.eval import EvaluationResult
from lensaudit.results.kinds.know import KnowRecord
from lensaudit.results.kinds.patch import PatchSummary
from lensaudit.results.manifest import KNOW, PATCH
from lensaudit.results.owner import folders_for
from lensaudit.results.reading import SUMMARY, read_as
from lensaudit.results.run import RunResult
from lensaudit.settings import Score
from lensaudit.verdict.collect import Keeps, Verdicts, verdicts
from lensaudit.verdict.decide import Verdict, Word
from lensaudit.verdict.depth import calibration_problem


class PatchResult(RunResult):
    """Result of patching one model: its depth, and the folder with results.jsonl and layers.csv."""

    @property
    def score(self) -> Score | Literal["counterfactual"]:
        """Kind of score that was computed; `counterfactual` is that of a run without retain."""
        return self.record.score

    @property
    def value(self) -> float | None:
        """The score; None where no example could be scored: `reason` says why."""
        return self.record.estimate.value

    @property
    def uds(self) -> float | None:
        """Unlearning Depth Score, 0 held to 1 erased; None where there is none: see `reason`."""
        return self.value if self.score == "uds" else None

    @property
    def aligned(self) -> float | None:
        """UDS after a map to `full`'s basis: all there is of a source of another size; or None."""
        found = self.record.aligned.uds
        return found and found.value

    @property
    def found_nothing(self) -> bool:
        """Whether there is no depth at all, neither plain nor aligned."""
        return self.value is None and self.aligned is None

    @property
    def verdict(self) -> Verdict:
        """The verdict of the model, and what decided it."""
        return self.record.verdict

    @property
    def off(self) -> str | None:
        """What is wrong with the scale of this run; None where its depths may be read."""
        if self.uds is None and self.aligned is None:
            return None
        return calibration_problem(self.record.calibration)

    @property
    def reason(self) -> str | None:
        """Why there is no UDS; None where there is one."""
        if self.uds is not None:
            return None
        if self.value is not None:
            return f"the score is {self.score}; UDS was not asked for"
        return f"no example could be scored ({next(iter(self.unscored.values()), '')})"


def read_patched(folders: Mapping[str, Path]) -> list[PatchResult]:
    """The results of a finished run, by the folder of each source.

    Raises:
        InputError: a file is missing or damaged.
    """
    return [
        PatchResult(name, one, read_as(PatchSummary, one / SUMMARY))
        for name, one in folders.items()
    ]


def read_evaluation(model: str, folder: Path) -> EvaluationResult:
    """The result of a finished evaluation, from its files.

    Raises:
        InputError: they hold no log.
    """
    return replace(read_log(folder), source=model)


@dataclass(frozen=True)
class AuditResult(PatchResult):
    """Result of an audit of one model: its depth, what it says, and its verdict.

    `folder` is that of the whole audit.
    """

    patch: PatchResult
    said_in: Path | None
    """Folder of its evaluation; None where that was not asked, or failed: see `failures`."""
    failures: tuple[Failure, ...]
    """Steps of this model, or of the retain model it is compared with, that failed."""
    judged: Verdict
    """After all that lies in the folder."""
    word: Word
    """The verdict in a word: a key of `WORDS`."""
    keeps: tuple[Keeps, ...] = ()
    """What it keeps beside `full`; none where no rows to keep were given."""
    association: KnowRecord | None = None
    """Who has what, as `know` found it; None where it was not asked."""

    @property
    def verdict(self) -> Verdict:
        """The verdict of the model after all that lies in the folder, and what decided it."""
        return self.judged

    @cached_property
    def evaluation(self) -> EvaluationResult | None:
        """What it says, read when it is asked for; None where that was not asked, or failed."""
        return None if self.said_in is None else read_evaluation(self.source, self.said_in)

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
    verdicts: Verdicts
    """What may be said after all that lies in the folder."""


def joined(
    folder: Path,
    depths: Sequence[PatchResult],
    said: Mapping[str, Path],
    known: Mapping[str, Path],
    failures: Sequence[Failure] = (),
    beside: Collection[str] = (),
) -> Audited:
    """The results of an audit, joined from those of its steps.

    Args:
        folder: of all results.
        depths: what patching found of each source.
        said: folders of evaluations by model.
        known: folders of what `know` found, of the sources that were asked.
        failures: steps that failed.
        beside: models that every source is compared with.
    """
    judged, failed = verdicts([folder]), {one.model for one in failures if one.step == "evaluate"}
    results = tuple(
        AuditResult(
            one.source,
            folder,
            one.record,
            one,
            None if one.source in failed else said.get(one.source),
            tuple(f for f in failures if f.model in (one.source, *beside)),
            *_said_of(one, judged),
            read_as(KnowRecord, known[one.source] / SUMMARY) if one.source in known else None,
        )
        for one in depths
    )
    return Audited(folder, results, tuple(failures), judged)


def _said_of(one: PatchResult, judged: Verdicts) -> tuple[Verdict, Word, tuple[Keeps, ...]]:
    """The verdict of a model, and what it keeps, after all in the folder; else by its run alone."""
    (known, _), alone = judged.of(one.folder), one.verdict
    return (known.verdict, known.word, known.keeps) if known else (alone, alone.code, ())


def read_audit(names: Sequence[str], settings: AuditSettings, folder: Path) -> Audited:
    """The results of a finished audit.

    Raises:
        InputError: a file is missing or damaged.
    """
    places = folders_for(names, folder / KNOW) if settings.association != "none" else {}
    return joined(
        folder,
        read_patched(folders_for(names, folder / PATCH)),
        {name: place for name, _, place in evaluations(names, anchored(names, settings), folder)},
        {name: place for name, place in places.items() if (place / SUMMARY).exists()},
    )
