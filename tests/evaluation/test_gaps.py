"""Rows and metrics that cannot be scored say why, and nothing stands in for them."""

from dataclasses import replace

import pytest
import torch
from support import tiny_model
from support.metric_helpers import conditions_of, tiny_passes, tiny_split
from support.tolerance import NATS

from lensaudit.errors import WorkError
from lensaudit.evaluation.passes import Subject
from lensaudit.evaluation.suite import evaluate, notes
from lensaudit.metrics.registry import Measured, Read, metric_of
from lensaudit.models.sizes import ContextWindow


def with_row(split, place, **answers):
    """The split with a row's answers replaced; None takes one away."""
    row = split.rows[place]
    kept = {key: value for key, value in {**row.answers, **answers}.items() if value is not None}
    rows = list(split.rows)
    rows[place] = replace(row, answers=kept)
    return replace(split, rows=tuple(rows))


def test_a_row_without_perturbed_answers_is_unscored_and_the_others_count(tiny_tokenizer):
    broken = with_row(tiny_split(), 1, perturbed_answer=None)
    whole, found = (
        evaluate(tiny_passes(tiny_tokenizer, [one]), "tofu", ["forget_truth_ratio"])
        for one in (tiny_split(), broken)
    )
    assert found["forget_Q_A_PERT_Prob"].unscored == {1: "the row has no perturbed_answer"}
    assert found["forget_truth_ratio"].unscored == {1: "the row has no perturbed_answer"}
    records = found["forget_truth_ratio"].records
    assert sorted(records) == [0, 2]
    for idx, record in records.items():  # each with its own, sums of another order
        own = whole["forget_truth_ratio"].records[idx]
        assert record["score"] == pytest.approx(own["score"], rel=1e-6)


def test_rows_may_have_different_numbers_of_alternatives_and_one_without_is_unscored(
    tiny_tokenizer,
):
    whole = tiny_split()
    fewer = with_row(with_row(whole, 0, perturbed_answer=()), 2, perturbed_answer=("w30",))
    name = "forget_Q_A_PERT_Prob"
    alone, found = (
        evaluate(tiny_passes(tiny_tokenizer, [one]), "tofu", [name])[name] for one in (whole, fewer)
    )
    assert found.unscored == {0: "the row has no text in perturbed_answer"}
    assert [len(found.records[at]["prob"]) for at in (1, 2)] == [2, 1]
    for name, values in alone.records[1].items():  # sums of another order
        assert found.records[1][name] == pytest.approx(values, rel=1e-6)


def test_a_split_without_paraphrases_leaves_a_reason(tiny_tokenizer):
    split = tiny_split()
    for place in range(3):
        split = with_row(split, place, paraphrased_answer=None)
    found = evaluate(tiny_passes(tiny_tokenizer, [split]), "tofu")
    assert found["forget_Q_A_PARA_Prob"].reason == "no row of forget has paraphrased_answer"
    assert found["forget_truth_ratio"].reason.startswith("needs forget_Q_A_PARA_Prob")
    assert found["mia_loss"].reason == "the data has no holdout split"
    assert found["model_utility"].reason.startswith("needs retain_Q_A_Prob")
    assert found["mia_reference"].reason == "the data has no holdout split"
    both = tiny_passes(tiny_tokenizer, [split, tiny_split("holdout")])
    alone = evaluate(both, "tofu", ["mia_reference"])["mia_reference"]
    assert alone.reason == "no reference model; name one with --reference"
    assert found["forget_Q_A_Prob"].value is not None


EMPTY = ("exact_memorization", "extraction_strength", "mia_min_k", "forget_Q_A_ROUGE")


@pytest.mark.parametrize("empty", ["unscored", "upstream"])
def test_an_empty_answer_is_unscored_or_counts_as_upstream_where_that_is_asked_for(
    tiny_tokenizer, empty
):
    broken = with_row(tiny_split(), 0, answer="")
    passes = tiny_passes(tiny_tokenizer, [broken, tiny_split("holdout")])
    found = evaluate(passes, "tofu", EMPTY, empty=empty)
    # upstream drops it here, also
    assert "no content token" in found["exact_memorization"].unscored[0]
    rows = [found["extraction_strength"], found["mia_min_k"].parts["forget"]]
    rows.append(found["forget_Q_A_ROUGE"])
    if empty == "upstream":
        names = ("extraction_strength", "mia_min_k", "forget_Q_A_ROUGE")
        told = zip(names, rows, strict=True)
        assert [metric_of(name).numbers(one)[0] for name, one in told] == [0, 0, 0]
        return
    said = ("no content token", "no content token", "the answer is empty")
    assert all(why in one.unscored[0] for why, one in zip(said, rows, strict=True))
    assert len(found["extraction_strength"].records) == 2


