"""A pass that was kept is the pass that was made; anything else is made again."""

import io
import zipfile

import numpy as np
import pytest

from lensaudit.evaluation.store import kept, read_pass

# texts of unequal length, one without a token
MADE = [
    {"log_prob": np.array([-1.0, -2.0], np.float32), "hit": np.array([True, False])},
    {"log_prob": np.array([], np.float32), "hit": np.array([], bool)},
    {"log_prob": np.array([-3.0, -4.0, -5.0], np.float32), "hit": np.array([False] * 3)},
]


def lists(items):
    return [{name: one.tolist() for name, one in item.items()} for item in items]


@pytest.mark.parametrize("made", [MADE, MADE[1:2], []])
def test_every_text_gets_its_own_numbers_back(tmp_path, made):
    folders = [tmp_path / "passes"]
    assert kept(folders, "trace-forget", "k" * 32, lambda: made) == (made, False)
    found, reused = kept(folders, "trace-forget", "k" * 32, lambda: pytest.fail("made again"))
    assert reused
    assert lists(found) == lists(made)
    assert kept([], "trace-forget", "k" * 32, lambda: made) == (made, False)  # and kept nowhere


def test_a_pass_that_another_run_finished_is_taken_and_kept_too(tmp_path):
    kept([tmp_path / "one"], "trace", "a" * 32, lambda: MADE)
    folders = [tmp_path / "two", tmp_path / "none", tmp_path / "one"]
    found, reused = kept(folders, "trace", "a" * 32, lambda: pytest.fail("made again"))
    assert reused
    assert lists(found) == lists(MADE)
    assert len(list((tmp_path / "two").iterdir())) == 1
    # a file of that name, which holds half of the key, with another one, or broken, serves nobody
    assert kept(folders, "trace", "a" * 16 + "b" * 16, lambda: MADE[:1]) == (MADE[:1], False)
    for file in tmp_path.glob("*/*"):
        file.write_bytes(b"no archive")
    assert kept(folders, "trace", "a" * 32, lambda: MADE[:1]) == (MADE[:1], False)


def test_a_file_that_claims_more_numbers_than_fit_is_damaged(tmp_path):
    path, header = tmp_path / "trace.npz", io.BytesIO()
    shape = {"descr": "<f8", "fortran_order": False, "shape": (10**17,)}
    np.lib.format.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("log_prob.npy", header.getvalue())
    _, damage = read_pass(path)
    assert damage is not None


def test_a_pass_that_is_made_anew_stays_until_it_is_made(tmp_path):
    folders = [tmp_path / "passes"]
    kept(folders, "trace", "a" * 32, lambda: MADE)
    (file,) = folders[0].iterdir()
    before = file.read_bytes()
    with pytest.raises(ZeroDivisionError):
        kept(folders, "trace", "a" * 32, lambda: [{"n": np.array([1 / 0])}], fresh=True)
    assert file.read_bytes() == before
    assert kept(folders, "trace", "a" * 32, lambda: MADE[:1], fresh=True) == (MADE[:1], False)
    again, reused = kept(folders, "trace", "a" * 32, lambda: pytest.fail("made again"))
    assert reused
    assert lists(again) == lists(MADE[:1])
