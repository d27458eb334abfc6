import pytest

from lensaudit.errors import InputError
from lensaudit.judge.budget import Budget, Caps, Prices, expected_usage
from lensaudit.judge.calls import Call, Usage


def call(n_chars: int = 300, max_tokens: int = 10) -> Call:
    messages = [{"role": "user", "content": "x" * n_chars}]
    return Call("host", {"model": "m", "messages": messages, "max_tokens": max_tokens})


def judging(stub) -> int:
    return sum("Reply with" not in str(chat["messages"]) for chat in stub.chats)


def test_a_reservation_is_no_smaller_than_what_comes():
    # 300 / 3 + 12 for the template, and all tokens allowed
    assert expected_usage(call()) == Usage(112, 10)


def test_input_and_output_have_their_own_price():
    # 1000 * 2 / 1e6 + 100 * 8 / 1e6
    assert Prices(2.0, 8.0).cost(Usage(1000, 100)) == pytest.approx(0.0028)


def test_a_cap_stops_before_the_call_that_would_pass_it():
    budget = Budget(Caps(tokens=250))
    assert budget.reserve(call()) == ""
    assert budget.reserve(call()) == ""
    assert "--max-tokens-total 250" in budget.reserve(call())  # 3 * 122 = 366
    assert budget.spent.calls == 2


def test_what_was_counted_replaces_what_was_reserved():
    budget = Budget(Caps(cost=0.001), Prices(5.0, 5.0))  # 200 tokens
    assert budget.reserve(call()) == ""
    assert "--max-cost 0.001" in budget.reserve(call())
    budget.settle(call(), Usage(40, 1))
    assert budget.reserve(call()) == ""
    budget.settle(call(), None)
    spent = budget.spent
    assert (spent.tokens_in, spent.tokens_out, spent.n_estimated) == (152, 11, 1)
    assert spent.cost == pytest.approx(163 * 5 / 1e6)


def test_a_cap_on_cost_needs_prices():
    with pytest.raises(InputError, match="--max-cost needs --price-in"):
        Budget(Caps(cost=1.0))


@pytest.mark.parametrize("concurrency", [1, 4])
def test_exactly_as_many_calls_are_made_as_the_cap_allows(stub_of, bench_of, answers, concurrency):
    stub = stub_of()
    first = bench_of(stub)
    first.capability()
    n_probes = len(stub.chats)
    bench = bench_of(stub, caps=Caps(calls=3), concurrency=concurrency)
    verdicts = bench.judge().score(answers(8))
    assert len(stub.chats) == n_probes + 3
    assert sorted({v.status for v in verdicts}) == ["budget", "ok"]
    assert sum(v.status == "ok" for v in verdicts) == 3
    assert "not asked: --max-calls 3 reached" in {v.reason for v in verdicts}


def test_resuming_after_a_cap_pays_for_the_rest_alone(stub_of, bench_of, answers):
    stub = stub_of()
    bench_of(stub).capability()
    bench_of(stub, caps=Caps(calls=3)).judge().score(answers(8))
    verdicts = bench_of(stub).judge().score(answers(8))
    assert {v.status for v in verdicts} == {"ok"}
    assert judging(stub) == 8


def test_a_cap_of_zero_sends_nothing_at_all(stub_of, bench_of):
    stub = stub_of()
    with pytest.raises(InputError, match="no budget to probe"):
        bench_of(stub, caps=Caps(calls=0)).judge()
    assert stub.chats == []


def test_costs_are_those_the_server_counted(stub_of, bench_of, answers):
    stub = stub_of()
    bench_of(stub).capability()
    bench = bench_of(stub, prices=Prices(2.0, 8.0))
    bench.judge().score(answers(3))
    n_in = sum(
        len(str(chat["messages"][0]["content"])) // 4
        for chat in stub.chats
        if "Reply with" not in str(chat["messages"])
    )
    spent = bench.asker.budget.spent
    assert (spent.tokens_in, spent.tokens_out) == (n_in, 3)
    assert spent.cost == pytest.approx((n_in * 2 + 3 * 8) / 1e6)


def test_without_a_count_the_reservation_stays(stub_of, bench_of, answers):
    stub = stub_of()
    bench_of(stub).capability()
    stub.always = "no-usage"
    bench = bench_of(stub)
    bench.judge().score(answers(1))
    assert bench.asker.budget.spent.n_estimated == 1
    assert bench.asker.budget.spent.tokens_in > 50
