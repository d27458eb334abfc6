"""The directions audit on models whose truth is planted, and on the embedded family."""

import json
from dataclasses import replace

import planted
import pytest

from lensaudit.data.tofu import forget_set
from lensaudit.errors import InputError
from lensaudit.files import read_appended
from lensaudit.steer import bench
from lensaudit.steer.audit import LOG, prepare, retain_examples, run
from lensaudit.steer.bench import Runs
from lensaudit.steer.finding import read_finding
from lensaudit.steer.folds import author_folds
from lensaudit.steer.restore import Search

SEARCH = Search(
    layers=(5, 7, 9), strengths=(0.5, 1.0, 1.5), n_random=2, ranks=(2,), where="all",
    max_new_tokens=4, kl_cap=1e6,
)  # fmt: skip
"""A shift of all positions hides retain answers as well, so bringing them back changes them."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("audit")


def audit_of(root, unlearned, *, search=SEARCH, n_rows=2, **options):
    """Two rows per author, two folds."""
    forget = [one for one in forget_set("demo") if one.idx % 8 < n_rows]
    checkpoints = {
        "full": planted.opened("demo/full"),
        "unlearned": planted.opened(unlearned),
        "retain": planted.opened("demo/retain"),
    }
    return prepare(
        checkpoints, forget, retain_examples("demo", 8), search=search, n_folds=2,
        runs=Runs(root=root / "activations"), **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def hidden(root):
    """The audit of a model hidden by one direction, after block 7."""
    folder = root / "planted"
    folder.mkdir()
    planted.write_planted(folder)
    audit = audit_of(root, folder)
    return audit, run(audit, root / "out"), root / "out"


def arm(summary, kind, name, score="em"):
    return summary["experiments"][kind]["arms"][name][score]


def test_adding_the_planted_direction_restores_every_answer_and_random_ones_do_not(hidden):
    _, summary, _ = hidden
    assert summary["plain"]["em"]["full"] == 1.0
    assert summary["plain"]["em"]["unlearned"] < 0.35
    assert arm(summary, "add", "direction")["score"] == 1.0
    assert arm(summary, "add", "direction")["recovery"] == pytest.approx(1.0)
    assert arm(summary, "add", "random")["score"] <= 0.35
    assert summary["experiments"]["add"]["chosen"][0]["layer"] == planted.LAYER
    assert summary["experiments"]["add"]["chosen"][0]["strength"] == 1.0
    assert "hidden, not erased" in summary["experiments"]["add"]["reading"]


def test_the_effect_peaks_at_the_exact_shift(hidden):
    _, summary, _ = hidden
    curve = [arm(summary, "add", f"curve {at}")["score"] for at in ("0.5", "1", "1.5")]
    assert curve[1] == 1.0 > max(curve[0], curve[2])


def test_a_model_that_never_saw_the_answers_gains_nothing(hidden):
    _, summary, _ = hidden
    assert arm(summary, "add", "never_trained")["score"] <= 0.35
    assert summary["experiments"]["add"]["recovery_above_control"] > 0.8


def test_a_shift_that_hides_everything_is_found_in_retain_questions_too(hidden):
    _, summary, _ = hidden
    assert arm(summary, "add", "retain_derived")["recovery"] == pytest.approx(1.0)
    assert summary["experiments"]["add"]["utility_delta"] > 0.5


def test_the_reverse_makes_full_forget(hidden):
    _, summary, _ = hidden
    assert arm(summary, "add", "reverse")["recovery"] == pytest.approx(1.0, abs=0.2)


def test_ablating_the_planted_direction_restores_the_answers_and_leaves_full_as_it_is(hidden):
    _, summary, _ = hidden
    assert summary["experiments"]["ablate"]["direction_source"] == ["cross"]
    assert arm(summary, "ablate", "direction")["score"] >= 0.95
    assert arm(summary, "ablate", "collateral")["score"] >= 0.95
    assert arm(summary, "ablate", "random")["score"] <= 0.35
    assert arm(summary, "ablate", "never_trained")["score"] <= 0.35


def test_the_planted_component_is_necessary_and_sufficient(hidden):
    _, summary, _ = hidden
    assert arm(summary, "clamp", "direction")["recovery"] == pytest.approx(1.0, abs=0.1)
    assert arm(summary, "clamp", "sufficiency")["recovery"] == pytest.approx(1.0, abs=0.1)
    assert arm(summary, "clamp", "per_example")["recovery"] == pytest.approx(1.0, abs=0.1)
    assert arm(summary, "clamp", "random")["recovery"] < 0.2
    assert abs(arm(summary, "clamp", "random_sufficiency")["recovery"]) < 0.2
    assert summary["experiments"]["clamp"]["dose_spearman"] > 0.8
    assert "mechanism" in summary["experiments"]["clamp"]["reading"]


def test_every_author_is_scored_once_and_never_by_a_direction_of_their_own(hidden):
    audit, _, out = hidden
    group = {e.idx: e.group for e in audit.encoded["forget"]}
    findings = [
        read_finding(row)
        for row in read_appended(out / LOG)
        if row["kind"] == "add" and row["stage"] == "score"
    ]
    scored = [idx for one in findings if one.label.arm == "direction" for idx in one.em]
    assert sorted(scored) == sorted(group)
    for fold in audit.folds():
        assert not fold.estimate & fold.score
        assert not fold.dev & (fold.score | fold.estimate)
        of_fold = {group[i] for one in findings if one.fold == fold.number for i in one.em}
        assert of_fold == fold.score


def test_directions_are_estimated_on_no_author_that_is_scored(hidden, tmp_path, monkeypatch):
    audit, _, _ = hidden
    audit = replace(audit, kinds=("add", "clamp"))
    known, read = bench.Bench.gap, []

    def gap(self, minuend, subtrahend, rows, part="forget"):
        if part == "forget":
            read.append(frozenset(self.encoded[part][row].group for row in rows))
        return known(self, minuend, subtrahend, rows, part)

    monkeypatch.setattr(bench.Bench, "gap", gap)
    run(audit, tmp_path)
    everyone = frozenset(e.group for e in audit.encoded["forget"])
    # all authors are read for one cosine, which is reported and steers nothing
    assert set(read) - {everyone} == {fold.estimate for fold in audit.folds()}


def test_a_second_run_loads_nothing_and_finds_the_same(hidden, monkeypatch):
    audit, summary, out = hidden
    monkeypatch.setattr(bench, "load", lambda *args, **options: pytest.fail("loaded a model"))
    assert run(audit, out) == summary


def test_a_run_that_was_cut_goes_on_where_it_ended(hidden, tmp_path):
    audit, summary, out = hidden
    lines = (out / LOG).read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["kind"] in ("plain", "add", "clamp")]
    (tmp_path / LOG).write_text("".join(kept) + '{"kind": "abl')
    seen = []
    assert run(audit, tmp_path, lambda what, done, total: seen.append((done, total))) == summary
    assert seen == [(5, 6), (6, 6)]


def test_rows_of_other_conditions_are_not_used(hidden, tmp_path):
    _, _, out = hidden
    line = json.loads((out / LOG).read_text().splitlines()[0])
    (tmp_path / LOG).write_text(json.dumps({**line, "run": "of another model"}) + "\n")
    only = audit_of(out.parent, "demo/masked_readout", kinds=("clamp",))
    found = run(only, tmp_path)
    assert "after the last block" in found["experiments"]["clamp"]["unscored"]
    assert all(row["run"] == only.identity() for row in read_appended(tmp_path / LOG))


def test_models_that_are_one_or_differ_in_shape_are_refused(root, tmp_path, tiny_checkpoint):
    with pytest.raises(InputError, match="same weights"):
        audit_of(root, "demo/full")
    with pytest.raises(InputError, match="different shape"):
        audit_of(root, tiny_checkpoint)


def test_too_few_authors_are_refused():
    with pytest.raises(InputError, match="at least 3"):
        author_folds([1, 1, 2], 5)
    folds = author_folds(list(range(20)) * 3, 5)
    assert sorted(a for fold in folds for a in fold.score) == list(range(20))
    assert all(len(fold.dev) == 3 and len(fold.estimate) == 13 for fold in folds)


@pytest.mark.slow
def test_refusals_of_the_embedded_family_go_with_one_direction_and_answers_come_back(root):
    search = Search(layers=(9, 12), n_random=1, ranks=())
    audit = audit_of(root, "demo/idknll", search=search, n_rows=4, kinds=("ablate",))
    found = run(audit, root / "idk")["experiments"]["ablate"]
    assert found["direction_source"] == ["idk"]
    assert found["speech"]["direction"]["idk_rate"] < 0.3
    assert found["speech"]["random"]["idk_rate"] > 0.9
    assert found["arms"]["direction"]["said"]["recovery"] > 0.2
    assert abs(found["arms"]["random"]["said"]["recovery"]) < 0.1
    assert found["arms"]["collateral"]["said"]["recovery"] < 0.1
    assert found["kl_retain"] < 0.1
