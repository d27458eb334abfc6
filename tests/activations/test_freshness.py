"""A name means the cache of the weights and rows that lie there now, where they are here."""

import json
import shutil

import pytest

import lensaudit as la
from lensaudit.cli.main import run
from lensaudit.errors import InputError


@pytest.fixture
def work(tiny_checkpoint, tmp_path, monkeypatch):
    """A folder with a model at `models/work` and two questions in `rows.json`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LENSAUDIT_ACTIVATIONS", raising=False)
    shutil.copytree(tiny_checkpoint, "models/work")
    ask(tmp_path, "Who lives here?")
    return tmp_path


def ask(folder, question):
    both = {"question": question, "prefix": "It is"}
    rows = [
        both | {"idx": idx, "answer": f"It is {name}.", "entity": name}
        for idx, name in enumerate(("Ada", "Eve"))
    ]
    (folder / "rows.json").write_text(json.dumps(rows))


def train(folder):
    """Other weights under the same path: a hash is of the configuration too."""
    config = json.loads((folder / "config.json").read_text())
    config["rms_norm_eps"] = 2 * config["rms_norm_eps"]
    (folder / "config.json").write_text(json.dumps(config))


def opened(name="models/work", **wanted):
    with la.open_activations(name, root="activations", **wanted) as cache:
        return cache.folder


def cached(name="models/work"):
    return la.cache(name, "activations", data="rows.json").folder.resolve()


def test_a_checkpoint_that_was_replaced_is_not_read_from_its_old_cache(work, capsys):
    old = cached()
    assert opened().resolve() == old
    train(work / "models" / "work")
    said = r"\(cached of other weights or tokenizer files: run `lensaudit cache`\)"
    with pytest.raises(InputError, match=said):
        opened()
    assert run(["activations", "info", "models/work", "--activations", "activations"]) == 2
    assert "cached of other weights" in capsys.readouterr().err
    assert opened(old.name.rpartition("--")[2]).resolve() == old  # a key is what it is
    new = cached()
    assert old != new == opened().resolve() == opened("./models/work").resolve()


def test_of_a_tokenizer_that_was_saved_otherwise_not_the_weights_alone_are_named(work):
    old = cached()
    settings = work / "models" / "work" / "tokenizer_config.json"
    said = json.loads(settings.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.write_text(json.dumps(said))
    with pytest.raises(InputError, match="cached of other weights or tokenizer files"):
        opened()
    assert old != cached() == opened().resolve()


def test_rows_that_were_changed_are_not_read_from_their_old_cache(work):
    old = cached()
    assert opened(data="rows.json").resolve() == old
    shutil.copy("rows.json", "same.json")
    assert opened(data="same.json").resolve() == old
    ask(work, "Who lives here and asks?")
    said = r"with data=rows.json \(cached of other weights, tokenizer files or rows"
    with pytest.raises(InputError, match=said):
        opened(data="rows.json")
    new = cached()
    assert old != new == opened(data="rows.json").resolve()
    assert opened(data="same.json").resolve() == old


def test_a_copy_of_a_model_has_its_cache_and_a_cache_without_its_model_opens_by_name(work):
    found = cached()
    shutil.copytree("models/work", "models/copy")
    assert cached("models/copy") == opened("models/copy").resolve() == found
    for one in ("work", "copy"):
        shutil.rmtree(work / "models" / one)
    assert opened().resolve() == opened(data="rows.json").resolve() == found
    (work / "rows.json").unlink()
    assert opened(data="rows.json").resolve() == found


def test_of_caches_of_equal_weights_the_one_of_that_name_is_meant(work):
    found = cached()
    shutil.copytree("models/work", "models/copy")
    half = la.cache("models/copy", "activations", data="rows.json", dtype="bfloat16").folder
    assert half.resolve() != found
    assert opened("models/copy").resolve() == half.resolve()
    assert opened().resolve() == found
    shutil.copytree("models/work", "models/third")
    with pytest.raises(InputError, match="means 2 caches"):
        opened("models/third")
