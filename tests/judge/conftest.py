"""Stubs and judges that the tests of this room share."""

import contextlib

import pytest
from support.judge_server import JudgeStub

from lensaudit.judge.client import open_client
from lensaudit.judge.items import JudgeRequest
from lensaudit.judge.scalar import ScalarJudge
from lensaudit.judge.settings import JudgeAccess

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
def client_of(tmp_path, monkeypatch):
    """A factory of opened endpoints on a stub; one cache per test."""
    # between attempts openai waits half a second and longer
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    with contextlib.ExitStack() as stack:

        def make(stub, **options):
            settings = {"cache": tmp_path / "answers.sqlite", "retries": 2, "timeout_s": 2.0}
            settings |= options
            how = {name: settings.pop(name) for name in ("offline", "fresh") if name in settings}
            access = JudgeAccess(base_url=stub.url, **settings)
            return stack.enter_context(open_client(access, "stub-judge", **how))

        yield make


@pytest.fixture
def judge_of(client_of):
    """A factory of scalar judges on a stub."""

    def make(stub, **options):
        client = client_of(stub, **options)
        return ScalarJudge(client, client.capability())

    return make


@pytest.fixture
def answers():
    """A factory of requests with different answers."""

    def make(n: int) -> list[JudgeRequest]:
        return [
            JudgeRequest(at, f"Where is town {at}?", f"Town {at} is in the north.", PROMPT)
            for at in range(n)
        ]

    return make
