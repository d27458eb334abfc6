"""From names to an audit: everything that can be wrong with the input is found here."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lensaudit.activations.fill import cache_batch_that_fits
from lensaudit.data.facts import Fact
from lensaudit.data.spans import Encoded, apart, check_tokenizer, encode, reads_otherwise
from lensaudit.data.tofu import forget_set, without_span
from lensaudit.errors import InputError
from lensaudit.groups import assumption
from lensaudit.models.checkpoint import (
    Checkpoint,
    config_of,
    in_role,
    load_tokenizer,
    open_checkpoint,
)
from lensaudit.models.device import resolve_device, resolve_dtype
from lensaudit.models.likeness import check_same_shape, misfit, other_tokenizer, same_tokenizer
from lensaudit.models.registry import default_data, specs_of
from lensaudit.models.sizes import context_of, sizes_on_disk
from lensaudit.patching.exact_match import check_em
from lensaudit.patching.options import ResolvedSettings, parse_component, parse_layers, parse_memory
from lensaudit.patching.scoring import as_lens
from lensaudit.patching.session import Session
from lensaudit.patching.settings import PatchSettings
from lensaudit.patching.sources import others_of
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.results.roles import check_roles
from lensaudit.settings import AlignName, Place, Profile, named, several

EXPERIMENTAL = (
    "another size or tokenizer than full, so an aligned depth alone; experimental: where models "
    "were initialised apart it has not told those that hold facts from those that never saw them"
)


def encode_all(
    examples: Sequence[Fact], checkpoint: Checkpoint
) -> tuple[tuple[Encoded, ...], dict[int, str]]:
    """Tokens and spans under the checkpoint's tokenizer; by idx, why it loses an example."""
    tokenizer = load_tokenizer(checkpoint)
    check_tokenizer(tokenizer, checkpoint.spec.name)
    context = context_of(config_of(checkpoint))
    found = [encode(e, tokenizer, too_long=context.too_long) for e in examples]
    encoded = tuple(e for e in found if isinstance(e, Encoded))
    lost = {e.idx: why for e, why in zip(examples, found, strict=True) if isinstance(why, str)}
    if not encoded:
        raise InputError(
            f"none of the {len(examples)} entities can be scored with {checkpoint.spec.name}'s "
            f"tokenizer (first: {next(iter(lost.values()), 'no rows')}); check that model and "
            "data belong together"
        )
    return encoded, lost


def prepare(
    sources: Sequence[Place],
    settings: PatchSettings | None = None,
    *,
    notice: Notice = print,
    progress: Tell = unheard,
    maps: bool = True,
) -> Session:
    """A session whose models are opened and whose rows are encoded; nothing is loaded or written.

    With `--retain none` `full` stands where `retain` would: then S1 is 0.

    Args:
        sources: names, Hub ids or folders of the models to patch in; a name counts once.
        settings: of the run.
        notice: told what a person should know.
        progress: told what is done.
        maps: whether a source of another size may be carried by a map.

    Raises:
        InputError: a name, a file, a setting or a pair of models is wrong.
    """
    names = tuple(dict.fromkeys(map(named, sources)))
    if not names:
        raise InputError("no --source: name the model to audit, or several")
    settings = settings or PatchSettings()
    if settings.without_retain:
        _check_usual(settings)
    resolved = resolved_settings(settings, names)
    check_em(resolved)
    # what is not patched score by score is not carried either
    others = (settings.score != "uds", settings.lens, settings.also, settings.without_retain)
    streams = resolved.part == "resid" and settings.last_layer == "resid_post"
    session = _opened(names, resolved, maps and streams and not any(others), notice, progress)
    n_heads = sizes_on_disk(session.full, resolved.dtype).n_heads
    if resolved.head is not None and not resolved.head < n_heads:
        raise InputError(
            f"--component {settings.component}: the model has heads 0 to {n_heads - 1}"
        )
    if settings.lens or settings.score == "lens":
        reading = as_lens(session)  # refuses what has no meaning for it
        return reading if settings.score == "lens" else session
    if (
        settings.without_retain
        and not others_of(session.full, session.encoded, session.examples).rows
    ):
        raise InputError(
            "no retain model is named, so another fact's stream takes its place, but none of "
            f"{len(session.encoded)} facts can take the place of another; wanted --retain, or "
            "facts of two authors or more, with other entities of as many tokens"
        )
    return session


def _opened(
    names: Sequence[str], settings: ResolvedSettings, maps: bool, notice: Notice, progress: Tell
) -> Session:
    """All models of a run, checked to fit together before any work, or to be carried by maps."""
    specs = specs_of(names, settings)
    examples = _rows_of(settings, notice)
    if (alone := assumption(one.group for one in examples)) is not None:
        notice(alone)
    opened = {role: open_checkpoint(spec, allow_packed=True) for role, spec in specs.items()}
    anchor, sources = opened["full"], [opened[f"source {name}"] for name in names]
    carried = [one for one in sources if maps and misfit(one, anchor)]
    check_same_shape(*(one for one in opened.values() if one not in carried), notice=notice)
    never = ["retain", *(f"retain {name}" for name in several(settings.retain)[1:])]
    check_roles(
        [
            *in_role("source", *sources),
            *in_role("full", anchor),
            *in_role("retain", *(opened[one] for one in never if not settings.without_retain)),
        ]
    )
    for one in carried:
        _check_map(one, anchor, settings.align)
    if carried:
        notice(f"{', '.join(one.spec.name for one in carried)}: {EXPERIMENTAL}")
    for one in carried:
        if told := other_tokenizer(one, anchor):
            notice(f"{one.spec.name}: {told}")
    session = session_of(settings, opened, examples, notice, progress)
    for one in opened.values():
        _check_merges(one, anchor, examples)
    return session


