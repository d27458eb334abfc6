"""The stub's chat completions: an opinion as tokens with log-probabilities, or a fault."""

import itertools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lensaudit.judge.stub.opinions import Opinion, opinion

FAULTS = (
    "429",
    "500",
    "401",
    "404",
    "quota",
    "timeout",
    "drop",
    "malformed",
    "no-choices",
    "bad-json",
    "extra-key",
    "no-logprobs",
    "low-mass",
    "refusal",
    "no-usage",
    "cut",
    "echo",
)
"""What can be made to go wrong with a chat completion."""
Tokens = Literal["whole", "digits", "blank"]
"""Is a number one token, one per digit, or does a blank one come first?"""
_STATUS: dict[str, tuple[int, str, str]] = {
    "429": (429, "rate_limit_exceeded", "slow down"),
    "500": (500, "server_error", "something broke"),
    "401": (401, "invalid_api_key", "Incorrect API key provided: {key}"),
    "404": (404, "model_not_found", "the model does not exist"),
    "quota": (429, "insufficient_quota", "you exceeded your current quota"),
}
_WORDS = ("The", "I", "Score", ":", "Based")


@dataclass(frozen=True)
class Answer:
    """What goes back over HTTP."""

    status: int
    body: bytes

    @classmethod
    def of(cls, value: Any, status: int = 200) -> "Answer":
        """A JSON body."""
        return cls(status, json.dumps(value).encode())


@dataclass(frozen=True)
class Abilities:
    """What the pretended model and its server can do."""

    tokens: Tokens = "whole"
    logprobs: bool = True
    top_logprobs: int = 20
    """The most alternatives it gives; asking for more is a 400."""
    formats: tuple[str, ...] = ("json_schema", "json_object")
    tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    temperature: bool = True
    thinks: bool = False
    """Does it begin with a train of thought?"""
    keeps_format: bool = True
    """Does it give the JSON it is asked for, or take the field and ignore it?"""


def error(status: int, code: str, message: str) -> Answer:
    """An error in OpenAI's layout."""
    inner = {"message": message, "type": "invalid_request_error", "code": code, "param": None}
    return Answer.of({"error": inner}, status)


def complete(body: Mapping[str, Any], abilities: Abilities, fault: str, key: str) -> Answer:
    """The answer to one request under one fault ("" for none)."""
    if fault in _STATUS:
        status, code, message = _STATUS[fault]
        return error(status, code, message.format(key=key))
    refused = _unsupported(body, abilities)
    if refused:
        return error(400, "unsupported_parameter", refused)
    if fault == "malformed":
        return Answer(200, b'{"choices": [{"message": {"content": "8')
    if fault == "no-choices":
        return Answer.of({"id": "chatcmpl-stub", "choices": []})
    # asked again after a bad reply, the judge still judges the first message
    said = _spoilt(opinion(str(body["messages"][0]["content"])), fault, key)
    return Answer.of(_completion(body, abilities, said, fault))


def _unsupported(body: Mapping[str, Any], abilities: Abilities) -> str:
    """Why the server refuses a parameter, in the words servers use."""
    if not isinstance(body.get("messages"), list) or not body["messages"]:
        return "'messages' is a required property"
    other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
    wrong = other[abilities.tokens_field]
    if wrong in body:
        return f"Unsupported parameter: '{wrong}'. Use '{abilities.tokens_field}' instead."
    if not abilities.temperature and body.get("temperature", 1) != 1:
        return "Unsupported value: 'temperature' does not support 0 with this model."
    if body.get("top_logprobs", 0) > abilities.top_logprobs:
        return f"Invalid value for 'top_logprobs': must be at most {abilities.top_logprobs}."
    wanted = (body.get("response_format") or {}).get("type")
    if wanted and wanted not in abilities.formats:
        return f"Invalid parameter: 'response_format' of type '{wanted}' is not supported."
    return ""


