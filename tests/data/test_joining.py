"""An answer encoded after its prompt has the text of both as one, whatever the tokenizer."""

import pytest
from support import refusal
from support.frozen import embedded_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lensaudit.data.facts import Fact, answered
from lensaudit.data.spans import Encoded, check_tokenizer, encode, joined, way_of
from lensaudit.steer.asking import following
from lensaudit.training.rows import raw_sample

WORDS = ["Question", ":", "\n", "Answer", "Who", "?", "It", "is", "red", ".", "Ada", "a", "so", "b"]


def backend(kind):
    """A byte-fallback vocabulary of words with and without the blank before them."""
    pieces = ["<s>", "</s>", "<unk>", "▁", *WORDS, *(f"▁{word}" for word in WORDS)]
    pieces += [":▁red", "▁:▁red", "is▁red"] * (kind == "merging")  # across the border
    vocab = [(piece, -10.0 if len(piece) == 1 else -1.0) for piece in pieces]
    inner = Tokenizer(
        models.Unigram([*vocab, *((chr(c), -10.0) for c in range(97, 123))], unk_id=2)
    )
    if kind in ("prepend", "merging"):  # Llama-2, Mistral v0.1, Phi-3
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        inner.normalizer = normalizers.Sequence(steps)
        strip = [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        inner.decoder = decoders.Sequence(strip)
    if kind == "metaspace":
        inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        inner.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    if kind == "no prefix":
        inner.normalizer = normalizers.Replace(" ", "▁")
        inner.decoder = decoders.Replace("▁", " ")
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def tokens(tokenizer, ids):
    return tokenizer.convert_ids_to_tokens(list(ids))


def test_a_blank_is_not_doubled_where_the_tokenizer_sets_one():
    tokenizer = backend("prepend")
    apart = tokenizer(" red.", add_special_tokens=False)["input_ids"]
    assert tokens(tokenizer, apart)[:2] == ["▁", "▁red"]  # what was scored before
    ids, characters, n_prompt = joined(tokenizer, "Answer: It is", " red.")
    assert list(ids) == tokenizer("Answer: It is red.")["input_ids"]
    assert tokens(tokenizer, ids[n_prompt:]) == ["▁red", "."]
    assert characters[n_prompt:] == ((13, 17), (17, 18))
    assert following(tokenizer, " red.") == ids[n_prompt:]


@pytest.mark.parametrize("kind", ["prepend", "metaspace"])
@pytest.mark.parametrize("prefix", ["It is", ""])
def test_the_span_is_that_of_the_text_as_one(kind, prefix):
    tokenizer = backend(kind)
    check_tokenizer(tokenizer, kind)
    found = encode(Fact(0, "Who?", "It is Ada.", prefix, "Ada", 0), tokenizer)
    assert isinstance(found, Encoded)
    assert list(found.token_ids) == tokenizer("Question: Who?\nAnswer: It is Ada.")["input_ids"]
    assert tokens(tokenizer, found.token_ids[found.start + 1 : found.end + 1]) == ["▁Ada"]
    assert tokens(tokenizer, found.token_ids[found.n_prompt :])[0] == ("▁Ada" if prefix else "▁It")


def test_what_is_trained_on_is_what_is_scored():
    tokenizer = backend("prepend")
    for prefix in ("It is", ""):
        trained = raw_sample(tokenizer, answered("Who?", "It is Ada.", prefix=prefix)).ids
        scored = encode(Fact(0, "Who?", "It is Ada.", prefix, "Ada", 0), tokenizer)
        assert trained[:-1] == scored.token_ids


@pytest.mark.parametrize("kind", ["no prefix", "byte-level"])
def test_where_both_ways_agree_prompt_and_answer_stay_apart(kind):
    tokenizer = embedded_tokenizer() if kind == "byte-level" else backend(kind)
    assert way_of(tokenizer) == "apart"
    ids, _, n_prompt = joined(tokenizer, "Answer: ", "It is red.")
    alone = tokenizer("It is red.", add_special_tokens=False)["input_ids"]
    assert list(ids) == tokenizer("Answer: ")["input_ids"] + alone
    assert n_prompt == len(ids) - len(alone)


def test_a_tokenizer_that_changes_the_text_either_way_is_refused():
    assert "differently when they are encoded" in refusal(
        check_tokenizer, backend("merging"), "mine"
    )


def test_a_text_longer_than_the_context_is_unscored_with_the_reason():
    example = Fact(7, "Who?", "It is Ada.", "It is", "Ada", 0)
    found = encode(
        example, embedded_tokenizer(), too_long=lambda n: f"{n} tokens" if n > 3 else None
    )
    assert isinstance(found, str)
    assert found.endswith(" tokens")
    assert isinstance(encode(example, embedded_tokenizer(), too_long=lambda n: None), Encoded)
