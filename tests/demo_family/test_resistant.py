"""Unlearning under attack, and the sham of a method's size: gradients and norms by hand."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny_model

from lensaudit.data.chat import Encoding
from lensaudit.models.adapter import CONFIG, WEIGHTS
from lensaudit.training.losses import mean_nll
from lensaudit.training.methods import METHODS, Hyper, Unlearning
from lensaudit.training.rows import UnlearnBatch, collate
from lensaudit.training.train import logits

HYPER = Hyper(beta=0.1, gamma=0.7)


@pytest.fixture
def model():
    return tiny_model(n_layers=2)


@pytest.fixture
def batch():
    rows = [Encoding((2, 3, 4, 5, 6), 2), Encoding((5, 4, 3), 1)]
    kept = [Encoding((1, 7, 6, 5), 2)]
    return UnlearnBatch(collate(rows, pad=0), collate(kept, pad=0))


def gradients(model, loss):
    return torch.autograd.grad(loss, list(model.parameters()))


def moved_by(model, ways, length):
    """A copy of the model, `length` along `ways`."""
    norm = torch.cat([one.flatten() for one in ways]).norm()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for weight, way in zip(twin.parameters(), ways, strict=True):
            weight += length * way / norm
    return twin


@pytest.mark.parametrize("kind", ["sharpness", "relearning"])
def test_the_forget_term_is_read_where_the_attacker_leaves_the_weights(model, batch, kind):
    from experiments.prediction.resistant import Attack, UnderAttack

    inner = Unlearning(METHODS["NPO"], HYPER, copy.deepcopy(model))
    facts = UnlearnBatch(batch.forget)
    steps, rho = (1, 0.3) if kind == "sharpness" else (2, 0.6)
    twin = model
    for _ in range(steps):  # by hand: up the forget term, or down the loss of the facts
        if kind == "sharpness":
            twin = moved_by(twin, gradients(twin, inner(twin, facts, 0.0).total), 0.3)
        else:
            loss = mean_nll(logits(twin, facts.forget), facts.forget.labels)
            twin = moved_by(twin, gradients(twin, loss), -0.3)
    forget = inner(twin, facts, 0.0).total
    kept = mean_nll(logits(model, batch.retain), batch.retain.labels)
    wanted = [
        hard + 1.5 * soft
        for hard, soft in zip(gradients(twin, forget), gradients(model, kept), strict=True)
    ]
    before = [one.detach().clone() for one in model.parameters()]
    found = UnderAttack(inner, Attack(kind, rho, steps))(model, batch, 1.5)
    assert all(map(torch.equal, before, model.parameters()))
    assert found.total.item() == pytest.approx((forget + 1.5 * kept).item(), rel=1e-5)
    assert found.retain == pytest.approx(kept.item(), rel=1e-5)
    for mine, theirs in zip(gradients(model, found.total), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)


def test_without_a_way_it_is_the_plain_method(model, batch):
    from experiments.prediction.resistant import Attack, UnderAttack

    inner = Unlearning(METHODS["NPO"], HYPER, copy.deepcopy(model))
    attacked = UnderAttack(inner, Attack("sharpness", 0.0))
    plain = gradients(model, inner(model, batch, 1.5).total)
    for mine, theirs in zip(
        gradients(model, attacked(model, batch, 1.5).total), plain, strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_autocast_reads_the_attacked_weights_and_not_a_copy_it_kept(model, batch):
    from experiments.prediction.resistant import Attack, UnderAttack

    inner = Unlearning(METHODS["NPO"], HYPER, copy.deepcopy(model))
    attacked = UnderAttack(inner, Attack("sharpness", 3.0))
    totals = {}
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            plain = inner(model, UnlearnBatch(batch.forget), 0.0).total.item()
            totals[enabled] = attacked(model, UnlearnBatch(batch.forget), 0.0).total.item() - plain
    assert totals[False] > 0.1
    assert totals[True] == pytest.approx(totals[False], rel=0.1)


@pytest.fixture
def adapters(tmp_path):
    """An adapter and one that was trained on from it, of two matrices; one stayed."""
    draw = torch.Generator().manual_seed(3)
    name = "base_model.model.model.layers.0.{}.lora_{}.weight"
    for folder, by in (("full", 0.0), ("method", 0.1)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / CONFIG).write_text("{}")
        tensors = {}
        for matrix, moves in (("up_proj", 1.0), ("q_proj", 0.0)):
            shapes = {"A": (4, 24), "B": (40, 4)}
            for part, shape in shapes.items():
                start = torch.randn(shape, generator=torch.Generator().manual_seed(len(matrix)))
                noise = torch.randn(shape, generator=draw)
                tensors[name.format(matrix, part)] = start + by * moves * noise
        save_file(tensors, tmp_path / folder / WEIGHTS)
    return tmp_path


def test_a_sham_moves_every_matrix_as_far_as_the_method_and_elsewhere(adapters):
    from experiments.prediction.sham import write_sham

    full, method = (load_file(adapters / one / WEIGHTS) for one in ("full", "method"))
    seen = []
    for seed in (0, 0, 1):
        out = adapters / f"sham-{len(seen)}"
        write_sham(adapters / "full", adapters / "method", out, seed=seed)
        seen.append({name: one.float() for name, one in load_file(out / WEIGHTS).items()})

    def product(of, matrix):
        name = f"base_model.model.model.layers.0.{matrix}.lora_{{}}.weight"
        return of[name.format("B")] @ of[name.format("A")]

    wanted = product(method, "up_proj") - product(full, "up_proj")
    found = product(seen[0], "up_proj") - product(full, "up_proj")
    assert found.norm() == pytest.approx(wanted.norm().item(), rel=0.05)  # stored in bfloat16
    cosine = (found * wanted).sum() / found.norm() / wanted.norm()
    assert abs(cosine) < 0.3
    rounded = {one: full[one].bfloat16().float() for one in full if "q_proj" in one}
    assert all(torch.equal(seen[0][one], rounded[one]) for one in rounded)
    assert all(torch.equal(seen[0][one], seen[1][one]) for one in full)
    assert not torch.equal(product(seen[0], "up_proj"), product(seen[2], "up_proj"))
