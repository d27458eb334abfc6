"""Repair makes again what is broken and nothing else; gc keeps what is named or in use."""

import dataclasses
import multiprocessing
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.store_cases import BASE, copy, fill, flip, make_example, same, writer

from lensaudit.activations import removal, upkeep
from lensaudit.activations.inventory import describe, verify
from lensaudit.activations.layers import ActivationStore
from lensaudit.activations.opening import open_activations
from lensaudit.activations.removal import staging_name
from lensaudit.activations.upkeep import BOOKS, collect, repair
from lensaudit.doors.verify import verify as verify_all
from lensaudit.errors import InputError
from lensaudit.results.keyed import write_marked
from lensaudit.results.ledger import Ledger
from lensaudit.text import digest
from lensaudit.turns import in_turn

OTHERS = [dataclasses.replace(BASE, weights=letter * 32) for letter in "def"]


def test_fitted_maps_are_counted_and_go_before_caches(folder, tmp_path):
    root = tmp_path / "store"
    n_bytes = collect(root).n_bytes_left
    maps = root / upkeep.MAPS
    maps.mkdir()
    for age, letter in ((1, "a"), (3, "b"), (2, "c")):
        path = maps / f"{letter * 32}.safetensors"
        write_marked(path, bytes(1000), letter * 32)
        os.utime(path, (time.time() - age, time.time() - age))
    mark = path.with_suffix(".json").stat().st_size
    (maps / "mine.safetensors").write_bytes(bytes(1000))
    found = collect(root, max_bytes=n_bytes + 1500 + mark, dry_run=True)
    assert [path[-14:-12] for path in found.maps] == ["bb", "cc"]
    assert found.removed == ()
    assert found.n_bytes_left == n_bytes + 1000 + mark
    assert len(list(maps.iterdir())) == 7
    write_marked(maps / f"{'d' * 32}.safetensors", bytes(10), "d" * 32)
    (maps / f"{'d' * 32}.safetensors").unlink()
    assert collect(root).leftovers == (str(maps / f"{'d' * 32}.json"),)
    assert collect(root, max_bytes=n_bytes + 1500 + mark).maps == found.maps
    assert {path.name[:4] for path in maps.iterdir()} == {"aaaa", "mine"}
    assert folder.exists()
    # nothing is left that speaks of a map that is gone
    assert [one.problems for one in verify_all(root) if one.problems] == []


def test_books_count_and_go_last_the_oldest_first(folder, tmp_path):
    root = tmp_path / "store"
    n_bytes = collect(root).n_bytes_left
    for age, kind in enumerate(BOOKS):
        path = root / kind / f"full--{digest({'a': 1})}.jsonl"
        Ledger(path, kind, {"a": 1}).append([{"row": 1}])
        os.utime(path, (time.time() - age, time.time() - age))
    write_marked(root / "fisher" / f"{'b' * 32}.safetensors", bytes(500), "b" * 32)
    foreign = root / "scores" / f"mine--{'c' * 32}.jsonl"
    foreign.write_text('{"mine": 1}\n')
    sizes = {one: one.stat().st_size for one in root.glob("*/*") if one.parent.name in BOOKS}
    held = sum(sizes.values()) - sizes[foreign]
    assert collect(root).n_bytes_left == n_bytes + held
    # a cache that is kept by name counts first; then the oldest books go, one after the other
    found = collect(root, max_bytes=n_bytes + held - 1, keep=[folder.name])
    assert found.removed == ()
    assert found.books == (str(root / BOOKS[-1] / path.name),)
    found = collect(root, max_bytes=0)
    assert len(found.removed) == 1
    assert len(found.books) == len(BOOKS)
    assert found.n_bytes_left == 0
    assert [one for one in root.glob("*/*") if one.is_file()] == [foreign]


def test_repair_sets_the_broken_shard_aside_and_the_next_run_makes_that_alone(folder, tmp_path):
    others = {name: (folder / name).stat() for name in ("shard-000000.h5", "shard-000002.h5")}
    flip(folder / "shard-000001.h5", 5000)
    found = repair(folder)
    assert found.quarantined == ("SEAL.json", "shard-000001.h5")
    assert found.missing == ("shard-000001.h5",)
    assert found.command == (
        "lensaudit cache --model full --data forget10 --limit 70 --positions span --dtype bfloat16 "
        f"--device cpu --activations {folder.parent}"
    )
    assert len(list((folder / "quarantine").iterdir())) == 2
    assert describe(folder).state == "incomplete"
    fill(tmp_path / "store")
    assert verify(folder).complete
    for name, before in others.items():
        assert (folder / name).stat().st_ino == before.st_ino
    with open_activations(folder) as cache:
        assert all(same(example, make_example(example.idx)) for example in cache.examples())


