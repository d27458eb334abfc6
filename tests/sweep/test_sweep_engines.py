"""Units in processes that are killed: all others complete, nothing is done twice."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import without
from support.sweep_helpers import behave, calls, command, names, swept, toy_sweep

from lensaudit.errors import InputError, PartialError
from lensaudit.progress import unheard
from lensaudit.sweep.attempts import MAX_KILLS, states_of
from lensaudit.sweep.engines import (
    engine_of,
    gpu_share,
    pace,
    run_pool,
    run_ray,
    run_slurm,
    slots_for,
)
from lensaudit.sweep.plan import UnitConditions
from lensaudit.sweep.run import Order
from lensaudit.sweep.settings import RunSettings

TESTS = Path(__file__).parents[1]


@pytest.fixture
def importable(monkeypatch):
    """Other processes find the toys too."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


KILLED = ["retain", "full", "m0", "m1 die", "m1 die", "m1", "m2", "m3 404", "m4"]


@pytest.mark.parametrize(
    ("engine", "package"),
    [
        (run_pool, "concurrent"),
        pytest.param(run_ray, "ray", marks=pytest.mark.slow),
        pytest.param(run_slurm, "submitit", marks=pytest.mark.slow),
    ],
)
def test_killed_workers_cost_only_what_they_were_doing(tmp_path, importable, engine, package):
    pytest.importorskip(package)
    sweep = toy_sweep(tmp_path, n=5)
    behave(tmp_path, "m1", "die", "die")
    behave(tmp_path, "m3", "404")
    with pytest.raises(PartialError, match="1 of 7 units failed: m3: permanent"):
        swept(tmp_path, engine, workers=2, cluster="local")
    assert sorted(calls(tmp_path)) == sorted(KILLED)
    assert [one for one, state in names(sweep).items() if state != "done"] == ["m3"]
    killed = {one.unit.label: one.n_killed for one in states_of(sweep)}
    assert killed == {name: 2 if name == "m1" else 0 for name in killed}


def test_a_unit_that_kills_its_workers_is_poison_and_the_others_go_on(tmp_path):
    sweep = toy_sweep(tmp_path, n=2)
    behave(tmp_path, "m0", *["die"] * 9)
    with pytest.raises(PartialError, match="m0: poison: its worker was killed 3 times"):
        swept(tmp_path, run_pool, workers=1)
    assert calls(tmp_path).count("m0 die") == MAX_KILLS
    assert names(sweep)["m1"] == "done"


def waiting(root, label):
    """A sweep, its driver in a process of its own, and a worker that waits in a unit."""
    sweep = toy_sweep(root, n=3)
    behave(root, label, "wait")
    code = (
        "import sys, functools; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from lensaudit.sweep.engines import run_pool\n"
        "from support.sweep_helpers import swept\n"
        "swept(Path(sys.argv[2]), run_pool, workers=1)\n"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", code, str(TESTS), str(root)], stderr=subprocess.PIPE, text=True
    )
    until(lambda: list((root / "work").glob("*.waits")))
    running = next(one for one in states_of(sweep) if one.name == "running")
    assert running.unit.label == label
    return sweep, driver, int(running.worker.rpartition("-")[2])


