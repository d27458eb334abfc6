"""The whole of `steer audit`: ADD, ABLATE and CLAMP over folds of authors, resumable, summed up.

    recovery = (mean s(intervened) - mean s(before)) / (mean s(target) - mean s(before))

over the authors that were scored, each once over the folds. Before and target are unlearned and
full; for the never-trained control retain and full; for an edit of full, full and unlearned.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lensaudit.data.facts import Fact, told_rows
from lensaudit.data.neutral import read_neutral
from lensaudit.data.tofu import DEMO, TOFU_PAIRS
from lensaudit.errors import InputError
from lensaudit.groups import grouped, unit_of
from lensaudit.kinds.directions import DirectionsRecord, Experiment, Recovery
from lensaudit.models.registry import default_data
from lensaudit.patching.prepare import encode_all, prepare
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import Notice, Progress, Tell, unheard
from lensaudit.results import recorded
from lensaudit.results.ledger import Ledger
from lensaudit.results.manifest import NamedModel
from lensaudit.results.owner import check_free
from lensaudit.results.reading import SUMMARY
from lensaudit.results.run import RunResult
from lensaudit.results.run_folder import LogFolder
from lensaudit.results.run_log import tell_replaced
from lensaudit.results.sentences import WEAK
from lensaudit.scores.estimate import UNMEASURED
from lensaudit.scores.means import mean_known
from lensaudit.scores.recovery import recovery
from lensaudit.settings import Anchors, Caches, Precision, Rows, plain, shared
from lensaudit.steer.directions import (
    KINDS,
    ROLES,
    DirectionsAudit,
    Fold,
    Role,
    Said,
    Scores,
)
from lensaudit.steer.evaluate import numbers_of, rank_correlation
from lensaudit.steer.experiments import (
    HELD,
    SCHEMA,
    Finding,
    ablate,
    mediate,
    restore,
    source_of,
)
from lensaudit.steer.generate import NO_EDITS, format_of
from lensaudit.steer.sentences import component_clamped, direction_edited
from lensaudit.steer.settings import DirectionSettings, Kind
from lensaudit.steer.trait import audit_folder
from lensaudit.text import digest
from lensaudit.training.rows import load_rows

LOG = "interventions.jsonl"
COMMAND = "steer audit"
FILES = (SUMMARY,)


def open_audit(settings: DirectionSettings, notice: Notice = unheard) -> DirectionsAudit:
    """The audit that the settings describe, its examples encoded; nothing is loaded.

    Raises:
        InputError: whatever is wrong with names, files or numbers; models of different shape or
            of the same weights, too few authors, or a set of which nothing can be scored.
    """
    check_free(audit_folder(settings), COMMAND, FILES)
    kept = retain_examples(settings)
    groups = shared(settings, Caches, Precision, Rows, Anchors)
    asked = PatchSettings(layers=settings.layers, memory=settings.memory, **groups)
    session = prepare((settings.name,), asked, notice=notice, maps=False)
    audit = DirectionsAudit(
        settings=settings,
        session=session,
        strengths=strengths_of(settings.strengths),
        form=format_of(session.tokenizer, settings.form),
        facts={"forget": session.examples, "retain": tuple(kept)},
        encoded={"forget": session.encoded, "retain": encode_all(kept, session.full)[0]},
    )
    tell_replaced(audit_folder(settings), *_recorded(audit), notice)
    n_made, asked_for = len(audit.folds()), settings.n_folds
    if asked_for not in (n_made, DirectionSettings.n_folds):  # the usual number is at most
        raise InputError(
            f"--set folds={asked_for}: the rows have {n_made} authors, and each is in one fold; "
            f"wanted 2 to {n_made}"
        )
    return audit


def _recorded(audit: DirectionsAudit) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options and inputs of a run, as its manifest has them."""
    return plain(audit.settings, without=("name", "full", "retain", "out")), {
        **{role: vars(one) for role, one in _models(audit).items()},
        "examples": len(audit.encoded["forget"]),
        "rows": told_rows(audit.session.examples),
    }


