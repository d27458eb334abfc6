"""A whole run: which rows are computed, by which engine, and what survives an interruption."""

import json
import weakref

import pytest
import torch
from support.audit_helpers import audit_in, run, save_family, save_questions
from support.tolerance import NATS

from lensaudit.association.run import is_held
from lensaudit.data.facts import Fact
from lensaudit.errors import InputError, TryAgainError, VerificationError
from lensaudit.models.bridge import load, opened_once
from lensaudit.models.large import placement
from lensaudit.patching import session as session_module
from lensaudit.patching import stages, wavefront
from lensaudit.patching.scoring import score_all
from lensaudit.patching.summary import summaries
from lensaudit.plans.depth import plan_of, planned


@pytest.fixture
def audit(tiny_family, tmp_path):
    """Audits that share nothing on disk with other tests."""
    return lambda *sources, **settings: audit_in(
        tiny_family, sources or ("a",), activations=tmp_path / "activations", **settings
    )[0]


@pytest.fixture
def rows(monkeypatch):
    """Counts the rows that the sweep computes."""
    counted = []
    plain = stages.sweep

    def counting(decoder, layout, clean, sources, joins, **how):
        counted.append(int(joins.sum()))
        return plain(decoder, layout, clean, sources, joins, **how)

    monkeypatch.setattr(stages, "sweep", counting)
    return counted


@pytest.fixture(scope="module")
def tau(tiny_family):
    """Half of the rows are KE."""
    return float(run(audit_in(tiny_family)[0]).s1.median())


def uds(audit):
    return [outcome.depth.uds for outcome in score_all(audit)[0]]


def test_what_was_opened_before_a_session_counts_and_goes_with_its_own(audit, monkeypatch):
    session = audit("a", "b")
    first, second = session.sources.values()
    monkeypatch.setattr(session_module, "HELD_PART", 2**40)
    with opened_once():
        one = load(first)
        assert session.model(first) is one
        assert is_held(session.model(session.full))
        session.model(second)
        assert (is_held(one), is_held(session.model(session.full))) == (False, True)


@pytest.mark.parametrize("settings", [{}, {"device": "cpu"}])
def test_a_model_is_gone_before_the_next_is_loaded(audit, monkeypatch, settings):
    session, loaded, alive = audit("a", "b", **settings), [], []

    class Weights:
        def __init__(self):
            self.itself = self  # as a bridge does

    def loading(checkpoint, **how):
        alive.append(sum(one() is not None for one in loaded))
        model = Weights()
        loaded.append(weakref.ref(model))
        return model

    monkeypatch.setattr(session_module, "HELD_PART", 2**40)
    monkeypatch.setattr(session_module, "n_bytes", lambda model: 1)
    monkeypatch.setattr(session_module, "load", loading)
    for one in (session.retain, session.full, *session.sources.values()):
        session.model(one)
    assert session.settings.spread == (not settings)
    assert alive == [0, 0, 1, 1]  # `full` stays, and what runs beside it


@pytest.mark.parametrize("settings", [{}, {"device": "cpu"}])
def test_what_earlier_models_left_too_little_for_is_to_be_run_again(audit, monkeypatch, settings):
    with audit(**settings) as session:
        monkeypatch.setattr(placement, "free_bytes", lambda device: 0)
        with pytest.raises(InputError, match="may be enough"):
            session.model(session.full)
        monkeypatch.undo()
        session.model(session.full)
        monkeypatch.setattr(placement, "free_bytes", lambda device: 0)
        with pytest.raises(TryAgainError, match="what was computed is kept, run it again"):
            session.model(session.retain)


def test_both_engines_give_the_same_deltas_and_say_who_computed(audit):
    swept, slow = (
        run(audit("a", "b", profile="full")),
        run(audit("a", "b", profile="full", engine="oracle")),
    )
    assert (swept.engine, slow.engine) == ("sweep", "oracle")
    assert (swept.s1 - slow.s1).abs().max() <= 1e-4
    for name in swept.s2:
        assert (swept.s2[name] - slow.s2[name]).abs().max() <= 1e-4
        assert swept.s2[name].abs().max() > 0.1
    assert swept.self_patch.abs().max() == 0
    assert slow.self_patch.abs().max() == 0


def test_full_patched_into_itself_loses_nothing_where_its_rows_are_swept(audit, monkeypatch):
    def none(clean, sources, layout):
        return torch.zeros(len(sources), layout.n_examples, len(clean.span), dtype=torch.bool)

    # else they take the clean run's score, and no sweep is seen
    monkeypatch.setattr(wavefront, "unchanged", none)
    assert run(audit("a", profile="full")).self_patch.abs().max() <= 1e-5


def test_ke_rows_are_enough_for_the_same_uds(audit, rows, tau):
    whole = uds(audit("a", "b", profile="full", tau=tau))
    n_full = sum(rows)
    rows.clear()
    part = audit("a", "b", tau=tau, fresh=True)
    assert part.settings.profile == "ke"  # the default for several sources
    found = run(part)
    assert sum(rows) < n_full
    for wanted, got in zip(whole, uds(audit("a", "b", tau=tau)), strict=True):
        assert (wanted - got).abs().nan_to_num().max() <= NATS
        assert torch.equal(wanted.isnan(), got.isnan())
    ke = found.s1 > tau
    assert ke.any()
    assert not ke.all()
    for s2 in (*found.s2.values(), found.self_patch):
        assert torch.equal(s2.isfinite(), ke)


def test_a_lower_tau_computes_only_what_is_new(audit, rows, tau):
    run(audit("a", profile="ke", tau=tau))
    rows.clear()
    found = run(audit("a", profile="ke", tau=tau / 2))
    new = int(((found.s1 > tau / 2) & (found.s1 <= tau)).sum())
    assert new > 0
    preflight = 4  # two examples, at two layers
    assert sum(rows) == 2 * new + preflight  # of the source, and of full patched into itself


