"""What determines cached numbers, and the plan and the seal of a folder that holds them.

Two caches agree exactly when their fingerprints do; `spec.json` says what a folder will hold,
`SEAL.json`, written last, that it does.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lensaudit.errors import InputError, VerificationError
from lensaudit.files import check_size, reading
from lensaudit.groups import batched
from lensaudit.models.conditions import Conditions
from lensaudit.results.reading import checked, checked_as
from lensaudit.settings import Kept, Positions
from lensaudit.text import digest, slug

if TYPE_CHECKING:  # a listing does without torch
    from lensaudit.models.bridge import Component

SPEC = "spec.json"

SEAL = "SEAL.json"

MAPS = "maps"
"""Folder of fitted maps beside the caches; each can be fitted again."""

SHARD_EXAMPLES = 32

REPAIR = "run `lensaudit activations repair`"

MAX_JSON_BYTES = 64 << 20
"""A larger spec.json or SEAL.json is refused unread."""


@dataclass(frozen=True)
class Shard:
    """One file of a cache: its number and the examples it holds, in order."""

    number: int
    idx: tuple[int, ...]

    @property
    def file_name(self) -> str:
        """Name of the shard's file: `shard-000000.h5`."""
        return f"shard-{self.number:06d}.h5"


SCHEMA = 1
"""Version of the algorithm and of the file layout: raised when either changes the numbers."""


@dataclass(frozen=True, kw_only=True)
class Fingerprint(Conditions):
    """Everything that determines the numbers of a cache, and nothing else.

    No paths, host names or package versions: those are provenance, recorded beside it.
    """

    examples: str
    """Content hash of the examples and their spans."""
    template: str
    """Prompt template: `qa` is "Question: …\\nAnswer: "; a chat template gives its hash."""
    hook: str
    """Where it is read: `resid_post`, or another of `parts.HOOKS`."""
    layers: int
    d_model: int
    """Width of a row; of heads, that of all end to end."""
    positions: Positions
    schema: int = SCHEMA

    @property
    def part(self) -> Kept:
        """The part of every layer that was cached."""
        return PARTS[self.hook]

    def norm_shape(self, n_rows: int) -> tuple[int, int]:
        """Shape of `final_norm`: the last stream's rows and width; no rows for a component."""
        return (n_rows if self.hook == HOOKS["resid"] else 0, self.d_model)

    def document(self) -> dict[str, Any]:
        """The canonical identity document."""
        return {"format": FORMAT, **{name: getattr(self, name) for name in _ORDER}}

    def key(self) -> str:
        """128-bit hash of the identity document, 32 hex digits."""
        return digest(self.document())


@dataclass(frozen=True)
class Spec:
    """What a cache folder holds or will hold; the same for every process that fills it.

    Raises:
        InputError: no examples, or one named twice.
    """

    name: str
    """What the user called the model; cosmetic."""
    fingerprint: Fingerprint
    idx: tuple[int, ...]
    provenance: Mapping[str, Any]
    """How to make it again (`model`, `data`, `options`) and what it was made with."""

    def __post_init__(self) -> None:
        if not self.idx:
            raise InputError(f"{self.name}: no examples to cache")
        if len(set(self.idx)) != len(self.idx):
            twice = next(number for number in self.idx if self.idx.count(number) > 1)
            raise InputError(
                f"{self.name}: example idx {twice} is named twice; each can be cached once"
            )

    def shards(self) -> tuple[Shard, ...]:
        """The plan: consecutive examples, `SHARD_EXAMPLES` to a file."""
        parts = batched(self.idx, SHARD_EXAMPLES)
        return tuple(Shard(number, tuple(idx)) for number, idx in enumerate(parts))

    def folder_name(self) -> str:
        """`<slug>--<key>`: the slug is for people, the key decides."""
        return f"{slug(self.name)}--{self.fingerprint.key()}"

    def content(self) -> bytes:
        """The bytes of `spec.json`, with a digest over everything else in it."""
        return _signed(
            name=self.name,
            key=self.fingerprint.key(),
            fingerprint=self.fingerprint.document(),
            shard_examples=SHARD_EXAMPLES,
            idx=list(self.idx),
            provenance=dict(self.provenance),
        )


@dataclass(frozen=True)
class SealedShard:
    """What the seal says about one shard."""

    number: int
    n_bytes: int
    xxh3_128: str


Seal = Mapping[int, SealedShard]
"""What the seal says, by number of the shard."""


