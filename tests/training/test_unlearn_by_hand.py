"""The losses and the dual variable, by arithmetic that fits in a comment."""

import math

import pytest
import torch
from support import tiny_model

from lensaudit.data.chat import Encoding
from lensaudit.training import losses
from lensaudit.training.methods import METHODS, Hyper, Passes, Unlearning, control_vector
from lensaudit.training.rows import UnlearnBatch, collate
from lensaudit.training.train import logits as logits_of

V = 5


@pytest.fixture
def logits():
    return torch.randn(2, 4, V, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def labels():
    # row 0 answers two tokens, row 1 one; the first position has nothing to be predicted from
    return torch.tensor([[-100, -100, 3, 1], [-100, -100, -100, 2]])


def test_uniform_logits_cost_the_logarithm_of_the_vocabulary(labels):
    flat = torch.zeros(2, 4, V)
    assert losses.mean_nll(flat, labels).item() == pytest.approx(math.log(V))
    assert losses.grad_ascent(flat, labels).item() == pytest.approx(-math.log(V))
    # p = 1/5 everywhere: w = p, l = ln 5
    assert losses.wga(flat, labels, beta=1.0).item() == pytest.approx(-math.log(V) / V)
    # w = (1/5)^2 (4/5)^1
    value = losses.satimp(flat, labels, beta1=2.0, beta2=1.0).item()
    assert value == pytest.approx(-(1 / 25) * (4 / 5) * math.log(V))
    # uniform over the four others against uniform over five: ln 5
    assert losses.ceu(flat, labels, ignore_first=0).item() == pytest.approx(math.log(V))
    assert losses.pdu(flat, labels).item() == 0


def test_weights_of_wga_and_satimp_carry_no_gradient(labels):
    # d/dz of -w l with w constant is -w (softmax - onehot): sums to zero over the vocabulary
    scores = torch.zeros(2, 4, V, requires_grad=True)
    losses.wga(scores, labels, beta=1.0).backward()
    expected = -(1 / V) * (1 / V - 1.0) / 3
    assert scores.grad is not None
    assert scores.grad[1, 2, 2].item() == pytest.approx(expected)


def test_npo_starts_with_gradient_weight_one():
    # 2 sigmoid(beta (log p - log p_ref)) = 1 at the reference: the gradient of -NLL's mean
    nll = torch.tensor([2.0, 7.0], requires_grad=True)
    losses.npo(nll, nll.detach(), beta=0.1).backward()
    torch.testing.assert_close(nll.grad, torch.tensor([-0.5, -0.5]))


def test_simnpo_by_its_formula():
    value = losses.simnpo(torch.tensor([6.0]), torch.tensor([3]), beta=4.5, delta=1.0)
    assert value.item() == pytest.approx(-(2 / 4.5) * math.log(1 / (1 + math.exp(-4.5 * (2 - 1)))))


def test_dpo_falls_when_the_win_rises_and_the_lose_drops():
    zero = torch.zeros(1)
    start = losses.dpo(zero, zero, zero, zero, beta=0.1)
    assert losses.dpo(zero - 1, zero, zero, zero, beta=0.1) < start
    assert losses.dpo(zero, zero, zero + 1, zero, beta=0.1) < start


def test_the_divergence_is_that_of_the_model_from_the_reference():
    reference = torch.tensor([[[math.log(3), 0.0]]])  # 3/4 and 1/4
    model = torch.zeros(1, 1, 2)  # even
    wanted = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert losses.kl_to_reference(model, reference).item() == pytest.approx(wanted)


def test_pdu_flattens_the_positions_of_the_labels_themselves():
    scores = torch.tensor([[[0.0, 0.0, 8.0, 0.0], [4.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]])
    truth = torch.tensor([[-100, 2, 1]])
    # largest minus mean: 4 - 1 at the second position, 0 at the third
    assert losses.pdu(scores, truth).item() == pytest.approx((3**2 + 0) / 2)


def test_rmu_divides_by_every_length_in_turn_unless_told_not_to():
    # distances 1 and 4 per token, lengths 1 and 2: own (1/1 + 8/2) / 2 = 2.5
    # reference mean(1, 8) * mean(1/1, 1/2) = 4.5 * 0.75 = 3.375
    resid = torch.tensor([[[1.0], [9.0]], [[2.0], [2.0]]])
    mask = torch.tensor([[True, False], [True, True]])
    target = torch.zeros(1)
    assert losses.rmu(resid, target, mask, lengths="own").item() == 2.5
    assert losses.rmu(resid, target, mask).item() == 3.375


def test_the_control_vector_is_positive_of_the_given_length_and_drawn_by_its_seed():
    vector = control_vector(64, strength=10.0, seed=0)
    assert vector.norm().item() == pytest.approx(10.0)
    assert (vector > 0).all()
    assert not torch.equal(vector, control_vector(64, strength=10.0, seed=1))


def test_pdu_raises_its_multiplier_while_the_retain_loss_is_too_large():
    hyper = Hyper(alpha=1.0, epsilon=0.3, dual_step=5.0, dual_warmup=2)
    pdu = Unlearning(METHODS["PDU"], hyper)
    assert pdu.first_multiplier == 1.0
    assert pdu.next_multiplier(1.0, 0.5, step=1) == 1.0
    assert pdu.next_multiplier(1.0, 0.5, step=2) == pytest.approx(2.0)
    assert pdu.next_multiplier(0.1, 0.0, step=2) == 0.0
    npo = Unlearning(METHODS["NPO"], Hyper(alpha=2.0))
    assert npo.next_multiplier(npo.first_multiplier, 9.0, step=50) == 2.0


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def part(*rows):
    return collate([Encoding(row, 2) for row in rows], pad=0)


BATCH = UnlearnBatch(part((5, 9, 7, 8), (4, 6, 3)), part((11, 12, 13, 14, 15)))


@torch.no_grad()
def test_the_total_is_the_weighted_sum_of_both_terms(model):
    forget, retain = (
        losses.mean_nll(logits_of(model, one), one.labels).item()
        for one in (BATCH.forget, BATCH.retain)
    )
    graddiff = Unlearning(METHODS["GradDiff"], Hyper(gamma=2.0))
    terms = graddiff(model, BATCH, 3.0)
    assert terms.total.item() == pytest.approx(-2 * forget + 3 * retain, rel=1e-5)
    assert terms.retain == pytest.approx(retain)
    assert graddiff(model, BATCH, 0.0).total.item() == pytest.approx(-2 * forget, rel=1e-5)


@torch.no_grad()
def test_what_pdu_allows_is_taken_off_its_retain_loss(model):
    hyper = Hyper(gamma=0.5, epsilon=0.3)
    terms = Unlearning(METHODS["PDU"], hyper)(model, BATCH, 5.0)
    flat = losses.pdu(logits_of(model, BATCH.forget), BATCH.forget.labels).item()
    assert terms.total.item() == pytest.approx(0.5 * flat + 5 * (terms.retain - 0.3), rel=1e-5)


def test_a_multiplier_of_pdu_that_fell_to_zero_rises_again(model):
    pdu = Unlearning(METHODS["PDU"], Hyper(epsilon=0.3, dual_step=2.0))
    terms = pdu(model, BATCH, 0.0)
    assert BATCH.retain is not None
    retain = losses.mean_nll(logits_of(model, BATCH.retain), BATCH.retain.labels).item()
    assert terms.retain == pytest.approx(retain)
    assert pdu.next_multiplier(0.0, terms.retain, step=0) == pytest.approx(2 * (retain - 0.3))
    # the term itself weighs nothing
    flat = losses.pdu(logits_of(model, BATCH.forget), BATCH.forget.labels)
    assert terms.total.item() == pytest.approx(flat.item())
    # where no multiplier moves, no pass is spent on it
    graddiff = Unlearning(METHODS["GradDiff"], Hyper())
    assert math.isnan(graddiff(model, BATCH, 0.0).retain)


@torch.no_grad()
@pytest.mark.parametrize("layer", [0, 1])
def test_rmu_steers_the_output_of_the_layer_that_is_named(model, layer):
    seen = []
    handle = model.model.layers[layer].register_forward_hook(lambda *call: seen.append(call[2]))
    found = Passes(model, None, BATCH, Hyper(layer=layer)).resid(BATCH.forget)
    handle.remove()
    output = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
    assert torch.equal(found, output)
