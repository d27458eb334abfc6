"""Results of many kinds become one document: models joined by weights, runs by conditions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import lensaudit
from lensaudit.data.facts import Fact
from lensaudit.data.matching import mentions
from lensaudit.errors import InputError
from lensaudit.groups import grouped
from lensaudit.kinds.meta import Aggregate
from lensaudit.progress import Notice
from lensaudit.report.beside import answers_in
from lensaudit.report.evidence import ModelRow, rows_of
from lensaudit.report.kinds import on_page
from lensaudit.report.packing import token_tables
from lensaudit.report.shelf import (
    PageModel,
    apart,
    condition_of,
    depth_of,
    kinds_of,
    models_of,
    paired,
)
from lensaudit.results.kinds.eval import EvaluationResult
from lensaudit.results.kinds.patch import PatchRun, Texts, is_filled, read_patch
from lensaudit.results.locate import WANTED, Found, LeftOut, locate
from lensaudit.results.manifest import AUDIT_MANIFEST, NOT_ASKED, signed_object
from lensaudit.results.planned import missing_in
from lensaudit.results.reading import part
from lensaudit.settings import COUNTERFACTUAL
from lensaudit.verdict.collect import Model, Verdicts
from lensaudit.verdict.decide import Word
from lensaudit.verdict.rows import facts_of_run, shared
from lensaudit.verdict.views import read_calibration

DEPTHS = ("uds", COUNTERFACTUAL)
"""Scores of a depth that a verdict is made of."""
_MOST_TEXTS = 12
"""EM runs, evaluations and attacks whose generated texts are kept: the page stays under 5 MB."""


@dataclass
class Document:
    """Everything that a page holds: results by kind, and the verdicts of their models."""

    verdicts: Verdicts
    given: str | None = None
    """Title that was chosen."""
    runs: list[PatchRun] = field(default_factory=list)
    """Of each model under each condition, of those that asked the same, the worst."""
    evals: list[EvaluationResult] = field(default_factory=list)
    meta: list[Mapping[str, Any]] = field(default_factory=list)
    steering: list[Mapping[str, Any]] = field(default_factory=list)
    attacks: list[dict[str, Any]] = field(default_factory=list)
    aggregates: list[Aggregate] = field(default_factory=list)
    curves: list[Mapping[str, Any]] = field(default_factory=list)
    beside: list[Mapping[str, Any]] = field(default_factory=list)
    """Manifests of results that are neither patch runs nor evaluations."""
    left_out: list[LeftOut] = field(default_factory=list)
    cannot: dict[str, str] = field(default_factory=dict)
    """Name of a model whose rows cannot be asked who has what -> why."""
    missing: dict[str, str] = field(default_factory=dict)
    """Unit of a collected sweep that has no result -> why."""

    def take(self, one: Found, texts: Mapping[int, Texts]) -> None:
        """Read one result into its list."""
        if one.kind in ("patch", COUNTERFACTUAL):
            run = read_patch(one.path, texts) if texts else one.record
            self.verdicts.take(one, run)
            self.runs.append(run)
            for whole in (place / AUDIT_MANIFEST for place in one.path.parents[1:3]):
                if whole.exists():
                    self.cannot |= part(signed_object(whole), "inputs").get(NOT_ASKED, {})
            return
        record, parts = one.record, list(on_page(one))
        if one.kind != "eval" and one.manifest is not None:
            self.beside.append({"folder": str(one.path.parent), "content": one.manifest})
        self.verdicts.take(one)
        if one.kind == "eval":
            self.evals.append(record)
        elif one.kind == "aggregate":
            self.aggregates += record.models
        for name, shown in parts:
            getattr(self, name).append(shown)

    @property
    def empty(self) -> bool:
        """Whether nothing found is worth a page."""
        parts = (self.runs, self.evals, self.meta, self.steering, self.attacks, self.aggregates)
        return not any((*parts, self.curves))

    @cached_property
    def conditions(self) -> list[list[PatchRun]]:
        """The runs that can be compared row by row: UDS first, the whole stream, then the most.

        Of these first the runs whose word counts for their models, then all.
        """
        order = ("uds", COUNTERFACTUAL, "lens", "em")
        count = {one.run.folder for one in self.verdicts.models if one.run is not None}
        return sorted(
            grouped((run.condition, run) for run in self.runs).values(),
            key=lambda runs: (
                order.index(runs[0].score),
                runs[0].component != "resid",  # decides nothing beside the stream
                -sum(run.folder in count for run in runs),
                -len(runs),
            ),
        )

    @property
    def first(self) -> list[PatchRun]:
        """Runs of the condition that the headline speaks of; none where no run has a depth."""
        return [run for runs in self.conditions[:1] for run in runs if run.score in DEPTHS]

    @cached_property
    def evaluated(self) -> Mapping[str, EvaluationResult]:
        """Weights -> of its evaluations the one that holds most."""
        # a retain reference made on the way holds only what others were compared with
        return {
            weights: max(
                (run for run in self.evals if run.weights == weights),
                key=lambda run: len(run.entries),
            )
            for weights in dict.fromkeys(run.weights for run in self.evals)
        }

    @property
    def beside_shown(self) -> list[LeftOut]:
        """Evaluations with a metric that the shown one of their model does not have, or not so."""
        return [
            LeftOut(
                str(run.folder),
                f"of {self.models[run.weights].name} the page shows the metrics in {one.folder}",
            )
            for run in self.evals
            for one in (self.evaluated[run.weights],)
            if not run.summary.items() <= one.summary.items()
        ]

    @cached_property
    def models(self) -> Mapping[str, PageModel]:
        """Weights -> the model."""
        return models_of(self.runs, self.evaluated, self.aggregates, self.verdicts)

    @property
    def judged(self) -> Mapping[str, Model]:
        """Weights -> what is known of a model on the page."""
        return {one.weights: one for one in self.verdicts.models if one.weights in self.models}

    @cached_property
    def rows(self) -> list[ModelRow]:
        """The table of models."""
        return rows_of(self.models, self.judged, self.conditions, self.first, self.cannot)

    def words(self) -> dict[str, Word]:
        """Word of the verdict by model, anchors left out, from held to gone by its depth."""
        depth = {run.weights: run.estimate.value for run in self.first}
        order = sorted(self.models, key=lambda at: (depth.get(at) is None, depth.get(at)))
        found = [self.models[weights] for weights in order]
        return {one.label: one.word for one in found if one.word}

    @property
    def too_few(self) -> dict[str, int]:
        """Undecided models that more rows would decide, with the rows that were scored."""
        known = {self.models[weights].label: one.too_few for weights, one in self.judged.items()}
        return {label: n for label, n in known.items() if n}

    @property
    def title(self) -> str:
        """The one that was chosen, or that of the models that the headline counts."""
        shown = dict.fromkeys(run.weights for run in self.runs or self.evals)
        names = list(self.words()) or [self.models[weights].label for weights in shown]
        if self.given or not names:
            return self.given or "Results of lensaudit"
        return f"Audit of {names[0]}" if len(names) == 1 else f"Audit of {len(names)} models"

    def data(self) -> dict[str, Any]:
        """What the page's script reads, as plain JSON."""
        place = list(self.models).index
        conditions = [runs[0].condition for runs in self.conditions]
        asked = [(at, facts_of_run(runs[0])) for at, runs in enumerate(self.conditions)]
        asked_apart = {place(at): one for at, one in apart(self.evaluated).items()}
        n_em = sum(run.score == "em" for run in self.runs)
        kept = (self.evaluated[weights] for weights in self.models if weights in self.evaluated)
        manifests = [(one.folder, one.manifest) for one in (*self.runs, *kept) if one.manifest]
        return {
            "title": self.title,
            "version": lensaudit.__version__,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "conditions": [condition_of(runs[0]) for runs in self.conditions],
            "depths": [
                {
                    "model": place(run.weights),
                    "condition": conditions.index(run.condition),
                    **depth_of(
                        run,
                        self.verdicts.of(run.folder, run.weights)[1],
                        with_texts=n_em <= _MOST_TEXTS,
                        tokens=tokens,
                    ),
                    "manifest": at,
                }
                for at, (run, tokens) in enumerate(
                    zip(self.runs, token_tables(self.runs), strict=True)
                )
            ],
            "models": [{**asdict(one), "weights": at} for at, one in self.models.items()],
            **({"asked": asked_apart} if asked_apart else {}),
            "metric_kinds": kinds_of(self.evals, self.aggregates),
            "pairs": paired(self.runs),
            "meta": self.meta,
            "steering": self.steering,
            "attacks": [
                {**one, "conditions": [at for at, of in asked if shared(one["asked"], of).same]}
                if "asked" in one
                else one
                for one in self.attacks
            ],
            "curves": self.curves,
            "said": [
                {"model": place(weights), **said}
                for weights, said in _said(self.evals, self.models, self.conditions)
            ],
            "too_few": self.too_few,
            "table": None,  # it stands in the page as HTML
            "manifests": [
                *({"folder": str(folder), "content": content} for folder, content in manifests),
                *self.beside,
            ],
            "left_out": list(map(asdict, self.left_out)),
        }


