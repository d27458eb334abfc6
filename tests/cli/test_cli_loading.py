"""What is being imported is said on a terminal, and nowhere else."""

import importlib.util
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from support import printed

from lensaudit.cli import library
from lensaudit.cli import terminal as loading

MAIN = "from lensaudit.cli.main import main; main()"
IMPORTS = """
from lensaudit.cli import library
from lensaudit.cli.terminal import announce
announce([])
library.checkup.__name__
library.checkup.__name__
print("done")
"""


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
    assert said == "\r\x1b[2Kloading libraries …\r\x1b[2Kdone\r\n"


def test_a_module_that_commands_call_is_imported_when_it_is_used():
    code = (
        "import sys; from lensaudit.cli import library; at = 'lensaudit.doors.gate';"
        "before = at in sys.modules; library.doors_gate; print(before, at in sys.modules)"
    )
    assert printed(code) == "False True\n"
    with pytest.raises(AttributeError, match="nonsense"):
        _ = library.nonsense


@pytest.mark.parametrize("name", library.modules())
def test_every_module_that_commands_call_is_there_and_called(name):
    assert importlib.util.find_spec(library.modules()[name])
    called = f"library.{name}."
    assert any(called in path.read_text() for path in Path(library.__file__).parent.glob("*.py"))


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
    loading.announce(arguments)
    with loading.during("opening x"):
        pass
    said = capsys.readouterr().err
    assert ("opening x …" in said) == told
    assert told or said == ""


LOADS_NO_MODEL = (
    ["gym", "ls"],
    ["patch", "--source", "demo/npo", "--dry-run"],
    ["eval", "--model", "demo/npo", "--dry-run"],
)
ONE_AFTER_ANOTHER = """
import json, sys
from lensaudit.cli.main import main
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as end:
        print("ended:", end.code or 0, "transformer_lens" in sys.modules)
"""


def test_what_loads_no_model_does_not_import_TransformerLens():
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_ANOTHER, json.dumps(LOADS_NO_MODEL)],
        capture_output=True,
        text=True,
        check=True,
    )
    ended = [line for line in done.stdout.splitlines() if line.startswith("ended:")]
    assert ended == ["ended: 0 False"] * len(LOADS_NO_MODEL)
