import inspect
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.frozen import embedded_forget, embedded_tokenizer, frozen, positions

from lensaudit.data.facts import Fact
from lensaudit.data.spans import (
    Encoded,
    buckets,
    check_tokenizer,
    encode,
    make_batch,
    reads_otherwise,
)
from lensaudit.data.tofu import forget_set
from lensaudit.errors import InputError


def example(answer: str, prefix: str, entity: str) -> Fact:
    return Fact(0, "Who is it?", answer, prefix, entity, 0)


class Pieces:
    """A tokenizer done by eye: words and signs with the blank before them; 7 opens a text.

    A letter outside ASCII is two tokens of the same place, as in byte-level vocabularies.
    """

    eos_token_id = None

    def __init__(self):
        self.seen = {}

    def __call__(self, text, add_special_tokens=True, return_offsets_mapping=False):
        found = re.finditer(r" ?[A-Za-z0-9]+| ?[!-/:-@[-`{-~]+|[^\x00-\x7f]|\s", text)
        pieces = [one for one in found for _ in range(1 if one[0].isascii() else 2)]
        ids = [sum(map(ord, one[0])) + 10 for one in pieces]
        self.seen |= dict(zip(ids, (one[0] for one in pieces), strict=True))
        return {
            "input_ids": [7] * add_special_tokens + ids,
            "offset_mapping": [(0, 0)] * add_special_tokens + [one.span() for one in pieces],
        }

    def decode(self, token_ids, **options):
        return "".join(self.seen[one] for one in token_ids if one != 7)


TRAPS = {
    # answer, prefix, entity; pieces before the continuation; its pieces, the scored ones in [ ].
    # "Question|:| Who|?|\n|Answer|:" and the token that opens the text are 8
    "plain": ("It is Ada.", "It is", "Ada", "8| It| is", "[ Ada]|."),
    "last word": ("It is Ada", "It is", "Ada", "8| It| is", "[ Ada]"),
    "empty prefix": ("Yes, she is.", "", "Yes", "8| ", "[Yes]|,| she| is|."),
    "empty prefix, later": ("Her name is Ada.", "", "Ada", "8| ", "Her| name| is|[ Ada]|."),
    "words between": ("It is old Ada.", "It is", "Ada", "8| It| is", " old|[ Ada]|."),
    "repeated": ("It is red and red.", "It is", "red", "8| It| is", "[ red]| and| red|."),
    "in the prefix too": (
        "In Oslo, not in Oslo.",
        "In Oslo, not in",
        "Oslo",
        "8| In| Oslo|,| not| in",
        "[ Oslo]|.",
    ),
    "inside a word": ("It is part art.", "It is", "art", "8| It| is", "[ part]| art|."),
    "opening quote": (
        'It is "Sand and Rye".',
        'It is "',
        "Sand and Rye",
        '8| It| is| "',
        '[ Sand| and| Rye]|".',
    ),
    "quotes in the entity": ("It is 'Rye'.", "It is", "'Rye'", "8| It| is", "[ '|Rye|'.]"),
    "date": (
        "She was born on 3 May 1931.",
        "She was born on",
        "3 May 1931",
        "8| She| was| born| on",
        "[ 3| May| 1931]|.",
    ),
    # the blank ends where the entity begins: it is not scored; each accent is two tokens
    "accents": ("It is Šiki-Ød.", "It is", "Šiki-Ød", "8| It| is", " |[Š|Š|iki|-|Ø|Ø|d]|."),
    "accents before": ("Zoë is 40.", "Zoë is", "40", "8| Zo|ë|ë| is", "[ 40]|."),
    "blanks around": ("It is Ada.", "It is", "Ada ", "8| It| is", "[ Ada]|."),
    "comma inside": ("In Oslo, Norway.", "In", "Oslo, Norway", "8| In", "[ Oslo|,| Norway]|."),
}


AS_TEXT = TRAPS | {
    # the blank belongs to the word after it, whoever wrote it where
    "empty prefix": ("Yes, she is.", "", "Yes", "8", "[ Yes]|,| she| is|."),
    "empty prefix, later": ("Her name is Ada.", "", "Ada", "8", " Her| name| is|[ Ada]|."),
    "blank at the end": ("It is Ada.", "It is ", "Ada", "8| It| is", "[ Ada]|."),
    "blanks at the end": ("It is  Ada.", "It is  ", "Ada", "8| It| is", " |[ Ada]|."),
    "opening quote": (
        'It is "Sand and Rye".',
        'It is "',
        "Sand and Rye",
        '8| It| is| "',
        '[Sand| and| Rye]|".',
    ),
    # a token of both is the entity's
    "half a word": ("It is part art.", "It is p", "art", "8| It| is", "[ part]| art|."),
    "no blanks": ("他生在北京。", "他生在", "北京", "8| |他|他|生|生|在|在", "[北|北|京|京]|。|。"),
}


