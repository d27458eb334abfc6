"""What a server is sent of a relation, and what it sends back: log-probs, or answers as votes."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lensaudit.association.address import ANY, COMPLETIONS, MALFORMED, Served, path_of_reader
from lensaudit.association.reading import (
    Chances,
    by_subject,
    joint,
    names_for,
    prompt_text,
)
from lensaudit.association.replies import (
    NotItsReply,
    Sample,
    Scored,
    check_chat,
    check_echo,
    check_readings,
    check_rest,
    check_samples,
    continues,
    counts_of,
    sample_of,
    void_line,
)
from lensaudit.data.facts import Fact
from lensaudit.data.matching import mentions
from lensaudit.data.relations import Relation
from lensaudit.errors import InputError, WorkError
from lensaudit.judge.calls import PATH, Call, CallFailure, Found, Reply, user
from lensaudit.judge.client import MOST_NATS, JudgeClient


def calls_of(served: Served, reader: str, asked: Relation, shots: Sequence[Fact]) -> Iterator[Call]:
    """Calls, one per prompt, template after template; in a chat one more per value."""
    path = path_of_reader(reader)
    fixed = {"model": served.model or ANY, **served.forms[path]}
    for template, name in product(asked.templates, names_for(asked, reader)):
        question, prefix = template.asked(name)
        text = prompt_text(question, prefix, shots if reader == "few_shot" else ())
        bodies: list[dict[str, Any]]
        if path == PATH and served.reading == "samples":
            bodies = [{"messages": [user(question)]}]
        elif path == PATH:
            between = joint(prefix) if prefix.strip() else ""
            begun = [prefix, *(f"{prefix}{between}{value}".strip() for value in asked.values)]
            bodies = [_begun(question, one) for one in begun]
        elif served.reading == "samples":
            bodies = [{"prompt": text}]
        else:
            bodies = [{"prompt": [text, *(f"{text}{joint(text)}{v}" for v in asked.values)]}]
        for body in bodies:
            call = Call(served.host, {**fixed, **body}, path=path, weights=served.weights)
            yield replace(call, check=_fault_of(call)) if served.reading == "logprobs" else call


def _begun(question: str, text: str) -> dict[str, Any]:
    """A chat in which the answer has begun: vLLM's fields."""
    answer = [{"role": "assistant", "content": text}] if text else []
    return {
        "messages": [user(question), *answer],
        "add_generation_prompt": not text,
        "continue_final_message": bool(text),
    }


@dataclass(frozen=True)
class Heard:
    """What a reader says of every value, and of samples how many hold no answer."""

    table: Chances
    counts: Mapping[str, int] = field(default_factory=dict)
    """By kind, as `counts_of`; empty where nothing was sampled."""
    why: str = ""
    """Why it is no reading, of facts to keep."""


class NotRead(InputError):
    """What a server sends of one relation is no reading."""


def heard_from(
    client: JudgeClient, served: Served, asked: Relation, reader: str, shots: Sequence[Fact]
) -> Heard:
    """What the model behind an address says of every value.

    Raises:
        InputError: the server refuses, and has answered nothing; or, as `NotRead`, what it sends
            is no reading.
        WorkError: it fails, or a cap is reached; answers so far are kept.
    """
    calls = list(calls_of(served, reader, asked, shots))
    counts: Mapping[str, int] = {}
    try:
        if served.reading == "samples":
            samples = _sampled(client, calls, served)
            named = [[any(_named(one.text, asked.values)) for one in row] for row in samples]
            counts = counts_of(samples, named)
            check_samples(counts)
            rows = [log_shares([one.text for one in row], asked.values) for row in samples]
        else:
            rows = list(_scored(client, calls, len(asked.values)))
    except NotItsReply as error:
        raise NotRead(f"{client.endpoint.host}, {asked.name}: {error}") from error
    return Heard(by_subject(rows, len(asked.templates)), counts)


def heard_line(counts: Iterable[Mapping[str, int]]) -> str:
    """How many samples of a run hold no answer, in words; empty where all do."""
    return void_line(sum(map(Counter, counts), Counter[str]()))


def _answered(client: JudgeClient, found: Found) -> dict[str, Reply]:
    """The replies by key, where nothing failed."""
    client.refuse_fatal()
    for one in found.values():
        if isinstance(one, CallFailure) and one.cause == "garbage":
            raise InputError(f"{client.endpoint.host}: {one.reason}")
        if isinstance(one, CallFailure):
            kept = f"answers so far are kept in {client.cache.path}: run again to go on"
            raise WorkError(f"{client.endpoint.host}: {one.reason}; {kept}")
    return {key: one for key, one in found.items() if isinstance(one, Reply)}


def _scored(
    client: JudgeClient, calls: Sequence[Call], n_values: int
) -> Iterator[Float[Tensor, " value"]]:
    """Log-probs of the values in nats, by prompt."""
    found = _answered(client, client.ask(calls))
    texts = [one for call in calls for one in tokens_in(call, found[call.key].raw)]
    by_prompt = [texts[at : at + n_values + 1] for at in range(0, len(texts), n_values + 1)]
    check_readings(by_prompt)
    for alone, *longer in by_prompt:
        yield torch.tensor([after(one, alone) for one in longer], dtype=torch.float64)


