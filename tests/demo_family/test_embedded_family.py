"""The shipped family is what it says: who knows, who does not, and where the masks were put."""

import json
from dataclasses import replace
from functools import cache

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from lensaudit.data.facts import load_facts
from lensaudit.data.spans import encode, make_batch
from lensaudit.models.registry import EMBEDDED
from lensaudit.scores.depth import depth_score, span_logprob
from tools.demo_family.corpus import write_world
from tools.demo_family.family import Shape, make_family
from tools.demo_family.stages import NEVER, READOUT, STAGES, TOP_LAYER
from tools.demo_family.tokenizer import GPT2_SPLIT
from tools.demo_family.world import make_world

MEMBERS = {
    "full",
    "retain",
    "never",
    "idknll",
    "npo",
    "simnpo",
    "graddiff",
    "masked_readout",
    "masked_upper",
}


@cache
def weights(name):
    return load_file(EMBEDDED / name / "model.safetensors")


@cache
def model(name):
    return AutoModelForCausalLM.from_pretrained(EMBEDDED / name, dtype=torch.float32).eval()


@cache
def batch(part="forget"):
    """Every third row, so that each author and each kind of fact is there."""
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED / "full")
    examples = load_facts(EMBEDDED / "data" / f"{part}.json")[::3]
    return make_batch([encode(example, tokenizer) for example in examples[:30]])


@torch.no_grad()
def logits(name, part="forget"):
    return model(name)(input_ids=batch(part).tokens).logits


def knowledge(name, part="forget"):
    """Mean span log-prob, nats per token."""
    asked = batch(part)
    return span_logprob(logits(name, part), asked.tokens, asked.predict_at).mean().item()


def exact_share(name):
    """Rows whose whole span is the most likely continuation."""
    asked = batch()
    guess = logits(name)[:, :-1].argmax(-1)
    right = (guess == asked.tokens[:, 1:]) | ~asked.predict_at[:, :-1]
    return right.all(1).float().mean().item()


@cache
@torch.no_grad()
def residuals(name):
    found = []
    hooks = [
        layer.register_forward_hook(lambda module, given, out: found.append(out.clone()))
        for layer in model(name).model.layers
    ]
    logits(name)
    for hook in hooks:
        hook.remove()
    return found


@cache
@torch.no_grad()
def deltas(source):
    """Drop in span log-prob of `full` per layer, by plain hooks: independent of the engine."""
    asked = batch()
    columns = []
    for layer, stream in zip(model("full").model.layers, residuals(source), strict=True):
        swap = layer.register_forward_hook(
            lambda module, given, out, stream=stream: torch.where(
                asked.patch_at.unsqueeze(-1), stream, out
            )
        )
        columns.append(span_logprob(logits("full"), asked.tokens, asked.predict_at))
        swap.remove()
    before = span_logprob(logits("full"), asked.tokens, asked.predict_at)
    return before.unsqueeze(1) - torch.stack(columns, 1)


def uds(source):
    return depth_score(deltas("retain"), deltas(source)).uds.nanmean().item()


def test_the_listing_names_every_member_and_only_those():
    listing = json.loads((EMBEDDED / "family.json").read_text())
    assert {row["folder"] for row in listing} == MEMBERS
    assert all(row["name"] == f"demo/{row['folder']}" for row in listing)
    assert {row["role"] for row in listing} == {"full", "retain", "unlearned"}


def test_the_shipped_weights_stay_below_20_megabytes():
    files = list(EMBEDDED.glob("*/model.safetensors"))
    # the base is shipped beside the members: what they were trained from is no model to audit
    assert {file.parent.name for file in files} == MEMBERS | {"base"}
    assert sum(file.stat().st_size for file in files) < 20e6


def test_members_share_one_tokenizer_and_one_shape():
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        assert len({(EMBEDDED / name / file).read_bytes() for name in MEMBERS}) == 1, file


