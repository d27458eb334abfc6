from dataclasses import fields

import click
import pytest

from lensaudit.auditing import settings
from lensaudit.cli.main import cli
from lensaudit.patching.settings import PatchSettings

SCREEN = {"sources", "name", "model", "out", "log", "as_json", "dry_run"}
"""Options that say what and where, not how."""


RECORDS = {
    "patch": (PatchSettings, "--source"),
    "eval": (settings.EvaluateSettings, "--model"),
    "audit": (settings.AuditSettings, "--source"),
    "cache": (settings.CacheSettings, "--model"),
}


@pytest.mark.parametrize("command", RECORDS)
def test_options_fields_and_defaults_are_one(command):
    record, option = RECORDS[command]
    found = cli.get_command(click.Context(cli), command)
    given = found.make_context(command, [option, "demo/npo"]).params
    how = {name: value for name, value in given.items() if name not in SCREEN}
    assert how.keys() == {one.name for one in fields(record)}
    assert record(**how) == record()
