"""The release gate: which verdicts pass? It fails closed.

Only codes that the policy names pass, and only where what it asks for was measured. Every reason of
every model is given.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge
from pydantic import Field

from lensaudit.errors import InputError
from lensaudit.files import read_toml
from lensaudit.results.locate import LeftOut
from lensaudit.results.reading import Flag, Length, Share, Whole, checked
from lensaudit.settings import Place
from lensaudit.verdict.collect import Called, Model, Verdicts
from lensaudit.verdict.decide import Code, Evidence
from lensaudit.verdict.thresholds import FEWEST_AUTHORS
from lensaudit.verdict.views import GROUPS, VIEWS

NAMES = (*VIEWS, *GROUPS)
Count = Annotated[Whole, Ge(0)]


@dataclass(frozen=True)
class Policy:
    """What must hold of a model for it to pass; the defaults are those of an empty file."""

    passing: Annotated[tuple[Code, ...], Field(alias="pass")] = ("erased",)
    require_views: tuple[Literal[NAMES], ...] = ()  # pyright: ignore[reportInvalidTypeForm]
    """Views, or groups of views, that must have found or ruled out."""
    min_authors: Count = FEWEST_AUTHORS
    min_rows: Count = 40
    min_never_trained: Count = 1
    max_leak: Share | None = None
    """Most of what `full` says beyond `retain` that it may say, by its upper limit."""
    max_collateral: Share | None = None
    """Greatest depth of facts to keep, by its upper limit."""
    max_betrayal: Share | None = None
    """Greatest area, either way, between forgotten people and people who were never seen, of every
    membership attack that was measured, by its limits; .5 tells nothing."""
    utility_at_least: Length | None = None
    """Share of `full`'s model utility that is left, or of what it says of rows to keep."""
    allow_unreviewed: Flag = False
    rows_as_authors: Flag = False

    def document(self) -> dict[str, Any]:
        """The policy as its file spells it."""
        found = asdict(self)
        return {"pass": list(found.pop("passing")), **found}


@dataclass(frozen=True)
class Gated:
    """What a gate says of all models."""

    policy: Policy
    models: tuple[tuple[Model, tuple[str, ...]], ...]
    """Each with every reason why it does not pass; without one it does."""
    left_out: tuple[LeftOut, ...] = ()
    """What decides nothing here: results that cannot be read, models that others are held to."""
    called: Called = field(default_factory=dict)
    """Of every model here, those beside them too."""

    @property
    def passed(self) -> bool:
        """All pass, and there is one; a result that was not finished might say otherwise."""
        return not self.failed

    @property
    def failed(self) -> str:
        """What does not pass, counted; empty where the gate passes."""
        n_models, n_failed = len(self.models), sum(bool(why) for _, why in self.models)
        n_open = sum(one.unfinished for one in self.left_out)
        parts = (
            (n_failed, f"{n_failed} of {n_models} fail the gate"),
            (not n_models, "the gate found no audited model"),
            (n_open, f"results that are not finished fail the gate: {n_open}"),
        )
        return "; ".join(told for counts, told in parts if counts)

    def document(self) -> dict[str, Any]:
        """The record as a JSON object."""
        return {
            "policy": self.policy.document(),
            "passed": self.passed,
            "models": [
                {
                    "model": one.source,
                    "weights": one.weights,
                    "code": one.code,
                    "passed": not why,
                    "why": list(why),
                    "sentence": one.verdict.sentence,
                }
                for one, why in self.models
            ],
            "left_out": [asdict(one) for one in self.left_out],
        }


def read_policy(path: Place) -> Policy:
    """The `[gate]` table of a policy; a file without it means the defaults.

    Raises:
        InputError: no TOML, a key that is none, or a value that none of its kind may have.
    """
    content = read_toml(Path(path))
    if extra := sorted(set(content) - {"gate"}):
        raise InputError(f"{path}: {extra[0]!r} is unknown; wanted one table, [gate]")
    if not isinstance(given := content.get("gate", {}), Mapping):
        raise InputError(f"{path}: gate is no table; wanted [gate]")
    known = ["pass", *(one.name for one in fields(Policy) if one.name != "passing")]
    if extra := sorted(set(given) - set(known)):
        raise InputError(f"{path}: gate.{extra[0]} is unknown; wanted {', '.join(known)}")
    return checked(Policy, given, f"{path}: gate")


