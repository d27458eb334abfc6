"""The rubric of open-unlearning's judge: several grades 0 to 10 in one JSON object.

locuslab/open-unlearning pull request 121: forget items are graded on removal, retain items on
retention. There a reply that is not the JSON wanted counts as -1000000 in the mean; here it has no
grades and is counted.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Family = Literal["forget", "retain"]
TOP = 10
REASONING = "reasoning"
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


@dataclass(frozen=True)
class Grades:
    """One item's grades."""

    scores: Mapping[str, int]
    """Metric -> 0 to 10."""
    reasoning: str


def family_of(context: str) -> Family:
    """`forget` if the context's name says so, else `retain`, as upstream decides."""
    return "forget" if "forget" in context.lower() else "retain"


def template_of(family: Family) -> str:
    """The prompt, with `{question}`, `{truth}` and `{answer}`."""
    names = METRICS[family]
    return _TEMPLATE.format(
        top=TOP,
        metrics="\n".join(f"- {name}: {_MEANING[name]}" for name in names),
        keys=", ".join(f'"{name}"' for name in (REASONING, *names)),
        reasoning=REASONING,
    )


def schema_of(family: Family) -> dict[str, Any]:
    """JSON schema of the reply, strict: these keys, no others."""
    grade = {"type": "integer", "minimum": 0, "maximum": TOP}
    names = METRICS[family]
    return {
        "type": "object",
        "properties": {REASONING: {"type": "string"}, **{name: grade for name in names}},
        "required": [REASONING, *names],
        "additionalProperties": False,
    }


def read_grades(text: str, family: Family) -> Grades:
    """The grades in a reply: in its last JSON object, whatever stands around it.

    Raises:
        RubricError: no object, other keys, or a grade that is no whole number from 0 to 10.
    """
    found = _last_object(text)
    if found is None:
        raise RubricError("the reply holds no JSON object")
    wanted = METRICS[family]
    missing = [name for name in wanted if name not in found]
    extra = [name for name in found if name not in (REASONING, *wanted)]
    if missing or extra:
        parts = [f"has no {', '.join(missing)}"] if missing else []
        parts += [f"has the extra key {', '.join(map(str, extra))[:60]}"] if extra else []
        raise RubricError(f"the JSON object {' and '.join(parts)}")
    for name in wanted:
        grade = found[name]
        if isinstance(grade, bool) or not isinstance(grade, int) or not 0 <= grade <= TOP:
            raise RubricError(f"{name} is {grade!r:.40}, wanted a whole number from 0 to {TOP}")
    return Grades({name: found[name] for name in wanted}, str(found.get(REASONING, "")))


def repair_message(problem: str) -> str:
    """What a judge is told once after a reply that could not be read."""
    return (
        f"That could not be read: {problem}. Answer again with the one JSON object asked for, "
        "with exactly those keys, and nothing else."
    )


def _last_object(text: str) -> dict[str, Any] | None:
    decoder = json.JSONDecoder()
    found, at = None, text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            found = value if isinstance(value, dict) else found
        at = text.find("{", end)
    return found
