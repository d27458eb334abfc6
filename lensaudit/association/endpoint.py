"""A model behind an address: who has what, from log-probs of prompts or from sampled answers.

Both through the judge's client, with its keys, caps, retries and cache of answers.

Log-probs: a request holds a prompt, and the prompt with each value, by `echo` of OpenAI's
completions or by vLLM's `prompt_logprobs`. A value's is the sum over the tokens after those of the
prompt alone; where these do not begin the longer text, the difference of the two totals.

Samples: of n answers each is one vote, shared by the values that it names, or by all K where it
names none; S = log((votes + 1/K) / (n + 1)). The assignment test is exact whatever S is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from lensaudit.association.address import COMPLETIONS, Form, Served, forms_of, path_of_reader
from lensaudit.association.exchange import calls_of, samples_in, tokens_in
from lensaudit.association.replies import (
    NotItsReply,
    Scored,
    check_beginning,
    check_readings,
    check_samples,
    continues,
    counts_of,
)
from lensaudit.association.settings import ReaderName
from lensaudit.data.facts import Fact
from lensaudit.data.relations import Relation
from lensaudit.errors import InputError, TryAgainError
from lensaudit.judge.calls import PATH, Call, CallFailure, Reply, Spent
from lensaudit.judge.client import JudgeClient, expected_usage
from lensaudit.judge.transport import EndpointError
from lensaudit.text import digest

GREEDY_TOKENS, N_GREEDY = 8, 3
"""Of an answer that tells models apart, and how many such answers."""
_TOLD = ("id", "root", "parent", "owned_by", "max_model_len")
"""What a server says of a model that stays the same from day to day."""


def expected(
    served: Served, todo: Sequence[tuple[str, Relation]], shots: Sequence[Fact]
) -> Iterator[str]:
    """Requests, tokens and cost by way of reading, a line each; nothing is sent."""
    n = served.settings.samples
    for reading in served.readings:
        most = served.settings.answer_tokens
        forms = {path: forms_of(reading, path, n, most)[0] for path in (PATH, COMPLETIONS)}
        trial = replace(served, reading=reading, forms=forms)
        every = (one for reader, asked in todo for one in calls_of(trial, reader, asked, shots))
        calls = {one.key: one for one in every}
        used = sum(map(expected_usage, calls.values()), Spent())
        each = f" ({len(calls) * n} where it gives one answer each)" if reading == "samples" else ""
        cost = served.budget.cost(used)
        yield (
            f"  by {reading}: {len(calls)} requests{each}, at most {used.tokens_in} tokens sent "
            f"and {used.tokens_out} received" + (f", cost {cost:.2f}" if cost else "")
        )


def reached(
    served: Served,
    readers: Sequence[ReaderName],
    asked: Sequence[Relation],
    shots: Sequence[Fact],
) -> tuple[Served, list[ReaderName], list[str]]:
    """The model as it can be asked, the readers that remain, and remarks; some requests are sent.

    Raises:
        InputError: no such server or model, or one that can be read in no way.
        TryAgainError: the server does not answer.
    """
    with served.client() as client:
        assert client.transport is not None
        try:
            entry = _entry(served, client.transport.models())
            served = replace(served, model=str(entry["id"]))
            served, whys, ends = _shaped(client, served, readers, asked[0], shots)
            left: list[ReaderName] = [one for one in readers if path_of_reader(one) in served.forms]
            weights = _fingerprint(client, served, entry, left[0], asked)
        except EndpointError as error:
            raise InputError(str(error)) from error
    remarks = [
        f"{served.url}: which model is behind it cannot be checked; the server's own words are "
        "recorded"
    ]
    if served.reading != served.readings[0]:
        why = "; ".join(dict.fromkeys(whys))
        remarks.append(
            f"answers are sampled, as the server gives no log-probabilities of prompts ({why})"
        )
    if not ends:
        remarks.append("values share a token with their prompt: differences of totals are read")
    gone = [one for one in readers if one not in left]
    if gone:
        remarks.append(
            f"reader {', '.join(gone)} left out: {served.host} cannot be asked in this way"
        )
    return replace(served, weights=weights), left, remarks


def _entry(served: Served, listed: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What the server says of the model; a server may serve some that it does not list."""
    names = [str(one["id"]) for one in listed]
    if served.model:
        return next((one for one in listed if one["id"] == served.model), {"id": served.model})
    if len(names) != 1:
        some = f"{len(names)} models ({', '.join(names[:4])})" if names else "no models"
        todo = "name one by --api-model" + "; does the address end in /v1?" * (not names)
        raise InputError(f"--source {served.url}: its server lists {some}; {todo}")
    return listed[0]


