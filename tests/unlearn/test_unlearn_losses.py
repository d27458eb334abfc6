"""The losses: equal to open-unlearning's own, and to arithmetic done by hand."""

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lensaudit.data.chat import Template
from lensaudit.unlearn import losses
from lensaudit.unlearn.encode import Answered, chat_sample, collate
from lensaudit.unlearn.methods import METHODS
from lensaudit.unlearn.objective import Hyper, Passes, UnlearnBatch, Unlearning, retain_term

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
GOLDEN = SHARED / "golden" / "open_unlearning"


@pytest.fixture(scope="module")
def golden():
    if not GOLDEN.exists():
        pytest.skip(f"no golden values at {GOLDEN}")
    return json.loads((GOLDEN / "trainer_losses.json").read_text())


@pytest.fixture(scope="module")
def models(golden):
    load = AutoModelForCausalLM.from_pretrained
    return tuple(
        load(SHARED / "family" / name, dtype=torch.float32, attn_implementation="eager").eval()
        for name in ("npo", "full")
    )


@pytest.fixture(scope="module")
def batch(golden):
    tokenizer = AutoTokenizer.from_pretrained(GOLDEN / "tokenizers" / "tok_pad")

    def rows(config):
        lines = (GOLDEN / "data" / "tofu" / f"{config}.jsonl").read_text().splitlines()[:4]
        return [json.loads(line) for line in lines]

    def encoded(rows):
        template = Template(date_string=None)
        samples = [chat_sample(tokenizer, row, template) for row in rows]
        return collate(samples, pad=tokenizer.pad_token_id)

    forget = rows("forget10_perturbed")
    questions = [row["question"] for row in forget]
    return UnlearnBatch(
        forget=encoded([Answered(row["question"], row["answer"]) for row in forget]),
        retain=encoded(
            [Answered(row["question"], row["answer"]) for row in rows("retain_perturbed")]
        ),
        alternate=encoded(
            [Answered(q, a) for q, a in zip(questions, golden["alternates"], strict=True)]
        ),
    )


def test_the_batch_is_the_one_the_golden_losses_were_made_on(golden, batch):
    for name in ("forget", "retain", "alternate"):
        part = getattr(batch, name)
        assert (part.labels != losses.IGNORED).sum() == golden["n_label_tokens"][name]
        assert part.tokens.shape[1] == golden["seq_len"][name]


def total(method, **hyper):
    row = METHODS[method]
    kind = "resid" if row.steers else hyper.get("retain_loss", "nll")
    return lambda models, batch: (
        Unlearning(row.forget, kind, Hyper(**hyper), models[1])(
            models[0], batch, hyper.get("alpha", 1.0)
        ).total
    )


def forget(method, **hyper):
    return total(method, alpha=0.0, **hyper)


def retain(kind, **hyper):
    return lambda models, batch: retain_term(
        Passes(*models, batch, Hyper(**hyper)), batch.retain, kind
    )


def rmu_forget(models, batch):
    passes = Passes(*models, batch, Hyper(layer=3))
    resid = passes.resid(batch.forget)
    control = 2 * torch.ones(resid.shape[-1]) / math.sqrt(resid.shape[-1])
    return losses.rmu(resid, control, batch.forget.labels != losses.IGNORED)


CASES = {
    "GradAscent": forget("GradAscent"),
    "GradDiff g1 a1 NLL": total("GradDiff"),
    "GradDiff g1 a1 KL": total("GradDiff", retain_loss="kl"),
    "retain NLL only": retain("nll"),
    "retain KL only": retain("kl"),
    "NPO beta0.1 forget only": forget("NPO", beta=0.1),
    "NPO beta0.1 g1 a1": total("NPO", beta=0.1),
    "DPO beta0.1 forget only": forget("IdkDPO", beta=0.1),
    "DPO beta0.1 g1 a1": total("AltPO", beta=0.1),
    "SimNPO beta4.5 delta0 forget only": forget("SimNPO", beta=4.5),
    "SimNPO beta4.5 delta0 g0.125 a1": total("SimNPO", beta=4.5, gamma=0.125),
    "SimNPO beta3.5 delta1 forget only": forget("SimNPO", beta=3.5, delta=1.0),
    "UNDIAL beta10 forget only": forget("UNDIAL", beta=10.0),
    "WGA beta1 forget only": forget("WGA", beta=1.0),
    "SatImp 5/1 forget only": forget("SatImp"),
    "CEU n1": forget("CEU", ignore_first=1),
    "CEU n0": forget("CEU", ignore_first=0),
    "IdkNLL as GradDiff gamma=-1 on alternates, a1": total("IdkNLL"),
    "RMU layer3 control=2*ones/norm forget only": rmu_forget,
    "RMU layer3 EMBED_DIFF retain only": retain("resid", layer=3),
    "PDU gamma1 lambda100 eps0.3": total("PDU", alpha=100.0, epsilon=0.3),
    "PDU forget only": forget("PDU"),
}


def test_every_golden_loss_has_a_case(golden):
    assert set(golden["losses"]) == set(CASES)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_losses_equal_open_unlearning(name, golden, models, batch):
    value = CASES[name](models, batch).item()
    assert value == pytest.approx(golden["losses"][name], rel=1e-5)