def refused(line: str) -> None:
    """Refuse what does nothing.

    Raises:
        InputError: always.
    """
    raise InputError(line)


def assemble(
    paths: Sequence[Path],
    *,
    title: str | None = None,
    examples: Iterable[Fact] = (),
    idle: Notice = refused,
    read: Iterable[Found] = (),
) -> Document:
    """Everything found under `paths`.

    Args:
        paths: folders or files of results.
        title: of the page.
        examples: fill in questions and entities that results do not hold.
        idle: told where these fill in nothing.
        read: results that were read already.

    Raises:
        InputError: a path does not exist, nothing under any of them is a finished result, or the
            examples fill in nothing.
    """
    found, left = locate(paths)
    given = {e.idx: Texts(**{**e.asked, "group": str(e.group)}) for e in examples}
    document = Document(Verdicts(read_calibration()), title, left_out=left)
    document.missing = {unit: why for _, unit, why in missing_in(paths)}
    known = {one.path.resolve(): one for one in read}
    for one in found:
        try:
            document.take(known.get(one.path.resolve(), one), given)
        except InputError as error:
            left.append(LeftOut(str(one.path.parent), str(error)))
    if document.empty:
        raise InputError(
            "nothing to report" + (f": {left[0].path}: {left[0].reason}" if left else f"; {WANTED}")
        )
    rows = (row for run in document.runs for row in run.rows)
    if given and not any(row["idx"] in given and is_filled(row, given[row["idx"]]) for row in rows):
        idle("--data: fills in texts that rows of `patch` lack, and none lacks one; leave it out")
    document.runs, repeated = distinct(document.runs, document.verdicts.models)
    left += [*repeated, *document.beside_shown]
    for attack in [one for one in document.attacks if one.get("said")][_MOST_TEXTS:]:
        attack["said"] = {}
    return document