def test_repairing_a_whole_cache_does_nothing(folder):
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.*")}
    found = repair(folder)
    assert (found.sealed, found.quarantined) == (True, ())
    assert {path.name: path.stat().st_mtime_ns for path in folder.glob("*.*")} == before


@pytest.mark.parametrize("damage", ["flip", "gone"])
@pytest.mark.parametrize("name", ["SEAL.json", "spec.json"])
def test_a_damaged_seal_is_made_again_and_a_damaged_spec_taken_from_a_shard(
    folder, tmp_path, name, damage
):
    path = folder / name
    before = path.read_bytes()
    flip(path, 100) if damage == "flip" else path.unlink()
    if name == "spec.json":
        flip(folder / "shard-000000.h5", 5000)
        assert repair(folder).missing == ("shard-000000.h5",)
        fill(tmp_path / "store")
    else:
        assert repair(folder).sealed
    assert path.read_bytes() == before
    assert verify(folder).complete


def test_with_nothing_whole_everything_is_set_aside_and_can_be_filled(folder, tmp_path):
    for path in [*folder.glob("*.h5"), *folder.glob("*.json")]:
        flip(path, 300)
    found = repair(folder)
    assert len(found.quarantined) == 4  # the spec and three shards
    shutil.rmtree(folder / "quarantine")
    (folder / "SEAL.json").unlink(missing_ok=True)
    assert verify(fill(tmp_path / "store")).complete


def test_a_valid_shard_that_the_seal_does_not_know_is_sealed_again(folder, tmp_path):
    other = fill(tmp_path / "other", name="another")
    (other / "shard-000001.h5").replace(folder / "shard-000001.h5")
    assert repair(folder).quarantined == ("SEAL.json",)
    assert verify(folder).complete


def test_a_repair_killed_after_the_seal_went_leaves_an_incomplete_cache(folder, monkeypatch):
    flip(folder / "shard-000001.h5", 5000)
    real = upkeep._quarantine

    def killed(path):
        if path.name != "SEAL.json":
            raise KeyboardInterrupt
        return real(path)

    monkeypatch.setattr(upkeep, "_quarantine", killed)
    with pytest.raises(KeyboardInterrupt):
        repair(folder)
    monkeypatch.undo()
    assert describe(folder).state == "incomplete"
    assert repair(folder).missing == ("shard-000001.h5",)


def used_at(folder, seconds):
    for path in folder.rglob("*"):
        os.utime(path, (seconds, seconds))


@pytest.fixture
def three(tmp_path):
    """A store of three caches, oldest use first."""
    root = tmp_path / "store"
    folders = [
        fill(root, other, name=name)
        for other, name in zip(OTHERS, ("full", "retain", "demo/idk"), strict=True)
    ]
    for age, folder in enumerate(reversed(folders)):
        used_at(folder, time.time() - 3600 * (age + 1))
    return root, folders


def test_gc_removes_what_was_not_used_for_longest_and_opening_is_use(three):
    root, folders = three
    open_activations("full", root=root).close()
    size = describe(folders[0]).n_bytes + describe(folders[2]).n_bytes
    done = collect(root, max_bytes=size)
    assert [info.folder for info in done.removed] == [str(folders[1])]
    assert [folder.exists() for folder in folders] == [True, False, True]
    assert done.n_bytes_over == 0


def test_gc_keeps_what_is_named_or_in_use(three, monkeypatch):
    root, folders = three
    removed, real = [], upkeep.remove
    monkeypatch.setattr(upkeep, "remove", lambda folder: removed.append(folder) or real(folder))
    with open_activations("retain", root=root) as cache:
        cache.example(0)
        done = collect(root, max_bytes=0, keep=["full"])
    assert removed == [folders[2]]  # not even moved for a moment
    assert [info.name for info in done.removed] == ["demo/idk"]
    assert sorted(info.name for info in done.kept) == ["full", "retain"]
    assert done.n_bytes_over > 0
    assert verify(folders[0]).complete


