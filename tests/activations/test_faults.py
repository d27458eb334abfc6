"""Killed, raced, interrupted, out of disk: the store is as before, or complete."""

import dataclasses
import errno
import io
import multiprocessing
import os
import shutil
from contextlib import suppress

import pytest
from support.store_cases import fill, make_example, writer

from lensaudit.activations import presence
from lensaudit.activations.inventory import verify
from lensaudit.activations.shard import check_shard
from lensaudit.errors import LensAuditError, TryAgainError, VerificationError, WorkError

FORK = multiprocessing.get_context("fork")


def publish_one(filling, shard):
    filling.publish(shard, [make_example(idx) for idx in shard.idx])


def publish_all(filling):
    for shard in filling.missing():
        publish_one(filling, shard)


def test_writers_killed_at_random_moments_lose_nothing(drills, tmp_path):
    found = drills.kill_writers(tmp_path / "store", n_kills=3)
    assert found.n_acknowledged > 0
    assert (found.n_unreadable, found.n_lost, found.n_leftovers) == (0, 0, 0)
    assert found.is_right


def test_four_writers_share_the_work_and_two_may_die(drills, tmp_path):
    found = drills.race_writers(tmp_path / "store", n_writers=4, n_killed=2)
    assert found.is_right
    # each of the killed two held one shard at most
    assert found.n_shards <= found.n_computed <= found.n_shards + 2


def test_writers_are_right_where_locks_do_nothing(drills, tmp_path):
    found = drills.race_writers(tmp_path / "store", n_writers=2, n_killed=0, locks=False)
    assert found.is_right
    assert found.n_computed > found.n_shards  # the work was indeed done twice


@pytest.mark.parametrize("preflight", [True, False])
def test_a_full_disk_ends_with_its_exit_code_and_keeps_what_was_published(
    drills, tmp_path, preflight
):
    try:
        with drills.small_disk(tmp_path, 20 << 20) as disk:
            found = drills.fill_disk(disk, preflight=preflight)
    except PermissionError as error:
        pytest.skip(str(error))
    assert found.exit_code == TryAgainError.exit_code
    assert found.n_published >= 1
    assert (found.n_unreadable, found.n_leftovers) == (0, 0)
    assert found.resumed


def test_too_little_room_is_said_in_bytes_before_anything_is_written(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(presence.shutil, "disk_usage", lambda folder: usage)
    with writer(tmp_path) as filling:
        shard = filling.missing()[0]
        examples = map(make_example, shard.idx)
        n_bytes = sum(one.resid.nbytes + one.final_norm.nbytes for one in examples)
        missing = f"1000 bytes are free, {int(1.2 * n_bytes) - 1000}"
        with pytest.raises(TryAgainError, match=missing):
            publish_one(filling, shard)
        assert len(filling.missing()) == 3
        assert not list(filling.folder.glob("*.partial"))


SYSTEM_CALLS = {"open": io, "fsync": os, "link": os, "unlink": os, "utime": os, "stat": os}


@pytest.mark.parametrize("call", SYSTEM_CALLS)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])  # EACCES: of a link, no refusal
def test_a_system_call_that_fails_leaves_the_old_state_or_the_new(
    tmp_path, monkeypatch, call, number
):
    real = getattr(SYSTEM_CALLS[call], call)
    n_reached = 0
    for fail_at in range(1, 5):
        with writer(tmp_path / str(fail_at)) as filling:
            publish_one(filling, filling.missing()[0])
            shard, calls = filling.missing()[0], []

            def fails(*arguments, calls=calls, fail_at=fail_at, **options):
                calls.append(arguments)
                if len(calls) == fail_at:
                    raise OSError(number, os.strerror(number))
                return real(*arguments, **options)

            with monkeypatch.context() as patch:
                patch.setattr(SYSTEM_CALLS[call], call, fails)
                with suppress(LensAuditError):
                    publish_one(filling, shard)
            n_reached += len(calls) >= fail_at
            for other in filling.spec.shards():
                if filling.path(other).exists():
                    check_shard(filling.path(other), filling.spec, other)
        fill(tmp_path / str(fail_at))
        assert verify(filling.folder).complete
    assert n_reached


def test_a_disk_that_returns_other_bytes_than_written_is_noticed(tmp_path, monkeypatch):
    real = os.fsync

    def short(descriptor):
        os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
        real(descriptor)

    with writer(tmp_path) as filling:
        monkeypatch.setattr(os, "fsync", short)
        with pytest.raises(WorkError, match="returned other bytes than were written"):
            publish_one(filling, filling.missing()[0])
        assert len(filling.missing()) == 3


def test_the_first_publisher_wins_and_the_second_changes_nothing(tmp_path):
    with writer(tmp_path) as first, writer(tmp_path) as second:
        shard = first.missing()[0]
        publish_one(first, shard)
        before = first.path(shard).stat()
        others = [make_example(idx) for idx in shard.idx]
        others[4] = dataclasses.replace(others[4], resid=others[4].resid + 1)
        second.publish(shard, others)
        after = first.path(shard).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_second_publisher_does_not_take_a_damaged_file_for_done(tmp_path):
    with writer(tmp_path) as filling:
        shard = filling.missing()[0]
        filling.path(shard).write_bytes(b"not a shard")
        with pytest.raises(VerificationError, match="lensaudit activations repair"):
            publish_one(filling, shard)


def test_publishing_works_on_disks_without_hard_links(tmp_path, monkeypatch):
    def refused(source, target):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    folder = fill(tmp_path)
    assert verify(folder).complete


def test_an_interrupt_leaves_no_partial_file_and_the_run_resumes(tmp_path, monkeypatch):
    real, left = os.fsync, [3]

    def interrupted(descriptor):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        real(descriptor)

    with writer(tmp_path) as filling:
        monkeypatch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            publish_all(filling)
        folder, n_missing = filling.folder, len(filling.missing())
    monkeypatch.undo()
    assert 0 < n_missing < 3
    assert not list(folder.glob("*.partial"))
    fill(tmp_path)
    assert verify(folder).complete
