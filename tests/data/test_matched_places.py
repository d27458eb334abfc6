"""Where two tokenizers have read as much of one text."""

import pytest

from lensaudit.data.facts import Fact
from lensaudit.data.spans import Encoded, encoded_row, ends_of, matched
from lensaudit.models.sizes import ContextWindow
from tools.demo_family.tokenizer import GPT2_SPLIT, train_tokenizer

ROWS = {
    "entity": Fact(0, "Who wrote it?", "It was Ilvara Okonjwe.", "It was", "Ilvara Okonjwe", 0),
    "answer": Fact(1, "Who wrote it?", "Ilvara Okonjwe did.", "", "Ilvara Okonjwe did.", 0),
    "sentence": Fact(2, "", "The river is long.", "", "The river is long.", 0),
}
TEXTS = {
    "entity": "Question: Who wrote it?\nAnswer: It was Ilvara Okonjwe.",
    "answer": "Question: Who wrote it?\nAnswer: Ilvara Okonjwe did.",
    "sentence": "The river is long.",
}


@pytest.fixture(scope="module")
def tokenizers():
    """Of few and of many pieces."""
    text = [*TEXTS.values()] * 3
    few = train_tokenizer(text[:1], d_vocab=270, split=GPT2_SPLIT)
    return few, train_tokenizer(text, d_vocab=320)


@pytest.mark.parametrize("kind", ROWS)
def test_a_token_ends_where_the_text_read_with_it_does(tokenizers, kind):
    for tokenizer in tokenizers:
        row = encoded_row(ROWS[kind], tokenizer, ContextWindow().too_long)
        assert isinstance(row, Encoded)
        ends = ends_of(ROWS[kind], tokenizer)
        assert len(ends) == len(row.token_ids)
        # by decoding, not by offsets
        for at, end in enumerate(ends):
            read = tokenizer.decode(row.token_ids[: at + 1], skip_special_tokens=True)
            assert read == TEXTS[kind][:end]


@pytest.mark.parametrize("kind", ROWS)
def test_matched_positions_have_read_the_same_and_no_other_has(tokenizers, kind):
    any_length = ContextWindow().too_long
    few, many = ([tok, encoded_row(ROWS[kind], tok, any_length)] for tok in tokenizers)
    read = [
        [tok.decode(row.token_ids[: at + 1]) for at in range(len(row.token_ids))]
        for tok, row in (few, many)
    ]
    found = matched(*(ends_of(ROWS[kind], tok) for tok in tokenizers))
    wanted = {at: read[1].index(text) for at, text in enumerate(read[0]) if text in read[1]}
    assert found == wanted
    assert 3 < len(found) < len(read[0])
    # where the prompt ends both have read all of it
    assert found[few[1].n_prompt - 1] == many[1].n_prompt - 1


@pytest.mark.parametrize("kind", ROWS)
def test_a_row_longer_than_the_context_has_no_tokens_but_a_reason(tokenizers, kind):
    found = encoded_row(ROWS[kind], tokenizers[0], ContextWindow().too_long)
    assert isinstance(found, Encoded)
    n = len(found.token_ids)
    assert encoded_row(ROWS[kind], tokenizers[0], ContextWindow(n).too_long) == found
    why = encoded_row(ROWS[kind], tokenizers[0], ContextWindow(n - 1).too_long)
    assert why == f"{n} tokens, longer than the model's context of {n - 1}"


def test_of_the_pieces_of_one_character_the_last_has_read_it():
    assert matched([0, 1, 1, 2], [0, 1, 2, 2]) == {0: 0, 2: 1, 3: 3}
