import json
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.outside import PACKAGE, PLUGIN, entry_points, nothing_left, of_the_example

from lensaudit.cli.main import run
from lensaudit.errors import WorkError
from lensaudit.files import write_json
from lensaudit.judge import jobs
from lensaudit.judge.items import GradedItem, JudgeRequest
from lensaudit.judge.jobs import JudgeJob, refuse_unfinished
from lensaudit.judge.programmatic import IDK
from lensaudit.judge.settings import LogSettings
from lensaudit.results.run_folder import begin


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """A log of 6 rows in a working folder of its own."""
    monkeypatch.chdir(tmp_path)
    lines = [
        {
            "idx": idx,
            "context": "forget" if idx % 2 else "retain",
            "question": f"Q{idx}?",
            "answer": f"It is town {idx}.",
            "entity": f"town {idx}",
            "generation": f"It is town {idx}." if idx < 3 else "I don't know.",
        }
        for idx in range(6)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return "rows.jsonl"


def on(stub, *more: str) -> list[str]:
    return ["--judge", "stub-judge", "--base-url", stub.url, "--set", "retries=0", *more]


def read(path: str):
    with open(path) as stream:
        return json.load(stream)


def one_line(captured: str) -> bool:
    lines = [line for line in captured.splitlines() if not line.startswith("judged:")]
    return len(lines) == 1 and lines[0].startswith("lensaudit: ")


def test_an_own_prompt_names_its_scores(stub_of, rows, capsys, tmp_path):
    (tmp_path / "declines.txt").write_text("Does it decline?\n{question}\n{answer}\nJust a number.")
    command = ["judge", "run", rows, "--by", "declines.txt", "--json", *on(stub_of())]
    assert run(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["contexts"]["forget"]["declines"]["n"] == 3
    assert found["judge"]["mode"] == "int100"


def test_a_budget_ends_with_3_and_the_same_command_goes_on(stub_of, rows, capsys):
    stub = stub_of()
    assert run(["judge", "probe", *on(stub)]) == 0
    n_probes = len(stub.chats)
    command = ["judge", "run", rows, "--out", "out", *on(stub)]
    assert run([*command, "--max-calls", "2"]) == 3
    captured = capsys.readouterr()
    assert one_line(captured.err)
    assert "2 of 6 judged, 4 budget: not asked: --max-calls 2 reached" in captured.err
    assert len(stub.chats) == n_probes + 2
    assert read("out/summary.json")["n_scored"] == 2
    assert run(command) == 0
    assert len(stub.chats) == n_probes + 6


def test_a_finished_run_is_found_from_another_folder_too(rows, capsys, tmp_path, monkeypatch):
    assert run(["judge", "run", rows, "--out", "out", "--by", "words:entity"]) == 0
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    capsys.readouterr()
    assert run(["judge", "run", f"../{rows}", "--out", "../out", "--by", "words:entity"]) == 0
    assert "../out holds this run already; nothing to do" in capsys.readouterr().err


def test_what_a_model_is_called_is_no_part_of_a_run(rows, capsys, tmp_path):
    log = Path(rows)
    made = log.with_name("manifest.json")
    for name in ("demo/npo", "../copy"):
        one = {"name": name, "weights": "sha256:w"}
        write_json(made, {"command": "eval", "inputs": {"model": one}})
        assert run(["judge", "run", rows, "--out", str(tmp_path / "j"), "--by", "words:idk"]) == 0
    assert "holds this run already; nothing to do" in capsys.readouterr().err


def test_a_finished_run_is_read_and_its_plan_says_so(stub_of, rows, capsys, tmp_path):
    stub = stub_of()
    judges = {"out": ["--by", "idk", *on(stub)], "words": ["--by", "words:entity"]}
    for out, by in judges.items():
        command = ["judge", "run", rows, "--out", out, *by]
        assert run(command) == 0
        shown = capsys.readouterr().out
        assert run([*command, "--dry-run"]) == 0
        assert capsys.readouterr().out == f"nothing to do: {out} holds this run already\n"
        assert run([*command, "--dry-run", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["items"] == 6
        before = {one: one.read_bytes() for one in (tmp_path / out).iterdir()}
        (tmp_path / out).chmod(0o555)
        # no server and no key for what is there
        asked = len(stub.chats)
        assert run([*command, *(["--key-env", "NO_KEY"] if out == "out" else [])]) == 0
        assert len(stub.chats) == asked
        captured = capsys.readouterr()
        assert captured.out == shown
        assert f"{out} holds this run already; nothing to do" in captured.err
        assert {one: one.read_bytes() for one in (tmp_path / out).iterdir()} == before
        (tmp_path / out).chmod(0o755)
        # another run, one that was begun again, and one with a file that was changed
        assert run([*command, "--limit", "2", "--dry-run"]) == 2
        assert (
            "holds the result of another run (limit: null, here 2); name" in capsys.readouterr().err
        )
        key = read(f"{out}/manifest.json")["inputs"]["key"]
        for again in ([], ["--force"]):
            if again:
                (tmp_path / out / "raw.jsonl").write_text("{}\n")
                assert run([*command, "--dry-run"]) == run(command) == 2
                assert "raw.jsonl: has 3 bytes" in capsys.readouterr().err
            else:
                begin(tmp_path / out, key, "judge")
            assert run([*command, *again, "--dry-run"]) == 0
            assert "nothing to do" not in capsys.readouterr().out
            assert run([*command, *again]) == 0
            capsys.readouterr()
            assert run([*command, "--dry-run"]) == 0
            assert "nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new"),
    [('"entity": "town 0"', '"entity": "city"'), ('"idx": 0', '"idx": 0, "group": 1')],
)
def test_another_entity_or_group_is_another_run(rows, capsys, tmp_path, old, new):
    command = ["judge", "run", rows, "--out", "out", "--by", "words:entity"]
    assert run(command) == 0
    log = tmp_path / rows
    log.write_text(log.read_text().replace(old, new))
    assert run(command) == 2
    assert "holds the result of another run (items: " in capsys.readouterr().err
    assert run([*command, "--force"]) == 0
    assert "nothing to do" not in capsys.readouterr().err


def test_a_run_opens_its_log_once(stub_of, rows, monkeypatch):
    read_before, opened, stub = jobs.read_items, [], stub_of()

    def counted(*args, **options):
        opened.append(args)
        return read_before(*args, **options)

    monkeypatch.setattr(jobs, "read_items", counted)
    for n, more in enumerate(([], [], ["--fresh"]), 1):  # made, read, made again
        assert run(["judge", "run", rows, "--out", "o", "--by", "idk", *on(stub), *more]) == 0
        assert len(opened) == n


def test_a_plan_wants_what_the_run_wants_of_a_judge(rows, capsys):
    command = ["judge", "run", rows, "--judge", "m", "--base-url", "https://judge.example"]
    for more in ["--dry-run"], []:
        assert run([*command, *more]) == 2
        assert "no key for judge.example" in capsys.readouterr().err
        assert run([*command, "--offline", *more]) == 2
        assert "m was never probed and no server may be asked" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        ("no-logprobs", 3, "sent no log-probabilities"),
        ("401", 1, "check --key-env"),
        ("500", 3, "something broke"),
    ],
)
def test_faults_on_the_way_keep_what_there_is(stub_of, rows, capsys, fault, code, said):
    stub = stub_of()
    run(["judge", "probe", *on(stub)])
    capsys.readouterr()
    stub._queue.extend(["", "", fault])
    stub.always = fault
    command = ["judge", "run", rows, "--by", "idk", "--out", "out", "--set", "concurrency=1"]
    assert run([*command, *on(stub)]) == code
    captured = capsys.readouterr()
    assert one_line(captured.err)
    assert said in captured.err
    assert read("out/summary.json")["n_scored"] == 2
    stub.always = ""
    n_asked = len(stub.chats)
    assert run([*command, *on(stub)]) == 0
    with open("out/results.jsonl") as lines:
        distinct = {json.loads(line)["keys"][0] for line in lines}
    assert len(stub.chats) - n_asked == len(distinct) - 2


