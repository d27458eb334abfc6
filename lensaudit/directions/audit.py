"""The whole of `steer audit`: ADD, ABLATE and CLAMP over folds of authors, resumable, summed up."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lensaudit.activations.fill import encoded_hash
from lensaudit.data.facts import EMBEDDED, Fact, load_facts, read_rows
from lensaudit.data.spans import Encoded, SpanLost, encode
from lensaudit.data.tofu import DEMO
from lensaudit.directions.ablate import Said, ablate, said, source_of
from lensaudit.directions.finding import (
    KINDS,
    SCHEMA,
    Kind,
    read_finding,
)
from lensaudit.directions.folds import N_FOLDS, Fold, author_folds
from lensaudit.directions.models import ROLES, At, Part, Role, Runs, ThreeModels, open_models
from lensaudit.directions.restore import Search, mediate, restore
from lensaudit.directions.verdict import SCORES, PlainScores, summary_of
from lensaudit.errors import InputError, WorkError
from lensaudit.files import digest, slug, write_json
from lensaudit.models.checkpoint import (
    Checkpoint,
    check_same_shape,
    config_of,
    load_tokenizer,
    open_checkpoint,
)
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.registry import (
    ModelSpec,
    default_anchor,
    default_data,
    load_registry,
    resolve,
)
from lensaudit.models.sizes import context_of
from lensaudit.patching.options import parse_layers, parse_memory
from lensaudit.patching.prepare import examples_for
from lensaudit.progress import Notice, Tick
from lensaudit.results.ledger import Ledger
from lensaudit.results.records import claim, manifest
from lensaudit.settings import plain, results_folder
from lensaudit.steer.generate import Format, format_of
from lensaudit.steer.settings import DirectionSettings
from lensaudit.unlearn.rows import TOFU_PAIRS, load_rows

LOG = "interventions.jsonl"
SUMMARY_SCHEMA = "steer-audit/1"

AnyRow = TypeVar("AnyRow")


@dataclass(frozen=True)
class DirectionsAudit:
    """Three models of one base, two sets of questions, and what is tried."""

    checkpoints: Mapping[Role, Checkpoint]
    examples: Mapping[Part, tuple[Fact, ...]]
    encoded: Mapping[Part, tuple[Encoded, ...]]
    unscored: Mapping[int, str]
    """Forget examples without a token to score: idx -> reason."""
    search: Search
    kinds: tuple[Kind, ...] = KINDS
    n_folds: int = N_FOLDS
    at: At = "prefix"
    form: Format = "raw"
    runs: Runs = field(default_factory=Runs)

    def identity(self) -> str:
        """Content hash of what determines a finding."""
        return digest(
            [
                {role: one.weights for role, one in self.checkpoints.items()},
                {part: encoded_hash(rows) for part, rows in self.encoded.items()},
                [[e.idx, str(e.group)] for e in self.encoded["forget"]],
                asdict(self.search),
                self.n_folds,
                self.at,
                self.form,
                self.runs.dtype,
                "ablate" in self.kinds,
            ]
        )

    def folds(self) -> list[Fold]:
        """Folds of whole authors."""
        return author_folds([e.group for e in self.encoded["forget"]], self.n_folds)


def prepare(
    checkpoints: Mapping[Role, Checkpoint],
    forget: Sequence[Fact],
    retain: Sequence[Fact],
    *,
    search: Search,
    notice: Notice | None = None,
    **options: Any,
) -> DirectionsAudit:
    """An audit whose examples are encoded and checked; nothing is loaded.

    Raises:
        InputError: models of different shape, two of the same weights, too few authors, or a set
            of which nothing can be scored.
    """
    check_same_shape(*(checkpoints[role] for role in ROLES), notice=notice)
    _check_different(checkpoints)
    tokenizer = load_tokenizer(checkpoints["full"])
    too_long = context_of(config_of(checkpoints["full"])).too_long
    examples: dict[Part, tuple[Fact, ...]] = {"forget": tuple(forget), "retain": tuple(retain)}
    found: dict[Part, list[Encoded | SpanLost]] = {
        part: [encode(one, tokenizer, too_long=too_long) for one in rows]
        for part, rows in examples.items()
    }
    kept: dict[Part, tuple[Encoded, ...]] = {
        part: tuple(one for one in rows if isinstance(one, Encoded)) for part, rows in found.items()
    }
    if empty := [part for part, rows in kept.items() if not rows]:
        raise InputError(f"{empty[0]} examples: the tokenizer leaves nothing to score in any")
    lost = {one.idx: one.reason for one in found["forget"] if not isinstance(one, Encoded)}
    audit = DirectionsAudit(checkpoints, examples, kept, lost, search, **options)  # pyright: ignore
    audit.folds()
    return audit


def _check_different(checkpoints: Mapping[Role, Checkpoint]) -> None:
    others: tuple[Role, ...] = ("unlearned", "retain")
    for second in others:
        one, other = checkpoints["full"], checkpoints[second]
        if one.weights == other.weights:
            raise InputError(
                f"full ({one.spec.name}) and {second} ({other.spec.name}) have the same "
                "weights; there is no difference to look into"
            )


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
    plain = next((row for row in rows if row["kind"] == "plain"), None)
    if missing or plain is None:
        for new in _computed(audit, missing, plain is None):
            new = [{"run": identity, **row} for row in new]
            ledger.append(new)
            rows += new
            if progress:
                n_done = len({(r["kind"], r["fold"]) for r in rows} - {("plain", -1)})
                progress("experiments x folds", n_done, len(wanted))
    rows.sort(key=lambda row: (_ORDER[row["kind"]], row["fold"]))
    ledger.rewrite(rows)
    summary = summed_up(audit, rows)
    write_json(out / "summary.json", summary)
    return summary


_ORDER = {"plain": -1, **{kind: at for at, kind in enumerate(KINDS)}}


def _computed(
    audit: DirectionsAudit, missing: Sequence[tuple[Kind, Fold]], plain: bool
) -> Iterator[list[dict[str, Any]]]:
    """The rows of each experiment and fold that is missing, one batch each."""
    texts: dict[Part, dict[int, str]] = {
        part: {e.idx: e.question for e in rows} for part, rows in audit.examples.items()
    }
    bench = open_models(
        audit.checkpoints, audit.encoded, texts, form=audit.form, at=audit.at, runs=audit.runs
    )
    by_idx = {one.idx: one.entity for one in audit.examples["forget"]}
    entities = [by_idx[e.idx] for e in audit.encoded["forget"]]
    if plain:
        yield [_plain_row(audit, bench, entities)]
    questions: tuple[Said, Said] | None = None
    for kind, fold in missing:
        if kind == "ablate":
            questions = questions or _said_plain(audit, bench, entities)
            source = source_of(bench, fold.rows(bench.encoded["forget"], fold.estimate), *questions)
            findings = ablate(bench, fold, audit.search, source, entities)
            extra = {"direction_source": source.name}
        else:
            findings = (restore if kind == "add" else mediate)(bench, fold, audit.search)
            extra = {}
        empty = {"schema": SCHEMA, "kind": kind, "fold": fold.number, "empty": True}
        yield [{**one.document(), **extra} for one in findings] or [empty]


def _said_plain(
    audit: DirectionsAudit, bench: ThreeModels, entities: Sequence[str]
) -> tuple[Said, Said]:
    """What the unlearned model says to all questions, unhindered."""
    n_retain, n = len(bench.encoded["retain"]), audit.search.max_new_tokens
    rows = range(len(entities))
    forget = said(bench, "unlearned", "forget", rows, entities, max_new_tokens=n)
    no_entities = [""] * n_retain
    return forget, said(
        bench, "unlearned", "retain", range(n_retain), no_entities, max_new_tokens=n
    )


def _plain_row(
    audit: DirectionsAudit, bench: ThreeModels, entities: Sequence[str]
) -> dict[str, Any]:
    """Scores of the three models without an intervention."""
    encoded = bench.encoded["forget"]
    scores = {role: bench.plain(role) for role in ROLES}
    rows = range(len(encoded))
    n = audit.search.max_new_tokens
    # only ABLATE reads them, and they take longer than all the rest
    asked: tuple[Role, ...] = ROLES if "ablate" in audit.kinds else ()
    spoken = {role: said(bench, role, "forget", rows, entities, max_new_tokens=n) for role in asked}
    return {
        "schema": SCHEMA,
        "kind": "plain",
        "fold": -1,
        "idx": [e.idx for e in encoded],
        "groups": [e.group for e in encoded],
        "em": {role: one.em[0].tolist() for role, one in scores.items()},
        "logprob": {role: one.logprob[0].tolist() for role, one in scores.items()},
        "said": {role: list(map(float, one.correct)) for role, one in spoken.items()},
        "idk_rate": {role: sum(one.declines) / len(entities) for role, one in spoken.items()},
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
    decisive = {kind: audit.search.score for kind in audit.kinds}
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
        "score": audit.search.score,
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


@dataclass(frozen=True)
class DirectionsResult:
    """What an audit of directions found, and where it is."""

    summary: dict[str, Any]
    folder: Path
    failure: WorkError | None
    """No experiment could be scored; the files say why."""


def open_audit(
    settings: DirectionSettings,
    progress: Tick | None = None,
    notice: Notice | None = None,
) -> DirectionsAudit:
    """The audit that the settings describe; nothing is loaded.

    Raises:
        InputError: whatever is wrong with names, files or numbers.
    """
    names: dict[Role, str] = {
        "full": settings.full or default_anchor("full", [settings.name]),
        "unlearned": settings.name,
        "retain": settings.retain or default_anchor("retain", [settings.name]),
    }
    registry = load_registry(settings.registry)
    specs: dict[Role, ModelSpec] = {role: resolve(names[role], registry) for role in ROLES}
    data = settings.data or default_data(settings.name)
    forget = examples_for(data, exclude=settings.exclude, limit=settings.limit)
    kept = retain_examples(retain_name(settings.retain_data, data), settings.n_retain)
    checkpoints: dict[Role, Checkpoint] = {role: open_checkpoint(specs[role]) for role in ROLES}
    device = resolve_device(settings.device)
    search = Search(
        layers=parse_layers(settings.layers, checkpoints["full"].n_layers),
        strengths=strengths_of(settings.strengths),
        score=settings.score,
        n_random=settings.n_random,
        seed=settings.seed,
        kl_cap=settings.kl_cap,
        where=settings.where,
        max_new_tokens=settings.max_new_tokens,
    )
    return prepare(
        checkpoints,
        forget,
        kept,
        search=search,
        notice=notice,
        kinds=tuple(kind for kind in KINDS if kind in settings.kinds) or KINDS,
        n_folds=settings.n_folds,
        at=settings.at,
        form=format_of(load_tokenizer(checkpoints["full"]), settings.form),
        runs=Runs(
            resolve_dtype(settings.dtype, device),
            device,
            parse_memory(settings.memory),
            Path(settings.activations),
            progress,
        ),
    )


def plan_of(audit: DirectionsAudit) -> str:
    """Plan of a directions audit."""
    names = ", ".join(f"{role} {audit.checkpoints[role].spec.name}" for role in ROLES)
    groups = {e.group for e in audit.encoded["forget"]}
    grid = len(audit.search.layers) * len(audit.search.strengths)
    return (
        f"{names}\n{len(audit.encoded['forget'])} forget examples of {len(groups)} authors in "
        f"{len(audit.folds())} folds, {len(audit.encoded['retain'])} retain examples\n"
        f"{', '.join(audit.kinds)}; ADD tries {grid} settings on the dev authors of each fold; "
        "three models in memory"
    )


def run_audit(
    audit: DirectionsAudit,
    settings: DirectionSettings,
    progress: Tick,
    notice: Notice | None = None,
) -> DirectionsResult:
    """The three experiments on one unlearned model, with their files."""
    started = time.monotonic()
    folder = settings.out or results_folder() / "steering" / slug(settings.name) / "audit"
    summary = run(audit, folder, progress, notice)
    inputs: dict[str, Any] = {
        role: {"name": one.spec.name, "weights": one.weights}
        for role, one in audit.checkpoints.items()
    }
    manifest(
        "steer audit",
        options=plain(settings, without=("name", "full", "retain", "out")),
        inputs={**inputs, "examples": len(audit.encoded["forget"])},
        device=audit.runs.device,
        started=started,
    ).write(folder, ["summary.json"])
    reasons = {one["unscored"] for one in summary["experiments"].values()}
    failure = None
    if all(reasons):
        said = "; ".join(sorted(reasons))
        failure = WorkError(f"{settings.name}: nothing could be scored ({said})")
    return DirectionsResult(summary, folder, failure)


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
