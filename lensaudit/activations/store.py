"""The activation store: a folder of caches, each found by what determines its numbers."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lensaudit.activations.fingerprint import Fingerprint
from lensaudit.activations.presence import check_trusted
from lensaudit.activations.publish import RESERVE_BYTES, publish
from lensaudit.activations.reader import Activations, LayerView
from lensaudit.activations.spec import SEAL, SPEC, Shard, Spec, checked_seal, plan, read_spec
from lensaudit.activations.tensors import ExampleActivations, LayerRows, SpanRows
from lensaudit.activations.writer import CacheWriter
from lensaudit.errors import InputError, VerificationError
from lensaudit.files import make_folder, os_error, slug, sweep_partials

__all__ = [
    "ActivationStore", "Activations", "CacheWriter", "ExampleActivations", "Fingerprint",
    "LayerRows", "LayerView", "Shard", "SpanRows", "Spec", "open_activations",
]  # fmt: skip

FOLDER = re.compile(r"[a-z0-9._-]{1,40}--[0-9a-f]{32}")
"""Name of a cache folder; nothing else in the store's root is ever touched."""


class ActivationStore:
    """The caches under one folder."""

    def __init__(self, root: Path, *, reserve_bytes: int = RESERVE_BYTES):
        self.root, self.reserve_bytes = Path(root), reserve_bytes

    def folders(self) -> list[Path]:
        """The cache folders, by name."""
        if not self.root.is_dir():
            return []
        return sorted(path for path in self.root.iterdir() if is_cache(path))

    def folder(self, key: str) -> Path | None:
        """The folder of a key, whatever its slug."""
        found = [path for path in self.folders() if path.name.endswith(f"--{key}")]
        sealed = [path for path in found if (path / SEAL).exists()]
        return next(iter([*sealed, *found]), None)

    def writer(
        self,
        fingerprint: Fingerprint,
        *,
        name: str,
        idx: Sequence[int],
        provenance: Mapping[str, Any],
        allow_nonfinite: bool = False,
    ) -> CacheWriter:
        """Begin or continue a cache of the examples `idx`, in this order, 32 to a shard.

        Raises:
            InputError: the folder cannot be written, or holds a cache of other examples.
        """
        make_folder(self.root)
        check_trusted(self.root)
        spec = plan(name, fingerprint, idx, provenance)
        folder = self.folder(fingerprint.key()) or self.root / spec.folder_name()
        make_private(folder)
        sweep_partials(folder)
        if not (folder / SPEC).exists():
            publish(folder / SPEC, (spec.content(),))
        found = read_spec(folder / SPEC)
        check_same(folder, found, fingerprint)
        if found.idx != spec.idx:
            raise InputError(
                f"{folder}: is planned for {len(found.idx)} examples (first {found.idx[0]}), "
                f"this run wants {len(spec.idx)} (first {spec.idx[0]}) in another order or number; "
                "name another --activations folder"
            )
        return CacheWriter(
            folder, found, allow_nonfinite=allow_nonfinite, reserve_bytes=self.reserve_bytes
        )

    def open(self, fingerprint: Fingerprint, *, allow_partial: bool = False) -> Activations | None:
        """The cache of these numbers; None when absent, or incomplete unless `allow_partial`.

        Raises:
            VerificationError: the folder of this key says it holds something else.
        """
        folder = self.folder(fingerprint.key())
        if folder is None or not (folder / SPEC).exists():
            return None
        activations = open_folder(folder, allow_partial=True)
        check_same(folder, activations.spec, fingerprint)
        return activations if activations.complete or allow_partial else None


def make_private(folder: Path) -> None:
    """Make a cache folder that only its owner can enter, and check that it is ours."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise os_error(error, folder) from error
    check_trusted(folder)


def is_cache(path: Path) -> bool:
    """Is this one of our folders, by its name? Links are not followed."""
    return bool(FOLDER.fullmatch(path.name)) and path.is_dir() and not path.is_symlink()


def check_same(folder: Path, found: Spec, wanted: Fingerprint) -> None:
    """The identity documents are compared in full: a key is a hash, a document is a fact."""
    if differences := found.fingerprint.differences(wanted):
        raise VerificationError(
            f"{folder}: holds {'; '.join(differences)} (theirs, ours); "
            "run `lensaudit cache` for the model or name another --activations folder"
        )


def open_folder(folder: Path, *, allow_partial: bool = False) -> Activations:
    """The cache in one folder.

    Raises:
        InputError: it is incomplete and `allow_partial` is not set.
        VerificationError: its spec or seal is damaged, or they contradict each other.
    """
    check_trusted(folder)
    spec = read_spec(folder / SPEC)
    key = folder.name.rpartition("--")[2]
    if FOLDER.fullmatch(folder.name) and key != spec.fingerprint.key():
        raise VerificationError(
            f"{folder}: is named for key {key}, its spec.json says {spec.fingerprint.key()}"
        )
    seal = checked_seal(folder, spec)
    if seal is None and not allow_partial:
        raise InputError(
            f"{folder}: is not complete; run `lensaudit cache` for {spec.name} again to fill it"
        )
    return Activations(folder, spec, seal)


def open_activations(
    name_or_key_or_path: str | Path,
    *,
    root: Path = Path("activations"),
    allow_partial: bool = False,
) -> Activations:
    """A cache by the model's name, by its key or the beginning of it, or by its folder.

        from lensaudit.activations.store import open_activations
        cache = open_activations("full")
        cache.example(0).resid      # Float[Tensor, "layer pos d_model"]

    Raises:
        InputError: none or several match; lists the keys.
    """
    folder = find(name_or_key_or_path, root=Path(root))
    return open_folder(folder, allow_partial=allow_partial)


def find(name_or_key_or_path: str | Path, *, root: Path) -> Path:
    """The one cache folder that a name, a key or a path means.

    Raises:
        InputError: none or several match; lists them.
    """
    path = Path(name_or_key_or_path)
    if (path / SPEC).is_file():
        return path
    text = str(name_or_key_or_path)
    folders = ActivationStore(root).folders()
    found = [folder for folder in folders if text in (folder.name, _key(folder))]
    found = found or [folder for folder in folders if _named(folder, text)]
    if not found and re.fullmatch(r"[0-9a-f]{4,31}", text):
        found = [folder for folder in folders if _key(folder).startswith(text)]
    match found:
        case [folder]:
            return folder
        case []:
            known = ", ".join(folder.name for folder in folders[:8]) or "it is empty"
            raise InputError(f"{root}: no cache {text!r:.60}; run `lensaudit cache` ({known})")
        case _:
            keys = ", ".join(_key(folder) for folder in found)
            raise InputError(f"{root}: {text!r:.60} means {len(found)} caches; give a key: {keys}")


def _key(folder: Path) -> str:
    return folder.name.rpartition("--")[2]


def _named(folder: Path, name: str) -> bool:
    if folder.name.rpartition("--")[0] != slug(name):
        return False
    return (folder / SPEC).is_file() and read_spec(folder / SPEC).name == name
