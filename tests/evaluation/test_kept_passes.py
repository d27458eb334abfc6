"""A pass that was kept is the pass that was made; anything else is made again."""

import numpy as np
import pytest

from lensaudit.evaluation.store import PassStore

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
    store = PassStore(tmp_path / "passes")
    assert store.get("trace-forget", "k" * 32, lambda: made) == (made, False)
    found, reused = store.get("trace-forget", "k" * 32, lambda: pytest.fail("made again"))
    assert reused
    assert lists(found) == lists(made)


def test_a_pass_of_another_key_or_a_broken_file_is_made_again(tmp_path):
    store = PassStore(tmp_path)
    store.get("trace", "a" * 32, lambda: MADE)
    # the file's name holds half of the key
    assert store.get("trace", "a" * 16 + "b" * 16, lambda: MADE[:1]) == (MADE[:1], False)
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"no archive")
    assert store.get("trace", "a" * 16 + "b" * 16, lambda: MADE[:1])[1] is False


def test_without_a_folder_nothing_is_kept():
    store = PassStore(None)
    assert store.get("trace", "a", lambda: MADE) == store.get("trace", "a", lambda: MADE)
    assert store.get("trace", "a", lambda: MADE)[1] is False


def test_a_pass_that_another_run_finished_is_taken_and_kept_too(tmp_path):
    PassStore(tmp_path / "one").get("trace", "a" * 32, lambda: MADE)
    store = PassStore(tmp_path / "two", lambda name: sorted(tmp_path.glob(f"*/{name}")))
    found, reused = store.get("trace", "a" * 32, lambda: pytest.fail("made again"))
    assert reused
    assert lists(found) == lists(MADE)
    assert len(list((tmp_path / "two").iterdir())) == 1
    # a file of that name with another key, or broken, serves nobody
    assert store.get("trace", "a" * 16 + "b" * 16, lambda: MADE[:1]) == (MADE[:1], False)
    for file in tmp_path.glob("*/*"):
        file.write_bytes(b"no archive")
    assert store.get("trace", "a" * 32, lambda: MADE[:1]) == (MADE[:1], False)
