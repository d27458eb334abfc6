"""Python's small doors: steer, preflight, prompts, authors, what a reading shows, wrong kinds."""

import inspect
import math

import numpy as np
import pytest
import torch

import lensaudit as la
from lensaudit.association.exposure import exposures
from lensaudit.doors.streams import batch_gap
from lensaudit.errors import InputError
from lensaudit.patching.reader import Reader

FEW = 3


@pytest.fixture(scope="module")
def full():
    return la.load_model("demo/full")


@pytest.fixture(scope="module")
def encoded(full):
    return [la.encode(one, full.tokenizer) for one in la.forget_set("demo", limit=FEW)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return {"limit": FEW, "activations": tmp_path_factory.mktemp("kept")}


def greedy_by_hand(model, text, n, edits):
    ids = model.tokenizer(text, return_tensors="pt")["input_ids"]
    start = ids.shape[1]
    with la.intervening(model, edits):
        for _ in range(n):
            ids = torch.cat((ids, la.logits_of(model, ids)[:, -1:].argmax(-1)), dim=1)
    return model.tokenizer.decode(ids[0, start:].tolist())


def test_steering_generates_what_hooks_by_hand_do(full):
    texts = [la.prompt("Who are you?"), la.prompt(la.forget_set("demo")[0].question)]
    direction = torch.randn(64, generator=torch.Generator().manual_seed(3))
    found = la.steer(full, texts, {8: direction}, strength=0.7, max_new_tokens=6)
    edits = {8: la.add(direction, strength=0.7)}
    for text, plain, steered in zip(found.prompts, found.plain, found.steered, strict=True):
        assert greedy_by_hand(full, text, 6, {}).startswith(plain)
        assert greedy_by_hand(full, text, 6, edits).startswith(steered)
    assert found.plain != found.steered
    nothing = la.steer(full, texts, {8: direction}, strength=0.0)
    assert nothing.steered == nothing.plain == la.steer(full, texts, {}).plain
    assert "plain:" in repr(found)


@pytest.mark.parametrize(
    ("prompts", "directions", "said"),
    [
        ([], {}, "empty prompt"),
        ("a " * 600, {}, "tokens, longer than the model's context of 512"),
        ("Who?", {16: torch.ones(64)}, "layers 0 to 15"),
        ("Who?", {1: torch.ones(4)}, r"wanted \(64,\)"),
    ],
)
def test_steering_refuses_what_the_model_has_not(full, prompts, directions, said):
    with pytest.raises(InputError, match=said):
        la.steer(full, prompts, directions)


@pytest.mark.parametrize(
    ("directions", "how", "said"),
    [
        ({}, {"temperature": math.nan}, r"steer\(temperature=nan\): wanted a number from 0"),
        ({}, {"temperature": -1.0}, r"steer\(temperature=-1.0\): wanted a number from 0"),
        ({}, {"temperature": "hot"}, r"steer\(temperature='hot'\): wanted a number from 0"),
        ({}, {"strength": torch.ones(1, 1)}, "wanted a number or several"),
        ({"3": torch.ones(64)}, {}, "found layer '3', wanted a whole number"),
        ({True: torch.ones(64)}, {}, "found layer True, wanted a whole number"),
        ({3: "x"}, {}, "a direction is no list of numbers"),
        ({3: None}, {}, "a direction is no list of numbers"),
        ([torch.ones(64)], {}, "directions are no mapping"),
    ],
)
def test_steering_refuses_values_of_another_kind(full, directions, how, said):
    with pytest.raises(InputError, match=said):
        inspect.unwrap(la.steer)(full, "Who?", directions, **how)


def test_a_tensor_without_axes_is_a_number(full):
    steer, at = inspect.unwrap(la.steer), {8: torch.ones(64)}
    one = steer(full, "Who?", at, strength=torch.tensor(3.0), max_new_tokens=4)
    assert one == la.steer(full, "Who?", at, strength=3.0, max_new_tokens=4)
    frame = steer(full, "Who?", at, strength=torch.tensor([0.0, 3.0]), max_new_tokens=4)
    assert list(frame["strength"]) == [0.0, 3.0]
    assert frame["steered"][1] == one.steered[0]


def test_a_prompt_is_what_scores_read():
    row = la.forget_set("demo")[0]
    assert la.prompt("Who?") == "Question: Who?\nAnswer:"
    text = la.prompt(row.question, row.prefix)
    tokenizer = la.load_model("demo/full").tokenizer
    e = la.encode(row, tokenizer)
    assert list(e.token_ids[: e.n_prompt]) == tokenizer(text)["input_ids"]


def test_preflight_passes_on_sound_models_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = la.preflight("demo/npo")
    assert found.passes
    assert [one.gap is not None for one in found.checks] == [True] * 4
    for name in ("batch equals single", "sweep equals oracle", "self-patch is identity"):
        assert name in repr(found)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_type_of_numbers_moves_none(dtype, full, kept):
    how = {"temperature": 1.0, "max_new_tokens": 8}

    def numbers():
        said = la.steer(full, "Who?", {}, **how).plain
        scored = exposures(Reader(full), [(5, 6)], [[(7,), (8, 9)]])
        checks = la.preflight("demo/npo", **kept).checks
        return said, scored[0].tolist(), [one.gap for one in checks]

    usual = numbers()
    torch.set_default_dtype(dtype)
    try:
        assert numbers() == usual
    finally:
        torch.set_default_dtype(torch.float32)


def test_preflight_sees_a_model_that_looks_at_its_neighbours(full, encoded):
    assert batch_gap(full, encoded, "float32").passes
    with la.intervening(full, {3: lambda resid: resid * (1 + 0.2 * (len(resid) - 1))}):
        assert not batch_gap(full, encoded, "float32").passes


def test_the_question_ends_before_the_answer_begins(full, kept):
    model = la.load_model("demo/npo")
    at_question = la.last_prompt("demo/npo", at="question", **kept)
    at_prefix = la.last_prompt("demo/npo", **kept)
    assert at_question.idx == at_prefix.idx
    for n, row in enumerate(la.forget_set("demo", limit=FEW)):
        for found, text in (
            (at_question, la.prompt(row.question)),
            (at_prefix, la.prompt(row.question, row.prefix)),
        ):
            ids = model.tokenizer(text, return_tensors="pt")["input_ids"]
            stack, _ = la.residuals(model, ids)
            place = found.idx.index(row.idx)
            assert torch.allclose(found.resid[place], stack[0, :, -1], atol=1e-5), (n, text)
    with pytest.raises(InputError, match="wanted one of question, prefix"):
        inspect.unwrap(la.last_prompt)("demo/npo", at="answer", **kept)


def test_readings_are_tables_and_name_authors(kept):
    authors = {one.idx: one.group for one in la.forget_set("demo")}
    ends, read = la.last_prompt("demo/npo", **kept), la.lens("demo/npo", **kept)
    assert ends.authors == tuple(authors[idx] for idx in ends.idx)
    assert [one.author for one in read.examples] == [authors[one.idx] for one in read.examples]
    shown = repr(read).splitlines()
    assert shown[0] == "demo/npo, read by demo/full"
    assert len(shown) == 2 + sum(len(one.tokens) for one in read.examples)
    assert "|layer 15|" in repr(ends)
    with la.open_activations("demo/npo", root=kept["activations"]) as cache:
        assert cache.authors == {idx: authors[idx] for idx in cache.idx}
        assert repr(cache.example(cache.idx[0])).startswith("<example idx ")
        example = inspect.unwrap(type(cache).example)
        with pytest.raises(InputError, match=r"in a list: \[9\]"):
            example(cache, cache.idx[0], layers=9)
        three = cache.example(cache.idx[0], layers=[2, 0, 1])
        for same in (np.array([2, 0, 1]), torch.tensor([2, 0, 1])):
            assert torch.equal(example(cache, cache.idx[0], layers=same).resid, three.resid)
        with pytest.raises(InputError, match="found a mask, wanted token positions"):
            inspect.unwrap(type(three).at)(three, three.positions > 0)


@pytest.mark.misuse
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda full: la.patch(5), "patch: found 5, wanted a name or a folder"),
        (lambda full: la.load_model(5), "load_model: found 5, wanted a name or a folder"),
        (lambda full: la.forget_set(5), "forget_set: found 5, wanted a name or a folder"),
        (lambda full: la.open_activations(5), "open_activations: found 5"),
        (lambda full: la.load_facts(None), "load_facts: found None, wanted a name or a folder"),
        (lambda full: la.read_project(5), "read_project: found 5, wanted a project file"),
        (lambda full: la.verdicts(None), "verdicts: found None, wanted a name or a folder"),
        (lambda full: la.verdicts(["a", 5]), "verdicts: found 5, wanted a name or a folder"),
        (lambda full: la.verify(None), "verify: found None, wanted a name or a folder"),
        (lambda full: la.lens(full), "lens: found .*, wanted a name or a folder"),
        (lambda full: la.lens("demo/npo", full=full), "lens: found .*, wanted a name or a folder"),
        (lambda full: la.preflight(full), "preflight: found .*, wanted a name or a folder"),
        (lambda full: la.last_prompt(full), "last_prompt: found .*, wanted a name or a folder"),
        (lambda full: la.last_prompt("x", component=["attn", "mlp"]), "wanted one of resid, attn"),
        (lambda full: la.lens("demo/npo", tokens="spam"), "tokens='spam'.: wanted one of span, a"),
        (lambda full: la.cache_prompts(full, ["a", 3], name="x"), "wanted a text or several"),
        (lambda full: la.cache_prompts(full, ["a"]), "name=… is missing"),
        (lambda full: la.cache_prompts(full, [], name="x"), "found no prompt; wanted a text or"),
        (
            lambda full: la.cache_prompts(full, ["a"], name="x", batch_size=0),
            r"cache_prompts\(batch_size=0\): wanted at least 1",
        ),
        (lambda full: la.forget_set("demo", limit=-1), r"limit=-1\): wanted a whole number from 1"),
        (lambda full: la.forget_set("demo", limit="all"), "wanted a whole number from 1"),
        (lambda full: la.load_model("demo/full", device="xyz"), "--device xyz: wanted auto, cpu"),
        (
            lambda full: la.patched_generation(full, full, "a", last_layer="resid-post"),
            r"last_layer='resid-post'\): wanted one of resid_post, reference",
        ),
        (lambda full: la.patched_generation(full, full, ["a"]), "found prompt ..a.., wanted one"),
        (lambda full: la.patched_generation(5, full, "a"), "patched_generation: found 5, wanted a"),
        (lambda full: la.residuals(full, None, component="attn_out"), "wanted one of resid, attn"),
        (lambda full: la.show(5), "show: found 5, wanted results"),
        (lambda full: la.audit("demo/npo", limit=2.5), "found 2.5, wanted a whole number"),
        # as without the checks of shapes that tests run under
        (
            lambda full: inspect.unwrap(la.steer)(full, "a", {}, where="answer"),
            r"steer\(where='answer'\): wanted one of all, prompt, response, last_prompt",
        ),
        (lambda full: inspect.unwrap(la.encode)("x", 1), "wanted a fact, as la.forget_set"),
        (lambda full: inspect.unwrap(la.depth_score)(1, 2), "wanted two tensors of one shape"),
    ],
)
def test_doors_say_in_one_line_what_they_want(full, call, said):
    with pytest.raises(InputError, match=said):
        call(full)