def test_a_dry_run_counts_and_leaves_everything(audit):
    plan = plan_of(audit())
    assert (plan.n_rows, plan.n_forward) == (9 * 4 * 3, 27)
    assert not audit().root.exists()
    run(audit())
    books = {path: path.read_text() for path in audit().root.glob("scores/*")}
    plan = plan_of(audit())
    assert (plan.n_rows, plan.n_forward) == (0, 0)
    plan = plan_of(audit(fresh=True))
    assert (plan.n_rows, plan.n_forward) == (9 * 4 * 3, 0)
    assert books == {path: path.read_text() for path in audit().root.glob("scores/*")}


def test_one_more_source_shares_s1_and_the_clean_run(audit, rows):
    run(audit("a", profile="full"))
    rows.clear()
    assert plan_of(audit("a", "b", profile="full")).n_rows == 9 * 4
    run(audit("a", "b", profile="full"))
    assert sum(rows) == 9 * 4 + 4


@pytest.mark.misuse
def test_a_list_does_as_well_as_a_tuple(audit):
    run(audit("a", exclude=[]))
    assert plan_of(audit("a")).n_rows == 0


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}


@pytest.mark.parametrize(
    ("kind", "changes", "what"),
    [
        ("Bloom", {"n_head": 4}, "BloomForCausalLM"),
        ("Llama", {"rope_parameters": DYNAMIC}, "dynamic rotary embeddings"),
        ("StableLm", {"qk_layernorm": True}, "attention with qk_layernorm"),
        (
            "GPT2",
            {"reorder_and_upcast_attn": True, "num_key_value_heads": 4},
            "attention with reorder_and_upcast_attn",
        ),
    ],
)
def test_what_is_not_verified_goes_to_the_oracle_with_a_notice_and_is_so_planned(
    tmp_path, tiny_tokenizer, kind, changes, what
):
    folder = save_family(tmp_path, tiny_tokenizer, kind, names=("full", "retain", "a"), **changes)
    audit, notices = audit_in(save_questions(folder, n=3))
    # of three models one cache each: only the sweep reads the clean run of full
    assert plan_of(audit_in(folder, component="attn")[0]).n_forward == 3 * 3
    found = run(audit)
    assert found.engine == "oracle"
    assert notices == [f"the sweep is not verified on {what}; one pass per layer is used instead"]
    again, _ = audit_in(folder)
    assert plan_of(again).n_rows == 0
    outcomes, _ = score_all(audit)
    assert outcomes[0].settings.engine == "oracle"
    assert found.self_patch.abs().max() == 0
    assert next(iter(found.s2.values())).abs().max() > 0.01
    # the lens passes nothing, by either engine
    reading, said = audit_in(folder, score="lens")
    score_all(reading)
    assert said == []


def test_rows_that_the_oracle_kept_without_a_retain_model_are_not_planned_again(
    tmp_path, tiny_tokenizer
):
    folder = save_family(tmp_path, tiny_tokenizer, "Bloom", names=("full", "a"), n_head=4)
    given = {"retain": "none", "ask": "none"}
    audit, _ = audit_in(save_questions(folder), **given)
    assert planned(audit, None).n_rows > 2 * 9 * 4  # of full and the source, and the anchor's
    with audit:
        summaries(audit)
    assert planned(audit_in(folder, **given)[0], None).n_rows == 0


def test_hooks_on_full_stop_the_sweep_and_not_the_oracle(audit, monkeypatch):
    from lensaudit.patching import session as module

    plain = module.load

    def hooked(*arguments, **options):
        model = plain(*arguments, **options)
        model.add_hook("blocks.1.hook_out", lambda value, hook: value * 1.5)
        return model

    monkeypatch.setattr("lensaudit.patching.session.load", hooked)
    with pytest.raises(VerificationError, match="--engine oracle"):
        run(audit())
    assert run(audit(engine="oracle")).engine == "oracle"


def test_rows_longer_than_the_context_are_unscored_and_other_settings_told(
    tmp_path, tiny_tokenizer
):
    folder = save_questions(save_family(tmp_path, tiny_tokenizer, max_position_embeddings=16))
    config = json.loads((folder / "a" / "config.json").read_text())
    (folder / "a" / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    audit, notices = audit_in(folder)
    assert {len(e.token_ids) <= 16 for e in audit.encoded} == {True}
    assert audit.unscored
    assert all("model's context of 16" in why for why in audit.unscored.values())
    (said,) = (one for one in notices if "other settings" in one)
    assert "rms_norm_eps 0.001" in said
    assert len(said.splitlines()) == 1


def test_rows_for_maps_and_validity_longer_than_the_context_are_left_out_and_counted(
    tmp_path, tiny_tokenizer
):
    family = save_family(tmp_path, tiny_tokenizer, "GPT2", max_position_embeddings=40)
    audit, notices = audit_in(save_questions(family))
    said = "w7", "w7 " * 40
    rows = [Fact(n, "w5 w6", one, "", one, n) for n, one in enumerate(said)]
    assert [e.idx for e in audit.encode(rows)] == [0]
    (said,) = (one for one in notices if "neutral rows" in one)
    assert said.startswith("1 of 2 neutral rows left out: ")
    assert "longer than the model's context of 40" in said


def test_heads_are_counted_whatever_the_configuration_calls_them(tmp_path, tiny_tokenizer):
    folder = save_family(tmp_path, tiny_tokenizer, "GPT2", num_key_value_heads=4)
    save_questions(folder)
    audit_in(folder, component="head:3")
    with pytest.raises(InputError, match="the model has heads 0 to 3"):
        audit_in(folder, component="head:4")
