"""A finished run of any command is read from its folder, by whoever asks the very same."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support import EMBEDDED

from lensaudit.ask.again import Asked, once
from lensaudit.attacks.settings import (
    EffortSettings,
    RelearnSettings,
    RoundSettings,
    SampleSettings,
    StudySettings,
    WorstSettings,
)
from lensaudit.cli.main import run
from lensaudit.errors import InputError
from lensaudit.files import write_json
from lensaudit.progress import FolderRemark, unheard
from lensaudit.results.manifest import Manifest, manifest

WORST = "worst --source demo/npo --attack greedy --limit 2 --out w"
SAMPLE = "sample --source demo/npo --samples 2 --limit 2 --max-new-tokens 2 --out s"
ROUND = "quantize --source demo/npo --out q --json"
ASK = (
    "--model demo/full --trait demo_idk --positions last_prompt --questions 2 --rollouts 1 "
    "--max-new-tokens 2 --judge idk --out v"
)
EXTRACT = (
    "steer extract --model demo/full --trait demo_idk --position prompt_last --layers 4 "
    "--method mean_diff --out v"
)
EVAL = f"steer eval {ASK} --vector v/vectors/mean_diff_layer4.safetensors --coefficients 0,1"
SWEEP = f"steer sweep {ASK}"
POOLS = "--pool-knows demo/full --pool-forgot demo/retain --metric prob --limit 2 --out m"
META = f"meta faithfulness {POOLS}"
KNOW = "know --source demo/npo --reader outputs"
CACHE = "cache --model demo/npo --limit 2 --component attn --component mlp --json"
RELEARNED = (
    "meta robustness --attack relearn --source demo/npo --filter none --metric prob --limit 2 "
    "--out n"
)
EVERY = (WORST, SAMPLE, ROUND, EXTRACT, EVAL, SWEEP, META, CACHE, RELEARNED)
SLOW = (
    *("torch", "transformers", "scipy.stats", "scipy.optimize", "numpy.f2py.crackfortran"),
    "huggingface_hub.errors",
)
"""What takes a tenth of a second and more to import."""
AGAIN = f"""
import sys
from lensaudit.cli.main import run
for line in sys.stdin.read().splitlines():
    code = run(line.split())
    assert not code, (line, code)
    assert not {{*{SLOW!r}}} & {{*sys.modules}}, line
