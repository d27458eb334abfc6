"""One retraining: epochs, restored weights, divergence."""

import copy

import pytest
import torch
from support import rtt_support as world

from lensaudit.attacks.rtt import in_memory
from lensaudit.attacks.rtt.readout import StartWeights, encode_split, read, read_along
from lensaudit.errors import InputError
from lensaudit.training.train import Recipe


@pytest.fixture(scope="module")
def splits():
    return [
        encode_split(world.tokenizer(), one, "answer") for one in world.dataset().splits.values()
    ]


def attack(model, splits, *, lr=1e-3, epochs=2, batch_size=5):
    def read_v():
        return read(model, splits[0].items, readouts=("answer",), letters=None, batch_size=32)

    per_epoch = -(-len(splits[1].samples) // batch_size)
    return read_along(
        model,
        splits[1].samples,
        recipe=Recipe(
            n_steps=epochs * per_epoch, lr=lr, n_warmup=3, schedule="constant", weight_decay=0.0
        ),
        batch_size=batch_size,
        seed=0,
        at=range(1, epochs + 1),
        read_v=read_v,
        unit=per_epoch,
    )


def weights(model):
    return {name: one.clone() for name, one in model.state_dict().items()}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def test_a_long_run_holds_every_shorter_one(splits):
    short, long = world.fresh(0), world.fresh(0)
    two = attack(short, splits)
    four = attack(long, splits, epochs=4)
    assert [point.at for point in four.curve] == [1, 2, 3, 4]
    assert four.curve[:2] == two.curve
    assert not same(weights(short), weights(long))


def test_the_loss_of_the_first_step_is_transformers_own(splits):
    # one step per epoch: the epoch's mean loss is that of the untouched model
    model = world.fresh(0)
    total, n = 0.0, 0
    for sample in splits[1].samples:
        labels = [-100] * sample.start + list(sample.ids[sample.start :])
        ids = torch.tensor([sample.ids])
        with torch.no_grad():
            loss = model(input_ids=ids, labels=torch.tensor([labels])).loss
        total, n = (
            total + loss.item() * (len(labels) - sample.start),
            n + len(labels) - sample.start,
        )
    assert attack(model, splits, batch_size=100, epochs=1).curve[0].train_loss == pytest.approx(
        total / n, rel=1e-5
    )


def test_start_weights_come_back_bit_for_bit(splits):
    model = world.fresh(0)
    before = weights(model)
    start = StartWeights(model)
    first = attack(model, splits)
    assert not same(before, weights(model))
    start.restore(model)
    assert same(before, weights(model))
    assert attack(model, splits) == first


def test_a_diverging_run_keeps_its_epochs_and_says_where_it_ended(splits):
    made = attack(world.fresh(0), splits, lr=1e30)
    assert made.reason.startswith("not finite after")
    assert len(made.curve) < 2
    assert all(reading.n for point in made.curve for reading in point.readings)
    model = world.fresh(0)
    start = StartWeights(model)
    clean = attack(model, splits)
    start.restore(model)
    assert attack(model, splits, lr=1e30).reason
    start.restore(model)
    assert attack(model, splits) == clean


def test_dropout_repeats_itself_and_leaves_the_random_stream_alone(splits):
    def dropped():
        model = world.fresh(0)
        for layer in model.model.layers:
            layer.self_attn.attention_dropout = 0.5
        return model

    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = attack(dropped(), splits)
    assert torch.equal(state, torch.get_rng_state())
    torch.rand(7)
    assert attack(dropped(), splits) == first
    assert first != attack(world.fresh(0), splits)


def test_steps_are_taken_in_training_mode_and_v_is_read_in_eval_mode(splits):
    model = world.fresh(0)
    modes = []
    model.register_forward_pre_hook(
        lambda module, _: modes.append((module.training, torch.is_grad_enabled()))
    )
    attack(model, splits)
    assert set(modes) == {(True, True), (False, False)}
    assert modes[-1] == (False, False)
    assert not model.training


def test_a_model_is_known_by_its_weights_and_refused_in_half_precision():
    with pytest.raises(InputError, match=r"weights are torch\.bfloat16, wanted torch\.float32"):
        in_memory("half", copy.deepcopy(world.fresh(0)).to(torch.bfloat16))
    names = [in_memory("x", world.fresh(seed)).weights for seed in (0, 0, 1)]
    assert names[0] == names[1] != names[2]
