"""The whole of `steer audit`: ADD, ABLATE and CLAMP over folds of authors, resumable, summed up."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lensaudit.data.facts import EMBEDDED, Fact, load_facts, read_rows
from lensaudit.data.spans import Encoded, encode
from lensaudit.data.tofu import DEMO, TOFU_PAIRS
from lensaudit.directions.experiments import (
    SCHEMA,
    Said,
    ablate,
    mediate,
    read_finding,
    restore,
    said,
    source_of,
)
from lensaudit.directions.models import (
    KINDS,
    ROLES,
    DirectionsAudit,
    Fold,
    Part,
    Role,
    ThreeModels,
    open_models,
)
from lensaudit.directions.verdict import SCORES, PlainScores, summary_of
from lensaudit.errors import InputError, WorkError
from lensaudit.files import slug, write_json
from lensaudit.models.checkpoint import (
    Checkpoint,
    check_same_shape,
    config_of,
    load_tokenizer,
    open_family,
)
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.registry import (
    default_data,
)
from lensaudit.models.sizes import context_of
from lensaudit.patching.options import parse_layers, parse_memory
from lensaudit.patching.prepare import examples_for
from lensaudit.progress import Notice, Tick
from lensaudit.results.ledger import Ledger
from lensaudit.results.records import claim, manifest
from lensaudit.settings import plain, results_folder
from lensaudit.steer.generate import NO_EDITS, format_of
from lensaudit.steer.settings import DirectionSettings, Kind
from lensaudit.unlearn.rows import load_rows

LOG = "interventions.jsonl"
SUMMARY_SCHEMA = "steer-audit/1"

AnyRow = TypeVar("AnyRow")


def open_audit(settings: DirectionSettings, notice: Notice | None = None) -> DirectionsAudit:
    """The audit that the settings describe; nothing is loaded.

    Raises:
        InputError: whatever is wrong with names, files or numbers.
    """
    data = settings.data or default_data(settings.name)
    forget = examples_for(data, exclude=settings.exclude, limit=settings.limit)
    kept = retain_examples(retain_name(settings.retain_data, data), settings.n_retain)
    full, sources, never = open_family(
        (settings.name,),
        settings.full,
        settings.retain and (settings.retain,),
        settings.registry,
    )
    models = (full, *sources.values(), *never.values())
    return prepare(dict(zip(ROLES, models, strict=True)), forget, kept, settings, notice=notice)


def prepare(
    checkpoints: Mapping[Role, Checkpoint],
    forget: Sequence[Fact],
    retain: Sequence[Fact],
    settings: DirectionSettings,
    *,
    notice: Notice | None = None,
    **more: Any,
) -> DirectionsAudit:
    """An audit whose examples are encoded and checked; nothing is loaded.

    Raises:
        InputError: models of different shape, two of the same weights, too few authors, a number
            that cannot be used, or a set of which nothing can be scored.
    """
    full, *others = (checkpoints[role] for role in ROLES)
    check_same_shape(full, *others, notice=notice)
    for role, other in zip(ROLES[1:], others, strict=True):
        if full.weights == other.weights:
            raise InputError(
                f"full ({full.spec.name}) and {role} ({other.spec.name}) have the same "
                "weights; there is no difference to look into"
            )
    tokenizer, device = load_tokenizer(full), resolve_device(settings.device)
    too_long = context_of(config_of(full)).too_long
    examples: dict[Part, tuple[Fact, ...]] = {"forget": tuple(forget), "retain": tuple(retain)}
    kept: dict[Part, tuple[Encoded, ...]] = {}
    lost: dict[Part, dict[int, str]] = {}
    for part, rows in examples.items():
        found = [encode(one, tokenizer, too_long=too_long) for one in rows]
        kept[part] = tuple(one for one in found if isinstance(one, Encoded))
        pairs = zip(rows, found, strict=True)
        lost[part] = {row.idx: why for row, why in pairs if isinstance(why, str)}
        if not kept[part]:
            raise InputError(f"{part} examples: the tokenizer leaves nothing to score in any")
    audit = DirectionsAudit(
        settings=settings,
        layers=parse_layers(settings.layers, full.n_layers),
        strengths=strengths_of(settings.strengths),
        form=format_of(tokenizer, settings.form),
        dtype=resolve_dtype(settings.dtype, device),
        device=device,
        memory_bytes=parse_memory(settings.memory),
        checkpoints=checkpoints,
        examples=examples,
        encoded=kept,
        unscored=lost["forget"],
        **more,
    )
    audit.folds()
    return audit


def retain_examples(named: str, limit: int = DirectionSettings.n_retain) -> list[Fact]:
    """Retain questions that `named` means, evenly taken; without annotation the answer is scored.

    Raises:
        InputError: no such set, or wrong rows.
    """
    if named == DEMO:
        return evenly(load_facts(EMBEDDED / "retain.json"), limit)
    if (path := Path(named).expanduser()).exists():
        rows, _ = read_rows(path)
        if rows and isinstance(rows[0][1], Mapping) and "entity" in rows[0][1]:
            return evenly(load_facts(path), limit)
    answered = load_rows(named, part="retain").answered
    examples = [
        Fact(at, one.question, one.answer, "", one.answer, f"retain {at}")
        for at, one in enumerate(answered)
    ]
    return evenly(examples, limit)


def evenly(examples: Sequence[AnyRow], limit: int) -> list[AnyRow]:
    """At most `limit` of them, at equal distances.

    >>> evenly([0, 1, 2, 3, 4], 3)
    [0, 1, 3]
    """
    n = min(limit, len(examples))
    return [examples[at * len(examples) // n] for at in range(n)]


def run(
    audit: DirectionsAudit, out: Path, progress: Tick | None = None, notice: Notice | None = None
) -> dict[str, Any]:
    """Every experiment on every fold, then `interventions.jsonl` and `summary.json` in `out`.

    A finished fold of an experiment is not computed again.

    Args:
        audit: what is asked of which models.
        out: folder of the results.
        progress: told how many folds are done.
        notice: told which lines of an earlier run do not count.
    """
    claim(out, "steer audit", ["summary.json"])
    (out / "summary.json").unlink(missing_ok=True)
    identity = audit.identity()
    ledger = Ledger(out / LOG, "interventions", {}, notice=notice)
    asked = {e.idx for e in audit.encoded["forget"]}
    rows = [
        row
        for row in ledger.rows
        if row["run"] == identity and asked.issuperset(row.get("idx", ()))
    ]
    done = {(row["kind"], row["fold"]) for row in rows}
    wanted: list[tuple[Kind, Fold]] = [
        (kind, fold) for kind in audit.kinds for fold in audit.folds()
    ]
    missing: list[tuple[Kind, Fold]] = [
        (kind, fold) for kind, fold in wanted if (kind, fold.number) not in done
    ]
    if missing or PLAIN not in done:
        for new in _computed(audit, missing, PLAIN not in done, progress):
            new = [{"run": identity, **row} for row in new]
            ledger.append(new)
            rows += new
            done |= {(row["kind"], row["fold"]) for row in new}
            if progress:
                progress("experiments x folds", len(done - {PLAIN}), len(wanted))
    rows.sort(key=lambda row: (_ORDER[row["kind"]], row["fold"]))
    ledger.rewrite(rows)
    summary = summed_up(audit, rows)
    write_json(out / "summary.json", summary)
    return summary


PLAIN = ("plain", -1)
"""Kind and fold of the row that tells what the three models know as they are."""
_ORDER = {"plain": -1, **{kind: at for at, kind in enumerate(KINDS)}}


def _computed(
    audit: DirectionsAudit,
    missing: Sequence[tuple[Kind, Fold]],
    plain: bool,
    progress: Tick | None,
) -> Iterator[list[dict[str, Any]]]:
    """The rows of each experiment and fold that is missing, one batch each."""
    bench = open_models(audit, progress)
    if plain:
        yield [_plain_row(bench)]
    questions: list[Said] = []
    for kind, fold in missing:
        extra = {}
        if kind == "ablate":
            # what the unlearned model says to all questions, unhindered
            questions = questions or [_all_said(bench, "unlearned", part) for part in bench.encoded]
            source = source_of(bench, bench.rows(fold.estimate), *questions)
            findings = ablate(bench, fold, source)
            extra = {"direction_source": source.name}
        else:
            findings = (restore if kind == "add" else mediate)(bench, fold)
        empty = {"schema": SCHEMA, "kind": kind, "fold": fold.number, "empty": True}
        yield [{**one.document(), **extra} for one in findings] or [empty]


def _all_said(bench: ThreeModels, role: Role, part: Part) -> Said:
    return said(bench, role, part, range(len(bench.encoded[part])))


def _plain_row(bench: ThreeModels) -> dict[str, Any]:
    """Scores of the three models without an intervention."""
    encoded = bench.encoded["forget"]
    scores = {role: bench.scored(role, range(len(encoded)), [NO_EDITS]) for role in ROLES}
    # only ABLATE reads them, and they take longer than all the rest
    asked = ROLES if "ablate" in bench.kinds else ()
    spoken = {role: _all_said(bench, role, "forget") for role in asked}
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


def summed_up(audit: DirectionsAudit, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The summary, from rows alone."""
    base = next(row for row in rows if row["kind"] == "plain")
    groups = dict(zip(base["idx"], base["groups"], strict=True))
    plain = {
        score: PlainScores(
            {role: dict(zip(base["idx"], base[score][role], strict=True)) for role in ROLES}, groups
        )
        for score in SCORES
        if base[score]
    }
    findings = [
        read_finding(row) for row in rows if row["kind"] != "plain" and not row.get("empty")
    ]
    sources = {row["direction_source"] for row in rows if "direction_source" in row}
    # a refusal acts on the question; once the prefix is forced there may be nothing to restore
    decisive = {kind: audit.settings.score for kind in audit.kinds}
    decisive |= {"ablate": "said"} if sources == {"idk"} else {}
    experiments = {kind: summary_of(kind, findings, plain, decisive[kind]) for kind in audit.kinds}
    if "ablate" in experiments:
        experiments["ablate"]["direction_source"] = sorted(sources)
    names = {role: audit.checkpoints[role].spec.name for role in ROLES}
    return {
        "schema": SUMMARY_SCHEMA,
        "models": {
            role: {"name": names[role], "weights": audit.checkpoints[role].weights}
            for role in ROLES
        },
        "source": names["unlearned"],
        "score": audit.settings.score,
        "plain": {
            score: {role: sum(values.values()) / len(values) for role, values in one.scores.items()}
            for score, one in plain.items()
        },
        "idk_rate": base["idk_rate"],
        "n_items": len(base["idx"]),
        "n_groups": len(set(groups.values())),
        "n_retain": len(audit.encoded["retain"]),
        "n_folds": len(audit.folds()),
        "unscored": {str(idx): reason for idx, reason in audit.unscored.items()},
        "experiments": experiments,
    }


