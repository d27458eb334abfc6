"""Validity, aligned depth and the floor on the embedded family and on a turned copy of it."""

import math
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import checkpoint_of
from support.audit_helpers import anew, run
from support.tolerance import NATS

from lensaudit.activations.store import Activations
from lensaudit.data.neutral import Neutral, neutral_of
from lensaudit.data.spans import Encoded, make_batch
from lensaudit.errors import InputError
from lensaudit.gym import edits
from lensaudit.models import likeness
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import load_tokenizer
from lensaudit.patching import session as module
from lensaudit.patching.alignment import one_a_group, one_direction, without_shared
from lensaudit.patching.controls import controls_of, examined, weakest_of
from lensaudit.patching.oracle import layer_deltas
from lensaudit.patching.outcome import outcome_of, summary_of
from lensaudit.patching.prepare import prepare
from lensaudit.patching.session import Session
from lensaudit.patching.settings import PatchSettings
from lensaudit.plans.depth import planned
from lensaudit.scores.depth import depth_score
from lensaudit.verdict.collect import judge_run, verdicts
from lensaudit.verdict.views import read_calibration


def turned(checkpoint: str, folder: Path) -> Path:
    """The same function in another orthonormal basis of the stream."""
    opened = checkpoint_of(checkpoint)
    edits.turned(load_causal(opened), edits.random_turn(64, 0)).save_pretrained(folder)
    load_tokenizer(opened).save_pretrained(folder)
    return folder


def examined_alone(audit, found, neutral, name=None, **settings):
    """The controls of every source, or of the one that is named."""
    sources = {one: audit.sources[one] for one in audit.sources if name in (None, Path(one).name)}
    outcomes = [one for one in found.outcomes if one.source in sources]
    with replace(audit, sources=sources, settings=replace(audit.settings, **settings)) as alone:
        shown = examined(alone, outcomes, neutral)
    return shown if name is None else next(iter(shown.values()))


@pytest.fixture(scope="module")
def bench(tmp_path_factory, one_type):
    """Examined sources of the embedded family, a few examples of each author."""
    folder = tmp_path_factory.mktemp("evidence")
    models = {
        "full_turned": turned("demo/full", folder / "full_turned"),
        "retain_turned": turned("demo/retain", folder / "retain_turned"),
    }
    names = ["demo/masked_upper", "demo/never", *map(str, models.values())]
    audit = prepare(
        names,
        PatchSettings(
            full="demo/full",
            retain="demo/retain",
            data="demo",
            layers="3,7,11,14",
            activations=folder / "activations",
        ),
        notice=lambda line: None,
    )
    # three facts of every author
    chosen = [e for e in audit.encoded if e.idx % 8 < 3]
    audit = replace(audit, encoded=tuple(chosen))
    neutral = neutral_of("demo", audit.examples)
    with audit:
        found = run(audit)
        shown = examined(audit, found.outcomes, neutral)
    return audit, found, neutral, {Path(name).name: one for name, one in shown.items()}


def word(audit, found, name, one):
    """What a summary of this source would say."""
    outcome = next(found for found in found.outcomes if Path(found.source).name == name)
    summary = replace(summary_of(outcome, {"full": 0.0, "retain": 1.0}), **vars(one))
    return judge_run(summary, one.beside(outcome.rows()), read_calibration())


def test_a_turned_copy_of_full_says_the_same_and_reads_as_erased_by_uds_alone(bench):
    audit, found, _, shown = bench
    one = shown["full_turned"]
    assert one.outputs.source == one.outputs.full == 1.0
    assert (one.outputs.n_groups, one.outputs.per_author) == (8, 3)
    assert one.validity.d_share > 0.8
    assert one.aligned.uds.value < 1e-3
    assert one.aligned.r2 > 0.999
    assert one.aligned.d_share < 1e-3
    assert word(audit, found, "full_turned", one).code == "answers"


def test_a_turned_copy_of_retain_is_not_said_to_hold_anything(bench):
    audit, found, _, shown = bench
    one = shown["retain_turned"]
    assert one.validity.d_share > 0.8
    assert one.aligned.uds.value > 0.97
    assert one.aligned.weakest.erasure.value > 0.7
    assert one.aligned.d_share < 0.1
    assert word(audit, found, "retain_turned", one).code in ("erased", "undecided")


