"""From names to an audit: everything that can be wrong with the input is found here."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from lensaudit.activations.fill import cache_batch_that_fits
from lensaudit.data.facts import Fact
from lensaudit.data.spans import Encoded, Scope, SpanLost, apart, check_tokenizer, encode
from lensaudit.data.tofu import forget_set
from lensaudit.errors import InputError
from lensaudit.groups import assumption
from lensaudit.models.checkpoint import (
    Checkpoint,
    check_same_shape,
    config_of,
    load_tokenizer,
    misfit,
    open_checkpoint,
)
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.registry import ModelSpec, Registry, default_data, named_family
from lensaudit.models.sizes import context_of, sizes_on_disk
from lensaudit.patching.options import (
    Engine,
    PatchOptions,
    Profile,
    parse_component,
    parse_layers,
    parse_memory,
)
from lensaudit.patching.session import Chosen, Session
from lensaudit.progress import Tick
from lensaudit.scores.depth import TAU
from lensaudit.settings import ACTIVATIONS, AlignName, LastLayer, Place, named

EXPERIMENTAL = (
    "another size or tokenizer than full, so an aligned depth alone; experimental: where models "
    "were initialised apart it has not told those that hold facts from those that never saw them"
)


def examples_for(data: str, *, exclude: Sequence[str] = (), limit: int | None) -> list[Fact]:
    """The forget set, at most `limit` of its examples.

    Raises:
        InputError: the set has problems, or nothing is left of it.
    """
    examples = forget_set(data, exclude=exclude, limit=limit)
    if not examples:
        raise InputError(f"{data}: no examples; wanted at least one")
    return examples


def encode_all(
    examples: Sequence[Fact],
    checkpoint: Checkpoint,
    *,
    scored: Literal["entity", "answer"] = "entity",
) -> tuple[tuple[Encoded, ...], tuple[SpanLost, ...]]:
    """Tokens and spans under the checkpoint's tokenizer; what it loses is kept apart."""
    tokenizer = load_tokenizer(checkpoint)
    check_tokenizer(tokenizer, checkpoint.spec.name)
    context = context_of(config_of(checkpoint))
    found = [encode(e, tokenizer, scored=scored, too_long=context.too_long) for e in examples]
    encoded = tuple(e for e in found if isinstance(e, Encoded))
    if not encoded:
        reason = next(e.reason for e in found if isinstance(e, SpanLost))
        raise InputError(
            f"none of the {len(examples)} entities can be scored with {checkpoint.spec.name}'s "
            f"tokenizer (first: {reason}); check that model and data belong together"
        )
    return encoded, tuple(e for e in found if isinstance(e, SpanLost))


class Settings(TypedDict, total=False):
    """The options of `lensaudit patch`, as a user writes them; absent ones take their default."""

    layers: str
    component: str
    scope: Scope
    last_layer: LastLayer
    tau: float
    engine: Engine
    profile: Profile | None
    memory: str
    dtype: str
    device: str
    batch_size: int | None
    align: AlignName | None
    """How sources of another size are carried; None: no map is made, and there may be none."""


def prepare(
    sources: Sequence[Place],
    *,
    registry: Registry,
    full: Place | None = None,
    retain: Place | None = None,
    data: Place | None = None,
    exclude: Sequence[str] = (),
    limit: int | None = None,
    activations: Place = ACTIVATIONS,
    fresh: bool = False,
    notice: Callable[[str], None] = print,
    progress: Tick | None = None,
    **settings: Unpack[Settings],
) -> Session:
    """A session whose models are opened and whose examples are encoded; nothing is loaded.

    Raises:
        InputError: a name, a file, an option or a pair of models is wrong.
    """
    if not sources:
        raise InputError("no --source: name the model to audit, or several")
    options = _checked(settings, n_sources=len(sources))
    names = tuple(map(named, sources))
    specs = named_family(names, full and named(full), retain and named(retain), registry)
    data = str(data or default_data(names[0]))
    examples = examples_for(data, exclude=exclude, limit=limit)
    if (alone := assumption(one.group for one in examples)) is not None:
        notice(alone)
    carried = options.component == "resid" and options.last_layer == "resid_post"
    opened = _open_family(specs, settings.get("align") if carried else None, notice)
    anchor = opened["full"]
    sizes = sizes_on_disk(anchor, options.dtype)
    if options.head is not None and not options.head < sizes.n_heads:
        raise InputError(
            f"--component head:{options.head}: the model has heads 0 to {sizes.n_heads - 1}"
        )
    encoded, lost = encode_all(examples, anchor)
    for source in opened.values():
        _check_merges(source, anchor, examples)
    return Session(
        full=anchor,
        retain=opened["retain"],
        sources={name: opened[f"source {name}"] for name in names},
        encoded=encoded,
        lost=lost,
        options=replace(
            options,
            layers=parse_layers(settings.get("layers", "all"), anchor.n_layers),
            cache_batch=min(
                cache_batch_that_fits(
                    sizes_on_disk(one, options.dtype), encoded, options.memory_bytes
                )
                for one in {(one.n_layers, one.d_model): one for one in opened.values()}.values()
            ),
        ),
        root=Path(activations),
        spread=settings.get("device", "auto") == "auto",
        examples=tuple(examples),
        chosen=Chosen(data, tuple(exclude), limit),
        fresh=fresh,
        notice=notice,
        progress=progress,
    )


