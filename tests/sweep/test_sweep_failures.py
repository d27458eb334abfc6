"""Failures have classes; finished is what is published; nothing is done twice."""

import errno
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.sweep_helpers import (
    ERRORS,
    behave,
    calls,
    caused,
    command,
    http,
    names,
    rows_of,
    swept,
    toy_run_unit,
    toy_sweep,
)

from lensaudit.errors import InputError, LensAuditError, PartialError, TryAgainError, WorkError
from lensaudit.files import make_folder
from lensaudit.partials import process_name
from lensaudit.sweep import attempts
from lensaudit.sweep.attempts import (
    MAX_KILLS,
    MAX_TRIES,
    Attempt,
    Preempted,
    claimed,
    failure_of,
    finished,
    holder,
    state_of,
)
from lensaudit.sweep.run import check_anchor
from lensaudit.sweep.unit import halved
from lensaudit.sweep.weights import Weights

LABELS = ["retain", "full", "m0", "m1", "m2"]


KINDS = {
    "transient": ("429", "full disk", "reset", "flipped bit", "full", "stale", "no answer"),
    "permanent": ("404", "bug", "bad weights"),
    "resource": ("OOM", "memory", "system memory", "cuBLAS", "C++"),
}


def test_every_error_has_its_class():
    found = {kind: tuple(failure_of(ERRORS[one]).kind for one in KINDS[kind]) for kind in KINDS}
    assert found == {kind: (kind,) * len(KINDS[kind]) for kind in KINDS}
    # neither is the unit's fault
    stops = KeyboardInterrupt(), Preempted("told to stop")
    assert {failure_of(one).kind for one in stops} == {"preempted"}


def test_a_server_that_asks_for_a_pause_gets_it_by_its_own_clock():
    dates = {
        "Retry-After": "Fri, 20 Nov 2026 10:00:30 GMT",
        "Date": "Fri, 20 Nov 2026 10:00:00 GMT",
    }
    for told, seconds in (({"Retry-After": "7"}, 7), (dates, 30)):
        assert failure_of(caused(InputError("no"), http(503, **told))).retry_after_s == seconds


def test_a_passing_failure_is_tried_again_in_the_same_run(tmp_path):
    toy_sweep(tmp_path)
    behave(tmp_path, "m1", "429", "full disk")
    swept(tmp_path)
    assert calls(tmp_path) == ["retain", "full", "m0", "m1 429", "m2", "m1 full disk", "m1"]


def test_passing_failures_end_a_run_and_the_next_one_tries_again(tmp_path):
    sweep = toy_sweep(tmp_path)
    behave(tmp_path, "m1", *["reset"] * MAX_TRIES)
    with pytest.raises(PartialError, match="m1: transient: no network"):
        swept(tmp_path)
    assert calls(tmp_path).count("m1 reset") == MAX_TRIES
    assert names(sweep)["m1"] == "to do"
    swept(tmp_path)
    assert set(names(sweep).values()) == {"done"}


def test_a_permanent_failure_is_tried_once_and_is_a_hole_that_is_named(tmp_path, capsys):
    sweep = toy_sweep(tmp_path)
    behave(tmp_path, "m1", "404")
    for _ in range(2):
        with pytest.raises(PartialError, match="1 of 5 units failed: m1: permanent: HTTP 404"):
            swept(tmp_path)
    assert calls(tmp_path).count("m1 404") == 1
    assert finished(sweep, sweep.units[3]) is None
    assert command("sweep", "status", tmp_path) == 0
    out = capsys.readouterr().out
    for said in ("done 4/5", "failed 1 (1 permanent)", "failed: m1 base: permanent: HTTP 404"):
        assert said in out
    assert command("sweep", "collect", tmp_path) == 3
    assert "1 of 5 planned units have no result: m1: permanent" in capsys.readouterr().err
    results = tmp_path / "results"
    assert not results.exists()
    assert command("sweep", "collect", tmp_path, "--allow-missing", "--json") == 0
    streams = capsys.readouterr()
    assert "missing: m1: permanent: HTTP 404" in streams.err
    assert json.loads(streams.out)["n_done"] == 4
    assert command("sweep", "collect", tmp_path, "--allow-missing") == 0
    assert capsys.readouterr().out.startswith("4 of 5 planned units; missing: m1\n")
    to_do = json.loads((results / "base" / "to_do.json").read_text())
    assert to_do == {"m1": "permanent: HTTP 404"}
    counted = json.loads((results / "collected.json").read_text())
    assert counted["metrics"]["base"]["toy"] == {"n_values": 4, "n_planned": 5}


def test_retry_lets_a_failed_unit_be_tried_again(tmp_path, capsys):
    sweep = toy_sweep(tmp_path)
    behave(tmp_path, "m1", "bug")
    with pytest.raises(PartialError, match="m1: permanent: KeyError: 'layer'"):
        swept(tmp_path)
    end = rows_of(sweep, sweep.units[3])[-1]
    assert any("_act" in line for line in end["traceback"])
    assert command("sweep", "retry", tmp_path, "nobody") == 2
    assert command("sweep", "retry", tmp_path) == 0
    assert "1 units will be tried again" in capsys.readouterr().out
    swept(tmp_path)
    assert set(names(sweep).values()) == {"done"}
    assert calls(tmp_path).count("m0") == 1


