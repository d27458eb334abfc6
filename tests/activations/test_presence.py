"""Whose folder it is, who works in it, and what the dead leave behind."""

import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest
from support.store_cases import BASE, fill, make_example, writer

from lensaudit.activations import presence
from lensaudit.activations.layers import ActivationStore
from lensaudit.errors import InputError, LensAuditError
from lensaudit.partials import partial_path

FORK = multiprocessing.get_context("fork")


def as_nobody(work):
    """Run `work` in a child that is not root; its exit code."""

    def child():
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        os.environ[presence.TRUST] = "1"
        try:
            work()
        except LensAuditError as error:
            os._exit(error.exit_code)
        os._exit(0)

    process = FORK.Process(target=child)
    process.start()
    process.join()
    return process.exitcode


def test_a_read_only_folder_is_read_and_not_written():
    with tempfile.TemporaryDirectory() as root:
        folder = fill(Path(root))
        (folder / "SEAL.json").rename(Path(root) / "SEAL.json")
        shutil.rmtree(folder / presence.LOCKS)
        for path in [Path(root), folder]:
            path.chmod(0o555)
        for path in folder.iterdir():
            path.chmod(0o444)

        def read():
            with ActivationStore(Path(root)).open(BASE, allow_partial=True) as cache:
                assert len(list(cache.examples())) == 70

        assert as_nobody(read) == 0
        assert as_nobody(lambda: writer(Path(root))) == InputError.exit_code
        for path in [Path(root), folder]:
            path.chmod(0o755)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o757])
def test_a_folder_that_others_can_write_is_refused_unless_trusted(tmp_path, monkeypatch, mode):
    folder = fill(tmp_path / "store", n=1)
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(presence, "_own_group", lambda gid: False)
    for path in (folder, folder.parent):
        path.chmod(mode)
        with pytest.raises(InputError, match="chmod go-w"):
            writer(tmp_path / "store", n=1)
        with monkeypatch.context() as trusted:
            trusted.setenv(presence.TRUST, "1")
            writer(tmp_path / "store", n=1).close()
        path.chmod(0o700)


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    folder = fill(tmp_path, n=1)
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    if folder.stat().st_uid == 0:
        os.chown(folder, 1000, -1)
    with pytest.raises(InputError, match="belongs to user"):
        ActivationStore(tmp_path).open(BASE)


def hold_a_lock(path, held):
    from filelock import FileLock

    with FileLock(path):
        held.set()
        time.sleep(60)


def test_a_held_shard_is_left_alone_until_patience_ends_or_its_holder_dies(tmp_path):
    held = FORK.Event()
    with writer(tmp_path) as filling:
        first = filling.missing()[0]
        path = filling.folder / presence.LOCKS / f"{first.file_name}.lock"
        holder = FORK.Process(target=hold_a_lock, args=(path, held))
        holder.start()
        assert held.wait(20)
        with presence.claim(filling.folder, first.file_name, patience_s=60.0) as ours:
            assert not ours
        claims = filling.claims(patience_s=60.0)
        assert [next(claims).number, next(claims).number] == [1, 2]
        claims.close()
        os.utime(path, (time.time() - 61,) * 2)
        with presence.claim(filling.folder, first.file_name, patience_s=60.0) as ours:
            assert ours
        os.kill(holder.pid, signal.SIGKILL)
        holder.join()
        with presence.claim(filling.folder, first.file_name, patience_s=60.0) as ours:
            assert ours


def test_the_next_writer_sweeps_what_a_killed_one_left(tmp_path):
    folder = fill(tmp_path)
    dead = FORK.Process(target=lambda: None)
    dead.start()
    dead.join()
    name = partial_path(folder / "shard-000001.h5").name.replace(
        f"-{os.getpid()}-", f"-{dead.pid}-"
    )
    (folder / name).touch()
    writer(tmp_path).close()
    assert not (folder / name).exists()
    assert not name.endswith(".h5")


def test_a_shard_stays_held_until_it_is_published(tmp_path):
    with writer(tmp_path) as first, writer(tmp_path) as second:
        ours, theirs = first.claims(), second.claims()
        shards = [next(ours), next(ours)]
        assert next(theirs).number == 2
        first.publish(shards[1], [make_example(idx) for idx in shards[1].idx])
        with presence.claim(first.folder, shards[0].file_name, patience_s=60.0) as free:
            assert not free
        ours.close()
        with presence.claim(first.folder, shards[0].file_name, patience_s=60.0) as free:
            assert free


def test_claims_end_when_others_published_the_rest(tmp_path):
    with writer(tmp_path) as first:
        claims = first.claims()
        next(claims)
        fill(tmp_path)
        assert list(claims) == []


def test_reading_and_publishing_renew_the_mark_of_use(tmp_path):
    fill(tmp_path, n=40)
    with ActivationStore(tmp_path).open(BASE) as cache:
        old = time.time() - 2 * presence.USE_AGE_S
        (mark,) = (cache.folder / presence.LOCKS).glob("use.*")
        os.utime(mark, (old, old))
        cache.example(0)
        assert mark.stat().st_mtime > time.time() - 3600
    assert not mark.exists()
    with writer(tmp_path / "other") as filling:
        (mark,) = (filling.folder / presence.LOCKS).glob("use.*")
        os.utime(mark, (old, old))
        shard = filling.missing()[0]
        filling.publish(shard, [make_example(idx) for idx in shard.idx])
        assert mark.stat().st_mtime > time.time() - 3600


def test_a_mark_of_another_machine_counts_until_it_is_old(tmp_path):
    folder = fill(tmp_path, n=1)
    mark = folder / presence.LOCKS / "use.ffffffff-1-00000000"
    mark.touch()
    assert presence.users(folder) == ["ffffffff-1"]
    old = time.time() - presence.USE_AGE_S - 60
    os.utime(mark, (old, old))
    assert presence.users(folder) == []
    assert not mark.exists()


def test_only_marks_of_ours_are_removed_and_none_behind_a_link(tmp_path):
    folder, mine = fill(tmp_path / "store", n=1), tmp_path / "mine"
    mine.mkdir()
    dead, notes = "use.ffffffff-1-00000000", "use.cases-of-my-thesis"
    for name in (notes, dead):
        (mine / name).write_text("x")
        os.utime(mine / name, (0, 0))
        shutil.copy2(mine / name, folder / presence.LOCKS)
    assert presence.users(folder) == []
    assert [one.name for one in (folder / presence.LOCKS).glob("use.*")] == [notes]
    shutil.rmtree(folder / presence.LOCKS)
    (folder / presence.LOCKS).symlink_to(mine)
    assert presence.users(folder) == []
    assert sorted(one.name for one in mine.iterdir()) == sorted((notes, dead))
