import base64
import html
import json
import re
import sqlite3
import ssl
import time
from dataclasses import asdict

import pytest
from support.judge_server import Answer, error

from lensaudit.cli.main import run
from lensaudit.errors import InputError
from lensaudit.judge.calls import Call, ResponseCache, chat_call, user
from lensaudit.judge.client import KIND, Capability
from lensaudit.judge.endpoint import NO_KEY, Endpoint, check_url, is_local, open_endpoint, read_key
from lensaudit.judge.transport import Transport

KEY = "sk-secret-0123456789abcdef"
LOCAL = "http://127.0.0.1:1/v1"


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "key.txt"
    path.write_text(KEY + "\n")
    path.chmod(0o600)
    return path


def test_a_key_comes_from_its_file(key_file):
    assert open_endpoint("m", key_file=key_file).key == KEY


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_read_is_refused(key_file, mode):
    key_file.chmod(mode)
    with pytest.raises(InputError, match=r"others can read this key.*chmod 600") as error:
        read_key(key_file)
    assert KEY not in str(error.value)


@pytest.mark.parametrize(
    "content", ["", "  \n", "two words", "zwei\nZeilen", "schlüssel", "x" * 9000]
)
def test_a_file_without_a_key_is_refused_and_not_shown(tmp_path, content):
    path = tmp_path / "key.txt"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(InputError) as error:
        read_key(path)
    assert not content.strip() or content.strip() not in str(error.value)


def test_a_missing_key_file_is_one_line(tmp_path):
    with pytest.raises(InputError, match="the key cannot be read"):
        read_key(tmp_path / "none.txt")
    with pytest.raises(InputError, match="the key cannot be read"):
        read_key(tmp_path)


def test_openais_key_goes_to_openai_alone(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert open_endpoint("m").key == KEY
    assert open_endpoint("m", LOCAL).key == NO_KEY
    with pytest.raises(InputError, match=r"no key for llm\.example\.org; name a variable"):
        open_endpoint("m", "https://llm.example.org/v1")
    assert open_endpoint("m", "https://llm.example.org/v1", key_env="OPENAI_API_KEY").key == KEY
    monkeypatch.setenv("OPENAI_BASE_URL", "https://llm.example.org/v1")
    assert open_endpoint("m").key == KEY


def test_a_key_is_not_sent_unencrypted(monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)
    with pytest.raises(InputError, match="unencrypted"):
        open_endpoint("m", "http://llm.example.org/v1", key_env="MY_KEY")
    assert open_endpoint("m", "http://10.0.0.5:8000/v1", key_env="MY_KEY").key == KEY


def test_providers_behind_one_gateway_are_told_apart():
    urls = ["https://gw/v1", "https://gw/one/v1", "https://gw/two/v1", "https://gw:8/v1"]
    found = [Endpoint(url, "m") for url in urls]
    assert [one.host for one in found] == ["gw", "gw/one/v1", "gw/two/v1", "gw:8"]
    assert len({chat_call(one, (user("Q?"),), {}).key for one in found}) == 4
    # answers that were paid for are found again
    kept = Call("gw", {"model": "m", "messages": [user("Q?")]})
    assert chat_call(found[0], (user("Q?"),), {}).key == kept.key


@pytest.mark.parametrize(
    "url",
    ["ftp://x/v1", "localhost:8000/v1", "https://", "https://x/v1?key=1", "https://x:y/v1", "//x"],
)
def test_bad_addresses_are_refused(url):
    with pytest.raises(InputError, match="--base-url"):
        check_url(url)


@pytest.mark.parametrize("end", ["", "#x", "/x", "?x", "[x"])
def test_an_address_with_a_password_is_refused_and_not_shown(end):
    with pytest.raises(InputError, match="user name or password") as error:
        check_url(f"https://me:{KEY}{end}@x/v1")
    assert KEY not in str(error.value)


def test_a_port_that_is_none_is_not_shown():
    with pytest.raises(InputError, match=r"wanted http\(s\)") as error:
        check_url(f"https://me:{KEY}/v1")
    assert KEY not in str(error.value)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("[::1]", True),
        ("192.168.1.4", True),
        ("api.openai.com", False),
        ("8.8.8.8", False),
        ("localhost.example.org", False),
        ("127.0.0.1.example.org", False),
    ],
)
def test_local_addresses_are_told_by_number_not_by_look(host, local):
    assert is_local(f"http://{host}:8000/v1") is local


def test_endpoints_do_not_show_their_key(key_file):
    endpoint = open_endpoint("m", key_file=key_file)
    assert KEY not in repr(endpoint)
    assert endpoint.redacted(f"no {KEY} or Bearer abcdefghij or sk-other-1234567") == (
        "no [key] or [key] or [key]"
    )


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "rows.jsonl"
    row = {"idx": 0, "question": "Q?", "answer": "A.", "generation": "I don't know."}
    path.write_text(json.dumps(row) + "\n")
    return path


