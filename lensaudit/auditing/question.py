"""The question of a run: settings that follow from its names, and a hash of what decides it.

Every option, models and rows by content, the code, the libraries and the cards that it could run
on are hashed. Who asks the same again is given the files (`calls`); no model library is imported.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, TypeVar

from lensaudit.auditing.settings import AuditSettings, EvaluateSettings
from lensaudit.auditing.step import Step
from lensaudit.data.facts import Fact
from lensaudit.data.neutral import kept_facts, neutral_beside
from lensaudit.data.suites import Split, load_suite
from lensaudit.data.tofu import DEMO, FORGET10, TOFU_HUB, check_filters, forget_set
from lensaudit.errors import InputError
from lensaudit.models.hashing import file_sha256, folder_sha256
from lensaudit.models.hub_files import WANTED, fetch
from lensaudit.models.registry import (
    ModelSpec,
    anchors_of,
    base_spec,
    data_of,
    default_data,
    load_registry,
    resolve,
    specs_of,
)
from lensaudit.patching.settings import PatchSettings
from lensaudit.results.kinds.eval import log_name
from lensaudit.results.manifest import EVAL, as_placed, code_digest, from_outside, package_versions
from lensaudit.results.owner import folders_within
from lensaudit.settings import (
    NO_RETAIN_MODEL,
    ROWS,
    DepthGroups,
    Machine,
    Models,
    NeutralRows,
    PatchGroups,
    Place,
    Questions,
    Rows,
    ScoreFiles,
    path_of,
    plain,
    results_folder,
    shared,
)
from lensaudit.text import digest, slug
from lensaudit.verdict.collect import KEPT

LOG = log_name("tofu")
MAKE_ONE = "prefix and entity per row are made by `lensaudit annotate`"
_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_OF_KEPT_FACTS = {"collateral", "selectivity"}
"""Metrics that read the facts to keep as well."""

S = TypeVar("S", bound=PatchGroups)


def anchored(sources: Sequence[str], settings: S) -> S:
    """The settings with the retain models that follow from the sources.

    Raises:
        InputError: a name is wrong, or own folders are named without the model before unlearning.
    """
    _, never = _ends(sources, settings)
    # the family's own stays unnamed: it is said by the sources
    return settings if never[0] != NO_RETAIN_MODEL else replace(settings, retain=never)


def _ends(sources: Sequence[str], settings: PatchGroups) -> tuple[str, tuple[str, ...]]:
    return anchors_of(
        sources, settings.full, settings.retain, load_registry(settings.registry), without=True
    )


def check_rows(sources: Sequence[str], settings: PatchGroups) -> None:
    """Refuse rows that are wrong, or cannot be fetched, before anything takes time.

    Raises:
        InputError: as `forget_set`, or a source is no name and no folder.
    """
    registry = load_registry(settings.registry)
    for one in sources:
        resolve(one, registry)
    data = settings.data or default_data(sources[0], settings.registry)
    forget_set(data, exclude=settings.exclude, limit=1)


def patch_key(sources: Sequence[str], settings: PatchSettings) -> str:
    """Content hash of all that decides what a run of `patch` says; 32 hex digits.

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    settings = anchored(sources, settings)
    data = str(settings.data or default_data(sources[0], settings.registry))
    examples = forget_set(data, exclude=settings.exclude, limit=settings.limit)
    neutral = neutral_beside(settings, data, examples)
    beside = (neutral.fit, neutral.validity, neutral.ordinary)
    kept = [kept_facts(one, data, limit=settings.limit) for one in settings.also]
    return content_key(
        settings,
        _models(sources, settings),
        sources=sources,
        rows=rows_hash(examples),
        neutral=[*map(rows_hash, beside), neutral.why],
        kept=[[one.name, one.pretrained, rows_hash(one.rows)] for one in kept],
    )


