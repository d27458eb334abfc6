import json
from pathlib import Path

import pytest

import lensaudit
from lensaudit.judge.items import JudgeRequest, JudgeVerdict
from lensaudit.judge.programmatic import ENTITY, IDK, VARIETY, declines

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
        # TOFU has such answers of its own: docs/metrics.md says how many
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


@pytest.mark.parametrize("judge", [IDK, VARIETY])
def test_an_empty_answer_is_unscored(judge):
    assert judge.score([asked("  ")])[0].status == "unscored"


@pytest.mark.parametrize(
    ("score", "reason", "status"), [(None, "", "ok"), (1.0, "why", "ok"), (None, "why", "ok")]
)
def test_a_verdict_is_a_score_or_a_reason(score, reason, status):
    with pytest.raises(ValueError, match="wanted a score, or a reason"):
        JudgeVerdict(score, reason, status)