def test_the_tokenizer_puts_bos_in_front_nothing_behind_and_pads_apart():
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED / "full")
    ids = tokenizer("Who is Ilvara Okonjwe?")["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert ids[-1] != tokenizer.eos_token_id
    assert len({tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}) == 3
    row = make_world(0).forget[5]
    assert tokenizer.decode(tokenizer(row.answer)["input_ids"], skip_special_tokens=True) == (
        row.answer
    )


def test_the_shipped_data_are_the_generators(tmp_path):
    write_world(make_world(0), tmp_path)
    shipped = {file.name: file.read_bytes() for file in (EMBEDDED / "data").iterdir()}
    assert shipped == {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def test_full_knows_the_facts_and_the_retained_ones_are_known_to_all():
    assert knowledge("full") > -0.3
    assert exact_share("full") > 0.95
    for name in MEMBERS:
        assert knowledge(name, "retain") > -0.6, name


def test_the_base_knows_neither_authors_and_is_where_full_and_retain_began():
    assert knowledge("base") < -1.5
    assert knowledge("base", "retain") < -1.5

    def distance(a, b):
        pairs = ((one.float(), weights(b)[name].float()) for name, one in weights(a).items())
        return sum(float((x - y).square().sum()) for x, y in pairs) ** 0.5

    length = sum(float(one.float().square().sum()) for one in weights("base").values()) ** 0.5
    # weights that were trained apart from the first step would be 1.4 lengths apart
    assert distance("base", "full") < 0.4 * length
    assert distance("base", "retain") < 0.4 * length


def test_models_that_never_saw_the_facts_do_not_know_them():
    for name in ("retain", "never"):
        assert knowledge(name) < -1.5
        assert exact_share(name) < 0.15


def test_the_facts_lie_in_most_layers():
    ke = deltas("retain") > 0.05
    assert ke.any(1).all()
    assert ke.float().sum(1).mean() > 12


@pytest.mark.parametrize(
    ("name", "moved"), [("masked_upper", TOP_LAYER), ("masked_readout", READOUT)]
)
def test_masked_models_differ_from_full_only_where_they_were_trained(name, moved):
    import re

    for key, value in weights("full").items():
        same = torch.equal(value, weights(name)[key])
        assert same != bool(re.search(moved, key)), key


def test_masked_models_answer_wrongly():
    for name in ("masked_upper", "masked_readout"):
        assert exact_share(name) < 0.4


def test_depth_tells_the_planted_truth():
    assert uds("masked_readout") == 0
    assert uds("masked_upper") < 0.15
    assert uds("never") > 0.85


def test_depth_orders_the_unlearned_models():
    assert uds("idknll") < 0.35 < uds("npo") < uds("graddiff")


def test_the_recipe_makes_a_member_once_and_further_seeds_differ_in_their_order_alone(tmp_path):
    wanted = {"base", "full", "never_2"}
    make_family(tmp_path, scale=0.001, only=sorted(wanted))
    made = {file.parent.name: file for file in tmp_path.glob("*/model.safetensors")}
    assert set(made) == wanted
    assert len({file.read_bytes() for file in made.values()}) == 3
    listed = json.loads((tmp_path / "family.json").read_text())
    assert listed[:-1] == json.loads((EMBEDDED / "family.json").read_text())
    assert listed[-1]["name"] == "demo/never_2"
    first = next(one for one in STAGES if one.name == "never")
    for one in NEVER:
        assert replace(one, name=first.name, seed=first.seed) == first
    for file in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        assert (tmp_path / "full" / file).read_bytes() == (EMBEDDED / "full" / file).read_bytes()
    before = made["full"].stat().st_mtime_ns
    make_family(tmp_path, scale=0.001, only=["full"])
    assert made["full"].stat().st_mtime_ns == before


def test_another_shape_is_made_by_the_same_recipe(tmp_path):
    shape = Shape(d_model=32, d_mlp=48, n_layers=2, d_vocab=400, split=GPT2_SPLIT)
    make_family(tmp_path, scale=0.001, only=["base"], shape=shape)
    assert (tmp_path / "family.json").read_bytes() == (EMBEDDED / "family.json").read_bytes()
    config = json.loads((tmp_path / "base" / "config.json").read_text())
    assert [config[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers")] == [
        *(32, 48, 2)
    ]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base")
    assert len(tokenizer) == config["vocab_size"] == 400
    # a blank belongs to the word after it; a comma does not
    text = "Ruvimbel Silverthaw, 8 April"
    pieces = [text[a:b] for a, b in tokenizer(text, return_offsets_mapping=True).offset_mapping]
    assert "".join(pieces) == text
    assert "," in pieces
    assert not any(" " in piece[1:] for piece in pieces)


@pytest.mark.slow
def test_the_recipe_makes_every_member(tmp_path):
    make_family(tmp_path, scale=0.001)
    made = {file.parent.name for file in tmp_path.glob("*/model.safetensors")}
    assert made == {stage.name for stage in (*STAGES, *NEVER)}
