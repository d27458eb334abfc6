"""From names to an audit: everything that can be wrong with the input is found here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lensaudit.activations.fill import Progress
from lensaudit.data.examples import Example
from lensaudit.data.spans import Encoded, Scope, SpanLost, check_tokenizer, encode
from lensaudit.data.tofu import forget_set
from lensaudit.errors import InputError
from lensaudit.models.checkpoint import (
    Checkpoint,
    check_same_shape,
    load_tokenizer,
    open_checkpoint,
)
from lensaudit.models.registry import DEMO, Registry, resolve
from lensaudit.models.spec import ModelSpec
from lensaudit.patching.audit import Audit
from lensaudit.patching.options import (
    Engine,
    PatchOptions,
    Profile,
    parse_component,
    parse_layers,
    parse_memory,
)
from lensaudit.patching.oracle import LastLayer


def default_data(model: str) -> str:
    """The forget set a model name implies: the fictional one for `demo/…`, else TOFU forget10."""
    return "demo" if model.startswith(DEMO) else "forget10"


def default_anchor(anchor: str, sources: Sequence[str]) -> str:
    """`full` or `retain` of the family that the sources belong to."""
    demo = all(name.startswith(DEMO) for name in sources)
    return f"{DEMO}{anchor}" if demo else anchor


def resolve_device(device: str) -> str:
    """`auto` becomes `cuda` where there is one, else `cpu`."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = device.partition(":")
    known = kind in ("cpu", "cuda", "mps") and (not number or number.isdigit())
    if not known:
        raise InputError(f"--device {device}: wanted auto, cpu, cuda or cuda:N")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise InputError(
            f"--device {device}: this machine has {torch.cuda.device_count()} CUDA devices"
        )
    return device


def resolve_dtype(dtype: str, device: str) -> str:
    """`auto` becomes float32 on a CPU and bfloat16 elsewhere."""
    return dtype if dtype != "auto" else ("float32" if device == "cpu" else "bfloat16")


def examples_for(data: str, *, exclude: Sequence[str] = (), limit: int | None) -> list[Example]:
    """The forget set, cut to its first `limit` examples.

    Raises:
        InputError: the set has problems, or nothing is left of it.
    """
    examples = forget_set(data, exclude=exclude)[:limit]
    if not examples:
        raise InputError(f"{data}: no examples; wanted at least one")
    return examples


def encode_all(
    examples: Sequence[Example], checkpoint: Checkpoint, *, scored: str = "entity"
) -> tuple[tuple[Encoded, ...], tuple[SpanLost, ...]]:
    """Tokens and spans under the checkpoint's tokenizer; what it loses is kept apart."""
    tokenizer = load_tokenizer(checkpoint)
    check_tokenizer(tokenizer, checkpoint.spec.name)
    found = [encode(e, tokenizer, scored=scored) for e in examples]  # pyright: ignore
    encoded = tuple(e for e in found if isinstance(e, Encoded))
    if not encoded:
        raise InputError(
            f"none of the {len(examples)} entities is covered by a token of "
            f"{checkpoint.spec.name}'s tokenizer; check that tokenizer and data belong together"
        )
    return encoded, tuple(e for e in found if isinstance(e, SpanLost))


def prepare(
    sources: Sequence[str],
    *,
    registry: Registry,
    full: str | None = None,
    retain: str | None = None,
    data: str | None = None,
    exclude: Sequence[str] = (),
    limit: int | None = None,
    layers: str = "all",
    component: str = "resid",
    scope: Scope = "span",
    last_layer: LastLayer = "resid_post",
    tau: float,
    engine: Engine = "sweep",
    profile: Profile | None = None,
    memory: str = "2G",
    dtype: str = "auto",
    device: str = "auto",
    attn: str = "eager",
    batch_size: int | None = None,
    activations: Path = Path("activations"),
    fresh: bool = False,
    notice: Callable[[str], None] = print,
    progress: Progress | None = None,
) -> Audit:
    """An audit whose models are opened and whose examples are encoded; nothing is loaded.

    Raises:
        InputError: a name, a file, an option or a pair of models is wrong.
    """
    if not sources:
        raise InputError("no --source: name the model to audit, or several")
    device = resolve_device(device)
    part, head = parse_component(component)
    if last_layer == "reference" and part != "resid":
        raise InputError(f"--last-layer reference: has a meaning for resid only, not {component}")
    n_bytes = parse_memory(memory)
    specs = _named_family(sources, full, retain, registry)
    examples = examples_for(data or default_data(sources[0]), exclude=exclude, limit=limit)
    opened = _open_family(specs)
    anchor = opened["full"]
    encoded, lost = encode_all(examples, anchor)
    options = PatchOptions(
        layers=parse_layers(layers, anchor.n_layers),
        tau=tau,
        last_layer=last_layer,
        scope=scope,
        component=part,
        head=head,
        engine=engine,
        profile=profile or ("full" if len(sources) == 1 else "ke"),
        dtype=resolve_dtype(dtype, device),
        device=device,
        attn=attn,
        batch_size=batch_size,
        memory_bytes=n_bytes,
    )
    return Audit(
        full=anchor,
        retain=opened["retain"],
        sources={name: opened[f"source {name}"] for name in sources},
        encoded=encoded,
        lost=lost,
        options=options if part == "resid" else replace(options, profile="full"),
        root=activations,
        examples=tuple(examples),
        fresh=fresh,
        notice=notice,
        progress=progress,
    )


def _named_family(
    sources: Sequence[str], full: str | None, retain: str | None, registry: Registry
) -> dict[str, ModelSpec]:
    """What the names of a run stand for, by role; nothing is opened."""
    names = {
        "full": full or default_anchor("full", sources),
        "retain": retain or default_anchor("retain", sources),
    } | {f"source {name}": name for name in sources}
    return {role: resolve(name, registry) for role, name in names.items()}


def _open_family(specs: Mapping[str, ModelSpec]) -> Mapping[str, Checkpoint]:
    """All models of a run, checked to fit together before any work."""
    opened = {role: open_checkpoint(spec) for role, spec in specs.items()}
    check_same_shape(*opened.values())
    if opened["full"].weights == opened["retain"].weights:
        raise InputError(
            f"full ({specs['full'].name}) and retain ({specs['retain'].name}) have the same "
            "weights; retain must be a model that never saw the forget set"
        )
    return opened
