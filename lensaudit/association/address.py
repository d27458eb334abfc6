"""A model behind an OpenAI-compatible address, and the ways in which it can be asked."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from lensaudit.association.reading import (
    CHAT,
)
from lensaudit.association.settings import KnowSettings, Reading
from lensaudit.judge.calls import PATH
from lensaudit.judge.client import Budget, JudgeClient, open_client
from lensaudit.judge.endpoint import open_endpoint
from lensaudit.judge.settings import EndpointAccess, JudgeAccess
from lensaudit.models.registry import ModelSpec
from lensaudit.settings import path_of, shared

COMPLETIONS = "/completions"
ANY = "any"
"""Model of a request that names none."""
ANSWER_TOKENS = {COMPLETIONS: 48, PATH: 96}
"""Of a sampled answer: what follows the answer's beginning, or a sentence."""
_PLAIN = {"temperature": 1, "top_p": 1}
"""As the model has learned it: a server may have other defaults."""
MALFORMED = (LookupError, TypeError, ValueError, AttributeError)
Form = Mapping[str, Any]
"""Fields of a request that ask for log-probabilities or answers."""


def is_address(source: str) -> bool:
    """Whether a text is an address (http://…), not a name or folder."""
    return "://" in source


@dataclass(frozen=True)
class Served:
    """A model behind an OpenAI-compatible address; which model that is cannot be checked."""

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
    """Hash of what the server says of the model and of its likeliest answers."""

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
    """Path of the server's API that a reader asks."""
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
