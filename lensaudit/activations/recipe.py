"""What a person runs to fill a cache, from its provenance."""

import shlex
from pathlib import Path

from lensaudit.activations.spec import Spec
from lensaudit.text import printable

CACHE = "lensaudit cache"
"""What fills a cache of a data set; others say what made them in their provenance."""


def command_of(spec: Spec, root: Path) -> str | None:
    """The command that fills a cache under `root`; None where its provenance tells none."""
    recipe, identity = spec.provenance, spec.fingerprint
    if not {"model", "data", "limit"} <= set(recipe):  # made by a person or another command
        return None
    options = [
        *((name, recipe.get(name)) for name in ("model", "data", "limit", "batch_size", "memory")),
        *(("exclude", name) for name in recipe.get("exclude") or ()),
        ("component", None if identity.part == "resid" else identity.part),
        *((name, getattr(identity, name)) for name in ("positions", "dtype", "device")),
    ]
    words = [
        word
        for name, value in options
        if value is not None
        for word in (f"--{name.replace('_', '-')}", printable(str(value)))
    ]
    return shlex.join([*CACHE.split(), *words, "--activations", str(root)])


def how_to_fill(spec: Spec, root: Path) -> str:
    """What a person has to run to fill a cache."""
    if command := command_of(spec, root):
        return f"run `{command}` to fill it"
    made_by = spec.provenance.get("made_by")
    what = f"`{printable(str(made_by))}`, which made it" if made_by else "the command that made it"
    return f"to fill it, run again {what}"