def evaluation_key(model: str, settings: EvaluateSettings) -> str:
    """Content key of an evaluation.

    Raises:
        InputError: a name, a file or a setting is wrong; or nobody knows what a name stands for.
    """
    registry = load_registry(settings.registry)
    named = {"model": model, "reference": settings.reference, "retain": settings.retain}
    also = ("retain",) if _OF_KEPT_FACTS & set(settings.metrics) else ()
    depth = None
    if settings.retain is not None:
        try:
            depth = patch_key([model], replace(depth_inside(model, settings), also=also))
        except InputError as error:
            depth = str(error)
    log = path_of(settings.retain_log)
    if settings.classifier is not None and not Path(settings.classifier).is_dir():
        raise InputError(f"{settings.classifier}: its content is known only once it is opened")
    folders = [path_of(one) for one in (settings.tokenizer, settings.classifier)]
    files = [path_of(settings.template), log and log_file(log, settings)]
    return content_key(
        replace(settings, retain_log=None),  # its content counts, however its place is spelled
        {role: resolve(name, registry) for role, name in named.items() if name is not None},
        depth=depth,
        rows=_digests(splits_of(model, settings)),
        files=[
            *(file_sha256(one) for one in files if one is not None),
            *(found for one in folders if one for _, found in folder_sha256(one)),
        ],
    )


def log_file(log: Path, settings: EvaluateSettings) -> Path:
    """A retain model's log, or that of the suite in a folder."""
    return log / log_name(settings.suite) if log.is_dir() else log


def audit_key(sources: Sequence[str], settings: AuditSettings, who: Step | None = None) -> str:
    """Content key of an audit.

    Args:
        sources: that are audited.
        settings: what is asked.
        who: the step that asks who has what; None where nobody is asked.

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    settings = anchored(sources, settings)
    asked = [
        [model, _digests(splits_of(model, how))]
        for model, how, _ in evaluations(sources, settings, Path())
    ]
    options = as_placed(plain(settings, without=("fresh",)))
    patch = asked_of_patch(settings, settings.retain_set)
    known = [_key_of_step(who, one, patch, settings) for one in sources] if who else []
    return digest([patch_key(sources, patch), options, asked, known])


def _key_of_step(step: Step, source: str, patch: PatchSettings, settings: AuditSettings) -> str:
    """That of who has what, of a source of an audit; or why nobody can be asked."""
    try:
        return step.key(source, patch, controls_of((source,), settings))
    except InputError as error:
        return str(error)


def content_key(settings: Any, models: Mapping[str, ModelSpec], **rows: Any) -> str:
    """One hash of the options, the models and rows by content, the code and the libraries."""
    return digest(
        {
            "options": as_placed(plain(settings, without=("fresh", "out"))),
            "models": [[role, _content(spec)] for role, spec in models.items()],
            **rows,
            **from_outside(),
            "versions": package_versions(),
            "code": code_digest(),
            "cards": _cards(),
        }
    )


def _models(names: Sequence[str], settings: PatchSettings) -> dict[str, ModelSpec]:
    """Every model of a run by role, in its order."""
    found = specs_of(names, settings)
    base = base_spec(
        [found[f"source {one}"] for one in names], settings.base, load_registry(settings.registry)
    )
    return found | ({"base": base} if base and settings.also else {})


def _content(spec: ModelSpec) -> list[Any]:
    """What a name stands for: its place, and every file that is read."""
    folder = spec.local or fetch(spec)
    files = sorted({path for pattern in WANTED for path in folder.glob(pattern)})
    place = [spec.name, spec.repo, spec.revision, str(spec.local)]
    adapter = spec.adapter and _content(spec.adapter)
    return [*place, [[one.name, file_sha256(one)] for one in files], adapter]


def rows_hash(examples: Sequence[Fact]) -> str:
    """Content hash of rows."""
    return digest([astuple(one) for one in examples])


def _digests(splits: Mapping[str, Split]) -> dict[str, str]:
    return {name: one.digest for name, one in splits.items()}


def _cards() -> list[str]:
    """What `--device auto` can find: accelerators of this machine, and what hides some."""
    nodes = [p for pattern in ("nvidia[0-9]*", "kfd", "dxg") for p in Path("/dev").glob(pattern)]
    kinds = Path("/proc/driver/nvidia/gpus").glob("*/information")
    models = [line for path in kinds for line in path.read_text().split("\n") if "Model" in line]
    hidden = [f"{name}={os.environ[name]}" for name in _HIDING if name in os.environ]
    return [*sorted(map(str, nodes)), *sorted(models), *hidden]


def check_asked(model: str, asked: Questions, registry: Place | None) -> None:
    """Refuse own folders without named rows, and index lists that do not exist.

    Raises:
        InputError: as `default_data` and `check_filters`.
    """
    check_filters(asked.exclude)
    if (
        asked.suite == "tofu"
        and asked.data is None
        and asked.forget is None
        and (not _own_rows(asked) or _reads_more(asked))
    ):
        default_data(model, registry)


def _reads_more(asked: Questions) -> bool:
    """Does a metric that is asked for read rows beside the user's own?"""
    from lensaudit.metrics.registry import ordered  # half a second to import

    return not _own_rows(asked).keys() >= {
        read.of
        for one in ordered("tofu", getattr(asked, "metrics", ()))
        for read in one.reads["tofu"]
    }