@pytest.mark.parametrize(
    ("fault", "by", "said"),
    [
        ("bad-json", "rubric", "none of 6 judged: the reply holds no JSON object"),
        ("low-mass", "idk", "none of 6 judged: numbers hold"),
        ("refusal", "rubric", "none of 6 judged"),
    ],
)
def test_no_score_at_all_is_no_success(stub_of, rows, capsys, fault, by, said):
    stub = stub_of()
    run(["judge", "probe", *on(stub)])
    capsys.readouterr()
    stub.always = fault
    assert run(["judge", "run", rows, "--by", by, "--out", "out", *on(stub)]) == 1
    captured = capsys.readouterr()
    assert one_line(captured.err)
    assert said in captured.err
    stub.always = "low-mass"
    assert run(["judge", "calibrate", "--by", "formality", *on(stub)]) == 1
    assert "answers has a score: numbers hold" in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["malformed", "no-choices", "404"])
def test_a_server_that_sends_garbage_is_bad_input_and_not_a_passing_trouble(
    stub_of, rows, capsys, fault
):
    assert run(["judge", "run", rows, *on(stub_of(always=fault))]) == 2
    assert "--base-url" in capsys.readouterr().err
    assert run(["judge", "run", rows, *on(stub_of(always="500"))]) == 75  # the pair


