"""A language model that judges: opened, probed for how it can be asked, and asked within caps.

Cache first, budget before each call, every answer kept at once. How a model can be asked is probed
once, because a wrong guess makes no error: a tokenizer that splits numbers into digits would give
"8" for 85, with full mass.
"""

import json
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from lensaudit.errors import InputError, LensAuditError, TryAgainError, WorkError
from lensaudit.judge.calls import (
    TOP_LOGPROBS,
    Call,
    CallFailure,
    CallOutcome,
    Pending,
    Reply,
    ResponseCache,
    Spent,
    chat_call,
    unthought,
    user,
)
from lensaudit.judge.endpoint import Endpoint, open_endpoint
from lensaudit.judge.items import Status
from lensaudit.judge.settings import EndpointAccess, JudgeAccess, Mode
from lensaudit.judge.transport import EndpointError, Transport
from lensaudit.progress import Progress, Tell, unheard
from lensaudit.settings import path_of

STOP_AFTER = 5
"""Calls that fail in a row before the rest is given up: a server that is down is not asked on.

One that does not take a request for what it holds is not down, and the call costs nothing.
"""
KIND = "capability/3"
"""Of facts in the cache; the number says which questions were asked."""
NUMBER_PROBE = "Reply with the number 100 and nothing else."
LETTER_PROBE = "Reply with the letter A and nothing else."
OPEN_PROBE = "Reply with any number from 0 to 100 and nothing else."
"""Has many answers: who gives one alternative gives no distribution."""
FORMAT_PROBE = "Reply with the word JSON and nothing else."
"""Asks for no object: what comes as one was made one by the server. OpenAI wants the word JSON."""
_PROBE_TOKENS = 5
"""Enough to see how 100 is split, and a blank before it."""
_FORMAT_TOKENS = 20
_THINKING_TOKENS = 2048
"""Room for a thought before the object."""
_LEAST_ALTERNATIVES = 2
FLOOR_NATS = -99.0
"""Servers write -100, -9999 or less for a token that they have no log-prob of; models reach -60."""
MOST_NATS = 1e-3
"""Of a log-probability, which rounding may lift above 0."""
_FEWER = 5
_ATTEMPTS = 6
_SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "integer"}},
    "required": ["ok"],
    "additionalProperties": False,
}
Format = Literal["json_schema", "json_object", "none"]


