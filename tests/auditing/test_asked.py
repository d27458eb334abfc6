"""A finished run is read from its files, and nothing stale ever is."""

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import partial

import pytest
from support import EMBEDDED, taken_for_tofu

from lensaudit.association import calls as known
from lensaudit.auditing import question as asking
from lensaudit.auditing.calls import evaluated, patched
from lensaudit.auditing.patch import check_places
from lensaudit.auditing.question import patch_key as asked
from lensaudit.auditing.settings import AuditSettings, EvaluateSettings
from lensaudit.cli.main import run
from lensaudit.data.suites import Split
from lensaudit.doors.verify import verify
from lensaudit.errors import InputError
from lensaudit.files import read_json, write_json
from lensaudit.models import hashing
from lensaudit.patching.settings import PatchSettings
from lensaudit.results.manifest import BEGUN, signed
from lensaudit.results.question import Question
from lensaudit.screen.depth import comparison_of
from lensaudit.text import digest, slug
from lensaudit.turns import in_turn

RUN = """
import json, sys
from lensaudit.cli.main import run
for arguments in json.loads(sys.argv[1]):
    code = run(arguments)
    heavy = {"torch", "transformers", "transformer_lens", "pandas"} & set(sys.modules)
    print("<end>", end="", flush=True)
    print("<end>", code, *sorted(heavy), file=sys.stderr)
"""
pytestmark = pytest.mark.usefixtures("one_type")
PATCH = ("patch", "--limit", "2", "--layers", "9,12", "--align", "none")


def commands(folder, *calls):
    """Of each call, one after the other in a process of their own: exit code and stdout.

    None of them imports what is heavy.
    """
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(calls)],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    ends = [line.split()[1:] for line in done.stderr.splitlines() if line.startswith("<end>")]
    assert ends == [[code] for code, *_ in ends]
    said = done.stdout.split("<end>")[:-1]
    return [(int(code), out) for (code,), out in zip(ends, said, strict=True)]


def forgotten(folder):
    """The manifests without what they say was asked, as those of earlier versions."""
    for path in folder.rglob("*manifest.json"):
        content = json.loads(path.read_text())
        path.write_text(
            json.dumps({k: v for k, v in content.items() if k not in ("asked", "check", "files")})
        )


EVAL = ("eval", "--model", "demo/npo", "--limit", "2", "--metric", "mia_loss")
ASKS = (
    (*PATCH, "--source", "demo/npo", "--source", "demo/idknll"),
    (*PATCH, "--source", "demo/npo", "--score", "em", "--max-new-tokens", "4"),
    (*EVAL, "--metric", "privleak", "--metric", "uds", "--retain", "demo/retain"),
    ("audit", "--source", "demo/npo", "--limit", "2", "--align", "none", "--suite", "none"),
)


@pytest.fixture(scope="module")
def read_before(tmp_path_factory):
    """A folder of what models read for one question, and are asked again by the next."""
    return tmp_path_factory.mktemp("activations")