def everything_in(folder) -> bytes:
    parts = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    for base in folder.rglob("*.sqlite"):
        rows = sqlite3.connect(base).execute("SELECT * FROM judgement, fact").fetchall()
        parts.append(repr(rows).encode())
    return b"\n".join(parts)


@pytest.mark.parametrize("fault", ["ok", "401", "cut", "500", "echo"])
@pytest.mark.parametrize("kind", [["run"], ["batch", "run", "--wait", "--poll", "0"]])
def test_no_file_and_no_message_ever_holds_the_key(
    stub_of, key_file, log, tmp_path, monkeypatch, capfd, fault, kind
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_LOG", "debug")
    stub = stub_of(key=KEY)
    out = tmp_path / "out"
    asked = ["--judge", "stub-judge", "--base-url", stub.url, "--key-file", str(key_file)]
    command = ["judge", *kind, str(log), *asked, "--out", str(out), "--set", "retries=0"]
    assert run(["judge", "probe", *asked]) == 0
    stub.always = "" if fault == "ok" else fault
    code = run(command)
    assert (code == 0) == (fault in ("ok", "echo"))
    said = capfd.readouterr()
    key_file.unlink()
    assert KEY not in said.out + said.err
    content = everything_in(tmp_path)
    assert KEY.encode() not in content
    assert b"stub-judge" in content
    assert (b"[key]" in content) == (fault in ("401", "echo"))  # the server repeats it


def test_the_key_is_really_sent(stub_of, judge_of, key_file, answers):
    # the pair of the test above: the stub refuses any other key
    stub = stub_of(key=KEY)
    with pytest.raises(InputError, match="401"):
        judge_of(stub)
    assert judge_of(stub, key_file=key_file).score(answers(1))[0].status == "ok"


def test_headers_of_the_environment_go_nowhere(stub_of, judge_of, key_file, answers, monkeypatch):
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "Authorization: Bearer sk-of-another-server")
    # the stub refuses any other key
    judge = judge_of(stub_of(key=KEY), key_file=key_file)
    assert judge.score(answers(1))[0].status == "ok"


KEYS = {
    "plain": "word-0123456789",
    "quotes": 'quo"te\'d"-0123',
    "backslashes": "back\\slash\\\\-\\012",
    "markup": "a/b+<c>&%22=\\u0041",
}


def completion(text, **more):
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop", **more}
    return {"id": "x", "object": "chat.completion", "model": "stub-judge", "choices": [choice]}


def token(text):
    return {"logprobs": {"content": [{"token": text, "logprob": -0.1, "top_logprobs": []}]}}


CHATS = {
    "401": lambda key: error(401, "invalid_api_key", f"bad key {key}"),
    "400": lambda key: error(400, "bad", f"bad key {key}"),
    "400 in JSON": lambda key: error(400, "bad", json.dumps({"error": json.dumps(key)})),
    "500": lambda key: error(500, "server_error", f"bad key {key}"),
    "502 in HTML": lambda key: Answer(502, f"<p>{html.escape(key)}</p>".encode()),
    "error in 200": lambda key: Answer.of({"error": {"message": key}}),
    "text": lambda key: Answer.of(completion(f"Your key is {key}.")),
    "disguises": lambda key: Answer.of(completion("; ".join(sorted(disguises(key))))),
    "refusal": lambda key: Answer.of(
        completion("", message={"role": "assistant", "content": "", "refusal": key})
    ),
    "name of a field": lambda key: Answer.of({**completion("100"), key: 1}),
    "model": lambda key: Answer.of({**completion("100"), "model": key}),
    "token": lambda key: Answer.of(completion("100", **token(key))),
}
BATCHES = ("problem", "id", "state", "output", "error line", "torn line")
"""Where a batch says it."""


def spellings(key):
    once = json.dumps(key)[1:-1]
    plain = {key, once, json.dumps(once)[1:-1], html.escape(key), repr(key)[1:-1]}
    return plain | disguises(key)


def disguises(key):
    """What a server that knows it may make of a key."""
    coded = {code(key.encode()).decode() for code in (base64.b64encode, base64.urlsafe_b64encode)}
    spaced = {sign.join(key) for sign in (" ", "\n", "\u200b", "\xa0 ")}
    wrapped = "\n".join(re.findall(".{1,8}", base64.b64encode(key.encode()).decode()))
    turned = {key[::-1], " ".join(key[::-1]), key.encode().hex(), key.encode().hex().upper()}
    return coded | spaced | turned | {wrapped}


