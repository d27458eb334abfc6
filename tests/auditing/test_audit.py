import dataclasses
import json
import re
import shutil
import threading
from functools import partial
from pathlib import Path

import pytest
from rich.table import Table
from safetensors.torch import load_file, save_file
from support import EMBEDDED, taken_for_tofu, verdict_support
from support.page_reader import Answers
from support.tolerance import NATS

import lensaudit as la
from lensaudit.association.calls import WHO_HAS_WHAT
from lensaudit.attacks.rtt.embedded import embedded_rows
from lensaudit.auditing import audit, calls
from lensaudit.auditing.audit import BUSY, open_audit
from lensaudit.auditing.measuring import Steps, measure
from lensaudit.auditing.question import anchored, asked_of_patch, evaluations
from lensaudit.auditing.settings import AuditSettings
from lensaudit.cli.main import run
from lensaudit.errors import InputError, WorkError
from lensaudit.evaluation import passes
from lensaudit.models import checkpoint
from lensaudit.models.registry import load_registry, resolve
from lensaudit.plans.audit import plan_of
from lensaudit.results.kinds.know import KnowControl, KnowRecord
from lensaudit.screen.depth import of_audit, said_and_held
from lensaudit.screen.tables import as_markdown
from lensaudit.turns import in_turn
from lensaudit.verdict.collect import verdicts
from lensaudit.verdict.views import hundredths

audited_into = partial(calls.audited, who=WHO_HAS_WHAT)
LIMIT = 2
MODELS = ("retain", "masked_readout", "never")
BARE = dict.fromkeys(("association", "align", "ask"), "none")
"""Little beside the depth and the evaluations."""


SOURCES = ["demo/masked_readout", "demo/never"]


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """An audit of two models in one call: results, folder, what was told."""
    folder = tmp_path_factory.mktemp("audit")
    told = []
    found = la.audit(
        SOURCES,
        folder / "out",
        told.append,
        limit=LIMIT,
        activations=str(folder / "activations"),
    )
    return found, folder, told


def plan_audit(*asked, who=WHO_HAS_WHAT, **more):
    return plan_of(open_audit(*asked, who=who, **more))


def settings_of(folder, **changes):
    return AuditSettings(limit=LIMIT, activations=folder / "activations", **changes)


def test_one_call_says_what_is_held_and_what_is_said(audited):
    (hidden, never), folder, told = audited
    assert [hidden.source, never.source] == SOURCES
    assert hidden.folder == never.folder == folder / "out"
    assert hidden.uds < 0.3 < 0.8 < never.uds
    # one question of each of two authors
    assert (hidden.ci95, hidden.patch.summary["ci95_why"]) == (None, "2 authors: no interval")
    assert (hidden.failures, hidden.reason) == ((), None)
    written = json.loads((hidden.patch.folder / "summary.json").read_text())
    assert hidden.summary == written
    # as of a model that is audited alone
    assert written["profile"] == "full"
    assert None not in [one["s2"] for one in written["per_layer"]]
    log = json.loads((hidden.evaluation.folder / "TOFU_EVAL.json").read_text())
    for name, value in hidden.metrics.items():
        assert log[name]["agg_value"] == value
    assert hidden.metrics["forget_quality"] is not None  # compared with the retain model's log
    assert hidden.metrics["uds"] is None
    assert hidden.evaluation.why_not("uds").startswith("no retain model")
    stages = dict.fromkeys(one.stage for one in told)
    assert [*stages][-3:] == [f"evaluating demo/{name}" for name in MODELS]
    assert {s: (one.done, one.of) for one in told if (s := one.stage) in stages}[
        "evaluating demo/masked_readout"
    ] == (18, 18)


def test_who_has_what_is_not_left_out_in_silence(tmp_path):
    """Whoever calls the core alone hands the step on, or says that nobody is asked."""
    place = tmp_path / "out"
    with pytest.raises(ValueError, match="the step that asks who has what was not given"):
        plan_audit(["demo/npo"], settings_of(tmp_path), place, who=None)
    with pytest.raises(ValueError, match="the step that asks who has what was not given"):
        calls.audited(["demo/npo"], settings_of(tmp_path), place)
    plan = plan_audit(["demo/npo"], settings_of(tmp_path, association="none"), place, who=None)
    assert (plan.associations, place.exists()) == ({}, False)


