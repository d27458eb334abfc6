"""`lensaudit rtt` from outside: files, exit codes, one line per error."""

import csv
import json
import re
import shutil

import pytest
import rtt_support as world
from generated import save_birthdays, save_years
from rtt_support import command

from lensaudit.attacks.rtt import McqItem, make_dataset, save_mcq
from lensaudit.cli.main import run as lensaudit


def rows(out):
    with (out / "summary.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_the_same_command_does_nothing_again(finished, models, data, capsys):
    before = (finished / "jobs.jsonl").read_bytes(), (finished / "summary.csv").read_bytes()
    again = command(models, data, finished, unlearned=("hidden", "never"))
    assert lensaudit([*again, "--dry-run"]) == 0
    assert "0 runs of 0 steps together to do" in capsys.readouterr().out
    assert lensaudit(again) == 0
    assert "0 jobs done, 32 were in the log" in capsys.readouterr().err
    assert (
        (finished / "jobs.jsonl").read_bytes(),
        (finished / "summary.csv").read_bytes(),
    ) == before


def test_the_log_gives_the_same_summary_again(finished, tmp_path, capsys):
    for name in ("jobs.jsonl", "manifest.json"):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    assert lensaudit(["rtt", "summarize", str(tmp_path)]) == 0
    assert (tmp_path / "summary.csv").read_bytes() == (finished / "summary.csv").read_bytes()
    assert "(B-N)/(C-N)" in capsys.readouterr().out
    hidden, never = rows(tmp_path)
    assert float(hidden["recovery_adjusted"]) > 0.9 > 0.15 > float(never["recovery_adjusted"])
    assert hidden["rtt_signature"] == never["rtt_signature"]
    assert lensaudit(["rtt", "summarize", str(tmp_path), "--selection", "nested", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [one["main"]["selection"] for one in shown] == ["nested", "nested"]


def redigited(content):
    """The first accuracy that a reading tells, in another digit."""
    at = content.index(b'"t_accuracy": ') + len(b'"t_accuracy": 0.')
    return content[:at] + str((content[at] - 47) % 10).encode() + content[at + 1 :]


EDITED = {
    "a digit": ("jobs.jsonl", redigited, "1 of 34 lines are damaged, edited"),
    "a line gone": (
        "jobs.jsonl",
        lambda content: content[: content.rindex(b"\n", 0, -1) + 1],
        "the manifest says",
    ),
    "the manifest": (
        "manifest.json",
        lambda content: content.replace(b"rtt run", b"rtt ran"),
        "manifest.json: was changed",
    ),
}


@pytest.mark.parametrize("how", EDITED)
def test_an_edited_log_is_not_summarised(finished, tmp_path, capsys, how):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    name, change, said = EDITED[how]
    before = (tmp_path / "summary.csv").read_bytes()
    content = (tmp_path / name).read_bytes()
    assert change(content) != content
    (tmp_path / name).write_bytes(change(content))
    assert lensaudit(["rtt", "summarize", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert (tmp_path / "summary.csv").read_bytes() == before


def test_the_log_of_an_unfinished_run_is_summarised_and_one_without_a_manifest_is_not(
    finished, tmp_path, capsys
):
    content = (finished / "jobs.jsonl").read_bytes()
    (tmp_path / "jobs.jsonl").write_bytes(content[: content.rindex(b"\n", 0, -1) + 1])
    assert lensaudit(["rtt", "summarize", str(tmp_path)]) == 2
    assert "no manifest.json to compare it with" in capsys.readouterr().err
    (tmp_path / "begun.json").write_text('{"command": "rtt run"}')
    assert lensaudit(["rtt", "summarize", str(tmp_path)]) == 0
    assert re.search(r"\b1 of \d+ jobs are not done", capsys.readouterr().out)


def test_a_model_that_unlearned_nothing_ends_with_code_4_and_keeps_the_measurements(
    models, data, tmp_path, capsys
):
    assert lensaudit(command(models, data, tmp_path, unlearned=("knows",))) == 4
    error = capsys.readouterr().err
    assert "nothing is unlearned" in error
    assert "8 jobs done, 0 were in the log" in error
    assert rows(tmp_path)[0]["recovery_rate"] == ""
    assert rows(tmp_path)[0]["gate"] == "failed"
    assert lensaudit(["rtt", "summarize", str(tmp_path)]) == 4


def test_a_diverging_rate_ends_with_code_3_and_a_summary(models, data, tmp_path, capsys):
    assert lensaudit(command(models, data, tmp_path, "--lr", "1e30", "--epochs", "1")) == 3
    assert "6 of 18 runs diverged" in capsys.readouterr().err
    assert rows(tmp_path)[0]["num_diverged"] == "6"


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--no-control"], "exclude each other"),
        (["--hold-out", "split_7"], "no split 'split_7'"),
        (["--v-runs", "9"], "9 splits to hold out"),
        (["--lr", "-1"], "learning rates"),
        (["--lr", "nan"], "--lr nan: wanted a finite"),
        (["--min-drop", "nan"], "--min-drop nan: wanted a finite"),
        (["--only", "split_0"], "found 1 of the files"),
        (["--device", "nonsense"], "wanted auto, cpu, cuda"),
        (["--trainable", "nothing_like_it"], "no parameter matches"),
        (["--source", "idknl"], "unknown model 'idknl'; nearest"),
    ],
)
def test_wrong_usage_ends_with_code_2_and_one_message(
    models, data, tmp_path, capsys, more, problem
):
    arguments = command(models, data, tmp_path / "out", *more)
    assert lensaudit(arguments) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert "Traceback" not in error


def test_models_of_different_tokenizers_are_refused(models, data, tmp_path, capsys):
    arguments = command(models, data, tmp_path / "out")
    arguments[arguments.index("--retain") + 1] = "demo/retain"
    assert lensaudit(arguments) == 2
    assert re.search(
        r"its tokenizer differs from that of .* in \d+ tokens", capsys.readouterr().err
    )


def test_leaking_data_end_with_code_2_unless_they_are_dropped(models, tmp_path, capsys):
    splits = {
        name: [McqItem(one.question, one.choices, one.answer) for one in items]
        for name, items in world.dataset().splits.items()
    }
    splits["split_0"].append(splits["split_1"][0])
    data = save_mcq(make_dataset("leaking", splits), tmp_path / "leaking")
    dry = command(models, data, tmp_path / "out", "--dry-run")
    assert lensaudit(dry) == 2
    assert "the same question in several splits" in capsys.readouterr().err
    assert lensaudit([*dry, "--defects", "drop"]) == 0
    assert "95 items in 4 splits, 2 left out" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert lensaudit(["rtt", "validate", str(data)]) == 4


def test_validate_reports_birthdays_and_ascending_years(tmp_path, capsys):
    folder = save_birthdays(tmp_path / "birthdays")
    assert lensaudit(["rtt", "validate", str(folder), "--json"]) == 4
    report = json.loads(capsys.readouterr().out)
    kinds = [one["kind"] for one in report["defects"]]
    assert (report["n_items"], kinds.count("ambiguous"), kinds.count("leak")) == (8, 1, 1)
    years = save_years(tmp_path / "years")
    assert lensaudit(["rtt", "validate", str(years), "--only", "split_0", "--only", "split_1"]) == 0
    assert "choices always ascend" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["rtt", "validate", "nowhere.jsonl"], "no such file"),
        (["rtt", "validate", "demo", "--splits", "9"], "9 splits of 8 authors"),
        (["rtt", "validate", "demo", "--only", "split_0"], "--only names splits of a folder"),
        (["rtt", "summarize", "nowhere"], "no such log"),
    ],
)
def test_wrong_names_end_with_code_2(arguments, problem, capsys):
    assert lensaudit(arguments) == 2
    assert problem in capsys.readouterr().err
