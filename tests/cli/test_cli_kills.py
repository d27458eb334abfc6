"""Whatever is killed goes on by the same command; what runs four times at once is as if run once.

Each case is one of the calls whose results are held fixed. It is run to its end, then killed after
a random time and run again, then started four times in one folder: the files at the end are those
of the undisturbed run, nothing half written is left, and what the run had no business with is as
it was.
"""

import multiprocessing
import os
import random
import re
import shutil
import time
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from support.command_cases import CASES, ENVIRONMENT
from support.command_golden import Case, Stage, _contents, _shown, difference

EXTRA = {
    one.name: one
    for one in (
        Case(
            "worst",
            "worst --source demo/npo --limit 4 --attack greedy --attack prefix --out out",
            rules=((r"(?<=,)[\d.]+(?=,\d+,\d+$)", "<s>"),),
        ),
        Case("sample", "sample --source demo/npo --limit 4 --samples 4 --k 1 --k 2 --out out"),
        Case(
            "effort",
            "effort --source demo/npo --arm T --steps 2 --lr 1e-3 --readout answer --out out",
        ),
        Case(
            "steer_audit",
            CASES["steer_audit"].argv,
            files=CASES["steer_audit"].files,
        ),
    )
}
"""Commands that have no golden files of this size."""
COLD = {name: replace(CASES[name], after=(), prepare=None) for name in ("patch_two", "audit_json")}
"""Cases that find much in the caches of others, from the beginning: all of their work is killed."""
EVERY = {**CASES, **COLD, **EXTRA}
SPAWN = multiprocessing.get_context("forkserver")
WRITERS = (
    *("cache", "patch", "patch_two", "patch_em", "audit_json", "eval", "annotate"),
    *("unlearn_NPO", "relearn", "quantize", "rtt_validate", "rtt", "steer_extract", "steer_sweep"),
    *("judge_words", "meta_faithfulness", "meta_table", "sweep_plan", "sweep_run", "sweep_collect"),
    *("watch", "report", "activations_export", "activations_import", "activations_repair"),
    *EXTRA,
)
"""Every command that writes."""
AGAIN = {0, 75}
"""A second process of the same run finds the work done, or is told to come again."""
REFUSING = {"activations_export"}
"""Write over nothing: after the first run that ended they say that the file is there."""
MANIFEST = re.compile(r"(^|/)manifest\.json$|^s/(plan|state)|log$")
"""Say by how many runs a result was made."""


def play(argv: str, folder: Path) -> None:
    """Run a call in a folder and end with its exit code."""
    os.environ.update(ENVIRONMENT)
    os.chdir(folder)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    from lensaudit.cli.main import main

    for one in argv.split("\n"):
        main(one.split())


def started(case: Case, folder: Path) -> BaseProcess:
    """A process that runs the case."""
    process = SPAWN.Process(target=play, args=(case.argv, folder))
    process.start()
    return process


def ended(process: BaseProcess) -> int:
    """Its exit code."""
    process.join(300)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError("no end after 300 s")
    return process.exitcode


class Trial:
    """One case: its start, and what an undisturbed run makes of it."""

    def __init__(self, stage: Stage, case: Case, root: Path) -> None:
        self.case, self.root = case, root
        for before in case.after:
            stage.play(before)
        self.start = root / f"{case.name}-start"
        stage.lay_out(case, self.start)
        folder = self.folder()
        began = time.monotonic()
        self.code = ended(started(case, folder))
        self.seconds = time.monotonic() - began
        self.wanted = self.files(folder)
        self.others = set(folder.rglob("*"))
        shutil.rmtree(folder)

    def folder(self) -> Path:
        """A copy of the start; always of one name, which some files hold."""
        folder = self.root / "work" / self.case.name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.start, folder, symlinks=True)
        return folder

    def files(self, folder: Path) -> dict[str, object]:
        """What the golden files would hold, but for who made it when."""
        return {
            path: in_any_order(path, _shown(path, data, folder, self.case))
            for path, data in sorted(_contents(folder).items())
            if not MANIFEST.search(path)
            and not any(re.match(rule, path) for rule in self.case.skip)
        }

    def problems(self, folder: Path, code: int) -> list[str]:
        """What is wrong with a folder after the last run."""
        wanted = {self.code, 2} if self.case.name in REFUSING else {self.code}
        said = [] if code in wanted else [f"exit {code}, wanted {self.code}"]
        if found := difference(self.wanted, self.files(folder)):
            said.append(found[:300])
        left = {path for path in set(folder.rglob("*")) - self.others if is_partial(path)}
        return [*said, *(f"left: {path.relative_to(folder)}" for path in sorted(left))]

    def killed(self, random: random.Random) -> list[str]:
        """Kill after a random time, run again."""
        folder = self.folder()
        process = started(self.case, folder)
        process.join(random.uniform(0, self.seconds * 1.05))
        process.kill()
        process.join()
        return self.problems(folder, ended(started(self.case, folder)))

    def raced(self, n: int = 4) -> list[str]:
        """Start several at once, then one more."""
        folder = self.folder()
        codes = [ended(one) for one in [started(self.case, folder) for _ in range(n)]]
        allowed = AGAIN | {self.code} | ({2} if self.case.name in REFUSING else set())
        odd = [f"exit {code}" for code in codes if code not in allowed]
        return [*odd, *self.problems(folder, ended(started(self.case, folder)))]


def in_any_order(path: str, shown: object) -> object:
    """A ledger's lines count once, wherever they stand."""
    return sorted(set(shown)) if path.endswith(".jsonl") and isinstance(shown, list) else shown


def is_partial(path: Path) -> bool:
    """Whether a file or folder is something half written."""
    return bool(re.search(r"\.(tmp|partial|part)\b|~$|^\.tmp|/training$", str(path)))


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """For what cases begin with; what each process inherits, so that nothing is imported twice."""
    SPAWN.set_forkserver_preload(["lensaudit.cli.main", "transformer_lens", "transformers"])
    with Stage(tmp_path_factory.mktemp("kills"), CASES) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_what_is_killed_goes_on(stage, tmp_path, name):
    trial, draw = Trial(stage, EVERY[name], tmp_path), random.Random(name)
    assert [said for _ in range(3) if (said := trial.killed(draw))] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_four_at_once_are_one(stage, tmp_path, name):
    assert Trial(stage, EVERY[name], tmp_path).raced() == []
