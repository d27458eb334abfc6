"""The lens by token and the last prompt token, read from caches: which numbers, and who runs."""

import pytest
import torch
from support import EMBEDDED, checkpoint_of

import lensaudit as la
from lensaudit.data.spans import make_batch
from lensaudit.errors import InputError
from lensaudit.models.checkpoint import load_tokenizer
from lensaudit.patching import session

FEW = 3


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The caches of a Logit Lens run: npo and retain at the span, full at the span."""
    folder = tmp_path_factory.mktemp("lens")
    la.patch("demo/npo", folder / "out", score="lens", limit=FEW, activations=folder / "a")
    return folder


def full_alone(monkeypatch):
    """From now on whoever loads another model than `full` fails."""
    plain = session.load

    def load(checkpoint, **how):
        assert checkpoint.spec.name == "demo/full"
        return plain(checkpoint, **how)

    monkeypatch.setattr(session, "load", load)


def test_a_source_that_ran_is_gone_before_full_is_loaded(tmp_path, monkeypatch):
    plain, held = session.Session.model, []

    def model(self, checkpoint):
        found = plain(self, checkpoint)
        held.append([*self._models])
        return found

    monkeypatch.setattr(session, "HELD_PART", 2**40)
    monkeypatch.setattr(session.Session, "model", model)
    la.lens("demo/npo", limit=1, activations=tmp_path)
    assert held == [[checkpoint_of(name).weights] for name in ("demo/npo", "demo/full")]


def encoded(name, n=FEW):
    tokenizer = load_tokenizer(checkpoint_of(name))
    return [la.encode(one, tokenizer) for one in la.forget_set("demo", limit=n)]


def test_the_mean_over_the_span_is_the_lens_score_and_nobody_runs(root, monkeypatch):
    full_alone(monkeypatch)
    kept = {"limit": FEW, "activations": root / "a"}
    full, npo = la.lens("demo/full", **kept), la.lens("demo/npo", **kept)
    assert (npo.source, npo.full, npo.unscored) == ("demo/npo", "demo/full", {})
    layers = la.frames.layers(root / "out")
    for ours, theirs in zip(full.examples, npo.examples, strict=True):
        gap = ours.logprob.mean(1) - theirs.logprob.mean(1)
        wanted = layers[layers["idx"] == ours.idx].sort_values("layer")["s2"]
        assert torch.allclose(gap, torch.tensor(wanted.to_list()), atol=1e-4)
        assert gap.abs().max() > 0.1
        assert ours.idx == theirs.idx


def test_the_last_layer_of_full_is_what_it_says(root):
    found = la.lens("demo/full", tokens="answer", limit=FEW, activations=root / "all")
    model = la.load_model("demo/full")
    for one, e in zip(found.examples, encoded("demo/full"), strict=True):
        at = slice(e.n_prompt - 1, len(e.token_ids) - 1)
        logits = la.logits_of(model, make_batch([e]).tokens)[0, at]
        labels = torch.tensor(e.token_ids[e.n_prompt :])
        assert torch.equal(one.token_ids, labels)
        assert one.positions.tolist() == list(range(at.start, at.stop))
        own = logits.log_softmax(-1)
        assert torch.allclose(one.logprob[-1], own.gather(1, labels[:, None])[:, 0], atol=1e-4)
        order = own.argsort(dim=-1, descending=True)
        assert torch.equal(one.rank[-1], (order == labels[:, None]).int().argmax(-1))
        example = next(x for x in la.forget_set("demo", limit=FEW) if x.idx == one.idx)
        assert "".join(one.tokens).strip() == example.answer.removeprefix(example.prefix).strip()
    frame = found.frame
    assert len(frame) == sum(one.rank.numel() for one in found.examples)
    first = found.examples[0]
    row = frame[(frame["idx"] == first.idx) & (frame["layer"] == 3)].iloc[1]
    assert row["token"] == first.tokens[1]
    assert row["logprob"] == pytest.approx(float(first.logprob[3, 1]))
    assert row["rank"] == int(first.rank[3, 1])


def test_all_positions_serve_the_span_of_any_model(root, monkeypatch):
    whole = la.lens("demo/npo", tokens="answer", limit=FEW, activations=root / "served")
    full_alone(monkeypatch)
    span = la.lens("demo/npo", limit=FEW, activations=root / "served")
    for e, one, other in zip(encoded("demo/npo"), span.examples, whole.examples, strict=True):
        inside = slice(e.start - e.n_prompt + 1, e.end - e.n_prompt + 1)
        assert torch.allclose(one.logprob, other.logprob[:, inside], atol=1e-5)
        assert one.tokens == other.tokens[inside]


@pytest.mark.parametrize("component", ["resid", "heads"])
def test_the_last_prompt_token_is_that_of_a_plain_run(root, monkeypatch, component):
    kept = {"component": component, "limit": FEW, "activations": root / "ends"}
    found = la.last_prompt("demo/npo", **kept)
    hook = "head" if component == "heads" else component
    model = la.load_model("demo/npo")
    for row, e in zip(found.resid, encoded("demo/npo"), strict=True):
        stack, _ = la.residuals(model, make_batch([e]).tokens, component=hook)
        assert torch.allclose(row, stack[0, :, e.n_prompt - 1].flatten(1), atol=1e-5)
    assert found.idx == tuple(e.idx for e in encoded("demo/npo"))
    full_alone(monkeypatch)
    assert torch.equal(la.last_prompt("demo/npo", **kept).resid, found.resid)


def test_own_folders_are_read_through_a_full_that_is_named(tmp_path):
    (tmp_path / "own").symlink_to(EMBEDDED / "npo")
    with pytest.raises(InputError, match="of your own; name the model before unlearning"):
        la.lens(tmp_path / "own", data="demo", limit=1)
