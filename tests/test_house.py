import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.closure import closure

import lensaudit

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "lensaudit").rglob("*.py"))


def test_every_module_says_what_it_answers():
    assert [p.name for p in FILES if not ast.get_docstring(ast.parse(p.read_text()))] == []


def test_no_class_name_stands_twice():
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_nothing_catches_everything():
    broad = [
        f"{path.name}:{node.lineno}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
        # a handler that raises what it does not know catches nothing
        and not any(isinstance(n, ast.Raise) and n.exc is None for n in ast.walk(node))
    ]
    assert broad == []


@pytest.mark.parametrize("name", sorted(lensaudit.__all__))
def test_every_public_name_exists_and_is_documented(name):
    assert getattr(lensaudit, name).__doc__


def test_an_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = lensaudit.nonsense


def test_help_reads_no_project_and_neither_it_nor_a_listing_imports_what_is_heavy(tmp_path):
    (tmp_path / "lensaudit.toml").write_text("not TOML at all")
    code = (
        "import sys; from lensaudit.cli.main import run; code = run(['--help']);"
        "heavy = {'torch', 'transformers', 'h5py', 'numpy', 'rich', 'pydantic', 'tomllib'};"
        "print('\\nhelp', code, heavy & {*sys.modules}); run(['models', '--project', 'none']);"
        "print('\\nmodels', {'torch', 'transformers', 'datasets'} & {*sys.modules})"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert {"help 0 set()", "models set()"} <= {*done.stdout.splitlines()}


def test_every_listed_command_can_be_loaded():
    from lensaudit.cli.main import COMMANDS, cli

    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert command.help, name


def test_the_version_is_the_packages():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["project"]["version"] == lensaudit.__version__
    assert importlib.metadata.version("lensaudit") == lensaudit.__version__


def test_constraints_pin_every_direct_dependency():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    wanted = settings["dependencies"] + settings["optional-dependencies"]["dev"]
    names = {d.split(">")[0].split("=")[0].split("<")[0].split("[")[0].lower() for d in wanted}
    assert names - pinned == set()


def test_every_pin_is_asked_for_by_what_is_declared():
    """`make test` installs all pins: what nothing declares would hide that it is not declared."""
    asked: set[tuple[str, frozenset[str]]] = set()
    waiting = {("lensaudit", frozenset({"dev"}))}
    while waiting:
        name, extras = waiting.pop()
        with suppress(importlib.metadata.PackageNotFoundError):
            for one in map(Requirement, importlib.metadata.requires(name) or ()):
                if one.marker is None or any(
                    one.marker.evaluate({"extra": extra, "sys_platform": platform})
                    for extra in ("", *extras)
                    for platform in ("linux", "win32")
                ):
                    found = (canonicalize_name(one.name), frozenset(one.extras))
                    waiting |= {found} - asked
                    asked.add(found)
    pins = (ROOT / "constraints.txt").read_text().split()
    assert {canonicalize_name(one.split("==")[0]) for one in pins} <= {name for name, _ in asked}


def test_scripts_call_the_library_and_not_its_commands():
    scripts = [
        p for f in ("experiments", "benchmarks", "notebooks") for p in (ROOT / f).rglob("*.py")
    ]
    assert len(scripts) > 10
    imported = {
        f"{path.name}: {name}"
        for path in scripts
        for node in ast.walk(ast.parse(path.read_text()))
        for name in _imports(node)
        if name.startswith("lensaudit.cli")
    }
    assert imported == set()


def _imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{one.name}" for one in node.names]
    return [one.name for one in node.names] if isinstance(node, ast.Import) else []


def test_type_checkers_see_what_the_public_names_are():
    stub = ast.parse((ROOT / "lensaudit" / "__init__.pyi").read_text())
    named = {
        alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert named == set(lensaudit.__all__)
    assert {one.name for one in (ROOT / "lensaudit").glob("*.typed")} == {"py.typed"}


def test_every_pin_has_a_hash_in_the_lock():
    pins = (ROOT / "constraints.txt").read_text().split()
    lines = [one for one in (ROOT / "requirements.lock").read_text().splitlines() if one[0] != "#"]
    locked = {one.split(" ")[0].partition("+")[0].lower().replace("_", "-") for one in lines}
    assert locked == {one.lower().replace("_", "-") for one in pins}
    assert [one for one in lines if not re.fullmatch(r"\S+ --hash=sha256:[0-9a-f]{64}", one)] == []


CORE_STATEMENTS = 12_987
"""Besides docstrings; the number may only fall."""


def test_the_core_stays_small(capsys):
    """What auditing and verdicts stand on, by whatever import: metrics and large models too."""

    def within(*rooms):
        places = tuple(f"lensaudit.{room}" for room in rooms)
        return lambda name: any(name == one or name.startswith(f"{one}.") for one in places)

    above = within("cli", "screen", "report", "doors")
    reached = within("auditing", "verdict", "metrics")  # metrics are imported by name
    found = closure(reached, lambda name: name == "lensaudit" or above(name))
    with capsys.disabled():
        print(f"\ncore: {len(found)} modules, {sum(found.values())} statements")
    assert {
        "lensaudit.patching.session",
        "lensaudit.models.large.streaming",
        "lensaudit.metrics.rouge",
    } <= found.keys()
    assert sum(found.values()) <= CORE_STATEMENTS
