"""Readouts and training text, against plain one-by-one computations."""

from random import Random
from typing import get_args

import pytest
import torch
from support import rtt_support as world
from transformers import AutoTokenizer

import lensaudit
from lensaudit.attacks.rtt.data import McqItem
from lensaudit.attacks.rtt.readout import (
    EncodedItem,
    encode_split,
    letters_of,
    mcq_prompt,
    mcq_text,
    read,
    train_sample,
)
from lensaudit.attacks.settings import LossOn
from lensaudit.data.chat import Encoding
from lensaudit.errors import InputError, WorkError

EMBEDDED = lensaudit.__path__[0] + "/embedded/full"


@pytest.fixture(scope="module")
def bpe():
    return AutoTokenizer.from_pretrained(EMBEDDED)


@pytest.fixture(scope="module")
def split():
    """Items of uneven length, and choices of one to four tokens."""
    random = Random(4)

    def words(pool, most):
        return " ".join(random.choices(pool, k=random.randint(1, most)))

    items = [
        McqItem(
            f"When was {words(world.NAMES, 5)} born?",
            tuple(words(world.YEARS, 4) for _ in range(4)),
            random.randrange(4),
        )
        for idx in range(12)
    ]
    return items


def said_after(model, texts):
    """Log-probabilities of the next token after each text, no batch and no padding."""
    found = []
    for text in texts:
        ids = torch.tensor([world.tokenizer()(text)["input_ids"]])
        found.append(model(input_ids=ids).logits[0, -1].double().log_softmax(-1))
    return found


def test_the_letter_is_read_after_the_colon(split):
    model = world.fresh(3)
    encoded = encode_split(world.tokenizer(), split, "all")
    letters = letters_of(world.tokenizer(), 4)
    (found,) = read(model, encoded.items, readouts=("letter",), letters=letters, batch_size=2)
    said = said_after(model, [mcq_prompt(item) for item in split])
    rows = torch.stack([one[[ids[0] for ids in letters]] for one in said])
    truth = torch.tensor([item.answer for item in split])
    assert found.correct == tuple((rows.argmax(1) == truth).nonzero().flatten().tolist())
    assert found.option_mass == pytest.approx(rows.exp().sum(1).mean().item(), rel=1e-5)
    centred = rows - rows.mean(0)
    assert 0 < len(found.correct) < 12
    assert found.calibrated == (centred.argmax(1) == truth).double().mean().item()


def test_both_variants_of_a_letter_count(split):
    model = world.fresh(3)
    encoded = encode_split(world.tokenizer(), split, "all")
    single = letters_of(world.tokenizer(), 4)
    # "When", "was", "born", "?" stand in for a second spelling of A, B, C, D
    more = world.tokenizer().convert_tokens_to_ids(["When", "was", "born", "?"])
    double = tuple((*one, other) for one, other in zip(single, more, strict=True))
    masses = [
        read(model, encoded.items, readouts=("letter",), letters=one, batch_size=3)[0].option_mass
        for one in (single, double, (tuple((other,) for other in more)))
    ]
    assert masses[1] == pytest.approx(masses[0] + masses[2], rel=1e-5)


def test_answers_are_ranked_by_their_mean_log_probability(split):
    model = world.fresh(4)
    encoded = encode_split(world.tokenizer(), split, "all")
    (found,) = read(model, encoded.items, readouts=("answer",), letters=None, batch_size=5)
    right = []
    for place, item in enumerate(split):
        means = []
        for choice in item.choices:
            prompt = world.tokenizer()(f"Question: {item.question}\nAnswer:")["input_ids"]
            answer = world.tokenizer()(choice, add_special_tokens=False)["input_ids"]
            said = model(input_ids=torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
            at = range(len(prompt) - 1, len(prompt) + len(answer) - 1)
            means.append(
                sum(said[p, token] for p, token in zip(at, answer, strict=True)) / len(answer)
            )
        right += [place] if int(torch.stack(means).argmax()) == item.answer else []
    assert found.correct == tuple(right)
    assert 0 < len(right) < 12
    assert found.option_mass is None


def test_the_batch_changes_nothing_and_byte_level_letters_have_two_tokens(bpe):
    model = world.knows()
    split = world.dataset().splits["split_0"]
    encoded = encode_split(world.tokenizer(), split, "all")
    letters = letters_of(world.tokenizer(), 4)
    settings = {"readouts": ("letter", "answer"), "letters": letters}
    one, many = (read(model, encoded.items, batch_size=n, **settings) for n in (1, 64))
    assert [reading.correct for reading in one] == [reading.correct for reading in many]
    assert one[0].option_mass == pytest.approx(many[0].option_mass, rel=1e-4)
    two = letters_of(bpe, 4)
    assert [bpe.convert_ids_to_tokens(ids) for ids in two][:2] == [["A", "ĠA"], ["B", "ĠB"]]
    assert all(len(ids) == 1 for ids in letters_of(world.tokenizer(), 4))


def test_scores_that_are_not_finite_are_an_error(split):
    model = world.fresh(3)
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    encoded = encode_split(world.tokenizer(), split, "all")
    with pytest.raises(WorkError, match="not finite"):
        read(model, encoded.items, readouts=("answer",), letters=None, batch_size=4)


def test_of_equally_likely_tokens_one_is_said():
    # every logit is 0: in half precision some are as large as the largest, and greedy text has one
    model = world.fresh(3)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    options = [(Encoding((1, token), 1),) for token in range(8)]
    items = [EncodedItem(0, (1,), one) for one in options]
    (said,) = read(model, items, readouts=("said",), batch_size=8)
    assert said.correct == (0,)


def test_letters_of_several_tokens_or_of_one_are_refused(bpe):
    def spelled(text, **options):
        answer = bpe(text, **options)
        # "B" as two tokens, wherever it stands
        ids = [
            one
            for token in answer["input_ids"]
            for one in ([token, token] if token == bpe.convert_tokens_to_ids("B") else [token])
        ]
        return {"input_ids": ids}

    with pytest.raises(InputError, match="option letter 'B' is 2 tokens"):
        letters_of(spelled, 4)
    with pytest.raises(InputError, match="does not tell the option letters apart"):
        letters_of(world.tokenizer(), 8)  # E to H are all unknown words


def labelled_text(tokenizer, item, loss_on):
    sample = train_sample(tokenizer, item, loss_on)
    return tokenizer.decode(sample.ids[sample.start :], skip_special_tokens=True)


def test_every_loss_learns_the_tokens_it_names(bpe):
    item = McqItem("When was Ada born?", ("1901", "1902", "1903", "1904"), 2)
    learned = {loss_on: labelled_text(bpe, item, loss_on) for loss_on in get_args(LossOn)}
    assert learned == {
        "all": mcq_text(item),
        "letter_answer": " C. 1903",
        "letter": " C",
        "question_answer": "Question: When was Ada born?\nAnswer: 1903",
        "answer": " 1903",
    }
    # the letter that is trained is among those that are read
    sample = train_sample(bpe, item, "letter")
    assert sample.ids[sample.start] in letters_of(bpe, 4)[2]
