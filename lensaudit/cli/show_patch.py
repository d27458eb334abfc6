"""What a person reads of a patching run, whatever the score."""

import click

from lensaudit.auditing.patch import Patched
from lensaudit.cli.show import print_audit
from lensaudit.cli.show_em import print_em
from lensaudit.errors import WorkError
from lensaudit.files import canonical_json


def report(found: Patched, *, as_json: bool) -> None:
    """Results on stdout, and where their files are.

    Raises:
        WorkError: nothing could be scored of a model.
    """
    summaries = [one.summary for one in found.results]
    if as_json:
        click.echo(canonical_json(summaries[0] if len(summaries) == 1 else summaries))
    else:
        if found.results[0].score == "em":
            print_em(summaries)
        else:
            print_audit(summaries, found.comparison)
        for one in found.results:
            click.echo(f"written: {one.folder}")
    if empty := [one for one in found.results if one.value is None]:
        raise WorkError(f"{', '.join(one.source for one in empty)}: {empty[0].reason}")