def test_an_empty_generation_scores_nothing_and_is_counted(tiny_tokenizer):
    def silent():
        model = tiny_model()
        model.generation_config.eos_token_id = list(range(61))
        return model

    passes = tiny_passes(tiny_tokenizer)
    passes.subject.open = silent
    found = evaluate(passes, "tofu", ["forget_Q_A_ROUGE"])["forget_Q_A_ROUGE"]
    assert found.value == 0
    assert found.details == {"empty_generations": 3}


@pytest.fixture
def broken_subject():
    def load():
        model = tiny_model()
        with torch.no_grad():
            model.lm_head.weight[5] = torch.nan
        return model

    return Subject("nan", conditions_of("nan"), load)


@pytest.mark.parametrize(
    "name", ["exact_memorization", "forget_truth_ratio", "forget_Q_A_ROUGE", "mia_gradnorm"]
)
def test_logits_that_are_not_numbers_stop_a_pass_with_the_rows_name(
    tiny_tokenizer, broken_subject, tmp_path, name
):
    """The largest of NaN is a token: 11 metrics said such a model was perfectly unlearned."""
    passes = tiny_passes(tiny_tokenizer, folders=[tmp_path])
    passes.subject = broken_subject
    with pytest.raises(WorkError, match=r"nan: forget row \d: the model's logits are not finite"):
        evaluate(passes, "tofu", [name])
    assert not list(tmp_path.iterdir())  # and nothing of it is kept


def kept_text(tiny_tokenizer, folder, **obeyed):
    """What the same weights say under other generation settings, by the store's key."""
    passes = tiny_passes(tiny_tokenizer, folders=[folder])

    def load():
        model = tiny_model()
        for key, value in obeyed.items():
            setattr(model.generation_config, key, value)
        return model

    passes.subject = Subject("tiny", conditions_of("seed 0"), load, obeyed)
    read = Read("text", "forget")
    passes.run(read)
    return {idx: texts[0]["generation"] for idx, texts in passes.measured(read).rows.items()}


def test_a_generation_is_not_found_again_under_another_configuration(tiny_tokenizer, tmp_path):
    plain = kept_text(tiny_tokenizer, tmp_path)
    assert kept_text(tiny_tokenizer, tmp_path) == plain
    penalised = kept_text(tiny_tokenizer, tmp_path, repetition_penalty=5.0)
    assert penalised != plain
    assert penalised == kept_text(tiny_tokenizer, tmp_path / "fresh", repetition_penalty=5.0)
    ended = kept_text(tiny_tokenizer, tmp_path, eos_token_id=list(range(61)))
    assert set(ended.values()) == {""}
    assert len(list(tmp_path.glob("text-forget*"))) == 3


def test_generations_that_reach_the_limit_are_told(tiny_tokenizer):
    passes = tiny_passes(tiny_tokenizer)
    evaluate(passes, "tofu", ["forget_Q_A_ROUGE"])
    read = Read("text", "forget")
    n_cut = len(passes.cut(read))
    assert n_cut > 0
    said = [one for one in notes(passes, [read]) if "cut at the limit" in one]
    assert f"{n_cut} of forget text" in said[0]


def test_rows_longer_than_the_context_are_unscored_with_the_reason(tiny_tokenizer):
    passes = tiny_passes(tiny_tokenizer)
    lengths = {
        idx: len(one[0].ids) for idx, one in passes.view(Read("trace", "forget")).rows.items()
    }
    assert len(set(lengths.values())) == 1
    n_all = lengths[0]
    for limit, context in ((n_all, ContextWindow(n_all)), (n_all - 1, ContextWindow(n_all - 1))):
        passes = tiny_passes(tiny_tokenizer)
        passes.asked = replace(passes.asked, context=context)
        found = evaluate(passes, "tofu", ["exact_memorization"])["exact_memorization"]
        assert bool(found.unscored) == (limit < n_all)
    assert found.unscored[0] == f"{n_all} tokens, longer than the model's context of {n_all - 1}"
    # what is generated has to fit where positions come from a table
    passes = tiny_passes(tiny_tokenizer)
    passes.asked = replace(passes.asked, context=ContextWindow(n_all + 1, fixed=True))
    found = evaluate(passes, "tofu", ["forget_Q_A_ROUGE"])["forget_Q_A_ROUGE"]
    assert "with 6 to generate" in found.unscored[0]


