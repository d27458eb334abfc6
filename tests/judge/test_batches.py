import json
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest
from support.judge_server import Answer

from lensaudit.errors import InputError, WorkError
from lensaudit.judge import transport
from lensaudit.judge.batches import (
    STATE,
    batch_job,
    cancel_job,
    read_state,
    shards,
)
from lensaudit.judge.calls import Reply, Spent
from lensaudit.judge.endpoint import Endpoint
from lensaudit.judge.jobs import run_job
from lensaudit.judge.settings import BatchSettings, LogSettings
from lensaudit.judge.transport import EndpointError
from lensaudit.results.manifest import BEGUN


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [
        {
            "idx": idx,
            "context": "forget" if idx < 4 else "forget2",
            "question": f"Q{idx}?",
            "answer": f"It is town {idx}.",
            "generation": f"town {idx} it is\u2028 {'so ' * idx}",
        }
        for idx in range(7)
    ]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


@pytest.fixture
def job_on(log, tmp_path):
    """A factory of jobs on a stub; one folder and one cache per test."""

    def make(stub, **options):
        wanted = {"cache": tmp_path / "answers.sqlite", "retries": 0, "out": tmp_path / "out"}
        return LogSettings(log=log, model="stub-judge", base_url=stub.url, **wanted | options)

    return make


def submissions(stub) -> int:
    return stub.paths.count("POST /v1/batches")


def to_the_end(job, *, resubmit=False, **options):
    """The findings, once no batch is open."""
    how = BatchSettings(wait=True, poll_s=0.0, resubmit=resubmit)
    return batch_job(job, how=how, **options)[0]


def test_a_batch_goes_through_its_states_and_gives_what_online_calls_give(
    stub_of, job_on, tmp_path
):
    stub = stub_of()
    job = job_on(stub)
    found, _, submitted = batch_job(job)
    assert (found, submitted) == (None, 7)
    states = []
    while found is None:
        found, lines, _ = batch_job(job)
        states += lines
    assert [line.split(": ")[1] for line in states] == ["in_progress (0/0)", "finalizing (0/0)"]
    assert submissions(stub) == 1
    n_chats = len(stub.chats)
    online = job_on(stub, cache=tmp_path / "other.sqlite", out=tmp_path / "online")
    assert run_job(online).rows == found.rows
    assert len(stub.chats) > n_chats  # the pair: online really asked


def test_a_result_file_without_end_is_left(stub_of, job_on, monkeypatch):
    stub = stub_of()
    job = job_on(stub)
    monkeypatch.setattr(transport, "MOST_FILE_BYTES", 2**20)
    batch_job(job)
    stub.filing.content = lambda file_id: Answer(200, b"x" * (2**20 + 1))
    with pytest.raises(EndpointError, match="sends more than 1 MB in one answer"):
        to_the_end(job)


def test_lines_in_the_error_file_are_rows_with_a_reason(stub_of, job_on):
    stub = stub_of(n_batch_errors=2)
    found = to_the_end(job_on(stub))
    assert found.status == {"api_error": 2, "ok": 5}
    reasons = [row.reason for row in found.rows if row.status == "api_error"]
    assert all("context_length_exceeded" in reason for reason in reasons)
    assert batch_job(job_on(stub))[0].rows == found.rows
    assert submissions(stub) == 1
    stub.filing.n_errors = 0
    assert to_the_end(job_on(stub), resubmit=True).status == {"ok": 7}
    assert stub.filing.files["file-4"].count(b"\n") == 2  # only what was missing


@pytest.mark.parametrize("end", ["expired", "cancelled"])
def test_half_a_batch_is_kept_and_only_the_rest_sent_again(stub_of, job_on, end):
    stub = stub_of(batch_end=end)
    found = to_the_end(job_on(stub))
    assert found.status == {"api_error": 4, "ok": 3}
    assert {r.reason for r in found.rows if r.reason} == {
        f"its batch is {end} without an answer; run again with --resubmit"
    }
    stub.filing.end = "completed"
    assert batch_job(job_on(stub))[0].status == {"api_error": 4, "ok": 3}  # not by itself
    assert to_the_end(job_on(stub), resubmit=True).status == {"ok": 7}
    last = max(stub.filing.batches.values(), key=lambda batch: batch["id"])
    assert stub.filing.files[last["input_file_id"]].count(b"\n") == 4


