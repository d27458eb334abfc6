"""A reader who has the page alone, and no script, answers five questions right.

Which models hold it; how sure is that; which facts; what was not asked; what was lost besides.
The answers are held against the result files, which the reader does not see.
"""

import json
import shutil

import pytest
from support import verdict_support as made
from support.agreement import agreed, printed
from support.page_reader import Answers, read
from support.report_cases import attacked, eval_run, patch_run, seal, write

from lensaudit.report.render import write_report
from lensaudit.results.manifest import AUDIT_MANIFEST, NOT_ASKED, signed
from lensaudit.results.roles import UNATTACKED
from lensaudit.verdict.collect import verdicts
from lensaudit.verdict.decide import HOLDS, WORDS
from lensaudit.verdict.views import hundredths


def audited(folder):
    """Three models with all controls; two were evaluated, and `full`; one was attacked."""
    held = {"keeps": (0.1, 0.5), "part": (0.5, 0.3), "gone": (0.97, 0.05)}
    for name, (uds, said) in held.items():
        content = made.summary(
            uds, source=name, aligned=made.aligned(uds), outputs=made.said(source=said)
        )
        made.save_run(folder / name, content, weights=f"sha256:{name}")
    for name, utility in (("keeps", 0.91), ("part", 0.4)):
        eval_run(folder / "eval" / name, name, model_utility=utility)
    weights = made.inputs(made.summary())["full"]["weights"]
    eval_run(folder / "eval" / "full", "full", weights=weights, model_utility=0.98)
    shifts = [
        {"model": "part", "before": {"prob": 0.2}, "after": {"prob": 0.5}},
        {"model": "retain", "before": {"prob": 0.2}, "after": {"prob": 0.3}},
    ]
    write(folder / "relearned" / "audit.json", {"shifts": shifts})
    source = {"name": "part", "weights": "sha256:part"}
    made.seal(folder / "relearned", "relearn", ["audit.json"], source=source)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return audited(tmp_path_factory.mktemp("answers") / "out")


@pytest.fixture(scope="module")
def answers(folder):
    write_report([folder], folder.parent / "audit.html")
    return Answers(folder.parent / "audit.html")


def test_which_models_hold_it(answers, folder):
    found = [one for one in verdicts([folder]).models if one.source != "full"]
    assert answers.verdicts == {one.source: WORDS[one.code][0] for one in found}
    held = [one.source for one in found if one.code in HOLDS]
    assert held == ["keeps"]
    # what is held in part is held
    part = [one.source for one in found if one.code == "partly_erased"]
    assert part == ["part"]
    wanted = "2 of 3 audited models still hold what they were made to forget, 1 of them in part."
    assert answers.headline == wanted
    # the chain that led there: every question in order, with what it said
    chain = answers.chain("keeps")
    assert list(chain)[:3] == [
        "Does it say the facts?",
        "Does it tell who has what?",
        "Does full read them out of its stream?",
    ]
    assert chain["Does full read them out of its stream?"][0].startswith("UDS 0.100 [0.070, 0.130]")
    assert chain["Does full read them out of its stream?"][0].endswith("finds")


def spoken(folder):
    """A family whose words differ in all that a table, a tally and a headline may say."""
    told = {"told": made.told(source=0.9)}
    family = {
        "asked": made.summary(0.5, aligned=made.aligned(0.5), outputs=made.said(0.9), **told),
        "begun": made.summary(0.5, aligned=made.aligned(0.5), outputs=made.said(0.9)),
        "begun too": made.summary(0.1, aligned=made.aligned(0.1), outputs=made.said(0.8)),
        "part": made.summary(0.5, aligned=made.aligned(0.5)),
        "found": made.summary(aligned=made.aligned(weakest=0.3)),
        "gone": made.summary(0.97),
    }
    for name, content in family.items():
        content |= {"source": name, "told": {**content["told"]}}
        made.save_run(folder / name, content, weights=f"sha256:{name}")
    return folder


def test_headline_tally_table_terminal_and_gate_agree(tmp_path):
    words = agreed(tmp_path, spoken(tmp_path / "out"))
    assert words == {
        "asked": "says them",
        "begun": "says them once begun",
        "begun too": "says them once begun",
        "part": "partly erased",
        "found": "undecided, holds some",
        "gone": "erased",
    }
    headline = Answers(tmp_path / "agreed.html").headline
    assert headline.startswith("5 of 6 audited models still hold what they were made to forget")
    assert ", 1 of them in part, 1 of them nobody knows how much; " in headline
    assert headline.endswith("; 1 says them; 2 say them once begun.")


