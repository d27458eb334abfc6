"""The loop: resumes to the same bits, stops on NaN, refuses the state of another run."""

import dataclasses
import json
import math

import pytest
import torch
from support import tiny_model
from transformers import LlamaConfig, LlamaForCausalLM, get_linear_schedule_with_warmup

from lensaudit.data.chat import Encoding
from lensaudit.errors import InputError, WorkError
from lensaudit.training.rows import collate, finetune_batches, in_epochs, unlearn_batches
from lensaudit.training.train import FineTuning, Recipe, Terms, TrainingRun, first_rows_again, train
from lensaudit.training.trainee import save_model

SAMPLES = [Encoding(tuple(range(k, k + 5 + k % 3)), 2) for k in range(1, 11)]
RECIPE = Recipe(n_steps=7, lr=1e-2, n_warmup=2, n_accumulate=2)


@pytest.fixture
def start():
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config)


def copy_of(model):
    twin = LlamaForCausalLM(model.config)
    twin.load_state_dict(model.state_dict())
    return twin


def run_of(folder=None, *, recipe=RECIPE, seed=0, objective=None, save_every=3):
    batch = finetune_batches(SAMPLES, batch_size=3, seed=seed, pad=0)
    identity = {"data": seed}
    return TrainingRun(objective or FineTuning(), batch, recipe, identity, folder, save_every)


def same_bits(one, other):
    theirs = other.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in one.state_dict().items())


def stopping_at(step):
    def report(progress):
        if progress.step == step:
            raise KeyboardInterrupt

    return report


@pytest.mark.parametrize("stop", [1, 3, 5, 6])
def test_a_resumed_run_ends_in_the_same_bits(start, tmp_path, stop):
    whole, resumed = copy_of(start), copy_of(start)
    train(whole, run_of())
    with pytest.raises(KeyboardInterrupt):
        train(copy_of(start), run_of(tmp_path), report=stopping_at(stop))
    steps = []
    train(resumed, run_of(tmp_path), report=lambda progress: steps.append(progress.step))
    assert steps[0] == stop // 3 * 3 + 1
    assert same_bits(whole, resumed)


def test_dropout_follows_from_the_seed_and_the_batch(start, tmp_path):
    plain = copy_of(start)
    train(plain, run_of())
    start.config.attention_dropout = 0.3
    whole, other, cut, resumed = (copy_of(start) for _ in range(4))
    train(whole, run_of())
    train(other, dataclasses.replace(run_of(), seed=1))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)  # any global stream; it goes on as if nothing was trained
        before = torch.get_rng_state()
        with pytest.raises(KeyboardInterrupt):
            train(cut, run_of(tmp_path), report=stopping_at(4))
        train(resumed, run_of(tmp_path))
        assert torch.equal(before, torch.get_rng_state())
    assert same_bits(whole, resumed)
    assert not same_bits(whole, plain)
    assert not same_bits(whole, other)


def test_rows_that_are_read_again_lose_the_same_where_nothing_was_learned(start):
    """What dropout drops is the same; without it an attack at rate 0 would seem to teach."""
    start.config.attention_dropout = 0.3
    model = copy_of(start)
    run = run_of(recipe=Recipe(n_steps=3, lr=0.0, weight_decay=0.0))
    first, *_ = train(model, run)
    assert first_rows_again(model, run) == pytest.approx(first, abs=1e-6)
    assert not model.training
    whole = run.objective(model, run.batch(0), 0.0).total.item()
    assert abs(whole - first) > 1e-4


def test_one_step_is_adamw_by_hand(start):
    # bias-corrected AdamW moves every weight by lr * sign(gradient) in its first step
    model = copy_of(start)
    recipe = Recipe(n_steps=1, lr=1e-3, weight_decay=0.0, schedule="constant", max_grad_norm=1e9)
    run = run_of(recipe=recipe)
    twin = copy_of(start)
    FineTuning()(twin, run.batch(0), 0.0).total.backward()
    train(model, run)
    gradient = twin.lm_head.weight.grad
    moved = model.lm_head.weight - start.lm_head.weight
    big = gradient.abs() > 1e-4
    torch.testing.assert_close(moved[big], -1e-3 * gradient[big].sign(), rtol=1e-2, atol=0)