def test_what_fails_again_when_sent_again_is_not_sent_a_third_time(stub_of, job_on):
    stub = stub_of(batch_end="failed")
    assert "token_limit_exceeded" in to_the_end(job_on(stub)).rows[0].reason
    looks = []

    def tell(line):
        looks.append(line)
        assert len(looks) < 20, "waits without end"

    found = to_the_end(job_on(stub), resubmit=True, tell=tell)
    assert found.status == {"api_error": 7}
    assert looks
    assert submissions(stub) == 2


def test_a_cancelled_batch_is_collected(stub_of, job_on, tmp_path):
    stub = stub_of()
    job = job_on(stub)
    batch_job(job)
    assert cancel_job(job, tmp_path / "out") == ("batch-1: cancelled",)
    assert batch_job(job)[0].status == {"api_error": 4, "ok": 3}


def test_bad_replies_are_repaired_in_a_second_batch(stub_of, job_on):
    stub = stub_of()
    job = job_on(stub)
    batch_job(job)
    stub._queue.extend(["bad-json", "bad-json"])
    found = to_the_end(job)
    assert found.status == {"ok": 7}
    assert sum(row.evidence["repaired"] for row in found.rows) == 2
    assert submissions(stub) == 2


def test_the_state_belongs_to_what_was_sent(stub_of, job_on, log):
    stub = stub_of()
    batch_job(job_on(stub))
    rows = log.read_text().replace("Q3?", "Q33?")
    log.write_text(rows)
    with pytest.raises(InputError, match=r"holds the result of another run \(items: "):
        batch_job(job_on(stub))
    with pytest.raises(InputError, match=f"{STATE}: is about other requests"):
        batch_job(job_on(stub, force=True))
    assert submissions(stub) == 1


def test_batches_that_an_earlier_version_sent_through_a_gateway_are_collected(
    stub_of, job_on, monkeypatch
):
    """It named the server by host and port alone, in every custom_id and in the plan.

    Its mark says whose the folder is, and no more.
    """
    stub = stub_of(n_batch_errors=2)
    job = job_on(stub)
    batch_job(job)
    stub._queue.append("bad-json")
    while submissions(stub) == 1:  # the second repairs what was no JSON
        batch_job(job)
    stub.filing.n_errors = 0
    old = read_state(job.out)
    assert ([one.collected for one in old.sent], len(old.failed)) == ([True, False], 2)
    (job.out / STATE).write_text(json.dumps(asdict(replace(old, spent=Spent()))))
    (job.out / BEGUN).write_text(json.dumps({"command": "judge"}))
    n_chats = len(stub.chats)
    monkeypatch.setattr(Endpoint, "host", property(lambda one: f"{one.netloc}/api/v1"))
    found = to_the_end(job)
    n_probes = len(stub.chats) - n_chats
    assert found.status == {"api_error": 2, "ok": 5}
    assert sum(row.evidence.get("repaired", False) for row in found.rows) == 1
    assert all("context_length" in row.reason for row in found.rows if row.status != "ok")
    assert (found.record.calls["asked"], submissions(stub)) == (8 + n_probes, 2)
    assert read_state(job.out).host == f"{old.host}/api/v1"
    assert batch_job(job)[0].rows == found.rows


def test_a_request_file_that_was_changed_is_noticed(stub_of, job_on, tmp_path):
    stub = stub_of()
    to_the_end(job_on(stub))
    path = tmp_path / "out" / "batch-requests-1.jsonl"
    path.write_text(path.read_text().replace("Q3", "Q4"))
    with pytest.raises(WorkError, match="is not the file that was sent"):
        batch_job(job_on(stub))


@pytest.mark.parametrize("text", ["{}", "[]", '{"schema": "judge-batch/9"}', "no json"])
def test_a_file_that_is_no_state_is_refused(tmp_path, text):
    (tmp_path / STATE).write_text(text)
    with pytest.raises(InputError, match=STATE):
        read_state(tmp_path)


