import math
from dataclasses import replace

import pytest
import torch
from support import EMBEDDED
from support.audit_helpers import anew
from support.frozen import EM_LAYERS, EM_SOURCES, differences, em_numbers, frozen, save_em_rows

import lensaudit as la
from lensaudit.errors import InputError
from lensaudit.patching import exact_match, oracle, session
from lensaudit.patching.exact_match import (
    NO_FT,
    NO_REFERENCE,
    em_result,
    run_em,
)
from lensaudit.patching.prepare import prepare
from lensaudit.patching.settings import PatchSettings
from lensaudit.plans.depth import em_plan_of
from lensaudit.scores.depth import label_hit

FEW = 12
SOURCES = ("idknll", "graddiff", "npo", "simnpo")
LAYERS = ",".join(map(str, EM_LAYERS))


def preparing(family, root, **fixed):
    """Prepares audits of a family of checkpoints; one activations folder for all."""

    def prepared(*sources: str, **changes):
        settings = {
            "full": str(family / "full"),
            "retain": str(family / "retain"),
            "tau": 0.05,
            "activations": root,
            "last_layer": "reference",
            "profile": "full",
        }
        names = [str(family / source) for source in sources]
        return prepare(names, PatchSettings(**settings | fixed | changes), maps=False)

    return prepared


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Audits of the embedded family, on questions of every category and six of its layers."""
    root = tmp_path_factory.mktemp("em")
    return preparing(EMBEDDED, root, data=str(save_em_rows(root)), layers=LAYERS)


@pytest.fixture(scope="module")
def of_the_reference(shared, tmp_path_factory):
    """Audits of the family that the reference was run on."""
    family = shared / "family"
    root = tmp_path_factory.mktemp("em reference")
    return preparing(family, root, data=str(family / "forget.json"), limit=FEW)


def outcomes(audit):
    found = run_em(audit)
    return [
        em_result(name.rpartition("/")[2], checkpoint, audit, found)
        for name, checkpoint in audit.sources.items()
    ]


def check_rows(outcome, reference):
    """Texts, matches, rates and categories of one source against the reference's."""
    place = {idx: at for at, idx in enumerate(reference["idx"])}
    variant = reference["variants"][outcome.summary.source]["examples"]
    for row in outcome.rows:
        at = place[row["idx"]]
        want, s1 = variant[at], reference["s1"][at]
        assert row["s1_texts"] == [layer["response"] for layer in s1]
        assert row["s1_em"] == [layer["em"] for layer in s1]
        assert row["s2_texts"] == [layer["response"] for layer in want["s2"]]
        assert row["s2_em"] == [layer["em"] for layer in want["s2"]]
        assert row["ft"] == want["ft"]
        assert row["category"] == want["category"]
        assert row["udr"] == pytest.approx(want["udr"], abs=1e-12)
        assert row["retention"] == pytest.approx(want["retention"], abs=1e-12)
        assert row["unscored"] == (NO_FT if want["udr"] is None else None)
        for role, name in (("full",) * 2, ("retain",) * 2, ("source", outcome.summary.source)):
            baseline = reference["baselines"][name][at]
            assert row["texts"][role] == baseline["text"]
            assert row["truth_em"][role] == baseline["em_vs_gt"]


def test_matches_and_rates_are_those_that_agreed_with_the_reference(opened):
    found, wanted = {}, frozen("em")
    for outcome in outcomes(opened(*EM_SOURCES)):
        found[outcome.summary.source] = em_numbers(outcome)
    assert list(differences(found, wanted, within=1e-6)) == []
    categories = {row["category"] for one in wanted.values() for row in one["rows"]}
    assert categories == {"over", "exact", "under", "general_knowledge"}


@pytest.mark.slow
def test_all_variants_give_the_reference_s_aggregates(of_the_reference, golden):
    reference = golden("em_mode.json")
    for outcome in outcomes(of_the_reference(*SOURCES, limit=None)):
        check_rows(outcome, reference)
        summary = outcome.summary
        want = reference["variants"][summary.source]
        assert summary.udr == pytest.approx(want["avg_udr"], abs=1e-9)
        assert summary.retention == pytest.approx(want["avg_retention"], abs=1e-9)
        assert summary.categories == want["counts"]
        assert summary.category_percent == pytest.approx(want["pct"])
        assert (summary.n, summary.n_scored) == (74, want["n_evaluated"])
        retain = reference["variants"]["retain"]
        assert summary.calibration["retain"]["udr"] == retain["avg_udr"] == 1.0
        assert summary.calibration["retain"]["retention"] == pytest.approx(
            retain["avg_retention"], abs=1e-9
        )


