"""Every folder that a command writes before every reader, whole and with one digit edited."""

import json
import re
import shutil
import sys
import warnings
from pathlib import Path

import pytest
from support import GOLDEN, as_written, lay_out

import lensaudit as la
from lensaudit.cli.main import run
from lensaudit.errors import LensAuditError
from lensaudit.results.manifest import MANIFEST, MANIFESTS


def tops():
    """Each case whose golden has a manifest, and the folder at its top: one of each kind."""
    found = {}
    for path in sorted((GOLDEN / "commands").glob("*.json")):
        files = json.loads(path.read_text()).get("files", {})
        for name in files:
            if name.endswith(MANIFEST):
                kind = json.loads(as_written(files[name]))["kind"]
                top = name.rpartition("/")[0] if name.count("/") == 1 else name.split("/")[0]
                if name.startswith("experiments/out/"):
                    top = "/".join(name.split("/")[:3])
                found.setdefault((kind, top), path.stem)
    return [(kind, f"{case}:{top}") for (kind, top), case in found.items()]


def command(*words):
    def read(folder, place):
        argv = [
            str(folder) if one == "HERE" else str(place) if one == "OUT" else one for one in words
        ]
        return run(argv)

    return read


def frame(name):
    def read(folder, _):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                print(getattr(la.frames, name)(folder).to_csv())
            except LensAuditError as error:
                print(error, file=sys.stderr)
                return 2
        for one in heard:
            print(one.message, file=sys.stderr)
        return 0

    return read


TIMES = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?")
SUFFIXES, LARGEST = (".json", ".jsonl", ".csv"), 1 << 19
READERS = {
    "verdict": command("verdict", "HERE"),
    "verdict --json": command("verdict", "HERE", "--json"),
    "report": command("report", "HERE", "-o", "OUT"),
    "export": command("export", "HERE", "--to", "csv", "-o", "OUT"),
    "runs show": command("runs", "show", "HERE"),
    "runs ls": command("runs", "ls", "HERE"),
    "verify": command("verify", "HERE"),
    **{
        name: frame(name)
        for name in ("summaries", "examples", "layers", "metrics", "efforts", "curves")
    },
}


@pytest.fixture(scope="module")
def laid(tmp_path_factory):
    place, made = tmp_path_factory.mktemp("laid"), {}

    def folder(golden):
        if golden not in made:
            made[golden] = lay_out(golden, place / re.sub(r"\W+", "-", golden))
        return made[golden]

    return folder


def answer(reader, folder, place, capsys, caplog):
    capsys.readouterr()
    caplog.clear()
    code = READERS[reader](folder, place)
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    assert code in (0, 1, 2, 3, 4)
    assert code == 0 or said.err or said.out
    written = place.read_text() if place.is_file() else ""
    return code, said.out, said.err + caplog.text, TIMES.sub("", written)


QUICK = ("verify", "summaries", "metrics")
"""Others under `slow`."""


@pytest.mark.parametrize(
    "reader",
    [pytest.param(one, marks=[] if one in QUICK else [pytest.mark.slow]) for one in READERS],
)
@pytest.mark.parametrize(("kind", "golden"), tops(), ids=[f"{k} {g}" for k, g in tops()])
def test_a_folder_is_read_or_refused_and_an_edited_digit_is_never_believed(
    kind, golden, reader, laid, tmp_path, monkeypatch, capsys, caplog
):
    monkeypatch.chdir(tmp_path)
    folder, place = shutil.copytree(laid(golden), tmp_path / "run"), tmp_path / "out"
    before = {one: one.read_bytes() for one in folder.rglob("*") if one.is_file()}
    code, out, err, page = answer(reader, folder, place, capsys, caplog)
    assert {one: one.read_bytes() for one in folder.rglob("*") if one.is_file()} == before

    manifests = [json.loads(data) for one, data in before.items() if one.name.endswith(MANIFEST)]
    named = {Path(name).name for one in manifests for name in one["files"]}
    for path, data in before.items():
        text = data.decode() if path.suffix in SUFFIXES and len(data) < LARGEST else ""
        digit = re.search(r"(?<=[.:,])[1-8](?=\d*[,\n}\]])", text)
        if digit is None or path.name.endswith(MANIFEST):
            continue
        at = digit.start()
        path.write_text(text[:at] + str(int(text[at]) + 1) + text[at + 1 :])
        place.unlink(missing_ok=True)
        again, o, e, p = answer(reader, folder, place, capsys, caplog)
        path.write_bytes(data)
        told = again != code or e != err or "damaged" in o
        assert told or (o, p) == (out, page), path.relative_to(folder)
        if reader == "verify" and code == 0 and path.name in named:
            assert again == 4, path.relative_to(folder)


@pytest.mark.parametrize("golden", ["meta_faithfulness:meta", "meta_robustness:robust"])
def test_a_table_whose_manifest_is_gone_is_told(golden, tmp_path, capsys):
    folder = lay_out(golden, tmp_path / "run")
    run(["verify", str(folder)])  # a golden holds no binary files
    assert "is gone, so nobody can check" not in "".join(capsys.readouterr())
    for gone in (folder / MANIFESTS).glob(f"*/{MANIFEST}"):
        gone.unlink()
    assert run(["verify", str(folder)]) == 4
    assert f"its {MANIFEST} is gone, so nobody can check" in "".join(capsys.readouterr())


@pytest.mark.parametrize("golden", ["sweep_collect:s/results", "watch:out"])
def test_tables_of_a_sweep_whose_manifest_is_gone_are_told(golden, tmp_path, capsys):
    folder = lay_out(golden, tmp_path / "run")
    (folder / MANIFEST).unlink()
    assert run(["verify", str(folder)]) == 4
    assert f"its {MANIFEST} is gone, so nobody can check" in "".join(capsys.readouterr())