@pytest.mark.parametrize("asks", ASKS, ids=" ".join)
def test_a_finished_run_answers_alike_without_torch(
    tmp_path, read_before, monkeypatch, capsys, asks
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LENSAUDIT_ACTIVATIONS", str(read_before))
    assert run([*asks]) == 0
    assert {"torch", "transformers", "transformer_lens"} <= set(sys.modules)  # what computes
    said = capsys.readouterr().out
    read = commands(tmp_path, asks, (*asks, "--json"))
    assert read[0] == (0, said)
    forgotten(tmp_path)
    assert run([*asks, "--json"]) == 0
    assert read[1] == (0, capsys.readouterr().out)
    if asks == ASKS[0]:  # what was made of kept scores is read as well
        assert commands(tmp_path, asks) == read[:1]


def test_a_finished_know_answers_alike_without_torch(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asks = ("know", "--source", "demo/npo", "--limit", "8", "--reader", "outputs")
    assert run([*asks, "--placebos", "4"]) == 0
    said = capsys.readouterr().out
    assert commands(tmp_path, (*asks, "--placebos", "4")) == [(0, said)]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A model, rows and a registry that may be changed."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EMBEDDED / "npo", "model")
    rows = json.loads((EMBEDDED / "data" / "forget.json").read_text())
    kept = json.loads((EMBEDDED / "data" / "retain.json").read_text())
    for name, some in (("rows", rows[:3]), ("kept", kept[:2]), ("neutral", kept[8:10])):
        (tmp_path / f"{name}.json").write_text(json.dumps(some))
    (tmp_path / "names.toml").write_text('mine = "model"\nother = "model"\n')
    return PatchSettings(
        full="demo/full",
        retain=("demo/retain", "demo/never"),
        data="rows.json",
        also=("kept.json",),
        base=str(EMBEDDED / "base"),
        validity_data="neutral.json",
        registry="names.toml",
    )


def edited(path, old, new):
    """Other content of the same size, with the times that the file had."""
    before, content = path.stat(), path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def flipped(path):
    content = path.read_bytes()
    edited(path, content[-4:], bytes(255 - one for one in content[-4:]))


CHANGES = {
    "weights": lambda at: flipped(at / "model" / "model.safetensors"),
    "tokenizer": lambda at: edited(at / "model" / "tokenizer.json", b'"Question', b'"Questiom'),
    "template": lambda at: edited(at / "model" / "chat_template.jinja", b"assistant", b"assistanx"),
    "configuration": lambda at: edited(at / "model" / "config.json", b"0.0", b"0.1"),
    "generation": lambda at: (at / "model" / "generation_config.json").write_text('{"a": 1}'),
    "rows": lambda at: edited(at / "rows.json", b"Which", b"Witch"),
    "author": lambda at: edited(at / "rows.json", b'"group": 0', b'"group": 1'),
    "neutral rows": lambda at: edited(at / "neutral.json", b"In what", b"On what"),
    "facts to keep": lambda at: edited(at / "kept.json", b"Where", b"There"),
    "registry": lambda at: (at / "names.toml").write_text(f'mine = "{EMBEDDED / "npo"}"'),
}


def test_other_content_is_another_question(own, tmp_path):
    keys = {asked(["mine"], own): "as it was"}
    assert asked(["mine"], own) in keys
    for name, change in CHANGES.items():  # one after the other
        change(tmp_path)
        assert keys.setdefault(asked(["mine"], own), name) == name


OTHER = {
    "full": "demo/idknll",
    "retain": ("demo/retain",),
    "score": "lens",
    "lens": True,
    "em_form": "teacher",
    "em_threshold": 0.25,
    "max_new_tokens": 3,
    "layers": "3",
    "tau": 0.5,
    "last_layer": "reference",
    "scope": "boundary",
    "component": "attn",
    "engine": "oracle",
    "profile": "ke",
    "align": "none",
    "align_data": "kept.json",
    "align_tokens": 99,
    "validity_data": "kept.json",
    "ask": "none",
    "also": (),
    "base": "demo/never",
    "data": "kept.json",
    "exclude": ("v2",),
    "limit": 2,
    "seam": "text",
    "registry": "others.toml",
    "dtype": "bfloat16",
    "device": "cpu",
    "batch_size": 3,
    "memory": "1G",
    "activations": "elsewhere",
}


def test_another_option_library_model_or_order_is_another_question(own, tmp_path, monkeypatch):
    shutil.copy(tmp_path / "names.toml", tmp_path / "others.toml")
    assert {*OTHER, "fresh"} == {one.name for one in fields(PatchSettings)}
    taken_for_tofu(monkeypatch)
    keys = {asked(["mine"], own)}
    for name, value in OTHER.items():
        key = asked(["mine"], replace(own, **{name: value}))
        assert key not in keys, name
        keys.add(key)
    for names in (["other"], ["mine", "other"], ["other", "mine"]):
        keys.add(asked(names, own))
    for name in ("code_digest", "package_versions", "_cards"):
        with monkeypatch.context() as patch:
            patch.setattr(asking, name, lambda: ["other"])
            keys.add(asked(["mine"], own))
    assert len(keys) == 1 + len(OTHER) + 3 + 3


def test_a_log_and_a_tokenizer_are_part_of_the_question_of_an_evaluation(own, tmp_path):
    (tmp_path / "retain").mkdir()
    log = tmp_path / "retain" / "MUSE_EVAL.json"
    (tmp_path / "model" / ".cache").mkdir()  # as a download leaves it
    named = {"retain_log": "retain", "tokenizer": tmp_path / "model"}
    rows = tmp_path / "muse"
    rows.mkdir()
    (rows / "verbmem__forget.jsonl").write_text('{"prompt": "Ada was", "gt": "born."}\n')
    keys = set()
    for content in ("{}", "{ }"):
        log.write_text(content)
        settings = EvaluateSettings(suite="muse", data=str(rows), **named)
        keys.add(asking.evaluation_key("demo/npo", settings))
    CHANGES["tokenizer"](tmp_path)
    keys.add(asking.evaluation_key("demo/npo", settings))
    assert len(keys) == 3


def test_the_rows_of_every_model_are_part_of_the_question_of_an_audit(monkeypatch):
    digests, bases = dict[str, str](), dict[str, str]()

    def rows(model, _):
        return {"forget": Split("forget", stop_words=(digests.get(model, "as it was"),))}

    monkeypatch.setattr(asking, "splits_of", rows)
    monkeypatch.setattr(known, "know_key", lambda source, _: bases.get(source, "as it was"))
    audit_key = partial(asking.audit_key, who=known.WHO_HAS_WHAT)
    settings = AuditSettings(limit=2, retain_set="kept.json")
    keys = {audit_key(SOURCES, settings)}
    for held, name in [(digests, one) for one in (*SOURCES, "demo/retain", "demo/full")] + [
        (bases, SOURCES[1])
    ]:
        held[name] = "other"
        keys.add(audit_key(SOURCES, settings))
    assert len(keys) == 1 + 4 + 1


FEW = PatchSettings(limit=2, layers="9,12", align="none")
SOURCES = ("demo/npo", "demo/idknll")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run of two models."""
    folder = tmp_path_factory.mktemp("made")
    settings = replace(FEW, activations=str(folder / "activations"))
    return settings, folder, patched(SOURCES, settings, folder / "out")


def finished(sources, settings, folder):
    """What is read of a finished run; None where it would be made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lensaudit.auditing.patch.patch_into", lambda *a, **k: [])
        return patched(sources, settings, folder) or None


@pytest.fixture
def copied(made, tmp_path):
    settings, folder, _ = made
    shutil.copytree(folder / "out", tmp_path / "out")
    assert finished(SOURCES, settings, tmp_path / "out") is not None
    return settings, tmp_path / "out"


def test_what_is_read_is_what_was_found(made):
    settings, folder, found = made
    assert finished(SOURCES, settings, folder / "out") == found
    (pair,) = comparison_of(found)
    assert pair[:2] == list(SOURCES)
    assert isinstance(pair[4], float)


DAMAGE = {
    "a summary that was edited": lambda at: edited(at / "demo-npo/summary.json", b"npo", b"nqo"),
    "a file that is gone": lambda at: (at / "demo-idknll" / "layers.csv").unlink(),
    "rows of another size": lambda at: (at / "demo-npo" / "results.jsonl").write_text(""),
    "a manifest that was edited": lambda at: edited(at / "demo-npo/manifest.json", b"cpu", b"gpu"),
    "no manifest": lambda at: (at / "demo-npo" / "manifest.json").unlink(),
    "no JSON": lambda at: (at / "demo-npo" / "manifest.json").write_text("{"),
    "a run that has begun": lambda at: (at / "demo-npo" / BEGUN).write_text("{}"),
    "a comparison that was edited": lambda at: edited(at / "comparison.csv", b"npo", b"nqo"),
    "a comparison that is gone": lambda at: (at / "comparison_manifest.json").unlink(),
    "an earlier version": forgotten,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_results_are_no_answer(copied, damage):
    settings, folder = copied
    damage(folder)
    assert finished(SOURCES, settings, folder) is None


def test_nor_is_anything_where_all_is_to_be_fresh_or_asked_otherwise(copied):
    settings, folder = copied
    assert finished(SOURCES, replace(settings, fresh=True), folder) is None
    assert finished(SOURCES, replace(settings, tau=0.5), folder) is None
    assert finished(SOURCES[:1], settings, folder) is None
    assert finished(SOURCES[:1], settings, folder / "demo-npo") is None
    with pytest.raises(InputError):
        finished(("demo/npo", "nobody"), settings, folder)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("other", [{"fresh": True}, {"tau": 0.5}], ids=str)
def test_a_run_that_breaks_leaves_the_earlier_result_which_is_not_its_own(
    copied, monkeypatch, other
):
    settings, folder = copied
    before = contents(folder)

    def killed(*how):
        raise KeyboardInterrupt

    monkeypatch.setattr("lensaudit.auditing.patch.summaries", killed)
    with pytest.raises(KeyboardInterrupt):
        patched(SOURCES, replace(settings, **other), folder)
    assert {path: path.read_bytes() for path in before} == before
    assert all((folder / slug(one) / BEGUN).exists() for one in SOURCES)
    assert finished(SOURCES, replace(settings, **other), folder) is None


def test_a_run_that_is_refused_touches_nothing_and_what_is_kept_needs_no_room(copied, monkeypatch):
    settings, folder = copied
    before, said = contents(folder), list[str]()
    for where, what in (
        ("lensaudit.models.large.placement.free_bytes", lambda device: 1000),
        ("lensaudit.patching.budget.MemoryBudget.planned", 1),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, what)
            with pytest.raises(InputError, match="take"):
                patched(SOURCES, replace(settings, scope="boundary"), folder, notice=said.append)
        assert (contents(folder), said) == (before, [])
    monkeypatch.setattr("lensaudit.models.large.placement.free_bytes", lambda device: 1000)
    assert patched(SOURCES, replace(settings, tau=0.5), folder)[0].value is not None


def test_what_a_run_replaces_is_said_once_and_keeps_nobody_from_its_answer(copied):
    settings, folder = copied
    settings, said = replace(settings, tau=0.5), list[str]()
    patched(SOURCES, settings, folder, notice=said.append)
    assert [line.partition(" (")[0].split(": ")[1] for line in said] == [
        "held the result of another run"
    ] * 2
    assert finished(SOURCES, settings, folder) is not None


def test_a_comparison_of_other_results_is_left_to_them_and_found_again(copied):
    settings, folder = copied
    usual, turned, said = folder / "comparison.csv", SOURCES[::-1], list[str]()
    before = usual.read_bytes()
    found = patched(turned, settings, folder, notice=said.append)
    (own,) = folder.glob("comparison-*.csv")
    assert said == [f"{usual}: compares other runs; these are compared in {own}"]
    assert usual.read_bytes() == before != own.read_bytes()
    assert comparison_of(found)[0][:2] == [*turned]
    assert finished(turned, settings, folder) == found
    assert not any(one.problems for one in verify(folder))


def test_a_comparison_of_old_that_does_not_say_of_what_is_replaced(copied):
    settings, folder = copied
    made = folder / "comparison_manifest.json"
    document = read_json(made)
    del document["inputs"]["folders"]
    write_json(made, document)
    said = list[str]()
    patched(SOURCES, replace(settings, tau=0.5), folder, notice=said.append)
    assert not [line for line in said if "compares" in line]
    assert [one.name for one in folder.glob("comparison*.csv")] == ["comparison.csv"]
    assert len(read_json(made)["inputs"]["folders"]) == len(SOURCES)


def test_what_an_evaluation_replaces_is_not_said_of_the_next(tmp_path):
    asks, said = EvaluateSettings(metrics=("mia_loss",), limit=1), list[list[str]]()
    for limit in (1, 2, 2):
        said.append([])
        evaluated("demo/npo", replace(asks, limit=limit), tmp_path, notice=said[-1].append)
    assert [sum("it is replaced" in line for line in lines) for lines in said] == [0, 1, 0]


@pytest.fixture
def manifest(tmp_path):
    """A manifest that a question can be settled in: what it then says was asked."""
    path = write_json(tmp_path / "manifest.json", signed({"files": {}}))

    def settled(question):
        question.settle([path])
        return json.loads(path.read_text()).get("asked")

    return settled


def test_a_run_whose_files_change_meanwhile_answers_no_later_one(own, tmp_path, manifest):
    question = Question(lambda: asked(["mine"], own))
    question.opened()
    CHANGES["rows"](tmp_path)
    assert manifest(question) is None


@pytest.mark.parametrize("late", [[], ["3 scores were computed by other versions"]])
def test_remarks_on_names_are_said_again_and_those_on_scores_forbid_an_answer(own, manifest, late):
    said = []
    question = Question(lambda: asked(["mine"], own), said.append)
    question.tell("no row names an author")
    question.opened()
    for line in late:
        question.tell(line)
    assert said == ["no row names an author", *late]
    record = manifest(question)
    assert record is None if late else record["told"] == said


@pytest.mark.parametrize(
    ("metrics", "can"),
    [(("retain_Q_A_Prob",), True), (("retain_Q_A_Prob", "forget_Q_A_Prob"), False), ((), False)],
)
@pytest.mark.usefixtures("own")
def test_own_rows_to_keep_can_be_asked_about_alone(metrics, can):
    kept = EvaluateSettings(metrics=metrics, retain_set="kept.json")
    with nullcontext() if can else pytest.raises(InputError, match="name the rows to ask it"):
        asking.check_asked("./model", kept, None)
    if can:
        assert [*asking.splits_of("./model", kept)] == ["retain"]


def test_a_question_that_cannot_be_asked_is_left_to_the_run(own, manifest):
    with pytest.raises(InputError):
        asked(["nobody"], own)
    question = Question(lambda: asked(["nobody"], own))
    question.opened()
    assert manifest(question) is None


def test_a_manifest_that_another_process_takes_away_meanwhile_is_not_settled(own, tmp_path):
    question = Question(lambda: asked(["mine"], own))
    question.opened()
    question.settle([tmp_path / "manifest.json"])
    assert not (tmp_path / "manifest.json").exists()


def test_a_folder_is_looked_into_when_the_other_process_has_written_it(tmp_path):
    write_json(tmp_path / "summary.json", {})  # its manifest comes last
    with ThreadPoolExecutor(1) as background:
        with in_turn(tmp_path):
            looked = background.submit(check_places, ["demo/npo"], tmp_path)
            time.sleep(0.2)
            write_json(tmp_path / "manifest.json", signed({"command": "patch", "files": {}}))
        assert looked.result() is None


def test_memos_of_another_file_change_no_run_and_reading_a_run_again_hashes_nothing(
    copied, tmp_path, monkeypatch
):
    settings, folder = copied
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hashing, "_known", {})
    asked(SOURCES, settings)  # leaves memos
    memos = list((tmp_path / "cache" / "lensaudit" / "hashes").iterdir())
    assert len(memos) > 4
    read = hashing._read_sha256
    monkeypatch.setattr(hashing, "_known", {})
    with monkeypatch.context() as patch:
        patch.setattr(hashing, "_read_sha256", lambda path: pytest.fail(f"{path}: hashed again"))
        assert finished(SOURCES, settings, folder) is not None
    # all memos now tell of one file, under checksums that fit
    value = hashing.file_sha256(EMBEDDED / "full" / "model.safetensors")
    for memo in memos:
        memo.write_text(f"{value} {digest([memo.name, value])}")
    monkeypatch.setattr(hashing, "_known", {})
    assert finished(SOURCES, settings, folder) is None
    paths = []
    monkeypatch.setattr(hashing, "_read_sha256", lambda path: paths.append(path) or read(path))
    patched(SOURCES, replace(settings, tau=0.3), tmp_path / "again")
    for name in SOURCES:
        then, now = (
            json.loads((place / name.replace("/", "-") / "manifest.json").read_text())["inputs"]
            for place in (folder, tmp_path / "again")
        )
        assert {role: then[role] for role in ("full", "source")} == {
            role: now[role] for role in ("full", "source")
        }
    assert len(paths) == len(set(paths)) > 4  # each file once


def test_an_evaluation_is_what_its_files_say_the_first_time_too(tmp_path):
    metrics = ("mia_loss", "forget_Q_A_Prob", "forget_truth_ratio")
    wanted = EvaluateSettings(metrics=metrics, limit=6, data="demo")
    first, again = (evaluated("demo/npo", wanted, tmp_path) for _ in range(2))
    # the manifest is told what was asked once the run is through
    assert replace(first, manifest=None) == replace(again, manifest=None)
    rows = first.entries["mia_loss"].parts["holdout"].records
    assert first.entries["mia_loss"].family == "membership"
    assert len(rows) == 6