def test_norms_decay_as_matrices_do(start):
    ends = []
    for decay in (0.0, 0.5):
        model = copy_of(start)
        train(model, run_of(recipe=Recipe(1, 1e-3, schedule="constant", weight_decay=decay)))
        ends.append(model.state_dict())
    for name, weight in start.named_parameters():
        lost = ends[0][name] - ends[1][name]
        torch.testing.assert_close(lost, 1e-3 * 0.5 * weight.detach(), rtol=1e-3, atol=1e-7)


def test_accumulated_gradients_are_averaged(start):
    # the same batch twice: the mean of two equal gradients is the gradient of one
    norms = []
    for n_accumulate in (1, 2):
        recipe = Recipe(n_steps=1, lr=1e-3, n_accumulate=n_accumulate)
        run = dataclasses.replace(run_of(recipe=recipe), batch=lambda number: run_of().batch(0))
        train(copy_of(start), run, report=lambda progress: norms.append(progress.grad_norm))
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_only_the_named_parameters_move(start):
    model = copy_of(start)
    recipe = dataclasses.replace(RECIPE, trainable=r"^model\.layers\.1\.")
    train(model, run_of(recipe=recipe))
    for name, value in model.named_parameters():
        moved = not torch.equal(value, start.get_parameter(name))
        assert moved == name.startswith("model.layers.1."), name


def test_the_state_of_other_settings_is_refused(start, tmp_path):
    train(copy_of(start), run_of(tmp_path))
    other = dataclasses.replace(RECIPE, lr=2e-2)
    for run in (run_of(tmp_path, recipe=other), run_of(tmp_path, seed=1)):
        with pytest.raises(InputError, match="other settings"):
            train(copy_of(start), run)


@pytest.mark.parametrize("pattern", ["training.json", "*.safetensors"])
def test_a_damaged_state_is_refused(start, tmp_path, pattern):
    train(copy_of(start), run_of(tmp_path))
    (file,) = tmp_path.glob(pattern)
    file.write_text("{}")
    with pytest.raises(InputError, match="damaged"):
        train(copy_of(start), run_of(tmp_path))
    file.unlink()
    if pattern != "training.json":
        with pytest.raises(InputError, match="is gone or damaged"):
            train(copy_of(start), run_of(tmp_path))


class Failing(FineTuning):
    """NaN from the fifth step on."""

    def __call__(self, model, batch, multiplier):
        terms = super().__call__(model, batch, multiplier)
        self.__dict__["calls"] = self.__dict__.get("calls", 0) + 1
        return Terms(terms.total * math.nan) if self.__dict__["calls"] > 8 else terms


def test_nan_stops_with_the_step_and_keeps_the_last_state(start, tmp_path):
    whole = copy_of(start)
    train(whole, run_of(tmp_path / "whole", recipe=dataclasses.replace(RECIPE, n_steps=3)))
    run = run_of(tmp_path / "bad", objective=Failing())
    with pytest.raises(WorkError, match=r"loss is not finite at step 5 of 7 .* after step 3"):
        train(copy_of(start), run)
    state = json.loads((tmp_path / "bad" / "training.json").read_text())
    assert state["step"] == 3
    kept = sorted(file.name for file in (tmp_path / "bad").glob("*.safetensors"))
    assert kept == [state["file"]]


def test_every_row_comes_once_per_epoch_in_a_new_order():
    rows = in_epochs(10, batch_size=4, seed=3)
    first, second = ([rows(3 * epoch + k) for k in range(3)] for epoch in range(2))
    for epoch in (first, second):
        assert sorted(row for batch in epoch for row in batch) == list(range(10))
        assert [len(batch) for batch in epoch] == [4, 4, 2]
    assert first != second


def test_unlearning_batches_pair_every_forget_row_with_a_retain_row_and_an_alternate():
    alternates = [[Encoding((9, k, 9), 1), Encoding((8, k, 8), 1)] for k in range(10)]
    batch = unlearn_batches(SAMPLES, SAMPLES[:2], alternates, batch_size=4, seed=0, pad=0)(0)
    assert batch.retain.tokens.shape[0] == batch.alternate.tokens.shape[0] == 4
    assert torch.equal(batch.alternate.tokens[:, 1], batch.forget.tokens[:, 0] - 1)


