"""How often is the verdict wrong, on models whose truth is known? And what its nulls are.

A row of the ledger that holds `evidence` holds what a result folder's summary would: the verdict
reads it as it reads a folder. Models of one seed are not independent, so bounds count seeds too.
With the table of auditors this is what `gym table` shows: a document, text, files beside it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lensaudit.files import write_json
from lensaudit.gym.table import (
    ANCHOR,
    FORGOT,
    KNOWS,
    AuditorJudgement,
    GymRow,
    Share,
    heat_map,
    markdown,
    share,
    share_text,
    table,
)
from lensaudit.results.records import signed
from lensaudit.verdict.attacks import READERS
from lensaudit.verdict.decide import Code, Evidence, verdict_of
from lensaudit.verdict.depth import of_patch
from lensaudit.verdict.nulls import Calibration, Null
from lensaudit.verdict.words import HOLDS

FEWEST_NULL = 4
"""Models that never knew below which a view has no null."""
TENTH = 0.1
"""Share of the facts from which a model that holds them may not be called erased."""


@dataclass(frozen=True)
class JudgedEvidence:
    """A model whose truth is known, and what is known of it."""

    model: str
    mechanism: str
    truth: str
    held_out: bool
    seed: int
    holds: float
    """Share of the facts that it holds."""
    patch: Mapping[str, Any]
    """As `summary.json`, with `rows`."""
    attacks: Mapping[str, Any]
    """Kind of result -> the content of its summary."""

    def evidence(self, nulls: Calibration, *, patch_only: bool = False) -> Evidence:
        """What a verdict is decided from."""
        views, stream = of_patch(self.patch, self.patch["rows"], nulls, self.model)
        told = {} if patch_only else self.attacks
        more = [
            view
            for kind, content in told.items()
            for one in READERS[kind](content, self.model, nulls)  # type: ignore[index]
            for view in one.views
        ]
        return Evidence(self.model, [*views, *more], stream)


def planted(rows: Sequence[GymRow]) -> list[JudgedEvidence]:
    """The models of a ledger that were asked all that `patch` asks."""
    told: dict[str, dict[str, Any]] = defaultdict(dict)
    about: dict[str, GymRow] = {}
    for row in rows:
        if row["truth"] != ANCHOR and row.get("evidence"):
            told[row["model"]] |= row["evidence"]
            about[row["model"]] = row
    return [
        JudgedEvidence(
            model,
            row["mechanism"],
            row["truth"],
            row["held_out"],
            row["seed"],
            _held(row, len(found["patch"]["rows"])),
            found["patch"],
            {kind: content for kind, content in found.items() if kind != "patch"},
        )
        for model, found in told.items()
        if "patch" in found and (row := about[model])
    ]


def _held(row: GymRow, n: int) -> float:
    if row["truth"] in KNOWS:
        return 1.0
    return len(row["knows"] or ()) / n if row["truth"] == "partial" and n else 0.0


def nulls_of(models: Sequence[JudgedEvidence], chosen: Collection[str]) -> dict[str, Null]:
    """How every view reads models that never knew, of these mechanisms."""
    values: dict[str, list[float]] = defaultdict(list)
    for one in models:
        if one.truth in FORGOT and one.mechanism in chosen:
            for view in one.evidence({}).views:
                if view.held is not None and view.control is None:
                    values[view.name].append(view.held.point)
    return {
        name: Null(float(np.mean(own)), float(np.std(own, ddof=1)), len(own))
        for name, own in values.items()
        if len(own) >= FEWEST_NULL
    }


@dataclass(frozen=True)
class Confusion:
    """How often which word was said, of models whose truth is known."""

    knows: Mapping[str, Share]
    """Of models that hold every fact, silenced or not."""
    partial: Mapping[str, Share]
    """Of models that hold at least a tenth of them."""
    absent: Mapping[str, Share]
    """Of models that never saw them."""
    wrong: tuple[str, ...]
    """Mechanism, strength and seed of holders called erased, and of absent ones called held."""
    seeds_wrong: Share
    """Seeds with at least one such model: what bounds the error over seeds."""


SAID: Mapping[str, tuple[Code, ...]] = {
    "holds": HOLDS,
    "partly": ("partly_erased",),
    "erased": ("erased",),
    "undecided": ("undecided", "unreadable", "unscored"),
}
"""Columns of the table."""


def confusion(judged: Iterable[tuple[JudgedEvidence, Code]]) -> Confusion:
    """Counts of verdicts by truth."""
    found = list(judged)

    def side(chosen: Iterable[tuple[JudgedEvidence, Code]]) -> dict[str, Share]:
        codes = [code for _, code in chosen]
        return {
            name: share(sum(code in words for code in codes), len(codes))
            for name, words in SAID.items()
        }

    wrong = [(one, code) for one, code in found if _is_wrong(one, code)]
    seeds = {one.seed for one, _ in found}
    return Confusion(
        side((one, code) for one, code in found if one.holds == 1.0),
        side((one, code) for one, code in found if TENTH <= one.holds < 1.0),
        side((one, code) for one, code in found if one.truth in FORGOT),
        tuple(f"{one.mechanism}, seed {one.seed}: {code}" for one, code in wrong),
        share(len({one.seed for one, _ in wrong}), len(seeds)),
    )


def _is_wrong(one: JudgedEvidence, code: Code) -> bool:
    if one.holds >= TENTH:
        return code == "erased"
    return one.truth in FORGOT and code in (*HOLDS, "partly_erased")


@dataclass(frozen=True)
class VerdictErrors:
    """The verdict on halves and on mechanisms that it was not calibrated on."""

    tune: Confusion
    """Every view that was asked, on the half that thresholds were set on."""
    held_out: Confusion
    left_out: Confusion
    """Each mechanism by the nulls of all others."""
    patch_only: Confusion
    """Held-out mechanisms by a run of `patch` alone."""
    calibration: Mapping[str, Null]
    """The nulls of the tune half."""


def errors_of(rows: Sequence[GymRow]) -> VerdictErrors:
    """What the verdict says of the models of a ledger."""
    models = planted(rows)
    tune = {one.mechanism for one in models if not one.held_out}
    held_out = {one.mechanism for one in models if one.held_out}
    nulls = nulls_of(models, tune)

    def judged(chosen: Collection[str], by: Calibration, *, patch_only: bool = False) -> Any:
        return [
            (one, verdict_of(one.evidence(by, patch_only=patch_only)).code)
            for one in models
            if one.mechanism in chosen
        ]

    others = [
        pair
        for name in sorted(tune | held_out)
        for pair in judged({name}, nulls_of(models, (tune | held_out) - {name}))
    ]
    return VerdictErrors(
        confusion(judged(tune, nulls)),
        confusion(judged(held_out, nulls)),
        confusion(others),
        confusion(judged(held_out, nulls, patch_only=True)),
        nulls,
    )


VERSION = 3
"""Of the gym: raised when mechanisms, splits or scoring change."""


@dataclass(frozen=True)
class GymDocument:
    """All that is said of the auditors."""

    auditors: tuple[AuditorJudgement, ...]
    verdict: VerdictErrors
    n_seeds: int

    @property
    def content(self) -> dict[str, Any]:
        """The record as a JSON object."""
        return {
            "version": VERSION,
            "seeds": self.n_seeds,
            "auditors": [asdict(one) for one in self.auditors],
            "verdict": asdict(self.verdict),
        }


def document(
    rows: Sequence[GymRow], *, calibration: Path | None = None, picture: Path | None = None
) -> GymDocument:
    """Judge the auditors and the verdict; write what is asked for.

    Raises:
        InputError: a file cannot be written.
    """
    seeds = {row["seed"] for row in rows}
    found = GymDocument(tuple(table(rows)), errors_of(rows), len(seeds))
    if picture is not None:
        heat_map(found.auditors, picture)
    if calibration is not None:
        views = asdict(found.verdict)["calibration"]
        content = {"version": VERSION, "seeds": sorted(seeds), "views": views}
        held_out = asdict(found.verdict.held_out)
        write_json(calibration, signed({**content, "held_out": held_out}))
    return found


def text(found: GymDocument) -> str:
    """For a terminal or a page: Markdown."""
    header = ("verdict", "truth", *SAID, "seeds with an error")
    halves = {
        "tune half": found.verdict.tune,
        "held-out half": found.verdict.held_out,
        "held-out half, patch alone": found.verdict.patch_only,
        "mechanism left out": found.verdict.left_out,
    }
    lines = [line for name, one in halves.items() for line in _lines(name, one)]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in (header, ("---",) * len(header), *lines))
    wrong = [f"- {name}: {line}" for name, one in halves.items() for line in one.wrong]
    return "\n\n".join([markdown(found.auditors), rows, *(["\n".join(wrong)] if wrong else [])])


def _lines(name: str, one: Confusion) -> Iterator[tuple[str, ...]]:
    for truth, shares in (("knows", one.knows), ("partial", one.partial), ("absent", one.absent)):
        yield name, truth, *(share_text(shares[word]) for word in SAID), share_text(one.seeds_wrong)
