"""The table of models: what each way of looking found, how it led to the verdict, what was lost.

Views read different things (what a model says, its stream, what training brings back), so they may
disagree, and where they do the table shows it instead of a mean. A number stands with its interval
and its rows, or with the reason why it has none; what was not asked is said.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from lensaudit.data.matching import is_closed
from lensaudit.groups import grouped
from lensaudit.report.shelf import ANCHORS, PageModel, lacking
from lensaudit.results.kinds.patch import PatchRun, Texts
from lensaudit.results.sentences import by_root
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import clustered_share
from lensaudit.verdict.collect import Keeps, Model
from lensaudit.verdict.decide import Evidence, Word
from lensaudit.verdict.thresholds import CALIBRATED_WITHIN
from lensaudit.verdict.views import GROUPS, NOT_TRIED, Group, View, hundredths, rows_each

QUESTIONS: Mapping[Group, str] = {
    "answers": "Does it say the facts?",
    "association": "Does it tell who has what?",
    "stream": "Does full read them out of its stream?",
    "aligned": "Does full read them after a linear map to its own basis?",
    "training": "Does training on something else bring them back?",
    "directions": "Does taking one direction away bring them back?",
}
"""What a group of views asks of a model, in the words of the chain."""


@dataclass(frozen=True)
class TableColumn:
    """A column of the table of models: one way of measuring a model."""

    id: str
    title: str
    help: str
    asks: str
    """What was not asked where the column is empty."""
    command: str
    """What asks it."""
    views: tuple[str, ...] = ()
    """Views of a verdict that it shows: the first that has a number."""
    metrics: tuple[str, ...] = ()
    """Metrics of an evaluation, where no view has one."""


COLUMNS = (
    TableColumn(
        "says",
        "says",
        "share of the facts it says word for word once the answer is begun",
        "what it says once the answer is begun",
        "patch",
        ("said", "asked"),
    ),
    TableColumn(
        "told",
        "asked",
        "share of the facts it gives away when each is asked once, as a question or in the chat "
        "template",
        "what it says when it is asked",
        "patch",
        ("told",),
    ),
    TableColumn(
        "know",
        "who has what",
        "p: how likely a model that never saw the facts would match people and facts this well; "
        "beside it, bits per fact that the model binds to its person, and the bits of a model "
        "that is sure of every fact",
        "who has what",
        "know",
        ("assignment",),
    ),
    TableColumn(
        "uds",
        "UDS",
        "0: full reads every fact out of its stream; 1: no more than out of retain's",
        "its stream beside that of a model that never saw the facts",
        "patch --retain MODEL",
        ("uds", "uds_prefix"),
        ("uds",),
    ),
    TableColumn(
        "inside",
        "depth from inside",
        "0: full reads every fact out of its stream; 1: no more than out of full's own stream "
        "of another question; models that hold the facts where full cannot read them may score "
        "1 too",
        "",
        "",
        ("counterfactual",),
    ),
    TableColumn(
        "aligned",
        "aligned",
        "UDS after a linear map to full's basis, fitted on other rows",
        "its stream after a linear map to full's basis",
        "patch --retain MODEL",
        ("uds_aligned",),
    ),
    TableColumn(
        "weakest",
        "weakest",
        "the same scale at the one layer where least is gone, plain or aligned",
        "its weakest layer",
        "patch --retain MODEL",
        ("weakest", "uds_weakest"),
    ),
    TableColumn(
        "lens",
        "Lens",
        "UDS with full's upper layers replaced by its head alone",
        "",
        "patch --lens",
        ("lens",),
        ("logit_lens",),
    ),
    TableColumn(
        "worst",
        "worst case",
        "share of the facts that some attack brings out, above models that never knew",
        "attacks on every fact",
        "worst",
        ("worst_case", "sampled"),
    ),
    TableColumn(
        "training",
        "training",
        "share of the facts that training brings back, above models that never knew",
        "retraining",
        "relearn, effort or rtt run",
        ("rtt", "effort", "relearn_gain"),
    ),
    TableColumn(
        "directions",
        "direction",
        "share of the facts that taking one direction away brings back",
        "taking a direction away",
        "steer audit",
        ("ablate",),
    ),
    TableColumn(
        "betrayal",
        "told apart",
        "area of forgotten against never-seen people by the loss of their answers: near 1 they are "
        "still treated as seen, near 0 told apart from never seen, .5 neither; it changes no "
        "verdict",
        "",
        "eval --holdout FILE",
        metrics=("mia_loss",),
    ),
    TableColumn(
        "keeps",
        "keeps",
        "what it can still do: model utility, or the probability of answers to keep",
        "what it keeps (utility)",
        "eval",
        metrics=("model_utility", "utility_rel", "retain_Q_A_Prob", "retain_knowmem_ROUGE"),
    ),
    *(
        TableColumn(
            name, name, "of `lensaudit meta aggregate`", "", "meta aggregate", metrics=(name,)
        )
        for name in ("overall", "mem", "privacy")
    ),
)


SAME_DEPTH = 1e-4
"""Depths nearer than this are of the same weights: the page holds six digits."""


@dataclass(frozen=True)
class Cell:
    """What one way of looking found of one model, as it is printed."""

    text: str
    beside: tuple[str, ...] = ()
    """Interval and rows, or why there is none."""
    sort: float | None = None
    vote: str = ""
    """`finds`, `rules out` or `cannot tell`; empty where it decides nothing."""
    title: str = ""


@dataclass(frozen=True)
class ModelRow:
    """A model on one set of rows, or an anchor as the control of the columns."""

    label: str
    model: int | None
    """Place on the page; None: an anchor that no result but the calibration speaks of."""
    condition: int | None = None
    """Place of the condition on the page; None: it was not patched."""
    role: str | None = None
    word: Word | None = None
    sentence: str = ""
    chain: Sequence[tuple[str, Sequence[str]]] = ()
    """Questions in order, and what each said."""
    read: Sequence[tuple[Texts, float]] | None = None
    """Facts that are still read, with their depth, most held first; None: it cannot be told."""
    n_facts: int = 0
    unread: str = ""
    """Why it cannot be told."""
    cells: Mapping[str, Cell] = field(default_factory=dict)

    @property
    def is_anchor(self) -> bool:
        """`full` or `retain`."""
        return self.role in ANCHORS


def rows_of(
    models: Mapping[str, PageModel],
    judged: Mapping[str, Model],
    conditions: Sequence[Sequence[PatchRun]],
    first: Sequence[PatchRun],
    cannot: Mapping[str, str] = MappingProxyType({}),
) -> list[ModelRow]:
    """All models, anchors first, then from held to gone.

    Args:
        models: by weights, in the order of the page.
        judged: by weights, what is known of each on each set of rows.
        conditions: runs that are shown.
        first: those of the condition that the headline speaks of.
        cannot: by name, why a model cannot be asked who has what.
    """
    place = {run.folder: at for at, runs in enumerate(conditions) for run in runs}
    rows = [
        _row(at, model, one, place, () if known is None else known.keeps, cannot.get(model.name))
        for at, (weights, model) in enumerate(models.items())
        if not model.is_anchor
        for known in (judged.get(weights),)
        for one in _shown(known, place) or (None,)
    ]
    rows.sort(key=lambda row: math.inf if (at := _depth(row).sort) is None else at)
    found = any(row.cells or row.word for row in rows)
    return [*_anchors(models, first), *rows] if found else []


def _depth(row: ModelRow) -> Cell:
    return row.cells.get("uds") or row.cells.get("inside") or Cell("")


def _shown(known: Model | None, place: Mapping[Path, int]) -> list[Evidence]:
    """What is known of a model, without runs that a later one replaced."""
    return [
        one
        for one in (() if known is None else known.judged)
        if one.run is None or one.run.folder in place
    ]


def columns_of(rows: Sequence[ModelRow]) -> list[TableColumn]:
    """Columns in which a model has a number."""
    cells = [pair for row in rows if not row.is_anchor for pair in row.cells.items()]
    known = {name for name, cell in cells if cell.sort is not None}
    return [column for column in COLUMNS if column.id in known]


def by_model(rows: Sequence[ModelRow]) -> list[list[ModelRow]]:
    """Rows of each audited model: it has one for every set of rows that it was judged on."""
    return [*grouped((row.model, row) for row in rows if not row.is_anchor).values()]


def empty_of(rows: Sequence[ModelRow]) -> list[tuple[TableColumn, list[tuple[str, int]]]]:
    """What was asked and gave no model a number; why, and of how many models."""
    shown, found = columns_of(rows), list[tuple[TableColumn, list[tuple[str, int]]]]()
    for one in (column for column in COLUMNS if column not in shown):
        cells = ([r.cells[one.id] for r in own if one.id in r.cells] for own in by_model(rows))
        reasons = [why for own in cells for why, _ in by_root(cell.beside[0] for cell in own)]
        found += [(one, by_root(reasons))] if reasons else []
    return found


def missing_of(rows: Sequence[ModelRow]) -> list[tuple[TableColumn, list[str]]]:
    """What was asked on no rows of a model, and of which models."""
    lacking = (
        (one, [own[0].label for own in by_model(rows) if not any(one.id in r.cells for r in own)])
        for one in COLUMNS
        if one.asks
    )
    return [(column, names) for column, names in lacking if names]


def _row(
    at: int,
    model: PageModel,
    one: Evidence | None,
    place: Mapping[Path, int],
    keeps: Sequence[Keeps],
    cannot: str | None,
) -> ModelRow:
    views = [] if one is None else one.chain
    cells, lacking = _measured(model, keeps, views), dict(NOT_TRIED)
    if cannot and "know" not in cells:
        cells["know"] = Cell("–", ("cannot be asked",), title=cannot)
        lacking["association"] = cannot.removeprefix("who has what is not asked: ")
    if one is None:
        return ModelRow(model.label, at, role=model.role, cells=cells)
    unread = _unread(one)
    return ModelRow(
        model.label,
        at,
        None if one.run is None else place[one.run.folder],
        model.role,
        None if one.run is None and one.verdict.code == "unscored" else one.word,
        one.verdict.sentence,
        (
            *(
                (
                    QUESTIONS[group],
                    [view.told for view in views if view.group == group]
                    or [f"not asked: {lacking[group]}"],
                )
                for group in GROUPS
            ),
            ("What was lost besides?", _lost(one.run, cells.get("keeps"))),
        ),
        None if unread else _read(one),
        one.stream.n_facts if one.stream else 0,
        unread,
        cells,
    )


def _measured(
    model: PageModel, keeps: Sequence[Keeps] = (), views: Sequence[View] = ()
) -> dict[str, Cell]:
    found = {one.id: _cell(one, views) or _metric(one, model) for one in COLUMNS}
    if keeps:
        found["keeps"] = _beside_full(*keeps)
    return {name: cell for name, cell in found.items() if cell is not None}


def _lost(run: PatchRun | None, keeps: Cell | None) -> Sequence[str]:
    """Utility, and the depth of facts to keep; or that it was not measured."""
    found = [] if keeps is None else [f"keeps {keeps.text} ({', '.join(keeps.beside)})"]
    for name, lost in (run.collateral if run else {}).items():
        depth = lost.estimate
        value = "unscored" if depth.value is None else hundredths(depth.point)
        found.append(f"{name}: depth {value} {' '.join(limits(depth))}")
    return found or ["not asked: neither utility nor facts to keep"]


def _unread(one: Evidence) -> str:
    """Why it cannot be told which facts are still read; empty where it can."""
    stream = one.stream
    if stream is None:
        alone = "no model that never saw the facts was beside it (--retain)"
        return alone if one.one("counterfactual") else "it was not patched"
    if not stream.n_facts:
        return "no fact has a depth"
    cannot = stream.readable is False and not stream.carried
    return "full cannot read its stream" if cannot else ""


def _read(one: Evidence) -> Sequence[tuple[Texts, float]]:
    """Facts that are still read; a Yes or No, which a coin hits, after all others."""
    asked = {text.idx: text for text in (one.run.examples if one.run else ())}
    still = (one.stream.read if one.stream else {}).items()
    found = sorted(still, key=lambda at: (is_closed(asked[at[0]].entity), at[1]))
    return [(asked[idx], depth) for idx, depth in found]


def _cell(column: TableColumn, views: Sequence[View]) -> Cell | None:
    """Cell of the first view of a column that has a number; None where it was not measured."""
    own = [view for name in column.views for view in views if view.name == name]
    if not own:
        return None
    if column.id == "weakest":
        own.sort(key=lambda view: view.number.point if view.number else 1.0)
    view = next((one for one in own if _number(one) is not None), own[0])
    number = _number(view)
    if view.name == "assignment" and view.chance is not None:
        bits = next((one.number for one in views if one.name == "bits" and one.number), None)
        of = next((one.shown.partition(" of ")[2] for one in views if one.name == "bits"), "bits")
        beside = () if bits is None else (f"{hundredths(bits.point)} of {of}", *limits(bits))
        text = f"p {view.chance:.2g}" if view.control is None else "undecided"
        return Cell(text, beside, view.chance, view.says, view.told)
    if number is None:
        return Cell("–", (view.reason,), None, view.says, view.told)
    plain = view.name == column.views[0] or column.id == "weakest"
    other = () if plain else (view.kind.title,)
    text = hundredths(number.point)
    return Cell(text, (*limits(number), *other), number.value, view.says, view.told)


def _number(view: View) -> Estimate | None:
    found = view.number or view.held
    return None if found is None or found.value is None else found


def limits(one: Estimate) -> tuple[str, ...]:
    """Interval, or why there is none, and rows.

    >>> limits(Estimate(0.5, 0.25, 0.75, n=8)), limits(Estimate(0.5, why="3 authors: no interval"))
    (('[.25, .75]', 'n 8'), ('3 authors: no interval',))
    """
    ends = one.ends and f"[{hundredths(one.ends[0])}, {hundredths(one.ends[1])}]"
    return (ends or one.why or "no interval", *([f"n {one.n}"] if one.n else []))


def _metric(column: TableColumn, model: PageModel) -> Cell | None:
    """Cell of the first metric of a column that has a value."""
    for name in column.metrics:
        value, low, high, n, _, why, *told = model.metrics.get(name) or (None,) * 6
        # an attack that was not held against never-seen people tells nothing of them
        if value is not None and (told or column.id != "betrayal"):
            number = Estimate(value, low, high, n or None, why)
            return Cell(
                hundredths(value),
                (*limits(number), *map(str, told)),
                value,
                title=f"{name}: {column.help}",
            )
    return None


def _beside_full(first: Keeps, *others: Keeps) -> Cell:
    """What a model keeps of what `full` has, of the metrics that both have on the same rows."""
    beside = (
        f"of {hundredths(first.full)} in full",
        *limits(replace(first.number, why=lacking(first.number))),
        *(one.told for one in others),
    )
    return Cell(hundredths(first.own), beside, first.own, title=first.told)


def _anchors(models: Mapping[str, PageModel], first: Sequence[PatchRun]) -> Iterator[ModelRow]:
    """`full` and `retain` of the first condition, once each, with what they read and say."""
    says = {
        "says": [run.outputs for run in first],
        "told": [run.told.outputs for run in first if run.told],
    }
    inside = bool(first and first[0].scale)
    for wanted, role in enumerate(ANCHORS[:1] if inside else ANCHORS):
        name = (first[0].models[role].name or "?") if first else None
        same = [at for at, model in models.items() if model.role == role]
        weights = next((at for at in same if models[at].name == name), next(iter(same), None))
        if weights is None and name is None:
            continue
        cells = {} if weights is None else _measured(models[weights])
        value = first[0].calibration.get(role) if first else None
        if value is not None:
            off = abs(value - wanted) > CALIBRATED_WITHIN
            why = "the scale is off" if off else "calibration: no interval"
            # rounded weights of an anchor have its name and another depth
            same_runs = (one.estimate for one in first if one.weights in same and not off)
            own = (limits(one) for one in same_runs if abs(one.point - value) < SAME_DEPTH)
            cells["inside" if inside else "uds"] = Cell(hundredths(value), next(own, (why,)), value)
        for column, found in says.items():
            one = next(filter(None, found), None)
            known = None if one is None else {"full": one.full, "retain": one.retain}[role]
            if one and one.n and known is not None:
                each = rows_each(one.n, one.n_groups, one.per_author)
                share = clustered_share(known * one.n, one.n, each)  # of several models a mean
                cells[column] = Cell(hundredths(share.point), limits(share), share.value)
        at = None if weights is None else list(models).index(weights)
        label = str(name) if weights is None else models[weights].label
        yield ModelRow(label, at, role=role, cells=cells)
