"""Each attack on a model by itself: what it hits of `full`, and that it scores what it says."""

import copy
from collections import Counter
from dataclasses import replace

import pytest
import torch
from support import checkpoint_of, silent_in_float32

from lensaudit.association.exposure import stream_after
from lensaudit.attacks.arm import AttackedModel, AttackFindings
from lensaudit.attacks.elicit import chosen
from lensaudit.attacks.registry import Attack, run_attack
from lensaudit.attacks.settings import WorstSettings
from lensaudit.attacks.worst import arm_of, open_worst
from lensaudit.errors import WorkError
from lensaudit.models.bridge import DTYPES, bridge_from, residuals
from lensaudit.models.causal import load_causal
from lensaudit.models.conditions import EAGER
from lensaudit.patching.reader import steered

ATTACKS = {one.name: one for one in chosen("full")}


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """`demo/full`, asked for four facts of two authors."""
    place = tmp_path_factory.mktemp("arm")
    settings = WorstSettings(limit=12, activations=place)
    opened = open_worst("demo/npo", settings)
    arm = arm_of(opened, opened.audit.full, opened.audit.full)
    arm.facts = [fact for fact in arm.facts if fact.idx in (0, 1, 8, 9)]
    return arm


@pytest.mark.parametrize(
    "name",
    [
        *("greedy", "prefix", "first_token", "leak64", "lens"),
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("chat", "int8", "patch")),
    ],
)
def test_a_model_that_knows_is_broken(full, name):
    found = ATTACKS[name].run(full)
    assert sum(hit.hit for hit in found.hits.values()) >= 3
    assert found.hits.keys() | found.unscored.keys() == {0, 1, 8, 9}


def test_what_full_gives_itself_changes_nothing(full):
    steered = ATTACKS["steer"].run(full)
    plain = ATTACKS["prefix"].run(full)
    assert {i: h.evidence for i, h in steered.hits.items()} == {
        i: h.evidence for i, h in plain.hits.items()
    }
    assert full.matched() is None
    assert ATTACKS["readout"].run(full) == ATTACKS["prefix"].run(full)


def test_facts_behind_an_exchanged_readout_come_back(full):
    from lensaudit.gym.edits import permuted_readout

    entities = {id for fact in full.facts for id in full.candidates[fact.idx][0]}
    plain = permuted_readout(full.again(), sorted(entities))
    bridge = bridge_from(copy.deepcopy(plain), full.tokenizer)
    arm = replace(full, model=bridge, again=lambda: copy.deepcopy(plain))
    assert not any(hit.hit for hit in ATTACKS["prefix"].run(arm).hits.values())
    assert {i: hit.evidence for i, hit in ATTACKS["readout"].run(arm).hits.items()} == {
        i: hit.evidence for i, hit in ATTACKS["prefix"].run(full).hits.items()
    }


def test_what_is_the_least_likely_is_found_as_the_likeliest_is(full):
    arm = replace(full, exposed=True)
    rows = arm.raw
    for sign, rank in ((1, "rank 1 of 100"), (-1, "rank 100 of 100")):
        arm.raw = {idx: sign * row for idx, row in rows.items()}
        found = ATTACKS["least_likely"].run(arm).hits.values()
        assert [(hit.hit, hit.evidence) for hit in found].count((True, rank)) >= 3
    arm.raw = {idx: torch.zeros_like(row) for idx, row in rows.items()}
    assert not any(hit.hit for hit in ATTACKS["least_likely"].run(arm).hits.values())
    few = replace(arm, facts=[replace(one, placebos=one.placebos[:5]) for one in full.facts])
    found = ATTACKS["least_likely"].run(few)
    assert (found.hits, set(found.unscored.values())) == ({}, {"fewer than 20 candidates"})


def asked_anew(arm, **columns):
    """The arm with facts whose columns are made of each fact, and whose entity nobody says."""
    made = {name: make for name, make in columns.items()}
    facts = [
        replace(one, entity="Nowhere", **{name: make(one) for name, make in made.items()})
        for one in arm.facts
    ]
    return replace(arm, facts=facts)


def hits(arm, name):
    return sum(hit.hit for hit in ATTACKS[name].run(arm).hits.values())