def session_of(
    settings: ResolvedSettings,
    opened: Mapping[str, Checkpoint],
    examples: Sequence[Fact],
    notice: Notice,
    progress: Tell,
) -> Session:
    """A session of opened models: `full`, `retain`, each `source NAME` and each `retain NAME`."""
    full, shapes = opened["full"], {(one.n_layers, one.d_model): one for one in opened.values()}
    encoded, lost = encode_all(examples, full)
    fitting = (
        cache_batch_that_fits(sizes_on_disk(one, settings.dtype), encoded, settings.memory_bytes)
        for one in shapes.values()
    )

    def named_as(role: str) -> dict[str, Checkpoint]:
        return {at.removeprefix(role): one for at, one in opened.items() if at.startswith(role)}

    return Session(
        full=full,
        retain=opened["retain"],
        sources=named_as("source "),
        retains=named_as("retain "),
        encoded=encoded,
        unscored=lost,
        examples=tuple(examples),
        notice=notice,
        progress=progress,
        settings=replace(
            settings,
            at_layers=parse_layers(settings.layers, full.n_layers),
            cache_batch=min(fitting),
        ),
    )


_FIXED = (
    *("score", "lens", "layers", "tau", "last_layer", "scope", "component", "profile"),
    *("also", "base"),
)
"""Settings that `--retain none` takes as they are: its scale was measured with these."""


def _check_usual(settings: PatchSettings) -> None:
    """Refuse settings under which the scale of `--retain none` was not measured."""
    for name in _FIXED:
        if (given := getattr(settings, name)) != getattr(PatchSettings(), name):
            said = ", ".join(map(str, given)) if isinstance(given, tuple) else given
            raise InputError(
                f"--retain none: its scale was not measured with --{name.replace('_', '-')} "
                f"{said}; leave that out, or name a model that never saw the facts"
            )


def resolved_settings(settings: PatchSettings, sources: Sequence[str]) -> ResolvedSettings:
    """Settings with `auto` resolved; layers and batches are decided once models are opened."""
    part, _ = parse_component(settings.component)
    if settings.last_layer == "reference" and part != "resid":
        raise InputError(
            f"--last-layer reference: has a meaning for resid only, not {settings.component}"
        )
    if not (math.isfinite(settings.tau) and settings.tau >= 0):
        raise InputError(f"--tau {settings.tau}: wanted a number of nats from 0")
    device = resolve_device(settings.device)
    # of a component every layer is asked for, one source at a time
    alone = len(sources) == 1 or settings.score == "em" or settings.without_retain
    usual: Profile = "full" if alone else "ke"
    given = {name: value for name, value in vars(settings).items() if value is not None}
    decided: dict[str, Any] = {
        "data": str(settings.data or default_data(sources[0], settings.registry)),
        "profile": "full" if part != "resid" else settings.profile or usual,
        "dtype": resolve_dtype(settings.dtype, device),
        "device": device,
        "memory_bytes": parse_memory(settings.memory),
        "spread": settings.device == "auto",
    }
    return ResolvedSettings(**given | decided)


def _rows_of(settings: ResolvedSettings, notice: Notice) -> list[Fact]:
    """The rows that are asked, under the seam that was chosen."""
    examples = forget_set(str(settings.data), exclude=settings.exclude, limit=settings.limit)
    if lacking := without_span(str(settings.data), settings.exclude):
        notice(
            f"{len(lacking)} rows that --exclude {' '.join(settings.exclude)} leaves have no span "
            f"(idx {', '.join(map(str, lacking))}); `lensaudit annotate` them, and name the file"
        )
    if settings.seam is not None:
        examples = [replace(one, seam=settings.seam) for one in examples]
    if settings.score != "em" and (odd := [one.idx for one in examples if reads_otherwise(one)]):
        listed = ", ".join(map(str, odd[:5])) + (" …" if odd[5:] else "")
        notice(
            f"{len(odd)} of {len(examples)} rows (idx {listed}): prefix and entity as the "
            "reference joins them are not the answer's own text; --seam text reads the answer"
        )
    return examples


def _check_merges(source: Checkpoint, full: Checkpoint, examples: Sequence[Fact]) -> None:
    """Refuse a tokenizer that cuts `full`'s own vocabulary in other places: an unlearning of none.

    Raises:
        InputError: with the number of tokens that differ.
    """
    if same_tokenizer(source, full):
        return
    ours, theirs = load_tokenizer(full), load_tokenizer(source)
    if ours.get_vocab() != theirs.get_vocab():
        return
    found = [apart(example, ours, theirs) for example in examples]
    if n := sum(differ for differ, _ in found):
        raise InputError(
            f"{source.spec.name}: its tokenizer has full's vocabulary but cuts words in another "
            f"way: {n} of {sum(of for _, of in found)} tokens differ; put full's tokenizer into "
            "its folder"
        )


def _check_map(source: Checkpoint, full: Checkpoint, align: AlignName) -> None:
    """Refuse a source of another size or tokenizer that no map of this class carries.

    Raises:
        InputError: one line, with what would do.
    """
    why = f"{source.spec.name}: {misfit(source, full)}"
    if align == "none":
        raise InputError(f"{why}; a map carries it: --align affine, or auto")
    if source.d_model != full.d_model and align not in ("auto", "affine"):
        raise InputError(f"{why}, and --align {align} needs equal widths: --align affine, or auto")
    if not same_tokenizer(source, full):
        check_tokenizer(load_tokenizer(source), source.spec.name)
