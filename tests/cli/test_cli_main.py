import os
import signal
import subprocess
import sys

import pytest

from lensaudit.cli import main as main_module
from lensaudit.cli.main import complain, run


def test_at_most_three_lines_and_no_terminal_escapes(capsys):
    assert complain("a\x1b[31m\nb\nc\nd", 4) == 4
    assert capsys.readouterr().err == "lensaudit: a[31m\nb\nc\n"


def test_an_interruption_is_130(monkeypatch, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("lensaudit.auditing.patch.patch_into", interrupted)
    assert run(["patch", "--source", "demo/npo"]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["more", "--help"])
def test_a_closed_pipe_ends_quietly_and_as_a_pipes_writer(words):
    code = f"from lensaudit.cli.main import main; main(['{words}'])"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_a_command_runs_where_nobody_can_read_what_it_says():
    code = "from lensaudit.cli.main import run; raise SystemExit(run(['more']))"
    words = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c", code]
    done = subprocess.run(words, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("name", "value"),
    [("HF_ENDPOINT", "https://me:secret#x@hub/v1"), ("HF_HUB_ETAG_TIMEOUT", "soon")],
)
def test_a_variable_that_the_hubs_client_cannot_read_is_one_line(name, value):
    code = "from lensaudit.cli.main import main; main(['more'])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {name: value}
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"lensaudit: {name}: huggingface_hub cannot read it")
    assert "secret" not in line


def test_a_name_that_the_terminal_cannot_write_is_escaped(tmp_path):
    code = (
        "from lensaudit.screen.tables import console\n"
        "from lensaudit.cli import main as at\n"
        "at.run = lambda arguments: console().print('\\u0142') or print('\\u0142') or 0\n"
        "at.main([])"
    )
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert (done.returncode, done.stdout.split()) == (0, [b"\\u0142"] * 2)


def test_a_name_that_the_file_system_cannot_write_is_one_line(monkeypatch, capsys):
    def fails(**options):
        "\u0142".encode("ascii")

    monkeypatch.setattr(main_module.cli, "main", fails)
    assert main_module.run([]) == 2
    said = capsys.readouterr().err
    assert said == "lensaudit: '\u0142': the file system's encoding lacks a character of it\n"


def test_a_deleted_working_folder_is_one_line(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    words = ["sh", "-c", f'rmdir "{gone}"; exec "$@"', "sh", sys.executable, "-P", "-c"]
    code = "from lensaudit.cli.main import main; main()"
    done = subprocess.run([*words, code, "models"], capture_output=True, text=True, cwd=gone)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "lensaudit: the working folder was deleted; change into one that is there"
    )