def test_a_folder_is_the_same_by_its_absolute_path(audited, tmp_path, monkeypatch, caplog):
    _, folder, _ = audited
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder / "activations", "activations")
    names, settings = ["demo/masked_readout"], AuditSettings(limit=LIMIT, **BARE)
    la.audit(names, "out", limit=LIMIT, **BARE)
    for place in (Path("out"), tmp_path / "out", Path("out/../out")):
        assert all(one.done for one in plan_audit(names, settings, place).evaluations.values())
    caplog.clear()
    la.audit(names, tmp_path / "out", limit=LIMIT, **BARE)
    assert "another run" not in caplog.text


def test_the_plan_is_what_is_done(audited, tmp_path):
    _, folder, told = audited
    plan = plan_audit(
        ["demo/masked_readout", "demo/never"], settings_of(tmp_path), tmp_path / "out"
    )
    # what the controls read is told apart: how much of it is wanted follows from the score
    cached = {
        one.stage: one.of
        for one in told
        if one.stage.startswith("caching") and not one.stage.endswith("neutral")
    }
    assert sum(cached.values()) == 4 * LIMIT
    # four models, two of them in three types of numbers, each fact as a question and in the chat
    asked = {(one.stage, one.done, at) for at, one in enumerate(told) if "asking" in one.stage}
    assert len(asked) == 4 + 2 * 2
    assert plan.patch.n_forward == 4 * LIMIT + 2 * LIMIT * len(asked)
    for model, step in plan.evaluations.items():
        pieces = [one.piece for one in told if one.stage == f"evaluating {model}"]
        assert len(pieces) == len(step.lines)
        assert sum(int(piece.split()[-2]) for piece in pieces) == step.n_forward
        assert (step.done, step.n_kept) == (False, 0)
    again = plan_audit(["demo/masked_readout", "demo/never"], settings_of(folder), folder / "out")
    assert (again.patch.n_forward, again.patch.n_rows, again.patch.n_bytes) == (0, 0, 0)
    assert all(step.done for step in again.evaluations.values())
    assert [step.n_kept for step in again.evaluations.values()] == [18] * 3
    assert not (tmp_path / "out").exists()


def test_the_plan_says_how_much_controls_keep_beside_the_score(audited, tmp_path):
    _, folder, _ = audited
    sources = ["demo/masked_readout", "demo/never"]

    def said(at, limit=LIMIT):
        asks = dataclasses.replace(settings_of(at), limit=limit)
        plan = plan_audit(sources, asks, tmp_path / "out").patch
        (line,) = (one for one in plan.lines if one.startswith("controls:"))
        return plan.n_bytes, re.findall(r"up to ([\d.]+ .B) more on disk", line)

    n_bytes, (more,) = said(tmp_path)
    caches = [one for one in (folder / "activations").glob("*--*") if one.is_dir()]
    kept = {
        neutral: sum(
            file.stat().st_size
            for one in caches
            for file in one.rglob("*.h5")
            if ("neutral" in one.name) == neutral
        )
        for neutral in (False, True)
    }
    assert n_bytes == pytest.approx(kept[False], rel=0.15)
    assert float(more.removesuffix(" MB")) * 1e6 == pytest.approx(kept[True], rel=0.15)
    assert said(folder) == (0, [])
    # all scores are there, and maps read the streams of these very rows
    n_bytes, more = said(folder, LIMIT - 1)
    assert (n_bytes, len(more)) == (0, 1)


def test_it_ends_in_one_table_that_a_paper_takes_too(audited):
    found, _, _ = audited
    *_, headline, table = of_audit(found)
    assert headline == "2 audited models: 2 undecided."  # two rows decide nothing
    lines = as_markdown(table).splitlines()
    assert lines[0].startswith("| model | verdict | asked, answers | begun, says it | who has")
    assert lines[1] == "|---|---|---:|---:|---:|---:|"
    cells = [[cell.strip() for cell in line.split("|")[1:3]] for line in lines[2:]]
    assert cells == [
        ["full", "anchor"],
        ["retain", "anchor"],
        ["demo/masked\\_readout", "undecided"],
        ["demo/never", "undecided"],
    ]


def differences_in(results):
    """Tables of differences that an audit prints."""
    tables = (one for one in of_audit(results) if isinstance(one, Table))
    return [one for one in tables if str(one.title).startswith("Differences: a minus b")]


