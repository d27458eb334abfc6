import json
import subprocess
import sys

import pytest

from lensaudit.cli.main import run
from lensaudit.models.registry import VARIABLE


@pytest.fixture(autouse=True)
def no_registry(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def listed(capsys, *arguments):
    assert run(["models", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("role", "count"), [("unlearned", 398), ("pool_knows", 30), ("pool_forgot", 30), ("scale", 8)]
)
def test_a_role_narrows_the_list(capsys, role, count):
    rows = listed(capsys, "--role", role)
    assert {row["role"] for row in rows} == {role}
    published = [row for row in rows if row["origin"] == "published" and not row["alias_of"]]
    assert len(published) == count


def test_names_of_a_registry_file_are_listed(capsys, tmp_path, monkeypatch):
    path = tmp_path / "names.json"
    path.write_text(json.dumps({"mine": "me/mine@v2", "npo": {"path": "folder"}}))
    monkeypatch.setenv(VARIABLE, str(path))
    by_name = {row["name"]: row for row in listed(capsys)}
    assert by_name["mine"]["origin"] == by_name["npo"]["origin"] == "registry"
    assert (by_name["mine"]["repo"], by_name["mine"]["revision"]) == ("me/mine", "v2")
    assert by_name["npo"]["repo"] == str(tmp_path / "folder")
    monkeypatch.delenv(VARIABLE)
    by_option = {row["name"]: row for row in listed(capsys, "--registry", str(path))}
    assert by_option == by_name


@pytest.mark.parametrize(
    ("content", "claim"),
    [(None, "no such file"), ("{", "line 1 is not JSON"), ('{"x": 3}', "'x': found int")],
)
def test_a_wrong_registry_file_ends_with_2_and_few_lines(capsys, tmp_path, content, claim):
    path = tmp_path / "names.json"
    if content is not None:
        path.write_text(content)
    assert run(["models", "--registry", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("lensaudit: ")
    assert claim in captured.err
    assert len(captured.err.splitlines()) <= 3


def test_listing_loads_no_heavy_package():
    code = (
        "import sys; from lensaudit.cli.main import run; run(['models']); "
        "sys.exit(bool({'torch', 'transformers', 'datasets'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
