"""Results that were edited are told: a digit, the end, a line or all of a file."""

import contextlib
import io
import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import lay_out
from support.command_cases import JUDGED, OWN, ROWS, with_wrong_answers

from lensaudit.association.canaries import draw_canaries
from lensaudit.cli.main import run
from lensaudit.results.integrity import answered_for, check_whole
from lensaudit.results.manifest import MANIFEST, mark_of, signed

NPO, TWO = "--source demo/npo", "--full demo/full --retain demo/retain"


@dataclass(frozen=True)
class World:
    """Results of some commands."""

    made: str
    """A call on each line."""
    files: tuple[tuple[str, str], ...] = ()
    prepare: Callable[[Path], None] = Path.exists
    """Makes further files in the folder."""


PATCH = f"patch {NPO} --limit 2 --align none --out out"
EM = f"patch {NPO} --limit 2 --score em --layers 8 --max-new-tokens 4 --out out"
EVAL = "eval --model demo/npo --limit 2 --max-new-tokens 4 --retain demo/retain --out out"
RTT = (
    f"rtt run {NPO} {TWO} --data mcq.jsonl --splits 2 --v-runs 1 --epochs 1 --lr 1e-3"
    " --batch-size 4 --loss-on answer --readout answer --min-drop 0 --min-baseline 0 --out out"
)
EFFORT = f"effort {NPO} --arm T --limit 16 --steps 2 --lr 1e-3 --workers 1 --out out"
WORST = f"worst {NPO} --limit 2 --attack greedy --attack prefix --attack leak64 --out out"
SAMPLE = f"sample {NPO} --limit 2 --samples 2 --k 1 --max-new-tokens 4 --out out"
STEER = (
    f"steer audit {NPO} {TWO} --data rows.jsonl --kept demo --layers 12 --strengths 1"
    " --n-retain 4 --folds 2 --randoms 1 --max-new-tokens 4 --out out"
)
SWEEP = (
    "steer extract --model demo/full --trait demo_idk --layers 8-9 --method mean_diff"
    " --position prompt_last --out out\n"
    "steer sweep --model demo/full --trait demo_idk --judge idk --questions 4 --rollouts 1"
    " --max-new-tokens 4 --temperature 0 --out out"
)
RELEARN = (
    f"relearn --source demo/npo {TWO} --data rows.jsonl --epochs 0.25 --batch-size 4 --accumulate 1"
    " --audit --out out"
)
POOLS = "--pool-knows demo/full,demo/masked_readout --pool-forgot demo/retain,demo/never"
META = f"meta faithfulness {POOLS} --metric uds --metric es --limit 2 --max-new-tokens 4 --out out"
JUDGE = "judge run rows.jsonl --by words:idk --out out"
PLAN = "sweep plan demo/npo --variants base --metric uds,exact_memorization --limit 2 --out out"


def few_scores(root: Path) -> None:
    """What two auditors read of one seed of the shipped gym, sealed."""
    gym, out = Path(__file__).parents[2] / "benchmarks" / "gym", root / "out"
    header, *lines = (gym / "scores.jsonl").read_text().splitlines(keepends=True)
    told = [one for one in lines if re.search(r'"auditor": "(uds|verdict)".*"seed": 0,', one)]
    out.mkdir()
    (out / "scores.jsonl").write_text("".join([header, *told]))
    made = json.loads((gym / f"scores_{MANIFEST}").read_text())
    made["files"] = {"scores.jsonl": mark_of(out / "scores.jsonl")}
    (out / f"scores_{MANIFEST}").write_text(json.dumps(signed(made)))


WORLDS = {
    "patch": World(PATCH),
    "em": World(EM),
    "eval": World(EVAL),
    "rtt": World(RTT, (("mcq.jsonl", with_wrong_answers(ROWS)),)),
    "effort": World(EFFORT),
    "worst": World(WORST),
    "sample": World(SAMPLE),
    "steer audit": World(STEER, tuple(OWN.items())),
    "steer sweep": World(SWEEP),
    "relearn": World(RELEARN, tuple(OWN.items())),
    "meta": World(META),
    "judge": World(JUDGE, (("rows.jsonl", JUDGED),)),
    "sweep": World(f"{PLAN}\nsweep run out"),
    "gym": World("gym table --gym out", prepare=few_scores),
}
QUICK = ("rtt", "judge", "gym")
"""Worlds of a few seconds."""
SINGLE = ("patch", "em", "rtt", "worst", "sample", "effort")
"""Worlds of one run: a verdict is of its files alone, and passes over none of them."""


def manifests(root: Path) -> list[Path]:
    """Every manifest below a folder."""
    return [*root.rglob(MANIFEST), *root.rglob(f"*_{MANIFEST}")]


def home_of(manifest: Path) -> Path:
    """The folder whose files a manifest names."""
    return manifest.parents[2] if manifest.parent.parent.name == "manifests" else manifest.parent


def edit(path: Path, draw: random.Random) -> str:
    """Change a file and seal nothing: a digit, its end, a line, or all of it."""
    content = path.read_bytes()
    digits = [at for at, byte in enumerate(content) if 48 <= byte <= 57]
    lines = content.splitlines(keepends=True)
    how = draw.choice(("digit", "digit", "cut", "line", "gone"))
    if how == "digit" and digits:
        at = draw.choice(digits)
        path.write_bytes(content[:at] + b"%d" % ((content[at] - 47) % 10) + content[at + 1 :])
    elif how == "cut" and content:
        path.write_bytes(content[: draw.randrange(len(content))])
    elif how == "line" and len(lines) > 1:
        del lines[draw.randrange(len(lines))]
        path.write_bytes(b"".join(lines))
    else:
        path.unlink()
    return how


