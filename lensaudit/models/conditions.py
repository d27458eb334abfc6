"""Under which conditions were a model's numbers made? One record behind every cache, book and pass.

Two runs may share numbers exactly where these agree, and where what they ask agrees: examples and
positions (`activations.spec`), what is patched in (`patching.score_cache`), texts
(`evaluation.passes`).
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from lensaudit.models.checkpoint import Checkpoint

EAGER = "eager"
"""The attention of whatever runs on the bridge, which computes its own."""

Padding = Literal["right-padded", "padded"]
"""Texts that are read are padded on the right, texts that are continued on the left."""


@dataclass(frozen=True)
class Conditions:
    """What decides a model's numbers, whatever it is asked: no name, path, host or version."""

    weights: str
    """Content hash of the weights, adapters and quantization included."""
    tokenizer: str
    """Content hash of the tokenizer."""
    dtype: Literal["float32", "bfloat16", "float16"]
    device_class: str
    """`cpu` or `cuda-<major number of the compute capability>`: half-precision kernels differ."""
    attention: str
    """Attention implementation: `eager`, `sdpa` …"""
    batch_policy: str
    """How examples were batched and padded; see `batch_policy`."""

    @property
    def device(self) -> str:
        """Kind of device: `cpu` or `cuda`."""
        return self.device_class.partition("-")[0]

    def as_run(self) -> dict[str, str]:
        """Data type, device and attention as manifests name them, and the keys of passes."""
        return {"dtype": self.dtype, "device": self.device, "attn": self.attention}

    def document(self) -> dict[str, Any]:
        """What a key is the hash of."""
        return asdict(self)


def batch_policy(padding: Padding, dtype: str, batch_size: int | None) -> str:
    """Whether the number of examples in a batch counts: batch shapes move the last bits.

    In float32 that is 1e-7 of a score; in half precision up to 0.06 nats.

    >>> batch_policy("right-padded", "float32", 8), batch_policy("padded", "bfloat16", None)
    ('right-padded', 'padded-auto')
    """
    return padding if dtype == "float32" else f"{padding}-{batch_size or 'auto'}"


def conditions_of(
    checkpoint: "Checkpoint",
    *,
    dtype: str,
    device: str,
    attention: str = EAGER,
    padding: Padding = "right-padded",
    batch_size: int | None = None,
) -> Conditions:
    """The conditions of a checkpoint that runs on `device`; both names resolved, not `auto`."""
    from lensaudit.models.device import device_class  # imports torch, which a listing does without

    return Conditions(
        weights=checkpoint.weights,
        tokenizer=checkpoint.tokenizer,
        dtype=dtype,  # pyright: ignore[reportArgumentType]  # checked by the command line
        device_class=device_class(device),
        attention=attention,
        batch_policy=batch_policy(padding, dtype, batch_size),
    )