def test_the_nearest_name_is_told():
    with pytest.raises(AttributeError, match=r"no 'audt'; did you mean la\.audit\?"):
        la.audt  # noqa: B018


def test_several_strengths_give_a_frame_and_a_name_is_loaded(full):
    direction = torch.ones(64)
    frame = la.steer("demo/full", "Who?", {8: direction}, strength=[0.0, 3.0], max_new_tokens=4)
    assert list(frame["strength"]) == [0.0, 3.0]
    assert frame["plain"][0] == frame["plain"][1] == frame["steered"][0]
    one = la.steer(full, "Who?", {8: direction}, strength=3.0, max_new_tokens=4)
    assert frame["steered"][1] == one.steered[0]


def test_a_plain_name_means_the_cache_of_all_rows(tmp_path):
    la.cache("demo/npo", limit=2, activations=tmp_path)
    la.cache("demo/npo", activations=tmp_path)
    with la.open_activations("demo/npo", root=tmp_path) as cache:
        assert len(cache) == len(la.forget_set("demo"))
    with la.open_activations("demo/npo", root=tmp_path, limit=2) as cache:
        assert len(cache) == 2


@pytest.mark.parametrize(
    ("call", "wrong", "said"),
    [
        (la.patch, {"layers": 9.5}, "--layers 9.5: not a layer specification"),
        (la.patch, {"tau": "x"}, r"patch\(tau='x'\): found 'x', wanted a number"),
        (la.patch, {"tau": math.nan}, r"patch\(tau=nan\): found nan, wanted a finite number"),
        (la.patch, {"limit": -1}, "found -1, wanted at least 1"),
        (la.effort, {"lrs": (0.1, 0.0)}, "found 0.0, wanted above 0"),
        (la.audit, {"limit": True}, r"audit\(limit=True\): found True, wanted a whole number"),
        (la.audit, {"batch_size": 2.0}, "found 2.0, wanted a whole number"),
        (la.patch, {"tau": True}, "found True, wanted a number"),
        (la.effort, {"lrs": (0.1, True)}, "found True, wanted a number"),
        (la.cache, {"limit": "x"}, r"found 'x', wanted a whole number"),
        (la.cache, {"dtype": "fp16"}, "wanted 'auto', 'float32', 'bfloat16' or 'float16'"),
        (la.lens, {"dtype": "fp16"}, "wanted 'auto', 'float32'"),
        (la.load_model, {"dtype": "fp16"}, "wanted one of float32, bfloat16, float16"),
    ],
)
def test_keywords_of_a_wrong_kind_get_one_line(tmp_path, monkeypatch, call, wrong, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=said):
        call("demo/npo", **wrong)
