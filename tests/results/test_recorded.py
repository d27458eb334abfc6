"""One record in one folder: what is replaced stays until what replaces it is there."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

import pytest

from lensaudit.errors import InputError, TryAgainError, WorkError
from lensaudit.files import read_json
from lensaudit.results.manifest import BEGUN, manifest
from lensaudit.results.recorded import in_folder
from lensaudit.results.run_folder import RunFolder, seal
from lensaudit.text import digest


@dataclass(frozen=True)
class Counted:
    """How many."""

    n: int


def recorded(folder, n, *, computed=lambda: None, named=True, work=None, **how):
    identity = {"command": "worst", "n": n}
    asked = {"options": {}, "inputs": identity}
    own = {"asked": asked, "named": named, "force": True}
    run = RunFolder(usual=folder, command="worst", key=str(n), **own)
    return in_folder(
        run,
        Counted,
        work or (lambda: Counted(n)),
        device="cpu",
        files=("summary.json",),
        computed=computed,
        **how,
    )


@pytest.mark.parametrize(("n", "fresh"), [(1, True), (2, False)])
def test_what_is_replaced_stays_until_what_replaces_it_is_there(tmp_path, n, fresh):
    def broken():
        raise WorkError("a logit is not finite")

    recorded(tmp_path, 1)
    before = {one: one.read_bytes() for one in tmp_path.iterdir()}
    with pytest.raises(WorkError):
        recorded(tmp_path, n, fresh=fresh, computed=broken)
    assert {one: one.read_bytes() for one in tmp_path.iterdir()} == before
    assert recorded(tmp_path, n, fresh=fresh) == Counted(n)
    assert recorded(tmp_path, n, computed=broken) == Counted(n)  # it is only read


def test_a_run_killed_right_behind_its_manifest_is_finished_by_the_next(tmp_path):
    recorded(tmp_path, 1)
    done = sorted(one.name for one in tmp_path.iterdir())
    (tmp_path / BEGUN).write_text('{"command": "worst", "inputs": {"key": "1"}}')

    def broken():
        raise WorkError("it was computed again")

    assert recorded(tmp_path, 1, computed=broken) == Counted(1)
    assert sorted(one.name for one in tmp_path.iterdir()) == done


def test_where_another_process_makes_the_record_it_is_waited_for_and_read(tmp_path):
    waits, told = Event(), []

    def made():
        assert waits.wait(60)
        return Counted(1)

    def heard(line):
        told.append(str(line))
        waits.set()

    with ThreadPoolExecutor() as other:
        first = other.submit(recorded, tmp_path, 1, work=made)
        while not (tmp_path / BEGUN).exists():
            assert not first.done()
        assert recorded(tmp_path, 1, work=never, notice=heard) == Counted(1)
        assert first.result() == Counted(1)
    assert told == [
        f"{tmp_path}: another process writes into this folder; waiting for it",
        f"{tmp_path} holds this run already; nothing to do",
    ]


def test_a_folder_in_which_another_run_began_meanwhile_stays_its_own(tmp_path):
    out = tmp_path / "o"
    with pytest.raises(TryAgainError, match=r"o: another run has begun in it; run again"):
        recorded(out, 2, named=False, ready=lambda: recorded(out, 1), work=never)
    assert recorded(out, 1, work=never) == Counted(1)
    assert recorded(out, 2, named=False) == Counted(2)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["o", "o-2"]


def never():
    raise AssertionError("it was made again")


ASKED = {
    "options": {"seed": 0, "limit": None, "device": "cpu"},
    "inputs": {"source": {"name": "demo/npo", "weights": "a"}, "facts": "f", "lora": None},
}


def folder(usual, *, options=(), inputs=(), **how):
    """The folder of a run that is asked otherwise than `ASKED` in some names."""
    asked = {"options": ASKED["options"] | dict(options), "inputs": ASKED["inputs"] | dict(inputs)}
    return RunFolder(usual=usual, command="worst", key=digest(asked), asked=asked, **how)


DIFFERENT = {
    "seed: 0, here 1": {"options": {"device": "cuda", "seed": 1}},
    "limit: null, here 8": {"options": {"limit": 8}},
    "lora: null, here 4": {"inputs": {"lora": 4}},
    "facts: f, here g": {"inputs": {"facts": "g"}},
    "source.name: demo/npo, here demo/x": {
        "inputs": {"source": {"name": "demo/x", "weights": "b"}}
    },
    "source.weights: a, here b": {"inputs": {"source": {"name": "demo/npo", "weights": "b"}}},
    "": {"options": {"device": "cuda"}},  # of which only its key is known to differ
}
"""What differs -> names and values of another run."""


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("why", DIFFERENT)
def test_another_run_is_refused_left_or_replaced_by_the_name_of_what_differs(tmp_path, why, done):
    usual, said = tmp_path / "o", list[str]()
    first = folder(usual)
    first.begin()
    if done:
        made = manifest("worst", device="cpu", started=0.0, **ASKED)
        seal(usual, made, key=first.key, files=[])
    other, what = DIFFERENT[why], "the result of another run" + (f" ({why})" if why else "")

    with pytest.raises(InputError) as error:
        _ = folder(usual, **other).path
    beside = folder(usual, **other, named=False, tell=said.append).path
    replacing = folder(usual, **other, force=True, tell=said.append)

    assert (
        str(error.value) == f"{usual}: holds {what}; name another --out, or replace it with --force"
    )
    assert beside.name == f"o-{replacing.key[:8]}"
    assert replacing.path == usual
    assert said == [
        f"{usual}: holds {what}; this run goes to {beside}",
        f"{usual}: held {what}; it is replaced",
    ]
    assert folder(usual).is_done == done
    replacing.begin()
    assert read_json(usual / BEGUN)["inputs"]["key"] == replacing.key