def test_full_patched_into_itself_says_what_it_says_alone(opened):
    audit = opened("npo", last_layer="resid_post", limit=6).under(max_new_tokens=30)
    found = run_em(audit)
    own = found.texts[audit.full.weights]
    patched = found.patched_texts[audit.full.weights]
    assert all(set(texts) == {text} for texts, text in zip(patched, own, strict=True))
    assert bool((found.patched[audit.full.weights] == 1).all())
    assert bool((found.patched[audit.retain.weights] < 1).any())


def test_a_reference_longer_than_a_patched_run_is_counted(opened):
    audit = opened("npo").under(max_new_tokens=4)
    found = run_em(audit)
    best = found.patched[audit.full.weights].amax(1)
    assert found.n_cut == int((best < 1).sum()) > 0


@pytest.fixture
def counted(monkeypatch):
    """Counts the rows that are generated with and without a patch."""
    n_rows = {"generate": 0, "patched_rows": 0}
    for name in n_rows:
        real = getattr(exact_match, name)

        def counting(*arguments, name=name, real=real, **options):
            said = real(*arguments, **options)
            n_rows[name] += len(said)
            return said

        monkeypatch.setattr(exact_match, name, counting)
    return n_rows


def test_what_was_said_once_is_not_said_again(opened, counted, tmp_path, monkeypatch):
    audit = opened("npo", limit=3, activations=tmp_path)
    first = outcomes(audit)[0].rows
    assert counted == {"generate": 3 * 3, "patched_rows": 3 * 3 * 6}
    monkeypatch.setattr(session, "load", lambda *_, **how: pytest.fail("a model was loaded"))
    assert outcomes(audit)[0].rows == first
    strict = outcomes(audit.under(em_threshold=1.0))[0]  # thresholds act on reading
    assert counted == {"generate": 3 * 3, "patched_rows": 3 * 3 * 6}
    lost = [sum(cell[6] for cell in one.cells[1]) for one in (strict, outcomes(audit)[0])]
    assert lost[0] > lost[1]