def test_a_model_that_hides_is_hidden_and_one_that_never_knew_is_erased(bench):
    audit, found, _, shown = bench
    assert word(audit, found, "masked_upper", shown["masked_upper"]).code == "hidden"
    assert not shown["masked_upper"].validity.needed
    assert shown["masked_upper"].validity.v is None
    assert shown["never"].aligned.uds.value > 0.8
    # full aligned onto itself changes nothing, and shuffled pairs find nothing in any model
    assert 0 <= shown["never"].aligned.full < 1e-4
    assert all(one.aligned.shuffled > 0.95 for one in shown.values() if one.aligned.kind)
    assert shown["never"].validity.d_share < 0.1


def test_validity_is_d_over_f_and_its_scale_is_another_rows_stream(bench):
    audit, found, _, shown = bench
    one = shown["full_turned"].validity
    assert one.v == pytest.approx(one.d / one.f)
    # worked again from the deltas: weights are mean S1 of the layers that encode the set
    ke, s1 = found.s1 > audit.settings.tau, found.s1.double()
    weights = s1.where(ke, 0).mean(0) * (s1.mean(0) > audit.settings.tau)
    s2 = found.s2[next(name for name in audit.sources if "full_turned" in name)].double()
    cells = weights.expand_as(s1) * ke
    drop = (cells * s2.where(ke, 0)).sum() / cells.sum()
    assert one.f == pytest.approx(float(drop), rel=1e-6)


def test_the_weakest_layer_is_the_least_erased_of_the_strong_ones():
    # mean S1 by layer: 0.1, 1.1, 1.3, 4: .3 of the largest is 1.2, the strong are the last two
    s1 = torch.tensor([[0.1, 1.1, 1.3, 4.0], [0.1, 1.1, 1.3, 4.0]])
    s2 = torch.tensor([[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.65, 3.0]])
    rows = [Encoded(author, author, (1, 2), n_prompt=1, start=0, end=1) for author in (0, 1)]
    found = weakest_of(s1, depth_score(s1, s2), rows, (4, 5, 6, 7))
    assert found is not None
    assert (found.layer, found.erasure.value) == (6, pytest.approx((0 + 0.5) / 2))
    # what two kernels give for 0.5 of the third layer and of the last: the first of both
    like = torch.tensor([[0.0, 0.0, 0.65, 2.0], [0.0, 0.0, 0.65, 2.0]])
    other = like - torch.tensor([0.0, 0.0, 0.0, 4e-6])
    for s2 in (like, other):
        assert weakest_of(s1, depth_score(s1, s2), rows, (4, 5, 6, 7)).layer == 6
    nothing = torch.zeros(2, 4)
    assert weakest_of(nothing, depth_score(nothing, s2), rows, (4, 5, 6, 7)) is None


def test_what_a_model_says_is_read_out_of_its_cache_without_running_it(bench, monkeypatch):
    # nothing is known from before
    audit, other = anew(bench[0]), anew(bench[0])
    source = audit.sources["demo/masked_upper"]
    rows = audit.encoded
    with audit, monkeypatch.context() as patch:
        patch.setattr(module, "logits_of", None)
        read = audit.answers(source, rows)
    with other, monkeypatch.context() as patch:
        patch.setattr(module.Session, "_cache_there", lambda *_: None)
        ran = other.answers(source, rows)
    assert torch.allclose(read[0], ran[0], atol=1e-4)
    assert read[1].tolist() == ran[1].tolist()
    assert 0 < read[1].sum() < len(rows)


def test_without_neutral_rows_nothing_is_called_erased(bench):
    audit, found, _, _ = bench
    shown = examined_alone(audit, found, Neutral((), (), why="no rows are known"))
    for name, one in shown.items():
        assert one.validity.why == "no rows are known"
        assert one.aligned.uds is None
        expected = "answers" if "full_turned" in name else "hidden" if "masked" in name else None
        found_word = word(audit, found, Path(name).name, one)
        assert found_word.code == (expected or "undecided")


def test_further_retain_models_make_a_floor(bench):
    audit, found, neutral, _ = bench
    audit = replace(audit, retains={"never": checkpoint_of("demo/never")})
    one = examined_alone(audit, found, neutral, "retain_turned")
    assert one.floor.n_models == 2
    assert 0.7 < one.floor.low <= one.floor.high <= 1
    assert len(one.floor.aligned) == len(one.floor.uds) == 1
    assert one.floor.low <= one.floor.aligned[0] <= one.floor.high
    assert 0.7 < one.floor.uds[0] < 1
    assert word(audit, found, "retain_turned", one).code in ("erased", "undecided")


