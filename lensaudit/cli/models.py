"""`lensaudit models`: the names that can be asked for, and what they mean."""

from pathlib import Path
from typing import get_args

import click

from lensaudit.cli.options import shared
from lensaudit.cli.terminal import emit, listing, say
from lensaudit.models.registry import load_registry, origin
from lensaudit.models.spec import ModelSpec, Role


@click.command()
@click.option("--role", type=click.Choice(get_args(Role)), help="Only the models of one role.")
@shared("registry", "json")
def models(role: Role | None, registry: Path | None, as_json: bool) -> None:
    """List model names and what they resolve to.

    `organisation/name[@revision]` on the Hub and folders work too, without a name here. Published
    names are listed from the papers' grids; whether each is still on the Hub is seen when it is
    fetched.
    """
    specs = load_registry(registry).listed(role)
    if as_json:
        emit([_record(spec) for spec in specs], pretty=True)
        return
    listing(map(_columns, specs))
    say(f"{len(specs)} names", err=True)


def _record(spec: ModelSpec) -> dict[str, str | None]:
    """The object of `--json`."""
    return {
        "name": spec.name,
        "repo": spec.repo,
        "revision": spec.revision,
        "role": spec.role,
        "method": spec.method,
        "alias_of": spec.alias_of,
        "origin": origin(spec),
        "adapter": spec.adapter.repo if spec.adapter else None,
    }


def _columns(spec: ModelSpec) -> tuple[str, str, str, str]:
    """Name, role, where it comes from, and what it stands for."""
    meaning = f"{spec.repo}@{spec.revision}" if spec.revision not in (None, "main") else spec.repo
    if spec.adapter is not None:
        meaning += f" + {spec.adapter.repo}"
    if spec.alias_of is not None:
        meaning = f"= {spec.alias_of}"
    return spec.name, spec.role, origin(spec), meaning
