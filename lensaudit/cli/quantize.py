"""`lensaudit quantize`: does forgotten knowledge come back when weights are rounded?"""

import click

from lensaudit.attacks.settings import RoundSettings
from lensaudit.cli.options import options, shared
from lensaudit.cli.terminal import emit, notice, say


@click.command()
@options(RoundSettings)
@shared("json", "dry_run")
def quantize(settings: RoundSettings, as_json: bool, dry_run: bool) -> None:
    """Round a model's linear layers to 4 or 8 bits and back; saves an ordinary checkpoint.

    nf4: blocks of 64 scaled by their absolute maximum, without double quantisation; int8: rows.
    Embeddings, norms and the output layer stay. Every other command reads the folder.
    """
    from lensaudit.attacks.rounding import make, plan_of, prepare, rounded

    job, out = prepare(settings), settings.out
    if dry_run:
        say(plan_of(job, out))
        return
    if not make(job, out):
        notice(f"{out} holds this model already; nothing to do")
        if not as_json:
            return
    made = rounded(out)
    worst = made.errors[made.worst]
    if as_json:
        emit(
            {
                "out": str(out),
                "method": job.method,
                "engine": made.engine,
                "matrices": len(made.errors),
                "relative_error": made.relative_error,
                "worst": {"matrix": made.worst, "relative_error": worst},
            }
        )
        return
    say(
        f"{out}: {job.method} of {job.start.spec.name}, {len(made.errors)} matrices, relative "
        f"weight error {made.relative_error:.4f} (worst {worst:.4f}, {made.worst})"
    )
