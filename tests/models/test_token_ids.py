"""Ids that no vocabulary has are one line when a checkpoint is opened."""

import json
import os
import shutil

import pytest
from safetensors.torch import load_file
from support import EMBEDDED

from lensaudit.errors import InputError
from lensaudit.models.checkpoint import open_model, tell_stored_twice


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(EMBEDDED / "npo", tmp_path / "model")


def changed(folder, file, **fields):
    content = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps({**content, **fields}))


@pytest.mark.parametrize(
    ("file", "name", "value", "shown"),
    [
        ("config.json", "pad_token_id", 1536, "1536"),
        ("config.json", "eos_token_id", [0, 9999], "9999"),
        ("generation_config.json", "bad_words_ids", [[3, 4], [9999]], "9999"),
        ("generation_config.json", "forced_eos_token_id", 5000, "5000"),
        ("generation_config.json", "eos_token_id", ["a"], "'a'"),
        ("generation_config.json", "eos_token_id", [[1]], "[1]"),
        ("generation_config.json", "suppress_tokens", [1.5], "1.5"),
        ("generation_config.json", "pad_token_id", True, "True"),
        ("generation_config.json", "bos_token_id", -1537, "-1537"),
    ],
)
def test_an_id_beyond_the_vocabulary_is_refused(folder, file, name, value, shown):
    changed(folder, file, **{name: value})
    with pytest.raises(InputError) as error:
        open_model(str(folder))
    assert str(error.value) == (
        f"{folder / file}: {name} names {shown}, which is no token of its vocabulary of 1536; "
        "mend the file"
    )


@pytest.mark.parametrize("value", [None, -1, 0, 1535, [0, 1535]])
def test_an_id_of_the_vocabulary_and_none_are_not(folder, value):
    changed(folder, "generation_config.json", eos_token_id=value, forced_eos_token_id=value)
    assert open_model(str(folder)).d_vocab == 1536


def test_weights_of_another_kind_beside_those_that_are_read_are_told(folder):
    told = []
    tell_stored_twice(open_model(str(folder)), notice=told.append)
    assert told == []
    read, other = folder / "model.safetensors", folder / "pytorch_model.bin"
    assert load_file(read)
    (folder / "training_args.bin").touch()
    other.touch()
    for seconds, newer in ((-9, ""), (9, ", and is newer")):
        at = read.stat().st_mtime + seconds
        os.utime(other, (at, at))
        tell_stored_twice(open_model(str(folder)), notice=told.append)
        said = f"{folder}: safetensors are read; pytorch_model.bin beside them is not{newer}"
        assert told.pop() == said
