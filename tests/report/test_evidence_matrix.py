"""The table of models says what each way of looking found of each model, and no more."""

import csv
import shutil

import pytest
from support import verdict_support as made
from support.report_cases import change, eval_run, patch_run, seal, write

from lensaudit.files import read_json
from lensaudit.report.assemble import assemble
from lensaudit.report.evidence import COLUMNS, columns_of, missing_of
from lensaudit.report.render import write_report
from lensaudit.verdict.collect import verdicts
from lensaudit.verdict.views import hundredths


@pytest.fixture
def results(tmp_path):
    """Two audited models; one of them was attacked, too."""
    for name, held in (("npo", 0.2), ("idk", 0.9)):
        patch_run(tmp_path / name, name, held=held)
        eval_run(tmp_path / "eval" / name, name, model_utility=0.5 + held / 10)
    eval_run(tmp_path / "eval" / "retain", "retain", model_utility=0.7)
    weakest = {"layer": 2, "erasure": 0.3, "ci95": [0.2, 0.4]}
    change(
        tmp_path / "npo",
        aligned={"uds": 0.7, "ci95": [0.6, 0.8], "d_share": 0.02, "weakest": weakest},
        weakest={"layer": 1, "erasure": 0.5, "ci95": [0.4, 0.6]},
        validity={"d_share": 0.03},
        outputs={"source": 0.125, "full": 1.0, "retain": 0.25, "n": 24},
    )
    relearned(tmp_path / "relearned", "npo", {"prob": 0.3})
    return tmp_path


def relearned(folder, name, after):
    """What one pass over the answers adds to a model, and to `retain`."""
    shifts = [
        {"model": name, "before": {"prob": 0.2}, "after": {"prob": 0.5}},
        {"model": "control", "before": {"prob": 0.2}, "after": after},
    ]
    write(folder / "audit.json", {"shifts": shifts})
    source = {"name": name, "weights": f"sha256:{name}"}
    made.seal(folder, "relearn", ["audit.json"], source=source)


def rows_of(document):
    return {row.label: row.cells for row in document.rows}


def test_each_view_stands_under_its_model(results):
    found = rows_of(assemble([results]))
    npo = found["npo"]
    assert (npo["aligned"].text, npo["aligned"].beside) == (".70", ("[.60, .80]", "n 23"))
    assert (npo["says"].text, npo["says"].beside[1]) == (".12", "n 24")
    # of plain and aligned the layer that holds more
    assert npo["weakest"].text == ".30"
    assert npo["keeps"].sort == pytest.approx(0.52)
    # what one pass adds beyond what it adds to retain: 0.3 - 0.1
    assert npo["training"].sort == pytest.approx(0.2)
    assert set(found["idk"]) == {"uds", "keeps"}
    assert found["idk"]["uds"].sort < npo["uds"].sort


def test_anchors_stand_first_once_and_are_the_control_of_a_column(results):
    patch_run(results / "other", "other", n_layers=6)  # other settings, the same anchors
    eval_run(results / "again" / "retain", "retain", model_utility=0.7, mia_loss=0.5)
    rows = assemble([results]).rows
    assert [row.role for row in rows[:2]] == ["full", "retain"]
    assert sum(row.is_anchor for row in rows) == 2
    full, retain = (row.cells for row in rows[:2])
    assert full["uds"].sort == pytest.approx(0, abs=1e-3)
    assert (full["says"].text, full["says"].beside[1]) == ("1.00", "n 24")
    assert set(retain) == {"uds", "says", "keeps"}


def test_what_never_trained_models_say_is_a_mean_and_no_whole_count(tmp_path):
    made.save_run(tmp_path / "x", made.summary(told=made.told(source=0.5, retain=1 / 16, n=8)))
    (retain,) = (row for row in assemble([tmp_path]).rows if row.role == "retain")
    assert retain.cells["told"].text == ".06"  # not 0 of 8
    assert retain.cells["told"].sort == pytest.approx(1 / 16)


def test_a_model_that_was_evaluated_twice_keeps_what_full_was_asked_too(tmp_path):
    """What stands beside full's value is of the same rows, and of the same evaluation."""
    patch_run(tmp_path / "npo", "npo")
    other = {"forget_Q_A_Prob": 0.5, "retain_Q_A_Prob": 0.3}
    eval_run(tmp_path / "many", "npo", **other, rows="4 rows")
    eval_run(tmp_path / "kept", "npo", retain_Q_A_Prob=0.6, rows="40 rows")
    eval_run(tmp_path / "full", "full", retain_Q_A_Prob=0.8, rows="40 rows")
    found = assemble([tmp_path])
    cell = rows_of(found)["npo"]["keeps"]
    assert (cell.text, cell.beside[:2]) == (".60", ("of .80 in full", "[.50, .70]"))
    (left,) = found.left_out
    assert left.path == str(tmp_path / "kept")
    assert left.reason == f"of npo the page shows the metrics in {tmp_path / 'many'}"
    # the shown one need not hold the metric
    shutil.rmtree(tmp_path / "many")
    eval_run(tmp_path / "many", "npo", forget_Q_A_Prob=0.5, forget_Q_A_ROUGE=0.5, rows="4 rows")
    assert rows_of(assemble([tmp_path]))["npo"]["keeps"] == cell


