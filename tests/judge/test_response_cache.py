import math
import sqlite3
import subprocess
import sys

import pytest

from lensaudit.errors import InputError, TryAgainError
from lensaudit.files import write_jsonl
from lensaudit.judge.calls import Call, Reply, ResponseCache, checked
from lensaudit.judge.endpoint import Endpoint


def call(text: str = "x", **fields) -> Call:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    return Call("host", body | fields)


def reply(text: str) -> Reply:
    return Reply({"choices": [{"message": {"content": text}}]})


def test_what_was_kept_is_found_again_after_reopening(tmp_path):
    path = tmp_path / "a.sqlite"
    with ResponseCache(path) as cache:
        cache.put(call(), reply("7"))
    with ResponseCache(path) as cache:
        assert cache.get(call()) == reply("7")
        assert cache.get(call("y")) is None


def test_a_cache_that_may_only_be_read_is_read_where_nothing_is_kept(tmp_path, monkeypatch):
    path = tmp_path / "a.sqlite"
    with ResponseCache(path) as cache:
        cache.put(call(), reply("7"))
    before = {one: one.read_bytes() for one in tmp_path.iterdir()}
    monkeypatch.setattr("os.access", lambda place, mode: place != tmp_path)
    with ResponseCache(path, keeps=False) as cache:
        assert cache.get(call()) == reply("7")
        with pytest.raises(InputError, match="not usable as a cache of answers"):
            cache.put(call("y"), reply("8"))
    assert {one: one.read_bytes() for one in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "other",
    [
        call("y"),
        call(model="n"),
        call(temperature=1),
        call(top_logprobs=5),
        call(seed=1),
        Call("elsewhere", call().body),
        Call("host", call().body, 1),
    ],
)
def test_everything_an_answer_depends_on_is_in_its_key(other):
    assert other.key != call().key


def test_the_order_of_fields_is_not_in_the_key():
    body = dict(reversed(call().body.items()))
    assert Call("host", body).key == call().key


def test_answers_older_than_asked_for_do_not_count(tmp_path):
    with ResponseCache(tmp_path / "a.sqlite") as cache:
        cache.put(call(), reply("7"))
        assert cache.get(call(), since=9e9) is None
        assert cache.get(call(), since=1.0) == reply("7")


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from lensaudit.judge.calls import ResponseCache
from test_response_cache import call, reply

with ResponseCache(Path(sys.argv[1])) as cache:
    for n in range(40):
        cache.put(call(f"{sys.argv[2]} {n}"), reply(str(n)))
"""


def test_two_processes_share_a_cache(tmp_path):
    path, here = tmp_path / "a.sqlite", str(__import__("pathlib").Path(__file__).parent)
    crew = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name, here]) for name in "ab"
    ]
    assert [process.wait() for process in crew] == [0, 0]
    with ResponseCache(path) as cache:
        for name in "ab":
            assert [cache.get(call(f"{name} {n}")) for n in range(40)] == [
                reply(str(n)) for n in range(40)
            ]


def test_a_file_that_is_no_cache_is_one_line(tmp_path):
    path = tmp_path / "a.sqlite"
    path.write_text("not a data base, but long enough to be taken for one\n" * 50)
    with pytest.raises(InputError, match="not usable as a cache of answers"):
        ResponseCache(path)
    with pytest.raises(InputError):
        ResponseCache(tmp_path)


def test_a_locked_cache_is_a_passing_condition(tmp_path, monkeypatch):
    monkeypatch.setattr("lensaudit.judge.calls._BUSY_MS", 50)
    path = tmp_path / "a.sqlite"
    with ResponseCache(path):
        pass
    other = sqlite3.connect(path)
    other.execute("BEGIN EXCLUSIVE")
    with ResponseCache(path) as cache, pytest.raises(TryAgainError, match="locked"):
        cache.put(call(), reply("7"))
    other.close()


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        "text",
        {},
        {"choices": [{}]},
        {"choices": [{"message": None}]},
        {"choices": [{"message": {"content": [{"type": "image_url"}]}}]},
        {"choices": [{"message": {"content": [7]}}]},
        {"error": {"message": "no"}},
    ],
)
def test_replies_in_another_shape_are_failures(raw):
    found = checked(raw, call(), Endpoint("http://127.0.0.1/v1", "m"))
    assert getattr(found, "status", None) == "api_error"


def test_numbers_that_are_no_json_can_be_kept(tmp_path):
    others = [{"token": "7", "logprob": -2}, {"token": "8", "logprob": -math.inf}]
    step = {"token": "7", "logprob": -0.1, "top_logprobs": others}
    raw = {"choices": [{"message": {"content": "7"}, "logprobs": {"content": [step]}}]}
    found = checked(raw, call(logprobs=True), Endpoint("http://127.0.0.1/v1", "m"))
    assert isinstance(found, Reply)
    assert found.first_token == {"7": -0.1}  # which is listed twice
    write_jsonl(tmp_path / "raw.jsonl", [found.raw])


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {},
        {"content": None},
        {"content": []},
        {"content": ["x"]},
        [],
        {"content": [{"token": 7, "logprob": -1}]},
        {"content": [{"token": "7", "logprob": None}]},
    ],
)
def test_missing_probabilities_are_told_apart_from_low_ones(logprobs):
    raw = {"choices": [{"message": {"content": "7"}, "logprobs": logprobs}]}
    found = checked(raw, call(logprobs=True), Endpoint("http://127.0.0.1/v1", "m"))
    assert getattr(found, "status", None) == "no_logprobs"
    assert isinstance(checked(raw, call(), Endpoint("http://127.0.0.1/v1", "m")), Reply)
