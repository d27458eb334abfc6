import dataclasses
import json
from contextlib import nullcontext

import pandas
import pytest

from lensaudit.judge.items import JudgeRequest
from lensaudit.judge.jobs import JudgeJob, columns
from lensaudit.judge.rubric import (
    METRICS,
    RubricError,
    RubricGrader,
    family_of,
    read_grades,
    schema_of,
    template_of,
)
from lensaudit.judge.settings import LogSettings

FORGET = {"reasoning": "r", "KNOWLEDGE_REMOVAL": 7, "VERBATIM_REMOVAL": 10, "FLUENCY": 0}


def item(idx: int, said: str, context: str = "forget") -> JudgeRequest:
    texts = ("Where was Ona Vell born?", said, "", "", "Ona Vell was born in the town of Lund.")
    return JudgeRequest(idx, *texts, context=context, group=idx)


def rubric_bodies(stub) -> list:
    return [chat for chat in stub.chats if "KNOWLEDGE_REMOVAL" in str(chat["messages"])]


def found_by(client, *items: JudgeRequest):
    grader = RubricGrader(client, client.capability())
    settings = LogSettings(log=client.cache.path)
    return JudgeJob(settings, settings.log, items, grader, client, 0.0, nullcontext).judged()


def test_the_last_object_of_a_reply_is_read_whatever_stands_around_it():
    text = 'First {"draft": 1}, then\n```json\n' + json.dumps(FORGET) + "\n```\nDone."
    assert read_grades(text, "forget") == FORGET
    thought = f"<think>Say {json.dumps({**FORGET, 'FLUENCY': 1})}?</think>"
    assert read_grades(thought + json.dumps(FORGET), "forget") == FORGET


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no object here", "no JSON object"),
        ("{'KNOWLEDGE_REMOVAL': 7}", "no JSON object"),
        ('{"KNOWLEDGE_REMOVAL": 7', "no JSON object"),
        (json.dumps({**FORGET, "MOOD": 1}), "extra key MOOD"),
        (json.dumps({"FLUENCY": 3}), "has no KNOWLEDGE_REMOVAL, VERBATIM_REMOVAL"),
        (json.dumps({**FORGET, "FLUENCY": 11}), "FLUENCY is 11"),
        (json.dumps({**FORGET, "FLUENCY": -1}), "FLUENCY is -1"),
        (json.dumps({**FORGET, "FLUENCY": 7.5}), "FLUENCY is 7.5"),
        (json.dumps({**FORGET, "FLUENCY": True}), "FLUENCY is True"),
        (json.dumps({**FORGET, "FLUENCY": None}), "FLUENCY is None"),
        ("[" * 5000 + "{", "no JSON object"),
        # a thought that was cut, and one after which nothing is graded
        (f"<think>\nFirst: {json.dumps(FORGET)}. But it names the town, so", "no JSON object"),
        (f"<think>{json.dumps(FORGET)}?</think>I cannot grade this.", "no JSON object"),
    ],
)
def test_replies_that_are_not_what_was_asked_for_have_no_grades(text, said):
    with pytest.raises(RubricError, match=said):
        read_grades(text, "forget")


def test_the_context_decides_the_family_and_the_schema_matches_the_reader():
    assert [family_of(c) for c in ("forget_Q_A_ROUGE", "wf_Q_A_ROUGE", "ra")] == [
        "forget",
        "retain",
        "retain",
    ]
    for family, names in METRICS.items():
        schema = schema_of(family)
        assert schema["required"] == ["reasoning", *names]
        assert schema["additionalProperties"] is False
        reply = {name: 5 for name in names} | {"reasoning": ""}
        assert set(reply) == set(schema["properties"])
        assert read_grades(json.dumps(reply), family) == reply
        assert all(name in template_of(family) for name in names)