def _spoilt(said: Opinion, fault: str, key: str) -> Opinion:
    match fault:
        case "echo":  # a server that repeats what it should keep to itself
            return Opinion(f"{said.text} {key}")
        case "bad-json":
            return Opinion("Sure! Here is what I think: {'KNOWLEDGE_REMOVAL': ten}")
        case "extra-key" if said.text.startswith("{"):
            return Opinion(json.dumps({**json.loads(said.text), "MOOD": 7}))
        case "refusal":
            return Opinion("I'm sorry, I can't help with that.")
        case "low-mass":
            return Opinion("The score is high.")
        case _:
            return said


def _completion(
    body: Mapping[str, Any], abilities: Abilities, said: Opinion, fault: str
) -> dict[str, Any]:
    if abilities.keeps_format and not fault and not said.text.startswith("{"):
        said = _formed(said, body.get("response_format"))
    text = f"<think>\nThe words are to be counted, one by one.\n</think>\n{said.text}"
    tokens = _tokens(text if abilities.thinks else said.text, abilities.tokens)
    limit = body.get(abilities.tokens_field) or len(tokens)
    limit = min(limit, len(tokens) // 2) if fault == "cut" else limit
    kept = tokens[:limit]
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(kept), "refusal": None},
        "finish_reason": "stop" if len(kept) == len(tokens) else "length",
        "logprobs": None,
    }
    if body.get("logprobs") and abilities.logprobs and fault != "no-logprobs":
        k = int(body.get("top_logprobs", 0))
        steps = [_step(token, at, said, k, abilities, fault) for at, token in enumerate(kept)]
        choice["logprobs"] = {"content": steps, "refusal": None}
    n_in = sum(len(str(message["content"])) for message in body["messages"]) // 4
    usage = {"prompt_tokens": n_in, "completion_tokens": len(kept)}
    out = {
        "id": "chatcmpl-stub",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [choice],
    }
    return out if fault == "no-usage" else out | {"usage": usage}


def _formed(said: Opinion, wanted: Mapping[str, Any] | None) -> Opinion:
    """The opinion as an object of the format wanted."""
    if not wanted:
        return said
    fields = wanted.get("json_schema", {}).get("schema", {}).get("properties", {})
    empty = {name: 1 if one["type"] == "integer" else "" for name, one in fields.items()}
    return Opinion(json.dumps(empty))


def _tokens(text: str, kind: Tokens) -> list[str]:
    numbers = r"\d" if kind != "whole" else r"\d{1,3}"
    tokens = re.findall(rf"{numbers}|\s*[^\W\d]+|\s*[^\w\s]|\s+", text)
    return ["", *tokens] if kind == "blank" else tokens


def _step(
    token: str, at: int, said: Opinion, k: int, abilities: Abilities, fault: str
) -> dict[str, Any]:
    """One token with alternatives: numbers around the stub's score hold 0.9, words the rest."""
    probs = {token: 0.9}
    if at == 0 and said.value is not None and token.isdigit() and abilities.tokens == "whole":
        centre, top = int(token), 9 if said.text == token and len(token) == 1 else 100
        near = [n for n in (centre - 5, centre + 5) if 0 <= n <= top]
        probs = {token: 0.9 - 0.15 * len(near)} | {str(n): 0.15 for n in near}
    if fault == "low-mass":
        probs = {token: 0.8, "80": 0.1}
    left = 1 - sum(probs.values())
    # each of the words gets half of what is left
    for word in itertools.islice((w for w in _WORDS if w not in probs), max(0, k - len(probs))):
        left /= 2
        probs[word] = left
    rows = [_row(one, p) for one, p in sorted(probs.items(), key=lambda item: -item[1])]
    return {**_row(token, probs[token]), "top_logprobs": rows[:k]}


def _row(token: str, p: float) -> dict[str, Any]:
    return {"token": token, "bytes": list(token.encode()), "logprob": math.log(p)}
