"""The directions audit on models whose truth is planted, and on the embedded family."""

import json
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from support import lines_of, planted
from support.planted import finding

from lensaudit.data.tofu import forget_set
from lensaudit.errors import InputError
from lensaudit.files import write_json
from lensaudit.patching import session
from lensaudit.progress import unheard
from lensaudit.results.ledger import Ledger
from lensaudit.steer import audit as auditing
from lensaudit.steer.audit import LOG, open_audit
from lensaudit.steer.directions import ROLES, DirectionsAudit, Scores, author_folds
from lensaudit.steer.experiments import choose
from lensaudit.steer.generate import Edits, adding
from lensaudit.steer.settings import DirectionSettings

SETTINGS = DirectionSettings(
    name="planted",
    layers="5,7",
    strengths="0.5,1,1.5",
    n_random=2,
    n_folds=2,
    where="all",
    max_new_tokens=4,
    kl_cap=1e6,
)
"""A shift of all positions hides retain answers as well, so bringing them back changes them."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("audit")


def run(audit, out, progress=unheard):
    """The summary of an audit in a folder."""
    settings = replace(audit.settings, out=out)
    return auditing.run(replace(audit, settings=settings), progress).summary


def audit_of(root, unlearned, *, settings=SETTINGS, n_rows=2, ranks=(2,)):
    """Two rows per author, two folds."""
    names = ("idx", "question", "answer", "prefix", "entity", "group")
    forget = [one for one in forget_set("demo") if one.idx % 8 < n_rows]
    rows = [{name: getattr(one, name) for name in names} for one in forget]
    models = {"name": str(unlearned), "full": "demo/full", "retain": "demo/retain"}
    data = {"data": str(write_json(root / f"rows{n_rows}.json", rows)), "retain_data": "demo"}
    more = {"n_retain": 8, "activations": root / "activations"}
    return replace(open_audit(replace(settings, **models, **data, **more)), ranks=ranks)


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
    curve = [arm(summary, "add", f"curve {at}")["score"] for at in ("0.5", "1", "1.5")]
    assert curve[1] == 1.0 > max(curve[0], curve[2])
    assert arm(summary, "add", "never_trained")["score"] <= 0.35
    assert summary["experiments"]["add"]["recovery_above_control"] > 0.8
    assert arm(summary, "add", "retain_derived")["recovery"] == pytest.approx(1.0)
    assert summary["experiments"]["add"]["utility_delta"] > 0.5


def logged(out, *, fold=None):
    """Rows of the log without those of the models as they are."""
    rows = [row for row in lines_of(out / LOG) if row["kind"] != "plain"]
    return [row for row in rows if fold is None or row["fold"] == fold]


def test_the_reverse_makes_full_forget_as_the_unlearned_model_did(hidden):
    _, summary, out = hidden
    assert arm(summary, "add", "reverse")["recovery"] == pytest.approx(1.0, abs=0.2)
    (plain,) = [row for row in lines_of(out / LOG) if row["kind"] == "plain"]
    before = {role: dict(zip(plain["idx"], plain["logprob"][role], strict=True)) for role in ROLES}
    found = {}
    for row in logged(out):
        if row["arm"] == "reverse":
            found |= dict(zip(row["idx"], row["logprob"], strict=True))
    # full minus the whole shift after the block it was planted in is the model that hides
    assert found == pytest.approx(before["unlearned"], abs=0.01)
    assert min(before["full"][idx] - found[idx] for idx in found) > 0.1


def test_directions_that_are_compared_are_equally_long_and_random_ones_differ(hidden):
    _, _, out = hidden
    for kind in ("add", "clamp"):
        for fold in range(2):
            rows = [row for row in logged(out, fold=fold) if row["kind"] == kind]
            (chosen,) = [r for r in rows if (r["arm"], r["stage"]) == ("direction", "score")]
            drawn = [row for row in rows if row["arm"] == "random"]
            assert len(drawn) == len({row["seed"] for row in drawn}) == 2
            assert drawn[0]["logprob"] != drawn[1]["logprob"]
            for row in drawn:
                assert row["norm"] == pytest.approx(chosen["norm"], rel=1e-4)
    seeds = [row["seed"] for row in logged(out) if (row["kind"], row["arm"]) == ("add", "random")]
    assert len(set(seeds)) == 4


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


@pytest.mark.parametrize("kind", ["add", "ablate", "clamp"])
def test_every_author_is_scored_once_and_never_by_a_direction_of_their_own(hidden, kind):
    audit, _, out = hidden
    group = {e.idx: e.group for e in audit.encoded["forget"]}
    found = [row for row in logged(out) if (row["kind"], row["stage"]) == (kind, "score")]
    scored = [idx for row in found if row["arm"] == "direction" for idx in row["idx"]]
    assert sorted(scored) == sorted(group)
    for fold in audit.folds():
        assert not fold.estimate & fold.score
        assert not fold.dev & (fold.score | fold.estimate)
        of_fold = {group[i] for row in found if row["fold"] == fold.number for i in row["idx"]}
        assert of_fold == fold.score


class Small(NamedTuple):
    """An audit of one row per author and one setting, at a layer of the first 80 % and one deeper.

    Its findings, and those where the authors that fold 0 scores think something else.
    """

    there: Path
    altered: Path
    asked: tuple[str, ...]
    """The models beside `full`, one after the other."""


@pytest.fixture(scope="module")
def small(hidden):
    _, _, out = hidden
    settings = replace(SETTINGS, layers="9,14", strengths="1", n_random=0, max_new_tokens=1)
    audit = audit_of(out.parent, out.parent / "planted", settings=settings, n_rows=1, ranks=())
    first = audit.folds()[0]

    def other(stream):
        rows, stream = audit.rows(first.score), stream.clone()
        stream[rows] = stream[rows].flip(-1)  # as long as it was
        return stream

    def altered(name, is_forget):
        """The streams of one kind, those of the forget rows flipped."""
        known = vars(DirectionsAudit)[name].func
        made = cached_property(
            lambda self: {
                at: other(one) if is_forget(at) else one for at, one in known(self).items()
            }
        )
        made.__set_name__(DirectionsAudit, name)
        return made

    roles, plain = [], DirectionsAudit.model
    with pytest.MonkeyPatch.context() as patch:

        def told(self, role):
            roles.append(role)
            return plain(self, role)

        patch.setattr(DirectionsAudit, "model", told)
        run(audit, out.parent / "as-it-is")
    with pytest.MonkeyPatch.context() as patch:
        streams = altered("streams", lambda at: at[1] == "forget")
        patch.setattr(DirectionsAudit, "asked", altered("asked", lambda part: part == "forget"))
        patch.setattr(DirectionsAudit, "streams", streams)
        run(audit, out.parent / "altered")
    asked = tuple(role for role, _ in groupby(one for one in roles if one != "full"))
    return Small(out.parent / "as-it-is", out.parent / "altered", asked)


def numbers(rows):
    """What was done and what came of it; one arm is meant to read each example's own stream."""
    keys = ("kind", "stage", "arm", "role", "layer", "strength", "norm", "em", "logprob", "said")
    return [[row[key] for key in keys] for row in rows if row["arm"] != "per_example"]


