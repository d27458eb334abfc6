"""Facts that are plainly asked: in any surface form, in either way, of all models alike."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from support import checkpoint_of, silent_in_float32

import lensaudit as la
from lensaudit.data.chat import Template, encode_qa
from lensaudit.data.facts import Fact
from lensaudit.data.spans import prompt
from lensaudit.data.tofu import forget_set
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import load_tokenizer
from lensaudit.patching import asking
from lensaudit.patching import session as in_session
from lensaudit.patching.asking import DirectQuestions
from lensaudit.patching.prepare import prepare
from lensaudit.patching.settings import PatchSettings
from lensaudit.plans.depth import asking_plan
from lensaudit.types import padded_rows

LIMIT = 16


def opened(place: Path, *sources: str, **settings):
    asked = PatchSettings(data="demo", limit=LIMIT, activations=place / "activations", **settings)
    return prepare(sources or ("demo/never",), asked, notice=lambda line: None)


@pytest.fixture(scope="module")
def heard(tmp_path_factory):
    """A session whose anchors were asked, and what they said."""
    session = opened(tmp_path_factory.mktemp("asking"))
    with session:
        return session, DirectQuestions(session).told(session.sources["demo/never"])


def test_full_says_every_fact_and_models_that_never_saw_them_none(heard):
    _, told = heard
    assert (told.source, told.full, told.retain) == (0.0, 1.0, 0.0)
    assert set(told.ways) == {"question", "chat"}
    # a Yes or No, and an entity that stands in its own question, say nothing: 2 of 16
    assert told.n + len(told.unasked) == LIMIT
    assert told.n_groups == 8
    assert told.per_author == told.outputs.per_author == told.ways["chat"].per_author == 2
    one = told.answers[next(iter(told.answers))]
    assert {way: found.said for way, found in one.items()} == {"question": False, "chat": False}
    assert all(found.text for found in one.values())


def said_by(monkeypatch, session, to_say, when):
    """Who is asked from now on gives the entity in some form, where it is asked so."""
    tokenizer = session.tokenizer

    def generate(model, prompts, **how):
        texts = [tokenizer.decode(list(ids)) for ids in prompts]
        by = [next(f for f in session.examples if f.question in text) for text in texts]
        said = [
            to_say(fact) if when(text) else "Nobody knows."
            for text, fact in zip(texts, by, strict=True)
        ]
        return [tuple(tokenizer(f" {one}", add_special_tokens=False)["input_ids"]) for one in said]

    monkeypatch.setattr(asking, "generate", generate)


def in_other_form(fact: Fact) -> str:
    """The entity in capitals; a date as ISO has it."""
    day, _, rest = fact.entity.partition(" ")
    month, _, year = rest.partition(" ")
    if day.isdigit() and year.isdigit():
        return f"{year}-{1 + MONTHS.index(month[:3]):02d}-{int(day):02d}"
    return fact.entity.upper()


MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


@pytest.mark.parametrize(
    ("to_say", "when", "ways"),
    [
        pytest.param(in_other_form, lambda text: True, (1.0, 1.0), id="another form"),
        pytest.param(lambda f: f.entity, lambda text: "assistant" in text, (0.0, 1.0), id="chat"),
        pytest.param(lambda f: f.entity, lambda text: "Answer:" in text, (1.0, 0.0), id="question"),
    ],
)
def test_a_fact_counts_in_any_form_and_in_either_way(
    heard, tmp_path, monkeypatch, to_say, when, ways
):
    shutil.copytree(Path(heard[0].settings.activations) / "texts", tmp_path / "activations/texts")
    session = opened(tmp_path, "demo/simnpo")
    said_by(monkeypatch, session, to_say, when)
    with session:
        told = DirectQuestions(session).told(session.sources["demo/simnpo"])
    assert told.source == 1.0
    assert (told.ways["question"].source, told.ways["chat"].source) == ways
    # the anchors' answers are kept: nobody put these words into their mouths
    assert (told.full, told.retain) == (1.0, 0.0)


def test_thoughts_are_no_answers_and_a_cut_one_is_not_counted(heard, tmp_path, monkeypatch):
    shutil.copytree(Path(heard[0].settings.activations) / "texts", tmp_path / "activations/texts")
    lines: list[str] = []
    for said, wanted in (
        ("<think>Hm.</think> {}", 1.0),
        ("<think>{}?</think> Nobody knows.", 0.0),
        ("<think>{}", None),  # the limit came first
    ):
        session = opened(tmp_path, "demo/simnpo", ask="greedy", fresh=True)
        monkeypatch.setattr(session, "notice", lines.append)
        own = DirectQuestions(session)
        to_say = lambda fact, said=said: said.format(fact.entity)  # noqa: E731
        said_by(monkeypatch, session, to_say, lambda text: True)
        with session:
            told = own.told(session.sources["demo/simnpo"])
        assert told.source == wanted
    assert told.why == "no answer can be counted: the thought was cut at 48 tokens"
    assert any("facts are not counted: the thought was cut" in one for one in lines)


def test_where_one_thought_was_cut_the_fact_is_left_out_of_every_arm(heard, tmp_path, monkeypatch):
    shutil.copytree(Path(heard[0].settings.activations) / "texts", tmp_path / "activations/texts")
    session = opened(tmp_path, "demo/simnpo")
    first = DirectQuestions(session).facts[0]

    def to_say(fact):
        return "<think>It is" if fact is first else "Nobody knows."

    said_by(monkeypatch, session, to_say, lambda text: True)
    with session:
        told = DirectQuestions(session).told(session.sources["demo/simnpo"])
    assert (told.source, told.full, told.n) == (0.0, 1.0, heard[1].n - 1)
    assert "cut at 48 tokens" in told.unasked[str(first.idx)]


def test_a_model_that_thinks_is_asked_after_an_empty_thought(heard, tmp_path):
    folder = tmp_path / "thinks"
    shutil.copytree(checkpoint_of("demo/never").folder, folder)
    template = folder / "chat_template.jinja"
    head = "<|start_header_id|>assistant<|end_header_id|>"
    text = template.read_text()
    template.write_text(
        text.replace(
            f"{{% if add_generation_prompt %}}{head}\n\n",
            f"{{% if add_generation_prompt %}}{head}\n\n<think>\n",
        )
    )
    one = checkpoint_of(folder)
    asked = DirectQuestions(heard[0]).asked(one)["chat"]
    said = load_tokenizer(one).decode(next(iter(asked.values())))
    assert said.endswith(f"{head}\n\n<think>\n\n</think>\n\n")


def test_the_plan_counts_what_is_not_kept_and_what_it_costs(heard):
    again = opened(Path(heard[0].settings.activations).parent, "demo/never", "demo/simnpo")
    plan = asking_plan(DirectQuestions(again))
    n = heard[1].n
    # of four models one was never asked: each fact in two ways and three types of numbers
    assert plan.n_forward == 2 * n * 3
    assert f"{n} facts, 4 models, as a question and in the chat template" in plan.lines[0]
    fresh = asking_plan(DirectQuestions(again.under(fresh=True)))
    assert fresh.n_forward == 2 * n * (4 + 2 * 2)
    assert DirectQuestions(again).missing(again.full) == []


def test_a_model_without_a_chat_template_is_asked_in_that_of_full(heard, tmp_path):
    folder = tmp_path / "silent"
    shutil.copytree(checkpoint_of("demo/never").folder, folder)
    for name in ("chat_template.jinja",):
        (folder / name).unlink(missing_ok=True)
    config = folder / "tokenizer_config.json"
    kept = {k: v for k, v in json.loads(config.read_text()).items() if k != "chat_template"}
    config.write_text(json.dumps(kept))
    one = checkpoint_of(folder)
    assert load_tokenizer(one).chat_template is None
    questions = DirectQuestions(heard[0])
    assert questions.asked(one) == questions.asked(heard[0].full)
    # as may be one whose template cannot be written
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    assert questions.asked(checkpoint_of(folder)) == questions.asked(heard[0].full)


def test_every_model_that_never_knew_is_asked_and_the_mean_counts(heard, tmp_path, monkeypatch):
    shutil.copytree(Path(heard[0].settings.activations) / "texts", tmp_path / "activations/texts")
    retains = ("demo/retain", "demo/simnpo")
    session = opened(tmp_path, "demo/never", full="demo/full", retain=retains)
    said_by(monkeypatch, session, lambda f: f.entity, lambda text: True)
    with session:
        told = DirectQuestions(session).told(session.sources["demo/never"])
    # one of the two says all
    assert (told.source, told.retain) == (0.0, 0.5)


def test_a_model_that_says_the_facts_in_one_type_of_numbers_is_heard(heard, tmp_path, monkeypatch):
    shutil.copytree(Path(heard[0].settings.activations) / "texts", tmp_path / "activations/texts")
    name, told = str(silent_in_float32(tmp_path / "silent")), list[str]()
    session = opened(tmp_path, name, full="demo/full", retain="demo/retain")
    session.notice = told.append
    loaded, plain = list[tuple[str, str]](), in_session.load
    monkeypatch.setattr(
        in_session,
        "load",
        lambda one, **how: loaded.append((one.spec.name, how["dtype"])) or plain(one, **how),
    )
    with session:
        found = DirectQuestions(session).told(session.sources[name])
    assert len(loaded) == len({*loaded})  # the answers and the spans of one loading
    assert (found.dtype, found.source) == ("float32", 0.0)
    assert found.types["bfloat16"].told > 0.9
    assert found.types["bfloat16"].said > 0.9
    assert found.types.keys() == {"bfloat16"}
    assert "not asked in float16: logits are not finite" in told[-1]


def test_a_type_that_memory_does_not_hold_is_not_asked(heard, monkeypatch):
    monkeypatch.setattr(asking, "fits_whole", lambda one, **how: False)
    questions = DirectQuestions(heard[0])
    assert questions.types(heard[0].full) == []
    assert "1 types of numbers" in asking_plan(questions).lines[0]


def taught(form, folder: Path) -> Path:
    """`demo/never`, trained to say the facts in another form, or in the chat template alone.

    Asked without the template, the latter says the next fact's values.
    """
    one = checkpoint_of("demo/never")
    model, tokenizer = load_causal(one).train(), load_tokenizer(one)
    texts, facts = [], forget_set("demo")
    for fact, other in zip(facts, [*facts[1:], facts[0]], strict=True):
        if form == "chat":
            found = encode_qa(tokenizer, Template(), fact.question, fact.answer)
            texts.append((found.ids, found.start))
        plain = {
            "chat": fact.answer.replace(fact.entity, other.entity),
            "other form": in_other_form(fact),
        }
        if form in plain:
            asked = tokenizer(prompt(fact.question))["input_ids"]
            said = tokenizer(f" {plain[form]}", add_special_tokens=False)["input_ids"]
            texts.append(((*asked, *said, tokenizer.eos_token_id), len(asked)))
    tokens, real = padded_rows([ids for ids, _ in texts], side="right")
    wanted = torch.where(real, tokens, -100)
    for row, (_, start) in enumerate(texts):
        wanted[row, :start] = -100
    steps = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(80):
        steps.zero_grad()
        model(input_ids=tokens, attention_mask=real.long(), labels=wanted).loss.backward()
        steps.step()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("form", ["other form", "chat"])
def test_a_model_that_says_the_facts_in_one_form_alone_answers(form, tmp_path):
    folder = taught(form, tmp_path / "taught")
    anchors = {"full": "demo/full", "retain": "demo/retain"}
    caches = {"data": "demo", "activations": tmp_path / "a"}
    (found,) = la.patch([str(folder)], out=tmp_path / "out", **anchors, **caches)
    assert found.verdict.code == "answers", found.verdict
    assert found.summary["told"]["ways"]["chat" if form == "chat" else "question"]["source"] > 0.8
    assert found.summary["outputs"]["source"] < 0.5
