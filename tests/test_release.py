"""What stands around the package is true: workflows, forms, image, recipe, dependencies."""

import ast
import fnmatch
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from support.pages import page, sections

import lensaudit
from lensaudit.cli.main import cli

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = {one.stem: yaml.safe_load(one.read_text()) for one in ROOT.glob(".github/workflows/*")}
FORMS = {
    one.stem: yaml.safe_load(one.read_text())
    for one in ROOT.glob(".github/ISSUE_TEMPLATE/*.yml")
    if one.stem != "config"
}
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = {*re.findall(r"^([\w-]+):", MAKEFILE, re.M), ".venv/.tools", ".venv/.ready"}
DOCKERFILE = (ROOT / "Dockerfile").read_text()
INSTRUCTIONS = re.findall(r"^([A-Z]+) (.+)$", DOCKERFILE.replace("\\\n", " "), re.M)
CONDA = {"torch": "pytorch", "huggingface-hub": "huggingface_hub", "xxhash": "python-xxhash"}
"""What conda-forge calls otherwise than PyPI."""


def steps(workflow, job=None):
    jobs = WORKFLOWS[workflow]["jobs"]
    return [one for name in ([job] if job else jobs) for one in jobs[name]["steps"]]


def runs(workflow, job=None):
    return "\n".join(one.get("run", "") for one in steps(workflow, job))


def told_to_make(text):
    return {
        word
        for words in re.findall(r"\bmake ([\w./ -]+)", text)
        for word in words.split()
        if not word.startswith("-")
    }


def test_the_workflows_make_targets_that_exist():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    asked = told_to_make(runs("ci") + "\n" + container["postCreateCommand"])
    assert {"test", "cpu-torch", ".venv/.tools"} <= asked
    assert asked <= TARGETS


def test_the_tests_run_on_the_pythons_that_are_promised():
    tested = WORKFLOWS["ci"]["jobs"]["test"]["strategy"]["matrix"]["python"]
    named = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if "Python ::" in one]
    assert tested == named
    assert all(SpecifierSet(PROJECT["requires-python"]).contains(f"{one}.99") for one in named)
    # the oldest that is promised is among them
    assert SpecifierSet(f"~={named[0]}.0").contains(PROJECT["requires-python"].removeprefix(">="))


def test_workflows_may_only_read_and_pin_actions_by_major_version():
    for name, workflow in WORKFLOWS.items():
        assert workflow["permissions"] == {"contents": "read"}, name
        for job in workflow["jobs"].values():
            assert job["timeout-minutes"] <= 150
        for step in steps(name):
            if "uses" in step:
                assert re.fullmatch(r"[\w/-]+@(v\d+|release/v\d+)", step["uses"])
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
            # an expression in a program would be somebody's text run as one
            assert "${{" not in step.get("run", "")


def test_only_the_publishing_job_gets_a_token_and_needs_the_build():
    jobs = WORKFLOWS["release"]["jobs"]
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    publish = jobs["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"] == "pypi"
    assert publish["needs"] == "build"
    # YAML reads the key `on` as true
    assert WORKFLOWS["release"][True] == {"push": {"tags": ["v*"]}}
    assert "password" not in json.dumps(publish)


@pytest.mark.parametrize(("tag", "code"), [("v{}", 0), ("v{}.dev1", 1), ("{}", 1)])
def test_a_tag_of_another_version_is_not_released(tag, code, monkeypatch):
    (check,) = (one["run"] for one in steps("release", "build") if "tag" in one.get("name", ""))
    monkeypatch.setenv("GITHUB_REF_NAME", tag.format(lensaudit.__version__))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", check]
    assert subprocess.run(shell, cwd=ROOT, capture_output=True).returncode == code


def test_a_failure_on_the_main_of_transformerlens_is_said_and_fails_nothing():
    job = WORKFLOWS["ci"]["jobs"]["transformer-lens-main"]
    assert job["continue-on-error"] is True
    told = [one for one in job["steps"] if one.get("if") == "failure()"]
    assert "GITHUB_STEP_SUMMARY" in told[-1]["run"]
    files = re.findall(r"tests/[\w/]+\.py", runs("ci", "transformer-lens-main"))
    assert "tests/models/test_bridge.py" in files
    assert [one for one in files if not (ROOT / one).is_file()] == []


def test_the_files_that_ci_lints_exist():
    (job,) = (one for one in WORKFLOWS["ci"]["jobs"].values() if "hadolint" in json.dumps(one))
    for step in job["steps"]:
        at = ROOT / step.get("working-directory", ".")
        for word in shlex.split(step.get("run", "")):
            if re.search(r"\.yml$|^Dockerfile$", word):
                assert [*at.glob(word)], word


@pytest.mark.parametrize("name", ["crash", "model-does-not-load", "wrong-number"])
def test_a_form_asks_for_the_doctor_and_for_commands_that_exist(name):
    form = FORMS[name]
    assert {"name", "description", "body"} <= form.keys()
    asked = {one["id"]: one for one in form["body"]}
    assert len(asked) == len(form["body"])
    assert "lensaudit doctor --json" in asked["doctor"]["attributes"]["label"]
    assert asked["doctor"]["validations"]["required"] is True
    for command in re.findall(r"`lensaudit ([^`]+)`", json.dumps(form)):
        found, words = cli, shlex.split(command)
        while isinstance(found, click.Group):
            found = found.get_command(click.Context(found), words.pop(0))
        assert found is not None, command
        options = {option for one in found.params for option in one.opts}
        assert {word for word in words if word[:2] == "--"} <= options, command