def restored(root: Path, kept: Path) -> None:
    """A folder as it was."""
    shutil.rmtree(root)
    shutil.copytree(kept, root)


def build(name: str, root: Path) -> None:
    """The results of a world."""
    root.mkdir()
    for path, text in WORLDS[name].files:
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(text)
    WORLDS[name].prepare(root)
    for call in WORLDS[name].made.split("\n"):
        with contextlib.chdir(root):
            code, said = called(call)
        assert code == 0, (call, said)


def called(call: str) -> tuple[int, str]:
    """Exit code and second screen."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(call.split())
    return code, err.getvalue()


def kept_of(root: Path) -> Path:
    """A copy of a world as it was built."""
    kept = root.with_name(f"{root.name}-kept")
    if not kept.exists():
        shutil.copytree(root, kept)
    return kept


def believing(root: Path, path: Path) -> list[str]:
    """The calls that must not believe an edited file: it is what they tell of."""
    calls = [
        f"runs {how}"
        for one in manifests(root)
        if one.name == MANIFEST and (path == one or path in answered_for(one))
        for place in [home_of(one).relative_to(root)]
        for how in (f"show {place}", f"diff {place} {place}")
    ]
    if root.name in SINGLE and calls:
        calls.append("verdict out")
    if path.name.startswith("scores"):
        return ["gym table --gym out --calibration new.json"]
    log = (root / "out" / "jobs.jsonl").exists() and path.name in ("jobs.jsonl", MANIFEST)
    return [*calls, *(["rtt summarize out"] if log else [])]


def edited(name: str, place: Path, n: int, seed: int) -> tuple[Counter[str], list[str]]:
    """`n` edited files of a world; a call that ends well, or says much, believed one."""
    root = place / name.replace(" ", "_")
    build(name, root)
    kept, draw, counts, bad = kept_of(root), random.Random(seed), Counter[str](), []
    paths = [one for one in sorted((root / "out").rglob("*")) if one.is_file()]
    paths = [one for one in paths if believing(root, one)]
    for path in draw.choices(paths, k=n if paths else 0):
        calls = believing(root, path)
        what = edit(path, draw)
        for call in calls:
            with contextlib.chdir(root):
                code, said = called(call)
            counts["edited"] += 1
            if code != 2 or said.count("\n") != 1:
                bad.append(f"{name}: {path.relative_to(root)} {what}: {call}: exit {code} {said}")
        restored(root, kept)
    return counts, bad


@pytest.mark.parametrize("name", QUICK)
def test_an_edited_result_is_told(name, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    counts, bad = edited(name, tmp_path, 8, seed=17)
    assert bad == []
    assert counts["edited"] >= 8


READERS = (
    ("patch:out", "results.jsonl", "verdict {0}"),
    ("patch:out", "summary.json", "export {0} --to markdown -o new"),
    ("patch:out", "layers.csv", "report {0} -o new.html"),
    ("patch:out", "summary.json", "meta aggregate {0}"),
    ("patch:out", "manifest.json", "runs show {0}"),
    ("eval:out", "TOFU_EVAL.json", "eval --from-log {0}/TOFU_EVAL.json"),
    ("eval:out", "TOFU_EVAL.json", "meta aggregate {0}"),
    ("eval:out", "results.jsonl", "judge run {0} --by words:idk --out new"),
    ("audit:out/know", "facts.csv", "verdict {0}"),
    ("audit:out/know", "facts.csv", "canaries test {0}/facts.csv --canaries drawn --seal {1}"),
    ("rtt:rtt", "summary.json", "report {0} -o new.html"),
    ("steer_audit:steering", "summary.json", "verdict {0}"),
    ("meta_faithfulness_read:again", "faithfulness.json", "meta table {0}"),
    ("meta_faithfulness_read:again", "faithfulness.csv", "meta table {0}/faithfulness.json"),
    (
        "meta_faithfulness_read:again",
        "faithfulness.json",
        "meta robustness --attack quantize --source demo/npo --filter both"
        " --faithfulness {0}/faithfulness.json --out new",
    ),
)
"""What a command left, which of its files is edited, and who must not believe it."""


@pytest.mark.parametrize(("golden", "file", "call"), READERS)
def test_no_reader_believes_an_edited_file(golden, file, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seal, folder = draw_canaries("drawn", seed=1), lay_out(golden, tmp_path / "run")
    check_whole(folder)
    edit_digit(folder / file)
    code, said = called(call.format(folder, seal))
    assert (code, said.count("\n")) == (2, 1), said
    assert "changed after" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drawn", "run"]


def test_a_list_of_runs_leaves_out_numbers_that_were_edited(tmp_path, capsys):
    folder = lay_out("patch:out", tmp_path / "run")
    assert run(["runs", "ls", str(tmp_path), "--json"]) == 0
    assert 0 < json.loads(capsys.readouterr().out)[0]["value"] < 1
    edit_digit(folder / "summary.json")
    assert run(["runs", "ls", str(tmp_path), "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)[0]["value"] is None
    assert "summary.json: was changed after the run wrote it" in told.err


def edit_digit(path: Path) -> None:
    """Make another digit of the last one."""
    head, digit, tail = re.fullmatch(r"(.*)(\d)(.*)", path.read_text(), re.DOTALL).groups()
    path.write_text(f"{head}{(int(digit) + 1) % 10}{tail}")


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_no_edited_result_of_hundreds_is_believed(name, tmp_path):
    _, bad = edited(name, tmp_path, 40, seed=1)
    assert bad == []
