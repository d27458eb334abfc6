"""A model behind an address: who has what, from log-probs of prompts or from sampled answers.

Both through the judge's client, with its keys, caps, retries and cache of answers.

Log-probs: a request holds a prompt, and the prompt with each value, by `echo` of OpenAI's
completions or by vLLM's `prompt_logprobs`. A value's is the sum over the tokens after those of the
prompt alone; where these do not begin the longer text, the difference of the two totals.

Samples: of n answers each is one vote, shared by the values that it names, or by all K where it
names none; S = log((votes + 1/K) / (n + 1)). The assignment test is exact whatever S is.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Any
from urllib.parse import urlsplit

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lensaudit.association.reading import (
    CHAT,
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
    check_beginning,
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
from lensaudit.association.settings import KnowSettings, ReaderName, Reading
from lensaudit.data.facts import Fact
from lensaudit.data.matching import mentions
from lensaudit.data.relations import Relation
from lensaudit.errors import InputError, TryAgainError, WorkError
from lensaudit.files import digest
from lensaudit.judge.calls import PATH, Call, CallFailure, Found, Reply, Spent, user
from lensaudit.judge.client import MOST_NATS, Budget, JudgeClient, expected_usage, open_client
from lensaudit.judge.endpoint import open_endpoint
from lensaudit.judge.settings import EndpointAccess, JudgeAccess
from lensaudit.judge.transport import EndpointError
from lensaudit.models.registry import ModelSpec
from lensaudit.settings import path_of, shared

COMPLETIONS = "/completions"
ANY = "any"
"""Model of a request that names none."""
ANSWER_TOKENS = {COMPLETIONS: 48, PATH: 96}
"""Of a sampled answer: what follows the answer's beginning, or a sentence."""
GREEDY_TOKENS, N_GREEDY = 8, 3
"""Of an answer that tells models apart, and how many such answers."""
_TOLD = ("id", "root", "parent", "owned_by", "max_model_len")
"""What a server says of a model that stays the same from day to day."""
_PLAIN = {"temperature": 1, "top_p": 1}
"""As the model has learned it: a server may have other defaults."""
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError)
Form = Mapping[str, Any]
"""Fields of a request that ask for log-probabilities or answers."""


def is_address(source: str) -> bool:
    """Is it an address, and no name or folder?"""
    return "://" in source


@dataclass(frozen=True)
class Served:
    """A model behind an OpenAI-compatible address; nothing vouches for which one that is."""

    url: str
    model: str
    """As the server calls it; empty until it was asked."""
    settings: KnowSettings
    budget: Budget
    """Of all calls of a run."""
    reading: Reading = "logprobs"
    forms: Mapping[str, Form] = field(default_factory=dict)
    """By path, how the server lets itself be asked."""
    weights: str = ""
    """Hash of what the server tells of the model and of its likeliest answers."""

    @property
    def host(self) -> str:
        """Host and port."""
        return urlsplit(self.url).netloc

    @property
    def spec(self) -> ModelSpec:
        """The model's name in results: `127.0.0.1:8000/model`."""
        return ModelSpec(f"{self.host}/{self.model}".rstrip("/"), self.url, None, "unlearned", None)

    @property
    def identity(self) -> dict[str, Any]:
        """What readings depend on."""
        n = self.settings.samples if self.reading == "samples" else None
        forms = {path: dict(form) for path, form in self.forms.items()}
        own = {"address": self.url, "model": self.model, "fingerprint": self.weights}
        return {**own, "reading": self.reading, "samples": n, "forms": forms}

    @property
    def readings(self) -> tuple[Reading, ...]:
        """Ways to read that are tried, in this order."""
        chosen = self.settings.reading
        return (chosen,) if chosen else ("logprobs", "samples")

    def client(self) -> AbstractContextManager[JudgeClient]:
        """The judge's client at this address."""
        access = JudgeAccess(**shared(self.settings, EndpointAccess, base_url=self.url))
        return open_client(access, self.model or ANY, budget=self.budget, option="--source")


def served_at(source: str, settings: KnowSettings) -> Served:
    """The model behind an address; nothing is sent.

    Raises:
        InputError: a bad address, no key, a cap without prices.
    """
    endpoint = open_endpoint(
        settings.api_model or ANY,
        source,
        key_env=settings.key_env,
        key_file=path_of(settings.key_file),
        option="--source",
    )
    return Served(endpoint.base_url, settings.api_model or "", settings, Budget(settings))


def path_of_reader(reader: str) -> str:
    """Which of the server's paths a reader asks."""
    return PATH if reader == CHAT else COMPLETIONS