def test_what_others_are_held_to_is_not_audited_by_whatever_result(tmp_path):
    """Named as `--retain` of `know`, rounded in a sweep: shown, and counted nowhere."""
    folder = spoken(tmp_path / "out")
    never = made.summary(0.9, source="never too")
    made.save_run(folder / "never", never, weights="sha256:never too")
    rounded = made.summary(0.95, source="retain")
    place = made.save_run(folder / "nf4" / "retain", rounded, weights="sha256:retain in nf4")
    beside = made.inputs(rounded, "sha256:retain in nf4")
    beside["retain"] |= {"name": f"retain{UNATTACKED}"}
    made.seal(place, "patch", ["summary.json", "results.jsonl"], **beside)
    audited = agreed(tmp_path, folder)
    assert {"gone", "never too"} < audited.keys()
    assert "retain" not in audited
    attacked(tmp_path / "attacked", "part", {})
    never = {"name": "never too", "weights": "sha256:never too"}
    sources = {"source": {"name": "part", "weights": "sha256:part"}, "retain never": never}
    files = ["summary.json", "matrix.json", "facts.csv"]
    made.seal(tmp_path / "attacked" / "know", "know", files, **sources)
    shutil.move(tmp_path / "attacked" / "know", folder)
    assert agreed(tmp_path, folder).keys() == audited.keys() - {"never too"}
    told = "\n".join(printed("verdict", folder))
    assert "never too is retain of a result here, not audited" in told


def test_how_sure(answers, folder):
    for name in ("keeps", "part", "gone"):
        summary = json.loads((folder / name / "summary.json").read_text())
        for column, one in (("UDS", summary), ("aligned", summary["aligned"])):
            low, high = map(hundredths, one["ci95"])
            wanted = f"{hundredths(one['uds'])} [{low}, {high}] n {summary['n_scored']}"
            assert answers.number(name, column) == wanted
    assert answers.number("part", "says").startswith(".30 [")
    # without an interval there is the reason; anchors too
    assert answers.number("part", "training") == ".20 one run of each model: no interval relearning"
    full, retain = (answers.models[name] for name in answers.models if name.startswith(("f", "r")))
    assert (full["UDS"], retain["UDS"]) == (
        ".00 calibration: no interval",
        "1.00 calibration: no interval",
    )
    assert full["says"] == "1.00 [.87, 1.00] n 64"  # of eight authors


def test_which_facts(tmp_path):
    found = patch_run(tmp_path / "out", "npo", held=0.7)
    write_report([tmp_path / "out"], tmp_path / "audit.html")
    rows = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").open()]
    low = sorted((row for row in rows if row["uds"] is not None and row["uds"] < 0.25), key=_depth)
    said, *facts = Answers(tmp_path / "audit.html").facts("npo")
    assert said.startswith(f"{len(low)} of {found['n_scored']} facts, by a depth below 0.25")
    assert len(facts) == min(8, len(low)) > 3
    for row, fact in zip(low, facts, strict=False):
        assert fact == f"{row['question']} {row['entity']} idx {row['idx']}, {row['uds']:.2f}"


def _depth(row):
    return row["uds"]


def test_facts_of_a_stream_that_full_cannot_read_are_not_named(tmp_path):
    rotated = {"d_share": 0.9, "needed": True, "why": None}
    content = made.summary(0.1, validity=rotated, aligned=made.aligned(d_share=0.9))
    made.save_run(tmp_path / "out", content)
    write_report([tmp_path / "out"], tmp_path / "audit.html")
    assert Answers(tmp_path / "audit.html").facts("x") == [
        "this cannot be told: full cannot read its stream"
    ]


def test_what_was_not_asked(answers):
    asked = answers.not_asked
    assert asked["attacks on every fact"] == "none of the 3 models. Ask with lensaudit worst"
    # of some it was: then the others are named, and their cells say so
    assert asked["retraining"].startswith("not keeps , gone . Ask with lensaudit relearn")
    assert answers.number("gone", "training") == "not asked"
    assert "its stream" not in asked
    assert answers.chain("gone")["Does training on something else bring them back?"] == [
        "not asked: retraining was not tried"
    ]