def _shaped(
    client: JudgeClient,
    served: Served,
    readers: Sequence[ReaderName],
    asked: Relation,
    shots: Sequence[Fact],
) -> tuple[Served, list[str], bool]:
    """How the server lets itself be asked, why not better, and whether prompts end as tokens do."""
    whys: list[str] = []
    by_path = {path_of_reader(one): one for one in reversed(readers)}
    for reading in served.readings:
        forms: dict[str, Form] = {}
        ends = True
        for path, reader in by_path.items():
            settings = served.settings
            for form in forms_of(reading, path, settings.samples, settings.answer_tokens):
                trial = replace(served, reading=reading, forms={path: form})
                try:
                    own = _tried(client, trial, calls_of(trial, reader, asked, shots))
                except _Refused as error:
                    whys.append(str(error))
                    if error.answered:
                        break
                else:
                    forms[path], ends = form, ends and own
                    break
        if forms:
            return replace(served, reading=reading, forms=forms), whys, ends
    why = "; ".join(dict.fromkeys(whys))
    raise InputError(f"--source {served.url}: no way of reading the model behind it works; {why}")


class _Refused(Exception):
    """The server does not answer to a form, or its answers hold nothing; why."""

    def __init__(self, why: str, *, answered: bool = False):
        super().__init__(why)
        self.answered = answered
        """Does it take the form, so that no other is tried?"""


def _tried(client: JudgeClient, trial: Served, calls: Iterator[Call]) -> bool:
    """Does the first prompt end where a token of its texts ends? `_Refused` if nobody can say."""
    scores = trial.reading == "logprobs"
    texts: list[Scored] = []
    for call in islice(calls, 2 if scores and PATH in trial.forms else 1):
        try:
            outcome = client.send(call)
        except EndpointError as error:
            if not error.missing:
                raise
            raise _Refused(str(error)) from error
        if isinstance(outcome, CallFailure):
            raise _unusable(outcome)
        try:
            texts += tokens_in(call, outcome.raw) if scores else _checked(call, outcome)
        except NotItsReply as error:
            raise _Refused(str(error), answered=not scores) from error
    try:
        for one in texts[1:]:
            check_beginning(texts[0], one)
        check_readings([texts])
    except NotItsReply as error:
        raise _Refused(str(error)) from error
    return all(continues(one, texts[0]) for one in texts[1:])


def _checked(call: Call, reply: Reply) -> tuple[()]:
    """No tokens; refuses a first reply all of whose samples are empty, or thoughts without end."""
    samples = samples_in(call, reply)
    if all(one.void in ("empty", "thought") for one in samples):
        check_samples(counts_of([samples], [[False] * len(samples)]))
    return ()


def _unusable(outcome: CallFailure) -> Exception:
    """Why a way to ask is none, or why there is no asking at all."""
    if outcome.cause == "silent":
        return TryAgainError(outcome.reason)
    return InputError(outcome.reason) if outcome.status == "budget" else _Refused(outcome.reason)


def _fingerprint(
    client: JudgeClient,
    served: Served,
    entry: Mapping[str, Any],
    reader: str,
    asked: Sequence[Relation],
) -> str:
    """Hash of what the server tells of a model, and of its likeliest answers to some questions.

    Two models behind one name are told apart where these differ; a server whose likeliest answers
    change is asked anew.
    """
    path = path_of_reader(reader)
    limit = next(name for name in served.forms[path] if name.startswith("max_"))
    plain = replace(served, reading="samples", forms={path: {limit: GREEDY_TOKENS}})
    said: list[Any] = []
    for one in asked[:N_GREEDY]:
        call = next(calls_of(plain, reader, one, ()))
        outcome = client.send(replace(call, body={**call.body, "temperature": 0}))
        why = _unusable(outcome) if isinstance(outcome, CallFailure) else None
        if why and not isinstance(why, _Refused):
            raise why
        heard = samples_in(call, outcome) if isinstance(outcome, Reply) else ()
        said.append([one.text for one in heard] if isinstance(outcome, Reply) else None)
    return digest([served.url, served.model, [entry.get(name) for name in _TOLD], said])
