"""Judging a log's generations: by the rubric, by one scalar prompt, or by a word list."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from lensaudit.judge.asking import Assignment
from lensaudit.judge.calls import Call, Failure, Outcome, Reply, chat_call, user
from lensaudit.judge.capability import Capability, response_format
from lensaudit.judge.endpoint import Endpoint
from lensaudit.judge.items import Item
from lensaudit.judge.prompts import fill, is_cut, prompt_id
from lensaudit.judge.rubric import (
    METRICS,
    RubricError,
    family_of,
    read_grades,
    repair_message,
    schema_of,
    template_of,
)
from lensaudit.judge.scalar import ScalarAssignment
from lensaudit.judge.verdict import Judge, Status

RUBRIC_TOKENS, THINKING_TOKENS = 512, 8192
"""Of a rubric's reply (pull request 121, `llm_judge.yaml`), without and with a thought before."""


@dataclass(frozen=True)
class Judged:
    """One item's scores, or why it has none."""

    context: str
    idx: int
    group: int | str
    scores: Mapping[str, float]
    """Metric -> value; empty unless `status` is ok."""
    status: Status = "ok"
    reason: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    """The calls it rests on, in the cache of answers."""
    cut: bool = False
    """A text was too long for the judge: of it the beginning alone was judged."""


@runtime_checkable
class Grader(Protocol):
    """A way to judge items: what to ask, and what the answers mean."""

    @property
    def name(self) -> str:
        """What results call it."""
        ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """What scores of two runs must share to be compared, as plain JSON values."""
        ...

    @property
    def limit(self) -> int | None:
        """Tokens that a reply may have; None where nobody is asked."""
        ...

    def metrics(self, context: str) -> tuple[str, ...]:
        """The names of a context's scores."""
        ...

    def assignment(self, items: Sequence[Item]) -> Assignment:
        """The calls."""
        ...

    def judged(self, items: Sequence[Item], found: Mapping[str, Outcome]) -> list[Judged]:
        """A row per item."""
        ...


@dataclass(frozen=True)
class RubricAssignment:
    """One call per item, and a second where the first reply cannot be read."""

    first: tuple[Call, ...]
    contexts: tuple[str, ...]

    def pending(self, found: Mapping[str, Outcome]) -> list[Call]:
        """First calls, then repairs."""
        missing = [call for call in self.first if call.key not in found]
        repairs = (self.repair(at, found) for at in range(len(self.first)))
        return missing + [call for call in repairs if call is not None and call.key not in found]

    def repair(self, at: int, found: Mapping[str, Outcome]) -> Call | None:
        """The second call of an item, if its first reply is there and cannot be read."""
        call = self.first[at]
        reply = found.get(call.key)
        if not isinstance(reply, Reply) or reply.refusal or reply.cut:
            return None
        try:
            read_grades(reply.text, family_of(self.contexts[at]))
        except RubricError as error:
            messages = (
                *call.body["messages"],
                {"role": "assistant", "content": reply.text},
                user(repair_message(str(error))),
            )
            return Call(call.host, {**call.body, "messages": list(messages)})
        return None


@dataclass(frozen=True)
class RubricGrader:
    """Several grades 0 to 10 per item; the item's context decides which."""

    endpoint: Endpoint
    capability: Capability
    max_tokens: int | None = None
    """Of a reply; None: what the grades take."""
    name: str = "rubric"

    @property
    def identity(self) -> Mapping[str, Any]:
        """Model, prompts and parameters."""
        return {
            "grader": self.name,
            "model": self.endpoint.model,
            "host": self.endpoint.host,
            "prompts": {family: prompt_id(template_of(family)) for family in METRICS},
            "format": self.capability.format,
            "max_tokens": self.limit,
            "scale": [0, 10],
        }

    def metrics(self, context: str) -> tuple[str, ...]:
        """Those of the context's family."""
        return METRICS[family_of(context)]

    def assignment(self, items: Sequence[Item]) -> RubricAssignment:
        """One call per item."""
        return RubricAssignment(
            tuple(self._call(item) for item in items),
            tuple(item.context for item in items),
        )

    def judged(self, items: Sequence[Item], found: Mapping[str, Outcome]) -> list[Judged]:
        """A row per item."""
        asked = self.assignment(items)
        return [self._judged(item, asked, at, found) for at, item in enumerate(items)]

    @property
    def limit(self) -> int:
        """Tokens that a reply may have; a number that was named is a cap, thoughts included."""
        return self.max_tokens or (THINKING_TOKENS if self.capability.thinks else RUBRIC_TOKENS)

    def _call(self, item: Item) -> Call:
        family, request = family_of(item.context), item.request
        filled = fill(
            template_of(family),
            question=request.question,
            truth=request.truth,
            answer=request.answer,
        )
        settings = self.capability.settings(max_tokens=self.limit)
        settings |= response_format(self.capability.format, f"{family}_grades", schema_of(family))
        return chat_call(self.endpoint, (user(filled),), settings)

    def _judged(
        self, item: Item, asked: RubricAssignment, at: int, found: Mapping[str, Outcome]
    ) -> Judged:
        calls = [asked.first[at], asked.repair(at, found)]
        keys = tuple(call.key for call in calls if call is not None)
        cut = is_cut(item.request)
        blank = Judged(item.context, item.idx, item.group, {}, keys=keys, cut=cut)
        outcome = found[keys[-1]]
        if isinstance(outcome, Failure):
            return replace(blank, status=outcome.status, reason=outcome.reason)
        if outcome.refusal:
            return replace(blank, status="refusal", reason=f"refuses: {outcome.refusal[:80]}")
        try:
            grades = read_grades(outcome.text, family_of(item.context))
        except RubricError as error:
            end = f"; it ends after {self.limit} tokens, raise --max-tokens" if outcome.cut else ""
            return replace(blank, status="parse_error", reason=f"{error}{end}")
        scores = {name: float(grade) for name, grade in grades.scores.items()}
        evidence = {"reasoning": grades.reasoning, "repaired": len(keys) > 1}
        return replace(blank, scores=scores, evidence=evidence)


