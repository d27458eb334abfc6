"""`lensaudit audit`: everything about some models in one command, from names to one page."""

from pathlib import Path
from typing import Any

import click

from lensaudit.cli.options import ProgressBar, check_names, notice, shared


def _file() -> click.Path:
    return click.Path(path_type=Path, dir_okay=False)


@click.command()
@shared("sources", "full", "retain")
@click.option(
    "--suite", type=click.Choice(["tofu", "none"]), default="tofu", show_default=True,
    help="Output-level metrics beside the depth; none leaves them out.",
)  # fmt: skip
@click.option(
    "--inside", is_flag=True,
    help="Also the suite's metrics that look inside: EM-erasure, CKA, Logit Lens, Fisher. Slow.",
)  # fmt: skip
@click.option("--holdout", type=_file(), help="Own rows no model saw, for membership attacks.")
@click.option("--retain-set", type=_file(), help="Own rows that should be kept.")
@shared(
    "data", "exclude", "limit", "registry", "dtype", "device", "attn", "batch_size", "memory",
    "activations",
)  # fmt: skip
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, file_okay=False),
    help="Folder of all results and of audit.html. [default: experiments/out/audit-<source>]",
)  # fmt: skip
@shared("json", "dry_run", "fresh")
def audit(sources: tuple[str, ...], **options: Any) -> None:
    """Audit models in one go: cache, patch, evaluate, and write audit.html.

    The plan is printed first. What is finished is kept and found again by content: after an
    interruption run the same command again. --fresh computes everything anew.
    """
    check_names([*sources, options["full"], options["retain"]], options["registry"])
    from lensaudit.cli.auditing import run_audit

    with ProgressBar() as progress:
        run_audit(sources, notice=notice, progress=progress, **options)