@pytest.mark.parametrize(("alike", "text"), [(["retain"], "p 0.0001"), ([], "undecided")])
def test_a_p_stands_in_the_table_where_nothing_refuses_it(results, alike, text):
    """Names alone may give a value away, and nobody who never knew was asked."""
    content = {"kind": "know", "source": "npo", "headline": "h", "finds": True, "p": 1e-4, "z": 3.0}
    content |= {"bits": None, "controls": [], "n_subjects": 8, "relations": [], "max_bits": 3.0}
    write(results / "know" / "summary.json", {**content, "gamma": 0.0, "alike": alike})
    matrix = {"relation": "town", "subjects": ["a"], "values": ["b"], "truth": [0], "p": [[0.9]]}
    write(results / "know" / "matrix.json", matrix)
    files = ["summary.json", "matrix.json"]
    made.seal(results / "know", "know", files, source={"weights": "sha256:npo"})
    (column,) = (one.id for one in COLUMNS if "assignment" in one.views)
    rows = assemble([results]).rows
    assert [row.cells[column].text for row in rows if column in row.cells] == [text]


SHOUTS = "told apart from never seen: shouts (p 0.0031)"


def held_against_never_seen(folder, name, area, says):
    """An evaluation whose membership attack has a p."""
    eval_run(folder, name, mia_loss=area)
    log = read_json(folder / "TOFU_EVAL.json")
    log["mia_loss"]["betrayal"] = {"p": 0.0031, "says": says}
    write(folder / "TOFU_EVAL.json", log)


def test_the_table_of_metrics_says_what_an_attack_tells_in_a_column_of_its_own(
    results, browser, shown
):
    held_against_never_seen(results / "eval" / "npo", "npo", 0.15, SHOUTS)
    shown(results)
    browser.run(
        "window.saved = []; URL.createObjectURL = blob => { saved.push(blob); return 'blob:x' };"
        "HTMLAnchorElement.prototype.click = () => {}"
    )
    button = "[...document.querySelectorAll('#downloads button')]"
    browser.run(f"{button}.find(one => one.textContent === 'metrics.csv').click()")
    header, *rows = csv.reader(browser.run("saved[0].text()").splitlines())
    assert {len(row) for row in rows} == {len(header)}
    told = {row[header.index("metric")]: row[header.index("told")] for row in rows}
    assert told == {"mia_loss": SHOUTS, **dict.fromkeys(told.keys() - {"mia_loss"}, "")}


def test_whether_a_model_tells_people_apart_stands_beside_the_verdict(results, browser, shown):
    before = {row.label: (row.word, row.sentence) for row in assemble([results]).rows}
    held_against_never_seen(results / "eval" / "npo", "npo", 0.15, SHOUTS)
    held_against_never_seen(results / "eval" / "retain", "retain", 0.44, "nothing is shown (p .2)")
    document = assemble([results])
    cell = rows_of(document)["npo"]["betrayal"]
    assert (cell.text, cell.beside[-1], cell.vote) == (".15", SHOUTS, "")
    # the retain model is the control of the column
    (retain,) = (row for row in document.rows if row.role == "retain")
    assert retain.cells["betrayal"].beside[-1] == "nothing is shown (p .2)"
    assert {row.label: (row.word, row.sentence) for row in document.rows} == before
    shown(results)
    table = "document.querySelector('#models table').innerText"
    assert SHOUTS in browser.run(table)
    assert SHOUTS in browser.run("document.querySelector('#metrics').textContent")


def test_an_anchor_that_was_patched_too_stands_once_with_its_interval(tmp_path, browser, shown):
    patch_run(tmp_path / "out" / "npo", "npo")
    found = patch_run(tmp_path / "out" / "retain", "retain", held=-1) | {"ci95": [0.9, 1.0]}
    change(tmp_path / "out" / "retain", **found)
    (_, retain, npo) = assemble([tmp_path]).rows
    assert (retain.role, npo.label) == ("retain", "npo")
    low, high = map(hundredths, found["ci95"])
    assert retain.cells["uds"].beside == (f"[{low}, {high}]", "n 23")
    shown(tmp_path / "out")
    said = "[...document.querySelectorAll('#scale text')].map(one => one.textContent)"
    assert browser.run(said).count("retain") == 1
    assert browser.run("document.querySelectorAll('#scale circle.dot').length") == 1


