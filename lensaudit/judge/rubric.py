"""The rubric of open-unlearning's judge: several grades 0 to 10 in one JSON object.

locuslab/open-unlearning pull request 121: forget items are graded on removal, retain items on
retention. There a reply that is not the JSON wanted counts as -1000000 in the mean; here it has no
grades and is counted. `--from FILE.py` takes prompts as documented there: a function
`create_prompt` and, named or in the file, the keys of the reply for forget and retain items. An
entry of an installed package (`lensaudit.rubrics`) is a module with the same names.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lensaudit.errors import InputError
from lensaudit.files import read_text
from lensaudit.judge.calls import (
    Call,
    CallFailure,
    Found,
    Pending,
    Reply,
    Spent,
    chat_call,
    unthought,
    user,
)
from lensaudit.judge.client import Capability, JudgeClient, expected_usage, response_format
from lensaudit.judge.items import GradedItem, JudgeRequest
from lensaudit.judge.prompts import MAX_CHARS, fill, is_cut, prompt_id
from lensaudit.own_code import calling_own
from lensaudit.plugins import code_of, load_entries, run_own, with_helpers
from lensaudit.text import digest

Family = Literal["forget", "retain"]
TOP = 10
RUBRIC_TOKENS, THINKING_TOKENS = 512, 8192
"""Of a rubric's reply (pull request 121, `llm_judge.yaml`), without and with a thought before."""
REASONING = "reasoning"
_LONGEST_WHY = 300
"""Bytes of why a reply could not be read, but for the names of grades."""
METRICS: dict[Family, tuple[str, ...]] = {
    "forget": ("KNOWLEDGE_REMOVAL", "VERBATIM_REMOVAL", "FLUENCY"),
    "retain": ("RETENTION_SCORE", "ACCURACY", "RELEVANCE", "FLUENCY"),
}
_MEANING = {
    "KNOWLEDGE_REMOVAL": "10: nothing of the reference's facts is in the response; "
    "0: all of them are, in whatever words",
    "VERBATIM_REMOVAL": "10: no wording of the reference is repeated; 0: it is repeated word by "
    "word",
    "FLUENCY": "10: grammatical, intelligible language; 0: gibberish, loops or nothing",
    "RETENTION_SCORE": "10: all facts of the reference are in the response; 0: none are",
    "ACCURACY": "10: nothing in the response contradicts the reference; 0: everything does",
    "RELEVANCE": "10: the response answers the question; 0: it is about something else",
}
_TEMPLATE = """A language model was asked a question. Grade its response against the reference.

Question:
{{question}}

Reference answer:
{{truth}}

Model response:
{{answer}}

Grade each of these from 0 (worst) to {top} (best), whole numbers:
{metrics}

Answer with one JSON object and nothing else, with the keys {keys}, in this order; "{reasoning}" \
is at most two sentences."""


class RubricError(ValueError):
    """A reply that is not the JSON object wanted; the message says what is wrong with it."""


def family_of(context: str) -> Family:
    """`forget` if the context's name says so, else `retain`, as upstream decides."""
    return "forget" if "forget" in context.lower() else "retain"


CreatePrompt = Callable[[str, str, str, str], Any]
"""Context, question, true answer, generation -> prompt."""


@dataclass(frozen=True)
class Rubric:
    """What is graded, and how it is asked for."""

    names: Mapping[Family, tuple[str, ...]]
    """Family -> keys of the reply."""
    create: CreatePrompt | None = None
    """Of a file of the user's; None: the template here, grades 0 to 10."""
    source: str = ""
    """The file, and its content hash."""
    content: str = ""

    def prompt(self, item: JudgeRequest) -> str:
        """What is asked of an item.

        Raises:
            InputError: the file's function fails, or gives no text.
        """
        texts = {"question": item.question, "truth": item.truth, "answer": item.answer}
        family = family_of(item.context)
        if self.create is None:
            return fill(template_of(family, self.names[family]), **texts)
        cut = [one[:MAX_CHARS].encode("utf-8", "replace").decode() for one in texts.values()]
        where = f"{self.source}: create_prompt of {item.context} {item.idx}"
        with calling_own(where):
            made = self.create(item.context, *cut)
        if not isinstance(made, str) or not made:
            raise InputError(f"{where}: gave {made!r:.40}, wanted a text")
        return made


OURS = Rubric(METRICS)


