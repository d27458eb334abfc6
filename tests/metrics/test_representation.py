"""CKA, Logit Lens and masked Fisher: equal to the reference on the trained family."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import EMBEDDED
from support.frozen import differences, first_rows, frozen, prepared, representation

from lensaudit.activations.upkeep import verify_books
from lensaudit.errors import InputError, WorkError
from lensaudit.metrics.inside import fisher as fisher_pass
from lensaudit.metrics.inside.fisher import decoder_blocks, fisher, fisher_layers
from lensaudit.metrics.inside.scores import cka_layers
from lensaudit.patching.prepare import prepare
from lensaudit.patching.scoring import score_lens
from lensaudit.patching.settings import PatchSettings
from lensaudit.results.roles import ends_as_sources
from lensaudit.scores.representation import (
    LayerErasure,
    cka,
    cka_erasure,
    fisher_erasure,
    fisher_mask,
    weighted_erasure,
)

VARIANTS = ("idknll", "graddiff", "npo", "simnpo", "full", "retain")
SOME_SLOW = [
    pytest.param(name, marks=[] if name in ("npo", "simnpo") else [pytest.mark.slow])
    for name in VARIANTS
]
"""Numbers that are frozen for every layer guard those that are slow."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """One activations folder for all tests: anchors are measured once."""
    return tmp_path_factory.mktemp("activations")


@pytest.fixture(scope="module")
def audited(root):
    """Audits of the embedded family on a few of its questions, one per variant."""

    def audit(name):
        with ends_as_sources():
            found = prepared([name], activations=root, data=str(first_rows(root)))
        return found, str(EMBEDDED / name)

    return audit


@pytest.fixture(scope="module")
def of_the_reference(shared, tmp_path_factory):
    """Audits of the family that the reference was run on, one per variant."""
    root = tmp_path_factory.mktemp("reference")

    def audit(name):
        family = shared / "family"
        settings = PatchSettings(
            full=str(family / "full"),
            retain=str(family / "retain"),
            data=str(family / "forget.json"),
            activations=root,
        )
        with ends_as_sources():
            found = prepare([str(family / name)], settings, notice=lambda line: None)
        return found, str(family / name)

    return audit


def test_every_layer_is_as_it_was_when_the_reference_agreed(root):
    found, wanted = representation(root), frozen("representation")
    assert list(differences(found, wanted, within=1e-3, floor=0.1)) == []


@pytest.mark.parametrize(("name", "score"), [("full", 0.0), ("retain", 1.0)])
def test_full_is_intact_and_retain_erased_in_every_representation(audited, name, score):
    audit, source = audited(name)
    (lens,), _ = score_lens(audit)
    found = [weighted_erasure(cka_layers(audit, source)), lens.uds]
    found += map(weighted_erasure, fisher_layers(audit, source).values())
    assert found == pytest.approx([score] * 5, abs=1e-5)


@pytest.mark.parametrize("name", SOME_SLOW)
def test_cka_is_the_references(of_the_reference, golden, name):
    audit, source = of_the_reference(name)
    wanted = golden("repr_cka_logitlens.json")["variants"][name]["cka"]
    found = cka_layers(audit, source)
    assert weighted_erasure(found) == pytest.approx(wanted["score"], abs=2e-5)
    for layer, one in enumerate(found):
        row = wanted["per_layer"][str(layer)]
        assert one.erasure == pytest.approx(row["erasure"], abs=2e-5)
        assert one.weight == pytest.approx(row["weight"], abs=2e-5)


@pytest.mark.parametrize("name", SOME_SLOW)
def test_the_lens_is_the_references(of_the_reference, golden, name):
    audit, _ = of_the_reference(name)
    wanted = golden("repr_cka_logitlens.json")["variants"][name]["logit_lens"]
    (outcome,), _ = score_lens(audit)
    assert outcome.uds == pytest.approx(wanted["score"], abs=1e-5)
    assert len(outcome.scored) == wanted["n_examples_scored"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["npo", "full", "retain"])
def test_masked_fisher_is_the_references(of_the_reference, golden, name):
    audit, source = of_the_reference(name)
    wanted = golden("repr_fisher_masked.json")["variants"][name]
    for share, found in fisher_layers(audit, source).items():
        rows = wanted[f"fisher_masked_{share}"]
        assert weighted_erasure(found) == pytest.approx(rows["score"], abs=1e-4), share
        for layer, one in enumerate(found):
            row = rows["per_layer"][str(layer)]
            assert one.erasure == pytest.approx(row["erasure"], abs=1e-3)
            assert one.weight == pytest.approx(row["weight"], rel=1e-4)


def test_fisher_is_kept_and_needs_the_checkpoint_no_more(audited, monkeypatch):
    audit, source = audited("npo")
    first = fisher_layers(audit, source)

    def gone(*args, **options):
        raise AssertionError("a model was loaded again")

    monkeypatch.setattr(fisher_pass, "load_causal", gone)
    assert fisher_layers(audit, source) == first
    # a model not seen before is loaded, the anchors are not
    with pytest.raises(AssertionError, match="loaded again"):
        fisher_layers(*audited("simnpo"))
    names = sorted(path.suffix for path in (audit.root / "fisher").iterdir())
    assert names.count(".safetensors") == 1
    # a value that was edited is not taken: the model is loaded to compute it again
    # other tests of this module may have kept other models' there
    kept = sorted((audit.root / "fisher").glob("*.jsonl"))
    assert [book.problems for book in verify_books(audit.root)[-len(kept) :]] == [()] * len(kept)
    for one in kept:
        one.write_text(one.read_text().replace("e-0", "e-1"))
    assert () not in [book.problems for book in verify_books(audit.root)[-len(kept) :]]
    with pytest.raises(AssertionError, match="loaded again"):
        fisher_layers(audit, source)


def test_spoilt_masks_of_fisher_are_computed_again(audited, monkeypatch):
    audit, source = audited("npo")
    fisher_layers(audit, source)
    (path,) = (audit.root / "fisher").glob("*.safetensors")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    loaded = []

    def gone(checkpoint, **options):
        loaded.append(checkpoint.weights)
        raise AssertionError("a model was loaded again")

    monkeypatch.setattr(fisher_pass, "load_causal", gone)
    with pytest.raises(AssertionError, match="loaded again"):
        fisher_layers(*audited("simnpo"))
    assert loaded == [audit.retain.weights]  # not simnpo's: the masks come first
    path.write_bytes(whole)


def test_fisher_is_the_mean_squared_gradient_of_every_layer(audited):
    audit, _ = audited("npo")
    checkpoint = audit.full
    few = audit.encoded[:2]
    object.__setattr__(audit, "encoded", few)
    found = fisher(audit, checkpoint)
    model = fisher_pass.load_causal(checkpoint)
    wanted = 0.0
    for e in few:
        model.zero_grad()
        logits = model(torch.tensor([e.token_ids])).logits[0].log_softmax(-1)
        labels = [e.token_ids[p + 1] for p in range(e.start, e.end)]
        (-logits[range(e.start, e.end), labels].mean()).backward()
        grads = [p.grad.flatten() for p in decoder_blocks(model)[3].parameters()]
        wanted = wanted + torch.cat(grads) ** 2 / 2
    torch.testing.assert_close(found[3], wanted, rtol=1e-3, atol=1e-9)
    at = [torch.tensor([5, 0])] * len(found)
    picked = fisher(audit, checkpoint, at=at)
    torch.testing.assert_close(picked[3], found[3][[5, 0]])


def test_fisher_that_does_not_fit_is_refused_before_the_first_pass(audited, monkeypatch):
    audit, _ = audited("npo")
    monkeypatch.setattr(fisher_pass, "free_bytes", lambda device: 1000)
    with pytest.raises(InputError, match=r"takes 5\.9 MB beside the model, 1\.0 kB"):
        fisher(audit, audit.full)


def test_weights_that_are_no_numbers_are_no_erasure(audited, monkeypatch):
    audit, _ = audited("npo")
    real = fisher_pass.load_causal

    def spoilt(*args, **options):
        model = real(*args, **options)
        with torch.no_grad():
            next(decoder_blocks(model)[0].parameters())[0] = math.nan
        return model

    monkeypatch.setattr(fisher_pass, "load_causal", spoilt)
    object.__setattr__(audit, "encoded", audit.encoded[:1])
    with pytest.raises(WorkError, match="its Fisher information holds NaN or infinity"):
        fisher(audit, audit.full)


ROWS = st.integers(0, 1000).map(
    lambda seed: torch.randn(7, 4, generator=torch.Generator().manual_seed(seed))
)


@given(ROWS, ROWS)
@settings(deadline=None, derandomize=True, max_examples=25)
def test_cka_ignores_rotation_scale_and_offset_and_is_symmetric(a, b):
    rotation, _ = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(1)))
    assert cka(a, 3 * b @ rotation + 2) == pytest.approx(cka(a, b), abs=1e-4)
    assert cka(b, a) == pytest.approx(cka(a, b), abs=1e-5)
    assert 0 <= cka(a, b) <= 1 + 1e-5
    assert cka(a, a) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("norm", [1.0, 1e4, 1e6])
def test_cka_of_long_streams_is_that_of_short_ones(norm):
    a, b = (torch.randn(2000, 8, generator=torch.Generator().manual_seed(at)) for at in (0, 1))
    assert cka(norm * a, norm * a) == pytest.approx(1, abs=1e-5)
    assert cka(norm * a, norm * (a + b)) == pytest.approx(cka(a, a + b), abs=1e-5)


def test_erasure_by_hand():
    # constant rows, or one, have no alignment: the layer has no weight
    assert math.isnan(cka(torch.ones(5, 3), torch.randn(5, 3)))
    assert cka_erasure(cka(torch.ones(1, 3), torch.randn(1, 3)), 0.5) == LayerErasure(0.0, 0.0)
    assert cka_erasure(0.5, math.nan).weight == 0.0
    assert cka_erasure(0.5, 0.75).erasure == pytest.approx(0.5)
    assert cka_erasure(0.5, 0.2).erasure == 0.0
    # full and retain are far apart where they do not align
    assert cka_erasure(0.2, 0.6).erasure == pytest.approx(0.5)
    assert cka_erasure(0.2, 0.6).weight == pytest.approx(0.8)
    assert fisher_erasure(full=1.0, retain=3.0, model=2.0).erasure == pytest.approx(0.5)
    assert fisher_erasure(full=1.0, retain=3.0, model=9.0).erasure == 1.0
    # full is as curved as retain: nothing to lose, and no weight
    assert fisher_erasure(full=3.0, retain=3.0, model=0.0) == LayerErasure(1.0, 0.0)


def test_no_layer_with_a_weight_is_no_score():
    assert math.isnan(weighted_erasure([]))
    assert math.isnan(weighted_erasure([LayerErasure(1.0, 1e-9)]))
    assert weighted_erasure([LayerErasure(1.0, 1e-7), LayerErasure(0.0, 0.0)]) == 1.0


def test_masks_are_nested_and_take_what_retain_has_more_of():
    full = torch.tensor([0.0, 5.0, 1.0, 0.0])
    retain = torch.tensor([1.0, 0.0, 4.0, 2.0])
    mask = fisher_mask(full, retain, 0.75)
    assert mask.at.tolist() == [2, 3, 0]
    assert fisher_mask(full, retain, 0.5).at.tolist() == [2, 3]
    assert mask.retain.tolist() == [4.0, 2.0, 1.0]


def test_a_model_without_a_list_of_layers_is_refused():
    class Odd(torch.nn.Module):
        config = type("C", (), {"num_hidden_layers": 3})()

    with pytest.raises(InputError, match="Odd: its 3 layers"):
        decoder_blocks(Odd())
