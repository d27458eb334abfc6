"""`lensaudit relearn`: does forgotten knowledge come back with a pass over the rows?"""

from typing import TYPE_CHECKING

import click

from lensaudit.attacks.settings import RelearnSettings
from lensaudit.cli.options import options, shared
from lensaudit.cli.terminal import ProgressBar, emit, notice, say, tell, written
from lensaudit.cli.unlearn import print_trained

if TYPE_CHECKING:
    from lensaudit.attacks.recovery import Recovered


@click.command()
@options(RelearnSettings)
@shared("json", "dry_run")
def relearn(settings: RelearnSettings, as_json: bool, dry_run: bool) -> None:
    """Fine-tune a model on the forget answers; float32, resumable.

    One pass, as in the UDS meta-evaluation. With --audit: UDS, probability, exact memorisation and
    extraction strength before and after, of the model and of retain, which had nothing to recover.
    """
    if settings.out is None and not settings.audit:
        raise click.UsageError("give --out DIR for the checkpoint, or --audit for the scores alone")
    from lensaudit.attacks.recovery import attack
    from lensaudit.attacks.relearn import check, make, plan_of, prepare, taught_nothing

    job, out = prepare(settings, settings.model), settings.out
    check(job)
    if dry_run:
        say("\n".join(plan_of(job, out)))
        return
    with ProgressBar() as progress:
        if settings.audit or out is None:
            found = attack(settings, notice=notice, progress=progress.tell)
            print_recovery(found, as_json=as_json)
            return
        new = make(job, out, report=lambda at: progress("step", at.step, at.n_steps))
    what = f"{job.start.spec.name} relearned, {job.recipe.n_steps} steps"
    print_trained(out, what, {}, new=new, as_json=as_json)
    if (nothing := taught_nothing(out)) is not None:
        notice(nothing)


def print_recovery(found: "Recovered", *, as_json: bool) -> None:
    """Every score before and after the attack."""
    from lensaudit.screen.recovery import of_recovery

    for one in found.shifts:
        if one.remark is not None:
            notice(f"{one.model}: {one.remark}")
    if as_json:
        emit([one.as_json() for one in found.shifts])
        return
    tell(of_recovery(found))
    written(found.folder)
