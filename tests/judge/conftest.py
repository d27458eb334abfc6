"""Stubs and judges that the tests of this room share."""

import contextlib

import pytest
from judge_server import JudgeStub

from lensaudit.judge.opening import JudgeOptions, open_bench
from lensaudit.judge.verdict import JudgeRequest

PROMPT = (
    "Is it formal?\n{question}\n{answer}\nRespond with a number from 0 to 100. Just the number."
)


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    """Nothing of the machine's own settings reaches a test."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def stub_of():
    """A factory of running stubs."""
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(JudgeStub(**settings))


@pytest.fixture
def bench_of(tmp_path):
    """A factory of opened endpoints on a stub; one cache per test."""
    with contextlib.ExitStack() as stack:

        def make(stub, **options):
            settings = {"cache": tmp_path / "answers.sqlite", "retries": 2, "timeout_s": 2.0}
            wanted = JudgeOptions("stub-judge", stub.url, **(settings | options))
            return stack.enter_context(open_bench(wanted))

        yield make


@pytest.fixture
def answers():
    """A factory of requests with different answers."""

    def make(n: int) -> list[JudgeRequest]:
        return [
            JudgeRequest(at, f"Where is town {at}?", f"Town {at} is in the north.", PROMPT)
            for at in range(n)
        ]

    return make
