import pytest
from support.judge_server import Abilities, error

from lensaudit.errors import InputError
from lensaudit.judge.calls import Call, Spent
from lensaudit.judge.client import Budget, expected_usage
from lensaudit.judge.scalar import ScalarJudge
from lensaudit.judge.settings import JudgeAccess

NO_COMPLETION = "the server's reply is no chat completion"


def call(n_chars: int = 300, max_tokens: int = 10) -> Call:
    messages = [{"role": "user", "content": "x" * n_chars}]
    return Call("host", {"model": "m", "messages": messages, "max_tokens": max_tokens})


def test_a_reservation_is_no_smaller_than_what_comes():
    # 300 / 3 + 12 for the template, and all tokens allowed
    assert expected_usage(call()) == Spent(1, 112, 10)


def test_a_script_of_longer_characters_reserves_more():
    # 100 characters of 3 bytes; half of a surrogate pair counts as one
    texts = ("首" * 100, "я" * 150, "x" * 299 + "\ud800")
    asked = [Call("host", {"prompt": text, "max_tokens": 10}) for text in texts]
    assert [expected_usage(one) for one in asked] == [Spent(1, 112, 10)] * 3


def test_input_and_output_have_their_own_price():
    # 1000 * 2 / 1e6 + 100 * 8 / 1e6
    budget = Budget(JudgeAccess(price_in=2.0, price_out=8.0))
    assert budget.cost(Spent(1, 1000, 100)) == pytest.approx(0.0028)


def test_a_cap_stops_before_the_call_that_would_pass_it():
    budget = Budget(JudgeAccess(max_tokens_total=250))
    assert budget.reserve(call()) == ""
    assert budget.reserve(call()) == ""
    assert "--max-tokens-total 250" in budget.reserve(call())  # 3 * 122 = 366
    assert budget.spent.calls == 2


def test_what_was_counted_replaces_what_was_reserved():
    budget = Budget(JudgeAccess(max_cost=0.001, price_in=5.0, price_out=5.0))  # 200 tokens
    assert budget.reserve(call()) == ""
    assert "--max-cost 0.001" in budget.reserve(call())
    budget.settle(call(), Spent(1, 40, 1))
    assert budget.reserve(call()) == ""
    spent = budget.spent
    assert (spent.calls, spent.tokens_in, spent.tokens_out) == (2, 152, 11)
    assert spent.cost == pytest.approx(163 * 5 / 1e6)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_exactly_as_many_calls_are_made_as_the_cap_allows(stub_of, client_of, answers, concurrency):
    stub = stub_of()
    first = client_of(stub)
    first.capability()
    n_probes = len(stub.chats)
    client = client_of(stub, max_calls=3, concurrency=concurrency)
    verdicts = ScalarJudge(client, client.capability()).score(answers(8))
    assert len(stub.chats) == n_probes + 3
    assert sorted({v.status for v in verdicts}) == ["budget", "ok"]
    assert sum(v.status == "ok" for v in verdicts) == 3
    assert "not asked: --max-calls 3 reached" in {v.reason for v in verdicts}


def test_a_cap_of_zero_sends_nothing_at_all(stub_of, judge_of):
    stub = stub_of()
    with pytest.raises(InputError, match="no budget to probe"):
        judge_of(stub, max_calls=0)
    assert stub.chats == []


def test_costs_are_those_the_server_counted(stub_of, client_of, answers):
    stub = stub_of()
    client_of(stub).capability()
    client = client_of(stub, price_in=2.0, price_out=8.0)
    ScalarJudge(client, client.capability()).score(answers(3))
    n_in = sum(
        len(str(chat["messages"][0]["content"])) // 4
        for chat in stub.chats
        if "Reply with" not in str(chat["messages"])
    )
    spent = client.budget.spent
    assert (spent.tokens_in, spent.tokens_out) == (n_in, 3)
    assert spent.cost == pytest.approx((n_in * 2 + 3 * 8) / 1e6)


def test_without_a_count_the_reservation_stays(stub_of, client_of, answers):
    stub = stub_of()
    client_of(stub).capability()
    stub.always = "no-usage"
    client = client_of(stub)
    ScalarJudge(client, client.capability()).score(answers(1))
    assert client.budget.spent.n_estimated == 1
    assert client.budget.spent.tokens_in > 50