def forms_of(reading: Reading, path: str, n: int, n_tokens: int | None = None) -> list[Form]:
    """Ways to ask, the better ones first; `n_tokens` of an answer, or as many as are usual."""
    if reading == "logprobs":
        # `echo` says which text it is about; of vLLM's field exactly one entry is wanted, as of
        # several it does not say which is the prompt's
        own: Form = {**_PLAIN, "prompt_logprobs": 0, "max_tokens": 1}
        echo: Form = {**_PLAIN, "echo": True, "logprobs": 1, "max_tokens": 0}
        return [own] if path == PATH else [echo, own]
    # OpenAI's models that want the other name of the limit sample in no other way than plainly
    k = n_tokens or ANSWER_TOKENS[path]
    limits: list[Form] = [{**_PLAIN, "max_tokens": k}, {"max_completion_tokens": k}]
    return [{**limit, **many} for limit in limits for many in ({"n": n}, {})]


def calls_of(served: Served, reader: str, asked: Relation, shots: Sequence[Fact]) -> Iterator[Call]:
    """One a prompt, template after template; of log-probs in a chat, one more for each value."""
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
        f"nothing vouches for the model behind {served.url}: it is known by what its server says"
    ]
    if served.reading != served.readings[0]:
        why = "; ".join(dict.fromkeys(whys))
        remarks.append(f"samples are taken: no log-probabilities of prompts ({why})")
    if not ends:
        remarks.append("values share a token with their prompt: differences of totals are read")
    gone = [one for one in readers if one not in left]
    if gone:
        remarks.append(f"reader {', '.join(gone)} left out: {served.host} does not answer to it")
    return replace(served, weights=weights), left, remarks


def _entry(served: Served, listed: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What the server says of the model; a server may serve some that it does not list."""
    names = [str(one["id"]) for one in listed]
    if served.model:
        return next((one for one in listed if one["id"] == served.model), {"id": served.model})
    if len(names) != 1:
        some = f"{len(names)} models ({', '.join(names[:4])})" if names else "no models"
        todo = "name one by --api-model" + "; does the address end in /v1?" * (not names)
        raise InputError(f"--source {served.url}: lists {some}; {todo}")
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
    raise InputError(f"--source {served.url}: can be read in no way; {why}")


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
            texts += _tokens(call, outcome.raw) if scores else _checked(call, outcome)
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
    samples = _samples(call, reply)
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
        heard = _samples(call, outcome) if isinstance(outcome, Reply) else ()
        said.append([one.text for one in heard] if isinstance(outcome, Reply) else None)
    return digest([served.url, served.model, [entry.get(name) for name in _TOLD], said])


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
    """How many samples of a run hold no answer, for people; empty where all do."""
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
    """By prompt the log-probs of the values, nats."""
    found = _answered(client, client.ask(calls))
    texts = [one for call in calls for one in _tokens(call, found[call.key].raw)]
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
            _tokens(call, raw)
        except NotItsReply as error:
            return str(error)
        return ""

    return fault


def _tokens(call: Call, raw: Mapping[str, Any]) -> list[Scored]:
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
    except _MALFORMED as error:
        raise NotItsReply("its reply holds no log-probs of its prompt") from error


def _echoed(choice: Mapping[str, Any], text: str) -> Scored:
    if choice["text"] != text:
        raise NotItsReply("its echo is another text")
    told = choice["logprobs"]
    found = _finite(zip(told["tokens"], [0.0, *told["token_logprobs"][1:]], strict=True))
    check_echo(told["tokens"], text)
    return found


def _rest(choice: Mapping[str, Any], text: str) -> Scored:
    found, names = _listed(choice["prompt_logprobs"])
    check_rest(names, text)
    return found


def _listed(rows: Sequence[Any]) -> tuple[Scored, list[str]]:
    """Of vLLM's list, whose first is null and whose others hold the prompt's own token alone.

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
        raise NotItsReply(f"a log-prob is {top:g}: none is above 0")
    return found


def _sampled(client: JudgeClient, calls: Sequence[Call], served: Served) -> list[list[Sample]]:
    """By prompt as many answers as are wanted; a server may give one a request."""
    n = served.settings.samples

    def so_far(call: Call, found: Found) -> tuple[list[Sample], Call | None]:
        """Answers to a prompt, and what is asked next."""
        texts: list[Sample] = []
        more = call
        while len(texts) < n:
            outcome = found.get(more.key)
            if not isinstance(outcome, Reply):
                return texts, None if outcome else more
            texts += _samples(call, outcome)
            more = replace(call, replicate=more.replicate + 1)
        return texts[:n], None

    def pending(found: Found) -> list[Call]:
        return [one for call in calls if (one := so_far(call, found)[1])]

    found = _answered(client, client.settle(pending))
    return [so_far(call, found)[0] for call in calls]


def _samples(call: Call, reply: Reply) -> list[Sample]:
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
    """Which values an answer names."""
    return torch.tensor([mentions(text, one) for one in values])
