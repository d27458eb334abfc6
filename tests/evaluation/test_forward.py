"""The shared pass against PyTorch's own losses."""

import json
import math
from copy import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import tiny_model
from support.tolerance import NATS
from transformers import AutoModelForSequenceClassification
from transformers.integrations import hub_kernels

from lensaudit.data.chat import Encoding
from lensaudit.data.suites import Split
from lensaudit.errors import InputError
from lensaudit.evaluation import forward
from lensaudit.evaluation.forward import (
    Tokenization,
    generations,
    gradient_norm,
    open_classifier,
    padded,
    said,
    share_clean,
    traces,
)
from lensaudit.metrics.memorization import strength


def texts(seed=0, n=7):
    generator = torch.Generator().manual_seed(seed)
    found = []
    for length in range(4, 4 + n):
        ids = tuple(torch.randint(3, 61, (length,), generator=generator).tolist())
        found.append(Encoding(ids, 2, ids[:2]))
    return found


@pytest.fixture
def asked(tiny_tokenizer):
    from lensaudit.data.chat import PLAIN

    return Tokenization(tiny_tokenizer, PLAIN, "true")


def test_a_loss_is_pytorchs_cross_entropy(asked):
    model = tiny_model()
    for text, trace in zip(texts(), traces(model, asked, texts(), 3), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([text.ids])).logits[0, text.start - 1 : -1]
        target = torch.tensor(text.labels)
        loss = torch.nn.functional.cross_entropy(logits, target)
        assert trace.loss == pytest.approx(float(loss), rel=1e-5)
        assert list(trace.hit) == (logits.argmax(-1) == target).tolist()
        assert trace.mean == pytest.approx(expected_log_prob(logits), rel=1e-5)


def expected_log_prob(logits):
    """By the entropy, as PyTorch's distributions know it."""
    return (-torch.distributions.Categorical(logits=logits).entropy()).numpy()


def test_the_variance_is_that_of_sampled_log_probabilities(asked):
    model = tiny_model()
    (text,) = texts(n=1)
    (trace,) = traces(model, asked, [text], 1)
    with torch.no_grad():
        logits = model(torch.tensor([text.ids])).logits[0, text.start - 1 : -1].double()
    log_probs, probs = logits.log_softmax(-1), logits.softmax(-1)
    centred = log_probs - (probs * log_probs).sum(-1, keepdim=True)
    assert trace.variance == pytest.approx((probs * centred**2).sum(-1).numpy(), rel=1e-4)


@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_scores_do_not_depend_on_the_batch_size(asked, batch_size):
    alone, together = (traces(tiny_model(), asked, texts(), n) for n in (1, batch_size))
    for one, other in zip(alone, together, strict=True):
        for name in ("log_prob", "mean", "variance"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-5)
        assert (one.hit == other.hit).all()


def test_generations_do_not_depend_on_the_batch_size(asked):
    prompts = [text.ids for text in texts()]
    model = tiny_model()
    alone = generations(model, asked, prompts, batch_size=1, max_new_tokens=5)
    together = generations(model, asked, prompts, batch_size=7, max_new_tokens=5)
    assert alone == together
    assert len({tuple(ids) for ids in alone}) > 1


def test_answers_stand_where_their_prompts_stood(asked):
    # batches are made by length, longest first; what comes back is in the order of what was asked
    model, prompts = tiny_model(), [text.ids for text in texts()]
    there = generations(model, asked, prompts, batch_size=2, max_new_tokens=5)
    back = generations(model, asked, prompts[::-1], batch_size=2, max_new_tokens=5)
    assert back == there[::-1] != there
    orders = (texts(), texts()[::-1])
    losses = [[one.loss for one in traces(model, asked, order, 2)] for order in orders]
    assert losses[1] == pytest.approx(losses[0][::-1])


@pytest.mark.parametrize(
    "config", [{"dola_layers": "low"}, {"repetition_penalty": "x"}, {"num_beams": "2"}]
)
def test_a_generation_config_that_cannot_be_obeyed_is_a_line(asked, config):
    model, prompts = tiny_model(), [text.ids for text in texts()]
    model.generation_config = copy(model.generation_config)
    vars(model.generation_config).update(config)
    with pytest.raises(InputError, match=r"cannot generate under its generation_config") as told:
        generations(model, asked, prompts, batch_size=2, max_new_tokens=2)
    assert "trust_remote_code" not in str(told.value)


