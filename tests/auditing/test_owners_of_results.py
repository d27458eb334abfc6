"""No command replaces the result of another run in a default folder or a named one."""

import json
import shutil
from pathlib import Path

import pytest
from support import lay_out

import lensaudit as la
from lensaudit.cli.main import run
from lensaudit.errors import InputError
from lensaudit.files import make_folder, write_json
from lensaudit.models.registry import load_registry, resolve
from lensaudit.results.manifest import BEGUN, manifest
from lensaudit.results.renewal import renew

pytestmark = pytest.mark.usefixtures("one_type")
LIMIT = 2
BARE = dict.fromkeys(("align", "ask", "association"), "none")
"""Whose folder it is hangs on none of these."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("owners")
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def first(place):
    """A run of `patch` in its default folder."""
    return la.patch("demo/npo", limit=LIMIT, layers="8-9", align="none")


def summary(folder) -> dict:
    return json.loads((Path(folder) / "summary.json").read_text())


@pytest.mark.parametrize("other", [{"limit": 1}, {"score": "em"}])
def test_another_run_has_its_own_default_folder(first, other):
    before = summary(first.folder)
    asked = {"limit": LIMIT, "layers": "8-9", "align": "none"}
    assert la.patch("demo/npo", **asked, batch_size=1).folder == first.folder
    own = la.patch("demo/npo", **asked | other)
    assert own.folder.parent == first.folder.parent
    assert own.folder != first.folder
    assert summary(first.folder) == before
    assert la.patch("demo/npo", **asked | other).folder == own.folder


def test_in_a_named_folder_nothing_is_replaced_without_a_line(first, capsys, tmp_path):
    command = f"patch --source demo/npo --layers 8-9 --align none --out {tmp_path}".split()
    assert run([*command, "--limit", str(LIMIT)]) == 0
    capsys.readouterr()
    assert run([*command, "--limit", str(LIMIT)]) == 0
    assert "another run" not in capsys.readouterr().err
    assert run([*command, "--limit", str(LIMIT), "--score", "em"]) == 2
    assert "(score: uds, here em); name another --out" in capsys.readouterr().err
    assert summary(tmp_path)["score"] == "uds"
    assert run([*command, "--limit", "1"]) == 0
    assert "held the result of another run (rows: 2, here 1)" in capsys.readouterr().err


def test_a_run_of_several_does_not_lie_around_a_run_of_one_nor_the_reverse(first, tmp_path):
    both, asked = ["demo/npo", "demo/never"], {"limit": LIMIT, "layers": "8-9", "align": "none"}
    with pytest.raises(InputError, match="would stay beside this run's, not be replaced"):
        la.patch(both, **asked, out=first.folder)
    for step in ("patch", "know"):
        for there, sources in ((tmp_path / step, both), (tmp_path / step / "demo-npo", both[:1])):
            made = {"command": step, "inputs": {"source": {"name": "demo/npo", "weights": "w"}}}
            write_json(make_folder(there) / "manifest.json", made)
            with pytest.raises(InputError, match=f"{there} would stay beside this run's"):
                la.audit(sources, limit=LIMIT, out=tmp_path)
            (there / "manifest.json").unlink()


def test_folders_of_one_name_have_results_of_their_own(place, first):
    npo = resolve("demo/npo", load_registry()).local
    found = {}
    for name in ("a", "b"):
        shutil.copytree(npo, place / name / "x" / "checkpoint-10")
        result = la.patch(
            place / name / "x" / "checkpoint-10",
            retain="demo/retain",
            full="demo/full",
            data="demo",
            limit=1,
            layers="9",
            align="none",
        )
        found[name] = result.folder
    assert len(set(found.values())) == 2
    assert {summary(one)["source"] for one in found.values()} == {
        str(place / name / "x" / "checkpoint-10") for name in found
    }


def test_an_evaluation_is_replaced_by_one_that_asks_for_more_and_by_no_other(place):
    def asked(*metrics, **more):
        settings = {"metrics": metrics, "limit": LIMIT, **more}
        return la.evaluate("demo/npo", **settings).folder

    one = asked("forget_Q_A_Prob")
    assert asked("forget_Q_A_Prob", "forget_Q_A_ROUGE") == one
    other = asked("forget_Q_A_Prob")
    assert other != one
    assert sorted((other / "passes").iterdir()) != []  # what is kept serves both
    third = asked("forget_Q_A_Prob", "forget_Q_A_ROUGE", limit=1)
    assert third not in (one, other)


def test_an_audit_of_other_rows_has_its_own_folder(place):
    settings = {"suite": "none", "limit": 1, **BARE}
    one = la.audit("demo/npo", **settings)
    assert la.audit("demo/npo", **settings).folder == one.folder
    other = la.audit("demo/npo", **{**settings, "limit": LIMIT})
    assert other.folder != one.folder
    assert summary(one.patch.folder)["n"] == 1


def test_a_second_judge_run_does_not_replace_the_first(place, capsys):
    for name, said in (("one", "I don't know."), ("two", "In Rome.")):
        (place / name / "log").mkdir(parents=True)
        row = {"idx": 0, "question": "Q?", "answer": "A.", "generation": said}
        (place / name / "log" / "results.jsonl").write_text(json.dumps(row) + "\n")
        assert run(["judge", "run", f"{name}/log", "--by", "words:idk"]) == 0
    said = capsys.readouterr()
    assert "holds the result of another run" in said.err
    assert summary("experiments/out/log-judge-idk")["contexts"]["forget"]["idk"]["mean"] == 100.0
    assert len(list(Path("experiments/out").glob("log-judge-idk*"))) == 2
    assert run(["judge", "run", "two/log", "--by", "words:idk"]) == 0
    assert len(list(Path("experiments/out").glob("log-judge-idk*"))) == 2
    out = ["--out", "experiments/out/log-judge-idk"]
    assert run(["judge", "run", "two/log", "--by", "words:idk", *out]) == 2


OF_GOLDENS = {
    "patch": "patch:out",
    "patch of two": "patch_two:out",
    "eval": "eval:out",
    "audit": "audit:out",
    "know": "audit:out/know",
    "unlearn": "unlearn_NPO:checkpoint",
    "relearn": "relearn:c",
    "relearn --audit": "relearn_audit:experiments/out/demo-npo-relearn",
    "quantize": "quantize:q",
    "rtt": "rtt:rtt",
    "steer eval": "steer_eval:out",
    "steer sweep": "steer_sweep:out",
    "steer extract": "steer_extract:out",
    "steer audit": "steer_audit:steering",
    "judge": "judge_run:out",
    "meta faithfulness": "meta_faithfulness_read:again",
    "meta table": "meta_table:table",
    "watch": "watch:out",
}
"""Command -> the golden of a run of it, and its folder there."""
BY_MANIFEST = ("worst", "sample", "effort", "lm-eval", "gym score")
"""Commands whose runs no golden holds."""
WRITERS = {
    "patch": "patch --source demo/npo",
    "patch of two": "patch --source demo/npo --source demo/idknll",
    "eval": "eval --model demo/npo",
    "eval --from-log": "eval --from-log eval/TOFU_EVAL.json",
    "audit": "audit --source demo/npo",
    "know": "know --source demo/npo",
    "worst": "worst --source demo/npo",
    "sample": "sample --source demo/npo",
    "effort": "effort --source demo/npo",
    "effort of two": "effort --source demo/npo --source demo/idknll",
    "unlearn": "unlearn --method NPO --model demo/full",
    "relearn": "relearn --source demo/npo",
    "relearn --audit": "relearn --source demo/npo --audit",
    "quantize": "quantize --source demo/npo --engine torch",
    "rtt": "rtt run --source demo/npo",
    "steer extract": "steer extract --model demo/full --trait demo_idk",
    "steer eval": "steer eval --model demo/full --trait demo_idk --judge idk --vector none",
    "steer sweep": "steer sweep --model demo/full --trait demo_idk --judge idk",
    "steer audit": "steer audit --source demo/npo",
    "judge": "judge run rows.jsonl --by words:idk",
    "meta faithfulness": "meta faithfulness --pool-knows demo/full --pool-forgot demo/retain",
    "meta robustness": "meta robustness --attack quantize --source demo/npo --filter none",
    "meta aggregate": "meta aggregate eval",
    "meta table": "meta table meta",
    "sweep": "sweep plan demo/npo",
    "sweep collect": "sweep collect s",
    "watch": "watch runs --once",
    "gym": "gym make --seeds 1",
    "demo": "demo",
    "lm-eval": "lm-eval --model demo/npo --tasks none",
}
KIN = ("patch", "meta", "gym")
"""Commands that begin with one of these may share a folder."""
AT_ONCE = {"eval --from-log", "meta aggregate", "meta table", "sweep collect", "watch", "gym"}
AT_ONCE |= {"demo", "lm-eval"}
"""Writers that have no plan to print."""


def kin(command: str) -> str:
    """Commands of one kin may share a folder."""
    same = {"eval --from-log": "eval", "demo": "patch of two"}
    name = same.get(command, command)
    name = "steer" if name in ("steer extract", "steer eval", "steer sweep") else name
    name = name.removesuffix(" of two").removesuffix(" begun")
    return name.split()[0] if name.startswith(KIN) else name


@pytest.fixture(scope="module")
def owned(tmp_path_factory) -> Path:
    """A folder with a folder of every command in it."""
    place = tmp_path_factory.mktemp("owned")
    for command, golden in OF_GOLDENS.items():
        lay_out(golden, place / command)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert run(["sweep", "plan", "demo/npo", "--out", "sweep"]) == 0
    for command in BY_MANIFEST:
        (place / command).mkdir()
        made = manifest(command, options={}, inputs={}, device="cpu", started=0.0)
        made.write(place / command, [])
    (place / "rtt begun").mkdir()
    write_json(place / "rtt begun" / BEGUN, {"command": "rtt run"})
    lay_out("eval:out", place / "here" / "eval")
    (place / "here" / "runs").mkdir()
    (place / "here" / "rows.jsonl").write_text(json.dumps({"idx": 1, "generation": "x"}) + "\n")
    return place


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file and folder, byte for byte."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("command", WRITERS)
def test_no_command_takes_over_the_folder_of_another(command, owned, monkeypatch, capsys):
    """Refused in one line before any work, in a dry run too, whatever files lie in the folder."""
    monkeypatch.chdir(owned / "here")
    before = contents(owned)
    if command == "sweep collect":
        assert run(["sweep", "plan", "demo/npo", "--out", "s"]) == 0
        before = contents(owned)
    others = [
        one for one in (*OF_GOLDENS, *BY_MANIFEST, "sweep", "rtt begun") if kin(one) != kin(command)
    ]
    others += ["patch"] if command == "demo" else []  # many runs of patch, never one
    assert len(others) > 18
    for other in others:
        for dry_run in ([], ["--dry-run"])[: 1 if command in AT_ONCE else 2]:
            capsys.readouterr()
            code = run([*WRITERS[command].split(), "--out", str(owned / other), *dry_run])
            said = capsys.readouterr().err.strip()
            assert (code, said.count("\n")) == (2, 0), (other, dry_run, said)
            assert "name another --out" in said, (other, said)
            assert f"{owned / other}" in said
    assert contents(owned) == before


TOOK_LONG = ("know", "worst", "sample", "unlearn", "relearn", "quantize", "judge")
"""Commands whose result in a named folder no other run of the command replaces."""


@pytest.mark.parametrize("command", TOOK_LONG)
def test_what_took_long_to_make_is_replaced_with_force_alone(command, owned, monkeypatch, capsys):
    monkeypatch.chdir(owned / "here")
    line = [*WRITERS[command].split(), "--out", str(owned / command), "--dry-run"]
    line += ["--method", "int8"] if command == "quantize" else []  # the golden has the usual one
    before = contents(owned / command)
    capsys.readouterr()

    assert run(line) == 2
    assert "or replace it with --force" in capsys.readouterr().err
    assert run([*line, "--force"]) == 0
    assert "it is replaced" in capsys.readouterr().err
    assert contents(owned / command) == before


STEERED = (
    "--model demo/full --trait demo_idk --judge idk --questions 4 --rollouts 1 --max-new-tokens 6"
)


@pytest.mark.parametrize(
    ("lines", "other", "why"),
    [
        pytest.param(
            ["effort --source demo/npo --arm T --limit 12 --steps 1 --lr 1e-3 --workers 1"],
            "--steps 2",
            "(steps: 1, here 2)",
            marks=pytest.mark.slow,
        ),
        (
            [
                "steer audit --source demo/npo --layers 12 --strengths 1 --experiment add "
                "--set folds=2 --set randoms=1 --limit 6 --n-retain 4"
            ],
            "--n-retain 5",
            "(n_retain: 4, here 5)",
        ),
        (
            [
                "steer extract --model demo/full --trait demo_idk --layers 8 --method mean_diff "
                "--position prompt_last",
                f"steer sweep {STEERED} --method mean_diff --layers 8",
            ],
            "--rollouts 2",
            "(n_rollouts: 1, here 2)",
        ),
    ],
)
def test_a_summary_whose_work_a_log_keeps_is_replaced_with_a_line(
    lines, other, why, tmp_path, monkeypatch, capsys
):
    """Told before any work, and not where the same is asked again."""
    monkeypatch.chdir(tmp_path)
    for line in lines:
        assert run([*line.split(), "--out", "o"]) == 0
    before = contents(tmp_path)

    for more in ([], other.split()):
        capsys.readouterr()
        assert run([*lines[-1].split(), "--out", "o", "--dry-run", *more]) == 0
        said = capsys.readouterr().err
        replaced = f"o: held the result of another run {why}; it is replaced"
        assert (replaced in said) == bool(more), said
    assert contents(tmp_path) == before


@pytest.mark.parametrize("command", TOOK_LONG)
def test_force_takes_no_folder_of_another_command(command, owned, monkeypatch, capsys):
    monkeypatch.chdir(owned / "here")
    # files of nobody stay beside what is judged: it has no tables of those names
    for other in ("eval", "sweep", *([] if command == "judge" else ["here"])):
        place = owned / other
        assert run([*WRITERS[command].split(), "--out", str(place), "--force"]) == 2, other
        assert "--force" not in capsys.readouterr().err


def test_of_a_run_that_is_replaced_no_file_is_left(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = "quantize --source demo/npo --method {} --out q".format
    assert run(line("nf4").split()) == 0
    for name in ("mine.txt", "theirs.txt"):
        (Path("q") / name).write_text("")
    renew(Path("q"), ["theirs.txt"])  # one of which the manifest says that the run left it

    assert run(line("int8").split()) == 2
    assert run([*line("int8").split(), "--force"]) == 0

    assert json.loads(Path("q/manifest.json").read_text())["inputs"]["method"] == "int8"
    assert Path("q/mine.txt").exists()
    assert not Path("q/theirs.txt").exists()
    capsys.readouterr()
    assert run([*line("int8").split(), "--force"]) == 0  # the same again is only read
    assert "nothing to do" in capsys.readouterr().err


def test_an_upgrade_continues_what_only_other_code_made(tmp_path, monkeypatch, capsys):
    """The key of a folder hashes what a result depends on; the package's code is no part of it."""
    monkeypatch.chdir(tmp_path)
    lines = (
        "quantize --source demo/npo --out q",
        "worst --source demo/npo --attack greedy --limit 2 --out w",
    )
    for line in lines:
        assert run(line.split()) == 0
    before = contents(tmp_path / "q"), contents(tmp_path / "w")["facts.csv"]
    monkeypatch.setattr("lensaudit.auditing.question.code_digest", lambda: "another version")
    capsys.readouterr()

    for line in lines:
        assert run(line.split()) == 0
        assert "nothing to do" in capsys.readouterr().err
    assert contents(tmp_path / "q").keys() == before[0].keys()
    assert contents(tmp_path / "w")["facts.csv"] == before[1]
