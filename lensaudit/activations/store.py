"""The activation store: a folder of caches, each found by what determines its numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lensaudit.activations.fingerprint import Fingerprint
from lensaudit.activations.lookup import (
    Wanted,
    cache_folders,
    find,
    folder_key,
    folder_of,
    is_cache,
)
from lensaudit.activations.parts import check_part
from lensaudit.activations.presence import check_trusted
from lensaudit.activations.publish import RESERVE_BYTES, publish
from lensaudit.activations.reader import Activations, LayerView
from lensaudit.activations.spec import SEAL, SPEC, Shard, Spec, checked_seal, plan, read_spec
from lensaudit.activations.tensors import ExampleActivations, LayerRows, SpanRows
from lensaudit.activations.writer import CacheWriter
from lensaudit.errors import InputError, VerificationError
from lensaudit.files import make_folder, os_error, sync_folder
from lensaudit.partials import sweep_partials
from lensaudit.settings import ACTIVATIONS, Kept, Place, Positions

__all__ = [
    "ActivationStore",
    "Activations",
    "CacheWriter",
    "ExampleActivations",
    "Fingerprint",
    "LayerRows",
    "LayerView",
    "Shard",
    "SpanRows",
    "Spec",
    "open_activations",
]


class ActivationStore:
    """The caches under one folder."""

    def __init__(self, root: Place, *, reserve_bytes: int = RESERVE_BYTES):
        self.root, self.reserve_bytes = Path(root), reserve_bytes

    def folders(self) -> list[Path]:
        """The cache folders, by name."""
        return cache_folders(self.root)

    def writer(
        self,
        fingerprint: Fingerprint,
        *,
        name: str,
        idx: Sequence[int],
        provenance: Mapping[str, Any],
    ) -> CacheWriter:
        """Begin or continue a cache of the examples `idx`, in this order, 32 to a shard.

        Raises:
            InputError: the folder cannot be written, or holds a cache of other examples.
        """
        make_folder(self.root)
        check_trusted(self.root)
        spec = plan(name, fingerprint, idx, provenance)
        folder = folder_of(fingerprint.key(), self.root) or self.root / spec.folder_name()
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
        return CacheWriter(folder, found, reserve_bytes=self.reserve_bytes)

    def open(self, fingerprint: Fingerprint, *, allow_partial: bool = False) -> Activations | None:
        """The cache of these numbers; None when absent, or incomplete unless `allow_partial`.

        Raises:
            VerificationError: the folder of this key says it holds something else.
        """
        folder = folder_of(fingerprint.key(), self.root)
        if folder is None or not (folder / SPEC).exists():
            return None
        check_same(folder, read_spec(folder / SPEC), fingerprint)
        if not (folder / SEAL).exists() and not allow_partial:
            return None
        return open_folder(folder, allow_partial=allow_partial)


def make_private(folder: Path) -> None:
    """Make a cache folder that only its owner can enter, and check that it is ours."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)
    except OSError as error:
        raise os_error(error, folder) from error
    check_trusted(folder)


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
    key = folder_key(folder)
    if is_cache(folder) and key != spec.fingerprint.key():
        raise VerificationError(
            f"{folder}: is named for key {key}, its spec.json says {spec.fingerprint.key()}"
        )
    seal = checked_seal(folder, spec)
    if seal is None and not allow_partial:
        raise InputError(f"{folder}: is not complete; {spec.how_to_fill(folder.parent)}")
    return Activations(folder, spec, seal)


def open_activations(
    name_or_key_or_path: Place,
    *,
    root: Place = ACTIVATIONS,
    data: Place | None = None,
    limit: int | Literal["all"] | None = None,
    positions: Positions | None = None,
    component: Kept | None = None,
    allow_partial: bool = False,
) -> Activations:
    """A cache by the model's name, by its key or the beginning of it, or by its folder.

        from lensaudit.activations.store import open_activations
        cache = open_activations("full", limit=8, positions="span")
        cache.example(0).resid      # Float[Tensor, "layer pos d_model"]

    Args:
        name_or_key_or_path: of a name there may be several caches.
        root: folder of the caches.
        data: that of these rows: `forget10`, `demo`, or a file.
        limit: that of the first so many rows, or of "all"; None takes either.
        positions: that of the read positions (`span`) or of every token (`all`).
        component: that of `attn`, `mlp`, `resid_mid`, or of all `heads`; None of a name: the
            residual stream. `.resid` of an example is then that component.
        allow_partial: open one that is not complete.

    Raises:
        InputError: none or several match; says in what they differ.
    """
    check_part(component)
    wanted = Wanted(data, limit, positions, component)
    folder = find(name_or_key_or_path, root=Path(root), wanted=wanted)
    return open_folder(folder, allow_partial=allow_partial)