@pytest.mark.parametrize("rows", ["none", "no map"])
def test_further_retain_models_have_a_plain_depth_without_a_map(bench, rows):
    audit, found, neutral, _ = bench
    audit = replace(audit, retains={"never": checkpoint_of("demo/never")})
    there = Neutral((), (), why="no rows are known") if rows == "none" else neutral
    one = examined_alone(audit, found, there, "never", align="none")
    # what `never` reads as a source, it reads as a further model
    wanted = next(one.uds for one in found.outcomes if one.source == "demo/never")
    assert one.floor.uds == pytest.approx((wanted,))
    assert (one.floor.low, one.floor.high, one.floor.n_models) == (None, None, 2)
    assert one.floor.aligned == ()
    named = planned(audit, there).lines[0]
    assert named.startswith("models: full demo/full, retain demo/retain, retain demo/never, source")


def test_further_retain_models_that_no_stream_is_compared_with_are_told(bench):
    audit, said = bench[0], []
    audit = replace(audit, retains={"never": checkpoint_of("demo/never")}, notice=said.append)
    for asked in ({"component": "mlp"}, {"score": "em"}):
        controls_of(audit.under(**asked))
    left_out = "--retain: further models are left out"
    assert said == [
        f"{left_out} (component mlp: streams are compared for resid only)",
        f"{left_out} (--score em: their depth is no part of it)",
    ]


def test_what_fits_neither_before_nor_after_a_map_is_unreadable(bench, monkeypatch):
    audit, found, neutral, _ = bench
    name = next(name for name in audit.sources if "retain_turned" in name)
    # the same tokens, said to be others: nothing is patched in as it is
    monkeypatch.setattr(likeness, "tokenization", lambda one: one.tokenizer)
    other = replace(audit.sources[name], tokenizer="another")
    one_source = replace(audit, sources={name: other})
    deltas = found.baseline, found.s1, torch.full_like(found.s1, math.nan)
    rows = audit.encoded, audit.unscored, audit.settings
    nothing = SimpleNamespace(outcomes=[outcome_of(name, *rows, *deltas, misfit="other tokens")])
    (one,) = examined_alone(one_source, nothing, neutral, align="shift").values()
    assert one.validity.d_share is None
    assert one.aligned.uds.value > 0.9
    assert one.aligned.d_share > 0.1
    assert word(one_source, nothing, "retain_turned", one).code == "unreadable"


def test_too_few_tokens_name_the_number_that_is_needed(bench):
    audit, found, neutral, _ = bench
    short = replace(neutral, fit=neutral.fit[:1])
    with pytest.raises(InputError, match="wanted 2 per dimension, 128"):
        examined_alone(audit, found, short, "full_turned", align="procrustes")
    one = examined_alone(audit, found, short, "full_turned")
    assert one.aligned.uds is None
    assert "128" in one.aligned.why
    none = examined_alone(audit, found, replace(neutral, fit=()), "never")
    assert "name rows of other authors with --align-data" in none.aligned.why


def test_changed_map_files_are_fitted_again(bench, tmp_path):
    audit, found, neutral, shown = bench
    for path in (audit.root / "maps").glob("*.safetensors"):
        content = bytearray(path.read_bytes())
        content[-100] ^= 1
        path.write_bytes(bytes(content))
    again = examined_alone(audit, found, neutral, "retain_turned").aligned.uds.value
    assert math.isclose(again, shown["retain_turned"].aligned.uds.value, abs_tol=1e-9)


def read_naively(models, moved, rows, layers, others_of, n=1):
    """Drop by row and layer without the first singular vectors of the rows named by `others_of`."""
    full = models.streams(models.full, rows)
    at = {e.idx: torch.arange(e.start, e.end) for e in rows}
    y = {e.idx: full.activations.example(e.idx).at(at[e.idx]).resid.double() for e in rows}
    x = {}
    for e in rows:
        positions, resid = moved.example(e.idx)
        x[e.idx] = resid[:, torch.isin(positions, at[e.idx])].double()
    found = []
    for e in rows:
        others = others_of(e)
        batch = make_batch([e])
        stack = torch.zeros(1, len(y[e.idx]), len(e.token_ids), 64)
        for layer in layers:
            apart = torch.cat([x[o][layer] - y[o][layer] for o in others])
            v = torch.linalg.svd(apart, full_matrices=False).Vh[:n]
            mean = torch.cat([y[o][layer] for o in others]).mean(0) @ v.T
            own = x[e.idx][layer]
            stack[0, layer, at[e.idx]] = (own + (mean - own @ v.T) @ v).float()
        with torch.no_grad():
            drop = layer_deltas(models.model(models.full), stack, batch, layers=layers)
        found.append(drop[0])
    return torch.stack(found)


