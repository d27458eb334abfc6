"""Rows of a readout and the tokens they stand for, against a dense assignment."""

import pytest
import torch
from scipy.optimize import linear_sum_assignment

from lensaudit.attacks import readout_rows
from lensaudit.attacks.readout_rows import tokens_of_rows


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def exchanged(full: torch.Tensor, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token is read out as the next; and the token that each row is of."""
    rows, token = torch.tensor(tokens), torch.arange(len(full))
    own = full.clone()
    own[rows], token[rows] = full[rows.roll(1)], rows.roll(1)
    return own, token


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("chunk", [1, 1 << 25])
def test_it_is_the_dense_assignment_of_the_rows(noise, chunk, monkeypatch):
    monkeypatch.setattr(readout_rows, "CHUNK", chunk)
    full = normal(0, 60, 16) + 3 * normal(1, 16)  # all share a large part
    own, token = exchanged(full, [3, 11, 12, 40, 41, 59])
    # a vector for all rows moves no probability
    own = own + noise * normal(2, 60, 16) + normal(3, 16)
    found = tokens_of_rows(own, full)
    a, b = (torch.nn.functional.normalize(one - one.mean(0)) for one in (own, full))
    assert found.tolist() == linear_sum_assignment(-(a @ b.T).numpy())[1].tolist()
    assert torch.equal(found, token)


def test_rows_that_are_where_they_were_stay():
    full = normal(4, 50, 24)
    trained = full + 0.3 * normal(5, 50, 24)
    turned = full @ torch.linalg.qr(normal(6, 24, 24)).Q
    for own in (full, trained, turned, normal(7, 50, 24)):
        assert torch.equal(tokens_of_rows(own, full), torch.arange(50))


def test_padded_rows_and_other_widths_are_no_ones():
    full = normal(8, 30, 12)
    own, token = exchanged(full, [1, 2, 3])
    assert torch.equal(tokens_of_rows(torch.cat((own, normal(9, 4, 12))), full)[:30], token)
    assert torch.equal(tokens_of_rows(own, normal(10, 30, 8)), torch.arange(30))


@pytest.mark.parametrize("tied", [False, True])
def test_putting_back_restores_every_row_of_a_model(tied):
    from transformers import LlamaConfig, LlamaForCausalLM

    from lensaudit.attacks.exchange import undo_exchange
    from lensaudit.attacks.in_memory import readout_rows

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=40,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            tie_word_embeddings=tied,
        )
    )
    full, embedding = readout_rows(model).clone(), model.get_input_embeddings().weight.clone()
    assert undo_exchange(model, full) == 0
    with torch.no_grad():
        model.lm_head.weight.copy_(exchanged(full, [5, 6, 30])[0])
    assert torch.equal(model.get_input_embeddings().weight, embedding) != tied
    assert undo_exchange(model, full) == 3
    assert torch.equal(model.lm_head.weight, full)
    assert torch.equal(model.get_input_embeddings().weight, embedding)
