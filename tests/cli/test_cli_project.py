"""From a folder of checkpoints and rows to a page, and what a project file does to commands."""

import gzip
import json
import os
import re
import shutil
import time
import tomllib

import click
import pytest
from support import EMBEDDED
from support.hostile import commands
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from lensaudit.cli.main import cli, run
from lensaudit.data.tofu import forget_set
from lensaudit.doors.discover import READ_BYTES, discover
from lensaudit.project import FILE

pytestmark = pytest.mark.usefixtures("one_type")
MODELS = ("full", "retain", "npo")


def rows(folder, name, examples, **renamed):
    """Plain rows, without prefix or entity."""
    lines = [
        {renamed.get("question", "question"): e.question, renamed.get("answer", "answer"): e.answer}
        | ({renamed["group"]: f"author {e.group}"} if "group" in renamed else {})
        for e in examples
    ]
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Own checkpoints and plain rows, as somebody might have them."""
    for name in MODELS:
        shutil.copytree(EMBEDDED / name, tmp_path / "models" / name)
    asked = forget_set("demo")
    own = {"question": "prompt", "answer": "response", "group": "author"}
    rows(tmp_path, "forget_rows.jsonl", asked[:12], **own)
    rows(tmp_path, "retain_rows.jsonl", asked[-6:], **own)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_four_commands_lead_from_own_files_to_a_page(place, capsys):
    assert run(["init"]) == 0
    said = capsys.readouterr()
    assert "next: lensaudit annotate" in said.out
    assert "still to fill in" not in said.err
    text = (place / "lensaudit.toml").read_text()
    for line in (
        'full = "./models/full"',
        'retain = ["./models/retain"]',
        'sources = ["./models/npo"]',
        'forget = "forget_rows.jsonl"',
        'question = "prompt"',
        'answer = "response"',
        'group = "author"',
    ):
        assert line in text

    assert run(["audit"]) == 2
    assert "is not annotated yet, run `lensaudit annotate`" in capsys.readouterr().err

    assert run(["annotate"]) == 0
    kept = json.loads((place / "forget_rows.annotated.json").read_text())
    assert len(kept) == 12
    assert {row["group"] for row in kept} == {f"author {e.group}" for e in forget_set("demo")[:12]}
    assert (place / "retain_rows.annotated.review.txt").exists()

    # a page for each, without --force; a review is known by its name wherever it was saved
    assert run(["annotate", "--page", "--json"]) == 0
    assert (place / "forget_rows.annotated.page.html").exists()
    (place / "Downloads").mkdir()
    text = (place / "retain_rows.annotated.review.txt").read_text()
    saved = place / "Downloads" / "retain_rows.annotated.review.txt"
    saved.write_text(re.sub(r" \(rule: \w+ [\d:]+\)", "", text))
    assert run(["annotate", str(saved)]) == 0
    again = json.loads((place / "retain_rows.annotated.json").read_text())
    assert {row["span"] for row in again} == {"reviewed"}
    assert {row["span"] for row in kept} == {"rule"}
    assert run(["annotate", str(place / "Downloads" / "other.txt")]) == 2
    capsys.readouterr()

    assert run(["audit", "--suite", "none", "--limit", "4"]) == 0
    capsys.readouterr()
    made = json.loads((place / "experiments/out/audit-models-npo/patch/manifest.json").read_text())
    assert made["inputs"]["full"]["name"] == "./models/full"

    assert run(["report"]) == 0
    assert (place / "audit.html").stat().st_size > 10_000


def test_a_source_whose_folder_has_brackets_in_its_name_is_left_out_where_it_is_full(place, capsys):
    (place / "models" / "full").rename(place / "models" / "full[1]")
    (place / "lensaudit.toml").write_text(
        'full = "models/full[1]"\nretain = ["demo/retain"]\ndata = "demo"\n'
        'sources = ["models/full[1]", "demo/npo"]\n'
    )
    assert run(["patch", "--dry-run", "--limit", "2"]) == 0
    assert "left out of the sources: ./models/full[1] is full" in capsys.readouterr().err


def test_options_override_the_file_and_a_dry_run_says_where_values_come_from(place, capsys):
    (place / "lensaudit.toml").write_text(
        'full = "models/full"\nretain = ["demo/retain"]\nsources = ["demo/npo"]\ndata = "demo"\n'
        "[patch]\nlimit = 6\ntau = 0.5\n"
    )
    assert run(["patch", "--tau", "0.25", "--full", "demo/full", "--dry-run"]) == 0
    said = capsys.readouterr()
    assert "examples: 6;" in said.out
    for line in (
        "--source: demo/npo (lensaudit.toml)",
        "--full: demo/full (command line)",
        "--tau: 0.25 (command line)",
        "--limit: 6 (lensaudit.toml)",
        "--scope: span (default)",
    ):
        assert line in said.out
    assert said.err.startswith("lensaudit: from lensaudit.toml: --source, --retain, ")
    assert run(["patch", "--project", "none", "--dry-run"]) == 2
    assert "--source" in capsys.readouterr().err


def test_an_option_a_command_does_not_have_is_refused(place, capsys):
    (place / "lensaudit.toml").write_text('sources = ["demo/npo"]\n[patch]\ntua = 0.5\n')
    assert run(["patch", "--dry-run"]) == 2
    assert "[patch] has no option tua" in capsys.readouterr().err


def test_results_go_where_the_project_says_for_one_command_only(place, monkeypatch, capsys):
    monkeypatch.delenv("LENSAUDIT_OUT", raising=False)
    (place / "lensaudit.toml").write_text('out = "found"\n[patch]\nlimit = 2\nlayers = "15"\n')
    assert run(["patch", "--source", "demo/npo"]) == 0
    assert (place / "found/demo-npo/summary.json").exists()
    assert run(["patch", "--source", "demo/npo", "--project", "none", "--dry-run"]) == 0
    assert "LENSAUDIT_OUT" not in os.environ


def test_what_files_do_not_tell_is_a_comment(tmp_path, monkeypatch, capsys):
    for name in ("one", "two"):
        shutil.copytree(EMBEDDED / "npo", tmp_path / name)
    rows(tmp_path, "a.jsonl", forget_set("demo")[:3])
    rows(tmp_path, "b.jsonl", forget_set("demo")[:3])
    monkeypatch.chdir(tmp_path)
    assert run(["init", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["open"]["full"] == ["./one", "./two"]
    assert said["open"]["forget"] == ["a.jsonl", "b.jsonl"]
    text = (tmp_path / "lensaudit.toml").read_text()
    assert "# full = …" in text
    assert run(["init"]) == 2
    assert "--force" in capsys.readouterr().err


def test_models_that_do_not_belong_together_are_told_by_init(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows(tmp_path, "forget.jsonl", forget_set("demo")[:3])
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED / "full")
    for name, width in (("full", 32), ("npo", 64)):
        sizes = {"n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
        config = GPT2Config(vocab_size=len(tokenizer), n_embd=width, **sizes)
        GPT2LMHeadModel(config).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    assert run(["init"]) == 4
    assert "different shape: ./npo: width 64, but ./full has 32" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "npo")
    shutil.copytree(tmp_path / "full", tmp_path / "npo")
    assert run(["init", "--force"]) == 4
    said = capsys.readouterr()
    assert "source ./npo" in said.err
    assert "have the same weights" in said.err
    assert "next:" not in said.out


def test_what_an_adapter_says_of_its_base_writes_no_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "adapter").mkdir()
    config = {"base_model_name_or_path": 'org/model\nout = "elsewhere"\r\ntau = 1 #'}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    assert run(["init"]) in (0, 4)
    capsys.readouterr()
    held = tomllib.loads((tmp_path / "lensaudit.toml").read_text())
    assert set(held) <= {"sources"}


@pytest.mark.parametrize(
    ("question", "taken"), [("question", True), ("prompt", False)], ids=["no author", "other names"]
)
def test_kept_rows_may_name_no_author_beside_rows_that_do(
    tmp_path, monkeypatch, capsys, question, taken
):
    monkeypatch.chdir(tmp_path)
    asked = forget_set("demo")
    rows(tmp_path, "forget.jsonl", asked[:4], answer="response", group="author")
    rows(tmp_path, "keep.jsonl", asked[-4:], question=question, answer="response")
    assert run(["init"]) == 0
    capsys.readouterr()
    lines = (tmp_path / "lensaudit.toml").read_text().splitlines()
    assert ('retain_rows = "keep.jsonl"' in lines) is taken
    if not taken:
        assert any("keep.jsonl, whose fields have other names" in line for line in lines)


def test_only_what_the_file_says_is_said_to_come_from_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows(tmp_path, "forget.jsonl", forget_set("demo")[:2])
    (tmp_path / "lensaudit.toml").write_text('forget = "forget.jsonl"\nquestion = "question"\n')
    assert run(["annotate"]) == 0
    assert capsys.readouterr().err.startswith("lensaudit: from lensaudit.toml: PAIRS, --out\n")


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        ({}, True),
        ({"group": "author"}, True),
        ({"group": "person"}, False),
        ({"answer": "response"}, False),
    ],
)
def test_holdout_rows_are_read_as_they_are(tmp_path, names, taken):
    asked = forget_set("demo")
    rows(tmp_path, "forget.jsonl", asked[:4], answer="response", group="person")
    rows(tmp_path, "retain.jsonl", asked[8:12], answer="response")
    rows(tmp_path, "holdout.jsonl", asked[-4:], **names)
    found = discover(tmp_path)
    assert {found.chosen[key] for key in ("answer", "group")} == {"response", "person"}
    assert (found.chosen.get("holdout") == "holdout.jsonl") is taken
    why = ("holdout.jsonl, once its fields are named question, answer and author",)
    assert found.open.get("holdout") == (None if taken else why)
    # the authors of the forget rows would be lost
    assert found.open["retain_rows"] == ("retain.jsonl, whose fields have other names",)


def test_what_init_looked_at_and_did_not_understand_is_named(place, capsys):
    (place / "old").mkdir()
    (place / "old" / "config.json").write_text("{}")
    (place / "people.csv").write_text("question,answer\n")
    (place / "people.xlsx").write_bytes(b"PK")
    (place / "cut.jsonl").write_text('{"question": "Who?", "answer": "Ada."}\n{"question": "Wh')
    (place / "chat.jsonl").write_text('{"messages": [], "id": 1}\n')
    (place / "prompts.json").write_text('[{"prompt": "Who?"}]')
    (place / "notes.json").write_text('"hello"')
    (place / "readme.txt").write_text("not looked at")
    wanted = {
        "old": "a model without weights in safetensors",
        "people.csv": "no list of JSON objects, no JSON object a line, no table",
        "people.xlsx": "rows are read from .json, .jsonl, .ndjson, .csv, .tsv, .tab; "
        "save it as one of these",
        "cut.jsonl": "line 2 is not JSON (Unterminated string starting at, column 14)",
        "chat.jsonl": "no field for question and answer among id, messages",
        "prompts.json": "no field for answer among prompt",
        "notes.json": "no list of JSON objects, no JSON object a line, no table",
    }
    assert run(["init"]) == 0
    said = capsys.readouterr().err
    for name, why in wanted.items():
        assert f"lensaudit: {name}: this place could not be understood: {why}\n" in said
    assert said.count("could not be understood") == len(wanted)
    assert run(["init", "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["not_understood"] == wanted


ROW = '{"question": "Who?", "answer": "Ada."}\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("forget.csv", b"question;answer\nWho?;Ada.\n"),
        ("Forget.TSV", b"question\tanswer\nWho?\tAda.\n"),
        ("forget.json", f'{{"data": [{ROW}]}}'.encode()),
        ("forget.jsonl", ROW.encode("utf-16")),
        ("forget.jsonl.gz", gzip.compress(ROW.encode(), mtime=0)),
    ],
)
def test_init_reads_what_annotate_reads(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    found = discover(tmp_path)
    assert (found.chosen["forget"], found.strange) == (name, {})


MANY = "".join(f"who{n},Ada.\n" for n in range(99))
LARGE = [
    ("forget.csv", 'question,answer\n"Who\nis it?",Ada.\n"Who' + '\nis ""it""?' * 199 + '",Ada.\n'),
    ("forget.csv", "question,answer\r\n" + MANY.replace("\n", "\r\n")),
    ("forget.json", f'{{"data": [{ROW.strip()}{f", {ROW}" * 29}]}}'),
    ("forget.jsonl", ROW * 30),
]


@pytest.mark.parametrize("encode", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "packed"])
@pytest.mark.parametrize(("name", "content"), LARGE)
def test_the_first_part_of_a_large_file_is_read_as_annotate_reads_it(
    tmp_path, monkeypatch, name, content, pack, encode
):
    monkeypatch.setattr("lensaudit.doors.discover._LARGE", 1 << 10)
    monkeypatch.setattr("lensaudit.doors.discover.READ_BYTES", 1 << 9)
    name += ".gz" * (pack is not bytes)
    (tmp_path / name).write_bytes(pack(content.encode(encode)))
    monkeypatch.setattr("lensaudit.doors.discover.read_rows", None)
    found = discover(tmp_path)
    assert (found.chosen.get("forget"), found.strange) == (name, {})


def test_what_the_first_part_does_not_tell_is_called_too_large_and_no_table(tmp_path, monkeypatch):
    monkeypatch.setattr("lensaudit.doors.discover._LARGE", 1 << 7)
    monkeypatch.setattr("lensaudit.doors.discover.READ_BYTES", 1 << 6)
    columns = json.dumps({"question": ["Who?"] * 40, "answer": ["Ada."] * 40})
    held = {
        "columns.json": columns.encode(),
        "columns.json.gz": gzip.compress(columns.encode()),
        "quoted.csv": f'question,answer\n"{"Who?" * 40}",Ada.\n'.encode(),
        "long.jsonl": json.dumps({"question": "Who?" * 40, "answer": "Ada."}).encode(),
    }
    for name, content in held.items():
        (tmp_path / name).write_bytes(content)
    why = "too large to look into; `lensaudit annotate FILE` reads all of it"
    assert discover(tmp_path).strange == dict.fromkeys(held, why)


def test_init_says_what_is_wrong_with_a_table_of_which_no_row_can_be_read(tmp_path):
    (tmp_path / "twice.csv").write_text("question,question\nWho?,Ada.\n")
    (tmp_path / "open.csv").write_text('question,answer\n"Who?,Ada.\n')
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(ROW.encode() * 99)[:-20])
    assert discover(tmp_path).strange == {
        "twice.csv": "line 1 names question more than once",
        "open.csv": "line 1 is no line of a table (unexpected end of data)",
        "cut.jsonl.gz": "no list of JSON objects, no JSON object a line, no table",
    }


ONE_SOURCE = ("know", "sample", "worst", "relearn", "quantize", "steer audit")
ONE_MODEL = ("eval", "cache", "lm-eval", "steer extract", "steer eval", "steer sweep")


def test_what_is_missing_without_a_project_leads_to_init(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for command in ("audit", "patch", "know"):
        assert run([command]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "Missing option '--source'. Or name models and rows once: `lensaudit init`" in line
    assert run(["annotate"]) == 2
    assert "Missing argument 'PAIRS'. Or name" in capsys.readouterr().err
    # no project file names a vector
    assert run(["steer", "eval", "--model", "demo/full"]) == 2
    assert "lensaudit init" not in capsys.readouterr().err
    (tmp_path / "lensaudit.toml").write_text('full = "demo/full"\n')
    assert run(["audit"]) == 2
    assert "lensaudit.toml could name it: sources = …" in capsys.readouterr().err


SEVERAL = 'full = "demo/full"\nretain = "demo/retain"\nsources = ["demo/npo", "demo/idknll"]\n'


@pytest.mark.parametrize(
    ("call", "told"),
    [
        *((call, "2 sources; choose one: demo/npo, demo/idknll") for call in ONE_SOURCE),
        *((call, "4 models; choose one: demo/full, demo/retain, demo/npo") for call in ONE_MODEL),
    ],
)
def test_of_several_models_of_a_project_one_is_chosen_by_name(
    call, told, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / FILE).write_text(SEVERAL)
    assert run(call.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert f"{FILE} names {told}" in line


def test_robustness_is_judged_on_all_sources_of_a_project(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / FILE).write_text(SEVERAL)
    call = "meta robustness --attack quantize --metric extraction_strength --filter none --dry-run"
    assert run([*call.split(), "--limit", "2"]) == 0
    assert "--source: demo/npo, demo/idknll (lensaudit.toml)" in capsys.readouterr().out


def test_rows_without_an_author_say_so(tmp_path, capsys):
    rows(tmp_path, "qa.jsonl", forget_set("demo")[:4])
    out = tmp_path / "forget.json"
    assert run(["annotate", str(tmp_path / "qa.jsonl"), "-o", str(out)]) == 0
    line = "no row names an author: each row is counted as its own author"
    assert line in capsys.readouterr().err
    assert run(["patch", "--source", "demo/npo", "--data", str(out), "--dry-run"]) == 0
    assert line in capsys.readouterr().err
    assert run(["patch", "--source", "demo/npo", "--dry-run"]) == 0
    assert line not in capsys.readouterr().err


def test_a_model_made_from_another_names_what_is_full(tmp_path, monkeypatch):
    for name in ("start", "made"):
        shutil.copytree(EMBEDDED / "npo", tmp_path / name)
    (tmp_path / "made" / "manifest.json").write_text(
        json.dumps({"options": {"model": str(tmp_path / "start")}})
    )
    found = discover(tmp_path)
    assert found.chosen["full"] == "./start"
    assert found.chosen["sources"] == ("./made",)


def test_a_long_list_that_is_cut_off_is_read_once(tmp_path, monkeypatch):
    monkeypatch.setattr("lensaudit.doors.discover._LARGE", 1 << 10)
    row = json.dumps({"question": "Q", "answer": "A"})
    (tmp_path / "forget.json").write_text(f"[{', '.join([row] * (READ_BYTES // len(row)))}]")
    (tmp_path / "retain.csv").write_text("question,answer\n" + "Who?,Ada.\n" * (READ_BYTES // 9))
    began = time.process_time()
    found = discover(tmp_path).chosen
    assert (found["forget"], found["retain_rows"]) == ("forget.json", "retain.csv")
    # once an object it would be seconds
    assert time.process_time() - began < 1


def every_option():
    """Each option of each command, as `(command, option)`."""
    for path, command in commands():
        yield from ((path, one) for one in command.params if isinstance(one, click.Option))


REFUSED = {
    *("--remove", "--yes"),  # overwrite and delete
    *("--from", "--include", "--run", "--engine", "--address", "--slurm", "--prompts"),  # run
    "--benchmark",  # run
    *("--base-url", "--key-env", "--key-file", "--resubmit"),  # send
    *("--judge", "--coherence-judge", "--filter"),  # send, where they name a model
    *("--force", "--picture", "--write"),  # overwrite
    *("--max-size", "--others", "--redo"),  # delete
    *("--set", "--constant"),  # a file says each of them by its own name
}
LOOKED_AT = {
    "--api-model",
    "--canaries",
    "--score",
    "--seal",
    *("--ablate", "--activations", "--after", "--align-data", "--allow-missing", "--also"),
    *("--answer-key", "--apply-chat-template", "--as-ratio", "--attack"),
    *("--audit", "--auditor", "--autocast", "--before", "--by", "--calibration"),
    *("--classifier", "--coefficients", "--command", "--component", "--context", "--data"),
    *("--dataset", "--from-csv", "--organization"),
    *("--device", "--dry-run", "--exclude", "--faithfulness"),
    *("--fewshot-as-multiturn", "--figures", "--forget", "--forget-split", "--fresh", "--help-all"),
    *(
        "--from-log",
        "--full",
        "--gate",
        "--gen-kwargs",
        "--gpus",
        "--grades",
        "--group-key",
        "--gym",
    ),
    *(
        "--hold-out",
        "--holdout",
        "--idk",
        "--inside",
        "--json",
        "--judge",
        "--judge-cache",
        "--keep",
    ),
    *("--labels", "--layers", "--lens", "--lora", "--match-readout"),
    *("--mechanism", "--memory", "--method"),
    *("--metric", "--model", "--models", "--negative", "--neutral-data"),
    *("--no-control", "--no-fluency", "--offline", "--once", "--only", "--out"),
    "--page",
    *("--pool-forgot", "--pool-knows", "--positive", "--project", "--prompt"),
    *("--question-key", "--quiet", "--quota", "--real", "--registry", "--relearn-data"),
    *("--relearn-on", "--report", "--results", "--retain", "--kept", "--retain-log", "--review"),
    *("--source", "--steer", "--strangers", "--strengths", "--system-instruction", "--tasks"),
    *("--template", "--title", "--tokenizer", "--trainable", "--trait", "--validity-data"),
    *("--variants", "--vector", "--vectors", "--wait", "--watch", "--wheel", "--words"),
}
"""Texts, places and switches that were found to run, send, overwrite and delete nothing."""


def test_every_option_was_looked_at_and_no_dangerous_one_may_stand_in_a_file():
    typed, free = set(), set()
    for _, one in every_option():
        harmless = (click.Choice, click.types.IntParamType, click.types.FloatParamType)
        name = max(getattr(one, "shown", one.opts), key=len)
        if getattr(one, "typed", False):
            typed.add(name)
        elif not isinstance(one.type, harmless) and type(one.type).__name__ not in (
            "ModelName",
            "BatchSize",
        ):
            free.add(name)
    assert typed - {"--calibration"} == REFUSED  # `gym table` writes one, `verdict` reads it
    # a new option: does it run, send, overwrite or delete? Then say `typed=True` in its Option
    assert free == LOOKED_AT


def test_what_only_a_person_may_say_is_refused_by_name_in_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.py").write_text("open('ran', 'w')")
    spelled = [
        (path, key)
        for path, one in every_option()
        if getattr(one, "typed", False)
        for key in dict.fromkeys((*(opt.lstrip("-") for opt in one.opts), one.name))
    ]
    assert len(spelled) > 50
    for path, key in spelled:
        table = path.replace(" ", ".")
        (tmp_path / "lensaudit.toml").write_text(f'[{table}]\n{key} = "run.py"\n')
        for asked in ([], ["--project", "lensaudit.toml"]):
            assert run([*path.split(), *asked]) == 2, (path, key)
            (line,) = capsys.readouterr().err.splitlines()
            assert f"[{table}] {key.replace('-', '_')}: runs, sends" in line
    assert {one.name for one in tmp_path.iterdir()} == {"lensaudit.toml", "run.py"}


def test_a_strange_file_is_read_where_it_is_named_and_else_passed_over(place, monkeypatch, capsys):
    (below := place / "below").mkdir()
    (below / "lensaudit.toml").write_text('sources = ["../models/npo"]\n[patch]\nlimit = 3\n')
    monkeypatch.chdir(below)
    bare = ["patch", "--full", "demo/full", "--retain", "demo/retain", "--data", "demo"]
    assert run([*bare, "--dry-run"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("lensaudit: lensaudit.toml is not read: sources names ../models/npo")
    assert "--project" in said[0]
    assert "--source" in said[1]
    assert run([*bare, "--dry-run", "--project", "lensaudit.toml"]) == 0
    assert "examples: 3;" in capsys.readouterr().out
    monkeypatch.setenv("LENSAUDIT_PROJECT", "lensaudit.toml")
    assert run([*bare, "--dry-run"]) == 0
    monkeypatch.delenv("LENSAUDIT_PROJECT")
    capsys.readouterr()
    (below / "lensaudit.toml").write_text("not even TOML")
    monkeypatch.setattr(os, "getuid", lambda: 7)
    assert run(["models", "--json"]) == 0
    assert "another user" in capsys.readouterr().err


def test_places_in_a_table_are_relative_to_the_file_too(place, monkeypatch, capsys):
    (place / "lensaudit.toml").write_text('[report]\nout = "pages/all.html"\ntitle = "out"\n')
    (below := place / "below").mkdir()
    monkeypatch.chdir(below)
    from lensaudit.cli.project import _values
    from lensaudit.project import find_project, read_project

    command = cli.get_command(click.Context(cli), "report")
    found = _values(read_project(find_project()), "report", command)
    assert (found["out"], found["title"]) == ("../pages/all.html", "out")


def test_what_a_file_says_in_vain_is_left_out_with_a_remark(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text('[patch]\nscore = "em"\ntau = 0.3\n')
    asked = ["patch", "--source", "demo/npo", "--limit", "1", "--dry-run"]
    assert run([*asked, "--project", "p.toml"]) == 0
    said = capsys.readouterr()
    assert "of the project file left out: --tau: needs --score uds or lens (here em)" in said.err
    assert not re.search(r"tau: 0\.3", said.out)
    # what hangs on a file that is named: these answers are written, and nothing is drawn
    (tmp_path / "p.toml").write_text("[steer.extract]\nseed = 3\n")
    extract = ["steer", "extract", "--model", "demo/full", "--trait", "demo_idk", "--dry-run"]
    assert run([*extract, "--project", "p.toml"]) == 0
    said = "--seed 3: the answers of professed ignorance are written, not elicited"
    assert f"of the project file left out: {said}" in capsys.readouterr().err
    assert run([*extract, "--seed", "3"]) == 2
    assert said in capsys.readouterr().err
    # a person who types it is told, in the dry run as in the run
    for typed in (asked, asked[:-1]):
        assert run([*typed, "--score", "em", "--tau", "0.3", "--project", "none"]) == 2
        assert "--tau: needs --score uds or lens (here em); leave it out" in capsys.readouterr().err


def test_what_is_recorded_does_not_hang_on_the_working_folder(tmp_path, monkeypatch, capsys):
    shutil.copy(EMBEDDED / "data" / "forget.json", tmp_path / "rows.json")
    (tmp_path / "lensaudit.toml").write_text(
        '[eval]\nmodel = "demo/npo"\ndata = "rows.json"\nlimit = 2\n'
        'metric = "extraction_strength"\n'
        '[patch]\nsource = "demo/npo"\nfull = "demo/full"\nretain = "demo/retain"\n'
        'data = "rows.json"\nlimit = 2\nlayers = 15\nask = "none"\n'
    )
    (below := tmp_path / "else" / "where").mkdir(parents=True)

    def made(here, command, name):
        monkeypatch.chdir(here)
        given = ["--activations", str(tmp_path / "a"), "-o", str(tmp_path / name)]
        assert run([command, *given, "--project", str(tmp_path / "lensaudit.toml")]) == 0
        return json.loads((tmp_path / name / "manifest.json").read_text())

    for command in ("eval", "patch"):
        options = []
        for n, here in enumerate((tmp_path, below, tmp_path.parent)):
            found = made(here, command, f"{command}{n}")["options"] | {"out": None}
            options.append(found)
            assert found.get("data") == ("rows.json" if command == "eval" else None)
        assert options[0] == options[1] == options[2]
        # and it is the same run from elsewhere
        path = tmp_path / f"{command}0" / "manifest.json"
        made(tmp_path, command, f"{command}0")
        before = path.stat().st_mtime_ns
        made(below, command, f"{command}0")
        assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("entry", "seen"),
    [
        ('source = "models/npo"', "../models/npo"),
        ('source = "demo/npo"', "demo/npo"),
        ('data = "forget_rows.jsonl"', "../forget_rows.jsonl"),
        ('data = "forget10"', "forget10"),
        ('layers = "models"', "models"),
    ],
)
def test_a_word_in_a_table_is_a_place_where_one_lies_beside_the_file(
    place, monkeypatch, entry, seen
):
    from lensaudit.cli.project import _values
    from lensaudit.project import read_project

    (place / "lensaudit.toml").write_text(f"[patch]\n{entry}\n")
    (below := place / "below").mkdir()
    monkeypatch.chdir(below)
    command = dict(commands())["patch"]
    found = _values(read_project("../lensaudit.toml"), "patch", command)
    name = "sources" if "source" in entry else entry.partition(" ")[0]
    assert found[name] == ([seen] if name == "sources" else seen)


def test_one_value_in_a_table_is_a_list_of_one_for_every_repeatable_option(tmp_path):
    from lensaudit.cli.project import _values
    from lensaudit.project import read_project

    repeatable = [
        (path, one)
        for path, one in every_option()
        if one.multiple and not getattr(one, "typed", False)
    ]
    assert len(repeatable) > 30
    for path, one in repeatable:
        key, file = max(one.opts, key=len).lstrip("-"), tmp_path / "p.toml"
        found = []
        for value in ('"8"', '["8"]'):
            file.write_text(f"[{path.replace(' ', '.')}]\n{key} = {value}\n")
            found.append(_values(read_project(file), path, dict(commands())[path])[one.name])
        assert found[0] == found[1], (path, key)
        assert len(found[0]) == 1, (path, key)


def test_one_source_in_a_table_is_audited(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text('[patch]\nsource = "demo/npo"\nlimit = 3\nlayers = 15\n')
    assert run(["patch", "--dry-run", "--project", "p.toml"]) == 0
    assert "--source: demo/npo (p.toml)" in capsys.readouterr().out


def test_a_list_in_a_table_is_one_with_commas(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text('[patch]\nsource = "demo/npo"\nlimit = 3\nlayers = [8, 15]\n')
    assert run(["patch", "--dry-run", "--project", "p.toml"]) == 0
    assert "--layers: 8,15 (p.toml)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("limit = true", "limit: found true, wanted a whole number"),
        ("limit = 2.5", "limit: found 2.5, wanted a whole number"),
        ("limit = [2]", "limit: found a list of 1, wanted one value"),
        ("tau = false", "tau: found false, wanted a number"),
        ("tau = [0.1, 0.2]", "tau: found a list of 2, wanted one value"),
        ("fresh = 1", "fresh: found 1, wanted true or false"),
        ('source = ["demo/npo", 3]', "source: found 3, wanted text"),
        ('source = [["demo/npo"]]', "source: found a list, wanted text"),
        ("activations = 3", "activations: found 3, wanted text"),
        ("align-data = 2026-11-26", "align_data: found 2026-11-26, wanted text"),
        ("limit = inf", "limit: found inf, wanted a whole number"),
        ("limit = {most = 2}", "[patch.limit] is no command; an option has a value"),
        ('limit = "few"', "Invalid value for '--limit': 'few'"),
    ],
)
def test_a_value_of_another_kind_is_one_line(tmp_path, monkeypatch, capsys, entry, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text(f"[patch]\n{entry}\n")
    assert run(["patch", "--source", "demo/npo", "--dry-run", "--project", "p.toml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert "p.toml" in line or "few" in line


JUDGED = ["steer", "eval", "--model", "demo/full", "--trait", "demo_idk", "--dry-run"]


def test_one_table_says_who_judges_to_every_command_that_asks_a_judge(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    rows = '{"idx": 0, "question": "q", "answer": "a", "generation": "b"}\n'
    (tmp_path / "rows.jsonl").write_text(rows)
    said = '[judge]\njudge = "mine"\nbase-url = "http://127.0.0.1:9/v1"\nretries = 0\n'
    (tmp_path / "p.toml").write_text(said)
    judge = ["judge", "run", "rows.jsonl", "--dry-run"]
    assert run([*judge, "--project", "p.toml"]) == 0
    out = capsys.readouterr().out
    for line in ("--judge: mine", "--base-url: http://127.0.0.1:9/v1", "--retries: 0"):
        assert f"{line} (p.toml)" in out
    # of a command's own table, the command's wins
    (tmp_path / "p.toml").write_text(said + '[judge.run]\njudge = "other"\n')
    assert run([*judge, "--project", "p.toml"]) == 0
    assert "--judge: other (p.toml)" in capsys.readouterr().out
    # others do not take it
    assert run(["patch", "--source", "demo/npo", "--dry-run", "--project", "p.toml"]) == 0
    assert "mine" not in capsys.readouterr().out


@pytest.mark.parametrize("call", [["judge", "run", "rows.jsonl", "--dry-run"], JUDGED])
def test_a_file_that_nobody_named_sends_nothing_anywhere(call, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(
        '{"idx": 0, "question": "q", "answer": "a", "generation": "b"}\n'
    )
    (tmp_path / FILE).write_text('[judge]\nbase-url = "http://127.0.0.1:9/v1"\n')
    assert run(call) == 2
    assert "[judge] base-url: decides to whom" in capsys.readouterr().err
    (tmp_path / FILE).write_text('[judge]\nkey-env = "HOME"\n')
    for more in ([], ["--project", FILE]):
        assert run([*call, *more]) == 2
        assert "[judge] key-env: reads a secret" in capsys.readouterr().err


def test_steer_is_sent_to_a_judge_by_a_named_file_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / FILE).write_text('[judge]\njudge = "mine"\n')
    assert run(JUDGED) == 2
    assert "[judge] judge: decides to whom" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("[ptach]\ntau = 0.1", "[ptach] is no command; did you mean patch?"),
        ("[sweep.plann]\nlimit = 1", "[sweep.plann] is no command; did you mean plan?"),
        ("[patch.uds]\ntau = 0.1", "[patch.uds] is no command"),
        (
            "[runs]\njson = true",
            "[runs] is a group of commands; name the command: [runs.diff], [runs.ls], [runs.rm]",
        ),
        ("[judge]\nretry = 1", "[judge] has no retry; did you mean retries?"),
    ],
)
def test_a_table_that_nobody_reads_is_refused_with_the_nearest(
    table, told, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / FILE).write_text(table + "\n")
    assert run(["patch", "--source", "demo/npo", "--limit", "2", "--dry-run"]) == 2
    assert told in capsys.readouterr().err