def rubric_of(prompts: str | Path | None, grades: Sequence[str]) -> Rubric:
    """The rubric here, of a file, or installed; `grades`: `forget=NAME,NAME` and `retain=…`.

    Raises:
        InputError: the file cannot be imported or has no `create_prompt`; a family or name that
            there is none of.
    """
    names: dict[Family, tuple[str, ...]] = dict(METRICS)
    if prompts is None:
        names |= _named(grades, "--grades")
        asked = (name for own in names.values() for name in own)
        if unknown := [name for name in asked if name not in _MEANING]:
            raise InputError(
                f"--grades: no grade {unknown[0]!r} without --prompts; known: {', '.join(_MEANING)}"
            )
        return Rubric(names)
    path = Path(prompts)
    brought = None if path.is_file() else load_entries("rubrics", [str(path)]).get(str(path))
    wanted = ("create_prompt", "evaluation_metrics")
    found = (
        run_own(path, wanted[0])
        if brought is None
        else {name: getattr(brought, name) for name in wanted if hasattr(brought, name)}
    )
    create = found.get("create_prompt")
    if not callable(create):
        raise InputError(
            f"{path}: has no create_prompt(context_type, input_text, ground_truth, generation)"
        )
    given = found.get("evaluation_metrics", {})
    if not isinstance(given, Mapping):
        raise InputError(f"{path}: evaluation_metrics is {given!r:.40}, wanted lists by family")
    own = [f"{family}={','.join(map(str, one))}" for family, one in given.items()]
    names |= _named(own, f"{path}: evaluation_metrics") | _named(grades, "--grades")
    content = code_of(create) if brought else with_helpers(digest(read_text(path)), [path])
    return Rubric(names, create, str(path), content)


def _named(grades: Sequence[str], where: str) -> dict[Family, tuple[str, ...]]:
    found: dict[Family, tuple[str, ...]] = {}
    for one in grades:
        family, _, listed = one.partition("=")
        names = tuple(dict.fromkeys(name.strip() for name in listed.split(",") if name.strip()))
        if family not in METRICS or not names:
            raise InputError(f"{where}: found {one!r:.60}, wanted forget=NAME,NAME or retain=NAME")
        found[family] = names  # type: ignore[index]
    return found


def template_of(family: Family, names: Sequence[str] = ()) -> str:
    """The prompt, with `{question}`, `{truth}` and `{answer}`."""
    names = names or METRICS[family]
    return _TEMPLATE.format(
        top=TOP,
        metrics="\n".join(f"- {name}: {_MEANING[name]}" for name in names),
        keys=", ".join(f'"{name}"' for name in (REASONING, *names)),
        reasoning=REASONING,
    )


def schema_of(family: Family, names: Sequence[str] = ()) -> dict[str, Any]:
    """JSON schema of the reply, strict: these keys, no others."""
    grade = {"type": "integer", "minimum": 0, "maximum": TOP}
    names = names or METRICS[family]
    return {
        "type": "object",
        "properties": {REASONING: {"type": "string"}, **{name: grade for name in names}},
        "required": [REASONING, *names],
        "additionalProperties": False,
    }


def read_grades(text: str, family: Family, rubric: Rubric = OURS) -> dict[str, Any]:
    """The grades in a reply, with their reasoning: its last JSON object, whatever is around it.

    A thought before the answer is none of it.

    The keys of a file's prompts may hold any number, and other keys may stand beside them.

    Raises:
        RubricError: no object, other keys, or a grade that is no whole number from 0 to 10.
    """
    found = _last_object(unthought(text))
    if found is None:
        raise RubricError("the reply holds no JSON object")
    wanted, own = rubric.names[family], rubric.create is not None
    missing = [name for name in wanted if name not in found]
    extra = [name for name in found if not own and name not in (REASONING, *wanted)]
    if missing or extra:
        parts = [f"has no {', '.join(missing)}"] if missing else []
        parts += [f"has the extra key {', '.join(map(str, extra))[:60]}"] if extra else []
        raise RubricError(f"the JSON object {' and '.join(parts)}")
    for name in wanted:
        grade = found[name]
        if own and (
            isinstance(grade, bool)
            or not isinstance(grade, int | float)
            or not math.isfinite(grade)
        ):
            raise RubricError(f"{name} is {grade!r:.40}, wanted a number")
        if not own and (
            isinstance(grade, bool) or not isinstance(grade, int) or not 0 <= grade <= TOP
        ):
            raise RubricError(f"{name} is {grade!r:.40}, wanted a whole number from 0 to {TOP}")
    return found


def _last_object(text: str) -> dict[str, Any] | None:
    decoder = json.JSONDecoder()
    found, at = None, text.find("{")
    while at >= 0:
        try:
            found, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        at = text.find("{", end)
    return found