def test_items_are_graded_by_their_family(stub_of, client_of):
    stub = stub_of()
    gone, kept = "I don't know.", "Ona Vell was born in the town of Lund."
    found = found_by(
        client_of(stub), item(0, gone), item(1, kept), item(2, kept, "retain"), item(3, gone, "wf")
    )
    assert [row.scores for row in found.rows] == [
        {"KNOWLEDGE_REMOVAL": 10, "VERBATIM_REMOVAL": 10, "FLUENCY": 10},
        {"KNOWLEDGE_REMOVAL": 0, "VERBATIM_REMOVAL": 0, "FLUENCY": 10},
        {"RETENTION_SCORE": 10, "ACCURACY": 10, "RELEVANCE": 10, "FLUENCY": 10},
        {"RETENTION_SCORE": 0, "ACCURACY": 0, "RELEVANCE": 0, "FLUENCY": 10},
    ]
    body = rubric_bodies(stub)[0]
    assert body["response_format"]["json_schema"]["strict"] is True
    assert (body["max_tokens"], body["temperature"]) == (512, 0)


def test_a_reply_that_cannot_be_read_is_asked_for_once_more(stub_of, client_of):
    stub = stub_of()
    client = client_of(stub)
    client.capability()
    stub._queue.append("bad-json")
    found = found_by(client, item(0, "I don't know."))
    assert found.rows[0].status == "ok"
    assert found.rows[0].evidence["repaired"] is True
    first, second = rubric_bodies(stub)
    assert len(first["messages"]) == 1
    assert [m["role"] for m in second["messages"]] == ["user", "assistant", "user"]
    assert "could not be read" in second["messages"][-1]["content"]


def test_a_second_bad_reply_is_no_score_and_never_enters_a_mean(stub_of, client_of):
    stub = stub_of()
    client = client_of(stub, concurrency=1)
    client.capability()
    stub._queue.extend(["", "bad-json", "bad-json"])
    found = found_by(client, item(0, "I don't know."), item(1, "Nobody told me."))
    assert [row.status for row in found.rows] == ["ok", "parse_error"]
    assert found.rows[1].scores == {}
    column = columns(found)["forget"]["KNOWLEDGE_REMOVAL"]
    assert (column.mean, column.n, column.n_invalid) == (10.0, 1, 1)
    again = found_by(client_of(stub), item(0, "I don't know."), item(1, "Nobody told me."))
    assert again.rows == found.rows  # both bad replies are paid for and kept
    assert len(rubric_bodies(stub)) == 3


@pytest.mark.parametrize(
    ("fault", "status", "said", "n_calls"),
    [
        ("cut", "parse_error", "raise --max-tokens", 1),  # asked again it would be cut again
        ("500", "api_error", "something broke", 1),
        ("refusal", "parse_error", "no JSON object", 2),
    ],
)
def test_other_faults_say_what_they_are(stub_of, client_of, fault, status, said, n_calls):
    stub = stub_of()
    client = client_of(stub, retries=0)
    client.capability()
    stub.always = fault
    row = found_by(client, item(0, "I don't know.")).rows[0]
    assert (row.status, row.scores) == (status, {})
    assert said in row.reason
    assert len(rubric_bodies(stub)) == n_calls


def test_gaps_are_rows_with_a_reason(stub_of, client_of):
    gap = dataclasses.replace(item(9, ""), gap="no generation")
    found = found_by(client_of(stub_of()), item(0, "Lund"), gap)
    assert [(row.item.idx, row.status) for row in found.rows] == [(0, "ok"), (9, "unscored")]
    assert columns(found)["forget"]["FLUENCY"].n_invalid == 1


@pytest.mark.parametrize("grades", [[4.0, 6.0, 9.0], [10.0] * 7 + [0.0]])
def test_statistics_are_those_of_the_sample_on_the_scale(stub_of, client_of, grades):
    found = found_by(client_of(stub_of()), *(item(at, "x") for at in range(len(grades))))
    rows = tuple(
        dataclasses.replace(row, scores={**row.scores, "FLUENCY": grade})
        for row, grade in zip(found.rows, grades, strict=True)
    )
    column = columns(dataclasses.replace(found, rows=rows))["forget"]["FLUENCY"]
    names = ["mean", "std", "median", "min", "max"]
    wanted = pandas.Series(grades).agg(names)
    assert [getattr(column, name) for name in names] == pytest.approx(list(wanted))
    if len(grades) == 3:
        assert (column.ci95, column.ci95_why) == (None, "3 authors: no interval")
    else:
        assert 0 < column.ci95[0] < 8.75 < column.ci95[1] < 10