def test_a_cache_in_use_is_not_even_moved_and_one_that_is_gone_is_removed(three, monkeypatch):
    root, folders = three
    moved, real = [], Path.rename
    monkeypatch.setattr(Path, "rename", lambda path, to: moved.append(path) or real(path, to))
    with open_activations("full", root=root):
        assert not removal.remove(folders[0])
    assert not moved
    assert removal.remove(folders[0])
    assert moved == [folders[0]]
    assert removal.remove(folders[0])


@pytest.mark.parametrize("allow_partial", [False, True])
def test_nobody_removes_a_cache_while_it_is_opened(folder, allow_partial):
    with ThreadPoolExecutor(1) as background:
        with in_turn(folder.parent):
            removed = background.submit(removal.remove, folder)
            time.sleep(0.2)
            assert folder.exists()
            assert not removed.done()
        assert removed.result()
        with in_turn(folder.parent):
            store = ActivationStore(folder.parent)
            opened = background.submit(store.open, BASE, allow_partial=allow_partial)
            time.sleep(0.2)
            assert not opened.done()
        assert opened.result() is None


def test_caches_that_some_fill_and_read_while_others_remove_them_are_whole(tmp_path):
    def work(_):
        for _ in range(20):
            with writer(tmp_path, n=3) as filling:
                for shard in filling.missing():
                    filling.publish(shard, [make_example(idx) for idx in shard.idx])
                filling.seal()
                found = open_activations("full", root=tmp_path)
            with found:
                assert same(found.example(2), make_example(2))
            removal.remove(found.folder)

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(work, range(3))) == [None] * 3
    assert not list(tmp_path.iterdir())


def test_a_reader_that_comes_while_gc_looks_keeps_its_cache(three, monkeypatch):

    root, folders = three
    real = removal.users
    opened = []

    def late(folder):
        found = real(folder)
        if folder.name.startswith(".deleting"):
            (folder / ".locks").mkdir(exist_ok=True)
            (folder / ".locks" / f"use.{removal.process_name()}-00000000").touch()
            opened.append(folder)
        return real(folder) or found

    monkeypatch.setattr(removal, "users", late)
    done = collect(root, max_bytes=0)
    assert opened
    assert not done.removed
    assert all(folder.exists() for folder in folders)


def test_gc_refuses_to_keep_what_is_not_there_and_removes_nothing(three):
    root, folders = three
    with pytest.raises(InputError, match="no cache 'ful' to keep; nothing was removed"):
        collect(root, max_bytes=0, keep=["ful"])
    assert all(folder.exists() for folder in folders)


def test_without_a_size_gc_removes_leftovers_only(three):
    root, folders = three
    process = multiprocessing.get_context("fork").Process(target=lambda: None)
    process.start()
    process.join()
    dead = staging_name("deleting").replace(f"-{os.getpid()}-", f"-{process.pid}-")
    mine, unknown = root / staging_name("import"), root / "notes"
    for path in (root / dead, mine, unknown):
        path.mkdir()
    flip(folders[0] / "shard-000000.h5", 700)
    repair(folders[0])
    done = collect(root)
    assert not done.removed
    assert len(done.leftovers) == 3  # the deletion, the quarantined shard and seal
    assert not (root / dead).exists()
    assert mine.exists()
    assert unknown.exists()


def test_a_dry_run_of_gc_names_what_gc_removes(three):
    root, folders = three
    others = sum(describe(folder).n_bytes for folder in folders[1:])
    hours_ago = dict(zip(folders, (9, 8, 1), strict=True))
    for folder, hours in hours_ago.items():
        used_at(folder, time.time() - 3600 * hours)
    for folder in (folders[0], root / upkeep.MAPS):
        folder.mkdir(exist_ok=True)
        dead = folder / "shard-000001.h5.00000000-1-00000000.partial"
        dead.write_bytes(bytes(100_000))
        os.utime(dead, (time.time() - 3600 * 7,) * 2)
    flip(folders[2] / "shard-000000.h5", 700)
    repair(folders[2])
    started = root / f"full--{'0' * 32}"
    started.mkdir()
    os.utime(started, (0, 0))
    before = sorted(root.rglob("*"))
    for wanted in (others + describe(folders[0]).n_bytes - 100_000, others):
        dry = collect(root, max_bytes=wanted, dry_run=True)
        assert sorted(root.rglob("*")) == before
        assert len(dry.leftovers) == 5  # two partials, the quarantined shard and seal, the start
        gone = [str(folders[0])] if wanted == others else []
        assert [one.folder for one in dry.removed] == gone
    assert collect(root, max_bytes=others) == dry


