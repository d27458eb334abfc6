"""JSON Schemas of every kind of result, made of the records that commands write and rooms read.

Command: python docs/make_schemas.py. What a record spells in another way than field by field is
taken from what it writes of an example.
"""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from lensaudit.kinds.curve import CurveRow
from lensaudit.kinds.directions import Recovery
from lensaudit.kinds.rtt import Accuracy
from lensaudit.kinds.steering import LayerScore
from lensaudit.results.kinds.eval import MetricResult
from lensaudit.results.kinds.patch import WRITTEN
from lensaudit.results.kinds.table import kinds
from lensaudit.scores.estimate import UNMEASURED, Estimate
from lensaudit.settings import COUNTERFACTUAL

SCHEMAS = Path(__file__).resolve().parent / "schemas"
WIDTH = 90
DIALECT = "https://json-schema.org/draft/2020-12/schema"
VERSIONS: Mapping[str, int] = dict.fromkeys(kinds(), 1)
"""Kind of a result -> version of its file; one more where a reader of the last one would fail."""

_MEASURED = Estimate(0.5, 0.25, 0.75, 9, "why")
_METRIC = MetricResult(value=0.5, low=0.25, high=0.75, why="why", assumes="that", failed="work")
EXAMPLES: Mapping[str, tuple[Any, ...]] = {
    "Recovery": (Recovery(0.5, 0.25, 0.75, 9, mean=0.5, sd=0.1), Recovery(None, why="why")),
    "Accuracy": (Accuracy(0.5, 0.25, 0.75, 9, n_splits=1), Accuracy(value=None, why="why")),
    "CurveRow": (CurveRow(1), CurveRow(1, failure="why")),
    "LayerScore": (LayerScore(), LayerScore(mean=0.5, std=0.5)),
    "MetricResult": (_METRIC, MetricResult(why="why"), MetricResult(value=0.5, why="why")),
}
"""Record that says itself how it is written -> what it may hold; any other: an estimate."""
_NUMBER = {"type": ["number", "null"]}
_BY_IDX = {"type": "object", "propertyNames": {"pattern": "^[0-9]+$"}}
_SIDE = {"type": "object", "description": "Of a membership attack: a metric of one side."}
_BESIDE: Mapping[str, Mapping[str, Any]] = {
    "CurveRow": {
        "properties": {"epoch": {"type": "number"}},
        "additionalProperties": _NUMBER,
        "description": "A row of `curve.json`; further fields are metrics by name.",
    },
    "MetricResult": {
        "properties": {
            "value_by_index": {**_BY_IDX, "additionalProperties": {"type": "object"}},
            "unscored": {**_BY_IDX, "additionalProperties": {"type": "string"}},
            **dict.fromkeys(("forget", "holdout"), _SIDE),
        },
        "description": "A metric in open-unlearning's layout; further fields are its details.",
    },
}
"""What no example says: fields whose names are data, and records inside."""


