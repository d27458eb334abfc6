"""The pass that looks inside: retain and the model patched into `full`, layer by layer.

TransformerLens is imported when the pass is asked for, not before: most evaluations do without.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lensaudit.data.suites import DEMO_DATA, Row, Split, Suite
from lensaudit.data.tofu import DEMO, FORGET10, TOFU_HUB
from lensaudit.errors import Failure, InputError, VerificationError, WorkError, failure_in
from lensaudit.evaluation.compared import cka_layers, fisher_layers
from lensaudit.evaluation.subject import Measured
from lensaudit.metrics.registry import ANNOTATED
from lensaudit.models.device import one_memory_error
from lensaudit.models.registry import DEMO as DEMO_NAMES
from lensaudit.models.registry import Registry
from lensaudit.scores.representation import LayerErasure, weighted_erasure

if TYPE_CHECKING:
    from lensaudit.patching.controls import Controls
    from lensaudit.patching.session import Session

NO_RETAIN = "no retain model to patch in (a log holds no activations); name one with --retain"
_UDS = ("tau", "last_layer", "scope", "component", "engine", "calibration")
_EM = ("em_form", "threshold", "last_layer", "scope", "component", "retention", "calibration")
_LENS = ("tau", "calibration")
"""What of a summary of `lensaudit patch` goes into the log."""


@dataclass(frozen=True)
class Scored(Measured[float]):
    """One number per annotated example, and how it was made."""

    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Patching:
    """The models of a patched pass by name; opened, patched and scored when it is asked for."""

    model: str
    full: str | None
    """None: the anchor of the model's family."""
    retain: str | None
    data: Callable[[], str]
    """The annotated forget set; raises InputError where there is none."""
    registry: Registry
    settings: Mapping[str, Any]
    """Which rows and how, as a user writes it: of `prepare`."""
    controls: Callable[["Session"], "Controls"]
    """What stands beside the depth, and how it is measured."""
    root: Path = Path("activations")
    notice: Callable[[str], None] = lambda line: None
    _audit: "Session | None" = field(default=None, repr=False)
    _unopened: str | None = None
    _failed: dict[str, Failure] = field(default_factory=dict)
    _scored: dict[str, Scored] = field(default_factory=dict, repr=False)

    def missing(self, score: str) -> str | None:
        """Why a score cannot be had; opens the models and encodes the examples to find out."""
        try:
            self._opened()
        except InputError as error:
            return failure_in(self.model, score, error).message
        broken = self.failed(score)
        return broken and _said(broken)

    def failed(self, score: str) -> Failure | None:
        """How a score broke; None for one that did not, or was not tried."""
        return self._failed.get(score)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The scores that broke."""
        return tuple(self._failed.values())

    def run(self, score: str) -> int:
        """Patch and score; how many examples.

        A failure is kept as the reason of this score: the other metrics are worth having.
        """
        audit = self._opened()
        if score not in self._scored and score not in self._failed:
            try:
                with one_memory_error():
                    self._scored[score] = self._score(audit, score)
            except (InputError, WorkError, VerificationError, torch.OutOfMemoryError) as error:
                self._failed[score] = failure_in(self.model, score, error)
                self.notice(f"{score}: {_said(self._failed[score])}")
        return len(audit.examples)

    def _score(self, audit: "Session", score: str) -> Scored:
        if score == "controls":
            return _controls(audit, self.model, self.controls(audit))
        return _SCORES[score](audit, self.model)

    def scored(self, score: str) -> Scored:
        """The rows of a pass that has not failed."""
        self.run(score)
        return self._scored[score]

    def _opened(self) -> "Session":
        if self._unopened is not None:
            raise InputError(self._unopened)
        if self._audit is None:
            try:
                self._audit = self._prepared()
            except InputError as error:
                self._unopened = str(error)
                raise
        return self._audit

    @property
    def split(self) -> Split | None:
        """The annotated examples as a split; None while nothing is opened."""
        if self._audit is None:
            return None
        rows = tuple(
            Row(e.idx, e.question, {"answer": e.answer, "entity": e.entity}, e.group)
            for e in self._audit.examples
        )
        return Split(ANNOTATED, self.data(), rows)

    def inputs(self) -> dict[str, Any]:
        """What was patched, for a manifest; empty where nothing was."""
        if self._audit is None:
            return {}
        audit = self._audit
        models = {"patched_full": audit.full, "patched_retain": audit.retain}
        named = {
            role: {"name": one.spec.name, "weights": one.weights} for role, one in models.items()
        }
        return {**named, "annotated": audit.examples_hash}

    def _prepared(self) -> "Session":
        data = self.data()
        if self.retain is None:
            raise InputError(NO_RETAIN)
        from lensaudit.patching.prepare import prepare  # seconds to import

        return prepare(
            [self.model],
            registry=self.registry,
            full=self.full,
            retain=self.retain,
            data=data,
            activations=self.root,
            notice=self.notice,
            **self.settings,
        )


MAKE_ONE = "prefix and entity per row are made by `lensaudit annotate`"


def annotated_set(
    model: str, *, suite: Suite, data: str | None, forget_split: str, own: Mapping[str, Path]
) -> str:
    """The annotated forget set that belongs to a suite's data, as `forget_set` names it.

    Raises:
        InputError: the data has none.
    """
    if suite != "tofu":
        raise InputError(f"suite {suite} has no annotated forget set: {MAKE_ONE}")
    if own and data is None and "forget" not in own:
        raise InputError(f"no forget set; name one with --forget: {MAKE_ONE}")
    given = own.get("forget") or (data if data and Path(data).is_file() else None)
    if given is not None:
        return str(given)
    folder = data is not None and Path(data).is_dir()
    if not folder and (data == DEMO_DATA or (data is None and model.startswith(DEMO_NAMES))):
        return DEMO
    if forget_split != FORGET10:
        raise InputError(f"{forget_split} has no annotated forget set; {FORGET10} has one")
    if data is None or data == TOFU_HUB:
        return FORGET10
    if not folder:
        raise InputError(f"{data} has no annotated forget set: {MAKE_ONE}")
    return str(data)


def _uds(audit: "Session", model: str) -> Scored:
    from lensaudit.patching.outcome import summary_of
    from lensaudit.patching.scoring import score_all

    (outcome,), calibration = score_all(audit)
    return _scored(audit, outcome.rows(), "uds", summary_of(outcome, calibration), _UDS)


def _em(audit: "Session", model: str) -> Scored:
    from lensaudit.patching.exact_match import EmOptions, em_outcome_of, em_summary_of, run_em

    em = EmOptions(form="teacher")
    weights = audit.sources[model].weights
    outcome = em_outcome_of(model, weights, audit, em, run_em(audit, em))
    return _scored(audit, outcome.rows(), "udr", em_summary_of(outcome), _EM)


def _collateral(audit: "Session", model: str) -> Scored:
    from lensaudit.data.neutral import kept_facts
    from lensaudit.patching.collateral import anchored, collateral_of, family_base
    from lensaudit.patching.scoring import run, scored

    assert audit.chosen is not None
    kept = kept_facts("retain", audit.chosen.data, limit=audit.chosen.limit)
    sets = anchored([kept], family_base(list(audit.sources)), audit.full)
    with audit:
        outcomes, _ = scored(audit, run(audit))
        found = collateral_of(audit, sets, outcomes)[model]["collateral"]["retain"]
    chosen = found["selectivity"]
    return Scored(
        {},
        {},
        listed=False,
        details={
            "full_model": audit.full.spec.name,
            **{key: found[key] for key in ("anchor", "relative_to", "n", "n_scored", "strata")},
            "values": {
                "collateral": (found["depth"], found["ci95"]),
                "selectivity": (chosen["value"], chosen["ci95"]),
            },
        },
    )


def _controls(audit: "Session", model: str, controls: "Controls") -> Scored:
    from lensaudit.patching.controls import score_examined
    from lensaudit.verdict.thresholds import ALIGN_FROM

    with audit:
        ((outcome,), _), found = score_examined(audit, controls)
    one = found[model]
    document = one.document()
    values = {
        "uds_aligned": (document["aligned"]["uds"], document["aligned"]["ci95"]),
        "uds_validity": (one.validity.d_share, document["validity"]["ci95"]),
    }
    if one.aligned.kind is None and outcome.uds is not None and outcome.uds < ALIGN_FROM:
        # so low that nothing has to be aligned: the depth itself
        values["uds_aligned"] = outcome.uds, None
    return Scored(
        {},
        {},
        listed=False,
        details={
            "full_model": audit.full.spec.name,
            "retain_model": audit.retain.spec.name,
            "values": values,
            "why": {
                "uds_aligned": one.aligned.why,
                "uds_validity": one.validity.why,
            },
        },
    )


def _lens(audit: "Session", model: str) -> Scored:
    from lensaudit.patching.lens import score_lens
    from lensaudit.patching.outcome import summary_of

    (outcome,), calibration = score_lens(audit)
    return _scored(audit, outcome.rows(), "lens", summary_of(outcome, calibration), _LENS)


def _cka(audit: "Session", model: str) -> Scored:
    return _layered(audit, {"cka": cka_layers(audit, model)})


def _fisher(audit: "Session", model: str) -> Scored:
    found = fisher_layers(audit, model)
    return _layered(audit, {f"{share:.4f}".rstrip("0"): rows for share, rows in found.items()})


def _leak(audit: "Session", model: str) -> Scored:
    """Log-prob of the whole span by the model itself; nothing is patched."""
    with audit:
        own, other = (
            audit.answers(one, audit.encoded).logprob
            for one in (audit.sources[model], audit.retain)
        )
    n_span = torch.tensor([one.n_span for one in audit.encoded])
    idx = [one.idx for one in audit.encoded]
    return Scored(
        {one: (total,) for one, total in zip(idx, (own * n_span).tolist(), strict=True)},
        {item.idx: item.reason for item in audit.lost},
        listed=False,
        details={
            "retain_model": audit.retain.spec.name,
            "retain": dict(zip(idx, (other * n_span).tolist(), strict=True)),
        },
    )


_SCORES: Mapping[str, Callable[["Session", str], Scored]] = {
    "uds": _uds,
    "em": _em,
    "lens": _lens,
    "collateral": _collateral,
    "cka": _cka,
    "fisher": _fisher,
    "leak": _leak,
}


def _layered(audit: "Session", found: Mapping[str, Sequence[LayerErasure]]) -> Scored:
    """Scores without rows: one number per name, and what each layer says."""
    values = {name: weighted_erasure(rows) for name, rows in found.items()}
    return Scored(
        {},
        {item.idx: item.reason for item in audit.lost},
        listed=False,
        details={
            "full_model": audit.full.spec.name,
            "retain_model": audit.retain.spec.name,
            "n_examples": len(audit.encoded),
            "values": {name: v if math.isfinite(v) else None for name, v in values.items()},
            "layers": {name: [asdict(row) for row in rows] for name, rows in found.items()},
        },
    )


def _scored(
    audit: "Session",
    rows: list[dict[str, Any]],
    key: str,
    summary: Mapping[str, Any],
    kept: tuple[str, ...],
) -> Scored:
    return Scored(
        {row["idx"]: (row[key],) for row in rows if row["unscored"] is None},
        {row["idx"]: row["unscored"] for row in rows if row["unscored"] is not None},
        listed=False,
        details={
            "full_model": audit.full.spec.name,
            "retain_model": audit.retain.spec.name,
            **{name: summary[name] for name in kept},
        },
    )


def _said(failure: Failure) -> str:
    return f"patching failed: {failure.message}"