@dataclass(frozen=True)
class Capability:
    """How a model is asked."""

    mode: Mode = "int100"
    tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    temperature: bool = True
    """Does it take a temperature?"""
    seed: bool = True
    """Does it take a seed?"""
    n_alternatives: int = TOP_LOGPROBS
    """Alternatives per token it gives; 0: no log-probabilities."""
    thinks: bool = False
    """Does it think before it answers? See `Reply.thought`."""
    format: Format = "json_schema"
    """The strictest that the server holds its replies to."""
    note: str = ""
    """Why not a better mode."""

    @property
    def reads_logprobs(self) -> bool:
        """Whether a score is read off the probabilities of the first token."""
        return self.mode in ("int100", "digit10", "letters")

    def settings(
        self, *, max_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> dict[str, Any]:
        """Request fields, those that the server takes."""
        out: dict[str, Any] = {self.tokens_field: max_tokens}
        out |= {"temperature": temperature} if self.temperature else {}
        return out | ({"seed": seed} if self.seed else {})

    def logprob_settings(self) -> dict[str, Any]:
        """The fields that ask for alternatives; none where the server takes none."""
        wanted = {"logprobs": True, "top_logprobs": self.n_alternatives}
        return wanted if self.n_alternatives else {}


def expected_usage(call: Call) -> Spent:
    """What a call may take: its bytes over 3, and all the tokens it allows."""
    n_bytes = sum(len(text.encode("utf-8", "replace")) for text in call.texts)
    tokens_in = math.ceil(n_bytes / _BYTES_PER_TOKEN) + _MESSAGE_TOKENS
    return Spent(1, tokens_in, call.max_tokens)


class Budget:
    """Reserve before a call, settle after it. Thread-safe.

    Raises:
        InputError: a cap on the cost without prices.
    """

    def __init__(self, caps: EndpointAccess):
        self.caps = caps
        if caps.max_cost is not None and not (caps.price_in or caps.price_out):
            raise InputError("--max-cost needs --price-in and --price-out (per million tokens)")
        self._lock = threading.Lock()
        self._used = Spent()

    def reserve(self, call: Call) -> str:
        """Take the call's share; or the reason why not, if a cap would be passed."""
        with self._lock:
            after = self._used + expected_usage(call)
            problem = self._problem(after)
            self._used = self._used if problem else after
            return problem

    def settle(self, call: Call, used: Spent) -> None:
        """Replace the reservation of a call by what it used."""
        with self._lock:
            self._used = self._used - expected_usage(call) + used

    def add(self, used: Spent) -> None:
        """Count calls that were made elsewhere: in a batch, or by an earlier process."""
        with self._lock:
            self._used = self._used + used

    def cost(self, used: Spent) -> float:
        """What tokens cost; prices are per million, in any currency."""
        caps = self.caps
        return (used.tokens_in * caps.price_in + used.tokens_out * caps.price_out) / 1e6

    @property
    def spent(self) -> Spent:
        """So far, reservations included."""
        return replace(self._used, cost=self.cost(self._used))

    def _problem(self, after: Spent) -> str:
        caps, tokens = self.caps, after.tokens_in + after.tokens_out
        if caps.max_calls is not None and after.calls > caps.max_calls:
            return f"--max-calls {caps.max_calls} reached"
        if caps.max_tokens_total is not None and tokens > caps.max_tokens_total:
            return f"--max-tokens-total {caps.max_tokens_total} would be passed"
        if caps.max_cost is not None and self.cost(after) > caps.max_cost:
            return f"--max-cost {caps.max_cost:g} would be passed"
        return ""


@dataclass
class JudgeClient:
    """An endpoint with its cache and budget; `open_client` makes one."""

    endpoint: Endpoint
    cache: ResponseCache
    transport: Transport | None
    """None: the cache is all there is (`--offline`)."""
    budget: Budget
    """May be shared with another judge of the run."""
    access: JudgeAccess
    since: float = 0.0
    """Answers older than this are asked for again (seconds since 1970)."""
    progress: Tell = unheard
    fatal: str = ""
    """Why the server refuses every call, once it does."""
    n_cached: int = 0
    """Answers that came from the cache."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def settle(self, pending: Pending) -> dict[str, CallOutcome]:
        """Ask until nothing more is wanted; outcomes by key."""
        found: dict[str, CallOutcome] = {}
        while calls := pending(found):
            found |= self.ask(calls)
        return found

    def known(self, pending: Pending) -> dict[str, CallOutcome]:
        """Outcomes that are in the cache, repairs included; no request is sent."""
        found: dict[str, CallOutcome] = {}
        while known := self._kept(pending(found)):
            found |= known
        return found

    def _kept(self, calls: Iterable[Call]) -> dict[str, CallOutcome]:
        kept = ((call.key, self.cache.get(call, since=self.since)) for call in calls)
        return {key: reply for key, reply in kept if reply is not None}

    def ask(self, calls: Iterable[Call]) -> dict[str, CallOutcome]:
        """An outcome per distinct call, by key; what could not be asked has its reason.

        On Ctrl-C the calls in flight are waited for and kept: they are paid for.
        """
        wanted = {call.key: call for call in calls}
        found = self._kept(wanted.values())
        self.n_cached += len(found)
        missing = [call for key, call in wanted.items() if key not in found]
        self._stopped: CallFailure | None = None
        if self.transport is None:
            self._stop("api_error", "not in the cache (--offline)")
        elif self.fatal:
            self._stop("api_error", self.fatal)
        self._in_a_row = self._done = 0
        with ThreadPoolExecutor(self.access.concurrency) as pool:
            try:
                outcomes = pool.map(lambda call: self._worked(call, len(missing)), missing)
                return found | {call.key: one for call, one in zip(missing, outcomes, strict=True)}
            except BaseException:
                self._stop("api_error", "interrupted")
                raise

    def _stop(self, status: Status, why: str) -> None:
        """From now on nothing of this `ask` is sent."""
        self._stopped = self._stopped or CallFailure(status, why)

    def _worked(self, call: Call, total: int) -> CallOutcome:
        """Make a call of an `ask`, in a thread of its own: sent, its answer kept."""
        if self._stopped is not None:
            return self._stopped
        try:
            outcome = self.send(call)
        except EndpointError as error:
            self.fatal = str(error)
            self._stop("api_error", f"not asked: {error}")
            return CallFailure("api_error", str(error))
        if isinstance(outcome, Reply):
            self.cache.put(call, outcome)
        elif outcome.status == "budget":
            self._stop(outcome.status, outcome.reason)
            return outcome
        with self._lock:
            self._done += 1
            if isinstance(outcome, Reply):
                self._in_a_row = 0
            elif outcome.cause != "refused":
                self._in_a_row += 1
            if isinstance(outcome, CallFailure) and self._in_a_row >= STOP_AFTER:
                said = f"not asked: {STOP_AFTER} calls failed in a row; {outcome.reason}"
                self._stop(outcome.status, said)
            self.progress(Progress("judged", self._done, total))
        return outcome

    def send(self, call: Call) -> CallOutcome:
        """Make a call within the budget; its answer is not kept.

        An answer of no use is asked for once more: the SDK does not count it as an error.

        Raises:
            EndpointError: no call can succeed.
        """
        outcome = self._sent(call)
        if isinstance(outcome, Reply) or not outcome.answered:
            return outcome
        again = self._sent(call)
        return outcome if isinstance(again, CallFailure) and again.status == "budget" else again

    def _sent(self, call: Call) -> CallOutcome:
        """One try of `send`."""
        assert self.transport is not None
        if problem := self.budget.reserve(call):
            return CallFailure("budget", f"not asked: {problem}")
        reserved = expected_usage(call)
        used = Spent(calls=1, n_failed=1)  # what is refused costs nothing
        try:
            outcome = self.transport.chat(call)
            if isinstance(outcome, Reply):
                used = outcome.usage or replace(reserved, n_estimated=1)
            elif outcome.cause != "refused":
                used = replace(reserved, n_estimated=1, n_failed=1)  # it may have been billed
            return outcome
        finally:
            self.budget.settle(call, used)

    def refuse_fatal(self) -> None:
        """Raise what made the server refuse every call.

        Raises:
            InputError: nothing was answered.
            WorkError: something was; it is in the cache.
        """
        if self.fatal and self.budget.spent.calls <= 1:
            raise InputError(self.fatal)
        if self.fatal:
            raise WorkError(f"{self.fatal}; answers so far are kept in {self.cache.path}")

    @property
    def known_capability(self) -> Capability | None:
        """What an earlier probe found; None where there was none, or one that looked for less."""
        known = self.cache.fact(KIND, self.endpoint.host, self.endpoint.model) or {}
        whole = set(known) == {one.name for one in fields(Capability)}
        return Capability(**known) if whole else None

    def capability(self, *, unknown: Capability | None = None) -> Capability:
        """How the model is asked, by a probe now or earlier; `--set mode=…` overrides its choice.

        Args:
            unknown: what counts where it was never probed and no server may be asked.

        Raises:
            InputError: the server refuses, or has no log-probabilities for a mode that reads them.
            TryAgainError: the server does not answer.
        """
        mode, endpoint = self.access.mode, self.endpoint
        found = None if self.since else self.known_capability
        if found is None and self.transport is None:
            found = unknown or (Capability(mode) if mode else None)
            if found is None:
                raise InputError(
                    f"{endpoint.model} was never probed and no server may be asked; give "
                    "--set mode=…, or run `lensaudit judge probe` first"
                )
        elif found is None:
            found = probe(self)
            self.cache.keep_fact(KIND, endpoint.host, endpoint.model, asdict(found))
        wanted = replace(found, mode=mode or found.mode)
        if mode and wanted.reads_logprobs and not found.n_alternatives:
            raise InputError(
                f"--set mode={mode} reads log-probabilities; {endpoint.host} sends none"
            )
        return wanted


@contextmanager
def open_client(
    access: JudgeAccess,
    model: str | None,
    *,
    offline: bool = False,
    fresh: bool = False,
    progress: Tell = unheard,
    budget: Budget | None = None,
    option: str = "--base-url",
) -> Iterator[JudgeClient]:
    """A model that judges, while the block lasts; a `budget` may be shared with another.

    `option` names the address in errors.

    Raises:
        InputError: no model, no key, a bad address, no SDK; before anything is sent.
    """
    if not model:
        raise InputError("name the judge by --judge, or use --by words:…")
    endpoint = endpoint_of(access, model, offline=offline, option=option)
    budget = budget or Budget(access)
    with ExitStack() as stack:
        transport = None
        if not offline:
            transport = Transport(endpoint, timeout_s=access.timeout_s, retries=access.retries)
            stack.callback(transport.close)
        cache = stack.enter_context(ResponseCache(path_of(access.cache), keeps=not offline))
        since = time.time() if fresh else 0.0
        yield JudgeClient(endpoint, cache, transport, budget, access, since, progress)


def endpoint_of(
    access: JudgeAccess, model: str, *, offline: bool, option: str = "--base-url"
) -> Endpoint:
    """The endpoint of the model that judges; offline without a key.

    Raises:
        InputError: no key, or a bad address.
    """
    key = {"key_env": access.key_env, "key_file": path_of(access.key_file)}
    return open_endpoint(model, access.base_url, offline=offline, option=option, **key)


def probe(client: JudgeClient) -> Capability:
    """Ask two to a dozen tiny questions.

    Raises:
        InputError: the server refuses.
        TryAgainError: the server does not answer.
    """
    found, outcome = _parameters(client)
    if isinstance(outcome, CallFailure):
        note = "the server sends no log-probabilities"
        found = replace(found, n_alternatives=0)
        outcome = _probed(client, found, NUMBER_PROBE, _PROBE_TOKENS)
        if isinstance(outcome, CallFailure):
            raise _unusable(outcome)
    else:
        note = "the server takes no request for log-probabilities"
    found, tokens = replace(found, thinks=outcome.thought), outcome.first_token
    if tokens and (why := _no_distribution(found, tokens, client)):
        found, tokens, note = replace(found, n_alternatives=0), {}, why
    found = replace(found, **_reading(found, tokens, note, client))
    return replace(found, format=_format(found, client))


def _parameters(client: JudgeClient) -> tuple[Capability, CallOutcome]:
    """Leave out what the server refuses until it answers."""
    found = Capability()
    for _ in range(_ATTEMPTS):
        outcome = _probed(client, found, NUMBER_PROBE, _PROBE_TOKENS, found.logprob_settings())
        if isinstance(outcome, Reply) or outcome.status == "no_logprobs":
            return found, outcome
        if outcome.cause != "refused":
            raise _unusable(outcome)
        found = _adapted(found, outcome.reason)
    raise InputError(f"{client.endpoint.host}: refuses one parameter after the other")


def _unusable(outcome: CallFailure) -> LensAuditError:
    """Why a probe ends here: the server is silent for now, or is no such server."""
    if outcome.cause == "silent":
        return TryAgainError(f"the judge cannot be probed: {outcome.reason}")
    todo = "; is --base-url an OpenAI-compatible server (.../v1)?" * (outcome.cause == "garbage")
    return InputError(f"the judge cannot be probed: {outcome.reason}{todo}")


def _adapted(found: Capability, reason: str) -> Capability:
    """The request without the parameter that the server's message names."""
    text = reason.lower()
    fewer = _FEWER if "top_logprobs" in text and found.n_alternatives > _FEWER else 0
    without: dict[str, dict[str, Any]] = {
        "max_completion_tokens": {"tokens_field": "max_completion_tokens"},
        "logprobs": {"n_alternatives": fewer},
        "temperature": {"temperature": False},
        "seed": {"seed": False},
    }
    changed = (replace(found, **fields) for word, fields in without.items() if word in text)
    if other := next((one for one in changed if one != found), None):
        return other
    raise InputError(f"the judge cannot be probed: {reason}")


def _no_distribution(found: Capability, tokens: Mapping[str, float], client: JudgeClient) -> str:
    """Why a first token's alternatives are no distribution; empty: they are one.

    A sure model may send one alternative alone: it is then asked what has many answers.
    """
    if _fault_of(tokens, found.n_alternatives) and max(tokens.values()) <= MOST_NATS:
        outcome = _probed(client, found, OPEN_PROBE, _PROBE_TOKENS, found.logprob_settings())
        if isinstance(outcome, CallFailure):
            return outcome.reason
        tokens = outcome.first_token
    return _fault_of(tokens, found.n_alternatives)


def _fault_of(tokens: Mapping[str, float], n_wanted: int) -> str:
    nats = sorted(one for one in tokens.values() if one > FLOOR_NATS)
    if nats and nats[-1] > MOST_NATS:
        return f"the server sends {nats[-1]:.3g} where a log-probability belongs"
    if len(nats) < _LEAST_ALTERNATIVES:
        what = f"of {n_wanted} alternatives of a first token the server sends {len(nats)}"
        return f"{what}: no distribution"
    if len(nats) > _LEAST_ALTERNATIVES and nats[0] == nats[-1]:
        return f"all {len(nats)} alternatives of a first token are equally likely"
    return ""


def _reading(
    found: Capability, tokens: Mapping[str, float], note: str, client: JudgeClient
) -> dict[str, str]:
    """The mode by what a model that is asked for 100 begins with, and why not a better one."""
    first = next(iter(tokens), "").strip()
    if first == "100":
        return {"mode": "int100"}
    if first == "1":
        return {"mode": "digit10", "note": "its tokenizer splits numbers into digits"}
    if tokens:
        note = f"asked for 100 it begins with {first!r}"
        letter = _probed(client, found, LETTER_PROBE, 1, found.logprob_settings())
        # a refusal comes without alternatives
        alternatives = letter.first_token if isinstance(letter, Reply) else {}
        if next(iter(alternatives), "").strip() == "A":
            return {"mode": "letters", "note": note}
    return {"mode": "sample" if found.temperature else "text", "note": note}


def _format(found: Capability, client: JudgeClient) -> Format:
    """The strictest form of JSON that the server keeps to, whatever it takes."""
    n_tokens = _THINKING_TOKENS if found.thinks else _FORMAT_TOKENS
    formats: tuple[Format, ...] = ("json_schema", "json_object")
    for name in formats:
        wanted = response_format(name, "ok", _SCHEMA)
        outcome = _probed(client, found, FORMAT_PROBE, n_tokens, wanted)
        if isinstance(outcome, Reply) and _keeps_to(name, outcome):
            return name
        if isinstance(outcome, CallFailure) and outcome.cause != "refused":
            raise _unusable(outcome)
    return "none"


def _keeps_to(name: Format, reply: Reply) -> bool:
    """Whether the reply is the object that the request field asks for, or begins it if cut."""
    text = unthought(reply.text).strip()
    if reply.cut:
        return text.startswith('{"ok"' if name == "json_schema" else "{")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, dict):
        return False
    return name == "json_object" or (list(value) == ["ok"] and isinstance(value["ok"], int))


def response_format(name: Format, title: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The request field that asks for JSON."""
    if name == "none":
        return {}
    inner = {"name": title, "strict": True, "schema": dict(schema)}
    schemas = {"json_schema": inner} if name == "json_schema" else {}
    return {"response_format": {"type": name, **schemas}}


def _probed(
    client: JudgeClient,
    found: Capability,
    question: str,
    max_tokens: int,
    more: Mapping[str, Any] | None = None,
) -> CallOutcome:
    """Make a probe, within the budget, not kept among the answers."""
    settings = found.settings(max_tokens=max_tokens) | dict(more or {})
    try:
        outcome = client.send(chat_call(client.endpoint, (user(question),), settings))
    except EndpointError as error:
        raise InputError(str(error)) from error
    if isinstance(outcome, CallFailure) and outcome.status == "budget":
        problem = outcome.reason.removeprefix("not asked: ")
        raise InputError(f"no budget to probe the judge: {problem}")
    return outcome


_BYTES_PER_TOKEN = 3.0
"""Lower than the usual 4 of English: a reservation should not be too small.

Bytes, because a character of other scripts takes a token or more."""
_MESSAGE_TOKENS = 12
"""What chat templates add."""