def test_the_direction_of_retain_questions_is_as_long_as_that_of_forget_questions(small):
    # two layers above the constant shift the two differ in length
    rows = [row for row in logged(small.there) if (row["kind"], row["stage"]) == ("add", "score")]
    for fold in range(2):
        length = {row["arm"]: row["norm"] for row in rows if row["fold"] == fold}
        assert length["retain_derived"] == pytest.approx(length["direction"], rel=1e-4)


def test_of_large_models_each_is_brought_once_for_each_experiment_and_fold(small):
    assert small.asked == ("unlearned", "retain") * (1 + 3 * 2)


def test_what_scored_authors_think_is_in_no_direction_they_are_scored_under(small):
    there, altered = (logged(out, fold=0) for out in (small.there, small.altered))
    assert numbers(there) == numbers(altered)
    # the other fold's directions come from them
    there, altered = (logged(out, fold=1) for out in (small.there, small.altered))
    assert numbers(there) != numbers(altered)


def test_the_deepest_layers_are_left_out_of_ablation_alone(small):
    tried = {
        kind: {
            row["layer"]
            for row in logged(small.there)
            if (row["kind"], row["stage"]) == (kind, "dev")
        }
        for kind in ("add", "ablate", "clamp")
    }
    # 0.8 * 16 layers: up to 12
    assert tried == {"add": {9, 14}, "ablate": {9}, "clamp": {9, 14}}


COSTS = (0.5, 0.2, 0.05)
"""Nats per token on retain examples."""


class Costly(DirectionsAudit):
    """A bench that knows without a model what an arm costs, by its layer."""

    def scored(self, role, rows, settings, part="forget"):
        assert part == "retain"
        cost = torch.tensor([[COSTS[layer]] for edits in settings for _, layer in edits.at])
        return Scores(em=cost, logprob=cost, kl=cost)