def test_a_generation_ends_before_its_first_end_token(asked):
    model, prompts = tiny_model(), [text.ids for text in texts()]
    free = generations(model, asked, prompts, batch_size=7, max_new_tokens=6)
    end = free[0][2]
    model.generation_config.eos_token_id = [end, 2]
    found = generations(model, asked, prompts, batch_size=7, max_new_tokens=6)
    cut = [ids[: ids.index(end)] if end in ids else ids for ids in free]
    assert found == cut
    assert len(found[0]) <= 2


def test_an_answer_ends_before_the_first_stop_word(asked):
    split = Split("forget", "a test", (), stop_words=("w7", "w9"))
    assert said([2], [5, 6, 7, 8, 9, 10], split, asked, "none") == "w5 w6"
    assert said([2], [5, 9, 8, 7, 10], split, asked, "none") == "w5"
    assert said([2], [5, 6], split, asked, "none") == "w5 w6"


class Rating:
    """A classifier whose first class has the odds that the text names."""

    device = "cpu"

    def __call__(self, odds):
        return SimpleNamespace(logits=torch.stack((odds.log(), torch.zeros_like(odds)), dim=1))


class Odds(dict):
    def to(self, device):
        return self


def test_fluency_is_the_probability_of_the_first_class_for_every_text():
    def tokenizer(rows, **options):
        assert options["max_length"] == 7
        assert options["truncation"]
        return Odds(odds=torch.tensor([float(row) for row in rows]))

    how = {"model": Rating(), "tokenizer": tokenizer, "max_tokens": 7}
    rated = share_clean(["3", "1", "0.25"] * 20, **how)
    assert rated == pytest.approx([0.75, 0.5, 0.2] * 20)


@pytest.mark.parametrize("attention", ["eager", "kernels-community/attention@main"])
def test_a_classifier_is_read_and_names_no_code_of_its_own(
    tiny_tokenizer, tmp_path, attention, monkeypatch
):
    asked = []
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda *name, **how: asked.append(name))
    config = tiny_model().config
    config.pad_token_id = tiny_tokenizer.pad_token_id or 0
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    model.save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(written | {"_attn_implementation": attention}))
    (rated,) = open_classifier(str(tmp_path), "cpu", max_tokens=8)(["w5 w6 w7"])
    with torch.no_grad():
        logits = model(**tiny_tokenizer("w5 w6 w7", return_tensors="pt")).logits[0]
    assert rated == pytest.approx(float(logits.softmax(-1)[0]), abs=NATS)
    assert asked == []


def test_scores_do_not_depend_on_the_chunk(asked, monkeypatch):
    whole = traces(tiny_model(), asked, texts(), 4)
    monkeypatch.setattr(forward, "CHUNK_BYTES", 4 * 61 * 2)
    for one, other in zip(whole, traces(tiny_model(), asked, texts(), 4), strict=True):
        assert one.log_prob == pytest.approx(other.log_prob, abs=NATS)


def test_a_model_whose_head_is_not_all_is_read_through_its_logits(asked):
    capped = tiny_model()
    plain = capped.forward
    capped.forward = lambda *args, **kwargs: cap(plain(*args, **kwargs))
    found = traces(capped, asked, texts(), 3)
    for text, trace in zip(texts(), found, strict=True):
        with torch.no_grad():
            logits = capped(torch.tensor([text.ids])).logits[0, text.start - 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(text.labels))
        assert trace.loss == pytest.approx(float(loss), rel=1e-5)
    uncapped = traces(tiny_model(), asked, texts(), 3)
    assert uncapped[0].loss != pytest.approx(found[0].loss, rel=1e-3)


def cap(output):
    output.logits = 2 * torch.tanh(output.logits / 2)
    return output


def test_a_bfloat16_model_is_reduced_in_float32(asked):
    exact = traces(tiny_model(), asked, texts(), 3)
    rough = traces(tiny_model().bfloat16(), asked, texts(), 3)
    for one, other in zip(exact, rough, strict=True):
        assert other.log_prob.dtype == np.float32
        assert other.loss == pytest.approx(one.loss, rel=0.1)
        assert math.isfinite(other.variance.sum())