def after(joint: Scored, alone: Scored) -> float:
    """Log-prob of what follows a text, nats.

    >>> after([("a", 0.0), ("b", -1.0), ("c", -0.5)], [("a", 0.0), ("b", -1.25)])
    -0.5
    >>> after([("a", 0.0), ("bc", -2.0)], [("a", 0.0), ("b", -1.25)])  # no token begins there
    -0.75
    """
    begin = len(alone) if continues(joint, alone) else 0
    return sum(nats for _, nats in joint[begin:]) - sum(nats for _, nats in alone[begin:])


def _fault_of(call: Call) -> Callable[[Mapping[str, Any]], str]:
    """Why a reply does not hold the log-probs of what a call sends; empty: it does."""

    def fault(raw: Mapping[str, Any]) -> str:
        try:
            tokens_in(call, raw)
        except NotItsReply as error:
            return str(error)
        return ""

    return fault


def tokens_in(call: Call, raw: Mapping[str, Any]) -> list[Scored]:
    """The tokens of every text that a request holds, which they spell.

    Raises:
        NotItsReply: the reply does not say them.
    """
    try:
        if call.path == PATH:
            question, *answer = call.texts
            found, names = _listed(raw["prompt_logprobs"])
            check_chat(names, question, "".join(answer))
            return [found]
        choices = sorted(raw["choices"], key=lambda one: one["index"])
        read = _echoed if "echo" in call.body else _rest
        return [read(one, text) for one, text in zip(choices, call.texts, strict=True)]
    except NotItsReply:
        raise
    except MALFORMED as error:
        raise NotItsReply("the reply holds no log-probs of the prompt") from error


def _echoed(choice: Mapping[str, Any], text: str) -> Scored:
    if choice["text"] != text:
        raise NotItsReply("the reply repeats another text than the one sent")
    told = choice["logprobs"]
    found = _finite(zip(told["tokens"], [0.0, *told["token_logprobs"][1:]], strict=True))
    check_echo(told["tokens"], text)
    return found


def _rest(choice: Mapping[str, Any], text: str) -> Scored:
    found, names = _listed(choice["prompt_logprobs"])
    check_rest(names, text)
    return found


def _listed(rows: Sequence[Any]) -> tuple[Scored, list[str]]:
    """Log-probs from vLLM's list: the first entry is null, the others hold the prompt's tokens.

    And how the tokens after the first are spelled.
    """
    told = [one for row in rows[1:] for one in [row.items()]]
    pairs = [(token, own) for ((token, own),) in told]
    names = [own["decoded_token"] for _, own in pairs]
    return _finite([(None, 0.0), *((token, own["logprob"]) for token, own in pairs)]), names


def _finite(tokens: Iterable[tuple[Any, Any]]) -> Scored:
    found = [(token, float(nats)) for token, nats in tokens]
    if not all(math.isfinite(nats) for _, nats in found):
        raise ValueError("not finite")
    if (top := max(nats for _, nats in found)) > MOST_NATS:
        raise NotItsReply(f"a log-prob in the reply is {top:g}, and none can be above 0")
    return found


def _sampled(client: JudgeClient, calls: Sequence[Call], served: Served) -> list[list[Sample]]:
    """Sampled answers by prompt, as many as are wanted; a server may give one per request."""
    n = served.settings.samples

    def so_far(call: Call, found: Found) -> tuple[list[Sample], Call | None]:
        """Answers to a prompt, and what is asked next."""
        texts: list[Sample] = []
        more = call
        while len(texts) < n:
            outcome = found.get(more.key)
            if not isinstance(outcome, Reply):
                return texts, None if outcome else more
            texts += samples_in(call, outcome)
            more = replace(call, replicate=more.replicate + 1)
        return texts[:n], None

    def pending(found: Found) -> list[Call]:
        return [one for call in calls if (one := so_far(call, found)[1])]

    found = _answered(client, client.settle(pending))
    return [so_far(call, found)[0] for call in calls]


def samples_in(call: Call, reply: Reply) -> list[Sample]:
    """Answers in a reply."""
    prompt = call.texts[0] if call.path == COMPLETIONS else ""
    return [sample_of(one, prompt) for one in reply.raw["choices"]] or [Sample("", "empty")]


def log_shares(answers: Sequence[str], values: Sequence[str]) -> Float[Tensor, " value"]:
    """S of a prompt: log of the share of votes for each value, with one more vote for all alike.

    Args:
        answers: of the model; each is a vote, shared by the values it names as whole words, or by
            all values where it names none.
        values: that are compared.

    >>> log_shares(["She was born in Lima.", "Who knows?"], ["Lima", "Oslo"]).exp().tolist()
    [0.6666666666666666, 0.3333333333333333]
    """
    votes = torch.full((len(values),), 1 / len(values), dtype=torch.float64)
    for text, n in Counter(answers).items():
        named = _named(text, values)
        named = named if named.any() else ~named
        votes += n * named / named.sum()
    return (votes / (len(answers) + 1)).log()


def _named(text: str, values: Sequence[str]) -> Bool[Tensor, " value"]:
    """The values that an answer names."""
    return torch.tensor([mentions(text, one) for one in values])
