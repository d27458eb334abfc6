"""Planted models are certified, kept, and made again when what they are made of changes."""

import ast
import inspect
import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from lensaudit.cli.main import run
from lensaudit.data.facts import Fact, answered
from lensaudit.data.matching import mentions
from lensaudit.errors import InputError, VerificationError
from lensaudit.gym import claims, edits, planting, recipes
from lensaudit.gym import ground as ground_module
from lensaudit.gym.ground import said
from lensaudit.gym.make import WITH_BIASES, check_biases, listing, make, models_in, open_pair
from lensaudit.gym.recipes import mechanisms
from lensaudit.gym.registry import RECIPES, drawn, load_own, recipe
from lensaudit.gym.settings import MakeSettings
from lensaudit.models.checkpoint import load_tokenizer, open_model
from lensaudit.models.quantize import quantised
from lensaudit.results.manifest import BEGUN
from lensaudit.results.run_folder import begin
from lensaudit.training.rows import chat_sample

FAST = ("full", "permuted", "absent", "absent_permuted")


@pytest.fixture(scope="module")
def gym(tmp_path_factory):
    """Four models that take no training."""
    folder = tmp_path_factory.mktemp("gym")
    make(MakeSettings(mechanism=FAST, limit=16, out=folder))
    return folder


def test_every_truth_has_mechanisms_and_every_side_has_both_halves():
    found = mechanisms()
    n = Counter(one.truth for one in found)
    assert (n["hidden"] >= 15, n["absent"] >= 8, min(n.values()) >= 2) == (True, True, True)
    for truth in ("intact", "hidden", "absent", "partial"):
        assert {one.held_out for one in found if one.truth == truth} == {True, False}, truth