def test_an_interrupted_run_goes_on_where_it_stopped(opened, counted, tmp_path, monkeypatch):
    audit = opened("npo", limit=3, activations=tmp_path, batch_size=1)
    real = exact_match.patched_rows
    done = []

    def stopped(*arguments, **options):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(1)
        return real(*arguments, **options)

    monkeypatch.setattr(exact_match, "patched_rows", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_em(audit)
    monkeypatch.setattr(exact_match, "patched_rows", real)
    plan = em_plan_of(audit)
    assert (plan.n_forward, plan.n_rows) == (0, 18)
    assert "0 texts of up to 30 tokens, unpatched" in plan.text()
    assert f"{1 * 18} texts of up to 20 tokens, patched" in plan.text()
    resumed = outcomes(audit)[0]
    assert counted["patched_rows"] == 3 * 18
    whole = outcomes(opened("npo", limit=3))[0]
    assert resumed.rows == whole.rows


def test_a_changed_setting_is_said_anew_and_fresh_forgets(opened, counted, tmp_path):
    audit = opened("npo", limit=2, activations=tmp_path)
    run_em(audit)
    n_rows = counted["patched_rows"]
    run_em(audit.under(max_new_tokens=3))
    assert counted["patched_rows"] == 2 * n_rows
    run_em(opened("npo", limit=2, activations=tmp_path, last_layer="resid_post"))
    assert counted["patched_rows"] == 3 * n_rows
    assert counted["generate"] == 3 * 2  # unpatched texts depend on neither
    assert em_plan_of(audit).n_rows == 0
    assert em_plan_of(anew(audit)).n_rows == n_rows
    run_em(anew(audit))
    assert counted["patched_rows"] == 4 * n_rows
    assert counted["generate"] == 2 * 3 * 2


def test_a_cache_gives_what_is_patched_in_at_the_prompt_s_end(ragged, opened):
    late = next(e for e in ragged if e.start > e.n_prompt - 1)
    positions = torch.tensor(late.read_positions)
    stream = positions.float().expand(3, -1).unsqueeze(-1)  # each position holds its own number
    with opened("npo", limit=1) as session:
        cached = session.streams(*session.sources.values(), session.encoded)
        source = replace(cached, handed=lambda idx, layers: (positions, stream))
        assert source.at_prompt_end(late).tolist() == [[late.n_prompt - 1.0]] * 3


def test_an_entity_without_a_first_sentence_is_never_said(opened):
    audit = opened("npo", limit=4)
    first, *others = audit.examples
    audit = replace(audit, examples=(replace(first, entity=".NET"), *others))
    (outcome,) = outcomes(audit)
    row = next(one for one in outcome.rows if one["idx"] == first.idx)
    assert set(row["truth_em"].values()) == {0.0}
    assert all(map(math.isfinite, outcome.summary.truth_em.values()))


def test_a_silent_full_leaves_the_example_unscored(opened, monkeypatch):
    audit = opened("npo", limit=4)
    real, first = exact_match.TextCache.texts, audit.encoded[0]

    def silent(kept, encoded, layers):
        said = real(kept, encoded, layers)
        of_full = kept is exact_match.kept_texts(audit)[0][0][audit.full.weights]
        return [" . Nothing"] if of_full and encoded == first else said

    monkeypatch.setattr(exact_match.TextCache, "texts", silent)
    audit = replace(audit, unscored={9999: "no token"})
    (outcome,) = outcomes(audit)
    row = next(one for one in outcome.rows if one["idx"] == audit.encoded[0].idx)
    assert row["unscored"] == NO_REFERENCE
    assert row["udr"] is row["s1_em"] is row["category"] is None
    assert row["texts"]["full"] == " . Nothing"
    summary = outcome.summary
    assert summary.n == 5
    assert sum(summary.categories.values()) == 3
    assert summary.unscored["9999"] == "no token"
    assert outcome.rows[-1]["unscored"] == "no token"


def test_the_teacher_form_counts_the_hits_of_hooked_passes(opened):
    from lensaudit.data.spans import make_batch
    from lensaudit.models.bridge import residuals

    audit = opened("npo", last_layer="resid_post").under(em_form="teacher")
    found = run_em(audit)
    batch, full = make_batch(audit.encoded), la.load_model("demo/full")
    for name, checkpoint in (("retain", audit.retain), ("npo", *audit.sources.values())):
        stack, _ = residuals(la.load_model(f"demo/{name}"), batch.tokens)
        hits = oracle.patched(full, stack, batch, layers=EM_LAYERS, label_score=label_hit)
        assert found.patched[checkpoint.weights].float().tolist() == hits.tolist()
    itself = found.patched[audit.full.weights]
    own = torch.tensor(found.own[audit.full.weights], dtype=torch.float64)
    assert torch.equal(itself, own.unsqueeze(1).expand(-1, 6))
    summary = em_result("retain", audit.retain, audit, found).summary
    assert summary.udr == 1.0
    assert 0 < summary.retention < 0.5
    assert summary.truth_em["full"] == pytest.approx(float(own.mean()))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"profile": "ke"}, "--profile"),
        ({"em_threshold": 0.0}, "--em-threshold"),
        ({"em_threshold": 1.1}, "--em-threshold"),
        ({"em_threshold": float("nan")}, "--em-threshold"),
    ],
)
def test_settings_without_a_meaning_are_refused(opened, changes, named):
    with pytest.raises(InputError, match=named):
        opened("npo", score="em", **changes)


@pytest.mark.parametrize(
    "changes", [{"scope": "prefix"}, {"scope": "boundary"}, {"component": "mlp"}]
)
def test_generation_patches_the_last_prompt_token_of_resid_alone(tmp_path, changes):
    (name,) = changes
    with pytest.raises(InputError, match=f"^--{name}: needs .*--em-form teacher"):
        la.patch("demo/npo", tmp_path / "out", score="em", limit=2, **changes)
    assert not (tmp_path / "out").exists()


def test_a_run_whose_examples_are_all_general_knowledge_is_written_without_percentages(tmp_path):
    asks = {"score": "em", "em_form": "teacher", "limit": 3, "layers": "15"}
    found = la.patch("demo/npo", tmp_path / "out", activations=tmp_path / "activations", **asks)
    assert found.record.categories["general_knowledge"] == found.record.n == 3
    assert found.summary["category_percent"] is None