def seal_content(spec: Spec, shards: Sequence[SealedShard]) -> bytes:
    """The bytes of `SEAL.json`, written last: the cache is complete, and these are its bytes."""
    return _signed(
        key=spec.fingerprint.key(),
        spec_sha256=hashlib.sha256(spec.content()).hexdigest(),
        n_bytes=sum(shard.n_bytes for shard in shards),
        shards=[asdict(shard) for shard in shards],
    )


def _signed(**content: Any) -> bytes:
    document = {"format": FORMAT, **content}
    return _json({**document, "digest": digest(document)})


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()


def read_spec(path: Path) -> Spec:
    """The spec in a file that may be damaged or hostile; see `parse_spec`."""
    return parse_spec(_content(path), source=str(path))


def parse_spec(content: bytes, *, source: str) -> Spec:
    """The spec in some bytes that `source` holds.

    Raises:
        VerificationError: it does not agree with its own digest.
        InputError: missing, or not a spec of this version.
    """
    spec = checked(Spec, _document(content, source), source)
    if (found := spec.fingerprint.schema) != SCHEMA:
        raise InputError(
            f"{source}: written with layout {found}, this version reads {SCHEMA}; "
            "use the version that wrote it or cache again"
        )
    # "16" passes for a number, an unknown field for none
    if spec.fingerprint.hook not in PARTS or spec.content() != content:
        raise InputError(f"{source}: is not a spec as lensaudit writes it")
    return spec


def checked_seal(folder: Path, spec: Spec) -> Seal | None:
    """The seal of a folder, if it is one of `spec`; None where there is none.

    Raises:
        VerificationError: damaged, or of another spec.json or other shards.
        InputError: not a seal.
    """
    path = folder / SEAL
    if not path.exists():
        return None
    content = _content(path)
    shards = checked_as(list[SealedShard], _document(content, str(path)).get("shards"), path)
    planned = [shard.number for shard in spec.shards()]
    if seal_content(spec, shards) != content or [one.number for one in shards] != planned:
        raise VerificationError(
            f"{path}: is the seal of another spec.json, or of other shards, than those here; "
            f"{REPAIR}"
        )
    return {shard.number: shard for shard in shards}


def _content(path: Path) -> bytes:
    check_size(path, MAX_JSON_BYTES)
    with reading(path):
        return path.read_bytes()


def _document(content: bytes, source: str) -> dict[str, Any]:
    """A document of ours whose every byte is as written."""
    with suppress(AttributeError, KeyError, ValueError, RecursionError):
        document = json.loads(content)
        rest = {name: value for name, value in document.items() if name != "digest"}
        signed = document["format"] == FORMAT and document["digest"] == digest(rest)
        if signed and _json(document) == content:
            return document
    raise VerificationError(f"{source}: damaged, its content is not what was written; {REPAIR}")


FORMAT = "lensaudit-activations"

_ORDER = (
    "weights",
    "tokenizer",
    "examples",
    "template",
    "hook",
    "layers",
    "d_model",
    "positions",
    "dtype",
    "attention",
    "device_class",
    "batch_policy",
    "schema",
)
"""Of the fields in a document: spec.json is compared byte by byte."""


HOOKS: dict[Kept, str] = {
    "resid": "resid_post",
    "attn": "attn_out",
    "mlp": "mlp_out",
    "resid_mid": "resid_mid",
    "heads": "z",
}
"""Part -> the `hook` of its fingerprint, which is also the name of its array in a shard."""

PARTS: dict[str, Kept] = {hook: part for part, hook in HOOKS.items()}

COMPONENTS: "dict[Kept, Component]" = {
    "resid": "resid",
    "attn": "attn",
    "mlp": "mlp",
    "resid_mid": "resid_mid",
    "heads": "head",
}
"""Part -> the component that `models.bridge.residuals` reads; one cache holds all heads."""

KEPT_AS: "dict[Component, Kept]" = {one: part for part, one in COMPONENTS.items()}
"""Component that is patched in -> the part whose cache serves."""


def check_width(fingerprint: "Fingerprint", n_shown: int) -> None:
    """Refuse a component that is not as wide as the configuration says.

    Raises:
        InputError: says how wide it is.
    """
    if n_shown != fingerprint.d_model:
        raise InputError(
            f"--component {fingerprint.part}: the bridge shows {n_shown} values per token, the "
            f"configuration says {fingerprint.d_model}; choose another --component"
        )
