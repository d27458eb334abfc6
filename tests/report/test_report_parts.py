"""The parts beside UDS: exact match, steering, attacks, meta-evaluation, aggregates."""

import json
import shutil

import pytest
from support.report_cases import ERRORS, attacked, change, em_run, other_results, patch_run, write

from lensaudit.errors import InputError
from lensaudit.report.assemble import assemble
from lensaudit.report.kinds import on_page
from lensaudit.report.render import write_report
from lensaudit.results.locate import Found, locate


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A page with every part."""
    root = tmp_path_factory.mktemp("parts")
    patch_run(root / "out" / "uds", "npo", n=6)
    em_run(root / "out" / "em", "npo")
    other_results(root / "out")
    assert write_report([root / "out"], root / "audit.html") == []
    return root / "audit.html"


@pytest.fixture
def page(parts, browser):
    """The same, opened."""
    browser.open(parts.as_uri())
    return parts


def text(browser, selector: str) -> str:
    return browser.run(f"document.querySelector('{selector}').textContent")


def test_every_part_that_has_a_result_is_shown_without_an_error(browser, page):
    shown = browser.run(
        "[...document.querySelectorAll('main > section')].filter(s => !s.hidden).map(s => s.id)"
    )
    assert shown == [
        "verdict",
        "models",
        "layers",
        "examples",
        "extremes",
        "categories",
        "meta",
        "steering",
        "attacks",
        "reading",
        "record",
    ]
    assert browser.heard(*ERRORS) == []


def test_categories_are_counted_and_anchors_stand_above(browser, page):
    rows = browser.run(
        "[...document.querySelectorAll('#categories tbody tr')].map(row => row.innerText)"
    )
    assert [row.split("\t")[0].strip() for row in rows] == ["full", "retain", "npo"]
    assert "0.333" in rows[2]
    assert "0.200 to 0.500" in rows[2]
    assert rows[2].split("\t")[4:8] == ["3", "0", "3", "0"]  # exact, over, under, general


def test_an_example_says_what_the_models_said_and_its_category(browser, page):
    browser.open(page.as_uri() + "#example=1")
    said = text(browser, ".detail")
    assert "exact matchexact" in said
    assert "after the answer’s beginningsaid by npo." in said
    browser.open(page.as_uri() + "#heat=match")
    assert text(browser, "#examples .heat-legend").startswith("loststill said")
    assert browser.heard(*ERRORS) == []


def test_the_meta_table_sorts_with_gaps_last(browser, page):
    first = "[...document.querySelectorAll('#meta tbody tr')].map(row => row.cells[0].textContent)"
    assert browser.run(first) == ["UDS", "ES", "CKA"]
    browser.click("#meta [data-sort=overall]")
    assert browser.run(first) == ["ES", "UDS", "CKA"]


def test_attacks_show_accuracies_ratios_and_reasons(browser, page):
    said = text(browser, "#attacks")
    assert "B  unlearned, retrained90 %" in said
    assert "gap closed (B − A) / (C − A)0.86 0.70 to 0.90" in said
    assert "N is missing" in said
    assert "0.500 → 0.200" in said
    assert "1.000 → –" in said


def test_an_attack_without_an_interval_says_why(browser, shown, tmp_path):
    attacked(tmp_path / "out", "npo", {})
    path = tmp_path / "out" / "worst" / "summary.json"
    found = json.loads(path.read_text()) | {"ci95": None, "no_interval": "2 authors: no interval"}
    write(path, found)
    a = {"value": 0.3, "interval": None, "reason": "1 split: no interval", "n": 80, "n_splits": 1}
    study = {"study_id": "s", "models": {"unlearned": "npo"}, "data": "forget10"}
    write(tmp_path / "out" / "rtt" / "summary.json", [{**study, "as_they_are": {"A": a}}])
    shown(tmp_path / "out")
    said = text(browser, "#attacks")
    assert "excess 0.250 (2 authors: no interval) · attack list" in said
    assert "A: 1 split: no interval" in said


def test_a_table_of_another_tool_s_retraining_is_read(tmp_path):
    header = "dataset,model_id,forget_acc_unlearn,forget_acc_unlearn_rtt,recovery_rate"
    (tmp_path / "runs.csv").write_text(f"{header}\nyears,gd,0.3,0.85,\n")
    (study,) = assemble([tmp_path / "runs.csv"]).attacks
    assert [(one["condition"], one["value"]) for one in study["accuracies"]] == [
        ("A", 0.3),
        ("B", 0.85),
    ]
    (tmp_path / "runs.csv").write_text(f"{header}\nyears,gd,0.3,much,\n")
    with pytest.raises(InputError, match=r"B\.value: found 'much', wanted a number"):
        list(on_page(Found("rtt", tmp_path / "runs.csv")))


def test_who_has_what_is_drawn_alike_on_every_card(browser, shown, tmp_path):
    for name, n_values in (("npo", 2), ("rmu", 30)):
        patch_run(tmp_path / "out" / name, name)
        attacked(tmp_path / name, name, {})
        where = tmp_path / name / "know"
        found = json.loads((where / "summary.json").read_text())
        found |= {"unscored": {str(n): "stands alone in its relation (a)" for n in range(4)}}
        write(where / "summary.json", found | {"priors": ["uniform", "demo/base"], "n": 20})
        matrix = json.loads((where / "matrix.json").read_text())
        values = {"values": [f"v{n}" for n in range(n_values)], "p": [[0.5] * n_values] * 2}
        write(where / "matrix.json", matrix | values)
        shutil.move(where, tmp_path / "out" / f"know-{name}")
    shown(tmp_path / "out")
    # a cell is as large on both, and why facts are not asked stands once
    widths = "[...document.querySelectorAll('#attacks rect')].map(r => r.attributes.width.value)"
    assert browser.run(f"new Set({widths}).size") == 1
    said = text(browser, "#attacks")
    assert said.count("4 of 24 facts stand alone in their relation") == 1
    beyond = "beyond the likeliest of a uniform guess and demo/base"
    assert said.count(f"1.50 of 3.0 bits a fact (1.00 to 2.00), {beyond}") == 2


def test_checkpoints_of_one_run_are_drawn_by_step(browser, shown, tmp_path):
    for step, held in ((100, 0.9), (200, 0.5)):
        patch_run(tmp_path / "out" / str(step), f"runs/npo/checkpoint-{step}", held=held)
    patch_run(tmp_path / "out" / "alone", "other/checkpoint-7")
    shown(tmp_path / "out")
    assert browser.run("document.querySelectorAll('#curves circle').length") == 2
    assert "npo: UDS" in text(browser, "#curves .key")


def test_a_curve_is_of_one_set_of_rows_and_epochs_are_no_steps(browser, shown, tmp_path):
    for step, n in ((100, 24), (200, 24), (100, 12), (200, 12)):
        name = f"runs/npo/checkpoint-{step}"
        patch_run(tmp_path / "out" / f"{step}-{n}", name, n=n)
    for epoch in (5, 10):
        patch_run(tmp_path / "out" / f"ep{epoch}", f"npo_lr1e5_ep{epoch}")
    shown(tmp_path / "out")
    charts = browser.run(
        "[...document.querySelectorAll('#curves .card')].map(card => [card.querySelectorAll"
        "('path[stroke-width]').length, card.querySelectorAll('circle').length,"
        " [...card.querySelectorAll('text')].at(-1).textContent])"
    )
    assert charts == [[2, 4, "optimiser steps"], [1, 2, "epochs"]]
    keys = browser.run(
        "[...document.querySelectorAll('#curves .key > span')].map(one => one.textContent)"
    )
    assert len({*keys}) == 3


def test_aggregates_alone_make_a_leaderboard_with_methods(browser, shown, tmp_path):
    named = {"full": 0.0, "retain": 1.0, "npo_a": 0.1, "npo_b": 0.9, "dpo_a": None}
    rows = [
        {"model": name, "method": name.partition("_")[0], "epoch": "ep5", "uds": uds, "mem": 0.5}
        for name, uds in named.items()
    ]
    write(tmp_path / "out" / "aggregate.json", {"kind": "aggregate", "schema": 1, "models": rows})
    shown(tmp_path / "out")
    # a number of another tool, without an interval, decides nothing
    assert text(browser, "h1") == "No unlearning depth was measured."
    cells = browser.run(
        "[...document.querySelectorAll('#models tbody tr')]"
        ".map(row => (row.querySelector('button') ?? row.cells[0]).textContent.trim())"
    )
    assert cells == ["full", "retain", "npo_a", "npo_b", "dpo_a"]


def lens_run(place, source):
    """A run of the Logit Lens."""
    found = patch_run(place, source)
    rows = (place / "results.jsonl").read_text().replace('"uds"', '"lens"')
    (place / "results.jsonl").write_text(rows)
    change(place, score="lens", lens=found["uds"], uds=None, engine="lens")


def test_a_model_that_was_asked_in_two_ways_is_counted_once(browser, shown, tmp_path):
    patch_run(tmp_path / "a", "npo")
    patch_run(tmp_path / "b", "npo", n=20)
    lens_run(tmp_path / "c", "npo")
    page = shown(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    # the table has no row for the lens alone, and shows those of all settings
    for at, n_rows in ((0, 1), (2, 2)):
        value = browser.run(f"document.querySelectorAll('#pick-condition option')[{at}].value")
        browser.open(f"{page}#settings={value}")
        rows = "#models tbody:not(.anchor, [hidden])"
        assert browser.run(f"document.querySelectorAll('{rows}').length") == n_rows
        assert text(browser, "#models .count") == "1 of 1 models"


def test_a_logit_lens_run_is_told_from_uds(browser, shown, tmp_path):
    patch_run(tmp_path / "a", "npo")
    lens_run(tmp_path / "b", "npo")
    shown(tmp_path / "a", tmp_path / "b")
    options = "[...document.querySelectorAll('#pick-condition option')].map(o => o.textContent)"
    assert [one.split(" · ")[0] for one in browser.run(options)] == ["UDS", "Lens depth"]
    lens = browser.run("document.querySelectorAll('#pick-condition option')[1].value")
    browser.open((tmp_path / "audit.html").as_uri() + f"#settings={lens}")
    assert "Lens" in text(browser, "#models thead")
    assert text(browser, "#scale figcaption").startswith("Logit Lens depth")


def test_a_manifest_of_files_beside_results_is_no_unfinished_run(tmp_path):
    patch_run(tmp_path / "npo", "npo")
    write(tmp_path / "comparison_manifest.json", {"command": "patch comparison"})
    write(tmp_path / "manifests" / "meta_table" / "manifest.json", {"command": "meta table"})
    found, left = locate([tmp_path])
    assert [one.path.parent.name for one in found] == ["npo"]
    assert left == []
