"""Twelve checkpoints in two variants on every engine: a worker killed twice, a checkpoint missing.

The commands run as a user runs them, in processes of their own.
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file, save_file

from lensaudit.models.registry import EMBEDDED
from lensaudit.sweep.attempts import state_of, states_of
from lensaudit.sweep.plan import read_plan

N = 12
ENGINES = {
    "serial": (),
    "pool": ("--engine", "pool", "--workers", "2"),
    "ray": ("--engine", "ray", "--workers", "2"),
    "submitit": ("--engine", "slurm", "--cluster", "local", "--workers", "2"),
}
NEEDS = {"ray": "ray", "submitit": "submitit"}


def lensaudit(*arguments, **more):
    code = [sys.executable, "-m", "lensaudit.cli.main", *map(str, arguments)]
    return subprocess.Popen(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def finished(*arguments):
    process = lensaudit(*arguments)
    out, err = process.communicate(timeout=900)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Twelve different models: demo/npo, each with a little noise of its own."""
    import torch

    folder = tmp_path_factory.mktemp("checkpoints")
    for n in range(N):
        copy = shutil.copytree(EMBEDDED / "npo", folder / f"m{n:02}")
        tensors = load_file(copy / "model.safetensors")
        draws = torch.Generator().manual_seed(n)
        noisy = {
            name: one + 0.02 * one.float().std() * torch.randn(one.shape, generator=draws)
            for name, one in tensors.items()
        }
        save_file(
            {name: one.half() for name, one in noisy.items()},
            copy / "model.safetensors",
            metadata={"format": "pt"},
        )
    return folder


def planned(root, checkpoints):
    given = "--full demo/full --retain demo/retain --data demo --variants base,nf4 --limit 2"
    metrics = "--metric exact_memorization,forget_Q_A_Prob,uds"
    folders = sorted(checkpoints.iterdir())
    code, _, err = finished("sweep", "plan", *folders, *f"{given} {metrics} --out {root}".split())
    assert code == 0, err
    return read_plan(root)


def begun(sweep, unit):
    """Processes that have begun a unit: one that only holds its claim has nothing to lose."""
    path = sweep.attempts(unit.id)
    rows = map(json.loads, path.read_text().splitlines() if path.exists() else ())
    return {row["process"] for row in rows if row["event"] == "start"}


def kill_twice(sweep, unit, process):
    """Kill the worker of a unit each time it works on it, twice; the workers' process numbers."""
    killed = []
    while len(killed) < 2 and process.poll() is None:
        state = state_of(sweep, unit)
        if state.name == "running" and state.worker in begun(sweep, unit):
            number = int(state.worker.rpartition("-")[2])
            if number not in killed:
                os.kill(number, signal.SIGKILL)
                killed.append(number)
        time.sleep(0.02)
    return killed


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, checkpoints):
    """The table of a run that nothing happened to, one unit after another."""
    root = tmp_path_factory.mktemp("undisturbed")
    planned(root, checkpoints)
    code, _, err = finished("sweep", "run", root)
    assert code == 0, err
    return table_of(root)


def table_of(root, *more):
    code, _, err = finished("sweep", "collect", root, *more)
    assert code == 0, err
    rows = json.loads((root / "results" / "table.json").read_text())
    return {(row["model"], row["variant"], row["metric"]): row for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "serial"])
def test_every_engine_survives_kills_and_gives_the_same_table(
    tmp_path, checkpoints, undisturbed, engine
):
    if engine in NEEDS and importlib.util.find_spec(NEEDS[engine]) is None:
        pytest.skip(f"{NEEDS[engine]} is not installed")
    own = shutil.copytree(checkpoints, tmp_path / "checkpoints")
    root = tmp_path / "sweep"
    sweep = planned(root, own)
    shutil.rmtree(own / "m07")
    unit = next(one for one in sweep.units if (one.target, one.variant) == ("m03", "nf4"))
    process = lensaudit("sweep", "run", root, *ENGINES[engine])
    killed = kill_twice(sweep, unit, process)
    seen = json.loads(finished("sweep", "status", root, "--json")[1])
    out, err = process.communicate(timeout=900)
    assert process.returncode == 3, err[-2000:]
    assert "2 of 27 units failed" in err
    assert "m07" in err
    assert len(killed) == 2
    assert seen["done"] + seen["running"] + seen["to_do"] + seen["failed"] == seen["n_units"] == 27
    states = {one.unit.id: one for one in states_of(sweep)}
    missing = {one.unit.label for one in states.values() if one.name != "done"}
    assert all("m07" in label for label in missing)
    for state in states.values():
        # nothing is begun twice but what was interrupted
        assert state.n_attempts == (3 if state.unit.id == unit.id else 1)
    found = table_of(root, "--allow-missing")
    wanted = {key: row for key, row in undisturbed.items() if "m07" not in key[0]}
    assert found.keys() == wanted.keys()
    assert [row["value"] for row in found.values()] == [row["value"] for row in wanted.values()]
    assert "done 25/27" in out