def _models(audit: DirectionsAudit) -> dict[str, NamedModel]:
    """The three models by what they are."""
    return {role: NamedModel(one.spec.name, one.weights) for role, one in audit.checkpoints.items()}


def retain_examples(settings: DirectionSettings) -> list[Fact]:
    """Questions that should be kept, evenly taken; without annotation the whole answer is scored.

    Raises:
        InputError: no such set, wrong rows, or a forget set from a file and no set beside it.
    """
    data = settings.data or default_data(settings.name, settings.registry)
    named = settings.retain_data or {**TOFU_PAIRS, DEMO: DEMO}.get(data)
    if named is None:
        raise InputError(
            f"--data {data}: name --kept too: rows with question and answer that should be "
            "kept; what a direction costs is measured on them"
        )
    own = named != DEMO and Path(named).expanduser().exists()
    annotated = read_neutral(Path(named).expanduser()) if own else ()
    rows = annotated or load_rows(named, part="retain")
    examples = [
        one if one.entity else replace(one, idx=at, prefix="", entity=one.answer)
        for at, one in enumerate(rows)
    ]
    n = min(settings.n_retain, len(examples))
    return [examples[at * len(examples) // n] for at in range(n)]


def run(audit: DirectionsAudit, progress: Tell = unheard, notice: Notice = unheard) -> RunResult:
    """Every experiment on every fold, then `interventions.jsonl`, `summary.json` and the manifest.

    A finished fold of an experiment is not computed again.

    Args:
        audit: what is asked of which models.
        progress: told how many folds are done.
        notice: told which lines of an earlier run do not count.
    """
    record = recorded.in_folder(
        _folder(audit),
        DirectionsRecord,
        lambda: _tried(audit, progress, notice),
        device=audit.session.settings.device,
        files=FILES,
        kind="directions",
        notice=notice,
    )
    return RunResult(audit.settings.name, audit_folder(audit.settings), record)


def _folder(audit: DirectionsAudit) -> LogFolder:
    options, inputs = _recorded(audit)
    return LogFolder(
        usual=audit_folder(audit.settings),
        command=COMMAND,
        key=digest([SCHEMA, audit.identity(), audit.kinds]),
        asked={"options": options, "inputs": inputs},
        files=FILES,
    )


def _tried(audit: DirectionsAudit, progress: Tell, notice: Notice) -> DirectionsRecord:
    """Every experiment on every fold that the log lacks, and what all come to."""
    identity, session = audit.identity(), audit.session
    ledger = Ledger(audit_folder(audit.settings) / LOG, "interventions", {}, notice=notice)
    rows = [row for row in ledger.rows if row["run"] == identity]
    done, wanted = {(row["kind"], row["fold"]) for row in rows}, _wanted(audit)
    session.progress = progress
    with session:
        for kind, fold in wanted:
            if (kind, fold.number) in done:
                continue
            _ = audit.asked, audit.streams  # caches are filled before anything is scored
            new = [{"run": identity, **row} for row in _rows_of(audit, kind, fold)]
            ledger.append(new)
            rows += new
            done.add((kind, fold.number))
            progress(Progress("experiments x folds", len(done) - 1, len(wanted) - 1))
    rows.sort(key=lambda row: (_ORDER[row["kind"]], row["fold"]))
    ledger.rewrite(rows)
    return summed_up(audit, rows)


PLAIN = Fold(-1, frozenset(), frozenset(), frozenset())
"""Of the row that tells what the three models know as they are."""
_ORDER = {"plain": -1, **{kind: at for at, kind in enumerate(KINDS)}}


def _rows_of(bench: DirectionsAudit, kind: str, fold: Fold) -> list[dict[str, Any]]:
    """What an experiment finds in one fold, or one row that it finds nothing."""
    if kind == "plain":
        return [_plain_row(bench)]
    findings = {"add": restore, "ablate": ablate, "clamp": mediate}[kind](bench, fold)
    extra = {"direction_source": source_of(bench, fold).name} if kind == "ablate" else {}
    empty = {"schema": SCHEMA, "kind": kind, "fold": fold.number, "empty": True}
    return [{**one.document(), **extra} for one in findings] or [empty]


def _plain_row(bench: DirectionsAudit) -> dict[str, Any]:
    """Scores of the three models without an intervention."""
    encoded = bench.encoded["forget"]
    scores: dict[Role, Scores] = {}
    spoken: dict[Role, Said] = {}
    for role in ROLES:  # all that is asked of one while it is in memory
        scores[role] = bench.scored(role, range(len(encoded)), [NO_EDITS])
        # only ABLATE reads them, and they take longer than all the rest
        if "ablate" in bench.kinds:
            spoken[role] = bench.said(role, "forget")
    return {
        "schema": SCHEMA,
        "kind": "plain",
        "fold": -1,
        "idx": [e.idx for e in encoded],
        "groups": [e.group for e in encoded],
        "em": {role: one.em[0].tolist() for role, one in scores.items()},
        "logprob": {role: one.logprob[0].tolist() for role, one in scores.items()},
        "said": {role: list(map(float, one.correct)) for role, one in spoken.items()},
        "idk_rate": {role: sum(one.declines) / len(encoded) for role, one in spoken.items()},
    }


def summed_up(audit: DirectionsAudit, rows: Sequence[Mapping[str, Any]]) -> DirectionsRecord:
    """The record, from rows alone."""
    base = next(row for row in rows if row["kind"] == "plain")
    plain = {
        score: pd.DataFrame({**base[score], "group": base["groups"]}, index=base["idx"])
        for score in SCORES
        if base[score]
    }
    names = [one.name for one in fields(Finding) if one.name not in HELD]
    findings = [
        Finding(**{name: row[name] for name in names})
        for row in rows
        if row["kind"] != "plain" and not row.get("empty")
    ]
    sources = {row["direction_source"] for row in rows if "direction_source" in row}
    # a refusal acts on the question; once the prefix is forced there may be nothing to restore
    decisive = {kind: audit.settings.score for kind in audit.kinds}
    decisive |= {"ablate": "said"} if sources == {"idk"} else {}
    cap = audit.settings.kl_cap
    experiments = {
        kind: summary_of(kind, findings, plain, decisive[kind], kl_cap=cap) for kind in audit.kinds
    }
    if "ablate" in experiments:
        experiments["ablate"] = replace(experiments["ablate"], direction_source=sorted(sources))
    return DirectionsRecord(
        models=_models(audit),
        source=audit.checkpoints["unlearned"].spec.name,
        score=audit.settings.score,
        plain={
            score: {role: sum(base[score][role]) / len(base["idx"]) for role in ROLES}
            for score in plain
        },
        idk_rate=base["idk_rate"],
        n_items=len(base["idx"]),
        n_groups=len(set(base["groups"])),
        n_retain=len(audit.encoded["retain"]),
        n_folds=len(audit.folds()),
        unscored={str(idx): reason for idx, reason in audit.session.unscored.items()},
        experiments=experiments,
    )


def _wanted(audit: DirectionsAudit) -> list[tuple[str, Fold]]:
    """Every experiment and fold, after the models as they are."""
    return [("plain", PLAIN), *product(audit.kinds, audit.folds())]


def plan_of(audit: DirectionsAudit) -> str:
    """Plan of a directions audit; of a finished one nothing."""
    return recorded.planned(_folder(audit), lambda: _plan(audit))


def _plan(audit: DirectionsAudit) -> str:
    names = ", ".join(f"{role} {one.spec.name}" for role, one in audit.checkpoints.items())
    groups = {e.group for e in audit.encoded["forget"]}
    grid = len(audit.layers) * len(audit.strengths)
    return (
        f"{names}\n{len(audit.encoded['forget'])} forget examples of {len(groups)} authors in "
        f"{len(audit.folds())} folds, {len(audit.encoded['retain'])} retain examples\n"
        f"{', '.join(audit.kinds)}; ADD tries {grid} settings on the dev authors of each fold; "
        "full and one other model in memory, all three where they are small"
    )


def strengths_of(text: str) -> tuple[float, ...]:
    """Distinct factors, ascending.

    Raises:
        InputError: not numbers, or 0, which adds nothing.
    """
    found = sorted(set(numbers_of(text, "--strengths")))
    if 0 in found:
        raise InputError(f"--strengths {text}: wanted numbers other than 0")
    return tuple(found)


TARGET: Mapping[Role, Role] = {"unlearned": "full", "retain": "full", "full": "unlearned"}
SCORES = ("em", "logprob", "said")
"""Entity tokens right with the prefix forced; their log-prob; the entity in a free answer."""
LEAST_SE = 2.0
"""The gap to close must exceed so many standard errors, or there is nothing to restore."""
COMPARABLE = 0.9
"""Mean cosine of two models' streams on retain examples below which their axes may differ."""
SMALL = 0.1
"""Gap, in shares of answers, below which a recovery rests on a handful of tokens."""
CONTROLS: Mapping[str, str] = {
    "random": "random directions",
    "never_trained": "the same on the never-trained model",
}
"""Arm -> what it is called in a sentence."""


def is_gap(plain: pd.DataFrame, before: Role, target: Role, idx: Sequence[int]) -> bool:
    """Whether full is ahead of the other model by more than two standard errors.

    The error is from the spread of author means (ddof 1), infinite for a single author. Behind it
    there is nothing to bring back: closing that gap would make answers worse.
    """
    rows: Any = plain.loc[list(idx)]
    gaps = rows["full"] - rows[target if before == "full" else before]
    means = gaps.groupby(rows["group"].tolist()).mean()
    error = float(means.sem()) if len(means) > 1 else math.inf
    return math.fsum(gaps.tolist()) / len(gaps) > LEAST_SE * error


def recovery_of(findings: Sequence[Finding], plain: pd.DataFrame, score: str) -> Recovery:
    """One arm over all folds; several random directions are averaged per example.

    Args:
        findings: of the arm.
        plain: score of each model without an intervention, and `group`, by idx.
        score: which one.
    """
    before = findings[0].role
    target = TARGET[before]
    every: Any = pd.concat([pd.Series(one.values(score)) for one in findings])
    said = every.groupby(level=0).mean()
    idx, means = said.index.tolist(), said.tolist()
    mean = math.fsum(means) / len(means)
    if not is_gap(plain, before, target, idx):
        return Recovery(None, n=len(idx), why="no gap to close: no interval", mean=mean)
    rows: Any = plain.loc[idx]
    start, goal = (rows[role].tolist() for role in (before, target))
    groups = rows["group"].tolist()
    found = recovery(means, goal, start, groups, unit=unit_of(groups))
    spread = _spread(findings, score, math.fsum((rows[target] - rows[before]).tolist()))
    return Recovery(**vars(found), mean=mean, sd=spread)


def _spread(findings: Sequence[Finding], score: str, gap: float) -> float | None:
    """Standard deviation (ddof 1) of the recovery over random directions of each fold's number."""
    if any(one.seed is None for one in findings):
        return None
    totals: Any = pd.Series([math.fsum(one.values(score).values()) for one in findings])
    place = totals.groupby([one.fold for one in findings]).cumcount()
    values = totals.groupby(place).sum() / gap
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def summary_of(
    kind: Kind,
    findings: Sequence[Finding],
    plain: Mapping[str, pd.DataFrame],
    score: str,
    *,
    kl_cap: float = math.inf,
) -> Experiment:
    """The numbers of one experiment; None where a score has no gap to close."""
    tested = [one for one in findings if one.kind == kind and one.stage == "score"]
    if not tested:
        return Experiment(kind=kind, unscored=_NO_SHIFT[kind])
    arms = grouped((_arm_key(one), one) for one in tested)
    main = arms["direction"]
    found = {
        name: {key: recovery_of(own, plain[key], key) for key in plain if own[0].values(key)}
        for name, own in arms.items()
    }
    value = found["direction"][score].value
    control = found["never_trained"][score].value if "never_trained" in found else None
    doses = {
        float(name.split()[1]): both[score].mean
        for name, both in found.items()
        if name.startswith(("dose", "curve"))
    }
    idx = sorted(i for one in main for i in one.idx)
    rows: Any = plain[score].loc[idx]
    ends, nothing = (
        found["direction"][score],
        "nothing to restore: full is not ahead by more than 2 SE",
    )
    experiment = Experiment(
        kind=kind,
        unscored=None if value is not None else nothing,
        score=score,
        recovery=value,
        ci95=ends.ends,
        ci95_why=None if ends.ends else ends.why,
        recovery_above_control=None if None in (value, control) else value - control,  # pyright: ignore
        arms=found,
        chosen=[{name: getattr(one, name) for name in _CHOSEN} for one in main],
        kl_retain=mean_known([one.kl_retain for one in main]),
        utility_delta=mean_known([one.utility_delta for one in main]),
        similarity=mean_known([one.similarity for one in main]),
        speech={
            name: {key: mean_known([one.speech.get(key) for one in own]) for key in own[0].speech}
            for name, own in arms.items()
            if own[0].speech
        },
        gap=math.fsum((rows["full"] - rows["unlearned"]).tolist()) / len(idx),
        dose_spearman=rank_correlation(doses) if kind == "clamp" else None,
    )
    warnings = _warnings(experiment)
    if kind == "ablate" and (n := sum((one.kl_retain or 0.0) > kl_cap for one in main)):
        warnings.append(
            f"in {n} of {len(main)} folds every setting changes retain answers by more than kl-cap "
            f"{kl_cap:g}: the one that changes them least is taken"
        )
    return replace(experiment, warnings=warnings, reading=reading(kind, experiment))


_CHOSEN = ("fold", "arm", "role", "layer", "strength", "variant", "seed")
_SAME = "the streams of full and unlearned are equal: the difference lies after the last block"
_NO_SHIFT: Mapping[Kind, str] = {
    "add": _SAME,
    "ablate": "no direction in the first 80 % of the layers",
    "clamp": _SAME,
}


def _arm_key(finding: Finding) -> str:
    if finding.arm == "curve":
        return f"curve {finding.strength:g}"
    return finding.variant if finding.arm == "dose" else finding.arm


def _warnings(one: Experiment) -> list[str]:
    warnings = []
    if one.similarity is not None and one.similarity < COMPARABLE:
        warnings.append(
            f"streams of full and unlearned have mean cosine {one.similarity:.2f} on retain "
            "examples: not comparable, a direction of one may mean another thing in the other"
        )
    if one.score != "logprob" and one.gap is not None and one.gap < SMALL:
        warnings.append(
            f"full and unlearned differ by {one.gap:.2f} only: there is little to restore"
        )
    random = one.arms.get("random", {}).get(one.score, UNMEASURED).value
    if random is not None and random > WEAK:
        warnings.append(
            f"random directions recover {random:.2f}: the effect is not the direction's"
        )
    return warnings


def reading(kind: Kind, experiment: Experiment) -> str:
    """One sentence; it says what the intervals and the controls show and no more."""
    scored = {arm: both.get(experiment.score) for arm, both in experiment.arms.items()}
    # where there was no gap to close there is no evidence
    known = {arm: one for arm, one in scored.items() if one and one.value is not None}
    if "direction" not in known:
        return f"Not scored: {experiment.unscored}."
    main, general = known["direction"], known.get("retain_derived")
    # a control that was run and has no value is no control that was beaten
    controls = {name: one for arm, name in CONTROLS.items() if (one := scored.get(arm))}
    if kind == "clamp":
        drawn = known.get("random_sufficiency")
        into_full = {"random directions into full": drawn} if drawn else {}
        return component_clamped(main, known.get("sufficiency"), controls, into_full, general)
    return direction_edited(kind, main, controls, general)