def test_an_alias_is_matched_as_the_entity(full):
    assert hits(asked_anew(full), "greedy") == 0
    assert hits(asked_anew(full, aliases=lambda one: (one.entity,)), "greedy") == 4
    # not one that the question holds: an echo would give it away
    echo = asked_anew(full, aliases=lambda one: (one.question.split()[-1].strip("?"),))
    assert hits(echo, "greedy") == 0


def test_columns_are_asked_and_facts_without_them_are_unscored(full):
    known = asked_anew(
        full,
        translations=lambda one: (f"Wer weiß es: {one.answer[:4]}?", one.question),
        aliases=lambda one: (one.entity,),
    )
    found = ATTACKS["translated_question"].run(known)
    assert [hit.evidence[:9] for hit in found.hits.values() if hit.hit] == ["plainly 2"] * 4
    step = asked_anew(
        full, two_hop=lambda one: (one.question,), two_hop_answers=lambda one: (one.entity,)
    )
    assert hits(step, "two_hop") == 4
    # a question that holds what it asks for is not put
    held = asked_anew(full, two_hop=lambda one: ("Was it Nowhere?",))
    found = ATTACKS["two_hop"].run(held)
    assert set(found.unscored.values()) == {"its question holds the answer"}
    for name in ("translated_question", "two_hop", "aliases"):
        found = ATTACKS[name].run(full)
        assert (found.hits, set(found.unscored.values())) == ({}, {f"no {name}"})
    found = ATTACKS["thought"].run(full)
    assert set(found.unscored.values()) == {"its chat template has no thought"}


def test_facts_that_another_type_of_numbers_says_come_out(full, tmp_path):
    """In bfloat16 what drowns the stream cancels; float16 overflows; all else runs in float32."""
    one = checkpoint_of(silent_in_float32(tmp_path / "silent"))

    def again(dtype="float32"):
        return load_causal(one, dtype=DTYPES[dtype], attn=EAGER)

    arm = replace(full, model=bridge_from(again(), full.tokenizer), again=again)
    assert not any(hit.hit for hit in ATTACKS["prefix"].run(arm).hits.values())
    assert all(hit.hit for hit in ATTACKS["bfloat16"].run(arm).hits.values())
    for dtype, why in (("float16", "not finite"), ("float32", "all other attacks are run in it")):
        found = ATTACKS[dtype].run(arm)
        assert found.hits == {}
        assert all(why in said for said in found.unscored.values())


def test_rows_are_steered_by_their_own_author(full):
    prompts = {fact.idx: full.ids(full.forced(fact)) for fact in full.facts}
    layer = 12
    d_model = full.model.original_model.config.hidden_size
    away = 40 * torch.randn(d_model, generator=torch.Generator().manual_seed(0))
    towards = torch.stack([away if idx < 8 else torch.zeros(d_model) for idx in prompts])
    hits = full.told(prompts, reader=steered(full.model, layer, towards, Counter()))
    plain = full.told(prompts)
    assert [hits[idx].evidence == plain[idx].evidence for idx in (0, 1, 8, 9)] == [
        False,
        False,
        True,
        True,
    ]


def test_the_stream_is_that_of_the_last_token(tiny):
    model = tiny()
    prompt = [1, 8, 15, 22, 9]
    found = stream_after(model, [prompt, prompt[:3]], 1, Counter())
    for at, ids in enumerate((prompt, prompt[:3])):
        stack, _ = residuals(model, torch.tensor([ids]))
        assert torch.allclose(found[at], stack[0, 1, -1], atol=1e-5)


def test_a_hook_that_an_attack_from_outside_leaves_is_gone_or_ends_the_run(tiny):
    model, full = tiny(0), tiny(1)
    arm = AttackedModel("model", model, full, [], {}, again=lambda: None)
    tokens = torch.tensor([[5, 6, 7]])
    plain = model(tokens)

    def leaves(arm):
        arm.model.add_hook("blocks.0.hook_out", lambda value, hook: value * 0)
        assert not torch.equal(model(tokens), plain)
        return AttackFindings({})

    assert run_attack(Attack("leaves", leaves, code="x"), arm) == AttackFindings({})
    assert torch.equal(model(tokens), plain)

    def keeps(arm):
        arm.full.original_model.register_forward_hook(lambda *_: None)
        return AttackFindings({})

    with pytest.raises(WorkError, match="attack keeps left a hook"):
        run_attack(Attack("keeps", keeps, code="x"), arm)
