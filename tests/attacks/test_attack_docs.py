"""docs/attacks.md is true: its commands and its Python run, and so are figures of its evidence."""

import json
import re
import shlex

import pytest
from support.pages import page
from support.tolerance import NATS

from lensaudit.cli.main import run

TEXT = page("attacks#Relearning and rounding")
EVIDENCE = page("evidence/relearning")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.S)


@pytest.mark.slow
def test_the_table_is_what_its_command_prints(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (command,) = [line for line in blocks("sh")[0].splitlines() if "--audit" in line]
    assert run([*shlex.split(command)[1:], "--json"]) == 0
    hidden, retain = json.loads(capsys.readouterr().out)
    shown = re.findall(r"^\| (demo/\w+) \|(.*)\|$", EVIDENCE, re.M)
    assert command in EVIDENCE
    assert [name for name, _ in shown] == [hidden["model"], retain["model"]]
    for (_, cells), found in zip(shown, (hidden, retain), strict=True):
        written = [float(number) for number in re.findall(r"\d?\.\d{3}", cells)]
        wanted = [
            found[when][score]
            for score in ("uds", "prob", "em", "es")
            for when in ("before", "after")
        ]
        assert written == pytest.approx(wanted, abs=0.005)

    # what the text says of it
    assert retain["before"]["uds"] == pytest.approx(1.0, abs=NATS)
    gain = {one["model"]: one["after"]["prob"] - one["before"]["prob"] for one in (hidden, retain)}
    assert gain["demo/masked_upper"] > 2 * gain["demo/retain"] > 0
    assert not list(tmp_path.rglob("*.safetensors"))

    # a second run trains nothing
    monkeypatch.setattr("lensaudit.attacks.relearn.RelearnJob.make", None)
    assert run([*shlex.split(command)[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [hidden, retain]
