"""`lensaudit know`: who is convicted, who is not, read back, resumed and refused in words."""

import csv
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from scipy.optimize import linear_sum_assignment

import lensaudit as la
from lensaudit.association import reading
from lensaudit.association.reading import FEW_SHOT, LENS, OUTPUTS, prompts_of, said
from lensaudit.cli.main import run
from lensaudit.data.relations import Relation, Wording, relations_of
from lensaudit.report.assemble import assemble
from lensaudit.scores.assignment import double_centred

QUICK = ["--reader", "outputs", "--placebos", "0", "--activations", "a"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Finished runs of a model that hides the facts and of one that never saw them."""
    place = tmp_path_factory.mktemp("know")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(place)
        for name, beside in (("masked_readout", ["--retain", "demo/retain"]), ("retain", [])):
            assert run(["know", "--source", f"demo/{name}", *beside, *QUICK, "-o", name]) == 0
    return place


def summary(place, name):
    return json.loads((place / name / "summary.json").read_text())


def test_a_model_that_hides_the_facts_is_convicted(place):
    found = summary(place, "masked_readout")
    assert found["finds"] is True
    assert found["p"] < 1e-3
    assert found["n"] == 56
    assert "binds values to subjects beyond chance" in found["headline"]
    assert "8 subjects, no tilt by names is borne)" in found["headline"]
    assert all(one["passed"] for one in found["controls"])


def test_a_model_that_never_saw_them_is_not_and_nothing_is_certified(place):
    found = summary(place, "retain")
    assert found["finds"] is False
    assert found["p"] > 0.05
    assert "no evidence found" in found["headline"]
    assert "so few subjects show nothing without a never-trained model" in found["headline"]
    assert "erased" not in json.dumps(found)
    assert found["named"] == []


def test_every_fact_has_a_row_or_a_reason(place):
    with (place / "retain" / "facts.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert sorted(int(row["idx"]) for row in rows) == list(range(64))
    closed = [row for row in rows if row["unscored"]]
    assert len(closed) == 8
    assert all("Yes or No" in row["unscored"] for row in closed)
    assert all(float(row["bits_familiar"]) <= 3 for row in rows if not row["unscored"])


def test_the_page_and_the_verdict_read_it(place):
    (one,) = assemble([place / "masked_readout"]).attacks
    assert one["kind"] == "know"
    table = one["matrix"]
    assert len(table["subjects"]) == len(table["values"]) == 8
    assert [round(sum(row)) for row in table["p"]] == [1] * 8
    (model,) = la.verdicts([place / "masked_readout"]).models
    assert (model.code, next(view.says for view in model.views)) == ("undecided", "finds")
    (model,) = la.verdicts([place / "retain"]).models
    assert {view.says for view in model.views} == {"cannot tell"}


def given_what_it_likes(path, name):
    """The people of the embedded set, with the values that a model likes best for them."""
    bridge, rows = la.load_model(name), [vars(fact) for fact in la.forget_set("demo")]
    found, _ = relations_of(la.forget_set("demo"))
    traces = sum(double_centred(said(bridge, one, OUTPUTS)[:8]) for one in found)
    _, likes = linear_sum_assignment(-traces.numpy())
    for one in found:
        for subject, value in enumerate(likes):
            row = next(row for row in rows if row["idx"] == one.facts[subject].idx)
            row["entity"] = one.facts[value].entity
            row["answer"] = f"{row['prefix']} {row['entity']}."
    names = ("idx", "question", "answer", "prefix", "entity", "group", "relation")
    path.write_text(json.dumps([{name: row[name] for name in names} for row in rows]))
    return str(path)


def test_people_with_the_values_that_an_ignorant_model_likes_for_them_convict_nobody(
    place, monkeypatch
):
    """Of eight people no tilt by names is borne; the base passes as control, a retain does not."""
    monkeypatch.chdir(place)
    rows = given_what_it_likes(place / "liked.json", "demo/retain")
    asks = ["know", "--source", "demo/never", "--data", rows, *QUICK]
    assert run([*asks, "-o", "liked"]) == 0
    found = summary(place, "liked")
    assert found["p"] < 0.01
    assert all(one["passed"] for one in found["controls"])
    assert (found["finds"], found["gamma"]) == (False, 0.0)
    assert "undecided: p" in found["headline"]
    assert "no tilt by names is borne" in found["headline"]
    assert run([*asks, "--retain", "demo/retain", "-o", "liked-retain"]) == 0
    assert summary(place, "liked-retain")["finds"] is False
    for name in ("liked", "liked-retain"):
        (model,) = la.verdicts([place / name]).models
        assert {view.says for view in model.views} == {"cannot tell"}


def test_a_finished_run_is_not_made_again_and_a_dry_run_says_what_is_left(
    place, monkeypatch, capsys
):
    monkeypatch.chdir(place)
    before = (place / "retain" / "manifest.json").read_bytes()
    assert run(["know", "--source", "demo/retain", *QUICK, "-o", "retain"]) == 0
    assert (place / "retain" / "manifest.json").read_bytes() == before
    capsys.readouterr()
    assert run(["know", "--source", "demo/retain", *QUICK, "-o", "retain", "--dry-run"]) == 0
    assert capsys.readouterr().out == "nothing to do: retain holds this run already\n"
    assert run(["know", "--source", "demo/retain", *QUICK, "--dry-run"]) == 0
    assert "demo/retain: 0 prompts, 0 sequences" in capsys.readouterr().out
    assert run(["know", "--source", "demo/npo", *QUICK, "--dry-run"]) == 0
    # (8 subjects + 16 invented) x 2 ways x 7 relations, and 6 subjects of kept relations
    assert "demo/npo: " in (told := capsys.readouterr().out)
    assert int(told.split("demo/npo: ")[1].split()[0]) >= 24 * 2 * 7


@pytest.mark.parametrize(
    ("given", "said_"),
    [
        (["--limit", "3"], "no relation of 3 rows can be asked"),
        (
            ["--base", "demo/retain", "--source", "demo/retain"],
            "base demo/retain have the same weights",
        ),
        (["--reader", "few_shot", "--kept", "one.jsonl"], "no reader is left"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(given, said_, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    (place / "one.jsonl").write_text(json.dumps({"question": "Who?", "answer": "Eve Ur"}) + "\n")
    source = [] if "--source" in given else ["--source", "demo/full"]
    assert run(["know", *source, "--activations", "a", *given, "-o", "refused"]) == 2
    error = capsys.readouterr().err
    assert said_ in error
    assert "Traceback" not in error
    assert not (place / "refused").exists()


@pytest.fixture(scope="module")
def bridge():
    return la.load_model("demo/graddiff")


@pytest.fixture(scope="module")
def asked():
    return replace(relations_of(la.forget_set("demo"))[0][3], invented=("Nobody Known",))


def test_values_read_together_are_as_those_read_one_by_one(bridge, asked):
    names = asked.names[:2]
    prompts, values = prompts_of(bridge, asked, OUTPUTS, names=names)
    alone = []
    for ids, own in zip(prompts, values, strict=True):
        row = []
        for value in own:
            tokens = torch.tensor([[*ids, *value]])
            logprob = la.logits_of(bridge, tokens)[0].log_softmax(-1)
            row.append(sum(float(logprob[len(ids) - 1 + n, one]) for n, one in enumerate(value)))
        alone.append(torch.tensor(row))
    together = said(bridge, asked, OUTPUTS, names=names)
    assert together.shape == (2, 8)
    assert torch.allclose(together, reading.by_subject(alone, len(prompts) // 2), atol=1e-4)


@pytest.mark.parametrize(
    ("prefix", "values", "between"),
    [
        ("她生在", ("利马", "在利", "Oslo"), ""),
        ("เธอเกิดที่", ("ลิมา", "ออสโล"), ""),
        ("彼女の生まれは「", ("リマ", "東京"), ""),
        ("It is “", ("Lima", "Oslo"), ""),
        ("Она родилась в", ("Лиме", "Осло"), " "),
        ("She was born in", ("Lima", "東京"), " "),
        ("", ("Lima", "利马"), " "),
    ],
)
@pytest.mark.parametrize("reader", [OUTPUTS, FEW_SHOT])
def test_prompt_and_value_have_the_tokens_of_the_one_text(bridge, prefix, values, between, reader):
    facts = tuple(
        replace(one, entity=value)
        for one, value in zip(la.forget_set("demo"), values, strict=False)
    )
    asked = Relation("r", facts, ("Ada",), (Wording("Where was {} born?", prefix),))
    shots = la.forget_set("demo")[-3:] if reader == FEW_SHOT else ()
    prompts, own = prompts_of(bridge, asked, reader, shots, names=["Ada"])
    text = reading.prompt_text("Where was Ada born?", prefix, shots)
    for value, ids in zip(asked.values, own[0], strict=True):
        whole = bridge.tokenizer(f"{text}{between}{value}")["input_ids"]
        assert [*prompts[0], *ids] == whole


def test_a_token_that_holds_the_end_of_a_prompt_and_a_value_is_the_values():
    class Pairs:
        """Every two characters of a text are a token."""

        chat_template = None

        def __call__(self, text, **options):
            pairs = [text[at : at + 2] for at in range(0, len(text), 2)]
            return {"input_ids": [hash(one) for one in pairs]}

    row = la.forget_set("demo")[0]
    facts = (replace(row, entity="利马"), replace(row, entity="东京"))
    bridge = SimpleNamespace(tokenizer=Pairs())
    for prefix in ("生在", "她生在"):
        asked = Relation("r", facts, ("Ada",), (Wording("Who?", prefix),))
        ((ids,), (own,)) = prompts_of(bridge, asked, OUTPUTS, names=["Ada"])
        text = f"Question: Who?\nAnswer: {prefix}"
        assert len(ids) == len(text) // 2
        assert [*ids, *own[0]] == Pairs()(text + "利马")["input_ids"]


def test_maps_fitted_on_batches_are_those_fitted_text_by_text(bridge, monkeypatch):
    head = la.load_model("demo/base")
    texts = [row.question for row in la.forget_set("demo")[:20]]
    together = reading.maps_onto(bridge, head, texts)
    monkeypatch.setattr(reading, "FIT_ROWS", 1)
    alone = reading.maps_onto(bridge, head, texts)
    stream = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    for layer, one in together.items():
        assert torch.allclose(one(stream), alone[layer](stream), atol=1e-4)


def test_outputs_and_both_heads_are_heard_in_one_reading(bridge, asked):
    head = la.load_model("demo/base")
    maps = reading.maps_onto(bridge, head, [row.question for row in la.forget_set("demo")[:40]])
    heads = {LENS: reading.Head(bridge), "foreign": reading.Head(head, maps)}
    found = reading.heard(bridge, asked, heads, (3, 15))
    assert list(found) == [OUTPUTS, "lens 3", "lens 15", "foreign 3", "foreign 15"]
    assert torch.allclose(found[OUTPUTS], said(bridge, asked, OUTPUTS)[:8], atol=1e-5)
    sums = torch.stack([*found.values()]).exp().sum(-1)
    assert sums == pytest.approx(torch.ones_like(sums))
    alone = reading.heard(bridge, asked, {"foreign": heads["foreign"]}, (3,))
    # the last layer through the own head is what the model says
    assert torch.allclose(found["lens 15"], found[OUTPUTS], atol=1e-4)
    assert torch.allclose(found["foreign 3"], alone["foreign 3"], atol=1e-5)
    assert not torch.allclose(found["foreign 3"], found["lens 3"], atol=1e-2)
