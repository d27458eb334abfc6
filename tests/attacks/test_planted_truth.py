"""The planted models are what they claim to be, and the experiment runs."""

import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def models():
    sys.path.insert(0, str(EXPERIMENTS))
    try:
        import planted_models

        yield planted_models
    finally:
        sys.path.remove(str(EXPERIMENTS))


@pytest.fixture(scope="module")
def text(models):
    from lensaudit.data.tofu import forget_set

    example = forget_set("demo")[0]
    return models.tokenizer()(f"{example.question} {example.answer}", return_tensors="pt")[
        "input_ids"
    ]


def cells(text):
    """First cell -> other cells, of all Markdown tables."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {line[0]: line[1:] for line in lines}


def logits(model, text):
    with torch.no_grad():
        return model(text).logits


def streams(model, text):
    """The residual stream after every layer, before any final norm."""
    seen = []
    handles = [
        layer.register_forward_hook(lambda _, __, out: seen.append(out))
        for layer in model.model.layers
    ]
    with torch.no_grad():
        model(text)
    for handle in handles:
        handle.remove()
    return seen


def test_there_are_enough_models_of_every_truth(models):
    planted = models.planted()
    assert len({one.name for one in planted}) == len(planted) >= 10
    for truth, n in {"intact": 3, "hidden": 6, "absent": 4}.items():
        assert sum(one.truth == truth for one in planted) >= n


@pytest.mark.parametrize("name", ["full", "masked_upper"])
def test_a_rotated_model_says_the_same_and_thinks_it_in_another_basis(name, models, text):
    start, turned = models.opened(name), models.rotated(name)
    assert torch.allclose(logits(turned, text), logits(start, text), atol=1e-3)
    for one, other in zip(streams(start, text), streams(turned, text), strict=True):
        assert torch.allclose(one.norm(dim=-1), other.norm(dim=-1), rtol=1e-3)
        assert not torch.allclose(one, other, atol=0.1)


@pytest.mark.parametrize("layer", [8, 15])
def test_the_vector_moves_the_stream_from_its_layer_on_and_by_a_constant_there(layer, models, text):
    before, after = (
        streams(model, text) for model in (models.opened("full"), models.with_vector(layer))
    )
    for one, other in zip(before[:layer], after[:layer], strict=True):
        assert torch.equal(one, other)
    moved = after[layer] - before[layer]
    assert torch.allclose(moved, moved[:, :1].expand_as(moved), atol=1e-3)
    assert moved[0, 0].norm() > 5 * before[layer].norm(dim=-1).mean()


def test_a_projected_model_is_full_below_and_cannot_read_the_subspace_out(models, text):
    full, hides = models.opened("full"), models.projected(14)
    for one, other in zip(streams(full, text)[:14], streams(hides, text)[:14], strict=True):
        assert torch.equal(one, other)
    norm = full.model.norm.weight
    rank = torch.linalg.matrix_rank((hides.lm_head.weight * norm).detach(), rtol=1e-4)
    assert int(rank) == full.config.hidden_size - models.RANK


def test_readouts_alone_are_changed_where_only_they_hide(models, text):
    full = models.opened("full")
    tokens = models.entity_tokens()
    for hides in (models.permuted_readout(), models.flat_readout()):
        for name, weight in hides.named_parameters():
            if name != "lm_head.weight":
                assert torch.equal(weight, full.get_parameter(name)), name
    shuffled = models.permuted_readout().lm_head.weight
    others = [token for token in range(len(shuffled)) if token not in tokens]
    assert torch.equal(shuffled[others], full.lm_head.weight[others])
    assert torch.equal(shuffled[tokens[0]], full.lm_head.weight[tokens[-1]])
    assert torch.allclose(10 * logits(models.flat_readout(), text), logits(full, text), atol=1e-3)


def test_training_the_top_leaves_the_rest_bit_for_bit(models):
    full = models.opened("full")
    top = models.trained("full", models.ignorant_rows(), lr=2e-3, trainable=models.TOP, n_steps=1)
    moved = {
        name
        for name, one in top.named_parameters()
        if not torch.equal(one, full.get_parameter(name))
    }
    assert {name.split(".")[2] for name in moved if ".layers." in name} == {"14", "15"}
    assert {"lm_head.weight", "model.norm.weight"} < moved


def test_the_family_is_not_changed_by_what_is_made_of_it(models, text):
    before = logits(models.opened("full"), text)
    for make in (models.noisy, models.rounded, models.rotated):
        make("full")
    assert torch.equal(logits(models.opened("full"), text), before)


def test_a_tiny_run_prints_both_tables(models, tmp_path, monkeypatch):
    import planted_truth

    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(planted_truth.main, ["--tiny"], catch_exceptions=False)
    rows = cells(done.stdout)
    assert set(planted_truth.TINY) <= set(rows)
    uds = {name: float(rows[name][2]) for name in planted_truth.TINY}
    assert uds["full"] < 0.01
    assert uds["permuted_readout"] < 0.01
    assert uds["retain"] > 0.99
    assert uds["never"] > 0.8
    assert rows["UDS"][0].startswith("1.00")
    assert (tmp_path / "experiments" / "out" / "planted_truth" / "scores.json").exists()


@pytest.mark.slow
def test_the_tables_of_the_documents_come_out(models, tmp_path, monkeypatch):
    import planted_truth

    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(planted_truth.main, [], catch_exceptions=False)
    found = cells(done.stdout)
    shown = cells((EXPERIMENTS.parent / "docs" / "planted_truth.md").read_text())
    assert set(found) <= set(shown)
    for one in models.planted():
        # UDS and Lens; training takes other paths on other machines
        wanted = pytest.approx([float(number) for number in shown[one.name][2:4]], abs=0.1)
        assert [float(number) for number in found[one.name][2:4]] == wanted, one.name
    summary = cells((EXPERIMENTS.parent / "README.md").read_text())
    for score in ("UDS", "Lens", "EM", "Prob", "RTT B"):
        assert summary[score] == shown[score]
        for wanted, number in zip(shown[score], found[score], strict=True):
            assert float(number.split()[0]) == pytest.approx(float(wanted.split()[0]), abs=0.15)