def like(written: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The schema of an object of which there are examples: fields of all of them are required."""
    examples = list(written)
    names = dict.fromkeys(name for one in examples for name in one)
    return {
        "type": "object",
        "properties": {
            name: _one_of(_of_value(one[name]) for one in examples if name in one) for name in names
        },
        "required": [name for name in names if all(name in one for one in examples)],
    }


def _of_value(value: Any) -> dict[str, Any]:
    match value:
        case None:
            return {"type": "null"}
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case str():
            return {"type": "string"}
        case Mapping():
            return like([value])
        case _:
            items = _one_of(map(_of_value, value))
            return {"type": "array", "items": items, "minItems": len(value), "maxItems": len(value)}


def _one_of(schemas: Iterable[dict[str, Any]]) -> dict[str, Any]:
    different = list({json.dumps(one): one for one in schemas}.values())
    return different[0] if len(different) == 1 else {"anyOf": different}


class ResultSchema(GenerateJsonSchema):
    """Pydantic's schema of what is written, without its titles and defaults."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """A field's name says as much."""
        return False

    def field_is_required(self, field: Any, total: bool) -> bool:
        """All that is written, default or not."""
        return not field.get("serialization_exclude")

    def default_schema(self, schema: Any) -> Any:
        """Without the default: it is written too."""
        return self.generate_inner(schema["schema"])

    def ser_schema(self, schema: Any) -> Any:
        """Of what is written by a function of its own, what that writes of examples."""
        if schema["type"] == "function-wrap":  # of the fields: see `dataclass_schema`
            return None
        if schema["type"] != "function-plain":
            return super().ser_schema(schema)
        function = schema["function"]
        owner = function.__qualname__.partition(".")[0]
        found = like(map(function, EXAMPLES.get(owner, (_MEASURED, UNMEASURED))))
        return beside(found, owner)

    def dataclass_schema(self, schema: Any) -> Any:
        """A record field by field, each with the words under it."""
        found, record = super().dataclass_schema(schema), schema["cls"]
        found.pop("title", None)
        words = _words(record)
        for name, one in found["properties"].items():
            if name in words and "$ref" not in one:
                one["description"] = words[name]
        if schema.get("serialization", {}).get("type") == "function-wrap":
            self._adapt(found, record, schema["serialization"]["function"])
        return found

    def _adapt(self, found: dict[str, Any], record: type, function: Any) -> None:
        """What a record leaves out or spells beside its fields."""
        told = inspect.getclosurevars(inspect.unwrap(function)).nonlocals
        fields, own = found["properties"], record.__dataclass_fields__  # type: ignore[attr-defined]
        if (name := told.get("name")) is not None:  # an estimate's numbers stand beside the rest
            spelled = like(one.spelled(name) for one in (_MEASURED, UNMEASURED))
            rest = {key: one for key, one in fields.items() if key != name}
            found["properties"] = {**spelled["properties"], **rest}
            found["required"] = [key for key in found["properties"] if key not in told["optional"]]
            return
        # some fields are left out where there is nothing in them
        found["required"] = [one for one in fields if one in own and _is_needed(own[one])]
        if record.__name__ in EXAMPLES:
            written = like(map(TypeAdapter(record).dump_python, EXAMPLES[record.__name__]))
            found["properties"] = {**written["properties"], **fields}
            found["required"] += [one for one in written["required"] if one not in fields]


def beside(found: dict[str, Any], owner: str) -> dict[str, Any]:
    """A schema with what no example says."""
    more = _BESIDE.get(owner, {})
    return {**found, **more, "properties": {**found["properties"], **more.get("properties", {})}}


def _is_needed(field: Any) -> bool:
    return field.default is field.default_factory  # both are missing


def _words(record: type) -> dict[str, str]:
    """Field -> what stands under it in the source, of a record and of those it inherits."""
    found: dict[str, str] = {}
    for one in reversed(record.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0].body  # type: ignore[attr-defined]
        for field, under in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(under, ast.Expr):
                words = inspect.cleandoc(str(getattr(under.value, "value", "")))
                found[ast.unparse(field.target)] = " ".join(words.split())
    return found


def schema_of(kind: str) -> dict[str, Any]:
    """The schema of the file that marks a result of a kind."""
    row = kinds()[kind]
    record = Mapping[str, MetricResult] if kind == "eval" else row.record
    adapter = TypeAdapter(record)
    body = adapter.json_schema(mode="serialization", schema_generator=ResultSchema)
    if kind in ("patch", COUNTERFACTUAL):
        body = _of_scores(body, [one for one in WRITTEN if (one == kind) == (kind != "patch")])
    version = VERSIONS[kind]
    head = {
        "$schema": DIALECT,
        "$id": f"urn:lensaudit:schema:{kind}:{version}",
        "title": f"{kind}: {', '.join(row.files)}",
        "version": version,
    }
    return head | _plain(_used(body))


def _used(body: dict[str, Any]) -> dict[str, Any]:
    """A schema without definitions that nothing in it names."""
    every, rest = body.get("$defs", {}), {key: one for key, one in body.items() if key != "$defs"}
    used: set[str] = set()
    waiting = [json.dumps(rest)]
    while waiting:
        text = waiting.pop()
        named = {name for name in every if f'"#/$defs/{name}"' in text} - used
        used |= named
        waiting += [json.dumps(every[name]) for name in named]
    return ({"$defs": {name: every[name] for name in every if name in used}} if used else {}) | rest


def _plain(schema: Any) -> Any:
    """The same in fewer words: null as a second type."""
    if isinstance(schema, list):
        return list(map(_plain, schema))
    if not isinstance(schema, dict):
        return schema
    found = {name: _plain(one) for name, one in schema.items()}
    null = {"type": "null"}
    kinds = found.get("anyOf", ())
    if len(kinds) == 2 and null in kinds:
        (other,) = [one for one in kinds if one != null]
        if isinstance(other.get("type"), str):
            rest = {name: one for name, one in found.items() if name != "anyOf"}
            return {**other, "type": [other["type"], "null"], **rest}
    return found


def _of_scores(body: dict[str, Any], scores: list[str]) -> dict[str, Any]:
    """The schema of a run of `patch` with one of some scores."""
    names = dict.fromkeys(name for one in scores for name in WRITTEN[one])
    fields = {name: body["properties"][name] for name in names}
    return body | {"properties": fields | {"score": {"enum": scores}}}


def text_of(kind: str) -> str:
    """As the file holds it."""
    return _laid_out(schema_of(kind)) + "\n"


def _laid_out(value: Any, indent: str = "") -> str:
    """JSON with what fits on a line on one line."""
    short = json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, dict | list) or len(indent + short) <= WIDTH:
        return short
    deeper = f"{indent}  "
    if isinstance(value, list):
        return _block("[]", [_laid_out(one, deeper) for one in value], indent)
    pairs = [f"{json.dumps(key)}: {_laid_out(one, deeper)}" for key, one in value.items()]
    return _block("{}", pairs, indent)


def _block(ends: str, parts: list[str], indent: str) -> str:
    inside = f",\n{indent}  ".join(parts)
    return f"{ends[0]}\n{indent}  {inside}\n{indent}{ends[1]}"


def place_of(kind: str) -> Path:
    """Where the schema of a kind lies."""
    return SCHEMAS / f"{kind}.schema.json"


def main() -> None:
    """Write all of them."""
    SCHEMAS.mkdir(exist_ok=True)
    for kind in kinds():
        place_of(kind).write_text(text_of(kind), encoding="utf-8")


if __name__ == "__main__":
    main()
