"""What a generation depends on beside weights and texts is read from the folder."""

import json
import shutil
from types import SimpleNamespace

import pytest
from support import EMBEDDED, checkpoint_of, refusal

from lensaudit.models.checkpoint import open_model
from lensaudit.models.generation_settings import generation_config_of, obeyed
from lensaudit.models.stops import told_stops

TOKENIZER, OTHER = (SimpleNamespace(eos_token_id=end) for end in (1, 7))
"""The one ends texts as `config.json` says."""


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(EMBEDDED / "npo", tmp_path / "npo")


def configured(folder, **settings):
    path = folder / "generation_config.json"
    own = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(own | settings))
    return obeyed(checkpoint_of(folder), TOKENIZER)


def test_an_ordinary_checkpoint_obeys_nothing_so_its_keys_stay(folder):
    assert obeyed(checkpoint_of(folder), TOKENIZER) == {}
    (folder / "generation_config.json").unlink(missing_ok=True)
    assert obeyed(checkpoint_of(folder), TOKENIZER) == {}
    # what greedy generation of a given length does not read
    inert = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_length": 4096}
    assert configured(folder, **inert, pad_token_id=2) == {}
    # the tokenizer's end of text, where this file names none
    assert obeyed(checkpoint_of(folder), OTHER) == {"eos_token_id": 7}


def test_what_changes_a_generation_counts_and_another_end_than_the_configurations(folder):
    assert configured(folder, repetition_penalty=1.3) == {"repetition_penalty": 1.3}
    found = configured(folder, no_repeat_ngram_size=3, eos_token_id=[1, 5])
    wanted = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "eos_token_id": [1, 5]}
    assert found == wanted
    assert generation_config_of(checkpoint_of(folder)).eos_token_id == [1, 5]


def test_ends_are_in_a_key_where_they_are_not_those_in_the_hash_of_the_weights(folder):
    own = json.loads((folder / "config.json").read_text())["eos_token_id"]
    assert told_stops(checkpoint_of(folder), checkpoint_of("demo/full")) == {}
    configured(folder, eos_token_id=[own])
    assert told_stops(checkpoint_of(folder)) == {}
    configured(folder, eos_token_id=[5, own])
    weights = checkpoint_of(folder).weights
    told = told_stops(checkpoint_of("demo/full"), checkpoint_of(folder))
    assert told == {"stop": {weights: sorted([own, 5])}}


def test_ends_that_only_the_tokenizer_names_are_in_a_key(folder):
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": None}))
    one = checkpoint_of(folder)
    assert obeyed(one, OTHER) == {"eos_token_id": 7}
    assert told_stops(one) == {"stop": {one.weights: [config["eos_token_id"]]}}


def test_a_broken_file_is_one_line(folder):
    (folder / "generation_config.json").write_text("[1")
    assert "generation_config.json: line 1 is not JSON" in refusal(open_model, str(folder))
