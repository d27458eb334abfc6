from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lensaudit.errors import InputError
from lensaudit.results.kinds.eval import EvaluationResult
from lensaudit.results.reading import Number, Whole, checked, checked_as


@dataclass(frozen=True)
class Layer:
    layer: Whole
    s1: Number | None = None


@dataclass(frozen=True)
class Run:
    source: str
    ci95: tuple[Number, Number] | None
    per_layer: list[Layer]


GOOD = {"source": "a", "ci95": [1, 2.5], "per_layer": [{"layer": 1, "s1": None}]}


def test_a_record_takes_its_fields_and_passes_over_the_others():
    found = checked(Run, {**GOOD, "more": {"of": "it"}}, "x.json")
    assert found == Run("a", (1.0, 2.5), [Layer(1)])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"source": 1}, "x.json: source: found 1, wanted a text"),
        ({"ci95": [1]}, "x.json: ci95.1: found [1], wanted another number of values"),
        ({"ci95": [1, 2, 3]}, "x.json: ci95: found [1, 2, 3], wanted another number of values"),
        ({"ci95": [1, "2"]}, "x.json: ci95.1: found '2', wanted a number"),
        ({"ci95": [1, float("nan")]}, "x.json: ci95.1: found nan, wanted a finite number"),
        ({"per_layer": 3}, "x.json: per_layer: found 3, wanted a list"),
        ({"per_layer": [3]}, "x.json: per_layer.0: found 3, wanted an object"),
        ({"per_layer": [{"layer": True}]}, "x.json: per_layer.0.layer: found True, wanted a whole"),
        ({"per_layer": [{"layer": 1.5}]}, "x.json: per_layer.0.layer: found 1.5, wanted a whole"),
        ({"per_layer": [{"s1": 1}]}, "x.json: per_layer.0: has no 'layer'"),
    ],
)
def test_an_error_names_file_field_found_and_wanted(change, said):
    with pytest.raises(InputError) as error:
        checked(Run, GOOD | change, "x.json")
    assert str(error.value).startswith(said)
    assert len(str(error.value).splitlines()) == 1


def test_a_missing_field_and_another_value_altogether():
    with pytest.raises(InputError, match=r"^x: has no 'source'$"):
        checked(Run, {}, "x")
    with pytest.raises(InputError, match=r"^x: found \[\], wanted an object$"):
        checked(Run, [], "x")


def test_lists_of_records_are_checked_too():
    assert checked_as(list[Layer], [{"layer": 2}], "x") == [Layer(2)]
    with pytest.raises(InputError, match=r"^x: 1: found 'a', wanted an object$"):
        checked_as(list[Layer], [{"layer": 2}, "a"], "x")


def test_a_manifest_that_says_nothing_of_how_it_asked_has_no_conditions():
    """Options alone are none: a log would be refused for a template that it does not name."""
    bare = EvaluationResult("m", Path("log"), "tofu", {}, manifest={"options": {"empty": "zero"}})
    assert bare.conditions == {}
    said = {**bare.manifest, "inputs": {"conditions": {"template": "t"}}}
    assert replace(bare, manifest=said).conditions == {"template": "t", "empty": "zero"}
