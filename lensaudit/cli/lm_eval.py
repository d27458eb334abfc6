"""`lensaudit lm-eval`: what can a model still do? lm-evaluation-harness, in memory."""

import os

import click

from lensaudit.cli.options import options, shared
from lensaudit.cli.terminal import emit, notice, say, written
from lensaudit.errors import need
from lensaudit.evaluation.settings import HarnessSettings
from lensaudit.screen.cells import number


@click.command("lm-eval")
@options(HarnessSettings)
@shared("json")
def lm_eval(settings: HarnessSettings, as_json: bool) -> None:
    """Run tasks of lm-evaluation-harness on a model as it is, quantised or steered.

    Every argument reaches the harness. Local task files and data need no network. Results hold
    versions, sample counts and settings; a task that was run the same way is not run again.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is imported
    # before anything that takes seconds is imported
    need("lm_eval", called="lm-evaluation-harness", extra="lmeval")
    from lensaudit.evaluation.lmeval import run_harness

    found = run_harness(settings, notice)
    if as_json:
        emit(dict(found.values))
        return
    for key, value in sorted(found.values.items()):
        say(f"{key}: {number(value, 4)}")
    if found.reused:
        say(f"kept from before: {', '.join(found.reused)}")
    written(found.folder)