def test_a_unit_that_ran_out_of_memory_gets_half_the_batch_each_time(tmp_path):
    sweep = toy_sweep(tmp_path)
    behave(tmp_path, "m1", "OOM", "memory")
    swept(tmp_path)
    assert finished(sweep, sweep.units[3])["halvings"] == 2
    assert halved(sweep.conditions, 2).batch_size == 8  # 32 halved twice


def test_a_finished_unit_that_holds_a_file_of_others_stays_whole(tmp_path, capsys):
    sweep = toy_sweep(tmp_path)
    swept(tmp_path)
    unit = sweep.units[2]
    notes = sweep.unit(unit.id) / "notes.txt"
    notes.write_text("mine")
    again = ("sweep", "retry", tmp_path, unit.target, "--redo")
    assert command(*again) == 2
    assert "holds notes.txt, which no record of its own names" in capsys.readouterr().err
    assert finished(sweep, unit) is not None
    notes.unlink()
    assert command(*again) == 0
    assert finished(sweep, unit) is None


def test_an_anchor_that_fails_stops_the_run_before_anything_else(tmp_path):
    toy_sweep(tmp_path)
    behave(tmp_path, "retain", "404")
    with pytest.raises(WorkError, match=r"retain failed, all other units wait .*\n.*sweep retry"):
        swept(tmp_path)
    assert calls(tmp_path) == ["retain 404"]


def test_an_anchor_that_a_full_disk_stopped_is_tried_again_by_the_next_run(tmp_path):
    sweep = toy_sweep(tmp_path)
    behave(tmp_path, "retain", *["full disk"] * MAX_TRIES)
    said = r"retain is not done, all other units wait for it: no space left\nrun the sweep again"
    with pytest.raises(TryAgainError, match=said):
        swept(tmp_path)
    assert calls(tmp_path) == ["retain full disk"] * MAX_TRIES
    swept(tmp_path)
    assert set(names(sweep).values()) == {"done"}


def test_an_anchor_whose_failure_found_no_room_in_the_log_is_tried_again(tmp_path):
    sweep = toy_sweep(tmp_path)
    state = state_of(sweep, sweep.units[0])
    with pytest.raises(TryAgainError, match="it was not done"):
        check_anchor(state)
    with pytest.raises(WorkError, match="it was not done"):
        check_anchor(replace(state, name="failed"))


def test_out_of_time_stops_between_units_and_the_next_run_goes_on(tmp_path):
    sweep = toy_sweep(tmp_path)
    with pytest.raises(Preempted, match="out of time"):
        swept(tmp_path, max_hours=1e-9)
    assert calls(tmp_path) == []
    swept(tmp_path)
    assert set(names(sweep).values()) == {"done"}


BY = {"run": "r", "engine": "serial"}


def refusing(error):
    """A call of the system that fails."""

    def refuse(*args, **options):
        raise error

    return refuse


def dead_attempt(path, told=False):
    """The log of an attempt whose process is gone."""
    trying = Attempt(path, run="r", engine="pool")
    trying.__enter__()
    gone = process_name(2**22 + 1)
    path.write_text(path.read_text().replace(process_name(), gone))
    trying.key = trying.key.replace(process_name(), gone)
    if told:
        trying.told_to_stop()


def test_a_worker_killed_often_is_poison_unless_it_was_told_to_stop(tmp_path):
    sweep = toy_sweep(tmp_path)
    unit = sweep.units[3]
    for n in range(MAX_KILLS):
        assert state_of(sweep, unit).name == "to do"
        assert state_of(sweep, unit).n_killed == n
        dead_attempt(sweep.attempts(unit.id))
    assert state_of(sweep, unit).name == "failed"
    assert state_of(sweep, unit).failure.kind == "poison"
    other = sweep.units[4]
    for _ in range(MAX_KILLS):
        dead_attempt(sweep.attempts(other.id), told=True)
    assert state_of(sweep, other).name == "to do"
    with pytest.raises(PartialError, match="m1: poison: its worker was killed 3 times"):
        swept(tmp_path)
    assert "m1" not in calls(tmp_path)


def test_an_attempt_whose_end_finds_a_full_disk_is_no_killed_worker(tmp_path, monkeypatch):
    sweep = toy_sweep(tmp_path)
    unit = sweep.units[3]
    make_folder(sweep.attempts(unit.id).parent)
    attempts.set_back(sweep.attempts(unit.id))
    before = sweep.attempts(unit.id).read_bytes()
    for _ in range(MAX_KILLS):
        with monkeypatch.context() as patch, Attempt(sweep.attempts(unit.id), **BY) as trying:
            patch.setattr(attempts, "append_jsonl", refusing(ERRORS["full disk"]))
            raise ERRORS["full disk"]
        assert trying.failure.kind == "transient"
    assert sweep.attempts(unit.id).read_bytes() == before
    # a line that was written since stays, and so does what is before it
    with monkeypatch.context() as patch, Attempt(sweep.attempts(unit.id), **BY) as trying:
        trying.told_to_stop()
        patch.setattr(attempts, "append_jsonl", refusing(ERRORS["full disk"]))
    assert [row["event"] for row in rows_of(sweep, unit)] == ["retry", "start", "told to stop"]


