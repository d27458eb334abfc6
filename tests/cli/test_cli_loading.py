"""What is being imported is said on a terminal, and nowhere else."""

import os
import pty
import subprocess
import sys

import pytest

MAIN = "from lensaudit.cli.main import main; main()"


def on_a_terminal(*arguments, **changes):
    """All that a command writes to a terminal."""
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", **changes}
    command = [sys.executable, "-c", MAIN, *arguments]
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment) as process:
        os.close(its)
        said = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # its end is closed
                break
            if not piece:
                break
            said += piece
    os.close(ours)
    assert process.returncode == 0, said
    return said.decode()


def test_the_first_word_names_what_is_loaded_and_the_line_is_erased():
    said = on_a_terminal("cache", "--model", "demo/npo", "--limit", "2", "--dry-run")
    assert said.startswith("\r\x1b[2Kloading torch …")
    before, _, after = said.rpartition("loading ")
    # what the command says begins on an empty line
    assert after.partition("…")[2].startswith("\r\x1b[2K")
    assert "demo/npo" in after
    assert "loading transformer_lens" in before or "loading transformers" in before


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        (("cache", "--model", "demo/npo", "--limit", "2", "--dry-run", "-q"), {}),
        (("cache", "--model", "demo/npo", "--limit", "2", "--dry-run"), {"TERM": "dumb"}),
        (("--help",), {}),
    ],
)
def test_nothing_is_said_to_who_wants_quiet_or_loads_nothing(arguments, changes):
    assert "loading" not in on_a_terminal(*arguments, **changes)


def test_nothing_is_said_into_a_pipe():
    command = [sys.executable, "-c", MAIN, "cache", "--model", "demo/npo", "--limit", "2"]
    found = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, check=True)
    assert "loading" not in found.stdout + found.stderr