@pytest.mark.parametrize(
    ("cap", "chosen"),
    [
        (1.0, 0),  # all are cheap: the best on dev
        (0.3, 1),  # the best costs too much
        (0.201, 1),
        (0.1, 2),
        (0.01, 2),  # all cost too much: the least
    ],
)
def test_an_ablation_that_changes_retain_answers_too_much_is_not_chosen(cap, chosen):
    grid = []
    for at, score in enumerate((0.9, 0.8, 0.7)):
        edits = Edits({("resid", at): adding(torch.ones(1), 1.0)})
        grid.append(finding((score,), kind="ablate", stage="dev", layer=at, edits=edits))
    bench = object.__new__(Costly)
    vars(bench).update(encoded={"retain": ()}, settings=replace(SETTINGS, kl_cap=cap))
    assert choose(bench, grid) is grid[chosen]


def test_an_ablation_within_the_cap_is_found_however_many_better_ones_cost_too_much():
    edits = [Edits({("resid", at): adding(torch.ones(1), 1.0)}) for at in (0, 2)]
    grid = [
        finding((1 - at / 100,), kind="ablate", stage="dev", layer=at, edits=edits[at == 2 * 12])
        for at in range(2 * 12 + 1)
    ]
    bench = object.__new__(Costly)
    vars(bench).update(encoded={"retain": ()}, settings=replace(SETTINGS, kl_cap=0.1))
    assert choose(bench, grid) is grid[-1]


def test_a_run_that_was_cut_goes_on_and_a_whole_one_loads_nothing(hidden, tmp_path, monkeypatch):
    audit, summary, out = hidden
    lines = (out / LOG).read_text().splitlines(keepends=True)
    rows = map(json.loads, lines)
    left = [(row.get("kind"), row.get("fold")) != ("ablate", 1) for row in rows]
    kept = [line for line, stays in zip(lines, left, strict=True) if stays]
    (tmp_path / LOG).write_text("".join(kept) + '{"kind": "abl')
    seen = []
    assert run(audit, tmp_path, lambda at: seen.append((at.done, at.of))) == summary
    assert seen == [(6, 6)]
    asked = replace(audit, settings=replace(audit.settings, out=tmp_path))
    assert auditing.plan_of(asked) == f"nothing to do: {tmp_path} holds this run already"
    (tmp_path / "summary.json").unlink()
    assert "16 forget examples" in auditing.plan_of(asked)  # its rows are there, its result is not
    monkeypatch.setattr(session, "load", lambda *args, **options: pytest.fail("loaded a model"))
    assert run(audit, out) == summary


def test_rows_of_other_conditions_are_not_used(hidden, tmp_path):
    _, _, out = hidden
    other = Ledger(tmp_path / LOG, "interventions", {})
    other.append({**row, "run": "of another model"} for row in lines_of(out / LOG))
    only = audit_of(out.parent, "demo/masked_readout", settings=replace(SETTINGS, kinds=("clamp",)))
    found = run(only, tmp_path)
    assert "after the last block" in found["experiments"]["clamp"]["unscored"]
    assert all(row["run"] == only.identity() for row in lines_of(tmp_path / LOG))


def test_models_that_are_one_or_differ_in_shape_are_refused(root, tmp_path, tiny_checkpoint):
    with pytest.raises(InputError, match="same weights"):
        audit_of(root, "demo/full")
    with pytest.raises(InputError, match="different shape"):
        audit_of(root, tiny_checkpoint)
    with pytest.raises(InputError, match="at least 3"):
        author_folds([1, 1, 2], 5)
    with pytest.raises(InputError, match="folds=99: the rows have 8 authors"):
        open_audit(DirectionSettings(name="demo/npo", limit=16, n_folds=99, out=root / "many"))
    folds = author_folds(list(range(20)) * 3, 5)
    assert sorted(a for fold in folds for a in fold.score) == list(range(20))
    assert all(len(fold.dev) == 3 and len(fold.estimate) == 13 for fold in folds)


@pytest.mark.slow
def test_refusals_of_the_embedded_family_go_with_one_direction_and_answers_come_back(root):
    settings = DirectionSettings(
        name="demo/idknll", layers="9,12", n_random=1, n_folds=2, kinds=("ablate",)
    )
    audit = audit_of(root, "demo/idknll", settings=settings, n_rows=4, ranks=())
    found = run(audit, root / "idk")["experiments"]["ablate"]
    assert found["direction_source"] == ["idk"]
    assert found["speech"]["direction"]["idk_rate"] < 0.3
    assert found["speech"]["random"]["idk_rate"] > 0.9
    assert found["arms"]["direction"]["said"]["recovery"] > 0.2
    assert abs(found["arms"]["random"]["said"]["recovery"]) < 0.1
    assert found["arms"]["collateral"]["said"]["recovery"] < 0.1
    assert found["kl_retain"] < 0.1
