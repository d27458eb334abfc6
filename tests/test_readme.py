"""The README is true: its commands run, its Python runs, its links exist."""

import json
import re
import shlex
from pathlib import Path

import pytest

from lensaudit.cli.main import run

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def commands() -> list[str]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    lines = [re.split(r"\s#", line)[0].strip() for line in lines]
    return [line for line in lines if line.startswith("lensaudit ")]


OFFLINE = [c for c in commands() if "demo" in c or "models" in c or "activations" in c]
NETWORK = [c for c in commands() if c not in OFFLINE and "./" not in c]


@pytest.fixture
def called(tmp_path, monkeypatch, capsys):
    """Runs a command in a folder of its own, without a network; exit code, stdout, stderr."""
    from huggingface_hub import constants

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def call(command):
        code = run(shlex.split(command)[1:])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_every_offline_command_and_the_python_run_in_order(called, tmp_path):
    assert len(OFFLINE) >= 5
    for command in OFFLINE:
        code, out, err = called(command)
        assert code == 0, f"{command}\n{err}"
        assert out.strip(), command
    for source in blocks("python"):
        exec(compile(source, "README.md", "exec"), {})
    summary = json.loads((tmp_path / "experiments/out/demo-npo/summary.json").read_text())
    assert summary["n"] > 0


OWN = [c for c in commands() if c not in OFFLINE and "./" in c]


@pytest.mark.parametrize("command", OWN)
def test_commands_on_own_folders_run_where_they_exist(command, called, tmp_path):
    package = ROOT / "lensaudit" / "embedded"
    for name, model in (("unlearned", "npo"), ("full", "full"), ("retain", "retain")):
        (tmp_path / name).symlink_to(package / model)
    (tmp_path / "forget.json").symlink_to(package / "data" / "forget.json")
    code, out, err = called(command)
    assert code == 0, err
    assert out.strip()


def test_no_command_of_the_readme_is_left_out():
    assert len(OWN) == 1
    assert sorted([*OFFLINE, *NETWORK, *OWN]) == sorted(commands())


@pytest.mark.parametrize("command", NETWORK)
def test_commands_that_need_the_hub_say_so_in_one_line_without_it(command, called):
    code, _, err = called(command)
    assert code == 2
    assert "cannot be fetched" in err or "not in the local cache" in err
    assert len(err.strip().splitlines()) <= 3


def test_the_registry_example_is_read_as_the_text_says(tmp_path):
    from lensaudit.models.registry import load_registry, resolve

    (tmp_path / "names.toml").write_text(blocks("toml")[0])
    (tmp_path / "runs" / "my-idknll").mkdir(parents=True)
    (tmp_path / "runs" / "my-idknll" / "config.json").write_text("{}")
    registry = load_registry(tmp_path / "names.toml")
    assert resolve("idknll", registry).local == tmp_path / "runs" / "my-idknll"
    assert resolve("mine", registry).repo == "lab/tofu-npo"


def test_every_link_of_the_readme_exists():
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert [t for t in targets if not (ROOT / t).exists()] == []


def test_every_room_of_the_table_exists():
    rooms = re.findall(r"`(lensaudit/[a-z]+/)`", README)
    assert len(rooms) >= 7
    assert [room for room in rooms if not (ROOT / room).is_dir()] == []


def test_make_targets_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make (\w+)", "\n".join(blocks("sh"))):
        assert re.search(rf"^{target}:", makefile, re.M), target
