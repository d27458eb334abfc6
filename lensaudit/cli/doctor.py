"""`lensaudit doctor`: is this installation fit for use?"""

from dataclasses import asdict

import click

from lensaudit.cli.options import options, shared
from lensaudit.cli.terminal import emit, say
from lensaudit.errors import VerificationError
from lensaudit.screen.cells import name
from lensaudit.settings import CheckupSettings

MARKS = {"ok": "ok  ", "note": "note", "fail": "FAIL"}


@click.command()
@options(CheckupSettings)
@shared("json")
def doctor(settings: CheckupSettings, as_json: bool) -> None:
    """Check versions, device, disk, caches, and that the bridge computes what Hugging Face does.

    Exit code 4 if a check fails; notes do not fail. `lensaudit activations verify` reads every
    byte of the caches, doctor only their listings.
    """
    from lensaudit.checkup import examine

    checks = []
    for check in examine(settings):
        checks.append(check)
        if not as_json:
            say(f"{MARKS[check.state]}  {name(check.name)}: {name(check.found)}")
    failed = [check.name for check in checks if check.state == "fail"]
    if as_json:
        emit({"ok": not failed, "checks": [asdict(one) for one in checks]})
    if failed:
        raise VerificationError(
            f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}"
        )