def test_a_failed_call_may_have_been_billed_so_its_reservation_stays(stub_of, client_of, answers):
    stub = stub_of()
    client_of(stub).capability()
    stub.always = "500"
    client = client_of(stub, retries=0)
    assert [v.status for v in ScalarJudge(client, client.capability()).score(answers(1))] == [
        "api_error"
    ]
    reserved, spent = expected_usage(Call("host", stub.chats[-1])), client.budget.spent
    assert (spent.tokens_in, spent.tokens_out) == (reserved.tokens_in, reserved.tokens_out)
    assert (spent.calls, spent.n_estimated) == (1, 1)


def test_failed_calls_use_up_a_cap(stub_of, client_of, judge_of, answers):
    stub = stub_of()
    client_of(stub).capability()
    stub.always = "500"
    n_probes = len(stub.chats)
    one = expected_usage(Call("host", stub.chats[0]))
    # each answer's prompt is longer than the probe's: room for fewer than four of them
    most = 4 * (one.tokens_in + one.tokens_out)
    verdicts = judge_of(stub, retries=0, max_tokens_total=most, concurrency=1).score(answers(4))
    assert {v.status for v in verdicts} == {"api_error", "budget"}
    assert len(stub.chats) - n_probes == sum(v.status == "api_error" for v in verdicts)


def test_a_call_that_the_server_refuses_costs_no_tokens(stub_of, client_of, answers):
    stub = stub_of()
    client_of(stub).capability()
    stub.always = "401"
    client = client_of(stub, retries=0, concurrency=1)
    with pytest.raises(InputError, match="401"):
        ScalarJudge(client, client.capability()).score(answers(2))
    spent = client.budget.spent
    assert (spent.calls, spent.tokens_in, spent.tokens_out) == (1, 0, 0)


def test_an_answer_of_no_use_is_asked_for_again_within_the_cap(stub_of, client_of, answers):
    stub = stub_of()
    client_of(stub).capability()
    stub.always, n_probes = "no-choices", len(stub.chats)
    for cap, n_asked in ((1, 1), (4, 2)):
        client = client_of(stub, retries=0, max_calls=cap)
        [verdict] = ScalarJudge(client, client.capability()).score(answers(1))
        assert (verdict.status, verdict.reason) == ("api_error", NO_COMPLETION)
        assert client.budget.spent.calls == len(stub.chats) - n_probes == n_asked
        n_probes = len(stub.chats)


def test_a_row_of_which_some_samples_were_not_asked_has_no_score(
    stub_of, client_of, judge_of, answers
):
    stub = stub_of(abilities=Abilities(logprobs=False))
    assert client_of(stub).capability().mode == "sample"
    [cut] = judge_of(stub, max_calls=3, concurrency=1).score(answers(1))
    assert (cut.score, cut.status) == (None, "budget")
    [whole] = judge_of(stub).score(answers(1))
    assert whole.status == "ok"


def test_requests_that_are_refused_for_what_they_hold_do_not_end_a_run(
    stub_of, client_of, judge_of, answers, monkeypatch
):
    stub = stub_of()
    client_of(stub).capability()
    chat = stub.chat
    bad = [f"Town {at} is" for at in range(16)]

    def filtered(body, key):
        told = str(body["messages"])
        if any(one in told for one in bad):
            return error(400, "content_filter", "the prompt was filtered")
        return chat(body, key)

    monkeypatch.setattr(stub, "chat", filtered)
    verdicts = judge_of(stub, retries=0, concurrency=1).score(answers(20))
    assert [v.status for v in verdicts] == ["api_error"] * 16 + ["ok"] * 4


def test_failures_between_answers_do_not_end_a_run(stub_of, client_of, judge_of, answers):
    stub = stub_of()
    client_of(stub).capability()
    n_probes = len(stub.chats)
    # never five in a row, but eight in all
    stub._queue.extend(["500"] * 4 + [""] + ["500"] * 4)
    verdicts = judge_of(stub, retries=0, concurrency=1).score(answers(10))
    assert [v.status for v in verdicts] == ["api_error"] * 4 + ["ok"] + ["api_error"] * 4 + ["ok"]
    assert len(stub.chats) == n_probes + 10
