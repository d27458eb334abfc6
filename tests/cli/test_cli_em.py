import json

from frozen import EM_LAYERS, save_em_rows
from support import EMBEDDED

from lensaudit.cli.main import run


def test_the_command_writes_a_folder_and_a_readable_table(tmp_path, capsys):
    data = save_em_rows(tmp_path, (8, 4, 10))

    def call(*options):
        return run(
            [
                "patch",
                "--source",
                str(EMBEDDED / "npo"),
                "--full",
                str(EMBEDDED / "full"),
                "--retain",
                str(EMBEDDED / "retain"),
                "--data",
                str(data),
                "--activations",
                str(tmp_path / "a"),
                "--out",
                str(tmp_path / "out"),
                "--layers",
                ",".join(map(str, EM_LAYERS)),
                *options,
            ]
        )

    assert call("--score", "em", "--dry-run") == 0
    assert "9 texts of up to 30 tokens" in capsys.readouterr().out
    assert call("--score", "em", "--em-form", "teacher", "--dry-run") == 0
    assert "54 patched rows" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert call("--score", "em", "--last-layer", "reference") == 0
    said = capsys.readouterr().out
    assert "UDR" in said
    assert "general" not in said
    tables = [line for line in said.splitlines() if line[:1] in ("┏", "┃", "┡", "│", "├", "└")]
    assert tables
    assert all(len(line) <= 100 for line in tables)
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"manifest.json", "summary.json", "results.jsonl", "layers.csv"}
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["score"], summary["em_form"], summary["threshold"]) == ("em", "generation", 0.5)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["options"]["em"]["max_new_tokens"] == 20
    cells = (tmp_path / "out" / "layers.csv").read_text().splitlines()
    assert len(cells) == 1 + 3 * 6
    assert call("--score", "em", "--em-form", "teacher", "--json") == 0
    assert json.loads(capsys.readouterr().out)["em_form"] == "teacher"


def test_em_options_without_the_em_score_are_refused(capsys):
    assert run(["patch", "--source", "demo/idknll", "--max-new-tokens", "3"]) == 2
    assert "--score em" in capsys.readouterr().err