def test_a_kill_between_upload_and_batch_sends_nothing_twice(stub_of, job_on, monkeypatch):
    stub = stub_of()
    job = job_on(stub)
    real = EndpointError("killed")

    def killed(*args):
        raise real

    with monkeypatch.context() as patch:
        patch.setattr("lensaudit.judge.transport.Transport.create_batch", killed)
        with pytest.raises(EndpointError, match="killed"):
            batch_job(job)
    assert read_state(job.out).sent[0].batch_id is None
    assert to_the_end(job).status == {"ok": 7}
    assert stub.paths.count("POST /v1/files") == 1


def test_a_kill_after_the_batch_was_created_finds_it_again(stub_of, job_on, monkeypatch):
    stub = stub_of()
    job = job_on(stub)
    batch_job(job)
    state = json.loads((job.out / STATE).read_text())
    state["sent"][0] |= {"batch_id": None, "status": "uploaded"}
    (job.out / STATE).write_text(json.dumps(state))
    assert to_the_end(job).status == {"ok": 7}
    assert submissions(stub) == 1


def test_a_budget_is_checked_before_anything_is_uploaded(stub_of, job_on, client_of):
    stub = stub_of()
    client_of(stub).capability()
    with pytest.raises(InputError, match=r"nothing was sent: --max-calls 6 .* request 7 of 7"):
        batch_job(job_on(stub, max_calls=6))
    assert "POST /v1/files" not in stub.paths


def test_what_batches_used_is_counted_whoever_collects_them(stub_of, job_on, client_of, tmp_path):
    stub = stub_of(n_batch_errors=2)
    job = job_on(stub, price_in=2.0, price_out=8.0, max_calls=7)
    client_of(stub).capability()
    batch_job(job)
    stub._queue.append("no-usage")
    while (found := batch_job(job)[0]) is None:  # each time as a process of its own
        pass
    replies = [one for one in found.found.values() if isinstance(one, Reply)]
    spent = found.record.spent
    used = sum((one.usage for one in replies if one.usage), Spent())
    assert found.record.calls == {"asked": 7, "cached": 0, "failed": 2}
    assert (len(replies), spent["n_estimated"]) == (5, 1)
    assert spent["tokens_in"] > used.tokens_in > 0
    assert spent["cost"] == pytest.approx((spent["tokens_in"] * 2 + spent["tokens_out"] * 8) / 1e6)
    assert batch_job(job)[0].record.spent == spent
    # what was used counts for the cap
    with pytest.raises(InputError, match=r"nothing was sent: --max-calls 7 .* request 1 of 2"):
        to_the_end(job, resubmit=True)
    whole = to_the_end(replace(job, max_calls=9), resubmit=True).record
    assert whole.calls == {"asked": 9, "cached": 0, "failed": 4}
    client_of(stub, cache=tmp_path / "other.sqlite").capability()
    other = replace(job, out=tmp_path / "other", cache=tmp_path / "other.sqlite")
    stub._queue.append("no-usage")
    assert to_the_end(other).record.spent == spent


def test_a_server_without_batches_is_one_line(stub_of, job_on):
    with pytest.raises(EndpointError, match="no batches at all") as error:
        batch_job(job_on(stub_of(batches=False)))
    assert "lensaudit judge run" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_what_online_calls_answered_is_not_sent_again(stub_of, job_on):
    stub = stub_of()
    run_job(job_on(stub))
    assert batch_job(job_on(stub))[0].status == {"ok": 7}
    assert submissions(stub) == 0


def test_line_separators_inside_answers_end_no_line_and_a_torn_line_is_passed_over(stub_of, job_on):
    stub = stub_of()
    told, content = stub.filing.answer, stub.filing.content

    def separated(body):
        said = json.loads(told(body).body)
        said["choices"][0]["message"]["content"] += "\u2028"
        return Answer(200, json.dumps(said).encode())

    def raw(file_id):
        rows = [json.loads(line) for line in content(file_id).body.decode().split("\n") if line]
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        return Answer(200, "\n".join([*lines, '{"torn', "7"]).encode())

    stub.filing.answer, stub.filing.content = separated, raw
    assert to_the_end(job_on(stub)).status == {"ok": 7}


