"""An audit before and after relearning: retain is the yardstick, nothing is done twice or kept."""

import pytest
import torch

from lensaudit.attacks import relearn as room
from lensaudit.attacks.relearn import Relearning, RelearnJob
from lensaudit.errors import InputError
from lensaudit.models.checkpoint import open_model
from lensaudit.patching.settings import PatchSettings
from lensaudit.unlearn.rows import load_rows

N_STEPS = 4


def job_of(name):
    return RelearnJob(
        start=open_model(name),
        rows=load_rows("demo", part="forget"),
        settings=Relearning(lr=1e-3, formats=("raw", "chat")),
        stored=torch.float32,
        device="cpu",
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("recovery")


@pytest.fixture(scope="module")
def auditing(place):
    return PatchSettings(
        full="demo/full",
        retain="demo/retain",
        data="demo",
        limit=8,
        activations=place / "activations",
    )


@pytest.fixture(scope="module")
def audited(place, auditing):
    """The shifts, and the steps that were trained for them."""
    steps = []
    jobs = {name: job_of(name) for name in ("demo/masked_upper", "demo/retain")}
    work, kept = place / "work", place / "kept"
    found = room.recovery(jobs, auditing, work, keep=kept, report=steps.append)
    return found, steps, (jobs, work, kept)


def test_what_hides_recovers_more_than_retain_learns(audited):
    (hidden, retain), steps, _ = audited
    assert (hidden.model, retain.model) == ("demo/masked_upper", "demo/retain")
    assert retain.before["uds"] == pytest.approx(1.0, abs=1e-6)
    assert retain.after["uds"] < 0.97
    gain = [one.after["prob"] - one.before["prob"] for one in (hidden, retain)]
    assert gain[0] > 2 * gain[1] > 0
    assert len(steps) == 2 * N_STEPS


def test_the_checkpoint_that_is_asked_for_stays_and_the_other_goes(audited):
    _, _, (_, work, kept) = audited
    assert open_model(str(kept)).dtype == "float32"
    assert not list(work.rglob("*.safetensors"))


def test_the_same_audit_is_read_and_another_is_not(audited, auditing, monkeypatch):
    found, _, (jobs, work, _) = audited
    monkeypatch.setattr(room, "make", None)
    assert room.recovery(jobs, auditing, work, keep=None, report=lambda _: None) == found
    fewer = {"demo/masked_upper": jobs["demo/masked_upper"]}
    with pytest.raises(TypeError):  # it would train
        room.recovery(fewer, auditing, work, keep=None, report=lambda _: None)


def test_models_that_do_not_belong_together_are_refused_before_training(place, tiny_checkpoint):
    auditing = PatchSettings(
        full=str(tiny_checkpoint), retain="demo/retain", data="demo", activations=place / "a"
    )
    steps = []
    with pytest.raises(InputError, match="models of different shape"):
        room.recovery(
            {"demo/npo": job_of("demo/npo")}, auditing, place / "w", keep=None, report=steps.append
        )
    assert steps == []
    assert not (place / "w").exists()