def _named_data(model: str | None, asked: Questions) -> str | None:
    """The suite's data that are named, or go with the model; None: its own on the Hub.

    Beside a file of own forget rows the other splits are those that go with the model.
    """
    data, file = own_data(asked.data)
    return (
        own_data(data_of([model], load_registry(getattr(asked, "registry", None))))[0]
        if model and (asked.data is None or file)
        else data
    )


def splits_of(model: str | None, asked: Questions) -> dict[str, Split]:
    """The rows that a suite asks of a model, by split.

    Args:
        model: None: whose data it is is decided.
        asked: the suite, and rows.

    Raises:
        InputError: a file is no such rows, or own rows are given to another suite than TOFU.
    """
    own = _own_rows(asked)
    if own and asked.suite != "tofu":
        raise InputError("your own rows (--data, --holdout, --kept) go with --suite tofu only")
    found = load_suite(
        asked.suite,
        _named_data(model, asked),
        forget_split=asked.forget_split,
        question_key=asked.question_key,
        own=own,
        limit=asked.limit,
    )
    names: Sequence[str] = getattr(asked, "metrics", ())
    if not any(":" in one for one in names):
        return found
    from lensaudit.metrics.registry import splits_with_options  # half a second to import

    return {**found, **splits_with_options(asked.suite, found, names, asked.limit)}


def _own_rows(asked: Questions) -> dict[str, Path]:
    """Files of own rows by the split that they are."""
    forget = asked.forget or own_data(asked.data)[1]
    own = {"forget": forget, "holdout": asked.holdout, "retain": asked.retain_set}
    return {name: Path(place) for name, place in own.items() if place is not None}


def depth_inside(model: str, settings: EvaluateSettings) -> PatchSettings:
    """Settings of the `patch` run that metrics from inside need.

    Raises:
        InputError: the data has no annotated rows.
    """
    groups = (Models, NeutralRows, Machine, ScoreFiles, Rows)
    data = annotated_set(model, settings)
    return PatchSettings(**shared(settings, *groups, data=data, ask="none"))


def annotated_set(model: str | None, asked: Questions) -> str:
    """The annotated forget set that belongs to a suite's data, as `forget_set` names it.

    Args:
        model: as of `splits_of`, and so is the other.
        asked: the suite, and rows.

    Raises:
        InputError: the data has none.
    """
    own = _own_rows(asked)
    if asked.suite != "tofu":
        raise InputError(f"suite {asked.suite} has no annotated forget set: {MAKE_ONE}")
    if "forget" in own:
        return str(own["forget"])
    data = _named_data(model, asked)
    if data is None and own:
        raise InputError(f"no forget set; name one with --data: {MAKE_ONE}")
    if data == DEMO:
        return DEMO
    is_folder = data is not None and Path(data).is_dir()
    if asked.forget_split != FORGET10:
        raise InputError(f"{asked.forget_split} has no annotated forget set; {FORGET10} has one")
    if not is_folder and data not in (None, TOFU_HUB):
        raise InputError(f"{data} has no annotated forget set: {MAKE_ONE}")
    return data if data and is_folder else FORGET10


