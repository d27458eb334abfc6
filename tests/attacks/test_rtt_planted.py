"""Planted truth: retraining tells knowledge that is hidden from knowledge that is not there."""

import pytest
import rtt_support as world
import torch

from lensaudit.attacks import rtt

SWEEP = rtt.Sweep(lrs=(1e-3, 3e-3), n_epochs=6, batch_size=8, n_warmup=4, loss_on="answer")


def study(unlearned, **changes):
    settings = {
        "data": world.dataset(),
        "tokenizer": world.tokenizer(),
        "original": rtt.in_memory("knows", world.knows()),
        "control": rtt.in_memory("control", world.fresh(2)),
        "sweep": SWEEP,
        "readouts": ("answer", "letter"),
    }
    return rtt.Study(unlearned=unlearned, **settings | changes)


@pytest.fixture(scope="module")
def log():
    torch.set_num_threads(1)
    log = rtt.Log()
    for name, model in (("hidden", world.hidden()), ("never", world.fresh(1))):
        rtt.run(study(rtt.in_memory(name, model)), log)
    return log


def test_hidden_knowledge_comes_back_and_absent_knowledge_does_not(log):
    hidden, never = rtt.summarize(log)
    assert abs(hidden.as_they_are["A"].value - never.as_they_are["A"].value) < 0.05
    assert hidden.main.adjusted.value > 0.9
    assert abs(never.main.adjusted.value) < 0.15
