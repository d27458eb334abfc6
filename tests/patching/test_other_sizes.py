"""A source of another width, depth or tokenizer: only a map carries it to `full`."""

import json
import shutil

import pytest
import support
import torch
from support.audit_helpers import save_family, save_questions
from support.widened import save_relabelled, save_widened, widened

import lensaudit as la
from lensaudit.errors import InputError
from lensaudit.models.registry import EMBEDDED
from lensaudit.results.roles import ends_as_sources
from lensaudit.verdict.depth import MAP_ALONE


def test_a_widened_model_computes_the_same():
    model = support.tiny_model(0)
    tokens = torch.randint(3, 61, (2, 9), generator=torch.Generator().manual_seed(0))
    wide = widened(model, 48, idle=1)
    assert (wide.config.hidden_size, wide.config.num_hidden_layers) == (48, 6)
    with torch.no_grad():
        assert (wide(tokens).logits - model(tokens).logits).abs().max() < 1e-5


@pytest.fixture(scope="module")
def found(tmp_path_factory, one_type):
    """Members of the embedded family, wider; `full` twice as deep, too."""
    folder = tmp_path_factory.mktemp("sizes")
    sources = [
        save_widened("demo/full", folder / "full", 72, idle=1),
        save_widened("demo/masked_upper", folder / "masked", 72),
        save_widened("demo/retain", folder / "retain", 72),
        "demo/never",
        save_relabelled("demo/full", folder / "relabelled"),
    ]
    return la.patch(
        list(map(str, sources)),
        folder / "results",
        full="demo/full",
        retain=("demo/retain",),
        data="demo",
        limit=8,
        layers="7,14",
        align_tokens=432,
        activations=folder / "activations",
    )


def test_a_wider_copy_of_full_reads_0_and_one_of_retain_reads_1(found):
    full, masked, retain, *_ = found
    assert full.aligned < 1e-4
    # below its last layer it is full
    assert masked.aligned < 1e-4
    assert retain.aligned > 0.999


def test_nothing_plain_is_said_of_a_stream_that_does_not_fit(found):
    full, _, retain, never, _ = found
    for one, layers in ((full, 32), (retain, 16)):
        assert one.uds is None
        assert set(one.unscored.values()) == {
            f"its stream ({layers} layers of 72) does not fit that of full (16 of 64)"
        }
        assert one.summary["validity"]["d_share"] is None
        assert "does not fit" in one.summary["validity"]["why"]
        assert not one.found_nothing
        rows = [json.loads(line) for line in (one.folder / "results.jsonl").open()]
        assert all(row["uds"] is None and row["uds_aligned"] is not None for row in rows)
    assert never.uds > 0.8
    assert never.summary["aligned"]["class"] == "procrustes"


def test_the_experimental_view_decides_nothing(found):
    full, masked, retain, never, relabelled = found
    # what a model says of itself needs no map; hidden and erased would rest on one
    assert [one.verdict.code for one in (full, masked, retain, relabelled)] == [
        "answers",
        "undecided",
        "undecided",
        "answers",
    ]
    for one in (masked, retain):
        assert any(MAP_ALONE in line for line in one.verdict.because)
    assert "experimental" not in never.summary["aligned"]
    assert not any(MAP_ALONE in line for line in never.verdict.because)
    for one in (full, masked, retain):
        aligned = one.summary["aligned"]
        assert aligned["experimental"] is True
        assert aligned["class"] == "affine"
        assert aligned["d_share"] < 0.1
        assert aligned["shuffled"] > 0.95
        assert aligned["full"] < 1e-4


def test_other_tokens_are_met_where_both_have_read_as_much(found):
    *_, relabelled = found
    assert relabelled.uds is None
    assert set(relabelled.unscored.values()) == {"its tokenizer is not that of full"}
    assert relabelled.summary["outputs"]["source"] == 1.0
    aligned = relabelled.summary["aligned"]
    assert aligned["class"] == "procrustes"
    assert aligned["uds"] < 1e-4
    assert aligned["r2"] > 0.999
    assert aligned["d_share"] < 1e-4


def test_the_vocabulary_of_full_with_other_merges_is_refused(tmp_path):
    # full itself so cut was said to be erased, aligned 1.000
    model = tmp_path / "cut"
    shutil.copytree(EMBEDDED / "npo", model)
    tables = json.loads((model / "tokenizer.json").read_text())
    tables["model"]["merges"] = tables["model"]["merges"][::-1]
    (model / "tokenizer.json").write_text(json.dumps(tables))
    with pytest.raises(
        InputError, match=r"cuts words in another way: \d{2,} of \d{3,} tokens differ"
    ):
        la.patch(
            str(model),
            tmp_path / "out",
            full="demo/full",
            retain=("demo/retain",),
            data="demo",
            activations=tmp_path / "activations",
        )
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def sizes(tmp_path_factory, tiny_tokenizer):
    """Random models of 32, and one of 48."""
    folder = tmp_path_factory.mktemp("bad")
    save_family(folder, tiny_tokenizer, names=("full", "retain"))
    save_family(folder, tiny_tokenizer, names=("wide",), hidden_size=48)
    return save_questions(folder)


