"""A Hub that does not answer costs two seconds, not twenty."""

import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from huggingface_hub import constants

from lensaudit import hub
from lensaudit.cli.main import run
from lensaudit.data.rows import hub_rows
from lensaudit.errors import InputError
from lensaudit.models.hub_files import fetch
from lensaudit.models.registry import load_registry, resolve

LIMIT_S = 2.0


@pytest.fixture(autouse=True)
def empty_caches(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub._answers.cache_clear()
    yield
    hub._answers.cache_clear()


@pytest.fixture(params=["refuses", "hangs", "is not found"])
def silent(request, monkeypatch):
    """A Hub that refuses, takes the call and says nothing, or has no address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        if request.param == "hangs":
            listener.listen()
        elif request.param == "is not found":
            # a resolver without a network may take half a minute
            def resolver(*names, **options):
                time.sleep(5)
                raise socket.gaierror(-3, "Temporary failure in name resolution")

            monkeypatch.setattr(socket, "getaddrinfo", resolver)
            address = "http://nowhere.invalid"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        yield


def test_names_and_rows_of_a_hub_that_does_not_answer_are_refused_within_two_seconds(
    silent, capsys
):
    started = time.monotonic()
    assert not hub.reachable()
    assert time.monotonic() - started < LIMIT_S
    with pytest.raises(InputError, match="no network, and not in the local cache; name a local"):
        fetch(resolve("some/model", load_registry()))
    with pytest.raises(InputError, match=r"some/set all: cannot be fetched \(no network\); name"):
        hub_rows("some/set", "all", "train", instead="name rows")
    for command in (
        "audit --source some/model",
        "patch --source some/model",
        "eval --model some/model",
        "patch --source demo/npo --full demo/full --retain demo/retain --data forget10",
        "audit --source demo/npo --data forget10",
    ):
        assert run(command.split()) == 2
        assert "cannot be fetched" in capsys.readouterr().err
    # whoever asks again does not wait again
    assert hub._answers.cache_info().misses == 1


def test_the_refusal_comes_before_anything_that_takes_seconds_is_imported():
    script = (
        "import sys; from lensaudit.cli.main import run;"
        "codes = [run(f'{c} --source some/model'.split()) for c in ('audit', 'patch', 'know')];"
        "codes.append(run('audit --source demo/npo --data forget10'.split()));"
        "print(codes, sorted({'torch', 'transformers', 'datasets'} & set(sys.modules)))"
    )
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | nowhere, capture_output=True, text=True
    )
    assert done.stdout == "[2, 2, 2, 2] []\n", done.stderr


class Answers(BaseHTTPRequestHandler):
    """No page is there; that is an answer."""

    def do_HEAD(self):
        self.send_response(404)
        self.end_headers()

    def log_message(self, *words):
        """Say nothing."""


def test_a_hub_that_answers_anything_is_reachable_and_offline_none_is(monkeypatch):
    server = HTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    assert hub.reachable()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert not hub.reachable()
    server.shutdown()
