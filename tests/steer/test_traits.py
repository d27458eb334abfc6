"""Prompt files: the shipped ones, and what is wrong with others."""

import json
from dataclasses import replace

import pytest

from lensaudit.doors import steering
from lensaudit.doors.steering import Extracted
from lensaudit.errors import InputError
from lensaudit.steer.settings import ExtractSettings
from lensaudit.steer.trait import load_trait, parse_trait, shipped_traits

FURTHER = (
    *("positivity", "uncertainty", "defensiveness", "retrieval", "context", "search_activation"),
    "correction_impulse",
)
"""Traits of the steering document whose judges nobody has calibrated."""
GOOD = {
    "trait_name": "candour",
    "questions": ["How are you?"],
    "eval_prompt": "Q {question} A {answer} Just the number.",
}


def test_shipped_traits_have_twenty_questions_and_twenty_others_to_extract_from():
    assert shipped_traits() == sorted(["confidence", "demo_idk", "formality", "refusal", *FURTHER])
    traits = {name: load_trait(name) for name in shipped_traits()}
    every = [question for one in traits.values() for question in one.questions]
    every += [
        one for each in traits.values() if each.extraction for one in each.extraction.questions
    ]
    assert len(set(every)) == len(every) == 11 * 20 + 10 * 20
    for name in ("confidence", "formality", "refusal", *FURTHER):
        asked = traits[name].extraction
        assert len(set(traits[name].questions)) == len(set(asked.questions)) == 20
        assert len(asked.positive) == len(asked.negative) == 5
        assert traits[name].checked(name) is traits[name]


def test_the_judge_of_a_refusal_trait_is_not_told_to_call_refusals_by_that_name():
    for name in ("refusal", "demo_idk"):
        trait = load_trait(name)
        assert trait.refusal_is_trait
        assert "REFUSAL" not in trait.eval_prompt


def test_a_trait_whose_judge_nobody_calibrated_says_so():
    assert {name for name in shipped_traits() if load_trait(name).remark("gpt-x")} == {*FURTHER}
    told = load_trait("correction_impulse").remark("gpt-x")
    assert told.endswith("(`lensaudit judge calibrate --by correction_impulse --judge gpt-x`)")
    assert load_trait("positivity").remark("positivity") is None  # by words: no prompt is used
    assert parse_trait(GOOD, "x").remark("gpt-x") is None
    own = parse_trait({**GOOD, "calibrated": False}, "x").remark("gpt-x")
    assert own.endswith("(`lensaudit judge calibrate`)")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"eval_prompt": "Q {question}"}, r"no \{answer\}"),
        ({"eval_prompt": "A {answer}"}, r"no \{question\}"),
        ({"eval_prompt": '{question} {answer} {"score": 1}'}, "brace beside"),
        ({"questions": ["Why?", " "]}, r"questions.1: found ' ', wanted another text"),
        ({"questions": ["Why?", "Why?"]}, "each once"),
        ({"polarity": 0}, "polarity: found 0, wanted 1 or -1"),
        ({"entities": ["fine", "ill"]}, "wanted a list of 1"),
        (
            {"extraction": {"positive": ["a", "b"], "negative": ["c"], "questions": ["Why?"]}},
            "2 positive and 1 negative",
        ),
        (
            {"extraction": {"positive": ["a"], "negative": ["c"], "questions": ["how ARE  you"]}},
            "1 evaluation questions are extraction questions too",
        ),
        (
            {
                "contrast": {
                    "positive": [{"question": "How are you?", "answer": "Ill"}],
                    "negative": [{"question": "Where?", "answer": "Here"}],
                }
            },
            "extraction questions too",
        ),
    ],
)
def test_a_wrong_prompt_file_is_refused_by_key(changed, message):
    assert parse_trait(GOOD, "x").name == "candour"
    with pytest.raises(InputError, match=message):
        parse_trait(GOOD | changed, "x")


def test_an_unknown_trait_lists_the_shipped_ones(tmp_path):
    with pytest.raises(InputError, match="confidence, context, correction_impulse"):
        load_trait("nonsense")
    file = tmp_path / "own.json"
    file.write_text(json.dumps({**GOOD, "trait_name": "x"}))
    assert load_trait(str(file)).name == "x"
    file.write_text("[1]")
    with pytest.raises(InputError, match="wanted an object"):
        load_trait(str(file))


def test_the_judge_behind_another_address_is_another_question(tmp_path, monkeypatch):
    keys = []

    def once(asked, *_, **__):
        keys.append(asked.key())
        return Extracted(tmp_path, [], [])

    monkeypatch.setattr(steering, "once", once)
    settings = ExtractSettings(name="demo/full", trait="refusal", out=tmp_path, filter_judge="m")
    kept = tmp_path / "answers.sqlite"
    for address in ("http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1", "http://127.0.0.1:2/v1"):
        monkeypatch.setenv("OPENAI_BASE_URL", address)
        steering.extracted(replace(settings, cache=kept), notice=print, progress=print)
        kept.write_text(address)  # what a run keeps is no part of what it was asked
    first, second, third = keys
    assert first != second == third
