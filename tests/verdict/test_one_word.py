"""Relearned, attacked, swept and watched: one model, one word, wherever it is read."""

import json
import re
import shutil

import pytest
from support import EMBEDDED
from support.agreement import agreed, printed
from support.page_reader import Answers
from support.sweep_helpers import command

from lensaudit.verdict.decide import WORDS

pytestmark = pytest.mark.slow

ASKED = "--metric uds --association none"


def exported(place, *folders):
    """Codes in the files that `export` writes for these folders."""
    printed("export", *folders, "--to", "eee", "--out", place)
    texts = [path.read_text() for path in place.rglob("*.json")]
    return sorted(code for text in texts for code in re.findall(r'"verdict": "(\w+)"', text))


def words_of(codes):
    return sorted(WORDS[code][0] for code in codes)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    root = tmp_path_factory.mktemp("swept")
    models = ("demo/never", "demo/masked_readout")
    assert command("sweep plan", *models, ASKED, "--variants base,relearn-1ep --out", root) == 0
    assert command("sweep run", root) == 0
    assert command("sweep collect", root) == 0
    return root / "results"


def test_swept_and_relearned_models(swept, tmp_path):
    words = agreed(tmp_path, swept)
    told = json.loads((swept / "verdicts.json").read_text())
    assert {one["variant"] for one in told} == {"base", "relearn-1ep"}
    codes = {f"{one['model']} · {one['variant']}": one["code"] for one in told}
    assert {label: WORDS[code][0] for label, code in codes.items()} == words
    assert words_of(exported(tmp_path / "eee", swept)) == sorted(words.values())
    assert codes["demo/masked_readout · base"] == "hidden"


def test_a_model_that_was_relearned_alone_has_no_verdict_anywhere(tmp_path):
    """One run of each model has no interval, so nobody finds a word in it."""
    line = "relearn --source demo/masked_readout --epochs 0.25 --audit --out"
    assert command(line, tmp_path / "relearned") == 0
    audit = tmp_path / "relearned" / "audit"
    policy, page = tmp_path / "gate.toml", tmp_path / "page.html"
    policy.write_text("")
    (told, *_) = printed("verdict", audit)
    (gated, *_) = printed("verdict", audit, "--gate", policy)
    assert told.startswith("demo/masked_readout: no verdict: ")
    assert gated.startswith("FAIL  demo/masked_readout: no verdict")
    printed("report", audit, "-o", page)
    assert Answers(page).verdicts == {}
    assert words_of(exported(tmp_path / "eee", audit)) == ["no verdict"]


def test_a_model_that_was_attacked_beside_its_audit(tmp_path):
    source = "--source demo/masked_readout"
    attacks = {
        "patch": f"patch {source}",
        "worst": f"worst {source} --limit 16 --attack greedy --attack prefix",
        "rtt": f"rtt run {source} --v-runs 1 --lr 1e-3 --epochs 1",
        "know": f"know {source}",
    }
    for name, line in attacks.items():
        assert command(line, "--out", tmp_path / name) == 0, name
    folders = [tmp_path / name for name in attacks]
    words = agreed(tmp_path, *folders)
    assert list(words) == ["demo/masked_readout"]
    assert words == agreed(tmp_path, *reversed(folders))
    assert words_of(exported(tmp_path / "eee", *folders)) == [*words.values()]


def test_a_model_that_is_watched(tmp_path, monkeypatch, swept):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EMBEDDED / "masked_readout", tmp_path / "run" / "checkpoint-1")
    rows = "--full demo/full --retain demo/retain --data demo"
    assert command("watch run --once --set settled=0 --out watched", rows, ASKED) == 0
    words = agreed(tmp_path, tmp_path / "watched" / "units")
    assert words_of(exported(tmp_path / "eee", tmp_path / "watched" / "units")) == [*words.values()]
    told = json.loads((swept / "verdicts.json").read_text())
    named = ("demo/masked_readout", "base")
    (same,) = [one for one in told if (one["model"], one["variant"]) == named]
    assert words_of([same["code"]]) == [*words.values()]