def test_it_says_whether_two_models_differ(audited):
    found, _, _ = audited
    (differences,) = differences_in(found)
    first, second, gap, *_ = ([*one.cells] for one in differences.columns)
    assert (first, second) == ([found[0].source], [found[1].source])
    assert float(gap[0]) == pytest.approx(found[0].uds - found[1].uds, abs=5e-4)
    assert differences_in(found[:1]) == []


@pytest.mark.parametrize(
    ("p", "finds", "controls", "shown"),
    [
        (5e-5, True, [], "5e-05"),
        (0.4, False, [], "0.4"),
        (5e-5, False, [KnowControl("never: r", False, "r binds the values too")], "undecided"),
        (0.4, False, [KnowControl("never: r", False, "r binds the values too")], "undecided"),
        # names alone may tell, and nobody who never knew was asked
        (5e-5, False, [], "undecided"),
        (0.4, False, [KnowControl("kept", False, "may be blind here")], "0.4"),
    ],
)
def test_a_p_that_a_control_refuses_is_not_shown_as_a_finding(audited, p, finds, controls, shown):
    known = KnowRecord(
        source="x",
        headline="",
        finds=finds,
        p=p,
        z=0.0,
        bits=None,
        controls=controls,
        n_subjects=8,
        relations=[],
        max_bits=3.0,
        alike=["retain"] if finds else [],
    )
    one = dataclasses.replace(audited[0][0], association=known)
    (column,) = (c for c in said_and_held([one]).columns if str(c.header).startswith("who has"))
    assert [*column.cells] == ["", "", shown]


@pytest.fixture
def plain_rows(tmp_path):
    """Own annotated rows to forget, and to keep."""
    keys = ("idx", "question", "answer", "prefix", "entity", "group")
    for part in ("forget", "retain"):
        rows = [{key: row[key] for key in keys if key in row} for row in embedded_rows(part)[:1]]
        (tmp_path / f"{part}.json").write_text(json.dumps(rows))
    return tmp_path


def test_rows_to_keep_are_asked_of_full_too_once_for_all_models(
    plain_rows, tmp_path, monkeypatch, capsys
):
    loaded, known = [], passes.load_causal

    def load(checkpoint, **options):
        loaded.append(checkpoint.spec.name)
        return known(checkpoint, **options)

    monkeypatch.setattr(passes, "load_causal", load)
    more = ["--data", str(plain_rows / "forget.json"), *["--limit", "1", "--align", "none"]]
    more += ["--association", "none", "--ask", "none"]
    kept = ["--kept", str(plain_rows / "retain.json")]
    cache = ["--activations", str(tmp_path / "activations")]
    source = ["--source", "demo/npo"]
    first, second = tmp_path / "a", tmp_path / "b"
    assert run(["audit", *source, *more, *kept, *cache, "-o", str(first)]) == 0
    said = capsys.readouterr().out
    assert loaded.count("demo/full") == 1
    own, full = (
        json.loads((first / "eval" / name / "TOFU_EVAL.json").read_text())
        for name in ("demo-npo", "demo-full")
    )
    # nothing but what stands beside the others
    assert full.keys() == {"retain_Q_A_Prob", "retain_Q_A_ROUGE"}
    told = [
        f"{hundredths(own[name]['agg_value'])} of full's {hundredths(full[name]['agg_value'])}"
        for name in ("retain_Q_A_Prob", "retain_Q_A_ROUGE")
    ]
    assert (
        f"demo/npo keeps {told[0]} (Prob on kept rows), {told[1]} (ROUGE on kept rows)"
    ) in " ".join(said.split())
    (model,) = verdicts([first]).models
    assert model.keeps[0].full == full["retain_Q_A_Prob"]["agg_value"]
    page = (first / "audit.html").read_text()
    assert f"{told[0].split()[-1]} in full" in page
    # another model beside it: full is found by content, in another folder too
    loaded.clear()
    assert run(["audit", "--source", "demo/graddiff", *more, *kept, *cache, "-o", str(second)]) == 0
    assert "demo/full" not in loaded
    capsys.readouterr()
    assert run(["audit", *source, *more, *kept, *cache, "-o", str(first), "--json"]) == 0
    keeps = json.loads(capsys.readouterr().out)["sources"][0]["keeps"]
    assert keeps["retain_Q_A_Prob"]["full"] == full["retain_Q_A_Prob"]["agg_value"]
    # without rows to keep nobody asks
    plan = plan_audit(["demo/npo"], AuditSettings(data=str(plain_rows / "forget.json")))
    assert [*plan.evaluations] == ["demo/retain", "demo/npo"]


