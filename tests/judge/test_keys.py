import json
import sqlite3

import pytest

from lensaudit.cli.main import run
from lensaudit.errors import InputError
from lensaudit.judge.endpoint import NO_KEY, check_url, is_local, open_endpoint, read_key

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


def test_a_variable_that_is_not_set_is_named():
    with pytest.raises(InputError, match="MY_KEY is not set"):
        open_endpoint("m", LOCAL, key_env="MY_KEY")


@pytest.mark.parametrize(
    "url",
    ["ftp://x/v1", "localhost:8000/v1", "https://", "https://x/v1?key=1", "https://x:y/v1", "//x"],
)
def test_bad_addresses_are_refused(url):
    with pytest.raises(InputError, match="--base-url"):
        check_url(url)


def test_an_address_with_a_password_is_refused_and_not_shown():
    with pytest.raises(InputError) as error:
        check_url(f"https://me:{KEY}@x/v1")
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
    command = [
        "judge",
        *kind,
        str(log),
        "--model",
        "stub-judge",
        "--base-url",
        stub.url,
        "--key-file",
        str(key_file),
        "--out",
        str(out),
        "--retries",
        "0",
    ]
    assert run(["judge", "probe", *command[-10:-4], "--key-file", str(key_file)]) == 0
    stub.always = "" if fault == "ok" else fault
    code = run(command)
    assert (code == 0) == (fault in ("ok", "cut", "echo"))
    said = capfd.readouterr()
    key_file.unlink()
    assert KEY not in said.out + said.err
    content = everything_in(tmp_path)
    assert KEY.encode() not in content
    assert b"stub-judge" in content
    assert (b"[key]" in content) == (fault in ("401", "echo"))  # the server repeats it


def test_the_key_is_really_sent(stub_of, bench_of, key_file, answers):
    # the pair of the test above: the stub refuses any other key
    stub = stub_of(key=KEY)
    with pytest.raises(InputError, match="401"):
        bench_of(stub).judge()
    assert bench_of(stub, key_file=key_file).judge().score(answers(1))[0].status == "ok"