@pytest.mark.parametrize("seam", ["text", "reference"])
@pytest.mark.parametrize("trap", AS_TEXT)
def test_the_span_is_where_the_eye_sees_it(trap, seam):
    traps = AS_TEXT if seam == "text" else TRAPS
    if trap not in traps:
        pytest.skip("the reference reads another text")
    answer, prefix, entity, before, after = traps[trap]
    found = encode(Fact(3, "Who?", answer, prefix, entity, "g", seam=seam), Pieces())
    assert isinstance(found, Encoded)
    n_prompt = 8 + before.count("|")
    low = after[: after.index("[")].count("|")
    scored = after[after.index("[") + 1 : after.index("]")].split("|")
    # the logits one left of a token score it
    start = n_prompt + low - 1
    assert (found.n_prompt, found.start, found.end) == (n_prompt, start, start + len(scored))
    assert [found.token_ids[at + 1] for at in range(found.start, found.end)] == [
        sum(map(ord, piece)) + 10 for piece in scored
    ]
    assert len(found.token_ids) == n_prompt + after.count("|") + 1
    assert (found.idx, found.group) == (3, "g")


def test_tokens_and_positions_are_those_that_agreed_with_the_reference():
    assert positions() == frozen("positions")


def test_every_embedded_row_has_a_span_that_holds_the_entity(tokenizer):
    examples = forget_set("demo")
    assert sum(not e.prefix for e in examples) == 8
    for e, found in zip(examples, embedded_forget(), strict=True):
        text = tokenizer.decode(found.token_ids[found.start + 1 : found.end + 1])
        assert e.entity in text, e.idx
        assert len(text) <= len(e.entity) + 2, e.idx


@pytest.fixture(scope="module")
def tokenizer():
    return embedded_tokenizer()