def test_every_choice_of_an_audit_reaches_the_depth_and_the_evaluations():
    chosen = {"exclude": ("v2",), "align": "none", "align_data": "a.txt", "align_tokens": 7}
    chosen |= {"validity_data": "b.txt", "batch_size": 3, "dtype": "float16", "limit": 2}
    settings = AuditSettings(inside=True, fresh=True, memory="1G", **chosen)
    steps = evaluations(["demo/npo"], settings, Path("out"))
    own = {"retain", "retain_log", "data", "forget"}
    named = {one.name for one in dataclasses.fields(settings)} - own
    lacking = []
    for made in (asked_of_patch(settings, None), *(asked for _, asked, _ in steps)):
        fields = {one.name for one in dataclasses.fields(made)}
        assert [n for n in named & fields if getattr(made, n) != getattr(settings, n)] == []
        assert chosen.keys() | {"fresh"} <= fields
        lacking.append(named - fields)
    assert lacking[0] == {"suite", "association", "inside", "holdout", "retain_set"}
    assert lacking[1] <= {"inside", "association", "memory", "ask"}


def test_the_depth_of_an_evaluation_is_that_of_patch_on_the_rows_that_are_left(
    audited, tmp_path, monkeypatch
):
    taken_for_tofu(monkeypatch)
    _, folder, _ = audited
    place = {"activations": folder / "activations"}
    rows = tmp_path / "rows.json"
    known = json.loads((EMBEDDED / "data" / "forget.json").read_text())
    rows.write_text(json.dumps(known[:6]))  # the filter names two of them

    def both(*exclude):
        out = tmp_path / "".join(["out", *exclude])
        depth = la.patch("demo/npo", out / "d", data=rows, exclude=exclude, align="none", **place)
        asked = {"metrics": ("uds", "uds_aligned"), "retain": "demo/retain", "align": "none"}
        said = la.evaluate("demo/npo", out / "e", forget=rows, exclude=exclude, **asked, **place)
        assert said.uds == pytest.approx(depth.uds, abs=NATS)
        return said.uds, json.loads((said.folder / "manifest.json").read_text())["inputs"]

    (all_rows, inputs), (fewer, other) = both(), both("v4_full_wrong")
    assert abs(all_rows - fewer) > 1e-4
    assert inputs["annotated"] != other["annotated"]


@pytest.mark.parametrize("lost", ["TOFU_EVAL.json", "manifest.json"])
def test_without_the_retain_models_evaluation_none_is_done(audited, tmp_path, lost):
    _, folder, _ = audited
    where = settings_of(folder), folder / "out"
    steps = plan_audit(SOURCES, *where).evaluations
    assert [step.done for step in steps.values()] == [True, True, True]
    place = folder / "out" / "eval" / "demo-retain" / lost
    shutil.move(place, tmp_path / lost)
    steps = plan_audit(SOURCES, *where).evaluations
    shutil.move(tmp_path / lost, place)
    assert [step.done for step in steps.values()] == [False, False, False]


def test_what_the_plan_calls_done_is_read_alone_without_its_passes_too(audited, tmp_path):
    _, folder, _ = audited
    for place in (folder / "out" / "eval").glob("*/passes"):
        shutil.move(place, tmp_path / place.parent.name)
    steps = plan_audit(SOURCES, settings_of(folder), folder / "out").evaluations
    told = []
    asked = [*evaluations(SOURCES, anchored(SOURCES, settings_of(folder)), folder / "out")]
    found = measure(SOURCES, Steps(evaluations=asked), folder / "out", progress=told.append)
    for place in tmp_path.iterdir():
        shutil.move(place, folder / "out" / "eval" / place.name / "passes")
    assert [step.done for step in steps.values()] == [True, True, True]
    assert [one for one in told if one.stage.startswith("evaluating")] == []
    assert [*found.said] == [*steps]