def plan_of(audit: DirectionsAudit) -> str:
    """Plan of a directions audit."""
    names = ", ".join(f"{role} {audit.checkpoints[role].spec.name}" for role in ROLES)
    groups = {e.group for e in audit.encoded["forget"]}
    grid = len(audit.layers) * len(audit.strengths)
    return (
        f"{names}\n{len(audit.encoded['forget'])} forget examples of {len(groups)} authors in "
        f"{len(audit.folds())} folds, {len(audit.encoded['retain'])} retain examples\n"
        f"{', '.join(audit.kinds)}; ADD tries {grid} settings on the dev authors of each fold; "
        "three models in memory"
    )


def run_audit(
    audit: DirectionsAudit, progress: Tick, notice: Notice | None = None
) -> tuple[dict[str, Any], Path]:
    """The experiments on one unlearned model: their summary, and the folder of their files."""
    started, settings = time.monotonic(), audit.settings
    folder = settings.out or results_folder() / "steering" / slug(settings.name) / "audit"
    summary = run(audit, folder, progress, notice)
    inputs = {
        role: {"name": one.spec.name, "weights": one.weights}
        for role, one in audit.checkpoints.items()
    }
    manifest(
        "steer audit",
        options=plain(settings, without=("name", "full", "retain", "out")),
        inputs={**inputs, "examples": len(audit.encoded["forget"])},
        device=audit.device,
        started=started,
    ).write(folder, ["summary.json"])
    return summary, folder