def until(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def ended(pid: int) -> bool:
    """Gone, or a zombie that nobody fetches."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
def test_killing_the_driver_loses_nothing_and_leaves_no_worker(tmp_path):
    sweep, driver, worker = waiting(tmp_path, "m1")
    driver.kill()
    driver.wait()
    until(lambda: ended(worker))
    assert names(sweep)["m1"] == "to do"
    swept(tmp_path)
    assert sorted(calls(tmp_path)) == sorted(["retain", "full", "m0", "m1 wait", "m1", "m2"])
    assert set(names(sweep).values()) == {"done"}


def test_a_worker_told_to_stop_ends_the_run_without_blame(tmp_path):
    sweep, driver, worker = waiting(tmp_path, "m0")
    os.kill(worker, signal.SIGTERM)
    _, errors = driver.communicate(timeout=300)
    assert "Preempted: told to stop" in errors
    state = next(one for one in states_of(sweep) if one.unit.label == "m0")
    assert (state.name, state.failure.kind, state.n_killed) == ("to do", "preempted", 0)


class Ray:
    """A cluster whose workers do nothing, and which prints that one died."""

    exceptions = SimpleNamespace(RayTaskError=KeyError, WorkerCrashedError=KeyError)
    cluster_resources, get = staticmethod(dict), staticmethod(id)

    def remote(self, **asked):
        return lambda work: SimpleNamespace(remote=id)

    def wait(self, waiting, num_returns):
        print("(raylet) A worker died")
        return waiting[:1], waiting[1:]


def test_what_ray_prints_is_no_part_of_the_output(tmp_path, monkeypatch, capsys):
    toy_sweep(tmp_path)
    monkeypatch.setattr("lensaudit.sweep.engines._connected", lambda settings: Ray())
    run_ray([Order(str(tmp_path))], settings=RunSettings(), report=unheard)
    assert capsys.readouterr() == ("", "(raylet) A worker died\n")


def test_slots_share_gpus_and_their_memory():
    slots = slots_for(RunSettings(gpus="0,1", per_gpu=2))
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in slots] == ["0", "1", "0", "1"]
    assert {slot["LENSAUDIT_GPU_SHARE"] for slot in slots} == {"0.4750"}
    assert slots_for(RunSettings(workers=3)) == [{}, {}, {}]
    with pytest.raises(InputError, match="--workers 5"):
        slots_for(RunSettings(workers=5, gpus="0", per_gpu=4))


def test_a_job_has_a_worker_for_four_of_the_cores_that_it_was_given(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(8)}, raising=False)
    assert len(slots_for(RunSettings(engine="pool"))) == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    assert len(slots_for(RunSettings(engine="pool"))) == 16


@pytest.mark.parametrize(
    ("device", "visible", "n", "wanted"),
    [
        ("auto", None, 2, ["0", "1"]),
        ("cuda", "5,GPU-7", 2, ["5", "GPU-7"]),
        ("cuda:1", None, 2, None),
        ("cpu", None, 2, None),
        ("auto", None, 0, None),
    ],
)
def test_a_pool_has_a_worker_on_each_gpu_and_on_no_other(
    tmp_path, monkeypatch, device, visible, n, wanted
):
    import torch

    sweep = toy_sweep(tmp_path)
    sweep = replace(sweep, conditions=replace(sweep.conditions, device=device))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: n > 0)
    engine = engine_of(RunSettings(engine="pool"), sweep, report=print)
    slots = slots_for(engine.keywords["settings"])
    assert [slot.get("CUDA_VISIBLE_DEVICES") for slot in slots] == (wanted or [None] * len(slots))
    if wanted:
        with pytest.raises(InputError, match=r"there is no GPU 9; here are"):
            engine_of(RunSettings(engine="pool", gpus=f"{wanted[0]},9"), sweep, report=print)


def test_an_engine_that_is_not_installed_is_named_with_its_extra(tmp_path, monkeypatch, capsys):
    toy_sweep(tmp_path)
    without(monkeypatch, "ray", "submitit")
    for engine, plan in (("ray", ()), ("slurm", ()), ("slurm", ("--dry-run",))):
        assert command("sweep", "run", tmp_path, "--engine", engine, *plan) == 2
        assert f"pip install 'lensaudit[{engine}]'" in capsys.readouterr().err


def test_a_plan_for_cuda_and_workers_on_gpus_are_refused_where_there_is_none(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    sweep = toy_sweep(tmp_path)
    object.__setattr__(sweep, "conditions", UnitConditions(device="cuda"))
    for engine in ("serial", "pool"):
        with pytest.raises(InputError, match="no CUDA device is available"):
            engine_of(RunSettings(engine=engine), sweep, report=unheard)
    with pytest.raises(InputError, match="--gpus 0,1: no CUDA device is available here"):
        engine_of(RunSettings(engine="pool", gpus="0,1"), sweep, report=unheard)


@pytest.mark.parametrize(
    ("engine", "option", "wanted"),
    [
        ("serial", ("--workers", 2), "pool or ray or slurm"),
        ("pool", ("--address", "auto"), "ray"),
        ("slurm", ("--per-gpu", 2), "pool or ray"),
    ],
)
def test_an_option_of_another_engine_is_refused(tmp_path, capsys, engine, option, wanted):
    toy_sweep(tmp_path)
    for plan in ((), ("--dry-run",)):
        assert command("sweep", "run", tmp_path, "--engine", engine, *option, *plan) == 2
        said = capsys.readouterr()
        assert (
            said.err
            == f"lensaudit: {option[0]}: needs --engine {wanted} (here {engine}); leave it out\n"
        )
        assert said.out == ""


@pytest.mark.parametrize(("device", "share"), [("cpu", 0), ("auto", 0.5), ("cuda", 0.5)])
def test_ray_asks_for_gpus_where_a_plan_may_use_them(device, share):
    settings = RunSettings(engine="ray", per_gpu=2)
    assert gpu_share(settings, device, 1.0) == share
    if device == "cuda":
        with pytest.raises(InputError, match="the cluster has none"):
            gpu_share(settings, device, 0.0)
    else:
        assert gpu_share(settings, device, 0.0) == 0


def test_a_run_says_how_many_units_are_through_and_the_time_left(monkeypatch):
    times, told = iter([0.0, 30.0, 60.0]), []
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    orders = [Order("out", ("a",)), Order("out", ("b", "c"))]
    through = pace(orders, told.append)
    for order in orders:
        through(order)
    # 30 s a unit, two are left
    assert told == [
        "1 of 3 units to do are through, about 60 s left",
        "3 of 3 units to do are through",
    ]


def test_slurm_without_slurm_is_one_line(tmp_path, capsys):
    pytest.importorskip("submitit")
    toy_sweep(tmp_path)
    assert command("sweep", "run", tmp_path, "--engine", "slurm") == 2
    assert "lensaudit: --engine slurm:" in capsys.readouterr().err
    assert command("sweep", "run", tmp_path, "--engine", "slurm", "--slurm", "partition") == 2
    assert "wanted KEY=VALUE" in capsys.readouterr().err
    assert not list(tmp_path.glob("slurm/*"))


def test_jobs_of_slurm_have_a_private_folder_that_was_not_there_before(tmp_path, monkeypatch):
    """submitit unpickles what it finds as the result of a job, whoever put it there."""
    submitit = pytest.importorskip("submitit")
    toy_sweep(tmp_path)
    folders = []

    def executor(folder, cluster):
        folders.append(folder)
        assert not list(folder.iterdir())
        job = SimpleNamespace(done=lambda: True, result=lambda: None)
        return SimpleNamespace(update_parameters=lambda **_: None, submit=lambda order: job)

    monkeypatch.setattr(submitit, "AutoExecutor", executor)
    for _ in range(2):
        settings = RunSettings(engine="slurm", cluster="local")
        run_slurm([Order(str(tmp_path))], settings=settings, report=unheard)
    assert len({tmp_path / "slurm", *folders}) == 3
    for folder in folders:
        assert folder.parent == tmp_path / "slurm"
        assert folder.stat().st_mode & 0o777 == 0o700


def test_submitit_does_not_log_to_stdout(tmp_path):
    """In a process of its own: a handler on stdout would stay for all that follow."""
    pytest.importorskip("submitit")
    toy_sweep(tmp_path)
    code = (
        "import logging; from lensaudit.cli.main import run;"
        f"run(['sweep', 'run', {str(tmp_path)!r}, '--engine', 'slurm']);"
        "import sys; assert 'submitit' in sys.modules;"
        "print(logging.getLogger('submitit').handlers)"
    )
    plain = {name: text for name, text in os.environ.items() if name != "SUBMITIT_LOG_LEVEL"}
    call = [sys.executable, "-c", code]
    done = subprocess.run(call, capture_output=True, text=True, check=True, env=plain)
    assert done.stdout.splitlines()[-1] == "[]"
