"""`lensaudit know` of a model behind an address: as of the model itself, and refused in words."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from support import EMBEDDED
from support.judge_server import Answer
from support.served_model import ServedModel

import lensaudit as la
from lensaudit.association.address import ANSWER_TOKENS, forms_of, served_at
from lensaudit.association.exchange import NotRead, calls_of, heard_from, log_shares
from lensaudit.association.reading import prompts_of
from lensaudit.association.replies import NotItsReply, check_echo
from lensaudit.association.settings import KnowSettings
from lensaudit.cli.main import run
from lensaudit.data.relations import relations_of

WHAT = ["--data", "rows.json", "--placebos", "0", "--activations", "a"]
CHAT = "{% for one in messages %}{{ one['role'] }}: {{ one['content'] }}\n{% endfor %}"


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def rows():
    """The facts of one relation: 8 subjects, 11 invented ones and 2 wordings."""
    kept = [one for one in la.forget_set("demo") if one.relation == "birthplace"]
    fields = ("idx", "question", "answer", "prefix", "entity", "group", "relation")
    return json.dumps([{name: getattr(one, name) for name in fields} for one in kept])


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.json").write_text(rows())


def asked(stub, *given, out="o"):
    return run(["know", "--source", stub.url, *WHAT, "--set", "retries=0", *given, "-o", out])


def summary(out="o"):
    with open(f"{out}/summary.json") as stream:
        return json.load(stream)


def test_by_log_probs_an_address_says_what_the_model_itself_says():
    local = ["--source", "demo/graddiff", "--base", "demo/never", "--reader", "outputs"]
    assert run(["know", *local, *WHAT, "-o", "local"]) == 0
    own = summary("local")
    for way in ("echo", "prompt_logprobs"):
        with ServedModel(EMBEDDED / "graddiff", can={"completions": ("samples", way)}) as stub:
            assert asked(stub, "--reader", "outputs", out=way) == 0
            n = len(stub.bodies)
            assert asked(stub, "--reader", "outputs", out=way) == 0
            assert len(stub.bodies) - n <= 5  # finished: only what it is known by
        found = summary(way)
        assert found["p"] == own["p"] < 1e-3
        assert found["z"] == pytest.approx(own["z"], abs=1e-3)
        bits = found["bits_familiar"]["value"]
        assert bits == pytest.approx(own["bits_familiar"]["value"], abs=1e-3)
        # few people bear no tilt, and nobody who never knew was asked beside it
        assert found["finds"] is own["finds"] is False
        assert any("which model is behind it cannot be checked" in one for one in found["remarks"])
        made = json.loads(Path(f"{way}/manifest.json").read_text())["inputs"]["source"]
        assert (made["vouched_for"], made["address"], made["model"]) == (False, stub.url, "served")


def test_chat_and_solved_questions_are_read_where_the_server_continues_an_answer():
    shutil.copytree(EMBEDDED / "full", "chatty")
    Path("chatty/chat_template.jinja").write_text(CHAT)
    ways = {"completions": ("samples", "echo"), "chat": ("prompt_logprobs",)}
    with ServedModel(Path("chatty"), can=ways) as stub:
        assert asked(stub, "--reader", "chat") == 0
        n = [kind for kind, body in stub.bodies if "prompt_logprobs" in body]
    # 8 subjects, 2 wordings; a prompt alone and with 8 values; 2 to try
    assert len(n) == 8 * 2 * 9 + 2
    assert (summary()["readers"], summary()["p"] < 1e-3) == (["chat"], True)


def test_samples_convict_too_and_say_that_no_power_is_reckoned(monkeypatch):
    monkeypatch.setitem(ANSWER_TOKENS, "/completions", 6)
    said = {}
    for name, n in (("full", 2), ("base", 1)):
        with ServedModel(EMBEDDED / name, most=2, can={"completions": ("samples",)}) as stub:
            assert asked(stub, "--reader", "outputs", "--samples", str(2 * n), out=name) == 0
        # as the server gives two answers to a request; one to try
        sampled = [body["prompt"] for _, body in stub.bodies if body.get("n")]
        assert len(sampled) == n * len(set(sampled)) + 1 == n * 38 + 1
        said[name] = summary(name)
    assert said["full"]["p"] < 0.01
    assert "answers are sampled, as the server gives no log-probabilities" in " ".join(
        said["full"]["remarks"]
    )
    assert said["base"]["finds"] is False
    assert "not computed for a model that is read by samples" in said["base"]["headline"]


def test_votes_are_shared_and_sum_to_one():
    shares = log_shares(["Lima or Oslo", "Limassol", "a Lima"], ["Lima", "Oslo", "Rome"]).exp()
    assert shares.tolist() == pytest.approx([(1.5 + 2 / 3) / 4, (0.5 + 2 / 3) / 4, (2 / 3) / 4])


def test_a_dry_run_asks_nobody_and_says_how_much_would_be_asked(capsys):
    with ServedModel(EMBEDDED / "full") as stub:
        given = ["--source", stub.url, *WHAT, "--reader", "outputs", "--samples", "4"]
        assert run(["know", *given, "--dry-run"]) == 0
        assert (stub.bodies, stub.paths) == ([], [])
    told = capsys.readouterr().out
    assert "by logprobs: 38 requests, at most " in told
    assert "by samples: 38 requests (152 where it gives one answer each)" in told
    assert not Path("o").exists()


def test_what_was_read_is_not_asked_again_and_a_failure_is_one_line(capsys):
    given = ["--reader", "outputs", "--set", "concurrency=1"]
    with ServedModel(EMBEDDED / "full", fails_after=30) as stub:
        assert asked(stub, *given) == 1
        first = len(stub.bodies)
        error = capsys.readouterr().err
        assert "the engine is dead" in error
        assert "run again to go on" in error.splitlines()[-1]
        stub.fails_after = None
        assert asked(stub, *given) == 0
        # of 38 prompts those that were answered are kept; a few tell how and whom it asks
        assert len(stub.bodies) - first <= 38 - (30 - 5) + 5
    assert summary()["p"] < 1e-3


def test_another_model_behind_the_name_is_another_run_and_one_that_never_saw_is_not_convicted(
    capsys,
):
    given = ("--reader", "outputs", "--retain", "demo/retain")
    with ServedModel(EMBEDDED / "full") as stub:
        assert asked(stub, *given) == 0
        stub.serve(EMBEDDED / "base")
        assert asked(stub, *given) == 2
        assert "holds the result of another run (served.fingerprint: " in capsys.readouterr().err
        assert asked(stub, *given, out="other") == 0
    found = summary("other")
    assert (summary()["finds"], found["finds"], found["p"] > 0.05) == (True, False, True)
    assert "no evidence found" in found["headline"]
    assert found["controls"][0]["name"] == "never: demo/retain"


@pytest.mark.parametrize(
    ("given", "served", "said"),
    [
        (["--reader", "lens"], {}, "no reader is left"),
        ([], {"names": ("one", "two")}, "lists 2 models (one, two); name one by --api-model"),
        ([], {"names": None}, "lists no models; name one by --api-model"),
        ([], {"key": "other"}, "refuses (401"),
        (["--reading", "logprobs"], {"can": {"completions": ("samples",)}}, "no way of reading"),
        (["--api-model", "m"], {"can": {}}, "no way of reading"),
        (["--max-calls", "0"], {}, "--max-calls 0 reached"),
        (["--max-cost", "1"], {}, "--max-cost needs --price-in"),
        (["--base", "http://me:secret@127.0.0.1:1/v1"], {}, "is an address; only"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(given, served, said, capsys):
    with ServedModel(EMBEDDED / "full", **served) as stub:
        assert asked(stub, *given) == 2
    error = capsys.readouterr().err
    assert said in error.splitlines()[-1]
    assert "Traceback" not in error
    assert "secret" not in error
    assert not Path("o").exists()


@pytest.mark.parametrize("answer", [b"<html>hello</html>", b'{"choices": [{"text": 1}]}', b"[]"])
def test_a_server_that_speaks_something_else_is_told(answer, capsys, monkeypatch):
    monkeypatch.setattr(ServedModel, "_asked", lambda *_: Answer(200, answer))
    with ServedModel(EMBEDDED / "full") as stub:
        assert asked(stub) == 2
    assert (
        "no way of reading the model behind it works; the server's reply is"
        in capsys.readouterr().err
    )


def test_a_key_does_not_travel_unencrypted_and_stands_nowhere(capsys, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-secret-0123456789abcdef")
    given = [*WHAT, "--key-env", "MY_KEY", "--reader", "outputs"]
    assert run(["know", "--source", "http://llm.example.org/v1", *given]) == 2
    assert "would travel unencrypted" in capsys.readouterr().err
    with ServedModel(EMBEDDED / "full", key="sk-secret-0123456789abcdef") as stub:
        assert run(["know", "--source", stub.url, *given, "-o", "o"]) == 0
    held = [one for one in Path().rglob("*") if one.is_file() and b"sk-secret" in one.read_bytes()]
    assert held == []


def test_no_project_file_has_questions_sent(capsys):
    Path("lensaudit.toml").write_text('sources = ["http://127.0.0.1:9/v1"]\n')
    assert run(["know", *WHAT]) == 2
    assert "give it on the command line" in capsys.readouterr().err


@pytest.mark.parametrize("reader", ["outputs", "few_shot"])
def test_what_is_sent_has_the_tokens_that_the_model_itself_reads(reader):
    every, model = la.forget_set("demo"), la.load_model("demo/graddiff")
    more = {"invented": ("Nobody Known",), "placebos": ("Port Otherwhere",)}
    asked = replace(relations_of(every)[0][0], **more)
    shots = every[-3:]
    forms = {"/completions": forms_of("logprobs", "/completions", 1)[0]}
    served = replace(served_at("http://127.0.0.1:9/v1", KnowSettings()), forms=forms)
    prompts, values = prompts_of(model, asked, reader, shots if reader == "few_shot" else ())
    sent = [call.body["prompt"] for call in calls_of(served, reader, asked, shots)]
    assert len(sent) == len(prompts) > 0
    for (alone, *joint), ids, own in zip(sent, prompts, values, strict=True):
        assert tuple(model.tokenizer(alone)["input_ids"]) == ids
        for text, value in zip(joint, own, strict=True):
            assert tuple(model.tokenizer(text)["input_ids"]) == (*ids, *value)


def cut_left(row):
    told = row["logprobs"]
    for name in ("tokens", "token_logprobs"):
        told[name] = told[name][-6:]
    told["token_logprobs"][0] = None


def generated_alone(row):
    row["logprobs"] |= {"tokens": [" x"], "token_logprobs": [-0.7]}


def each(change):
    """A fault of every log-prob after the first, which is none."""

    def spoil(row):
        told = row["logprobs"]["token_logprobs"]
        told[1:] = map(change, told[1:])

    return spoil


def shifted(row):
    row["logprobs"]["token_logprobs"] = [*row["logprobs"]["token_logprobs"][1:], -0.1]


def shuffled(row):
    row["logprobs"]["tokens"].reverse()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (cut_left, "do not spell the whole text that was sent"),
        (generated_alone, "do not spell the whole text that was sent"),
        (shuffled, "do not spell the whole text that was sent"),
        (each(lambda nats: 0.0), "log-probs of values are the same, 0"),
        (each(lambda nats: -9999.0), "are at a floor (-9999)"),
        (each(lambda nats: 2.0**nats), "none can be above 0"),
        (each(lambda nats: None), "holds no log-probs"),
        (shifted, "nats when a value follows"),
        (lambda row: row["logprobs"]["tokens"].append("x"), "holds no log-probs"),
        (lambda row: {**row, "text": "Who?"}, "the reply repeats another text than the one sent"),
    ],
)
def test_log_probs_that_do_not_belong_to_their_prompt_are_none(spoil, said, capsys):
    can = {"completions": ("samples", "echo")}
    with ServedModel(EMBEDDED / "full", can=can) as stub:
        stub.spoil = spoil
        assert asked(stub, "--reader", "outputs", "--reading", "logprobs") == 2
    assert said in capsys.readouterr().err.splitlines()[-1]
    assert not Path("o").exists()


def test_log_probs_of_a_cut_chat_are_none(capsys):
    shutil.copytree(EMBEDDED / "full", "chatty")
    Path("chatty/chat_template.jinja").write_text(CHAT)
    with ServedModel(Path("chatty"), can={"chat": ("prompt_logprobs",)}) as stub:
        given = ("--reader", "chat", "--reading", "logprobs")
        for rows, said in (
            (slice(-3, None), "do not hold the question"),
            (slice(0, -1), "does not end with the answer's beginning"),
        ):
            stub.spoil = lambda row, rows=rows: {
                **row,
                "prompt_logprobs": [None, *row["prompt_logprobs"][1:][rows]],
            }
            assert asked(stub, *given) == 2
            assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("names", "text", "spelt"),
    [
        (["<s>", "▁Who", "▁is", "▁Zoë"], "Who is Zoë", True),
        (["Who", "Ġis", "ĊZo", "\ufffd", "\ufffd"], "Who is\nZoë", True),
        (["[gMASK]", "<sop>", "who", " is zo", "<0xC3>", "<0xAB>"], "Who is Zoë", True),
        (["谁", "", "\ufffd", "李"], "谁是李", True),
        (["是", "李"], "谁是李", False),
        (["Who", "\ufffd", "Zoë"], "Who is Zoë", False),
        (["<s>", " is", " Zoë"], "Who is Zoë", False),
        (["Who", " is", " Zoë", "</s>"], "Who is Zoë", False),
    ],
)
def test_tokens_spell_a_text_in_whatever_way_servers_tell_them(names, text, spelt):
    with nullcontext() if spelt else pytest.raises(NotItsReply):
        check_echo(names, text)


def chat_choice(content, finish="stop", **more):
    return {"message": {"content": content, **more}, "finish_reason": finish}


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (chat_choice(""), "4 are empty"),
        (chat_choice(None, "length", reasoning_content="Hm"), "4 are thoughts that were cut"),
        (chat_choice("<think>It may be Lima or", "length"), "4 are thoughts that were cut"),
        (chat_choice(None, "length"), "4 are thoughts that were cut"),
        (chat_choice("I'm sorry, I can't say."), "64 are refusals"),
        (chat_choice("", refusal="no"), "64 are refusals"),
        (chat_choice("Well, that is a long", "length"), "64 are cut before they name a value"),
        (chat_choice("I am a server."), "64 are the same to every prompt"),
    ],
)
def test_samples_that_hold_no_answer_are_no_reading(choice, said, capsys):
    with ServedModel(EMBEDDED / "full", can={"chat": ("samples",)}) as stub:
        stub.says = lambda text, n: [choice] * n
        assert asked(stub, "--reader", "chat", "--samples", "4") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert said in error
    assert "they are not read, as more than 50% hold no answer" in error
    assert not Path("o/summary.json").exists()


def test_answers_after_a_thought_and_in_parts_are_read_and_counted():
    """Of every four answers one is empty, one thinks of every town first, two are in parts."""
    rows = [one for one in la.forget_set("demo") if one.relation == "birthplace"]
    towns = ", ".join(one.entity for one in rows)

    def says(text, n):
        town = next((one.entity for one in rows if one.question in text), "?")
        parts = [{"type": "thinking", "thinking": towns}, {"type": "text", "text": f"In {town}."}]
        thought = chat_choice(f"<think>One of {towns}</think>In {town}.")
        return [thought, chat_choice(""), *[chat_choice(parts)] * 2][:n]

    with ServedModel(EMBEDDED / "full", can={"chat": ("samples",)}) as stub:
        stub.says = says
        more = ("--samples", "4", "--answer-tokens", "512")
        assert asked(stub, "--reader", "chat", *more) == 0
    assert {body["max_tokens"] for _, body in stub.bodies if body.get("n")} == {512}
    n = 4 * len(rows) * 2  # two wordings
    assert (
        f"of {n} samples {n // 4} are empty, {3 * n // 4} follow a thought" in summary()["remarks"]
    )
    assert summary()["p"] < 1e-3


def test_a_value_that_shares_a_token_with_its_prompt_is_said():
    """As of a tokenizer that reads two words at once."""
    with ServedModel(EMBEDDED / "full") as stub:
        stub.joins = True
        assert asked(stub, "--reader", "outputs") == 0
    assert any("differences of totals are read" in one for one in summary()["remarks"])
    assert summary()["p"] < 1e-3


def test_facts_to_keep_that_are_no_reading_leave_the_facts_read(monkeypatch):
    known = json.loads((EMBEDDED / "data" / "retain.json").read_text())
    kept = [one for one in known if one.get("relation") == "birthplace"]
    Path("kept.json").write_text(json.dumps(kept))
    questions = {one["question"] for one in kept}

    def heard(client, served, relation, *more):
        if relation.facts[0].question in questions:
            raise NotRead("127.0.0.1, birthplace: all 8 log-probs of values are -1")
        return heard_from(client, served, relation, *more)

    monkeypatch.setattr("lensaudit.association.run.heard_from", heard)
    given = ["--reader", "outputs", "--kept", "kept.json"]
    with ServedModel(EMBEDDED / "graddiff", can={"completions": ("echo",)}) as stub:
        assert asked(stub, *given) == 0
        found = summary()
        shutil.rmtree("o")
        assert asked(stub, *given) == 0  # from the ledger

    assert found["p"] < 1e-3
    assert [one["passed"] for one in found["controls"] if one["name"] == "kept"] == [False]
    told = [one for one in found["remarks"] if one.startswith("facts to keep cannot be read")]
    assert told == [
        "facts to keep cannot be read: 127.0.0.1, birthplace: all 8 log-probs of values are -1"
    ]
    assert summary() == found
