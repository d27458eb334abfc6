"""`lensaudit patch`: swap residuals into full, layer by layer, and score unlearning depth."""

from pathlib import Path
from typing import Any

import click

from lensaudit.cli.options import ProgressBar, check_names, notice, shared


@click.command()
@shared("sources", "full", "retain")
@click.option(
    "--score",
    type=click.Choice(["uds", "lens", "em"]),
    default="uds",
    show_default=True,
    help="Unlearning Depth Score; Logit Lens depth, a fast screen; or exact-match erasure.",
)
@click.option("--lens", is_flag=True, help="Report the Logit Lens depth beside UDS.")
@click.option(
    "--em-form",
    type=click.Choice(["generation", "teacher"]),
    help="EM: full generates, or is fed the true answer. [default: generation]",
)
@click.option(
    "--em-threshold", type=float, help="EM from which a layer counts as KEPT. [default: 0.5]"
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    help="EM: tokens that a patched run generates. [default: 20]",
)
@click.option("--layers", default="all", show_default=True, help="all, 3, 0-7, 0-15:3, -1, 0-3,8.")
@click.option("--tau", type=float, default=0.05, show_default=True, help="KE threshold, nats.")
@click.option(
    "--last-layer",
    type=click.Choice(["resid_post", "reference"]),
    default="resid_post",
    show_default=True,
    help="What is patched in at the last layer; reference is post-norm, as published.",
)
@click.option(
    "--scope",
    type=click.Choice(["span", "boundary", "prefix"]),
    default="span",
    show_default=True,
    help="Positions replaced: the span's, the last prompt token, or all up to the span's end.",
)
@click.option(
    "--component", default="resid", show_default=True, help="resid, attn, mlp, resid_mid, head:N."
)
@click.option(
    "--engine",
    type=click.Choice(["sweep", "oracle"]),
    default="sweep",
    show_default=True,
    help="One sweep over all layers, or one hooked pass per layer (the definition).",
)
@click.option(
    "--profile",
    type=click.Choice(["full", "ke"]),
    help="S2 at all layers, or only where it can change UDS. [default: ke for several sources]",
)
@shared(
    "data", "exclude", "limit", "registry", "dtype", "device", "attn", "batch_size", "memory",
    "activations",
)  # fmt: skip
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Result folder. [default: experiments/out/<source>]",
)
@shared("json", "dry_run", "fresh")
def patch(
    sources: tuple[str, ...],
    score: str,
    lens: bool,
    em_form: str | None,
    em_threshold: float | None,
    max_new_tokens: int | None,
    **options: Any,
) -> None:
    """Patch residuals of retain (S1) and of each source (S2) into full; score the depth.

    Writes manifest.json, summary.json, results.jsonl and layers.csv per source. UDS 0: the
    knowledge is intact; 1: erased to the level of a model that never saw it.
    """
    check_names([*sources, options["full"], options["retain"]], options["registry"])
    em = {"form": em_form, "threshold": em_threshold, "max_new_tokens": max_new_tokens}
    given = {name: value for name, value in em.items() if value is not None}
    with ProgressBar() as progress:
        if score == "em":
            from lensaudit.cli.em import em_audit

            em_audit(sources, em=given, notice=notice, progress=progress, **options)
            return
        if given:
            raise click.UsageError("--em-form, --em-threshold, --max-new-tokens: need --score em")
        from lensaudit.cli.audits import patch_audit

        patch_audit(sources, score=score, lens=lens, notice=notice, progress=progress, **options)
