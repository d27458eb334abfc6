import inspect

import numpy as np
import pytest
import torch
from support.frozen import differences, frozen, patching

from lensaudit.data.spans import make_batch
from lensaudit.errors import InputError
from lensaudit.models.bridge import residuals
from lensaudit.patching import oracle
from lensaudit.scores.depth import depth_score

NATS, UDS = 2e-5, 1e-5


def stacks(model, batch, last_layer):
    stack, final_norm = residuals(model, batch.tokens)
    return (
        stack if last_layer == "resid_post" else torch.cat((stack[:, :-1], final_norm[:, None]), 1)
    )


@pytest.fixture(scope="module")
def measured():
    return patching()


def test_scores_are_those_that_agreed_with_the_reference(measured):
    assert list(differences(measured, frozen("patching"), within=NATS)) == []


def test_knowledge_that_is_lost_is_a_positive_delta(measured):
    # retain never saw the facts: the more of its layers full is given, the less it says them
    deltas = torch.tensor(measured["s1"])
    assert (deltas.mean(0) > 0.3).all()
    assert (deltas[:, -1] > deltas[:, 0]).all()


@pytest.mark.parametrize(
    ("file", "source", "last_layer", "scope"),
    [
        ("uds_ref_idknll_float32_bs1.json", "idknll", "reference", "span"),
        ("uds_corrected_npo.json", "npo", "resid_post", "span"),
        ("uds_boundary.json", "graddiff", "reference", "boundary"),
    ],
)
def test_scores_equal_the_reference(golden, family, forget, file, source, last_layer, scope):
    reference = golden(file)
    rows = (reference if "examples" in reference else reference["variants"][source])["examples"]
    wanted = {row["idx"]: row for row in rows}
    encoded = [e for e in forget if e.idx in wanted][::6]
    full, batch = family("full"), make_batch(encoded, scope=scope)
    s1 = oracle.layer_deltas(full, stacks(family("retain"), batch, last_layer), batch)
    s2 = oracle.layer_deltas(full, stacks(family(source), batch, last_layer), batch)
    baseline = oracle.baseline(full, batch)
    uds = depth_score(s1, s2).uds
    for row, e in enumerate(encoded):
        want = wanted[e.idx]
        assert baseline[row] == pytest.approx(want["full_score"], abs=NATS)
        assert s1[row].tolist() == pytest.approx(want["s1_deltas"], abs=2 * NATS)
        assert s2[row].tolist() == pytest.approx(want["s2_deltas"], abs=2 * NATS)
        if want["uds"] is None:
            assert uds[row].isnan()
        else:
            assert float(uds[row]) == pytest.approx(want["uds"], abs=UDS)


def test_patching_a_model_with_itself_changes_nothing(tiny, ragged):
    model, batch = tiny(), make_batch(ragged)
    stack, _ = residuals(model, batch.tokens)
    assert oracle.layer_deltas(model, stack, batch).abs().max() == 0
    # and it would have shown: noise changes every layer
    noisy = stack + torch.randn(stack.shape, generator=torch.Generator().manual_seed(0))
    assert (oracle.layer_deltas(model, noisy, batch).abs() > 1e-4).all()


@pytest.mark.misuse
def test_streams_of_other_rows_or_positions_are_refused(tiny, ragged):
    model, batch = tiny(), make_batch(ragged)
    stack, _ = residuals(model, batch.tokens)
    for other in (stack[:1], stack[:, :, :1]):
        with pytest.raises(InputError, match="wanted the rows and positions of this pass"):
            oracle.layer_deltas(model, other, batch)


@pytest.mark.misuse
def test_layers_are_one_several_or_none_of_the_models(tiny, ragged):
    model, batch = tiny(), make_batch(ragged)
    stack, deltas = residuals(tiny(1), batch.tokens)[0], inspect.unwrap(oracle.layer_deltas)
    every = deltas(model, stack, batch)
    assert torch.equal(deltas(model, stack, batch, layers=np.int64(2)), every[:, 2:])
    assert deltas(model, stack, batch, layers=[]).shape == (len(ragged), 0)
    for odd in ([99], -1, 1.5):
        with pytest.raises(InputError, match="the model has layers 0 to 2"):
            deltas(model, stack, batch, layers=odd)


def test_a_model_that_differs_only_above_a_layer_has_no_delta_below_it(tiny, ragged):
    full, source, batch = tiny(0), tiny(0), make_batch(ragged)
    with torch.no_grad():
        source.original_model.model.layers[2].mlp.down_proj.weight.mul_(-1)
    deltas = oracle.layer_deltas(full, residuals(source, batch.tokens)[0], batch)
    assert deltas[:, :2].abs().max() == 0
    assert (deltas[:, 2].abs() > 1e-4).all()


def test_the_reference_mode_patches_the_normed_stream_at_the_last_layer(tiny, ragged):
    model, batch = tiny(), make_batch(ragged)
    deltas = oracle.layer_deltas(model, stacks(model, batch, "reference"), batch)
    assert deltas[:, :-1].abs().max() == 0
    assert (deltas[:, -1].abs() > 1e-4).any()


def test_the_last_layer_reads_what_the_logit_lens_reads(tiny, ragged):
    from lensaudit.models.bridge import unembedded
    from lensaudit.scores.depth import span_logprob

    full, source, batch = tiny(0), tiny(1), make_batch(ragged)
    stack, _ = residuals(source, batch.tokens)
    lens = span_logprob(unembedded(full, stack[:, -1]), batch.tokens, batch.predict_at)
    patched = oracle.patched(full, stack, batch, layers=[2])[:, 0]
    assert torch.allclose(lens, patched, atol=1e-5)


@pytest.mark.parametrize("component", ["attn", "mlp", "resid_mid"])
def test_components_equal_the_reference(golden, family, forget, component):
    name = "true_resid_mid" if component == "resid_mid" else component
    rows = {row["idx"]: row for row in golden("component_s1.json")[name]["examples"]}
    encoded = [e for e in forget if e.idx in rows][::9]
    full, batch = family("full"), make_batch(encoded)
    stack, _ = residuals(family("retain"), batch.tokens, component=component)
    deltas = oracle.layer_deltas(full, stack, batch, component=component)
    for row, e in enumerate(encoded):
        assert deltas[row].tolist() == pytest.approx(rows[e.idx]["s1_deltas"], abs=2 * NATS)


def test_one_head_replaced_is_not_all_heads_replaced(tiny, ragged):
    full, source, batch = tiny(0), tiny(1), make_batch(ragged)
    stack, _ = residuals(source, batch.tokens, component="head")
    one = oracle.layer_deltas(full, stack, batch, component="head", head=0)
    two = oracle.layer_deltas(full, stack, batch, component="head", head=1)
    assert (one - two).abs().max() > 1e-4
    for head in (None, -1, stack.shape[3]):
        with pytest.raises(InputError, match=f"head={head}: wanted one of 0 to "):
            oracle.layer_deltas(full, stack, batch, component="head", head=head)
    stream, _ = residuals(source, batch.tokens)
    with pytest.raises(InputError, match='head=1: wanted component="head" with it'):
        oracle.layer_deltas(full, stream, batch, head=1)
