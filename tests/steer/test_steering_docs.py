"""Options that docs/steering.md names beside its commands, which tests/test_docs.py runs."""

import re

from pages import page

from lensaudit.cli.measure import steer_command


def test_options_on_the_page_exist():
    commands = steer_command.commands.values()
    known = {flag for command in commands for one in command.params for flag in one.opts}
    named = set(re.findall(r"`(--[a-z-]+)", page("steering")))
    assert named
    assert named <= known