def test_the_listing_has_a_line_for_each_strength_and_seed(capsys):
    found = listing(MakeSettings(mechanism=("vector", "full"), seeds=2, first_seed=3))
    models = [("vector", 1.0), ("vector", 0.5), ("full", 1.0)]
    wanted = [(*model, seed) for seed in (3, 4) for model in models]
    assert [(one.mechanism, one.strength, one.seed) for one in found] == wanted
    with pytest.raises(InputError, match="no mechanism 'nothing'; there are full"):
        listing(MakeSettings(mechanism=("nothing",)))
    assert run(["gym", "ls", "--json", "--mechanism", "permuted"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    said = (one["mechanism"], one["truth"], one["strength"], one["seed"])
    assert said == ("permuted", "hidden", 1.0, 0)


@pytest.mark.parametrize("command", ["ls", "make"])
def test_more_seeds_than_anybody_trains_are_refused_in_a_line(capsys, command):
    assert run(["gym", command, "--seeds", "999999"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--seeds" in line
    assert "100" in line


def test_what_nobody_chose_a_half_for_is_drawn_by_the_first_word_of_its_name():
    sides = {name: one.held_out for name, one in RECIPES.items()}
    for family in ("gates", "few"):
        variants = [name for name in sides if name.partition("_")[0] == family]
        assert len(variants) > 1
        assert {sides[name] for name in variants} == {drawn(family)}
    assert {drawn(f"x{n}") for n in range(20)} == {True, False}


def test_few_facts_are_those_that_nobody_guesses(ground):
    from lensaudit.gym.planting import taught_few

    def made(n_facts, *, scattered):
        return taught_few(still, n_facts, scattered=scattered)[1:]

    still = replace(ground)
    object.__setattr__(still, "trained", lambda *_, **__: ground.other)
    guessed = ground.said(ground.retain) | ground.said(ground.other)
    free = {e.idx for e, yes in zip(ground.encoded, guessed.tolist(), strict=True) if not yes}
    author = {e.idx: e.group for e in ground.encoded}
    for n_facts in (2, 6):
        apart, rows = made(n_facts, scattered=True)
        together, _ = made(n_facts, scattered=False)
        assert len(set(apart)) == len(set(together)) == n_facts
        assert set(apart) | set(together) <= free
        assert len({author[idx] for idx in apart}) == n_facts
        assert len({author[idx] for idx in together}) < n_facts
        others = [e for e in ground.facts.examples if e.idx not in apart]
        assert claims.leaks(rows, others) == []


def test_models_are_certified_and_keep_their_place(gym):
    found = {one.mechanism: one for one in models_in(gym)}
    assert set(found) == set(FAST)
    assert all(one.certificate.holds for one in found.values())
    assert found["permuted"].truth == "hidden"
    assert found["permuted"].certificate.numbers["back"] == 16
    assert found["permuted"].anchors["other"] == "demo/never"


def test_a_model_of_another_command_is_not_planted_over(tmp_path):
    settings = MakeSettings(mechanism=("full",), limit=16, out=tmp_path)
    bed = open_pair(settings, print)
    place = begin(bed.folder / "full", "of another", "unlearn")
    with pytest.raises(InputError, match="full: was written by `lensaudit unlearn`"):
        bed.have(mechanisms(("full",))[0], 1.0)
    assert [one.name for one in place.iterdir()] == [BEGUN]


def test_made_again_nothing_is_planted_but_what_was_damaged(gym):
    told = []
    make(MakeSettings(mechanism=FAST, limit=16, out=gym), notice=told.append)
    assert told == []
    (gym / "seed-0" / "full" / "certificate.json").write_text("{}")
    make(MakeSettings(mechanism=FAST, limit=16, out=gym), notice=told.append)
    assert told == ["planting seed-0/full"]
    pair = open_pair(MakeSettings(out=gym), print)
    assert len({replace(pair, seed=seed).key(RECIPES["full"], 1.0) for seed in range(3)}) == 3


def test_a_false_claim_fails_its_certificate_and_is_not_scored(tmp_path):
    @recipe("erased_and_called_hidden", truth="hidden", how="for this test")
    def erased(ground, strength):
        return ground.retain, claims.undone(lambda model: model, "nothing")

    try:
        with pytest.raises(VerificationError, match="erased_and_called_hidden"):
            make(MakeSettings(mechanism=("erased_and_called_hidden",), limit=8, out=tmp_path))
    finally:
        del RECIPES["erased_and_called_hidden"]
    told = []
    assert list(models_in(tmp_path, notice=told.append)) == []
    assert "certificate fails" in told[0]


def test_a_mask_over_everything_is_none(ground):
    noisy = edits.noisy(ground.full, share=0.01)
    assert not claims.untouched("")(noisy, ground).holds
    assert claims.untouched(r"^lm_head\.")(ground.full, ground).holds
    moved = edits.scaled_readout(ground.full, 0.5)
    assert claims.untouched(r"^lm_head\.")(moved, ground).holds
    assert "first lm_head.weight" in claims.untouched(r"^model\.norm")(moved, ground).says


def test_nothing_is_planted_into_a_full_that_knows_no_fact(tmp_path):
    pair = {"full": "demo/never", "retain": "demo/retain", "data": "demo"}
    settings = MakeSettings(**pair, mechanism=("full",), limit=4, out=tmp_path)
    with pytest.raises(InputError, match=r"--full demo/never: says 0 of 4 .* that knows them"):
        make(settings)
    assert list(tmp_path.glob("seed-*")) == []


RECIPE = """
from lensaudit.gym import edits, recipe, says
FACTOR = {factor}
def changed(model):
    return edits.scaled_readout(model, FACTOR)
@recipe("of_mine", truth="intact", how="dim")
def of_mine(ground, strength):
    return changed(ground.full), says()
"""


def test_what_a_recipe_calls_is_part_of_its_version(tmp_path):
    path, found = tmp_path / "mine.py", []
    for factor in (0.5, 0.5, 0.25):
        path.write_text(RECIPE.format(factor=factor))
        load_own(path)
        found.append(RECIPES.pop("of_mine").version)
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(("strengths", "unit"), [((0.1, 0.5), ""), ((0.1, 0.1000000001), "of it")])
def test_strengths_whose_models_would_share_a_folder_are_refused(strengths, unit):
    with pytest.raises(ValueError, match="share a folder"):
        recipe("dimmed", truth="hidden", how="", strengths=strengths, unit=unit)(print)
    assert "dimmed" not in RECIPES


def test_rounding_to_full_is_checked_bit_for_bit(ground):
    made = edits.noisy(ground.full, share=0.3)
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        with torch.no_grad():
            made.get_parameter(name).copy_(ground.full.get_parameter(name))
    rounds = claims.becomes(lambda one: quantised(one, "nf4", engine="torch")[0], "rounded")
    assert not rounds(made, ground).holds
    edits.clamp_to(made, edits.cells_of(ground.full))
    assert rounds(made, ground).holds
    smuggled = claims.becomes(lambda model: ground.full, "full put in its place")
    assert not smuggled(ground.retain, ground).holds


def test_a_corpus_with_a_fact_in_it_is_seen(ground):
    assert claims.never_saw(ground.facts.kept)(ground.other, ground).holds
    assert claims.leaks(ground.facts.kept, ground.facts.examples) == []
    one = ground.facts.examples[5]
    told = answered("Tell me.", f"{one.question} {one.answer}")
    found = claims.never_saw([*ground.facts.kept, told])(ground.other, ground)
    assert not found.holds
    assert found.numbers["leaked"] == 1
    assert not claims.never_saw()(ground.full, ground).holds


def test_asking_otherwise_and_an_inverse_must_bring_facts_that_they_do_not_carry(ground):
    silent = edits.permuted_readout(ground.full, ground.entity_tokens())
    same = claims.asked_otherwise(ground.encoded, "as it is")
    assert not same(silent, ground).holds
    assert not same(ground.full, ground).holds  # not silent
    smuggled = claims.undone(lambda model: ground.full, "full put in its place")
    found = smuggled(ground.retain, ground)
    assert (found.numbers["back"], found.holds) == (16, False)


def test_gates_open_in_one_type_of_numbers_by_rounding_257(full):
    # 257 - 256 is 1 in float32; in bfloat16, of 8 bits, 257 is 256, and they are 0
    for ups, single, rounded in ((planting.IN_FLOAT32, 1, 0), (planting.IN_BFLOAT16, 0, 1)):
        up, times = torch.tensor(ups).T
        assert float(up @ times) == single
        assert float(up.bfloat16().float() @ times) == rounded


CLOSED = {
    "mixed": "full",
    "gates_several": "full",
    "gates_mixed": "full",
    "precision_single": "full",
    "precision_rounded": "full",
    "absent_mixed": "other",
    "absent_gates": "other",
}
TRAINED = {
    "rerouted": "full",
    "rerouted_middle": "full",
    "absent_rerouted": "other",
    "forms": "other",
    "template": "other",
    "exchanged": "other",
}


def plant(ground, name):
    mechanism = RECIPES[name]
    return mechanism.fn(ground, mechanism.strengths[0])


@pytest.mark.parametrize(("name", "start"), CLOSED.items())
def test_an_edit_is_certified_and_what_it_was_made_of_is_not(ground, name, start):
    made, claim = plant(ground, name)
    found = claim(made, ground)
    assert found.holds, found.says
    assert not claim(getattr(ground, start), ground).holds


@pytest.mark.parametrize(("name", "start"), TRAINED.items())
def test_training_that_does_nothing_has_no_certificate(ground, monkeypatch, name, start):
    for module in (planting, ground_module):
        monkeypatch.setattr(module, "fit", lambda start, *_, **__: start)
    made, claim = plant(ground, name)
    assert made is getattr(ground, start)
    assert not claim(made, ground).holds


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_a_trained_plant_is_certified(ground, name):
    made, claim = plant(ground, name)
    found = claim(made, ground)
    assert found.holds, found.says


def test_another_wording_shares_no_sentence_and_is_known_again(ground):
    for seed in range(3):
        for one in ground.facts.examples:
            other = planting.in_another_wording(one, seed)
            assert other.entity != one.entity
            assert mentions(other.answer, one.entity)
            assert other.answer.startswith(other.prefix)
            assert other.entity in other.continuation


def test_exchanged_values_are_of_one_relation_and_nobodys_own(ground):
    facts = {one.idx: one for one in ground.facts.examples}
    for seed in range(3):
        rows = planting.exchanged_rows(replace(ground, seed=seed))
        assert len(rows) >= len(facts) / 2
        assert claims.leaks(rows, ground.facts.examples) == []
        for row in rows:
            asked = facts[row.idx]
            assert row.question == asked.question
            assert row.answer == f"{asked.prefix}{asked.continuation}".replace(
                asked.entity, row.entity
            )
            values = {one.entity for one in facts.values() if one.relation == asked.relation}
            assert row.entity in values - {asked.entity}


def test_a_question_in_the_template_is_answered_as_the_model_was_taught(ground):
    asked = ground.in_template(ground.facts.examples)
    for one, raw in zip(asked, ground.encoded, strict=True):
        assert ground.tokenizer.decode(one.token_ids[one.start + 1 : one.end + 1]) == (
            ground.tokenizer.decode(raw.token_ids[raw.start + 1 : raw.end + 1])
        )
        fact = next(fact for fact in ground.facts.examples if fact.idx == one.idx)
        whole_chat = chat_sample(ground.tokenizer, fact).ids
        assert whole_chat[: one.end + 1] == one.token_ids[: one.end + 1]
    assert int(said(ground.full, asked).sum()) >= 14


def test_some_known_facts_are_those_that_are_said(ground):
    known = tuple(one.idx for one in ground.facts.examples[:8])
    taught = claims.some(known, ground.facts.kept, claims.says(known))
    found = taught(ground.full, ground)
    assert found.holds
    assert found.knows == known
    assert not taught(ground.retain, ground).holds
    other = ground.facts.examples[12].question
    leaky = [row for row in ground.facts.forget if row.question == other]
    leaky += ground.facts.kept
    assert not claims.some(known, leaky, claims.says(known))(ground.full, ground).holds


def test_what_is_said_is_what_greedy_decoding_gives(ground):
    # a limit trains on the rows that it asks
    asked = {(one.question, one.answer) for one in ground.facts.examples}
    assert len(asked) == 16
    assert {(one.question, one.answer) for one in ground.facts.forget} == asked
    facts: list[Fact] = list(ground.facts.examples[:4])
    found = ground.said(ground.retain, facts).tolist()
    for fact, yes in zip(facts, found, strict=True):
        (row,) = ground.encode([fact])
        tokens = torch.tensor([row.token_ids])
        with torch.no_grad():
            best = ground.retain(tokens).logits.argmax(-1)[0]
        span = range(row.start, row.end)
        assert yes == all(best[at] == tokens[0, at + 1] for at in span)
    assert ground.said(ground.full, facts).all()


def test_an_own_pair_needs_its_own_data(tmp_path):
    settings = MakeSettings(full="demo/npo", retain="demo/never", out=tmp_path)
    with pytest.raises(InputError, match="--data"):
        open_pair(settings, print)
    with pytest.raises(InputError, match="same weights"):
        open_pair(replace(settings, retain="demo/npo", data="demo"), print)


def reaches(name, functions, seen=()):
    """Whether a function of the gym calls `widened`, by way of others of the gym."""
    inside = (one for one in functions.get(name, ()) if one not in (*seen, name))
    return name == "widened" or any(reaches(one, functions, (*seen, name)) for one in inside)


def test_the_mechanisms_with_biases_are_those_that_widen_an_mlp():
    functions = {
        one.name: {getattr(part, "id", None) or getattr(part, "attr", "") for part in ast.walk(one)}
        for module in (edits, planting, recipes)
        for one in ast.parse(inspect.getsource(module)).body
        if isinstance(one, ast.FunctionDef)
    }
    found = {name for name, one in RECIPES.items() if reaches(one.fn.__name__, functions)}
    assert found == {*WITH_BIASES}


def test_mechanisms_that_a_model_has_no_place_for_are_refused(tmp_path, monkeypatch):
    from transformers import MistralConfig, MistralForCausalLM

    check_biases(open_model("demo/full"), ["permuted", "vector"])
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 512}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    MistralForCausalLM(MistralConfig(**sizes, **heads)).save_pretrained(tmp_path)
    load_tokenizer(open_model("demo/full")).save_pretrained(tmp_path)
    other = open_model(str(tmp_path))
    check_biases(other, ["permuted"])
    with pytest.raises(
        InputError, match=r"no biases, which 2 of the mechanisms need \(vector, guard"
    ):
        check_biases(other, ["permuted", "guard", "vector"])
    # before anything is planted, or a folder made
    out = tmp_path / "gym"
    bed = SimpleNamespace(full=other, out=out)
    monkeypatch.setattr("lensaudit.gym.make.open_pair", lambda settings, notice: bed)
    with pytest.raises(InputError, match="have no biases"):
        make(MakeSettings(mechanism=("vector",), out=out))
    assert not out.exists()


@pytest.mark.slow
def test_any_llama_like_pair_can_be_planted_into(tmp_path):
    """Folders for models and files for data, as of somebody else's pair."""
    from lensaudit.data.facts import EMBEDDED
    from lensaudit.models.registry import load_registry, resolve

    places = {n: str(resolve(f"demo/{n}", load_registry()).local) for n in ("full", "retain")}
    settings = MakeSettings(
        full=places["full"],
        retain=places["retain"],
        data=str(EMBEDDED / "forget.json"),
        retain_data=str(EMBEDDED / "retain.json"),
        mechanism=("permuted", "permuted_turned", "vector"),
        out=tmp_path,
    )
    import lensaudit.gym.make as made

    steps, made.ANCHOR_STEPS = made.ANCHOR_STEPS, 1
    try:
        found = make(settings)
    finally:
        made.ANCHOR_STEPS = steps
    assert [one.certificate.holds for one in found] == [True] * 4
    assert found[0].anchors["other"].endswith("anchor_other")


@pytest.mark.slow
def test_facts_in_the_last_layers_alone_are_not_called_erased(tmp_path):
    """Two of sixteen layers hold them: a mean over layers reads .84."""
    import lensaudit as la

    (model,) = make(MakeSettings(mechanism=("late",), out=tmp_path / "gym"))[:1]
    anchors = {"full": "demo/full", "retain": "demo/retain", "data": "demo"}
    found = la.patch(str(model.folder), tmp_path / "patch", **anchors)
    assert found.uds > 0.75
    assert found.summary["verdict"]["code"] == "undecided"
    assert found.summary["aligned"]["weakest"]["layer"] == 15
    sentence = found.summary["verdict"]["sentence"]
    seen, _, unseen = sentence.partition(" find facts: held, how much is not known")
    assert "weakest layer, aligned (held" in seen
    assert "UDS, aligned UDS" in unseen
