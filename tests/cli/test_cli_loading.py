"""What is being imported is said on a terminal, and nowhere else."""

import importlib
import os
import pty
import subprocess
import sys

import pytest

from lensaudit.cli import terminal as loading

MAIN = "from lensaudit.cli.main import main; main()"
IMPORTS = "from lensaudit.cli.terminal import announce; announce([]); import scipy; print('done')"


def on_a_terminal(program, *arguments):
    """All that a program writes to a terminal."""
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    command = [sys.executable, "-c", program, *arguments]
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


def test_what_is_loaded_is_named_and_the_line_is_erased():
    said = on_a_terminal(IMPORTS)
    # what the command says begins on an empty line
    assert said == "\r\x1b[2Kloading scipy …\r\x1b[2Kdone\r\n"


def test_what_is_imported_lazily_is_run_when_it_is_used(tmp_path, monkeypatch):
    (tmp_path / "later_on.py").write_text("VALUE = 3")
    monkeypatch.syspath_prepend(tmp_path)
    with loading.lazily():
        later_on = importlib.import_module("later_on")
    assert "later_on" not in sys.modules
    assert later_on.VALUE == 3
    assert sys.modules.pop("later_on").VALUE == 3


def test_a_help_loads_nothing():
    assert "loading" not in on_a_terminal(MAIN, "--help")


@pytest.mark.parametrize(
    ("arguments", "terminal", "kind", "told"),
    [
        (["cache", "--dry-run"], True, "xterm", True),
        (["cache", "--dry-run", "-q"], True, "xterm", False),
        (["--quiet", "cache"], True, "xterm", False),
        (["cache", "--dry-run"], True, "dumb", False),
        (["cache", "--dry-run"], False, "xterm", False),
    ],
    ids=["told", "-q", "--quiet", "dumb", "pipe"],
)
def test_nothing_is_said_to_who_wants_quiet_or_into_a_pipe(
    monkeypatch, capsys, arguments, terminal, kind, told
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setattr(loading, "_doing", None)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(loading, "LARGE", ("this",))
    monkeypatch.delitem(sys.modules, "this", raising=False)
    loading.announce(arguments)
    importlib.import_module("this")
    with loading.during("opening x"):
        pass
    said = capsys.readouterr().err
    assert ("loading this …" in said) == ("opening x …" in said) == told
    assert told or said == ""