def say_in_batches(filing, place, key):
    """Make a stub's batches repeat the key."""
    describe, result, keep = filing._entry, filing._result, filing._keep
    if place == "problem":
        problem = {"object": "list", "data": [{"code": "x", "message": f"bad key {key}"}]}
        filing.end = "failed"
        filing._entry = lambda batch: {**describe(batch), "errors": problem}
    elif place == "id":
        filing._entry = lambda batch: {**describe(batch), "id": key}
    elif place == "state":
        filing._entry = lambda batch: {**describe(batch), "status": key}
    elif place == "output":
        filing.answer = lambda body: Answer.of(completion(f"Your key is {key}."))
    elif place == "error line":
        failed = {"status_code": 400, "body": {"error": {"message": f"bad key {key}"}}}
        filing._result = lambda line: {**result(line), "response": failed}
    else:

        def torn(rows):
            file_id = keep(rows)
            filing.files[file_id] += json.dumps({"key": key}).encode()[:-1] + b"\n"
            return file_id

        filing._keep = torn


PLACES = list(enumerate([*CHATS, *BATCHES]))


@pytest.mark.parametrize(
    ("place", "name"),
    [
        # every place and every key; the other pairs where there is time
        pytest.param(place, name, marks=[] if (at + n) % len(KEYS) == 0 else [pytest.mark.slow])
        for at, place in PLACES
        for n, name in enumerate(KEYS)
    ],
)
def test_a_server_that_repeats_the_key_puts_it_nowhere(
    stub_of, log, tmp_path, monkeypatch, capfd, name, place
):
    # 72 cases: 4 keys in 18 places where a server's text enters
    key, out = KEYS[name], tmp_path / "out"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_KEY", key)
    stub = stub_of(key=key)
    cache = tmp_path / "answers.sqlite"
    with ResponseCache(cache) as answers:
        host = stub.url.split("/")[2]
        answers.keep_fact(KIND, host, "stub-judge", asdict(Capability()))
    if place in CHATS:
        stub.chat = lambda body, sent: CHATS[place](sent)
        kind = ["run", "--by", "idk" if place == "token" else "rubric"]
    else:
        say_in_batches(stub.filing, place, key)
        kind = ["batch", "run", "--wait", "--poll", "0"]
    command = ["judge", *kind, str(log), "--judge", "stub-judge", "--base-url", stub.url]
    command += [
        "--key-env",
        "MY_KEY",
        "--out",
        str(out),
        "--set",
        "retries=0",
        "--cache",
        str(cache),
    ]
    code = run(command)
    assert (code == 0) == (place == "torn line")
    said = capfd.readouterr()
    content = everything_in(tmp_path).decode("latin-1") + said.out + said.err
    assert not [one for one in spellings(key) if one in content]
    assert "[key]" in content
    assert "Traceback" not in content


def test_a_text_that_nearly_holds_the_key_is_read_at_once():
    # each character had two ways to be read: of 25 right ones before a wrong one 2^25
    begun = time.monotonic()
    assert Endpoint(LOCAL, "m", KEY).redacted("k" + KEY[1:-1] + "? " + KEY[:-1] + "?")
    assert time.monotonic() - begun < 1


@pytest.mark.parametrize("key", KEYS.values())
def test_a_key_is_found_in_every_spelling_and_other_text_stays(key):
    endpoint = Endpoint(LOCAL, "m", key)
    for one in spellings(key):
        assert endpoint.redacted(f"a {one} b") == "a [key] b"
    assert endpoint.redacted(key[:-1]) == key[:-1]
    for before, after in (("x", ""), (":", "\n"), ("Bearer ", ", or so")):
        # what goes with it into one text in base64 moves every digit
        told = base64.b64encode((before + key + after).encode()).decode()
        kept = endpoint.redacted(told)
        assert "[key]" in kept
        assert len(kept) <= 5 + 4 * (len(before) + len(after) + 3)
    value = {"a": [key, 1, None, {"n " + key: True}], "b": "fine"}
    assert endpoint.cleared(value) == {"a": ["[key]", 1, None, {"n [key]": True}], "b": "fine"}


@pytest.mark.parametrize(
    ("address", "reads"),
    [
        ("http://127.0.0.1:9/v1", False),
        ("https://127.0.0.1:9/v1", True),
        # a proxy may stand between
        ("http://judge.example/v1", True),
        ("https://judge.example/v1", True),
    ],
)
def test_certificates_are_read_wherever_they_could_be_wanted(address, reads, monkeypatch):
    read, load = [], ssl.SSLContext.load_verify_locations

    def loads(self, *places, **more):
        read.append(self.verify_mode)
        load(self, *places, **more)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", loads)
    transport = Transport(Endpoint(address, "m", "k"), timeout_s=1.0, retries=0)
    pool = transport._client._client._transport._pool
    transport.close()
    assert bool(read) is reads
    assert (pool._ssl_context.verify_mode is ssl.CERT_REQUIRED) is reads