def fails(monkeypatch, model, said):
    """From now on no pass over the model can be run."""
    real = passes.ModelPasses.run

    def failing(one, read):
        if one.subject.name == model:
            raise WorkError(said)
        real(one, read)

    monkeypatch.setattr(passes.ModelPasses, "run", failing)


def test_a_failed_step_is_a_value_and_the_rest_is_there(audited, tmp_path, monkeypatch):
    _, folder, _ = audited
    fails(monkeypatch, "demo/masked_readout", "the disk hums\nand hums")
    hidden, never = la.audit(
        ["demo/masked_readout", "demo/never"],
        out=tmp_path,
        limit=LIMIT,
        activations=folder / "activations",
    )
    (failure,) = hidden.failures
    assert (failure.model, failure.step, failure.kind) == (
        "demo/masked_readout",
        "evaluate",
        "work",
    )
    assert failure.message == "the disk hums"
    assert (hidden.evaluation, hidden.metrics) == (None, {})
    assert hidden.uds is not None
    assert never.failures == ()
    assert never.metrics["forget_quality"] is not None


def test_a_failed_retain_model_is_told_to_all(audited, tmp_path, monkeypatch):
    _, folder, _ = audited
    fails(monkeypatch, "demo/retain", "no room")
    found = la.audit(
        "demo/masked_readout", tmp_path, limit=LIMIT, activations=folder / "activations"
    )
    assert [one.model for one in found.failures] == ["demo/retain"]
    assert found.metrics["forget_Q_A_Prob"] is not None
    assert "retain" in found.evaluation.why_not("forget_quality")


def test_nothing_scored_is_a_failure_with_its_reason(audited, tmp_path):
    _, folder, _ = audited
    # a retain model that knows all that full knows: no layer encodes anything it lacks
    retain = shutil.copytree(resolve("demo/full", load_registry()).local, tmp_path / "retain")
    (path,) = retain.glob("*.safetensors")
    weights = load_file(path)
    next(iter(weights.values())).view(-1)[0] *= 1.5
    save_file(weights, path, {"format": "pt"})
    result = la.audit(
        "demo/masked_readout",
        tmp_path / "out",
        retain=str(retain),
        suite="none",
        limit=LIMIT,
        activations=folder / "activations",
    )
    assert (result.uds, result.evaluation) == (None, None)
    (failure,) = result.failures
    assert (failure.model, failure.step) == ("demo/masked_readout", "patch")
    assert failure.message == result.reason
    assert "never exceeds tau" in failure.message


def test_fresh_keeps_no_pass(audited, tmp_path):
    _, folder, _ = audited
    shutil.copytree(folder / "out", tmp_path / "out")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*.npz")}
    told = []
    place = {"out": tmp_path / "out", "limit": LIMIT, "activations": folder / "activations"}
    la.audit(SOURCES, **place, **BARE, progress=told.append, fresh=True)
    assert not any("kept from before" in one.piece for one in told)
    again = {p: p.stat().st_mtime_ns for p in before}
    assert before
    assert not [p for p in before if before[p] == again[p]]


def audited_after(other, out, settings):
    """An audit that finds another at work in its folder, which does `other` before it ends."""
    told, waits = [], threading.Event()

    def heard(line):
        if BUSY in line:
            told.append(line)
            waits.set()

    def works():
        with in_turn(out):
            begun.set()
            assert waits.wait(60)
            other()

    begun = threading.Event()
    works_on = threading.Thread(target=works)
    works_on.start()
    begun.wait()
    found = audited_into(("demo/masked_readout", "demo/never"), settings, out, notice=heard)
    works_on.join()
    assert told == [f"{out}: {BUSY}"]
    return found


def test_two_audits_into_one_folder_take_turns_and_agree(audited, tmp_path, monkeypatch):
    def said(results):
        return [
            (one.source, round(one.uds, 5), one.verdict.sentence, one.metrics) for one in results
        ]

    results, folder, _ = audited
    out, settings = tmp_path / "out", settings_of(folder)
    shutil.copytree(folder / "out", out)
    sealed = out / "audit_manifest.json"
    sealed.unlink()
    found = audited_after(lambda: None, out, settings)
    assert sealed.exists()
    assert said(found.results) == said(results)
    # what the other one found is the answer
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    sealed.rename(tmp_path / "kept")
    monkeypatch.setattr("lensaudit.auditing.audit.measure", None)
    found = audited_after(lambda: (tmp_path / "kept").rename(sealed), out, settings)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    assert said(found.results) == said(results)


