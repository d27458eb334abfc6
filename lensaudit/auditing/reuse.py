"""Was this very run of `patch` or `audit` finished before? Then its files answer.

What a run asks is hashed: every option, models and rows by content, the code, the libraries, the
cards it could run on. A run writes that hash into its manifest, and whoever asks the same again is
given what the files say. No model library is imported for it; in any doubt the run is made again.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, TypeVar

from lensaudit.auditing.result import (
    AUDIT_MANIFEST,
    EVAL,
    KNOW,
    PATCH,
    SUMMARY,
    Audited,
    Patched,
    anchor_and_models,
    audit_folder,
    audited,
    own_data,
    read_evaluation,
    read_patched,
)
from lensaudit.auditing.settings import AuditSettings, own_rows
from lensaudit.data.facts import Fact
from lensaudit.data.neutral import Neutral, kept_facts, neutral_beside
from lensaudit.data.suites import DEMO_DATA, load_suite
from lensaudit.data.tofu import forget_set
from lensaudit.errors import InputError
from lensaudit.files import digest
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.hashing import file_sha256, looking
from lensaudit.models.registry import (
    ModelSpec,
    base_spec,
    default_anchor,
    default_data,
    family_of,
    load_registry,
    named_family,
    not_theirs,
    resolve,
    retains_for,
)
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.results.keyed import Key, answered
from lensaudit.results.records import (
    COMPARISON_MANIFEST,
    MANIFEST,
    code_digest,
    folders_for,
    package_versions,
)
from lensaudit.settings import NO_RETAIN_MODEL, PatchGroups, plain, several, shared

_READ = ("*.json", "*.jinja", "*.model", "*.txt")
"""Files of a model's folder that say how its weights are used."""
_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


R = TypeVar("R")
S = TypeVar("S", bound=PatchGroups)


def anchored(sources: Sequence[str], settings: S) -> S:
    """The settings with the retain models that follow from the sources.

    Raises:
        InputError: a name is wrong, or own folders are named without the model before unlearning.
    """
    registry = load_registry(settings.registry)
    if settings.full is None and (
        own := not_theirs(default_anchor("full", sources), sources, registry)
    ):
        raise InputError(
            f"{own}: is a folder of your own; name the model before unlearning with --full, or as "
            "`full` in lensaudit.toml"
        )
    names = retains_for(sources, settings.retain, registry)
    # the family's own stays unnamed: it is said by the sources
    return settings if names[0] != NO_RETAIN_MODEL else replace(settings, retain=names)


def asked(sources: Sequence[str], settings: PatchSettings) -> str:
    """Content hash of all that decides what a run says; 32 hex digits.

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    names = tuple(dict.fromkeys(sources))
    settings = anchored(names, settings)
    data = str(settings.data or default_data(names[0]))
    examples = forget_set(data, exclude=settings.exclude, limit=settings.limit)
    neutral, why = neutral_beside(settings, data, examples)
    kept = [kept_facts(one, data, limit=settings.limit) for one in settings.also]
    return digest(
        {
            "sources": names,
            "options": plain(settings, without=("fresh",)),
            "models": [[role, _content(spec)] for role, spec in _models(names, settings).items()],
            "rows": _rows(examples),
            "neutral": [_rows(part) for part in _parts(neutral)] or why,
            "kept": [[one.name, one.pretrained, _rows(one.rows)] for one in kept],
            "versions": package_versions(),
            "code": code_digest(),
            "cards": _cards(),
        }
    )


def patched(
    sources: Sequence[str],
    settings: PatchSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> Patched:
    """As `auditing.patch.patch_into`; a run that is finished is read from its files."""
    found = finished(sources, settings, folder, notice=notice)
    if found is not None:
        return found
    check_rows(sources, settings)
    from lensaudit.auditing.patch import patch_into  # seconds to import

    return patch_into(sources, settings, folder, notice=notice, progress=progress)


def check_rows(sources: Sequence[str], settings: PatchGroups) -> None:
    """Refuse rows that are wrong, or not to be had, before anything takes time.

    Raises:
        InputError: as `forget_set`, or a source is no name and no folder.
    """
    registry = load_registry(settings.registry)
    for one in sources:
        resolve(one, registry)
    forget_set(settings.data or default_data(sources[0]), exclude=settings.exclude, limit=1)


def finished(
    sources: Sequence[str],
    settings: PatchSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
) -> Patched | None:
    """What a finished run found that asked the same; None where there is none, or any doubt."""
    folders = folders_for(tuple(dict.fromkeys(sources)), folder)
    places = [(one, MANIFEST) for one in folders.values()]
    if len(folders) > 1 and settings.score != "em":
        places.append((places[0][0].parent, COMPARISON_MANIFEST))
    return _read(
        settings, places, lambda: asked(sources, settings), lambda: read_patched(folders), notice
    )


def finished_audit(
    sources: Sequence[str],
    settings: AuditSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
) -> Audited | None:
    """The same of an audit, all of its steps."""
    out = audit_folder(sources, folder)
    return _read(
        settings,
        [(out, AUDIT_MANIFEST)],
        lambda: asked_of_audit(sources, settings),
        lambda: _read_audit(sources, settings, out),
        notice,
    )


def _read(
    settings: PatchGroups,
    manifests: Sequence[tuple[Path, str]],
    key: Key,
    read: Callable[[], R],
    notice: Notice,
) -> R | None:
    """What a run wrote, where its manifests say that this very question was asked."""
    if settings.fresh:
        return None
    with looking():
        told = answered(manifests, key)
    try:
        found = None if told is None else read()
    except InputError:
        return None
    for line in told or ():
        notice(line)
    return found


def asked_of_audit(sources: Sequence[str], settings: AuditSettings) -> str:
    """Content hash of all that decides what an audit says; 32 hex digits.

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    names = tuple(dict.fromkeys(sources))
    settings = anchored(names, settings)
    depth = asked(names, PatchSettings(**shared(settings, PatchGroups)))
    return digest([depth, plain(settings, without=("fresh",)), _suite(names, settings)])