def test_anchors_that_are_off_say_so(tmp_path):
    patch_run(tmp_path / "out", "a")
    change(tmp_path / "out", calibration={"full": 0.4, "retain": 1.0})
    full = assemble([tmp_path]).rows[0]
    assert (full.cells["uds"].text, full.cells["uds"].beside) == (".40", ("the scale is off",))
    write_report(str(tmp_path / "out"), tmp_path / "audit.html")  # one place needs no list
    assert "full as source reads 0.400, not 0" in (tmp_path / "audit.html").read_text()


def test_what_relearning_adds_needs_a_score_of_retain(tmp_path):
    patch_run(tmp_path / "npo", "npo")
    for after in ({"prob": None}, {}):
        relearned(tmp_path / "relearned", "npo", after)
        cell = rows_of(assemble([tmp_path]))["npo"]["training"]
        assert (cell.text, cell.beside) == ("–", ("what it adds to retain is not known",))


def test_columns_are_those_that_were_measured_in_one_order(results):
    rows = assemble([results]).rows
    names = [column.id for column in columns_of(rows)]
    assert names == [column.id for column in COLUMNS if column.id in names]
    assert names == ["says", "uds", "aligned", "weakest", "training", "keeps"]
    missing = {column.id: labels for column, labels in missing_of(rows)}
    assert missing["know"] == missing["worst"] == ["idk", "npo"]
    assert missing["aligned"] == ["idk"]
    assert "uds" not in missing


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_a_page_opens_with_the_settings_whose_word_counts(tmp_path, names):
    hidden, erased = (tmp_path / name for name in names)
    for folder, uds, dtype in ((hidden, 0.1, "bfloat16"), (erased, 0.9, "float32")):
        patch_run(folder, "npo")
        ends = [uds - 0.05, uds + 0.05]
        change(folder, uds=uds, ci95=ends, ci90=ends)
        seal(folder, options={"dtype": dtype})
    document = assemble([tmp_path])
    assert document.first[0].folder == hidden
    settings = [one["settings"]["dtype"] for one in document.data()["conditions"]]
    assert settings == ["bfloat16", "float32"]
    # two rows, one model
    assert all(labels == ["npo"] for _, labels in missing_of(document.rows))


def test_a_model_that_was_evaluated_thrice_has_one_row(tmp_path):
    for name in ("one", "two", "three"):
        eval_run(tmp_path / name, "npo", weights="w", model_utility=0.5)
        path = tmp_path / name / "manifest.json"
        content = read_json(path)
        write(path, content | {"inputs": content["inputs"] | {"rows": {"0": name}}})
    assert [row.label for row in assemble([tmp_path]).rows if not row.is_anchor] == ["npo"]


def test_a_model_patched_under_two_settings_has_a_row_for_each(tmp_path):
    patch_run(tmp_path / "four", "npo")
    patch_run(tmp_path / "six", "npo", n_layers=6)
    rows = [row for row in assemble([tmp_path]).rows if not row.is_anchor]
    assert sorted(row.condition for row in rows) == [0, 1]
    # of two runs of the same the earlier is left out here, too
    patch_run(tmp_path / "again", "npo", seed=3)
    assert len([row for row in assemble([tmp_path]).rows if not row.is_anchor]) == 2


def test_what_was_evaluated_alone_has_a_row_and_lines_of_its_own(tmp_path, browser, shown):
    """Also beside a namesake, from which label and weights tell it."""
    patch_run(tmp_path / "patch", "npo")
    eval_run(tmp_path / "eval", "npo", weights="sha256:new", forget_Q_A_Prob=0.5)
    rows = {row.label: row for row in assemble([tmp_path]).rows if not row.is_anchor}
    assert list(rows) == ["npo · patch", "npo · eval"]
    assert (rows["npo · eval"].word, rows["npo · eval"].cells) == (None, {})
    shown(tmp_path)
    assert browser.run("document.querySelector('#models .count').textContent") == "2 of 2 models"
    browser.run(
        "window.saved = []; URL.createObjectURL = blob => { saved.push(blob); return 'blob:x' };"
        "HTMLAnchorElement.prototype.click = () => {};"
        "[...document.querySelectorAll('#downloads button')].forEach(one => one.click())"
    )
    models, _, metrics, _ = browser.run("Promise.all(saved.map(one => one.text()))")
    (one, two), (alone,) = (list(csv.DictReader(text.splitlines())) for text in (models, metrics))
    assert [one["label"], two["label"], alone["label"]] == [*rows, "npo · eval"]
    assert [two["weights"], two["settings"], two["forget_Q_A_Prob"]] == ["sha256:new", "", "0.5"]
    assert [one["model"], one["weights"], alone["weights"]] == ["npo", "sha256:npo", "sha256:new"]


