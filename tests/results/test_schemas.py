"""The schemas in docs/schemas are those of the records, and what commands write fits them."""

import json

import jsonschema
import pytest
from test_kinds import FILES, of_golden

from docs.make_schemas import DIALECT, SCHEMAS, VERSIONS, place_of, schema_of, text_of
from lensaudit.results.kinds.table import kinds


@pytest.mark.parametrize("kind", kinds())
def test_a_schema_is_what_the_records_give(kind):
    assert place_of(kind).read_text() == text_of(kind)  # python docs/make_schemas.py
    schema = schema_of(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == DIALECT
    assert schema["$id"] == f"urn:lensaudit:schema:{kind}:{schema['version']}"


def test_there_is_one_for_each_kind_and_no_other():
    assert {one.name for one in SCHEMAS.iterdir()} == {place_of(kind).name for kind in kinds()}
    assert set(VERSIONS) == set(kinds())


def validator(kind):
    return jsonschema.Draft202012Validator(json.loads(place_of(kind).read_text()))


@pytest.mark.parametrize(("kind", "name", "file"), FILES, ids=[f"{k} {n}" for k, n, _ in FILES])
def test_what_a_command_wrote_fits_the_schema(kind, name, file):
    found = validator(kind).iter_errors(of_golden(name, file))
    assert [f"{one.json_path}: {one.message}" for one in found] == []


def test_another_value_does_not_fit():
    believed, n = [], 0
    for kind, name, file in FILES:
        content, check = of_golden(name, file), validator(kind)
        assert not check.is_valid("a text")
        record = content[0] if isinstance(content, list) else content
        for key in (one for one in record if one != "check"):
            n += 1
            damaged = {**record, key: [["a text"]]}
            if check.is_valid([damaged] if isinstance(content, list) else damaged):
                believed.append(f"{kind}.{key}")
    assert n > 300
    # which takes what its table holds
    assert set(believed) == {"patch.over_erased_by"}