def patched(folder, name, **how):
    """A model of a folder into its `full`, on its rows."""
    places = {one: folder / one for one in ("full", "retain", "activations")}
    return la.patch(folder / name, folder / "results", data=folder / "forget.json", **places, **how)


def splitting_nines():
    """As `tiny_tokenizer`, but a 9 that ends a word is a token of its own."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(3, 57)} | {"<pad>": 0, "<bos>": 1, "<eos>": 2}
    words |= {"w": 57, "9": 58, "w1": 59, "w2": 60}
    inner = Tokenizer(models.WordLevel(words, unk_token="w3"))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Split(Regex("9"), "isolated")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")


def save_apart(folder, words, **changes):
    """Models whose tokens end apart at a 9; `words` and `other` read whole words.

    Returns all rows of the forget set, and those with a 9 in the entity.
    """
    save_family(folder, splitting_nines(), names=("full", "retain"))
    save_family(folder, words, names=("words", "other"), hidden_size=48, **changes)
    save_questions(folder)
    # words that name nothing of the forget set
    words = ("w4", "w5", "w7", "w9", "w11", "w12", "w14", "w15", "w17", "w22", "w49")
    # no two alike: rows that are equal count once
    sentences = [
        " ".join(words[(a + b * k) % 11] for k in range(12)) for a in range(11) for b in (1, 2, 3)
    ]
    (folder / "neutral.txt").write_text("\n".join(sentences))
    rows = json.loads((folder / "forget.json").read_text())
    return rows, [row for row in rows if "9" in row["entity"]]


def carried(folder, name, rows, **how):
    """A model of `save_apart` on these rows."""
    (folder / "forget.json").write_text(json.dumps(rows))
    shutil.rmtree(folder / "results", ignore_errors=True)
    return patched(folder, name, align_data=folder / "neutral.txt", **how)


def test_where_tokens_end_apart_a_fact_is_unscored_with_the_reason(tmp_path, tiny_tokenizer):
    rows, with_nine = save_apart(tmp_path, tiny_tokenizer)
    found = carried(tmp_path, "words", rows)
    # "w19" is read at once by the source; full stands after "w1" alone, and is patched there
    nines = {row["idx"] for row in with_nine}
    assert 0 < len(nines) < len(rows)
    unscored = found.summary["aligned"]["unscored"]
    apart = {int(idx) for idx, why in unscored.items() if why.startswith("no token of it ends")}
    assert apart == nines
    assert all(why.startswith("no layer") for idx, why in unscored.items() if int(idx) not in apart)
    kept = [json.loads(line) for line in (tmp_path / "results" / "results.jsonl").open()]
    assert {row["idx"] for row in kept if row["uds_aligned"] is None} == set(map(int, unscored))
    assert found.aligned is not None


def test_a_fact_that_one_source_lost_is_lost_where_full_is_known_from_anothers_run(
    tmp_path, tiny_tokenizer
):
    rows, nines = save_apart(tmp_path, tiny_tokenizer)
    kept = [row for row in rows if row not in nines]
    alone = carried(tmp_path, "words", kept, ask="none")
    carried(tmp_path, "other", rows, ask="none")
    beside = carried(tmp_path, "words", rows, ask="none")
    assert beside.aligned == alone.aligned is not None
    assert {str(row["idx"]) for row in nines} <= beside.summary["aligned"]["unscored"].keys()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "no token of it ends"),
        ({"max_position_embeddings": 12}, "longer than the model's context of 12"),
    ],
)
def test_a_source_that_loses_every_fact_has_the_reason_and_no_depth(
    tmp_path, tiny_tokenizer, changes, why
):
    _, nines = save_apart(tmp_path, tiny_tokenizer, **changes)
    for name in ("words", "other"):  # of the second run `full` is known
        found = carried(tmp_path, name, nines)
        assert found.aligned is None
        assert why in found.summary["aligned"]["why"]
        # what is too long for it, it cannot say either
        assert (found.summary["outputs"] is None) == bool(changes)


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"align": "none"}, "--align affine, or auto"),
        ({"align": "shift"}, "--align shift needs equal widths"),
        ({"align": "procrustes"}, "--align procrustes needs equal widths"),
        ({"lens": True}, "models of different shape"),
        ({"component": "attn"}, "models of different shape"),
        ({"align": "auto"}, "nothing to fit a map on"),
    ],
)
def test_what_does_not_carry_it_is_said_at_the_door(sizes, how, what, caplog):
    with pytest.raises(InputError, match=what):
        patched(sizes, "wide", **how)
    # what is refused is not called experimental first
    assert how.get("align") == "auto" or not caplog.messages


@pytest.mark.parametrize(("name", "align"), [("wide", "auto"), ("retain", "affine")])
def test_too_few_rows_for_a_map_are_said_at_the_door(sizes, tmp_path, name, align):
    few = tmp_path / "few.txt"
    few.write_text("w9 w8 w7\nw6 w5 w4")
    wanted = r"neutral tokens, wanted 2 per dimension, \d+; give more"
    with ends_as_sources(), pytest.raises(InputError, match=wanted):
        patched(sizes, name, align=align, align_data=few)
    assert not (sizes / "activations").exists()