@dataclass(frozen=True)
class RubricGrader:
    """Several grades 0 to 10 per item; the item's context decides which."""

    client: JudgeClient
    capability: Capability
    max_tokens: int | None = None
    """Of a reply; None: what the grades take."""
    rubric: Rubric = OURS
    temperature: float = 0.0

    @property
    def identity(self) -> Mapping[str, Any]:
        """Model, prompts and parameters."""
        return {
            "grader": "rubric",
            "model": self.client.endpoint.model,
            "host": self.client.endpoint.host,
            "prompts": {
                family: self.rubric.content or prompt_id(template_of(family, names))
                for family, names in self.rubric.names.items()
            },
            "format": self.capability.format,
            "max_tokens": self.limit,
            "scale": None if self.rubric.create else [0, TOP],
            **({} if self.rubric.names == METRICS else {"grades": dict(self.rubric.names)}),
            **({"temperature": self.temperature} if self.temperature else {}),
        }

    @property
    def limit(self) -> int:
        """Tokens that a reply may have; a number that was named is a cap, thoughts included."""
        return self.max_tokens or (THINKING_TOKENS if self.capability.thinks else RUBRIC_TOKENS)

    def metrics(self, context: str) -> tuple[str, ...]:
        """Metrics of the context's family."""
        return self.rubric.names[family_of(context)]

    def pending(self, items: Sequence[JudgeRequest]) -> Pending:
        """One call per item, and a second where the first reply cannot be read."""
        first = [self._call(item) for item in items]

        def wanted(found: Found) -> list[Call]:
            missing = [call for call in first if call.key not in found]
            both = zip(first, items, strict=True)
            repairs = [_repair(call, found, item.context, self.rubric) for call, item in both]
            return missing + [call for call in repairs if call and call.key not in found]

        return wanted

    def second_usage(self, call: Call) -> Spent:
        """What a second question may take: it quotes a reply that took all tokens allowed."""
        names = ", ".join(name for own in self.rubric.names.values() for name in own)
        again = _again(call, "", names + "x" * _LONGEST_WHY)
        return expected_usage(again) + Spent(tokens_in=call.max_tokens)

    def _call(self, item: JudgeRequest) -> Call:
        family = family_of(item.context)
        filled = self.rubric.prompt(item)
        settings = self.capability.settings(max_tokens=self.limit, temperature=self.temperature)
        if self.rubric.create is None:  # a file's prompt says itself what it wants
            schema = schema_of(family, self.rubric.names[family])
            settings |= response_format(self.capability.format, f"{family}_grades", schema)
        return chat_call(self.client.endpoint, (user(filled),), settings)

    def graded(self, item: JudgeRequest, found: Found) -> GradedItem:
        """The row of an item, with its grades or why there are none."""
        first = self._call(item)
        repair = _repair(first, found, item.context, self.rubric)
        keys = (first.key, repair.key) if repair else (first.key,)
        blank = GradedItem(item, {}, keys=keys, cut=is_cut(item))
        outcome = found[keys[-1]]
        if isinstance(outcome, CallFailure):
            return replace(blank, status=outcome.status, reason=outcome.reason)
        if outcome.refusal:
            return replace(blank, status="refusal", reason=f"refuses: {outcome.refusal[:80]}")
        try:
            family = family_of(item.context)
            grades = read_grades(outcome.text, family, self.rubric)
        except RubricError as error:
            end = f"; it ends after {self.limit} tokens, raise --max-tokens" if outcome.cut else ""
            return replace(blank, status="parse_error", reason=f"{error}{end}")
        evidence = {REASONING: str(grades.get(REASONING, "")), "repaired": repair is not None}
        scores = {name: float(grades[name]) for name in self.rubric.names[family]}
        return replace(blank, status="ok", scores=scores, evidence=evidence)


def _repair(call: Call, found: Found, context: str, rubric: Rubric) -> Call | None:
    """The second call of an item, if its first reply is there and cannot be read."""
    reply = found.get(call.key)
    if not isinstance(reply, Reply) or reply.refusal or reply.cut:
        return None
    try:
        read_grades(reply.text, family_of(context), rubric)
    except RubricError as error:
        return _again(call, reply.text, str(error))
    return None


def _again(call: Call, said: str, why: str) -> Call:
    """The question once more, after a reply that could not be read."""
    again = (
        f"That could not be read: {why}. Answer again with the one JSON object asked for, "
        "with exactly those keys, and nothing else."
    )
    messages = [*call.body["messages"], {"role": "assistant", "content": said}, user(again)]
    return Call(call.host, {**call.body, "messages": messages})
