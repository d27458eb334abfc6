"""What blocks left is taken where every byte is as written and of this run, and by one process."""

import json
import os

import pytest
import torch
from filelock import FileLock

from lensaudit.activations import presence
from lensaudit.activations.scratch import DONE, NUMBERS, Scratch, forget_blocks

SHAPES = [(4, 6, 8), (6, 8), (2, 5, 8), (1, 3, 8)]


def scratch(folder, said, key="a", dtype=torch.bfloat16):
    (folder / ".locks").mkdir(exist_ok=True)
    notice = said.append
    return Scratch(folder, key, [0, 2], SHAPES, dtype, reserve_bytes=0, notice=notice)


def run(folder, n_blocks, **asked):
    """So many blocks more; what was told, and how many were done before."""
    with scratch(folder, said := [], **asked) as one:
        before = one.n_done
        for layer in range(before, before + n_blocks):
            one.resid[layer] = layer + 1
            for stream in one.streams[(layer + 1) % 2]:
                stream.fill_(-layer - 1)
            one.keep()
        kept = one.resid.clone(), [stream.clone() for stream in one.streams[one.n_done % 2]]
    return said, before, kept


def files(folder):
    return {one.name for one in folder.iterdir() if one.is_file()}


def test_what_was_kept_is_there_again(tmp_path):
    said, before, (resid, streams) = run(tmp_path, 2)
    assert (said, before) == ([], 0)
    with scratch(tmp_path, said) as one:
        # a block that is not done leaves nothing: it writes what is not read again
        one.resid[2] = 7
        one.streams[1][0].fill_(7)
    said, before, again = run(tmp_path, 0)
    assert (said, before) == ([f"{tmp_path}: this run goes on after block 2 of 4"], 2)
    assert torch.equal(again[0][:2], resid[:2])
    assert float(again[0][1].max()) == 2
    assert all(map(torch.equal, again[1], streams))
    forget_blocks(tmp_path)
    assert not files(tmp_path)


def halved(folder):
    os.truncate(folder / NUMBERS, (folder / NUMBERS).stat().st_size // 2)


def flipped(at):
    def flip(folder):
        content = bytearray((folder / NUMBERS).read_bytes())
        content[at] ^= 1
        (folder / NUMBERS).write_bytes(content)

    return flip


def gone(folder):
    (folder / NUMBERS).unlink()


def torn(folder):
    content = (folder / DONE).read_bytes()
    (folder / DONE).write_bytes(content[: len(content) // 2])


def edited(folder):
    said = json.loads((folder / DONE).read_text())
    (folder / DONE).write_text(json.dumps(said | {"layers": said["layers"][:1]}))


# of a layer that is done, and of the stream after two blocks, which is the first room
DAMAGES = (halved, flipped(100), flipped(2 * (4 * 48 + 48)), gone, torn, edited)
OTHERS = ({"key": "b"}, {"dtype": torch.float32})


@pytest.mark.parametrize(
    ("damage", "asked"), [*((one, {}) for one in DAMAGES), *((None, one) for one in OTHERS)]
)
def test_what_is_damaged_or_of_another_run_is_never_taken(damage, asked, tmp_path):
    run(tmp_path, 2)
    if damage:
        damage(tmp_path)
    said, before, _ = run(tmp_path, 1, **asked)
    assert before == 0
    (line,) = said
    assert line.endswith(
        "what an interrupted run left is damaged or belongs to another run; this run starts anew"
    )
    assert run(tmp_path, 0, **asked)[1] == 1


def test_nothing_is_left_where_no_block_was_done(tmp_path):
    with pytest.raises(KeyboardInterrupt), scratch(tmp_path, []):
        raise KeyboardInterrupt
    assert not files(tmp_path)


def test_what_another_process_works_on_stays_its_own(tmp_path):
    run(tmp_path, 2)
    kept = {one: (tmp_path / one).read_bytes() for one in (NUMBERS, DONE)}
    with FileLock(tmp_path / ".locks" / f"{NUMBERS}.lock"):
        assert run(tmp_path, 3)[:2] == ([], 0)
    assert kept == {one: (tmp_path / one).read_bytes() for one in (NUMBERS, DONE)}


def test_where_locks_do_nothing_nothing_is_taken_and_nothing_left(tmp_path, monkeypatch):
    class NoLock:
        def __init__(self, path):
            pass

        def acquire(self, timeout):
            raise NotImplementedError

        def release(self):
            pass

    run(tmp_path, 2)
    with monkeypatch.context() as broken:
        broken.setattr(presence, "FileLock", NoLock)
        assert run(tmp_path, 3)[:2] == ([], 0)
    assert files(tmp_path) == {NUMBERS, DONE}
    assert run(tmp_path, 0)[1] == 2