def _said(
    evals: Sequence[EvaluationResult],
    models: Mapping[str, PageModel],
    conditions: Sequence[Sequence[PatchRun]],
) -> list[tuple[str, dict[str, Any]]]:
    """What evaluated models answer to the questions of each set of rows; anchors before others.

    `conditions`: places of those that ask these rows; `texts`: the answers, or null; `says`:
    whether one gives the fact away; and the prompts that they were given to. Where a model was
    evaluated twice on a row, the larger evaluation counts.
    """
    found, sets = [], grouped((runs[0].examples, at) for at, runs in enumerate(conditions))
    by_model = grouped(
        (run.weights, run) for run in sorted(evals, key=lambda run: -len(run.entries))
    )
    shown = sorted(by_model, key=lambda at: not models[at].is_anchor)
    for weights in shown[: _MOST_TEXTS if sets else 0]:
        known = list(map(answers_in, by_model[weights]))  # of one model at a time
        for asked, places in sets.items():
            told = [_answer(one, known) for one in asked]
            texts, prompts = [said for _, said in told], [prompt for prompt, _ in told]
            # what stands before and after the question, where that is the same of all
            around = {
                p.partition(one.question)[::2] for one, p in zip(asked, prompts, strict=True) if p
            }
            says = [
                bool(text and any(map(str.isalnum, one.entity)) and mentions(text, one.entity))
                for one, text in zip(asked, texts, strict=True)
            ]
            sent = {"around": around.pop()} if len(around) == 1 else {"prompts": prompts}
            if any(text is not None for text in texts):
                found.append((weights, {"conditions": places, "texts": texts, "says": says} | sent))
    return found


def _answer(one: Texts, known: Iterable[Mapping[int, tuple[str, str]]]) -> tuple[str, str | None]:
    """Prompt and answer of the first evaluation whose row of this number asks this question."""
    asked = (told[one.idx] for told in known if one.question and one.idx in told)
    return next((pair for pair in asked if one.question in pair[0]), ("", None))


def distinct(
    runs: Sequence[PatchRun], judged: Iterable[Model]
) -> tuple[list[PatchRun], list[LeftOut]]:
    """Of several runs of one model that asked the same the one whose verdict counts.

    Of those that say the same it is the latest.

    Args:
        runs: in the order they were found, which is kept.
        judged: what they came to, in the order of `Evidence.rank`.
    """
    bad = {one.run.folder: one.rank for model in judged for one in model.judged if one.run}
    order = sorted(runs, key=lambda one: str(one.manifest.get("finished", "")))
    worst_last = sorted(order, key=lambda one: bad.get(one.folder, (0, "")), reverse=True)
    kept = {_asked(run): run for run in worst_last}
    pairs = [(run, kept[_asked(run)]) for run in runs]
    left = [
        LeftOut(
            str(run.folder),
            f"asked the same as {one.folder}, "
            + (
                "run earlier"
                if bad.get(run.folder) == bad.get(one.folder)
                else "whose verdict counts"
            ),
        )
        for run, one in pairs
        if run is not one
    ]
    return [run for run, one in pairs if run is one], left


def _asked(run: PatchRun) -> tuple[object, ...]:
    """Whose depth, under what condition, and what else: what the model says, how it is aligned."""
    asked = part(run.manifest, "options").get("ask")
    return run.weights, run.condition, asked, run.aligned.kind, run.aligned.why
