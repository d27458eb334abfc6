"""`lensaudit cache`: run a model once and keep its residual streams, or components of it."""

import click

from lensaudit.auditing.settings import CacheSettings
from lensaudit.cli.options import ProgressBar, check_names, options, shared
from lensaudit.cli.terminal import emit, say


@click.command()
@shared("model")
@options(CacheSettings)
@shared("json", "dry_run")
def cache(model: str, settings: CacheSettings, as_json: bool, dry_run: bool) -> None:
    """Cache the residual stream after every block, with run_with_cache, as HDF5.

    A cache is found again by its content: weights, tokenizer, examples, type, attention. With a
    complete cache nothing is loaded. `--component` caches that instead; `patch --component` reads
    it where it is there, and runs the model where it is not. `heads` serves every `head:N`.
    """
    check_names([model], settings.registry)
    from lensaudit.auditing.cache import cache_into, plan_cache

    if dry_run:
        say(plan_cache(model, settings).text())
        return
    with ProgressBar() as bar:
        found = cache_into(model, settings, progress=bar.tell)
    if as_json:
        emit(found.summary)
    else:
        for one in found.parts.values():
            say(one.folder)
