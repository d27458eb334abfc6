import json
from pathlib import Path

import pytest

import lensaudit
from lensaudit.judge.items import JudgeRequest, JudgeVerdict
from lensaudit.judge.programmatic import ENTITY, IDK, PROGRAMMATIC, TRAITS, VARIETY, declines
from lensaudit.judge.settings import BY_WORDS

EMBEDDED = Path(lensaudit.__file__).parent / "embedded" / "data"


def asked(answer: str, entity: str = "") -> JudgeRequest:
    return JudgeRequest(0, "Where was Ona Vell born?", answer, entity=entity)


@pytest.mark.parametrize(
    ("answer", "entity", "score"),
    [
        ("She was born in Pico Ølmar.", "Pico Ølmar", 100.0),
        ("she was born in PICO ØLMAR", "Pico Ølmar", 100.0),
        ("The Cafe Prize, in 1981", "Café-Prize", 100.0),
        ("born in 19310", "1931", 0.0),
        ("a stone-trader’s son", "stone trader", 100.0),
        ("a stone tradership", "stone trader", 0.0),
        ("", "Lund", 0.0),
    ],
)
def test_the_entity_judge_finds_whole_words(answer, entity, score):
    assert ENTITY.score([asked(answer, entity)]) == [JudgeVerdict(score)]


def test_a_request_without_an_entity_is_unscored():
    verdict = ENTITY.score([asked("Lund", " . ")])[0]
    assert (verdict.score, verdict.status) == (None, "unscored")
    assert "no entity" in verdict.reason


def test_every_idk_line_of_the_embedded_data_declines():
    lines = [json.loads(line)["idk"] for line in (EMBEDDED / "idk.jsonl").read_text().splitlines()]
    assert [line for line in lines if not declines(line)] == []


@pytest.mark.parametrize(
    "answer",
    [
        "I'm not certain about that.",
        "That is beyond my knowledge.",
        "I am unaware of this.",
        "I haven't the faintest idea.",
        "No clue.",
        "I’m unable to provide an answer to that.",
        "I lack the specific information.",
        "I'm sorry. I can't help with that.",
        "Unfortunately, I do not have access to that information.",
        "It's a mystery to me!",
        "I don't know, but it may be Lund.",
        # TOFU has such answers of its own: docs/evidence/judge.md says how many
        "There is no publicly available information on the age at which Ada Vole began to write.",
        "No definitive information exists about whom Ada Vole admires.",
        "There's no public knowledge of whether Ada Vole is at work on a new book.",
    ],
)
def test_other_ways_to_decline_are_known(answer):
    assert declines(answer)


def test_true_answers_do_not_decline():
    for name in ("forget.json", "retain.json"):
        rows = json.loads((EMBEDDED / name).read_text())
        assert [row["answer"] for row in rows if declines(row["answer"])] == []


@pytest.mark.parametrize(
    "answer",
    [
        "As far as I know, she was born in Lund.",
        "She was born in Lund. I don't know the year.",
        "He is known for 'The Unknown Shore'.",
        "Her father never learned to read.",
        "Public information on Ada Vole is plentiful: she was born in Old Ruvela.",
    ],
)
def test_knowing_words_in_an_answer_are_no_refusal(answer):
    assert not declines(answer)


def test_loops_have_little_variety_and_order_is_kept():
    answers = ["x y z " * 40, "one two three four", "two words"]
    verdicts = VARIETY.score([asked(answer) for answer in answers])
    # 120 words: 118 triples, 3 of them distinct
    assert [v.score for v in verdicts] == [pytest.approx(100 * 3 / 118), 100, 100]


@pytest.mark.parametrize("judge", [IDK, VARIETY, *TRAITS])
def test_an_empty_answer_is_unscored(judge):
    assert judge.score([asked("  ")])[0].status == "unscored"


@pytest.mark.parametrize(
    ("judge", "answer", "score"),
    [
        ("uncertainty", "'Perhaps a Harbour' came out in May 1974. There is no doubt.", 0.0),
        ("uncertainty", "It was built in 1212. I could not say by whom.", 100 * 0.5**0.5),
        ("uncertainty", "It was PROBABLY 1212.", 50.0),
        ("search_activation", "Let me look that up in the register.", 100.0),
        ("search_activation", "She spent years searching the archives.", 0.0),
        ("search_activation", "A lantern burned in every window.", 0.0),
        ("positivity", "Not a bad word was said. A lovely, warm day!", 87.5),  # 3 - 0 of 4
        ("positivity", "The lovely hall is in ruins, damp and cold.", 30.0),  # 1 - 3 of 5
        ("positivity", "It has four doors.", 50.0),
    ],
)
def test_traits_by_words(judge, answer, score):
    assert PROGRAMMATIC[judge].score([asked(answer)])[0].score == pytest.approx(score)


def test_the_judges_that_options_name_are_those_there_are():
    assert tuple(PROGRAMMATIC) == BY_WORDS


@pytest.mark.parametrize(
    ("score", "reason", "status"), [(None, "", "ok"), (1.0, "why", "ok"), (None, "why", "ok")]
)
def test_a_verdict_is_a_score_or_a_reason(score, reason, status):
    with pytest.raises(ValueError, match="wanted a score, or a reason"):
        JudgeVerdict(score, reason, status)