def test_files_stay_within_what_servers_take(stub_of, job_on, monkeypatch):
    monkeypatch.setattr("lensaudit.judge.batches.MAX_LINES", 3)
    with monkeypatch.context() as patch:
        patch.setattr("lensaudit.judge.batches.MAX_BYTES", 10)
        parts = shards([b"a\n"] * 4 + [b"1234567\n"] * 2 + [b"longer than all\n"])
    assert parts == [b"a\n" * 3, b"a\n1234567\n", b"1234567\n", b"longer than all\n"]
    assert shards([]) == []
    stub = stub_of()
    assert to_the_end(job_on(stub)).status == {"ok": 7}
    assert submissions(stub) == 3


def test_a_servers_ids_are_no_paths_and_no_terminal_codes(stub_of, job_on, tmp_path):
    stub = stub_of()
    stub.filing.prefix = "../../\x1b[31mx"
    assert "\x1b" not in batch_job(job_on(stub))[1][0]
    assert to_the_end(job_on(stub)).status == {"ok": 7}
    assert len(list((tmp_path / "out").glob("*output.jsonl"))) == 1


def test_two_answers_to_one_call_are_an_error(stub_of, job_on):
    stub = stub_of()
    keep = stub.filing._keep
    stub.filing._keep = lambda rows: keep([*rows, rows[0]])
    with pytest.raises(WorkError, match="occurs twice"):
        to_the_end(job_on(stub))


def test_rows_with_the_same_texts_are_one_request(stub_of, job_on, log):
    row = {"idx": 0, "question": "Q?", "answer": "A.", "generation": "A."}
    log.write_text("".join(json.dumps(row | {"idx": idx}) + "\n" for idx in range(3)))
    stub = stub_of()
    assert (batch_job(job_on(stub))[2], stub.filing.files["file-1"].count(b"\n")) == (1, 1)
    assert to_the_end(job_on(stub)).status == {"ok": 3}


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("status", "done", "the state of a batch is 'done', which is not a known one"),
        ("status", None, "describes no batch"),
        ("id", 7, "describes no batch"),
        ("request_counts", "all", "describes no batch"),
        ("errors", ["bad"], "describes no batch"),
    ],
)
def test_a_batch_that_makes_no_sense_is_one_line_and_not_waited_for(
    stub_of, job_on, part, value, said
):
    stub = stub_of()
    describe = stub.filing._entry
    stub.filing._entry = lambda batch: {**describe(batch), part: value}
    with pytest.raises(EndpointError, match=said) as error:
        batch_job(job_on(stub))
    assert len(str(error.value).splitlines()) == 1


KILLED = """
import sys
from pathlib import Path
from lensaudit.judge.jobs import run_job
from lensaudit.judge.settings import LogSettings
url, log, folder = sys.argv[1:]
cache, out = Path(folder) / "answers.sqlite", Path(folder) / "out"
settings = LogSettings(
    log=Path(log), model="stub-judge", base_url=url, cache=cache, concurrency=1, out=out
)
def progress(at):
    print(at.done, flush=True)
run_job(settings, progress)
"""


def stopped_after_three(stub, log, tmp_path, signal: int) -> int:
    """Start a run of 7 calls in another process, stop it after 3; its exit code."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, stub.url, str(log), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    while process.stdout.readline().strip() != "3":
        assert process.poll() is None
    time.sleep(0.05)  # the next call is in flight
    process.send_signal(signal)
    return process.wait(30)


def test_a_killed_run_pays_for_nothing_twice(stub_of, job_on, log, tmp_path):
    stub = stub_of(delay_s=0.05)
    stopped_after_three(stub, log, tmp_path, 9)
    before = {str(chat["messages"]) for chat in stub.chats[:-1]}  # the last may be in flight
    n_asked = len(stub.chats)
    found = run_job(job_on(stub))
    assert found.status == {"ok": 7}
    after = {str(chat["messages"]) for chat in stub.chats[n_asked:]}
    assert after
    assert before & after == set()
    assert found.client.n_cached >= 3


def test_an_interrupted_run_waits_for_what_is_in_flight(stub_of, job_on, log, tmp_path):
    stub = stub_of(delay_s=0.15)
    assert stopped_after_three(stub, log, tmp_path, 2) != 0
    assert 3 <= len(rubric_calls(stub)) <= 4  # the one in flight ended, no other was begun
    assert run_job(job_on(stub)).status == {"ok": 7}
    assert len(rubric_calls(stub)) == 7


def rubric_calls(stub) -> list:
    return [chat for chat in stub.chats if "Reply with" not in str(chat["messages"])]