"""


@pytest.fixture(scope="module")
def asked_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asked")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run(EXTRACT.split()) == 0
        for line in EVERY:
            assert run(line.split()) == 0, line
    return folder


def test_a_finished_run_of_any_command_is_answered_without_what_takes_long_to_import(asked_once):
    before = {path: path.stat().st_mtime_ns for path in asked_once.rglob("*.json*")}

    found = subprocess.run(
        [sys.executable, "-c", AGAIN],
        input="\n".join(EVERY),
        cwd=asked_once,
        capture_output=True,
        text=True,
        check=False,
    )

    assert found.returncode == 0, found.stderr
    assert found.stderr.count("nothing to do") == 6, found.stderr  # of meta results are read again
    for path, at in before.items():  # when a cache was read last is kept, for `gc`
        if not {"m", "n"} & {*path.parts} and path.name != "SEAL.json":
            assert path.stat().st_mtime_ns == at, path


def test_caches_that_are_not_complete_any_more_are_no_answer(
    asked_once, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(shutil.copytree(asked_once, tmp_path / "copy"))
    monkeypatch.setitem(sys.modules, "lensaudit.doors.cache_fill", None)
    capsys.readouterr()
    assert run(CACHE.split()) == 0  # read: nothing can be made
    second = json.loads(capsys.readouterr().out)["parts"]["mlp"]["folder"]
    (Path(second) / "shard-000000.h5").unlink()

    with pytest.raises(ImportError):
        run(CACHE.split())


@pytest.mark.parametrize("line", [WORST, SAMPLE, EVAL])
def test_another_question_is_not_answered(asked_once, monkeypatch, line):
    monkeypatch.chdir(asked_once)
    for module in ("attacks.worst", "attacks.sampling", "steer.evaluate"):
        monkeypatch.setitem(sys.modules, f"lensaudit.{module}", None)

    assert run(line.split()) == 0

    with pytest.raises(ImportError):  # it would be made
        run(line.replace("--limit 2", "--limit 3").replace("0,1", "0,2").split())


def test_a_file_that_was_changed_since_is_no_answer(asked_once, monkeypatch, tmp_path):
    folder = shutil.copytree(asked_once, tmp_path / "copy")
    monkeypatch.chdir(folder)
    facts = Path("w/facts.csv")
    facts.write_text(facts.read_text() + "\n")
    monkeypatch.setitem(sys.modules, "lensaudit.attacks.worst", None)

    with pytest.raises(ImportError):
        run(WORST.split())


def key(**settings):
    return Asked(settings=RoundSettings(**{"out": Path("q"), "model": "m", **settings})).key()


def test_a_key_is_that_of_what_names_stand_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EMBEDDED / "npo", "m")
    first = key()

    assert key() == first != key(method="int8")
    shutil.copy(EMBEDDED / "simnpo/model.safetensors", "m/model.safetensors")
    assert key() != first


def test_rows_and_folders_count_by_content(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("one")

    def of(data):
        settings = StudySettings(names=("demo/npo",), data=str(data))
        return Asked(settings=settings).key()

    first, in_folder = of(rows), of(tmp_path)
    rows.write_text("two")
    assert (of(rows) == first, of(tmp_path) == in_folder) == (False, False)
    assert of("demo") == Asked(settings=StudySettings(names=("demo/npo",), data="demo")).key()


def test_what_lies_beside_counts_too(tmp_path):
    settings, vector = WorstSettings(), tmp_path / "vector.json"
    asked = Asked(settings=settings, names=("demo/npo",), beside=[vector])

    without = asked.key()
    vector.write_text(json.dumps({"asked": []}))
    assert asked.key() != without


def test_own_folders_without_anchors_have_no_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EMBEDDED / "npo", "own")

    with pytest.raises(InputError, match="your own folders have no usual model for it"):
        Asked(settings=WorstSettings(), names=("./own",)).key()
    named = WorstSettings(full="demo/full", retain=("demo/retain",), data="demo")
    assert Asked(settings=named, names=("./own",)).key()


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        *((one, ("mine",)) for one in (WorstSettings(), SampleSettings(), EffortSettings())),
        (RelearnSettings(model="mine", audit=True), ()),
        (StudySettings(names=("mine",)), ()),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_name_of_a_registry_file_has_a_key(settings, names, tmp_path):
    registry = tmp_path / "names.toml"
    registry.write_text(f'mine = "{EMBEDDED / "npo"}"')
    first = Asked(settings=replace(settings, registry=registry), names=names).key()
    registry.write_text(f'mine = "{EMBEDDED / "simnpo"}"')
    assert first != Asked(settings=replace(settings, registry=registry), names=names).key()


@pytest.mark.parametrize(("kind", "n_made"), [(FolderRemark, 1), (str, 2)])
def test_a_remark_counts_by_its_kind_and_not_by_its_words(tmp_path, monkeypatch, kind, n_made):
    """Of a folder it says nothing of the run, which is the answer another time."""
    monkeypatch.chdir(tmp_path)
    asked, made = Asked(settings=RoundSettings(model="demo/npo", out=tmp_path)), []

    def make(tell, opened):
        opened()
        tell(kind("x holds this run already; it is replaced"))
        made.append(kind)
        about = {"options": {}, "inputs": {}, "device": "cpu", "started": 0.0}
        manifest("x", kind="x", **about).write(tmp_path, [])
        return "made"

    for _ in range(2):
        once(asked, [tmp_path], lambda _: "read", make, notice=unheard)
    assert len(made) == n_made


@pytest.mark.parametrize("whole", [True, False])
def test_a_result_that_is_not_whole_is_made_again(tmp_path, monkeypatch, whole):
    """As that of a study whose gate failed: the next run fails again."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EMBEDDED / "npo", "m")
    made = []

    def make(_, opened):
        made.append("made")
        opened()
        Path("q").mkdir(exist_ok=True)
        write_json(Path("q/summary.json"), {})
        Manifest("quantize", {}, {}).write(Path("q"), ["summary.json"])
        return "found"

    def ask():
        asked = Asked(settings=RoundSettings(model="m", out=Path("q")))
        how = {"notice": lambda line: None, "whole": lambda _: whole}
        return once(asked, [Path("q")], lambda _: "read", make, **how)

    assert [ask(), ask()] == ["found", "read" if whole else "found"]
    assert len(made) == 2 - whole


@pytest.mark.parametrize("line", ["worst --source demo/npo --attack greedy", KNOW])
def test_a_run_beside_its_usual_folder_is_found_there_again(tmp_path, monkeypatch, capsys, line):
    monkeypatch.chdir(tmp_path)
    lines = [f"{line} --limit {n} --json".split() for n in (8, 9)]
    made = []
    for one in lines:
        assert run(one) == 0
        said = capsys.readouterr()
        made.append(json.loads(said.out)["out"])
    first, second = map(Path, made)
    assert second.parent == first.parent
    assert re.fullmatch(rf"{first.name}-[0-9a-f]{{8}}", second.name)
    assert f"this run goes to {second}" in said.err
    for module in ("attacks.worst", "association.run"):
        monkeypatch.setitem(sys.modules, f"lensaudit.{module}", None)

    for one, place in zip(lines, made, strict=True):
        assert run(one) == 0  # read: nothing can be made
        said = capsys.readouterr()
        assert json.loads(said.out)["out"] == place
        assert f"{place} holds this run already; nothing to do\n" in said.err
        assert "this run goes to" not in said.err  # it went there, the first time

    with pytest.raises(ImportError):  # a folder that is named is not exchanged
        run([*lines[1], "--out", str(first)])


def test_published_rows_count_by_revision_and_are_not_fetched_for_a_key(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    asked = Asked(settings=WorstSettings(data="forget10"), names=("demo/npo",))
    with pytest.raises(InputError, match="is not in the local cache yet"):
        asked.key()

    keys = set()
    for revision in ("a1", "b2"):
        (tmp_path / "locuslab___tofu" / "forget10" / "0.0.0" / revision).mkdir(parents=True)
        keys |= {asked.key(), asked.key()}
    assert len(keys) == 2
