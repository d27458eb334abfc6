"""What can this model and its server do? Asked once, because a wrong guess makes no error.

A tokenizer that splits numbers into digits would give "8" for 85, with full mass.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from lensaudit.errors import InputError, LensAuditError, TryAgainError
from lensaudit.judge.asking import Asker
from lensaudit.judge.calls import TOP_LOGPROBS, Call, Failure, Outcome, Reply, chat_call, user
from lensaudit.judge.endpoint import Endpoint
from lensaudit.judge.scale import Mode, uses_logprobs
from lensaudit.judge.transport import EndpointError

Format = Literal["json_schema", "json_object", "none"]
KIND = "capability/2"
"""Of facts in the cache; the number says which questions were asked."""
NUMBER_PROBE = "Reply with the number 100 and nothing else."
LETTER_PROBE = "Reply with the letter A and nothing else."
FORMAT_PROBE = "Reply with the word JSON and nothing else."
"""Asks for no object: what comes as one was made one by the server. OpenAI wants the word JSON."""
_PROBE_TOKENS = 5
"""Enough to see how 100 is split, and a blank before it."""
_FORMAT_TOKENS = 20
_THINKING_TOKENS = 2048
"""Room for a thought before the object."""
_FEWER = 5
_ATTEMPTS = 6
_SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "integer"}},
    "required": ["ok"],
    "additionalProperties": False,
}


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

    def settings(
        self, *, max_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> dict[str, Any]:
        """Request fields, those that the server takes."""
        out: dict[str, Any] = {self.tokens_field: max_tokens}
        out |= {"temperature": temperature} if self.temperature else {}
        return out | ({"seed": seed} if self.seed else {})

    def logprob_settings(self) -> dict[str, Any]:
        """The fields that ask for alternatives."""
        return {"logprobs": True, "top_logprobs": self.n_alternatives}


def capability_of(
    asker: Asker, endpoint: Endpoint, *, mode: Mode | None = None, fresh: bool = False
) -> Capability:
    """What a probe found, now or earlier; `mode` overrides its choice.

    Raises:
        InputError: the server refuses, or has no log-probabilities for a `mode` that reads them.
        TryAgainError: the server does not answer.
    """
    known = None if fresh else known_capability(asker, endpoint)
    if known is not None:
        found = known
    elif asker.transport is None:
        if mode is None:
            raise InputError(
                f"{endpoint.model} was never probed and no server may be asked; give --mode, or "
                "run `lensaudit judge probe` first"
            )
        return Capability(mode)
    else:
        found = probe(asker, endpoint)
        asker.cache.keep_fact(KIND, endpoint.host, endpoint.model, asdict(found))
    if mode is None:
        return found
    if uses_logprobs(mode) and not found.n_alternatives:
        raise InputError(f"--mode {mode} reads log-probabilities; {endpoint.host} sends none")
    return replace(found, mode=mode)


def known_capability(asker: Asker, endpoint: Endpoint) -> Capability | None:
    """What an earlier probe found; None where there was none, or one that looked for less."""
    known = asker.cache.fact(KIND, endpoint.host, endpoint.model)
    if known is None or set(known) != {field.name for field in fields(Capability)}:
        return None
    return Capability(**known)


def probe(asker: Asker, endpoint: Endpoint) -> Capability:
    """Ask two to a dozen tiny questions.

    Raises:
        InputError: the server refuses.
        TryAgainError: the server does not answer.
    """
    found, outcome = _parameters(asker, endpoint)
    found = _with_mode(found, outcome, asker, endpoint)
    return replace(found, format=_format(found, asker, endpoint))


def _parameters(asker: Asker, endpoint: Endpoint) -> tuple[Capability, Outcome]:
    """Leave out what the server refuses until it answers."""
    found = Capability()
    outcome: Outcome = Failure("api_error", "")
    for _ in range(_ATTEMPTS):
        settings = found.settings(max_tokens=_PROBE_TOKENS)
        settings |= found.logprob_settings() if found.n_alternatives else {}
        outcome = _once(asker, chat_call(endpoint, (user(NUMBER_PROBE),), settings))
        if isinstance(outcome, Reply) or outcome.status == "no_logprobs":
            return found, outcome
        if outcome.cause != "refused":
            raise _unusable(outcome)
        found = _adapted(found, outcome.reason)
    raise InputError(f"{endpoint.host}: refuses one parameter after the other; {outcome.reason}")


def _unusable(outcome: Failure) -> LensAuditError:
    """Why a probe ends here: the server is silent for now, or is no such server."""
    if outcome.cause == "silent":
        return TryAgainError(f"the judge cannot be probed: {outcome.reason}")
    todo = "; is --base-url an OpenAI-compatible server (.../v1)?" * (outcome.cause == "garbage")
    return InputError(f"the judge cannot be probed: {outcome.reason}{todo}")


def _adapted(found: Capability, reason: str) -> Capability:
    """Without the parameter that the server's message names."""
    text = reason.lower()
    if "max_completion_tokens" in text and found.tokens_field == "max_tokens":
        return replace(found, tokens_field="max_completion_tokens")
    if "logprobs" in text and found.n_alternatives:
        fewer = "top_logprobs" in text and found.n_alternatives > _FEWER
        return replace(found, n_alternatives=_FEWER if fewer else 0)
    if "temperature" in text and found.temperature:
        return replace(found, temperature=False)
    if "seed" in text and found.seed:
        return replace(found, seed=False)
    raise InputError(f"the judge cannot be probed: {reason}")