def test_a_folder_that_can_only_be_read_shows_who_works(tmp_path, monkeypatch):
    sweep = toy_sweep(tmp_path)
    unit = sweep.units[3]
    for _ in range(MAX_KILLS):
        Attempt(sweep.attempts(unit.id), **BY).__enter__()
    with claimed(sweep.claim(unit.id)), monkeypatch.context() as patch:
        patch.setattr(Path, "touch", refusing(PermissionError()))
        state = state_of(sweep, unit)
        assert (state.name, state.worker, state.n_killed) == ("running", process_name(), 0)
    # this process runs, whoever holds the claim
    assert (state_of(sweep, unit).name, state_of(sweep, unit).n_killed) == ("to do", 0)
    assert state_of(sweep, unit, mine=True).failure.kind == "poison"


def test_a_unit_complete_but_not_yet_published_is_published_and_not_done_again(tmp_path):
    sweep = toy_sweep(tmp_path)
    swept(tmp_path)
    unit = sweep.units[3]
    os.rename(sweep.unit(unit.id), sweep.work(unit.id))  # killed just before the rename
    swept(tmp_path, runner="lensaudit.sweep.unit:run_unit")
    assert finished(sweep, unit) is not None
    assert calls(tmp_path).count("m1") == 1


@pytest.mark.parametrize("content", ["", "{}", '{"schema": 1, "unit": "x"}', "[1"])
def test_a_torn_result_is_not_a_result(tmp_path, content):
    sweep = toy_sweep(tmp_path)
    swept(tmp_path)
    unit = sweep.units[3]
    (sweep.unit(unit.id) / "result.json").write_text(content)
    assert state_of(sweep, unit).name == "to do"
    swept(tmp_path)
    assert finished(sweep, unit) is not None


def test_a_claimed_unit_is_left_to_its_worker(tmp_path):
    sweep = toy_sweep(tmp_path)
    unit = sweep.units[3]
    with claimed(sweep.claim(unit.id)) as mine, claimed(sweep.claim(unit.id)) as second:
        assert (mine, second) == (True, False)
        with pytest.raises(TryAgainError, match=r"1 of 5 units are not done \(1 running elsewhere"):
            swept(tmp_path)
    swept(tmp_path)
    assert sorted(calls(tmp_path)) == sorted(LABELS)


def test_a_disk_without_locks_has_claims(tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", refusing(OSError(errno.ENOLCK, "No locks available")))
    sweep = toy_sweep(tmp_path)
    path = sweep.claim(sweep.units[3].id)
    with claimed(path) as mine, claimed(path) as second:
        assert (mine, second, holder(path)) == (True, False, process_name())
    assert Weights(sweep).used_bytes() == 0


def test_a_claim_that_does_not_fit_on_the_disk_is_nobodys(tmp_path):
    path = tmp_path / "claims" / "u.json"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # files are made, and stay empty
    try:
        with pytest.raises(LensAuditError), claimed(path):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not path.exists()
    with claimed(path) as mine:
        assert mine


def claim_of(path, process):
    """The file that says that a process works on a unit."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"process": process, "nonce": "theirs"}))
    return path


def test_a_claim_of_a_dead_process_is_void_at_once(tmp_path):
    path = claim_of(tmp_path / "claims" / "u.json", process_name(2**22 + 1))
    assert holder(path) is None
    with claimed(path) as mine:
        assert mine
        assert holder(path) == process_name()
    assert not path.exists()
    with claimed(path) as mine:
        assert mine
        # this worker was silent for so long that another took it for dead
        claim_of(path, "0123abcd-17")
    assert holder(path) == "0123abcd-17"


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
def test_a_claim_of_a_killed_process_that_nobody_fetched_is_void_at_once(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    path = claim_of(tmp_path / "u.json", process_name(process.pid))
    assert holder(path) == process_name(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and still a zombie
    os.kill(process.pid, 0)
    assert holder(path) is None
    process.communicate()


def test_a_claim_of_another_machine_is_void_when_it_is_silent(tmp_path, monkeypatch):
    path = claim_of(tmp_path / "u.json", "0123abcd-17")
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: 4e9)  # ages are those of the file system's clock
        assert holder(path) == "0123abcd-17"
    silent = time.time() - attempts.STALE_S - 1
    os.utime(path, (silent, silent))
    assert holder(path) is None


def test_a_worker_that_finished_second_keeps_the_first_result(tmp_path):
    sweep = toy_sweep(tmp_path)
    unit = sweep.units[3]
    toy_run_unit(sweep, unit)
    first = (sweep.unit(unit.id) / "result.json").stat().st_mtime_ns
    toy_run_unit(sweep, unit)
    assert (sweep.unit(unit.id) / "result.json").stat().st_mtime_ns == first
    assert not sweep.work(unit.id).exists()