def test_the_depth_without_the_shared_direction_is_that_of_a_plain_computation(bench, monkeypatch):
    audit, found, neutral, shown = bench
    one_source = replace(audit, sources={"demo/never": audit.sources["demo/never"]})
    seen, filled = {}, Session.fill

    def fill(self, rows, streams, layers, *, only=None):
        if rows == audit.encoded:
            seen.update(streams)
        filled(self, rows, streams, layers, only=only)

    monkeypatch.setattr(Session, "fill", fill)
    with one_source as models:
        examined(models, found.outcomes[1:2], neutral)
        never, retain = audit.sources["demo/never"].weights, audit.retain.weights
        mapped = next(key for key in seen if f"{never}+map-" in key)
        shared = next(key for key in seen if f"{never}+shared-" in key)
        scale = next(key for key in seen if f"{retain}+map-" in key)
        layers, rows = list(audit.settings.at_layers), audit.encoded

        def others(e):
            return [o.idx for o in rows if o.group != e.group]

        def in_other_folds(e):
            # rows stand by author: every eighth is in one fold
            place = [o.idx for o in rows].index(e.idx)
            return [o.idx for at, o in enumerate(rows) if at % 8 != place % 8]

        naive = read_naively(models, seen[mapped], rows, layers, others)
        many = next(key for key in seen if f"{never}+many-" in key)
        each = read_naively(models, seen[mapped], rows, layers, in_other_folds, 8)
        assert torch.allclose(each, models.read(many, rows, layers), atol=1e-4)
        s1 = models.read(scale, rows, layers)
        aligned = depth_score(s1, models.read(mapped, rows, layers)).uds
        assert torch.allclose(naive, models.read(shared, rows, layers), atol=1e-4)
        again = models.streams(models.full, rows), rows, layers, 1, one_direction(rows)
        carried = []

        def handed(idx, at):
            carried.append((idx, at))
            return seen[mapped].handed(idx, at)

        one_by_one = without_shared(replace(seen[mapped], handed=handed), *again)
        for e in rows[:3]:
            assert torch.equal(one_by_one.example(e.idx)[1], seen[shared].example(e.idx)[1])
        # of the directions' streams each layer is carried once, however little memory there is
        parts = Counter((idx, *at) for idx, at in carried if at is not None)
        assert parts == {(e.idx, layer): 1 for e in rows for layer in layers}
    uds = depth_score(s1, naive).uds
    one = shown["never"].aligned
    assert one.shared.uds.value == pytest.approx(float(uds.double().mean()), abs=1e-5)
    assert one.shared.drop.value == pytest.approx(float((aligned - uds).mean()), abs=1e-5)
    assert one.uds.value == pytest.approx(float(aligned.double().mean()), abs=NATS)


class Pushed(Activations):
    """A cache in whose forget rows a vector was added to every layer; both know each author."""

    def __init__(self, activations, vector_of):
        vars(self).update(vars(activations), vector_of=vector_of)

    def example(self, idx, **options):
        found = super().example(idx, **options)
        return replace(found, resid=found.resid + self.vector_of(idx))


@pytest.fixture
def pushed(bench, monkeypatch, tmp_path):
    """What `masked_upper` reads with a vector of 6 streams added, which a function of idx draws."""
    audit, _, neutral, _ = bench
    name = "demo/masked_upper"
    elsewhere = replace(audit.settings, activations=tmp_path, align="procrustes")
    one_source = replace(audit, settings=elsewhere, sources={name: audit.sources[name]})
    streams = Session.streams

    def by(drawn_of):
        def vector_of(idx):
            drawn = torch.Generator().manual_seed(drawn_of(idx))
            return torch.nn.functional.normalize(torch.randn(64, generator=drawn), dim=0)

        def added(self, checkpoint, rows):
            found = streams(self, checkpoint, rows)
            if checkpoint.weights != audit.sources[name].weights or rows != audit.encoded:
                return found
            length = 6 * found.activations.example(rows[0].idx).resid.norm(dim=-1).mean()
            more = Pushed(found.activations, lambda idx: length * vector_of(idx))
            return replace(found, activations=more)

        with one_source:
            found = run(one_source)
        monkeypatch.setattr(Session, "streams", added)
        return examined_alone(one_source, found, neutral, "masked_upper").aligned

    return by