def test_every_form_is_one_of_those_and_none_names_an_address_of_ours():
    assert FORMS.keys() == {"crash", "model-does-not-load", "wrong-number"}
    written = [*ROOT.glob(".github/**/*.*"), ROOT / "SECURITY.md", ROOT / "CODE_OF_CONDUCT.md"]
    assert [one for one in written if re.search(r"\w@\w+\.(org|com|io)", one.read_text())] == []


def test_the_image_copies_files_that_exist_and_that_its_context_has():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    sent = {one[1:] for one in lines if one.startswith("!")}
    copied = {one for name, rest in INSTRUCTIONS if name == "COPY" for one in rest.split()[:-1]}
    assert copied == sent
    assert [one for one in copied if not (ROOT / one).exists()] == []
    # what the wheel is built of
    built = {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], "lensaudit"}
    assert built | {"tofu_data", "constraints.txt"} == copied
    left_out = [one for one in lines if one[0] not in "!#" and one != "*"]
    assert not [one for one in copied if any(fnmatch.fnmatch(one, no) for no in left_out)]


def test_the_image_has_a_base_of_choice_the_pins_and_a_user_who_is_not_root():
    names = [name for name, _ in INSTRUCTIONS]
    first, second = INSTRUCTIONS[:2]
    assert first == ("ARG", "BASE=python:3.11-slim")
    assert second == ("FROM", "${BASE}")
    assert names.count("FROM") == 1
    installs = [one for name, one in INSTRUCTIONS if name == "RUN" and "uv pip install" in one]
    assert len(installs) == 2
    for one in installs:
        assert "-c constraints.txt" in one
        assert '--torch-backend "${TORCH}"' in one
    (user,) = (one for name, one in INSTRUCTIONS if name == "USER")
    assert user.isdigit()
    assert int(user) > 0
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert not {"RUN", "COPY", "ADD"} & {*names[names.index("USER") :]}
    settings = dict(INSTRUCTIONS)
    assert json.loads(settings["ENTRYPOINT"]) == ["lensaudit"]
    assert settings["VOLUME"] == "/models"
    assert ("ENV", "HF_HOME=/models") in INSTRUCTIONS


def test_the_recipe_asks_for_what_pyproject_asks_for():
    recipe = yaml.safe_load((ROOT / "conda/recipe/recipe.yaml").read_text())
    assert recipe["context"]["version"] == PROJECT["version"]
    run, host = (
        {one.partition(" ")[0]: one.partition(" ")[2] for one in recipe["requirements"][part]}
        for part in ("run", "host")
    )
    python = PROJECT["requires-python"]
    asked = {
        CONDA.get(one.name, one.name): str(one.specifier)
        for one in map(Requirement, PROJECT["dependencies"])
    }
    assert {name: str(SpecifierSet(spec)) for name, spec in run.items()} == asked | {
        "python": python
    }
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert host == {"python": python, "pip": ""} | {
        one.name: str(one.specifier) for one in map(Requirement, build)
    }
    (script,) = PROJECT["scripts"].items()
    assert recipe["build"]["python"]["entry_points"] == [" = ".join(script)]
    assert recipe["about"]["license"] == PROJECT["license"]


def test_no_pydantic_is_promised_that_cannot_read_an_evaluation():
    asked = {one.name: one.specifier for one in map(Requirement, PROJECT["dependencies"])}
    # 2.5 finds no `MetricResult` in the record of one
    assert [*asked["pydantic"].filter(["2.4.2", "2.5.3", "2.6.0"])] == ["2.6.0"]


def table(heading):
    rows = re.findall(r"^\| (.+) \|$", sections(page("evidence/dependencies"))[heading], re.M)
    return [[cell.strip() for cell in row.split("|")] for row in rows[1:]]


def test_those_who_are_said_to_bring_a_package_bring_it():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from dependencies import brought, declared
    finally:
        sys.path.remove(str(ROOT / "tools"))
    assert f"declares {len(declared())} packages" in page("evidence/dependencies")
    by = brought()
    said = table("What the dependencies bring") + table("What one would ask upstream")
    assert len(said) > 10
    for names, who, *_ in said:
        for name in names.split(", "):
            assert who in by[name], name


def test_what_the_package_imports_is_declared_or_said():
    named = {"sklearn": "scikit-learn", "yaml": "pyyaml"}
    imported = {
        named.get(root, canonicalize_name(root))
        for path in (ROOT / "lensaudit").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for root in roots(node)
        if root not in sys.stdlib_module_names and root != "lensaudit"
    }
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    asked = {canonicalize_name(Requirement(one).name) for group in groups for one in group}
    assert imported - asked == {"pyyaml"}
    text = sections(page("evidence/dependencies"))["What one would ask upstream"]
    assert "`yaml`" in text


def roots(node):
    if isinstance(node, ast.Import):
        return [one.name.partition(".")[0] for one in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module.partition(".")[0]]
    return []