@dataclass(frozen=True)
class ScalarGrader:
    """One score 0 to 100 per item."""

    endpoint: Endpoint
    capability: Capability
    template: str
    name: str
    max_tokens: int | None = None
    """Of a reply in words; None: what a number takes."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Model, prompt and mode; scores of two modes do not compare."""
        return {
            "grader": self.name,
            "model": self.endpoint.model,
            "host": self.endpoint.host,
            "prompts": {self.name: prompt_id(self.template)},
            "mode": self.capability.mode,
            "n_alternatives": self.capability.n_alternatives,
            "max_tokens": self.limit,
            "scale": [0, 100],
        }

    @property
    def limit(self) -> int:
        """Tokens that a reply may have."""
        return self.assignment(()).limit

    def metrics(self, context: str) -> tuple[str, ...]:
        """The prompt's name."""
        return (self.name,)

    def assignment(self, items: Sequence[Item]) -> ScalarAssignment:
        """One call per item, several in mode `sample`."""
        requests = tuple(replace(item.request, prompt=self.template) for item in items)
        return ScalarAssignment(self.endpoint, self.capability, requests, self.max_tokens)

    def judged(self, items: Sequence[Item], found: Mapping[str, Outcome]) -> list[Judged]:
        """A row per item, with its mass and variance."""
        asked = self.assignment(items)
        rows = []
        for item, reading, calls in zip(items, asked.readings(found), asked.calls, strict=True):
            evidence = {
                "mass": reading.mass,
                "argmax": reading.argmax,
                "variance": reading.variance,
                "tokens": [[one.token, round(one.logprob, 6)] for one in reading.tokens],
            }
            rows.append(
                Judged(
                    item.context,
                    item.idx,
                    item.group,
                    {} if reading.score is None else {self.name: reading.score},
                    reading.status,
                    reading.reason,
                    evidence,
                    tuple(call.key for call in calls),
                    is_cut(item.request),
                )
            )
        return rows


@dataclass(frozen=True)
class NothingToAsk:
    """An assignment without calls."""

    def pending(self, found: Mapping[str, Outcome]) -> list[Call]:
        """None."""
        return []


@dataclass(frozen=True)
class ProgrammaticGrader:
    """A programmatic judge on the items of a log."""

    judge: Judge

    @property
    def name(self) -> str:
        """The judge's."""
        return self.judge.name

    @property
    def limit(self) -> None:
        """Nobody is asked."""
        return None

    @property
    def identity(self) -> Mapping[str, Any]:
        """The judge's name; its word lists come with the package's version."""
        return {"grader": self.name, "model": None, "prompts": {}, "scale": [0, 100]}

    def metrics(self, context: str) -> tuple[str, ...]:
        """The judge's name."""
        return (self.name,)

    def assignment(self, items: Sequence[Item]) -> NothingToAsk:
        """Nothing to ask."""
        return NothingToAsk()

    def judged(self, items: Sequence[Item], found: Mapping[str, Outcome]) -> list[Judged]:
        """A row per item."""
        verdicts = self.judge.score([item.request for item in items])
        return [
            Judged(
                item.context,
                item.idx,
                item.group,
                {} if verdict.score is None else {self.name: verdict.score},
                verdict.status,
                verdict.reason,
            )
            for item, verdict in zip(items, verdicts, strict=True)
        ]