def test_a_vector_added_wherever_the_facts_are_asked_is_seen_through(bench, pushed):
    shown = bench[3]
    one = pushed(lambda idx: 1)
    assert one.uds.value > 0.9
    assert one.shared.uds.value < 0.2
    assert one.shared.weakest.erasure.value < 0.2
    assert one.shared.drop.value > 0.7
    # it lies several times as far from full's as what never knew them
    assert one.shift.times > 3
    for name in ("never", "retain_turned"):
        assert shown[name].aligned.shift.times < 1.25
    assert max(shown["never"].aligned.shift.per_layer) == shown["never"].aligned.shift.times
    # a model without the facts is what it was
    assert abs(shown["never"].aligned.shared.drop.value) < 0.05
    assert abs(shown["retain_turned"].aligned.shared.drop.value) < 0.05


def test_a_vector_for_each_author_is_seen_through_by_as_many_directions(bench, pushed):
    shown = bench[3]
    one = pushed(lambda idx: idx // 8)
    assert one.uds.value > 0.9
    assert one.shared.uds.value > 0.8  # other authors' vectors say nothing of an author's own
    assert one.many.n == 8
    assert one.many.uds.value < 0.3
    for name in ("never", "retain_turned"):
        assert abs(shown[name].aligned.many.drop.value) < 0.15


def test_directions_of_an_author_are_learnt_from_its_other_facts_and_never_from_the_judged(bench):
    rows = bench[0].encoded
    found = one_a_group(rows, 64)
    assert found.folds == one_a_group(rows[::-1], 64).folds
    for e in rows:
        alike = [o for o in rows if found.folds[o.idx] == found.folds[e.idx]]
        assert [o.idx for o in alike if o.group == e.group] == [e.idx]
    # 8 authors; of a stream of 32 dimensions an eighth may go, of an author each row its own 24
    assert [one_a_group(rows, d).n for d in (64, 32, 4)] == [8, 4, 1]
    own = [replace(e, group=f"idx {e.idx}") for e in rows]
    assert one_a_group(own, 512).n == len(rows) == 24
    assert one_a_group(own, 64).key("m", own) != found.key("m", rows)


def test_one_author_shares_with_no_other_and_rows_without_authors_are_each_their_own(bench):
    audit, found, neutral, _ = bench
    group = audit.encoded[0].group
    here = [at for at, e in enumerate(audit.encoded) if e.group == group]

    def shared(groups):
        rows = tuple(
            replace(audit.encoded[at], group=own) for at, own in zip(here, groups, strict=True)
        )
        deltas = found.baseline[here], found.s1[here], found.s2["demo/never"][here]
        few = outcome_of("demo/never", rows, {}, audit.settings, *deltas)
        sources = {"demo/never": audit.sources["demo/never"]}
        of_one = replace(audit, encoded=rows, sources=sources)
        few = SimpleNamespace(outcomes=[few])
        (one,) = examined_alone(of_one, few, neutral).values()
        return one.aligned

    alone = shared([group] * len(here))
    assert alone.uds is not None
    assert alone.shared.uds is None
    assert alone.shared.why == "1 author: no other's facts to take a shared direction from"
    own = shared([f"idx {at}" for at in here])
    assert own.shared.uds is not None
    assert own.uds.value == alone.uds.value


@pytest.mark.slow
def test_limits_are_the_same_under_every_make_of_kernel(tmp_path):
    """`demo/masked_readout` reads 0 on every row, up to the noise of its kernels."""
    found = []
    for makes in (("default", "SSE41"), ("avx2", "AVX2"), ("avx512", "AVX512_CORE")):
        names = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
        out = tmp_path / makes[0]
        asked = ["patch", "--source", "demo/masked_readout", "--limit", "16"]
        asked += ["--activations", str(out / "kept"), "--out", str(out / "out")]
        subprocess.run(
            [sys.executable, "-m", "lensaudit", *asked],
            env=os.environ | dict(zip(names, makes, strict=True)),
            check=True,
            timeout=300,
            capture_output=True,
        )
        (one,) = verdicts([out / "out"]).models
        held = {view.name: view.held for view in one.views if view.held is not None}
        found.append(
            {name: [one and round(one, 3) for one in (h.low, h.high)] for name, h in held.items()}
        )
    assert found[0] == found[1] == found[2]
    assert found[0]["uds"][1] is not None