@settings(deadline=None, derandomize=True)
@given(st.text('ab ."é', min_size=1, max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_as_text_tokens_are_those_of_question_and_answer_wherever_the_prefix_ends(answer, at, n):
    """An independent oracle: the whole text, tokenised once, and its characters."""
    prefix, entity = answer[:at], answer[at:][:n]
    if not entity.strip():
        return
    tokenizer, head = Pieces(), "Question: Who?\nAnswer: "
    whole = tokenizer(head + answer, return_offsets_mapping=True)
    found = encode(Fact(0, "Who?", answer, prefix, entity, 0), tokenizer)
    assert isinstance(found, Encoded)
    assert [*found.token_ids] == whole["input_ids"]
    low = len(head) + answer.index(entity, len(prefix.rstrip()))
    inside = [
        n for n, (a, b) in enumerate(whole["offset_mapping"]) if b > low and a < low + len(entity)
    ]
    assert [*range(found.start + 1, found.end + 1)] == inside
    assert found.n_prompt <= found.start + 1


@pytest.mark.parametrize("between", ["", " ", "  ", "\n", "\u00a0", "\u3000", "\t"])
@pytest.mark.parametrize(
    ("prefix", "entity"),
    [
        ("Ada was born in", "Lima"),
        ("Ада родилась в", "Лиме"),
        ("艾达出生在", "利马"),
        ("It is “", "Ada"),
    ],
)
def test_the_blank_at_a_prefixs_end_moves_no_token_whatever_it_is(
    prefix, entity, between, tokenizer
):
    answer = f"{prefix}{between}{entity}, they say."
    told = {
        encode(Fact(0, "Who?", answer, one, entity, 0), tokenizer)
        for one in (prefix, prefix + between)
    }
    (found,) = told
    whole = tokenizer(f"Question: Who?\nAnswer: {answer}")["input_ids"]
    assert [*found.token_ids] == whole
    text = tokenizer.decode(found.token_ids[found.start + 1 : found.end + 1])
    assert text.strip().startswith(entity)


def test_rows_that_come_with_the_package_keep_the_references_seam_and_own_rows_the_text(
    tokenizer, tmp_path
):
    shipped = forget_set("demo")
    asked = [{**one.asked, "prefix": one.prefix} for one in shipped]
    (tmp_path / "copy.json").write_text(json.dumps(asked))
    asked = [{**one, "question": f"{one['question']} "} for one in asked]
    (tmp_path / "own.json").write_text(json.dumps(asked))
    seams = [
        {one.seam for one in forget_set(place)}
        for place in ("demo", tmp_path / "copy.json", tmp_path / "own.json")
    ]
    assert seams == [{"reference"}, {"reference"}, {"text"}]
    texts = [replace(one, seam="text") for one in shipped]
    differ = [
        one.idx
        for one, text in zip(shipped, texts, strict=True)
        if encode(one, tokenizer) != encode(text, tokenizer)
    ]
    assert differ == [one.idx for one in shipped if not one.prefix]  # their blank is the prompt's


def test_of_forget10_twenty_five_rows_are_read_otherwise_as_one_text(tokenizer, shared):
    rows = forget_set(shared / "data" / "tofu" / "forget10_filtered.json")
    assert {one.seam for one in rows} == {"reference"}
    differ = {
        one.idx
        for one in rows
        if encode(one, tokenizer) != encode(replace(one, seam="text"), tokenizer)
    }
    quoted = {one.idx for one in rows if reads_otherwise(one)}
    assert quoted == {63, 189, 196, 349}
    assert differ == quoted | {one.idx for one in rows if not one.prefix}
    assert len(differ) == 25


def test_tokens_and_positions_equal_the_reference_on_every_row(golden, forget):
    wanted = golden("positions.json")
    assert [e.idx for e in forget] == [row["idx"] for row in wanted]
    for e, row in zip(forget, wanted, strict=True):
        assert list(e.token_ids) == row["prompt_ids"] + row["ref_ids"]
        assert (e.start, e.end) == (row["eval_start"], row["eval_end"])
        assert list(e.token_ids[e.start + 1 : e.end + 1]) == row["eval_ref_ids"]
        assert e.n_prompt == len(row["prompt_ids"])


def test_scoring_the_whole_answer_ends_the_prompt_at_answer(tokenizer):
    e = encode(example("It is Ada.", "It is", "Ada"), tokenizer, scored="answer")
    assert isinstance(e, Encoded)
    assert tokenizer.decode(e.token_ids[e.n_prompt :]) == "It is Ada."
    assert (e.start, e.end) == (e.n_prompt - 1, len(e.token_ids) - 1)


def test_an_entity_that_the_text_lacks_is_unscored_with_a_reason(tokenizer):
    found = encode(example("It is Ada.", "It is", "Bob"), tokenizer)
    assert found == "no token of this tokenizer covers 'Bob'"


class _Tokenizer:
    def __init__(self, suffix: list[int]):
        self.suffix, self.eos_token_id = suffix, 9

    def __call__(self, text, add_special_tokens=True, **options):
        ids = [1, 5, *self.suffix] if add_special_tokens else [5] if text else []
        return {"input_ids": ids, "offset_mapping": [(0, len(text)) for _ in ids]}

    def decode(self, token_ids, **options):
        return " ".join(map(str, sorted(set(token_ids))))


def test_a_tokenizer_that_appends_eos_is_refused():
    with pytest.raises(InputError, match=r"appends token 9 .*add_eos_token"):
        check_tokenizer(_Tokenizer([9]), "m")
    check_tokenizer(_Tokenizer([]), "m")


def test_predicting_positions_lie_one_left_of_the_span(ragged):
    batch = make_batch(ragged)
    for row, e in enumerate(ragged):
        assert batch.predict_at[row].nonzero().squeeze(1).tolist() == list(range(e.start, e.end))
        assert batch.tokens[row, : len(e.token_ids)].tolist() == list(e.token_ids)


def test_scopes_replace_the_span_the_boundary_or_everything_up_to_the_end(ragged):
    e = ragged[2]
    at = {
        scope: make_batch([e], scope=scope).patch_at[0].nonzero().squeeze(1).tolist()
        for scope in ("span", "boundary", "prefix")
    }
    assert at == {"span": [4, 5, 6, 7, 8], "boundary": [2], "prefix": list(range(9))}
    assert ragged[2].read_positions == (2, 4, 5, 6, 7, 8)
    assert ragged[0].read_positions == (4, 5, 6, 7)


@settings(deadline=None, derandomize=True)
@given(ends=st.lists(st.integers(1, 90), min_size=1, max_size=40), size=st.integers(1, 9))
def test_buckets_hold_every_example_once_in_order_of_length(ends, size):
    encoded = [Encoded(i, i, tuple([3] * (e + 1)), 1, 0, e) for i, e in enumerate(ends)]
    found = list(buckets(encoded, size))
    assert sorted(e.idx for bucket in found for e in bucket) == list(range(len(ends)))
    assert [e.end for bucket in found for e in bucket] == sorted(ends)
    assert all(len(bucket) <= size for bucket in found)


@pytest.mark.misuse
def test_a_batch_of_no_example_or_of_a_reason_is_refused(ragged):
    why = "no token of this tokenizer covers 'Ada'"
    for found, said in (([], "there are none"), ([ragged[0], why], why)):
        with pytest.raises(InputError, match=f"make_batch wants encoded examples: {said}"):
            inspect.unwrap(make_batch)(found)


@pytest.mark.misuse
def test_an_unknown_scope_is_refused(ragged):
    with pytest.raises(InputError, match="scope='bad': wanted one of span, boundary, prefix"):
        inspect.unwrap(make_batch)(ragged, scope="bad")
