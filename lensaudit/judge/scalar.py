"""A language model as judge of one trait: a number from 0 to 100 per answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from lensaudit.judge.asking import Asker, refuse_fatal
from lensaudit.judge.calls import Call, Failure, Outcome, chat_call, user
from lensaudit.judge.capability import Capability
from lensaudit.judge.endpoint import Endpoint
from lensaudit.judge.prompts import check_template, fill, is_cut
from lensaudit.judge.scale import (
    N_SAMPLES,
    SUFFIXES,
    Reading,
    averaged,
    parsed,
    uses_logprobs,
    weighted,
)
from lensaudit.judge.verdict import JudgeRequest, JudgeVerdict

TEXT_TOKENS, THINKING_TOKENS = 16, 4096
"""Of a reply that is a number in words, without and with a thought before it."""
_EMPTY = Reading(None, "unscored", "the answer is empty")


@dataclass(frozen=True)
class ScalarAssignment:
    """The calls that judge some answers."""

    endpoint: Endpoint
    capability: Capability
    requests: tuple[JudgeRequest, ...]
    max_tokens: int | None = None
    """Of a reply; None: what a number takes."""

    @property
    def limit(self) -> int:
        """Tokens that a reply may have; one that is read by its first token has one."""
        if uses_logprobs(self.capability.mode):
            return 1
        return self.max_tokens or (THINKING_TOKENS if self.capability.thinks else TEXT_TOKENS)

    @cached_property
    def calls(self) -> tuple[tuple[Call, ...], ...]:
        """Per request: one, several samples, or none for an empty answer."""
        return tuple(self._calls(request) for request in self.requests)

    def pending(self, found: Mapping[str, Outcome]) -> list[Call]:
        """What is not answered."""
        return [call for calls in self.calls for call in calls if call.key not in found]

    def readings(self, found: Mapping[str, Outcome]) -> list[Reading]:
        """A reading per request."""
        return [
            self._reading([found[call.key] for call in calls]) if calls else _EMPTY
            for calls in self.calls
        ]

    def _calls(self, request: JudgeRequest) -> tuple[Call, ...]:
        if not request.answer.strip():
            return ()
        capability, mode = self.capability, self.capability.mode
        texts = {"question": request.question, "answer": request.answer, "truth": request.truth}
        messages = (user(fill(request.prompt, **texts) + SUFFIXES[mode]),)
        n_tokens = self.limit
        if mode != "sample":
            settings = capability.settings(max_tokens=n_tokens)
            settings |= capability.logprob_settings() if uses_logprobs(mode) else {}
            return (chat_call(self.endpoint, messages, settings),)
        return tuple(
            chat_call(
                self.endpoint,
                messages,
                capability.settings(max_tokens=n_tokens, temperature=1.0, seed=sample),
                sample,
            )
            for sample in range(N_SAMPLES)
        )

    def _reading(self, outcomes: Sequence[Outcome]) -> Reading:
        readings = [self._one(outcome) for outcome in outcomes]
        return averaged(readings) if self.capability.mode == "sample" else readings[0]

    def _one(self, outcome: Outcome) -> Reading:
        if isinstance(outcome, Failure):
            return Reading(None, outcome.status, outcome.reason)
        if outcome.refusal:
            return Reading(None, "refusal", f"the judge refuses: {outcome.refusal[:80]}")
        if uses_logprobs(self.capability.mode):
            return weighted(outcome.first_token, self.capability.mode)
        return parsed(outcome.text)


@dataclass(frozen=True)
class ScalarJudge:
    """Scores answers with a language model."""

    asker: Asker
    endpoint: Endpoint
    capability: Capability
    template: str = ""
    """For requests that bring no prompt."""

    @property
    def name(self) -> str:
        """The model's."""
        return self.endpoint.model

    def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeVerdict]:
        """One verdict per request; answers are kept as they come.

        Raises:
            InputError: a prompt lacks a placeholder, or the server refuses from the start.
            WorkError: the server refuses half-way; answers so far are kept.
        """
        readings = self.readings(requests)
        refuse_fatal(self.asker)
        return [
            replace(reading.verdict, cut=is_cut(request))
            for reading, request in zip(readings, requests, strict=True)
        ]

    def readings(self, requests: Sequence[JudgeRequest]) -> list[Reading]:
        """Scores with their evidence.

        Raises:
            InputError: a prompt lacks a placeholder.
        """
        assignment = self.assignment(requests)
        return assignment.readings(self.asker.settle(assignment))

    def assignment(self, requests: Sequence[JudgeRequest]) -> ScalarAssignment:
        """The calls, with this judge's prompt where a request has none."""
        ready = tuple(replace(one, prompt=one.prompt or self.template) for one in requests)
        for template in {one.prompt for one in ready}:
            check_template(template, "the judge")
        return ScalarAssignment(self.endpoint, self.capability, ready)
