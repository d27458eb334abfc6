"""`lensaudit unlearn`: make an unlearned model, to audit it afterwards."""

from pathlib import Path
from typing import Any

import click

from lensaudit.cli.options import options, shared
from lensaudit.cli.terminal import ProgressBar, emit, notice, say
from lensaudit.unlearn.settings import UnlearnSettings


@click.command()
@options(UnlearnSettings)
@shared("json", "dry_run")
def unlearn(settings: UnlearnSettings, as_json: bool, dry_run: bool) -> None:
    """Unlearn a forget set by one of thirteen methods; float32 throughout, resumable.

    Defaults are open-unlearning's for TOFU. Run the same command again to resume.
    """
    from lensaudit.unlearn.job import make, plan_of, prepare

    job = prepare(settings)
    if dry_run:
        say("\n".join(plan_of(job, settings.out)))
        return
    with ProgressBar() as progress:
        new = make(job, settings.out, report=lambda at: progress("step", at.step, at.n_steps))
    what = f"{job.method.name} from {job.start.spec.name}, {job.recipe.n_steps} steps"
    print_trained(settings.out, what, {"method": job.method.name}, new=new, as_json=as_json)


def print_trained(out: Path, what: str, more: dict[str, Any], *, new: bool, as_json: bool) -> None:
    """What a training run came to; of a folder that was there already only JSON tells more."""
    from lensaudit.unlearn.job import kept_losses

    if not new:
        notice(f"{out} holds this model already; nothing to do")
        if not as_json:
            return
    losses = kept_losses(out)
    first, last = losses[0], losses[-1]
    if as_json:
        known = {"out": str(out), "steps": len(losses), "first_loss": first, "last_loss": last}
        emit(known | more)
    else:
        say(f"{out}: {what}, loss {first:.4f} -> {last:.4f}")
