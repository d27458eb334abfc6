"""The losses: equal to open-unlearning's own, and to arithmetic done by hand."""

import json

import pytest
import torch
from support.frozen import differences, frozen
from support.loss_cases import CASES, loss_batch, loss_models, measured
from support.tolerance import STEP
from transformers import AutoTokenizer

from lensaudit.training import losses


def test_losses_are_those_that_agreed_with_open_unlearning():
    assert list(differences(measured(), frozen("losses"), within=1e-5, floor=STEP / 1e-5)) == []


@pytest.fixture(scope="module")
def upstream(shared):
    return shared / "golden" / "open_unlearning"


@pytest.fixture(scope="module")
def golden(upstream):
    return json.loads((upstream / "trainer_losses.json").read_text())


@pytest.fixture(scope="module")
def models(shared):
    return loss_models(shared / "family")


@pytest.fixture(scope="module")
def batch(golden, upstream):
    tokenizer = AutoTokenizer.from_pretrained(upstream / "tokenizers" / "tok_pad")

    def rows(config):
        lines = (upstream / "data" / "tofu" / f"{config}.jsonl").read_text().splitlines()[:4]
        return [json.loads(line) for line in lines]

    forget, retain = rows("forget10_perturbed"), rows("retain_perturbed")
    return loss_batch(tokenizer, forget, retain, golden["alternates"])


def test_the_batch_is_the_one_the_golden_losses_were_made_on(golden, batch):
    for name in ("forget", "retain", "alternate"):
        part = getattr(batch, name)
        assert (part.labels != losses.IGNORED).sum() == golden["n_label_tokens"][name]
        assert part.tokens.shape[1] == golden["seq_len"][name]


def test_every_golden_loss_has_a_case(golden):
    assert set(golden["losses"]) == set(CASES)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_losses_equal_open_unlearning(name, golden, models, batch):
    value = CASES[name](models, batch).item()
    assert value == pytest.approx(golden["losses"][name], rel=1e-5, abs=STEP)