def test_the_page_opens_on_the_stream_that_its_headline_speaks_of(tmp_path, browser, shown):
    """Also where more models were patched through a component, and their folders come first."""
    for folder, name, component, held in (
        ("attn", "npo", "attn", 0.05),
        ("attn2", "never", "attn", 0.05),
        ("resid", "npo", "resid", 0.9),
    ):
        patch_run(tmp_path / folder, name, held=held)
        change(tmp_path / folder, component=component)
    document = assemble([tmp_path])
    (first,) = document.first
    (npo,) = (row for row in document.rows if row.label == "npo")
    assert (first.folder.name, npo.condition) == ("resid", 0)
    assert npo.cells["uds"].sort == first.estimate.value
    page, long = shown(tmp_path), "document.querySelector('#scale figcaption').textContent"
    assert browser.run(long).startswith("Unlearning Depth Score, with")
    browser.open(f"{page}#settings={document.conditions[1][0].condition[:8]}")
    assert browser.run(long).startswith("Unlearning Depth Score through attn alone, with")


def test_a_model_that_was_only_attacked_has_a_row(tmp_path):
    study = {"study_id": "s", "models": {"unlearned": "npo"}, "data": "forget10"}
    study["main"] = {"recovery_adjusted": {"value": 0.4}}
    write(tmp_path / "rtt" / "summary.json", [study])
    document = assemble([tmp_path])
    (row,) = document.rows
    assert (row.label, row.cells["training"].text) == ("npo", ".40")
    assert row.word == document.words()["npo"] == "undecided"


def test_a_run_that_asked_otherwise_has_a_row_and_one_that_asked_the_same_has_none(tmp_path):
    unaligned = made.aligned() | {"uds": None, "why": "not asked for (--align none)"}
    made.save_run(tmp_path / "silent", made.summary(told=None), ask="none")
    made.save_run(tmp_path / "unaligned", made.summary(aligned=unaligned), ask="greedy")
    made.save_run(tmp_path / "asked", made.summary(), ask="greedy")
    made.save_run(tmp_path / "asked_again", made.summary(), ask="greedy")
    document = assemble([tmp_path])
    assert [run.folder.name for run in document.runs] == ["asked_again", "silent", "unaligned"]
    (left,) = document.left_out
    assert left.path == str(tmp_path / "asked")
    assert left.reason == f"asked the same as {tmp_path / 'asked_again'}, run earlier"


def test_of_two_runs_that_asked_the_same_the_worse_has_the_row(tmp_path):
    """As its word counts, whichever was run later."""
    made.save_run(tmp_path / "a", made.summary(0.3))
    made.save_run(tmp_path / "b", made.summary())
    seal(tmp_path / "b", finished="2126-11-21T00:00:00+00:00")
    document = assemble([tmp_path])
    assert [row.word for row in document.rows if not row.is_anchor] == [document.words()["x"]]
    assert document.words() == {"x": "partly_erased"}
    (left,) = document.left_out
    assert left.reason == f"asked the same as {tmp_path / 'a'}, whose verdict counts"


def test_of_equal_words_the_page_has_the_run_that_the_verdict_tells(tmp_path):
    """The same whichever was run later."""
    for seed in (3, 4):
        patch_run(tmp_path / str(seed), "npo", held=0.9, seed=seed)
    for later in (3, 4):
        seal(tmp_path / str(later), finished=f"2126-11-2{later}T00:00:00+00:00")
        (model,) = verdicts([tmp_path]).models
        (row,) = (row for row in assemble([tmp_path]).rows if not row.is_anchor)
        assert row.sentence == model.verdict.sentence
        (left,) = assemble([tmp_path]).left_out
        assert left.reason.endswith("whose verdict counts")


def test_the_row_of_the_run_whose_word_counts_is_there(tmp_path, browser, shown):
    made.save_run(tmp_path / "a", made.summary(told=None), ask="none")
    made.save_run(tmp_path / "b", made.summary(), ask="greedy")
    document = assemble([tmp_path])
    assert document.words() == {"x": "undecided"}
    rows = [row for row in document.rows if not row.is_anchor]
    assert [(row.condition, row.word) for row in rows] == [(0, "undecided"), (0, "erased")]
    shown(tmp_path)
    assert (
        browser.run("document.querySelectorAll('#models tbody:not(.anchor):not([hidden])').length")
        == 2
    )
    # its depth is the same in both, and is drawn once
    assert browser.run("document.querySelectorAll('#scale circle.dot').length") == 1