def _checked(settings: Settings, *, n_sources: int) -> PatchOptions:
    """The settings with their defaults; layers are resolved once the model is opened."""
    component = settings.get("component", "resid")
    part, head = parse_component(component)
    last_layer = settings.get("last_layer", "resid_post")
    if last_layer == "reference" and part != "resid":
        raise InputError(f"--last-layer reference: has a meaning for resid only, not {component}")
    tau = settings.get("tau", TAU)
    if not (math.isfinite(tau) and tau >= 0):
        raise InputError(f"--tau {tau}: wanted a number of nats from 0")
    device = resolve_device(settings.get("device", "auto"))
    profile = settings.get("profile") or ("full" if n_sources == 1 else "ke")
    return PatchOptions(
        layers=(),
        tau=tau,
        last_layer=last_layer,
        scope=settings.get("scope", "span"),
        component=part,
        head=head,
        engine=settings.get("engine", "sweep"),
        # of a component every layer is asked for, one source at a time
        profile=profile if part == "resid" else "full",
        dtype=resolve_dtype(settings.get("dtype", "auto"), device),
        device=device,
        batch_size=settings.get("batch_size"),
        memory_bytes=parse_memory(settings.get("memory", "2G")),
    )


def _open_family(
    specs: Mapping[str, ModelSpec], align: AlignName | None, notice: Callable[[str], None]
) -> Mapping[str, Checkpoint]:
    """All models of a run, checked to fit together before any work."""
    opened = {role: open_checkpoint(spec, allow_packed=True) for role, spec in specs.items()}
    full = opened["full"]
    sources = [one for role, one in opened.items() if role not in ("full", "retain")]
    carried = [one for one in sources if align is not None and misfit(one, full)]
    check_same_shape(*(one for one in opened.values() if one not in carried), notice=notice)
    for one in carried:
        _check_carried(one, full, align)
    if carried:
        notice(f"{', '.join(one.spec.name for one in carried)}: {EXPERIMENTAL}")
    if opened["full"].weights == opened["retain"].weights:
        raise InputError(
            f"full ({specs['full'].name}) and retain ({specs['retain'].name}) have the same "
            "weights; retain must be a model that never saw the forget set"
        )
    return opened


def _check_merges(source: Checkpoint, full: Checkpoint, examples: Sequence[Fact]) -> None:
    """Refuse a tokenizer that cuts `full`'s own vocabulary in other places: an unlearning of none.

    Raises:
        InputError: with the number of tokens that differ.
    """
    if source.tokenizer == full.tokenizer:
        return
    ours, theirs = load_tokenizer(full), load_tokenizer(source)
    if ours.get_vocab() != theirs.get_vocab():
        return
    found = [apart(example, ours, theirs) for example in examples]
    if n := sum(differ for differ, _ in found):
        raise InputError(
            f"{source.spec.name}: its tokenizer has the vocabulary of full and cuts words "
            f"otherwise: {n} of {sum(of for _, of in found)} tokens differ; put full's tokenizer "
            "into its folder"
        )


def _check_carried(source: Checkpoint, full: Checkpoint, align: AlignName | None) -> None:
    """Refuse a source of another size or tokenizer that no map of this class carries.

    Raises:
        InputError: one line, with what would do.
    """
    why = f"{source.spec.name}: {misfit(source, full)}"
    if align == "none":
        raise InputError(f"{why}; a map carries it: --align affine, or auto")
    if source.d_model != full.d_model and align not in ("auto", "affine"):
        raise InputError(f"{why}, and --align {align} needs equal widths: --align affine, or auto")
    if source.tokenizer != full.tokenizer:
        check_tokenizer(load_tokenizer(source), source.spec.name)
