"""What was copied from the references is what the references hold."""

import json

import pytest
from support import GOLDEN, golden_values


@pytest.mark.parametrize("name", ["method_results.json", "meta_eval.json"])
def test_published_tables_are_copied_whole(shared, name):
    original = json.loads((shared / "data" / "published" / name).read_text())
    assert json.loads((GOLDEN / "published" / name).read_text()) == original


def test_unit_vectors_are_copied_but_for_sentences_of_tofu(shared):
    path = shared / "golden" / "open_unlearning" / "unit_vectors.json"
    original, ours = (
        json.loads(path.read_text()),
        golden_values("open_unlearning/unit_vectors.json"),
    )
    assert original.keys() == ours.keys()
    for name in original.keys() - {"rouge", "zlib_len"}:
        assert ours[name] == original[name], name
    assert ours["rouge"][1:] == original["rouge"][1:]
    # the first pair has other words in the same places
    texts = ("gold", "generation")
    assert {k: v for k, v in ours["rouge"][0].items() if k not in texts} == {
        k: v for k, v in original["rouge"][0].items() if k not in texts
    }
    assert sum(ours["zlib_len"].get(text) == n for text, n in original["zlib_len"].items()) == 4
