"""What does each unlearning method minimise? One pure function of tensors per forget term.

Definitions: open-unlearning (github.com/locuslab/open-unlearning, commit d3d7cf9), `src/trainer`.
Logits are `batch pos d_vocab` and labels `batch pos` with -100 where nothing is learned; a label
at position t is predicted by the logits at t - 1. All values are nats, reduced in float32.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, logsigmoid, softmax

from lensaudit.types import Logits, Resid

Labels = Int[Tensor, "batch pos"]
"""Token ids, -100 where nothing is learned."""
PerSequence = Float[Tensor, " batch"]
Loss = Float[Tensor, ""]
IGNORED = -100


def token_nll(logits: Logits, labels: Labels) -> Float[Tensor, "batch pos-1"]:
    """-log p of every label; 0 where nothing is learned."""
    scores, truth = logits[:, :-1].float(), labels[:, 1:]
    return cross_entropy(
        scores.flatten(0, 1), truth.flatten(), ignore_index=IGNORED, reduction="none"
    ).view_as(truth)


def labelled(labels: Labels) -> Bool[Tensor, "batch pos-1"]:
    """Positions at which `token_nll` is a loss and not a filler."""
    return labels[:, 1:] != IGNORED


def mean_nll(logits: Logits, labels: Labels) -> Loss:
    """Mean over all labelled tokens of the batch: long answers weigh more."""
    return token_nll(logits, labels).sum() / labelled(labels).sum()


def sequence_nll(logits: Logits, labels: Labels) -> PerSequence:
    """Summed over each row's labelled tokens.

    The axes stand as in the source, whose kernel for this layout differs from the one behind
    `token_nll` by 1e-6 nats per token; a published loss of 1e-3 shows it.
    """
    scores = logits[:, :-1].float().transpose(1, 2)
    return cross_entropy(scores, labels[:, 1:], ignore_index=IGNORED, reduction="none").sum(1)


def kl_to_reference(
    logits: Float[Tensor, "*at d_vocab"], reference: Float[Tensor, "*at d_vocab"]
) -> Loss:
    """KL(reference || model), mean over all positions, prompt and padding too, as in the source."""
    log_p = log_softmax(reference.float(), -1)
    log_q = log_softmax(logits.float(), -1)
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean()


def grad_ascent(logits: Logits, labels: Labels) -> Loss:
    """Negated mean negative log-likelihood; unbounded below."""
    return -mean_nll(logits, labels)


def npo(nll: PerSequence, reference_nll: PerSequence, *, beta: float) -> Loss:
    """Negative preference optimisation, arXiv:2404.05868, on sequence sums.

        mean_i -(2 / beta) log sigmoid(beta (S_i - S_i(reference)))

    >>> npo(torch.zeros(3), torch.zeros(3), beta=0.1)  # (2 / 0.1) ln 2
    tensor(13.8629)
    """
    return (-2 / beta) * logsigmoid(beta * (nll - reference_nll)).mean()


def dpo(
    win: PerSequence,
    win_reference: PerSequence,
    lose: PerSequence,
    lose_reference: PerSequence,
    *,
    beta: float,
) -> Loss:
    """Direct preference of `win` over `lose` with the source's factor 2 / beta (IdkDPO, AltPO).

    >>> dpo(*(torch.zeros(3),) * 4, beta=0.1)
    tensor(13.8629)
    """
    gained = (win_reference - win) - (lose_reference - lose)
    return (-2 / beta) * logsigmoid(beta * gained).mean()


def simnpo(nll: PerSequence, n_tokens: Int[Tensor, " batch"], *, beta: float, delta: float) -> Loss:
    """NPO without a reference, normalised by length, arXiv:2410.07163.

    mean_i -(2 / beta) log sigmoid(beta (S_i / T_i - delta))
    """
    return (-2 / beta) * logsigmoid(beta * (nll / n_tokens - delta)).mean()


def undial(logits: Logits, teacher: Logits, labels: Labels, *, beta: float) -> Loss:
    """Self-distillation from logits with the true token lowered by `beta`, arXiv:2402.10052.

    The source averages over every position; a label of -100 lowers token d_vocab - 100 there.
    """
    target = teacher[:, :-1].float().clone()
    lowered = (labels[:, 1:] % target.shape[-1]).unsqueeze(-1)
    target.scatter_add_(-1, lowered, torch.full_like(lowered, -beta, dtype=target.dtype))
    log_q = log_softmax(logits[:, :-1].float(), -1)
    return -(softmax(target, -1) * log_q).sum(-1).mean()


def ceu(logits: Logits, labels: Labels, *, ignore_first: int) -> Loss:
    """Cross-entropy to the model's own prediction without the true token.

    The first `ignore_first` answer tokens of each row are left alone.
    """
    kept = labelled(labels)
    kept &= kept.cumsum(1) > ignore_first
    scores = logits[:, :-1].float()[kept]
    truth = labels[:, 1:][kept].unsqueeze(-1)
    target = softmax(scores.detach().scatter(-1, truth, -torch.inf), -1)
    return -(target * log_softmax(scores, -1)).sum(-1).mean()


def wga(logits: Logits, labels: Labels, *, beta: float) -> Loss:
    """Gradient ascent weighted by the token's probability to the power `beta`."""
    nll = token_nll(logits, labels)[labelled(labels)]
    weight = (-nll).exp().pow(beta).detach()
    return -(weight * nll).mean()


def satimp(logits: Logits, labels: Labels, *, beta1: float, beta2: float) -> Loss:
    """Gradient ascent weighted by p^beta1 (1 - p)^beta2: saturation times importance."""
    nll = token_nll(logits, labels)[labelled(labels)]
    p = (-nll).exp().detach()
    return -(p.pow(beta1) * (1 - p).pow(beta2) * nll).mean()


def pdu(logits: Logits, labels: Labels) -> Loss:
    """Flattens the logits: squared distance of the largest from the mean.

    The source reads the label positions themselves, not those one to the left.
    """
    scores = logits.float()[labels != IGNORED]
    return (scores.amax(-1) - scores.mean(-1)).square().mean()


def rmu(
    resid: Resid,
    target: Resid | Float[Tensor, " d_model"],
    mask: Bool[Tensor, "batch pos"],
    *,
    lengths: Literal["reference", "own"] = "reference",
) -> Loss:
    """Squared distance of the masked residuals from `target`: both terms of RMU, arXiv:2403.03218.

    Mean over dimensions, sum over each row's masked positions, divided by their number, mean over
    rows. With `lengths="reference"` every row's sum is divided by every row's length in turn, as
    open-unlearning does by broadcasting (`src/trainer/unlearn/rmu.py`); `own` divides by its own.
    """
    distance = ((resid.float() - target.float()).square().mean(-1) * mask).sum(1)
    n_tokens = mask.sum(1)
    if lengths == "own":
        return (distance / n_tokens).mean()
    return distance.mean() * n_tokens.float().reciprocal().mean()