def test_labels_are_the_answers_and_padding_is_masked():
    batch = collate([Encoding((5, 6, 7, 8), 2), Encoding((9, 4), 1)], pad=0)
    assert batch.tokens.tolist() == [[5, 6, 7, 8], [9, 4, 0, 0]]
    assert batch.labels.tolist() == [[-100, -100, 7, 8], [-100, 4, -100, -100]]
    assert batch.mask.tolist() == [[True] * 4, [True, True, False, False]]


def drawn_of(numbers, *, seed=0):
    """Retain rows and alternates of some batches, by the number of the batch."""
    forget = [Encoding((row + 1, 2, 3), 1) for row in range(10)]
    retain = [Encoding((row + 1, 2, 3), 1) for row in range(50)]
    others = [[Encoding((other + 1, 2, 3), 1) for other in range(50)] for _ in forget]
    batch = unlearn_batches(forget, retain, others, batch_size=4, seed=seed, pad=0)
    found = {}
    for number in numbers:
        parts = (batch(number).retain, batch(number).alternate)
        found[number] = tuple(tuple(part.tokens[:, 0].tolist()) for part in parts)
    return found


def test_every_batch_draws_its_own_retain_rows_and_alternates():
    drawn = drawn_of(range(20))
    for part in range(2):
        assert len({one[part] for one in drawn.values()}) == 20
        # 68 draws of 50 rows (every third batch has two): some 37 are seen
        assert len({row for one in drawn.values() for row in one[part]}) > 25
    assert all(one[0] != one[1] for one in drawn.values())


def test_a_batch_is_the_same_whatever_was_read_before_it():
    there = drawn_of(range(9))
    assert drawn_of(reversed(range(9))) == there
    assert drawn_of([8]) == {8: there[8]}


def test_another_seed_draws_other_rows():
    assert drawn_of([0])[0] != drawn_of([0], seed=1)[0]


def test_the_learning_rate_rises_to_its_peak_and_falls_to_zero():
    recipe = Recipe(n_steps=6, lr=8.0, n_warmup=2)
    # rise 1/2 and 2/2 of the peak; then 4/4, 3/4, 2/4 and 1/4
    assert [recipe.lr_at(step) for step in range(6)] == [4.0, 8.0, 8.0, 6.0, 4.0, 2.0]
    held = dataclasses.replace(recipe, schedule="constant")
    assert [held.lr_at(step) for step in range(4)] == [4.0, 8.0, 8.0, 8.0]
    assert dataclasses.replace(recipe, n_warmup=0).lr_at(0) == 8.0


def test_the_rate_rises_a_step_before_that_of_transformers_and_falls_with_it():
    theirs = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=8.0)
    schedule = get_linear_schedule_with_warmup(theirs, 4, 12)
    rates = []
    for _ in range(12):
        rates.append(theirs.param_groups[0]["lr"])
        theirs.step()
        schedule.step()
    recipe = Recipe(n_steps=12, lr=8.0, n_warmup=4)
    ours = [recipe.lr_at(step) for step in range(12)]
    assert rates[:5] == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert ours == pytest.approx(rates[1:5] + rates[4:])


def test_a_model_with_weights_that_are_not_finite_is_not_saved(tmp_path):
    model = tiny_model()
    with torch.no_grad():
        model.lm_head.weight[3, 1] = torch.inf
        model.model.norm.weight[0] = torch.nan
    with pytest.raises(WorkError, match=r"2 weight tensors .*first model.norm.weight"):
        save_model(model, tmp_path / "out", dtype=torch.float32)
    assert not (tmp_path / "out").exists()


def test_states_that_take_long_are_written_seldom(start, tmp_path, monkeypatch):
    # a clock on which a step takes 10 s and writing a state 30 s
    clock, saved = [0.0], []

    def save(folder, key, state, *rest):
        saved.append(state.step)
        clock[0] += 30.0

    monkeypatch.setattr("lensaudit.training.train.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("lensaudit.training.train.save_state", save)
    recipe = dataclasses.replace(RECIPE, n_steps=130)

    def report(progress):
        clock[0] += 10.0

    train(start, run_of(tmp_path, recipe=recipe, save_every=None), report=report)
    # the first after a minute, then one whenever 20 times as long was computed
    assert saved == [7, 67, 127]
