"""Answers elicited by system prompts: asked once, paired, and filtered by a judge."""

import json
import shutil
from dataclasses import replace

import pytest

from lensaudit.errors import InputError, PartialError
from lensaudit.judge.items import JudgeVerdict
from lensaudit.models.checkpoint import open_model
from lensaudit.models.registry import EMBEDDED
from lensaudit.steer.asking import (
    TraitModel,
    asked,
    elicit,
    encode_sample,
    filtered,
    positions_read,
    written,
)
from lensaudit.steer.generate import prompt_ids
from lensaudit.steer.settings import ExtractSettings
from lensaudit.steer.trait import Elicitation, parse_trait

ELICITATION = {"positive": ["w5", "w6"], "negative": ["w7", "w8"], "questions": ["w9 w10", "w11"]}
TRAIT = {"questions": ["w20"], "eval_prompt": "{question} {answer}", "extraction": ELICITATION}


def trait(**changes):
    return parse_trait(TRAIT | changes, "t")


@pytest.fixture
def job(tiny, tmp_path):
    """A tiny model that is asked for the trait, its log in a folder of its own."""
    settings = ExtractSettings(
        name="tiny", trait="t", temperature=1.0, max_new_tokens=4, out=tmp_path
    )
    opened = TraitModel(settings, trait(), open_model("demo/full"), "raw", "float32", "cpu")
    vars(opened)["model"] = tiny()
    return opened


class Judge:
    """Says what a table says."""

    def __init__(self, name, scores):
        self.name, self._scores = name, scores

    def score(self, requests):
        found = [self._scores[request.idx] for request in requests]
        return [
            JudgeVerdict(None, "the server is down", "api_error")
            if score is None
            else JudgeVerdict(score)
            for score in found
        ]


def test_every_question_is_asked_under_both_prompts_of_every_pair():
    found = asked(Elicitation(**{k: tuple(v) for k, v in ELICITATION.items()}), 3)
    assert len(found) == 2 * 2 * 2 * 3
    assert len({key for key, _ in found}) == len(found)
    for (_, one), (_, other) in zip(found[::2], found[1::2], strict=True):
        assert (one.positive, other.positive, one.pair) == (True, False, other.pair)
        assert one.question == other.question
        assert one.system != other.system


def test_answers_are_kept_and_not_asked_for_again(job):
    first = elicit(job)
    assert 0 < len(first) <= 8
    # without a model nothing can be said
    again = replace(job, checkpoint=job.checkpoint)
    assert elicit(again) == first
    assert "model" not in vars(again)
    assert len(elicit(with_model(job, n_rollouts=2))) > len(first)


def test_where_texts_end_is_in_the_key_of_an_answer(job, tmp_path):
    folder = shutil.copytree(EMBEDDED / "full", tmp_path / "full")
    job = replace(job, checkpoint=open_model(str(folder)))
    before = job.conditions()
    assert "stop" not in before
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 5]}))
    assert job.conditions() != before


def with_model(job, **changes):
    other = replace(job, settings=replace(job.settings, **changes))
    vars(other)["model"] = job.model
    return other


def test_only_pairs_that_differ_in_the_trait_and_cohere_are_kept(job, tmp_path):
    found = elicit(job)
    scores = {one.idx: 80.0 if one.positive else 20.0 for one in found}
    sound = dict.fromkeys(scores, 90.0)
    pairs = sorted({one.pair for one in found})
    # the first pair does not differ, one half of the second falls apart
    scores |= {one.idx: 80.0 for one in found if one.pair == pairs[0]}
    sound |= {one.idx: 10.0 for one in found if one.pair == pairs[1] and one.positive}
    judges = Judge("a", scores), Judge("b", sound)
    kept = filtered(job, found, judges)
    assert {one.pair for one in kept} == set(pairs[2:])
    mute = Judge("c", dict.fromkeys(scores, 0.0))
    with pytest.raises(InputError, match="finds no pair"):
        filtered(with_model(job, out=tmp_path / "other"), found, (judges[0], mute))


def test_answers_that_could_not_be_judged_are_not_taken_for_bad_ones(job):
    found = elicit(job)
    scores = {one.idx: 80.0 if one.positive else 20.0 for one in found}
    sound = Judge("b", dict.fromkeys(scores, 90.0))
    silent = Judge("a", scores | {found[0].idx: None})
    with pytest.raises(PartialError, match=f"1 of {2 * len(found)} judgements"):
        filtered(job, found, (silent, sound))
    # the others are kept: the judge is asked about the one alone
    rest = Judge("a", {found[0].idx: 80.0})
    assert filtered(job, found, (rest, Judge("b", {}))) == found


def test_the_answers_positions_are_its_own_and_the_last_prompt_token_is_before_them(tiny_tokenizer):
    rows = {
        # what a file says beside a row, numbers of its own say, is passed over
        "positive": [{"question": "w9", "answer": "w12 w13", "idx": "q-1", "system": 5}],
        "negative": [{"question": "w9", "answer": "w14"}],
    }
    found = written(trait(contrast=rows, extraction=None))
    assert [one.pair for one in found] == [0, 0]
    assert [(one.idx, one.positive, one.system) for one in found] == [
        (0, True, None),
        (1, False, None),
    ]
    encoded = encode_sample(found[0], tiny_tokenizer, form="raw", position="response")
    prompt = prompt_ids(tiny_tokenizer, "raw", "w9", None)
    answer = tiny_tokenizer("w12 w13", add_special_tokens=False)["input_ids"]
    assert encoded.token_ids == (*prompt, *answer)
    assert list(positions_read(encoded, "response")) == [len(prompt), len(prompt) + 1]
    assert list(positions_read(encoded, "prompt_last")) == [len(prompt) - 1]
    assert encoded.read_positions == tuple(range(len(prompt) - 1, len(prompt) + 2))
    with pytest.raises(InputError, match="has no entity"):
        encode_sample(found[0], tiny_tokenizer, form="raw", position="span")