def test_gc_follows_no_links_and_touches_nothing_else(three, tmp_path):
    root, folders = three
    outside = copy(folders[0], tmp_path / "outside")
    link = root / f"linked--{'0' * 32}"
    link.symlink_to(outside)
    (root / "results").mkdir()
    collect(root, max_bytes=0)
    assert sorted(path.name for path in root.iterdir()) == sorted([link.name, "results"])
    assert verify(outside).complete


FOREIGN = (
    *("notes.txt", "mine.h5", "shard-1.h5", "spec.json.bak", "config.json", "model.safetensors"),
    *("sub/shard-000000.h5", "sub/spec.json", ".git/config", "x.partial"),
    *("quarantine/notes.txt", "quarantine/shard-000000.h5", "quarantine/a/spec.json"),
    *(".locks/notes.txt", ".locks/a/use.00000000-1-00000000"),
)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_cache_with_anything_of_others_stays_whole_and_that_is_named(folder, name):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    for make in (lambda: path.write_text("mine"), lambda: path.symlink_to(folder / "spec.json")):
        path.unlink(missing_ok=True)
        make()
        before = sorted(folder.rglob("*"))
        done = collect(folder.parent, max_bytes=0)
        said = f"{folder}: holds {name}, which no record of its own names"
        assert [line.startswith(said) for line in done.strange] == [True]
        assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("content", ["{}", '{"name": "My app", "digest": "0"}', "not JSON", ""])
def test_a_folder_whose_spec_is_none_of_ours_stays(three, content):
    root, folders = three
    (folders[0] / "spec.json").write_text(content)
    done = collect(root, max_bytes=0)
    assert len(done.removed) == 2
    assert str(folders[0] / "spec.json") in done.strange[0]
    assert len(list(folders[0].glob("shard-*.h5"))) == 3


def test_leftovers_with_anything_of_others_stay_and_are_named(three):
    root, folders = three
    process = multiprocessing.get_context("fork").Process(target=lambda: None)
    process.start()
    process.join()
    mine, ours = (
        root / staging_name(kind).replace(f"-{os.getpid()}-", f"-{process.pid}-")
        for kind in ("deleting", "import")
    )
    copy(folders[0], ours)
    shutil.copytree(folders[0], mine)
    (mine / "thesis.tex").write_text("years of work")
    started = root / f"full--{'0' * 32}"
    (started / "sub").mkdir(parents=True)
    (started / "sub" / "notes.txt").write_text("mine")
    used_at(root, time.time() - 2 * upkeep.EMPTY_AGE_S)
    done = collect(root)
    assert done.leftovers == (str(ours),)
    assert {line.split(":")[0] for line in done.strange} == {str(mine), str(started)}
    assert (mine / "thesis.tex").exists()
    assert len(list(mine.glob("shard-*.h5"))) == 3


def test_tensors_and_documents_that_nothing_of_ours_names_stay(tmp_path):
    maps = tmp_path / upkeep.MAPS
    maps.mkdir()
    (maps / f"{'a' * 32}.safetensors").write_text("mine")
    (maps / f"{'b' * 32}.safetensors").write_text("mine")
    (maps / f"{'b' * 32}.json").write_text('{"key": "b", "n_bytes": 4, "blake2b": "0"}')
    (maps / f"{'c' * 32}.json").write_text("{}")
    done = collect(tmp_path, max_bytes=0)
    assert (done.maps, done.leftovers) == ((), ())
    assert len(list(maps.iterdir())) == 4


def test_a_description_tells_damage_and_users(folder):
    with open_activations(folder):
        assert len(describe(folder).users) == 1
    assert describe(folder).users == ()
    (folder / "shard-000001.h5").unlink()
    assert describe(folder).state == "damaged"
    flip(folder / "spec.json", 50)
    assert describe(folder).state == "damaged"
    assert describe(folder).name is None