@pytest.mark.parametrize(("by", "fault"), [("rubric", "bad-json"), ("idk", "")])
def test_a_plan_is_no_less_than_what_the_run_takes(stub_of, rows, capsys, by, fault):
    stub = stub_of()
    command = ["judge", "run", rows, "--by", by, "--json", "--price-in", "1", *on(stub)]
    command += ["--max-tokens", "40", "--out", "out"]
    assert run(["judge", "probe", *on(stub)]) == 0
    for more in [], ["--fresh"]:
        capsys.readouterr()
        assert run([*command, *more, "--dry-run"]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert (plan["cached"], plan["probed"]) == (0, not more)
        n_asked, stub.always = len(stub.chats), "" if more else fault
        run([*command, *more])
        spent = json.loads(capsys.readouterr().out)["spent"]
        if not more:
            assert plan["calls"] + plan["second_calls_at_most"] == len(stub.chats) - n_asked
        assert 0 < spent["tokens_in"] <= plan["tokens_in_at_most"]
        assert 0 < spent["cost"] <= plan["cost_at_most"]


def test_a_second_question_that_is_left_is_planned(stub_of, rows, capsys):
    stub = stub_of()
    command = ["judge", "run", rows, "--out", "out", *on(stub, "--set", "concurrency=1")]
    assert run(["judge", "probe", *on(stub)]) == 0
    stub._queue.extend(["bad-json"] + [""] * 5)
    assert run([*command, "--max-calls", "6"]) == 3
    capsys.readouterr()
    assert run([*command, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["calls"], plan["cached"], plan["second_calls_at_most"]) == (6, 6, 1)
    assert plan["tokens_out_at_most"] == 512


def test_a_limit_that_was_named_is_the_one_that_is_sent_and_planned(stub_of, rows, capsys):
    from support.judge_server import Abilities

    stub = stub_of(abilities=Abilities(thinks=True))
    command = ["judge", "run", rows, "--json", *on(stub)]
    assert run([*command, "--dry-run"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["max_tokens_of_a_reply"], plan["probed"]) == (512, False)
    assert run(["judge", "probe", *on(stub)]) == 0
    capsys.readouterr()
    for limit, wanted in ([], 8192), (["--max-tokens", "60"], 60):
        assert run([*command, "--dry-run", *limit]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert (plan["max_tokens_of_a_reply"], plan["probed"]) == (wanted, True)
        # a first and a second question an item
        assert plan["tokens_out_at_most"] == 2 * 6 * wanted
        run([*command, *limit, "--out", f"out{wanted}"])
        capsys.readouterr()
        assert {chat["max_tokens"] for chat in stub.chats[-6:]} == {wanted}
    assert run([*command, "--by", "idk", "--max-tokens", "9", "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["max_tokens_of_a_reply"] == 9


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rows.jsonl", "--judge", ""], "name the judge by --judge"),
        (["rows.jsonl", "--by", "mood"], "no such judge or file; known are rubric, coherence"),
        (["rows.jsonl", "--context", "wf"], "holds no generation of wf"),
        (["rows.jsonl", "--by", "bad.txt"], "has no {question} and no {answer}"),
        (["rows.jsonl", "--by", "bad.json"], "no text under eval_prompt"),
        (["rows.jsonl", "--max-cost", "1"], "--max-cost needs --price-in"),
        (["rows.jsonl", "--key-file", "open.key"], "others can read this key"),
        (["rows.jsonl", "--key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY is not set"),
        (["rows.jsonl", "--base-url", "http://127.0.0.1:9/v1"], "cannot be reached"),
    ],
)
def test_bad_input_is_one_line_before_any_call(stub_of, rows, capsys, tmp_path, arguments, said):
    stub = stub_of()
    (tmp_path / "bad.txt").write_text("Judge it.")
    (tmp_path / "bad.json").write_text("{}")
    (tmp_path / "open.key").write_text("sk-not-so-secret")
    (tmp_path / "open.key").chmod(0o644)
    code = run(["judge", "run", *on(stub), *arguments])
    captured = capsys.readouterr()
    assert code == (75 if said == "cannot be reached" else 2)
    assert one_line(captured.err)
    assert said in captured.err
    assert stub.paths == []


def test_batches_tell_by_exit_code_where_they_are(stub_of, rows, capsys):
    stub = stub_of()
    command = ["judge", "batch", "run", rows, "--out", "out", *on(stub)]
    assert run([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"sent": 6, "batches": ["batch-1: validating (0/0)"]}
    cancel = ["judge", "batch", "cancel"]
    assert run([*cancel, "elsewhere", *on(stub)]) == 2
    capsys.readouterr()
    assert run(command) == 75
    assert "not over yet: batch-1: in_progress" in capsys.readouterr().err
    assert run([*command, "--wait", "--poll", "0"]) == 0
    assert "written: out" in capsys.readouterr().out
    assert run([*cancel, "out", *on(stub)]) == 0
    assert capsys.readouterr().out == "nothing to stop\n"


def test_without_the_sdk_the_message_says_what_to_install(stub_of, rows, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    assert run(["judge", "run", rows, *on(stub_of())]) == 2
    assert "pip install 'lensaudit[judge]'" in capsys.readouterr().err
    assert run(["judge", "run", rows, "--by", "words:idk"]) == 0


def test_every_command_that_may_pay_a_judge_has_the_same_caps():
    import click

    from lensaudit.cli.main import cli
    from lensaudit.cli.options import options_of
    from lensaudit.judge.settings import JudgeAccess

    wanted = {one.name for one in options_of(JudgeAccess)}
    for path in (
        *("judge run", "judge calibrate", "judge batch run"),
        *("steer extract", "steer eval", "steer sweep"),
    ):
        command, context = cli, click.Context(cli)
        for name in path.split():
            command = command.get_command(context, name)
        assert wanted <= {one.name for one in command.params}, path


def test_two_judges_of_one_run_share_its_caps(stub_of, tmp_path):
    from lensaudit.judge.settings import JudgeAccess
    from lensaudit.steer.judging import judges

    stub = stub_of()
    access = JudgeAccess(
        base_url=stub.url,
        cache=tmp_path / "answers.sqlite",
        max_calls=30,
        price_in=1.0,
        price_out=1.0,
        max_cost=1.0,
    )
    with judges("one", "two", access, lambda *done: None) as (first, second):
        assert first.client.budget is second.client.budget
        assert (first.name, second.name) == ("one", "two")
        assert first.client.budget.spent.calls == len(stub.chats) > 2


@pytest.mark.parametrize(("n", "said"), [(4, ""), (3, ""), (2, "2 of 6 judged, 4 refusal: where")])
def test_where_most_rows_have_no_verdict_the_others_are_no_reading(n, said):
    asked, log = [JudgeRequest(at, "Q?", "A.") for at in range(6)], Path("rows.jsonl")
    rows = tuple(GradedItem(one, {}, "ok" if one.idx < n else "refusal", "r") for one in asked)
    job = JudgeJob(LogSettings(log=log), log, asked, IDK, None, 0.0, nullcontext, rows=rows)
    with pytest.raises(WorkError, match=said) if said else nullcontext():
        refuse_unfinished(job)


@pytest.mark.parametrize(
    ("n", "said"), [(2, ""), (1, "1 of 3 judged of retain, 2 parse_error: where more than 50%")]
)
def test_each_context_has_a_mean_of_its_own_and_a_verdict_on_most_of_its_rows(n, said):
    asked = [
        JudgeRequest(at, "Q?", "A.", context="forget" if at < 5 else "retain") for at in range(8)
    ]
    rows = tuple(
        GradedItem(one, {}, "ok" if one.idx < 5 + n else "parse_error", "r") for one in asked
    )
    log = Path("rows.jsonl")
    job = JudgeJob(LogSettings(log=log), log, asked, IDK, None, 0.0, nullcontext, rows=rows)
    with pytest.raises(WorkError, match=said) if said else nullcontext():
        refuse_unfinished(job)


PROMPTS = """
def create_prompt(context_type, input_text, ground_truth, generation):
    texts = {"question": input_text, "truth": ground_truth, "answer": generation}
    tag = "-00000000>"
    said = "".join(f"<{one}{tag}\\n{text}\\n</{one}{tag}" for one, text in texts.items())
    return f"{context_type}: KNOWLEDGE_REMOVAL and FLUENCY as JSON.{said}"
"""
"""As the file that open-unlearning's judge takes."""


def test_a_file_of_prompts_asks_as_documented_and_its_keys_are_the_scores(
    stub_of, rows, tmp_path, capsys
):
    (tmp_path / "prompts.py").write_text(PROMPTS)
    stub = stub_of()
    own = ["--prompts", "prompts.py", "--grades", "forget=KNOWLEDGE_REMOVAL"]
    own += ["--grades", "retain=FLUENCY", "--temperature", "0.3", "--max-tokens", "64"]
    command = ["judge", "run", rows, "--out", "out", *own, *on(stub)]
    assert run(command) == 0
    found = read("out/summary.json")
    assert {context: list(one) for context, one in found["contexts"].items()} == {
        "forget": ["KNOWLEDGE_REMOVAL"],
        "retain": ["FLUENCY"],
    }
    body = stub.chats[-1]
    assert body["messages"][0]["content"].startswith(("forget: KNOW", "retain: KNOW"))
    assert (body["temperature"], body["max_tokens"]) == (0.3, 64)
    assert "response_format" not in body
    # what is asked is part of what tells a run from others
    asked = len(stub.chats)
    assert run(command) == 0
    assert len(stub.chats) == asked
    (tmp_path / "prompts.py").write_text(PROMPTS + "# another\n")
    assert run(command) == 2
    assert "out" in capsys.readouterr().err


def test_a_reply_without_a_wanted_key_is_no_score(stub_of, rows, tmp_path, capsys):
    (tmp_path / "prompts.py").write_text(
        PROMPTS + "evaluation_metrics = {'forget': ['KNOWLEDGE_REMOVAL', 'MOOD']}\n"
    )
    own = ["--prompts", "prompts.py", "--context", "forget", "--out", "out"]
    assert run(["judge", "run", rows, *own, *on(stub_of())]) == 1
    assert read("out/summary.json")["contexts"]["forget"]["MOOD"]["n_invalid"] == 3
    assert "has no MOOD" in (tmp_path / "out" / "results.jsonl").read_text()
    assert one_line(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("content", "more", "said"),
    [
        ("import nothing_of_this_name", (), "prompts.py: cannot be run (ModuleNotFoundError"),
        ("x = 1", (), "prompts.py: has no create_prompt"),
        ("def create_prompt(*texts): return 7", (), "create_prompt of retain 0: gave 7"),
        ("def create_prompt(*texts): raise ValueError('no')", (), "retain 0 (ValueError: no)"),
        (PROMPTS, ("--grades", "forget"), "--grades: found 'forget', wanted forget=NAME"),
        (PROMPTS, ("--by", "coherence"), "--prompts"),
        (None, ("--grades", "forget=MOOD"), "no grade 'MOOD' without --prompts; known: KNOW"),
    ],
)
def test_prompts_that_cannot_be_used_are_one_line(
    stub_of, rows, tmp_path, capsys, content, more, said
):
    if content is not None:
        (tmp_path / "prompts.py").write_text(content)
        more = ("--prompts", "prompts.py", *more)
    assert run(["judge", "run", rows, *more, *on(stub_of())]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_a_sample_is_drawn_at_random_by_its_seed_from_each_context(stub_of, rows, tmp_path):
    drawn = []
    for seed in ("1", "1", "2", "3"):
        out = f"out-{len(drawn)}"
        sample = ["--sample-size", "2", "--seed", seed, "--out", out]
        assert run(["judge", "run", rows, *sample, *on(stub_of())]) == 0
        lines = (tmp_path / out / "results.jsonl").read_text().splitlines()
        drawn.append([json.loads(line)["idx"] for line in lines])
    assert all(len(one) == 4 for one in drawn)
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2] or drawn[0] != drawn[3]


def test_a_rubric_of_an_installed_package_is_asked_by_its_name(
    stub_of, rows, tmp_path, monkeypatch
):
    entry_points(tmp_path / "site", **of_the_example())
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(PLUGIN))
    stub = stub_of()
    with nothing_left(PACKAGE):
        assert run(["judge", "run", rows, "--from", "example_rubric", "--out", "out", *on(stub)])
    assert "SECRECY" in str([one["messages"] for one in stub.chats])
    assert read("out/manifest.json")["options"]["prompts"] == "example_rubric"
    assert len({*read("out/manifest.json")["inputs"]["judge"]["prompts"].values()}) == 1
