"""The judge against a server that nobody here wrote: `transformers serve`, on a tiny model.

It takes `response_format` and ignores it, sends no log-probabilities, and its model rambles: what
the probe says of it must be so.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from support import EMBEDDED

import lensaudit as la
from lensaudit.cli.main import run

TEMPLATE = "{% for one in messages %}{{ one['content'] }}\n{% endfor %}"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return reply.status == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Model and address of a server of its own, in a process of its own."""
    folder = tmp_path_factory.mktemp("served") / "chatty"
    shutil.copytree(EMBEDDED / "full", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    port = free_port()
    program = Path(sys.executable).with_name("transformers")
    call = [str(program), "serve", str(folder), "--port", str(port), "--device", "cpu"]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    log = folder.with_name("serve.log")
    with log.open("wb") as stream:
        server = subprocess.Popen(call, env=offline, stdout=stream, stderr=stream)
    try:
        for _ in range(120):
            if answers(f"http://127.0.0.1:{port}/health") or server.poll() is not None:
                break
            time.sleep(1)
        assert server.poll() is None, log.read_text()[-2000:]
        yield ["--judge", str(folder), "--base-url", f"http://127.0.0.1:{port}/v1"]
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.slow
def test_the_probe_believes_replies_and_not_the_status(served, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["judge", "probe", *served, "--cache", "answers.sqlite", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # it answers 200 to a schema that it ignores, and its chatter is no thinking
    assert found["format"] == "none"
    assert found["mode"] == "sample"
    assert found["n_alternatives"] == 0
    assert not found["thinks"]


@pytest.mark.slow
def test_who_has_what_is_read_by_samples_where_a_server_gives_no_log_probs(
    served, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    fields = ("idx", "question", "answer", "prefix", "entity", "group", "relation")
    rows = [one for one in la.forget_set("demo") if one.relation == "genre"]
    kept = [{name: getattr(one, name) for name in fields} for one in rows]
    (tmp_path / "rows.json").write_text(json.dumps(kept))
    _, model, _, url = served
    given = ["--source", url, "--api-model", model, "--data", "rows.json", "--placebos", "0"]
    given += ["--reader", "outputs", "--samples", "2", "--activations", "a", "-o", "out"]
    assert run(["know", *given]) == 0
    assert (
        "answers are sampled, as the server gives no log-probabilities of prompts"
        in capsys.readouterr().err
    )
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["p"] < 1e-3
    # without a model that never knew, and without placebos, nothing is found
    assert summary["finds"] is False
    assert "no never-trained model of the same kept rows" in summary["headline"]