def test_the_page_is_of_all_in_the_folder_as_what_is_printed_and_is_made_again_for_more(
    audited, tmp_path, capsys
):
    _, folder, _ = audited
    out = shutil.copytree(folder / "out", tmp_path / "out")
    sources = [f"--source=demo/{one}" for one in MODELS[1:]]
    places = ["--activations", str(folder / "activations"), "-o", str(out)]
    line = ["audit", *sources, f"--limit={LIMIT}", *places, "--json"]

    def said():
        capsys.readouterr()
        assert run(line) == 0
        told = json.loads(capsys.readouterr().out)["sources"]
        page = out / "audit.html"
        return [one["verdict"]["code"] for one in told], Answers(page).headline, page.read_bytes()

    before = said()
    assert before[:2] == (["undecided"] * 2, "2 audited models: too few rows to decide (2).")
    assert said() == before
    inputs = json.loads((out / "patch" / "demo-never" / "manifest.json").read_text())["inputs"]
    held = verdict_support.summary(0.1, aligned=verdict_support.aligned(0.1))
    weights = inputs["source"]["weights"]
    verdict_support.save_run(out / "more", held, weights=weights, examples="others")
    codes, headline, _ = said()
    assert codes == ["undecided", "hidden"]
    assert headline.startswith("1 of 2 audited models still holds what it was made to forget")


def test_a_fresh_audit_that_breaks_leaves_the_earlier_one(audited, tmp_path, monkeypatch):
    _, folder, _ = audited
    shutil.copytree(folder / "out", tmp_path / "out")
    before = {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}

    def killed(*how, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("lensaudit.auditing.audit.measure", killed)
    with pytest.raises(KeyboardInterrupt):
        audited_into(
            ("demo/masked_readout", "demo/never"),
            settings_of(folder, fresh=True),
            tmp_path / "out",
        )
    assert {p: p.read_bytes() for p in before} == before


def test_an_audit_without_room_is_refused_before_anything_is_touched(
    audited, tmp_path, monkeypatch
):
    _, folder, _ = audited
    shutil.copytree(folder / "out", tmp_path / "out")
    before = {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    monkeypatch.setattr("lensaudit.models.large.placement.free_bytes", lambda device: 1000)
    monkeypatch.setattr("lensaudit.auditing.audit.measure", None)
    with pytest.raises(InputError, match="are free on cpu"):
        audited_into(SOURCES, settings_of(tmp_path, **BARE), tmp_path / "out")
    assert {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()} == before


def test_an_audit_opens_each_checkpoint_once(tmp_path, monkeypatch):
    opened, real = [], checkpoint.weights_hash

    def hashed(files, config):
        opened.append(files[0].parent.name)
        return real(files, config)

    monkeypatch.setattr(checkpoint, "weights_hash", hashed)
    nothing = dict.fromkeys(("association", "suite", "align", "ask"), "none")
    settings = AuditSettings(limit=2, activations=tmp_path / "a", **nothing)
    audit.audit_into(("demo/npo", "demo/idknll"), settings, tmp_path / "o")

    assert sorted(opened) == ["full", "idknll", "npo", "retain"]


def test_another_run_in_the_usual_folder_opens_nothing_twice(tmp_path, monkeypatch):
    opened, evaluation, depth = [], audit.open_evaluation, audit.prepare

    def of(model, *how, **more):
        opened.append(model)
        return evaluation(model, *how, **more)

    def prepared(names, *how, **more):
        opened.append("patch")
        return depth(names, *how, **more)

    monkeypatch.setattr(audit, "open_evaluation", of)
    monkeypatch.setattr("lensaudit.auditing.evaluate.open_evaluation", of)
    monkeypatch.setattr(audit, "prepare", prepared)
    monkeypatch.chdir(tmp_path)
    usual = tmp_path / "experiments" / "out" / "audit-demo-npo"
    usual.mkdir(parents=True)
    (usual / "begun.json").write_text('{"command": "know"}')
    found = open_audit(["demo/npo"], settings_of(tmp_path, **BARE))
    assert found.folder.name.startswith("audit-demo-npo-")
    assert {one.place.parent.parent for one in found.said.values()} == {found.folder}
    assert sorted(opened) == ["demo/npo", "demo/retain", "patch"]
