"""`lensaudit verify`: is everything as it was written?"""

from collections import Counter
from dataclasses import asdict
from pathlib import Path

import click

from lensaudit.cli.options import shared
from lensaudit.cli.terminal import emit, say
from lensaudit.errors import VerificationError


@click.command()
@click.argument(
    "folders", nargs=-1, required=True, metavar="FOLDER…", type=click.Path(path_type=Path)
)
@shared("json")
def verify(folders: tuple[Path, ...], as_json: bool) -> None:
    """Compare all that lies in the FOLDERs with its manifests, seals and checksums.

    Results, models, finished passes, books of scores, and caches; nothing is changed. Exit code 4
    if something is not as it was written. What 0.1.0 wrote without checksums is counted apart.
    """
    from lensaudit.auditing.verify import verify as compare

    found = compare(*folders)
    bad = [one for one in found if one.problems]
    if as_json:
        emit([asdict(one) for one in found], pretty=True)
    else:
        for one in bad:
            for line in one.problems:
                say(f"{one.place}: {line}")
        counts = Counter(one.kind for one in found)
        n_unsigned = sum(not one.n_files and not one.problems for one in found)
        parts = [f"{n} {kind}" for kind, n in sorted(counts.items())]
        parts += [f"{n_unsigned} without checksums"] if n_unsigned else []
        say(f"compared: {', '.join(parts) or 'nothing'}; {len(bad)} damaged")
    if bad:
        raise VerificationError(
            f"{len(bad)} of {len(found)} are not as they were written; run the commands that made "
            "them again"
        )