def _suite(names: Sequence[str], settings: AuditSettings) -> dict[str, str]:
    """Rows of each split by content; what is demo is made by this code."""
    if settings.suite == "none":
        return {}
    data, forget = own_data(settings.data)
    own = own_rows(settings, forget)
    data = data or (DEMO_DATA if family_of(names[0]) else None)
    if data == DEMO_DATA and not own:
        return {}
    return {name: one.digest for name, one in load_suite("tofu", data, own=own).items()}


def _read_audit(sources: Sequence[str], settings: AuditSettings, out: Path) -> Audited:
    names = tuple(dict.fromkeys(sources))
    _, models = anchor_and_models(names, anchored(names, settings))
    evals = {name: out / EVAL / one.name for name, one in folders_for(models, None).items()}
    known = {
        name: place
        for name, place in folders_for(names, out / KNOW).items()
        if settings.association != "none" and (place / SUMMARY).exists()
    }
    return audited(
        out,
        read_patched(folders_for(names, out / PATCH)).results,
        lambda name: read_evaluation(name, evals[name]) if evals else None,
        known,
        (out / PATCH, *evals.values(), *known.values()),
    )


def _models(names: Sequence[str], settings: PatchSettings) -> dict[str, ModelSpec]:
    """Every model of a run by role, in its order."""
    registry = load_registry(settings.registry)
    retain, *more = (*several(settings.retain), "")
    if settings.without_retain:
        retain = settings.full or default_anchor("full", names)
    found = named_family(names, settings.full, retain or None, registry)
    found |= {f"retain {name}": resolve(name, registry) for name in more if name}
    base = resolve(settings.base, registry) if settings.base else base_spec(names)
    return found | ({"base": base} if settings.also and base else {})


def _content(spec: ModelSpec) -> list[Any]:
    """What a name stands for: its place, weights and tokenizer, and every file that is read."""
    one = open_checkpoint(spec)
    texts = sorted(path for pattern in _READ for path in one.folder.glob(pattern))
    place = [spec.name, spec.repo, spec.revision, str(spec.local)]
    return [*place, one.weights, one.tokenizer, [[p.name, file_sha256(p)] for p in texts]]


def _parts(neutral: Neutral | None) -> Sequence[Sequence[Fact]]:
    return () if neutral is None else (neutral.fit, neutral.validity, neutral.ordinary)


def _rows(examples: Sequence[Fact]) -> str:
    return digest([astuple(one) for one in examples])


def _cards() -> list[str]:
    """What `--device auto` can find: accelerators of this machine, and what hides some."""
    nodes = [p for pattern in ("nvidia[0-9]*", "kfd", "dxg") for p in Path("/dev").glob(pattern)]
    kinds = Path("/proc/driver/nvidia/gpus").glob("*/information")
    models = [line for path in kinds for line in path.read_text().split("\n") if "Model" in line]
    hidden = [f"{name}={os.environ[name]}" for name in _HIDING if name in os.environ]
    return [*sorted(map(str, nodes)), *sorted(models), *hidden]
