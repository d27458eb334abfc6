"""Servers that take their time, or never end: an attempt has an end, and an answer a size."""

import gzip
import json
import socket
import threading
import time

import pytest

from lensaudit.judge import transport
from lensaudit.judge.calls import chat_call, user
from lensaudit.judge.endpoint import Endpoint
from lensaudit.judge.transport import Transport

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
GOOD = json.dumps(
    {"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": "100"}}]}
).encode()
LENGTH = f"content-length: {len(GOOD)}\r\n\r\n".encode()
BOMB = gzip.compress(bytes(64 * 2**20))


def slowly(send, content, pause):
    for at in range(len(content)):
        send(content[at : at + 1])
        time.sleep(pause)


def endless(send):
    send(HEAD + b"transfer-encoding: chunked\r\n\r\n")
    while True:
        send(b"10000\r\n" + bytes(2**16) + b"\r\n")


SLOW = {
    "says nothing": lambda send: time.sleep(3),
    "a head by the byte": lambda send: slowly(send, HEAD + LENGTH + GOOD, 0.05),
    "a body by the byte": lambda send: (send(HEAD + LENGTH), slowly(send, GOOD, 0.05)),
    "heads without end": lambda send: [send(HEAD), slowly(send, b"x-a: b\r\n" * 99, 0.05)],
    "interim answers": lambda send: [
        (send(b"HTTP/1.1 100 Continue\r\n\r\n"), time.sleep(0.05)) for _ in range(99)
    ],
    "a body that stops": lambda send: (send(HEAD + LENGTH + GOOD[:9]), time.sleep(3)),
}
LARGE = {
    "a body without end": endless,
    "a length of terabytes": lambda send: (
        send(HEAD + b"content-length: 9999999999999\r\n\r\n"),
        [send(bytes(2**20)) for _ in range(64)],
    ),
    "a gzip bomb": lambda send: send(
        HEAD + f"content-encoding: gzip\r\ncontent-length: {len(BOMB)}\r\n\r\n".encode() + BOMB
    ),
}


@pytest.fixture
def server_of():
    """A factory of addresses whose every connection is answered by a function of `send`."""
    listening = []

    def make(answer):
        def one(connection):
            with connection:
                try:
                    connection.recv(2**16)
                    answer(connection.sendall)
                except OSError:
                    pass  # the client has gone

        def accept(server):
            while True:
                try:
                    connection = server.accept()[0]
                except OSError:
                    return
                threading.Thread(target=one, args=(connection,), daemon=True).start()

        server = socket.create_server(("127.0.0.1", 0))
        listening.append(server)
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        return f"http://127.0.0.1:{server.getsockname()[1]}/v1"

    yield make
    for server in listening:
        server.close()


@pytest.fixture
def asked(server_of):
    """What comes of one call to such a server, and after how many seconds."""

    def ask(answer, timeout_s):
        endpoint = Endpoint(server_of(answer), "m")
        client = Transport(endpoint, timeout_s=timeout_s, retries=0)
        begun = time.monotonic()
        found = client.chat(chat_call(endpoint, (user("100?"),), {}))
        return found, time.monotonic() - begun

    return ask


@pytest.mark.parametrize("name", SLOW)
def test_an_attempt_ends_in_time_however_the_server_dawdles(asked, name):
    found, seconds = asked(SLOW[name], 0.25)
    assert found.cause == "silent"
    assert "did not answer in time" in found.reason
    # nothing is longer than the attempt and what it takes to say so
    assert 0.25 <= seconds < 1.25


@pytest.mark.parametrize("name", LARGE)
def test_an_answer_without_end_is_left(asked, monkeypatch, name):
    monkeypatch.setattr(transport, "MOST_BYTES", 2**20)
    found, seconds = asked(LARGE[name], 20.0)
    assert found.cause == "garbage"
    assert "sends more than 1 MB in one answer; nothing of it is kept" in found.reason
    assert seconds < 10


def test_a_slow_answer_within_the_time_is_taken(asked):
    found, _ = asked(lambda send: (send(HEAD + LENGTH), slowly(send, GOOD, 0.002)), 5.0)
    assert found.text == "100"