def check_scored(summary: Mapping[str, Any]) -> None:
    """Fail where no experiment could be scored; the files say why.

    Raises:
        WorkError: with the reasons.
    """
    reasons = {one["unscored"] for one in summary["experiments"].values()}
    if all(reasons):
        said = "; ".join(sorted(reasons))
        raise WorkError(f"{summary['source']}: nothing could be scored ({said})")


def retain_name(named: str | None, data: str) -> str:
    """What --retain-data stands for; the complement of a named forget set by default.

    Raises:
        InputError: the forget set is a file, so its complement must be named.
    """
    known = {**TOFU_PAIRS, "demo": "demo"}
    if named is None and data not in known:
        raise InputError(
            f"--data {data}: name --retain-data too: rows with question and answer that should be "
            "kept; what a direction costs is measured on them"
        )
    return named or known[data]


def strengths_of(text: str) -> tuple[float, ...]:
    """Distinct factors, ascending.

    Raises:
        InputError: not numbers, or 0, which adds nothing.
    """
    try:
        found = sorted({float(part) for part in text.split(",")})
    except ValueError as error:
        raise InputError(f"--strengths {text}: wanted numbers, like 0.5,1,2") from error
    if not found or any(one == 0 or not math.isfinite(one) for one in found):
        raise InputError(f"--strengths {text}: wanted finite numbers other than 0")
    return tuple(found)