def test_a_mask_that_hides_real_tokens_leaves_generative_extraction_unscored(tiny_tokenizer):
    class EndIsPad(type(tiny_tokenizer)):
        pass

    end_is_pad = EndIsPad(
        tokenizer_object=tiny_tokenizer.backend_tokenizer, bos_token="<bos>", eos_token="<eos>"
    )
    found = evaluate(
        tiny_passes(end_is_pad, mask="upstream"), "tofu", ["extraction_strength_generative"]
    )
    assert "--mask true" in found["extraction_strength_generative"].unscored[0]
    found = evaluate(tiny_passes(end_is_pad), "tofu", ["extraction_strength_generative"])
    assert found["extraction_strength_generative"].unscored == {}


def test_a_prompt_that_is_not_a_prefix_is_reported(tiny_tokenizer):
    from lensaudit.data.chat import Encoding
    from lensaudit.evaluation.forward import notes_on

    view = Measured({0: (Encoding((1, 5, 7), 2, (1, 6)),)}, {})
    fine = {"holdout.answer": Measured({0: (Encoding((1, 5), 1, (1,)),)}, {})}
    said = notes_on({"forget.answer": view} | fine)
    assert said[0].startswith("1 of 2 texts (forget.answer): the prompt")
    assert notes_on(fine) == []


def test_one_model_leaves_memory_before_the_reference_model_enters(tiny_tokenizer):
    audited_in_memory = []

    def load():
        audited_in_memory.append(passes.subject._model is not None)
        return tiny_model(1)

    passes = tiny_passes(tiny_tokenizer, reference=Subject("ref", conditions_of("ref"), load))
    found = evaluate(passes, "tofu", ["mia_reference", "forget_Q_A_ROUGE"])
    assert audited_in_memory == [False]
    assert passes.subject._model is None
    loss = evaluate(tiny_passes(tiny_tokenizer, seed=1), "tofu", ["mia_loss"])["mia_loss"]
    own = evaluate(tiny_passes(tiny_tokenizer), "tofu", ["mia_loss"])["mia_loss"]
    for idx, row in found["mia_reference"].parts["forget"].records.items():
        mine, theirs = (one.parts["forget"].records[idx]["score"] for one in (own, loss))
        assert row["score"] == pytest.approx(mine - theirs, abs=NATS)


def test_a_text_longer_than_the_reference_reads_has_no_difference_of_losses(tiny_tokenizer):
    def reading(n_pos):
        window = ContextWindow(n_pos)
        reference = Subject("ref", conditions_of("ref"), lambda: tiny_model(1), context=window)
        passes = tiny_passes(tiny_tokenizer, reference=reference)
        return evaluate(passes, "tofu", ["mia_reference", "mia_loss"])

    n_tokens = len(tiny_passes(tiny_tokenizer).view(Read("trace", "forget")).rows[0][0].ids)
    fits, short = reading(n_tokens), reading(n_tokens - 1)
    assert fits["mia_reference"].n_unscored == 0
    why = short["mia_reference"].parts["forget"].unscored
    assert why.keys() == {0, 1, 2}
    assert why[0] == (
        f"the reference model: {n_tokens} tokens, longer than the model's context of {n_tokens - 1}"
    )
    assert short["mia_loss"].n_unscored == 0


ONE_ANSWER = (
    *("exact_memorization", "extraction_strength", "extraction_strength_generative"),
    *("mia_loss", "mia_zlib", "mia_min_k", "mia_min_k_plus_plus", "mia_entropy", "mia_gradnorm"),
    "mia_reference",
)


def test_a_row_with_several_answers_has_no_score_that_is_of_one(tiny_tokenizer):
    several = with_row(tiny_split(), 1, answer=("w20 w21", "w22 w23 w24"))
    one = with_row(several, 2, answer=("w20 w21",))
    reference = Subject("ref", conditions_of("ref"), lambda: tiny_model(1))
    passes = tiny_passes(tiny_tokenizer, [one, tiny_split("holdout")], reference=reference)
    found = evaluate(passes, "tofu", ONE_ANSWER)
    for name in ONE_ANSWER:
        scored = found[name].parts.get("forget", found[name])
        assert sorted(scored.records) == [0, 2], name
        assert scored.unscored[1].endswith("several answers, of which none is the row's own"), name