def _with_mode(found: Capability, outcome: Outcome, asker: Asker, endpoint: Endpoint) -> Capability:
    if isinstance(outcome, Failure):
        found = replace(found, n_alternatives=0)
        settings = found.settings(max_tokens=_PROBE_TOKENS)
        outcome = _once(asker, chat_call(endpoint, (user(NUMBER_PROBE),), settings))
        if isinstance(outcome, Failure):
            raise _unusable(outcome)
        found = replace(found, thinks=outcome.thought)
        return _without(found, "the server sends no log-probabilities")
    found = replace(found, thinks=outcome.thought)
    if not outcome.first_token:
        return _without(found, "the server takes no request for log-probabilities")
    first = outcome.first_token[0].token.strip()
    if first == "100":
        return replace(found, mode="int100")
    if first == "1":
        return replace(found, mode="digit10", note="its tokenizer splits numbers into digits")
    settings = found.settings(max_tokens=1) | found.logprob_settings()
    letter = _once(asker, chat_call(endpoint, (user(LETTER_PROBE),), settings))
    # a refusal comes without alternatives
    alternatives = letter.first_token if isinstance(letter, Reply) else ()
    if alternatives and alternatives[0].token.strip() == "A":
        return replace(found, mode="letters", note=f"asked for 100 it begins with {first!r}")
    return _without(found, f"asked for 100 it begins with {first!r}")


def _without(found: Capability, note: str) -> Capability:
    """The best mode that reads text alone."""
    return replace(found, mode="sample" if found.temperature else "text", note=note)


def _format(found: Capability, asker: Asker, endpoint: Endpoint) -> Format:
    """The strictest form of JSON that the server keeps to, whatever it takes."""
    n_tokens = _THINKING_TOKENS if found.thinks else _FORMAT_TOKENS
    formats: tuple[Format, ...] = ("json_schema", "json_object")
    for name in formats:
        settings = found.settings(max_tokens=n_tokens) | response_format(name, "ok", _SCHEMA)
        outcome = _once(asker, chat_call(endpoint, (user(FORMAT_PROBE),), settings))
        if isinstance(outcome, Failure):
            if outcome.cause != "refused":
                raise _unusable(outcome)
        elif _keeps_to(name, outcome):
            return name
    return "none"


def _keeps_to(name: Format, reply: Reply) -> bool:
    """Is the reply the object that only the request field asks for? A cut one has its beginning."""
    text = reply.said.strip()
    if reply.cut:
        return text.startswith('{"ok"' if name == "json_schema" else "{")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if name == "json_object":
        return isinstance(value, dict)
    return isinstance(value, dict) and set(value) == {"ok"} and isinstance(value["ok"], int)


def response_format(name: Format, title: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The request field that asks for JSON."""
    match name:
        case "json_schema":
            inner = {"name": title, "strict": True, "schema": dict(schema)}
            return {"response_format": {"type": "json_schema", "json_schema": inner}}
        case "json_object":
            return {"response_format": {"type": "json_object"}}
        case "none":
            return {}


def _once(asker: Asker, call: Call) -> Outcome:
    """One probe, within the budget, not kept among the answers."""
    if asker.transport is None:
        raise InputError("a probe needs a server")
    problem = asker.budget.reserve(call)
    if problem:
        raise InputError(f"no budget to probe the judge: {problem}")
    try:
        outcome = asker.transport.chat(call)
    except EndpointError as error:
        raise InputError(str(error)) from error
    if isinstance(outcome, Reply):
        asker.budget.settle(call, outcome.usage)
    else:
        asker.budget.fail(call, billed=outcome.cause != "refused")
    return outcome
