"""Every loss of every method, as open-unlearning's trainers compute it on one batch."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from lensaudit.data.chat import Template
from lensaudit.data.facts import answered
from lensaudit.training import losses
from lensaudit.training.methods import METHODS, Hyper, Passes, Unlearning, retain_term
from lensaudit.training.rows import UnlearnBatch, chat_sample, collate
from support import EMBEDDED
from support.generated import read_rows, tokenizer_like


def total(method, **hyper):
    return lambda models, batch: (
        Unlearning(METHODS[method], Hyper(**hyper), models[1])(
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


def loss_models(family: Path) -> tuple[Any, ...]:
    """The model that unlearns and its reference."""
    load = AutoModelForCausalLM.from_pretrained
    return tuple(
        load(family / name, dtype=torch.float32, attn_implementation="eager").eval()
        for name in ("npo", "full")
    )


def loss_batch(
    tokenizer: Any, forget: Sequence[Any], retain: Sequence[Any], alternates: Sequence[str]
) -> UnlearnBatch:
    """Rows to forget, rows to keep, and other answers to the former."""

    def encoded(rows):
        template = Template(date_string=None)
        samples = [chat_sample(tokenizer, row, template) for row in rows]
        return collate(samples, pad=tokenizer.pad_token_id)

    questions = [row["question"] for row in forget]
    return UnlearnBatch(
        forget=encoded([answered(row["question"], row["answer"]) for row in forget]),
        retain=encoded([answered(row["question"], row["answer"]) for row in retain]),
        alternate=encoded([answered(q, a) for q, a in zip(questions, alternates, strict=True)]),
    )


def embedded_batch() -> UnlearnBatch:
    """Four rows of each part, of uneven length; the last to forget is answered with "Yes"."""
    data = EMBEDDED / "data"
    forget = read_rows(data / "forget10_perturbed.jsonl")[4:8]
    retain = read_rows(data / "retain_perturbed.jsonl")[:4]
    alternates = [json.loads(line)["idk"] for line in (data / "idk.jsonl").open()][:4]
    return loss_batch(tokenizer_like("pad"), forget, retain, alternates)


@torch.no_grad()
def measured() -> dict[str, Any]:
    """Every case on the embedded family, and how many tokens its batch has."""
    models, batch = loss_models(EMBEDDED), embedded_batch()
    parts = {name: getattr(batch, name) for name in ("forget", "retain", "alternate")}
    return {
        "n_label_tokens": {
            name: int((part.labels != losses.IGNORED).sum()) for name, part in parts.items()
        },
        "losses": {name: case(models, batch).item() for name, case in CASES.items()},
    }
