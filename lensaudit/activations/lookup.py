"""Which cache does a name, a key or a folder mean?

A name means the cache of what lies there now, where that is at hand: a model is found by its
content, as every command finds it. Where its files are not here, the name and the recipe count.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lensaudit.activations.freshness import files_behind, files_of, is_of_rows, is_of_weights
from lensaudit.activations.naming import cache_folders, folder_key, is_cache
from lensaudit.activations.spec import SPEC, Spec, read_spec
from lensaudit.errors import InputError, LensAuditError
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.once import read_once
from lensaudit.settings import Place
from lensaudit.text import printable, slug

Found = Mapping[Path, Spec | None]
"""Folders of caches with their specs; None where that is damaged."""


def _spec(folder: Path) -> Spec | None:
    try:
        return read_spec(folder / SPEC)
    except LensAuditError:  # damaged: still found by its key and slug, and repaired
        return None


def matching(text: str, *, root: Path) -> Found:
    """The caches that `text` means: a folder or key in full, a name, or the beginning of a key.

    A model whose files are at hand means those of its weights too, whatever they were called.
    """
    specs = {folder: _spec(folder) for folder in cache_folders(root)}
    files = files_of(text)
    tests = (
        lambda folder: text in (folder.name, folder_key(folder)),
        lambda folder: _is_called(specs[folder], text, files),
        lambda folder: folder.name.rpartition("--")[0] == slug(text),
        lambda folder: len(text) >= 4 and folder_key(folder).startswith(text),
    )
    found = ({folder: specs[folder] for folder in specs if test(folder)} for test in tests)
    return next(filter(None, found), {})


def _is_called(spec: Spec | None, text: str, files: Checkpoint | None) -> bool:
    """Does a cache have this name, or did `lensaudit cache` make it of these files?"""
    if spec is None or files is None or spec.name == text:
        return spec is not None and spec.name == text
    # what other commands keep of a model is not what its name means
    return {"model", "data", "limit"} <= spec.provenance.keys() and is_of_weights(spec, files)


def find(
    name_or_key_or_path: Place, *, root: Path, wanted: Mapping[str, Any] | None = None
) -> Path:
    """The one cache folder that is meant; of several that match, the one that holds what is wanted.

    Args:
        name_or_key_or_path: a name stands for the residual stream of all rows, where nothing else
            is wanted; a key or a folder is what it is.
        root: folder of the caches.
        wanted: `data`, `limit`, `positions`, `component`; None says nothing of it.

    Raises:
        InputError: none or several match; says in what they differ.
    """
    wanted = {name: one for name, one in (wanted or {}).items() if one is not None}
    path = Path(name_or_key_or_path)
    if (path / SPEC).is_file() or is_cache(path):
        return path
    text = str(name_or_key_or_path)
    with read_once():
        named = matching(text, root=root)
        found = _fitting(text, named, wanted)
    if len(found) == 1:
        return next(iter(found))
    meant = f"{printable(text)[:60]!r}"
    if found:
        raise InputError(
            f"{root}: {meant} means {len(found)} caches; give a key, or data, limit, positions and "
            f"component in Python: {differences(found)}"
        )
    if named:
        said = ", ".join(f"{name}={one}" for name, one in wanted.items())
        rows = ", tokenizer files or rows" if "data" in wanted else " or tokenizer files"
        changed = f" (cached of other weights{rows}: run `lensaudit cache`)"
        was_there = _fitting(text, named, wanted, now=False)
        raise InputError(
            f"{root}: no cache of {meant}{printable(said and f' with {said}')}"
            f"{changed if was_there else ''}; there are {differences(named)}"
        )
    known = ", ".join(folder.name for folder in cache_folders(root)[:8])
    raise InputError(f"{root}: no cache {meant}; it holds {known or 'none; run `lensaudit cache`'}")


def differences(found: Found) -> str:
    """Keys of caches, each with what tells it from the others."""
    said = [_said(spec) for spec in found.values()]
    differing = [name for name in said[0] if len({str(one.get(name)) for one in said}) > 1]
    differing = differing if said[1:] else list(said[0])
    parts = []
    for folder, one in zip(found, said, strict=True):
        words = ", ".join(f"{name} {one[name]}" for name in differing if one.get(name) is not None)
        parts.append(f"{folder_key(folder)} ({printable(words) or 'damaged'})")
    return "; ".join(parts)


_FIELDS = ("data", "exclude", "rows", "limit")


def _said(spec: Spec | None) -> dict[str, Any]:
    """What a cache is of, in words, the plainest first."""
    if spec is None:
        return dict.fromkeys(_FIELDS)
    recipe = {name: spec.provenance.get(name) or None for name in _FIELDS}
    hashes = ("weights", "tokenizer", "examples", "template")
    document = spec.fingerprint.document() | {"component": spec.fingerprint.part}
    document |= {name: str(document[name]).removeprefix("sha256:")[:8] for name in hashes}
    del document["hook"]
    return {**recipe, "rows": len(spec.idx), **document}


def _fitting(text: str, found: Found, wanted: Mapping[str, Any], *, now: bool = True) -> Found:
    """The caches that hold what is wanted; if a name means several, that of the residual stream.

    `now`: of the weights and rows that are there now, where they are at hand.
    """
    by_key = any(text == one.name or folder_key(one).startswith(text) for one in found)
    files = {
        one: files_behind(spec, text) if now and spec and not by_key else None
        for one, spec in found.items()
    }
    found = {one: spec for one, spec in found.items() if _holds(spec, wanted, files[one])}
    if "component" not in wanted and not by_key:
        found = {
            one: spec for one, spec in found.items() if not spec or spec.fingerprint.part == "resid"
        }
    if "limit" not in wanted and not by_key:
        whole = {
            one: spec for one, spec in found.items() if spec and not spec.provenance.get("limit", 1)
        }
        found = whole or found
    # of caches of equal weights, the one that was made by this name
    called = {one: spec for one, spec in found.items() if spec and spec.name == text}
    return called if len(called) == 1 else found


def _holds(spec: Spec | None, wanted: Mapping[str, Any], files: Checkpoint | None) -> bool:
    """Was the cache made for exactly this, of these files where they are at hand?"""
    if spec is None:  # damaged
        return not wanted
    recipe = spec.provenance
    said = {
        "limit": (recipe["limit"] or "all") if "limit" in recipe else None,
        "positions": spec.fingerprint.positions,
        "component": spec.fingerprint.part,
    }
    return (
        all(str(said[name]) == str(one) for name, one in wanted.items() if name in said)
        and (files is None or is_of_weights(spec, files))
        and ("data" not in wanted or _has_rows(spec, wanted["data"], files))
    )


def _has_rows(spec: Spec, data: Place, files: Checkpoint | None) -> bool:
    """Whether a cache is of these rows: by content, or by name where that cannot be compared."""
    recipe, place = spec.provenance, Path(data).expanduser()
    if files is not None and place.exists() and "limit" in recipe:
        return is_of_rows(spec, data, files)
    return recipe.get("data") in (str(data), str(place.resolve()))