def test_units_of_a_sweep_that_failed_are_named(tmp_path):
    made.save_run(tmp_path / "out" / "base" / "x" / "patch", made.summary())
    write(tmp_path / "out" / "collected.json", signed({"missing": {"m1": "a hole in its weights"}}))
    write_report([tmp_path / "out"], tmp_path / "audit.html")
    (said,) = read(tmp_path / "audit.html").every("p", class_="alarm")
    assert said.text == "1 planned unit has no result: m1 ( a hole in its weights )."


def test_what_cannot_be_asked_is_not_called_not_asked(tmp_path):
    made.save_run(tmp_path / "out" / "patch" / "x", made.summary())
    why = "rows.json: no relation of 5 rows can be asked"
    asked = {NOT_ASKED: {"x": f"who has what is not asked: {why}"}}
    manifest = made.manifest("audit", options={}, inputs=asked, device="cpu", started=0.0)
    manifest.write(tmp_path / "out", [], AUDIT_MANIFEST)
    write_report([tmp_path / "out"], tmp_path / "audit.html")
    answers = Answers(tmp_path / "audit.html")
    # a column without a number is hidden, and its reason said once
    assert "who has what" not in answers.models["x"]
    (said,) = answers.page.every("ul", id="no-number")
    assert said.text == "who has what has no number: cannot be asked"
    assert answers.chain("x")["Does it tell who has what?"] == [f"not asked: {why}"]
    assert "who has what" not in answers.not_asked


def test_what_was_lost_besides(answers):
    assert answers.number("keeps", "keeps").startswith(".91 of .98 in full [.81, 1.01] n 1")
    assert answers.number("gone", "keeps") == "not asked"
    asked = "What was lost besides?"
    assert answers.chain("keeps")[asked] == ["keeps .91 (of .98 in full, [.81, 1.01], n 1)"]
    assert answers.chain("gone")[asked] == ["not asked: neither utility nor facts to keep"]
    assert answers.not_asked["what it keeps (utility)"] == "not gone . Ask with lensaudit eval"


def test_what_was_lost_of_facts_to_keep(tmp_path):
    lost = {"near": made.lost([0.05, 0.2]), "far": made.lost(None) | {"ci95_why": "4 authors"}}
    made.save_run(tmp_path / "out", made.summary(0.9, collateral=lost))
    write_report([tmp_path / "out"], tmp_path / "audit.html")
    said = Answers(tmp_path / "audit.html").chain("x")["What was lost besides?"]
    assert said == ["near: depth .10 [.05, .20] n 8", "far: depth .10 4 authors n 8"]


@pytest.mark.parametrize("named", [True, False])
def test_intervals_count_authors_only_where_rows_name_them(tmp_path, named):
    patch_run(tmp_path / "out", "npo")
    if not named:
        path = tmp_path / "out" / "results.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [row | {"group": f"idx {row['idx']}"} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        seal(tmp_path / "out")
    write_report([tmp_path / "out"], tmp_path / "audit.html")
    said = read(tmp_path / "audit.html").text
    assert ("Intervals count authors, not questions." in said) == named
    assert ("No row names an author, so intervals count rows." in said) != named
    assert made.page_data(tmp_path / "audit.html")["conditions"][0]["unit"] == (
        "author" if named else "row"
    )


def test_a_page_of_undecided_models_does_not_sound_like_an_acquittal(tmp_path):
    for name in ("a", "b"):
        content = made.summary(0.9, half=0.5, n=8, source=name, aligned=made.aligned(0.9, half=0.5))
        made.save_run(tmp_path / "out" / name, content, weights=name)
    write_report([tmp_path / "out"], tmp_path / "audit.html")
    answers = Answers(tmp_path / "audit.html")
    assert answers.headline == "2 audited models: too few rows to decide (8)."
    (tally,) = answers.page.every("dl", class_="tally")
    assert tally.text == "2 undecided a , b"


def test_spans_that_nobody_reviewed_are_said_on_the_page(tmp_path):
    content = made.summary(spans={"rule": 33, "reviewed": 31})
    made.save_run(tmp_path / "out", content)
    write_report([tmp_path / "out"], tmp_path / "audit.html")
    said = "33 of 64 spans by rule, not reviewed; <code>lensaudit annotate --page</code> shows them"
    assert said in (tmp_path / "audit.html").read_text()
    made.save_run(tmp_path / "out", made.summary(spans={"rule": 0, "reviewed": 64}))
    write_report([tmp_path / "out"], tmp_path / "audit.html")
    assert "spans by rule" not in (tmp_path / "audit.html").read_text()
