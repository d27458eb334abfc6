"""What determines cached numbers: two caches agree exactly when their fingerprints do."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args, get_type_hints

from lensaudit.activations.parts import HOOKS, PARTS
from lensaudit.errors import InputError
from lensaudit.files import digest
from lensaudit.models.conditions import Conditions
from lensaudit.settings import Kept, Positions

FORMAT = "lensaudit-activations"
SCHEMA = 1
"""Version of the algorithm and of the file layout: raised when either changes the numbers."""

MAX_LAYERS = 4096
MAX_D_MODEL = 1 << 20


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
        """Which part of every layer it is of."""
        return PARTS[self.hook]

    def norm_shape(self, n_rows: int) -> tuple[int, int]:
        """Of `final_norm`: the last stream's rows; a component has none."""
        return (n_rows if self.hook == HOOKS["resid"] else 0, self.d_model)

    def document(self) -> dict[str, Any]:
        """The canonical identity document."""
        return {"format": FORMAT, **{name: getattr(self, name) for name in _ORDER}}

    def key(self) -> str:
        """128-bit hash of the identity document, 32 hex digits."""
        return digest(self.document())

    def differences(self, other: "Fingerprint") -> list[str]:
        """One `field: ours, theirs` per field that differs."""
        mine, theirs = self.document(), other.document()
        return [
            f"{name}: {mine[name]}, {theirs[name]}" for name in mine if mine[name] != theirs[name]
        ]


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


def fingerprint_of(document: Any, *, source: str) -> Fingerprint:
    """The fingerprint in an identity document that may come from anywhere.

    Raises:
        InputError: a field is missing, unknown, or of the wrong kind; names `source` and the field.
    """
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise InputError(f"{source}: not an identity document of {FORMAT}")
    wanted = {item.name for item in fields(Fingerprint)}
    if odd := wanted ^ (set(document) - {"format"}):
        raise InputError(f"{source}: identity field {sorted(odd)[0]!r} is missing or unknown")
    for name, kind in get_type_hints(Fingerprint).items():
        choices = get_args(kind)
        value = document[name]
        if value not in choices if choices else type(value) is not kind:
            raise InputError(f"{source}: identity field {name!r} is {value!r:.60}")
    found = Fingerprint(**{name: document[name] for name in wanted})
    if found.schema != SCHEMA:
        raise InputError(
            f"{source}: written with layout {found.schema}, this version reads {SCHEMA}; "
            "use the version that wrote it or cache again"
        )
    if found.hook not in PARTS:
        raise InputError(f"{source}: identity field 'hook' is {found.hook!r:.60}")
    if not (0 < found.layers <= MAX_LAYERS and 0 < found.d_model <= MAX_D_MODEL):
        raise InputError(f"{source}: {found.layers} layers of {found.d_model} are out of bounds")
    return found