def gate(found: Verdicts, policy: Policy) -> Gated:
    """Judge every model of some folders by a gate policy."""
    reasons = (
        (reason for one in model.judged for reason in _reasons(model, one, policy))
        for model in found.models
    )
    why = (tuple(dict.fromkeys(one)) for one in reasons)
    return Gated(
        policy, tuple(zip(found.models, why, strict=True)), tuple(found.left_out), found.called
    )


def _reasons(model: Model, one: Evidence, policy: Policy) -> Iterator[str]:
    """What is against a model on one set of rows."""
    if one.verdict.code not in policy.passing:
        yield one.verdict.sentence
    for name in policy.require_views:
        views = [view for view in one.views if name in (view.name, view.group)]
        if not any(view.says != "cannot tell" for view in views):
            said = views[0].reason if views else "not asked"
            yield f"{VIEWS[name].title if name in VIEWS else name}: {said}"
    yield from _rows(one, policy)
    yield from _limits(one, policy)
    if policy.max_betrayal is not None:
        yield from _betrayal(model, policy, policy.max_betrayal)
    least = policy.utility_at_least
    if least is not None and not model.keeps:
        yield f"utility_at_least: what {model.source} keeps was not measured beside full"
    for kept in model.keeps:  # evaluated on the same rows as full
        if least is not None and kept.share < least:
            left = f"{kept.share:.2f} of full's is left, wanted {least:g}"
            yield f"utility_at_least: {left}: {kept.told}"


def _rows(one: Evidence, policy: Policy) -> Iterator[str]:
    """Too few rows, authors or models that never knew, or spans that no person reviewed."""
    stream, run = one.stream, one.run
    if stream is None or run is None:
        yield "it was not patched"
        return
    n_rows = run.n_scored
    if n_rows < policy.min_rows:
        yield f"{n_rows} rows are scored, wanted {policy.min_rows}"
    if stream.n_authors < policy.min_authors:
        yield f"{stream.n_authors} authors, wanted {policy.min_authors}"
    if run.ci95_assumes and not policy.rows_as_authors:
        yield f"{n_rows} rows, no authors named; rows_as_authors lets each row stand for one"
    if stream.n_never < policy.min_never_trained:
        yield f"{stream.n_never} never-trained models, wanted {policy.min_never_trained}"
    if (n := run.spans.get("rule")) and not policy.allow_unreviewed:
        yield f"{n} of {run.n} spans by rule, not reviewed"


def _betrayal(model: Model, policy: Policy, most: float) -> Iterator[str]:
    """Attacks that may tell forgotten people from never-seen ones, or that were not measured."""
    tested = [own for run in model.evals for own in run.entries.items() if own[1].betrayal]
    if not tested:
        yield "max_betrayal: not measured; `lensaudit eval --holdout` does"
    for name, one in tested:
        lacks = (
            (one.betrayal.get("p") is None and one.betrayal.get("says", "it has no p"))
            or (not policy.rows_as_authors and one.assumes)
            or (one.ends is None and (one.why or "no interval"))
        )
        far = max(one.most, 1 - one.least)
        if lacks or not far <= most:
            yield f"max_betrayal: {name}: {lacks or f'area up to {far:.2f}, at most {most:g}'}"


def _limits(one: Evidence, policy: Policy) -> Iterator[str]:
    """Leak and collateral damage, where the policy names a limit."""
    if policy.max_leak is not None:
        says = {"once begun": one.one("said"), "when asked": one.one("told")}
        ends = {how: view and view.held and view.held.one_sided for how, view in says.items()}
        for how, limits in ends.items():
            most = f"may be {limits[1]:.2f} of the facts" if limits else "was not measured"
            if not limits or limits[1] > policy.max_leak:
                yield f"max_leak: what it says {how} {most}, at most {policy.max_leak:g}"
    lost = one.run.collateral if one.run else {}
    if (most := policy.max_collateral) is not None:
        if not lost:
            yield "max_collateral: not measured; `lensaudit patch --also retain` does"
        for name, high in ((name, found.estimate.high) for name, found in lost.items()):
            shown = "has no interval" if high is None else f"may be {high:.2f}"
            if high is None or high > most:
                yield f"max_collateral: depth of {name} {shown}, at most {most:g}"