def asked_of_patch(settings: DepthGroups, kept: Place | None, **own: Any) -> PatchSettings:
    """Settings of an audit's `patch`: all layers, whichever models are audited beside it.

    Args:
        settings: of the audit.
        kept: own rows that should be kept.
        **own: what else is asked, or otherwise.
    """
    beside = validity_rows(settings, settings.data, kept)
    asked = shared(settings, DepthGroups, validity_data=beside)
    if not settings.without_retain:  # that is always of all layers, and takes no such setting
        asked["profile"] = "full"
    return PatchSettings(**asked | own)


def validity_rows(settings: NeutralRows, data: str | None, kept: Place | None) -> Place | None:
    """Rows that show whether `full` can read a source, and that a map is fitted on, if any.

    Beside own rows to forget own rows to keep are such rows, unless others are named.
    """
    return settings.validity_data or (kept if own_data(data)[1] is not None else None)


def asked_of_eval(settings: AuditSettings, **own: Any) -> EvaluateSettings:
    """Settings of an audit's `eval` of a model."""
    data, forget = own_data(settings.data)
    rows = {"forget": forget, "holdout": settings.holdout, "retain_set": settings.retain_set}
    return EvaluateSettings(**shared(settings, PatchGroups, retain=None, data=data) | rows | own)


def own_data(data: str | None) -> tuple[str | None, Path | None]:
    """The suite's data and own forget rows, of what `--data` names.

    A known set, a folder of TOFU's files, a file of rows, or a data set of the Hub.
    """
    if data is None or data == FORGET10:
        return None, None
    if data == DEMO:
        return DEMO, None
    path = Path(data).expanduser()
    if path.is_dir():
        return os.path.expanduser(data), None  # `./demo` stays one
    return (None, path) if path.is_file() or data.endswith(ROWS) else (data, None)


def controls_of(names: Sequence[str], settings: PatchGroups) -> tuple[str, ...]:
    """The retain models: controls of who has what."""
    return tuple(one for one in _ends(names, settings)[1] if one != NO_RETAIN_MODEL)


def anchor_of(names: Sequence[str], settings: AuditSettings) -> str | None:
    """The retain model that others are compared with, if there is one."""
    return next(iter(controls_of(names, settings)), None)


def evaluations(
    names: Sequence[str], settings: AuditSettings, out: Path
) -> Iterator[tuple[str, EvaluateSettings, Path]]:
    """Every model that an audit evaluates, what is computed of it, and where.

    The retain model is the first: the others read its log. Where own rows to keep are given, `full`
    is the last: what others keep stands beside it, and nothing else is asked of it.
    """
    if settings.suite != "tofu":
        return
    anchor = anchor_of(names, settings)
    wanted = (anchor, *names, _ends(names, settings)[0] if settings.retain_set else None)
    models = tuple(dict.fromkeys(filter(None, wanted)))
    folders = folders_within(out / EVAL, models)
    for name, place in folders.items():
        own: dict[str, Any] = {}
        if name not in (*names, anchor):
            own = {"metrics": tuple(KEPT)}
        elif anchor not in (None, name):
            own = {"retain": anchor} if settings.inside else {"retain_log": folders[anchor] / LOG}
        yield name, asked_of_eval(settings, **own), place


def evaluation_folder(model: str, settings: EvaluateSettings, folder: Path | None) -> Path:
    """Result folder of an evaluation."""
    return folder or results_folder() / f"{slug(model)}-{settings.suite}"


def audit_folder(sources: Sequence[str], folder: Path | None = None) -> Path:
    """Result folder of an audit."""
    first, *others = sources
    more = f"-and-{len(others)}-more" if others else ""
    return folder or results_folder() / f"audit-{slug(first)}{more}"