def test_a_large_vocabulary_is_read_a_chunk_at_a_time(asked):
    model = tiny_model(vocab_size=128_256, num_hidden_layers=1)
    n_positions = []
    model.lm_head.register_forward_hook(lambda head, given, out: n_positions.append(out.numel()))
    found = traces(model, asked, texts(n=20), 20)
    assert max(n_positions) * 4 <= forward.CHUNK_BYTES
    # beside them four positions that tell whether the head reads the trunk
    assert sum(n_positions) == 128_256 * (8 + sum(len(trace) for trace in found))
    assert len(n_positions) > 3


def test_the_upstream_mask_hides_real_end_tokens_and_changes_the_score(tiny_tokenizer):
    from lensaudit.data.chat import PLAIN

    tiny_tokenizer = type(tiny_tokenizer)(
        tokenizer_object=tiny_tokenizer.backend_tokenizer, bos_token="<bos>", eos_token="<eos>"
    )
    ids = (5, 9, 2, 20, 21, 22)
    text = Encoding(ids, 3, ids[:3])
    found = {
        mask: traces(tiny_model(), Tokenization(tiny_tokenizer, PLAIN, mask), [text], 1)[0]
        for mask in ("true", "upstream")
    }
    assert found["true"].loss != pytest.approx(found["upstream"].loss, rel=1e-4)
    hidden = torch.tensor([[1, 1, 0, 1, 1, 1]])
    with torch.no_grad():
        by_hand = tiny_model()(torch.tensor([ids]), attention_mask=hidden).logits[0, 2:-1]
    loss = torch.nn.functional.cross_entropy(by_hand, torch.tensor(ids[3:]))
    assert found["upstream"].loss == pytest.approx(float(loss), rel=1e-5)


def test_padding_goes_to_the_side_that_is_asked_for(asked):
    right = padded([(5, 6), (7,)], asked, side="right", device="cpu")
    left = padded([(5, 6), (7,)], asked, side="left", device="cpu")
    assert right[0].tolist() == [[5, 6], [7, 0]]
    assert left[0].tolist() == [[5, 6], [0, 7]]
    assert left[1].tolist() == [[True, True], [False, True]]


def test_a_gradient_norm_is_that_of_backward(asked):
    model, text = tiny_model(), texts()[3]
    n_content = len(text.labels) - 1
    logits = model(torch.tensor([text.ids])).logits[0, text.start - 1 : text.start - 1 + n_content]
    torch.nn.functional.cross_entropy(logits, torch.tensor(text.labels[:-1])).backward()
    wanted = np.mean([float(p.grad.norm()) for p in model.parameters() if p.grad is not None])
    assert gradient_norm(tiny_model(), asked, text) == pytest.approx(wanted, rel=1e-5)


def test_a_text_without_content_has_no_gradient_norm(asked):
    assert math.isnan(gradient_norm(tiny_model(), asked, Encoding((5, 6, 2), 2, (5, 6))))


@pytest.mark.parametrize("seed", range(6))
def test_generative_extraction_is_generation_from_every_prefix(asked, seed):
    """The definition, run: generate from each true prefix and compare with the rest."""
    model = tiny_model(seed)
    model.generation_config.eos_token_id = 60
    # an answer that begins at random and goes on as the model would: some suffix is extractable
    head = texts(seed)[1].ids
    tail = generations(model, asked, [head], batch_size=1, max_new_tokens=4)[0]
    ids = (*head, *tail, 2)
    text = Encoding(ids, 2, ids[:2])
    answer = text.labels[:-1]
    shortest = len(answer)
    for k in reversed(range(len(answer))):
        prefix = (*ids[:2], *answer[:k])
        said = generations(model, asked, [prefix], batch_size=1, max_new_tokens=len(answer) - k)[0]
        if tuple(said) != answer[k:]:
            break
        shortest = k
    (trace,) = traces(model, asked, [text], 1)
    assert strength(trace.content.hit) == pytest.approx(1 - shortest / len(answer))
    assert shortest < len(answer)
