"""Nothing on the page is crushed, broken or hidden unsaid: a browser measures its boxes."""

from pathlib import Path

import pytest
from support.report_cases import attacked, em_run, eval_run, other_results, patch_run
from test_example_panel import family

from lensaudit.report.render import write_report

BOXES = (Path(__file__).parent / "boxes.js").read_text()
WIDTHS = (390, 1150, 1600)
LONG = "unlearned/some/where/npo_lr5e5_b05_a1_ep10"
CHOSEN = ("model=half&example=5", "model=loses&example=23")
"""A model of which everything is known, and one with metrics alone."""
OPEN = "document.querySelectorAll('details').forEach(one => { one.open = true })"
METRICS = dict.fromkeys(
    ("forget_Q_A_Prob", "model_utility", "extraction_strength", "mia_min_k"), 0.5
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Several models, attacks, metrics and everything else that a page may show."""
    root = tmp_path_factory.mktemp("boxes")
    family(root / "out")
    patch_run(root / "out" / "long", LONG, held=0.7)
    for at, name in enumerate(("loses", LONG)):
        eval_run(root / "out" / f"eval-{at}", name, **METRICS, forget_quality=None)
    em_run(root / "out" / "em", "half", n=24)
    attacked(root / "out" / "again", LONG, {5: [("jailbreak", "word " * 60)]})
    other_results(root / "out" / "others")
    (root / "out" / "broken").mkdir()
    (root / "out" / "broken" / "manifest.json").write_text("{}")
    write_report([root / "out"], root / "audit.html", title="A page with all parts")
    return (root / "audit.html").as_uri()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_text_has_room_and_no_column_is_hidden(browser, page, width, theme):
    browser.size(width)
    try:
        for chosen in CHOSEN:
            browser.open(f"{page}#{chosen}&theme={theme}")
            assert browser.run("document.documentElement.dataset.theme") == theme
            assert "\n".join(browser.run(BOXES)) == ""
            browser.run(OPEN)  # every verdict, menu and manifest
            browser.wait("document.querySelector('#models .why:not([hidden]) dd')")
            assert "\n".join(browser.run(BOXES)) == ""
    finally:
        browser.size(1280)


def test_nothing_is_cut_at_the_width_of_a_laptop(browser, page):
    """Neither the sections' names nor a table's last column lie beyond an edge."""
    wide = (
        "[...document.querySelectorAll('nav, .wrap')].filter(one => one.offsetParent)"
        ".filter(one => one.scrollWidth > one.clientWidth + 1)"
        ".map(one => one.closest('section')?.id ?? one.tagName)"
    )
    browser.size(1150)
    try:
        browser.open(page)
        assert browser.run(wide) == []
    finally:
        browser.size(1280)


def test_the_measure_finds_what_is_wrong(browser, page):
    """Each fault is planted into the page and found; before, it was not there."""
    browser.size(1150)
    browser.open(page)
    before = browser.run(BOXES)
    browser.run(
        "for (const [outer, inner, text] of ["
        "['width: 5rem', '', 'one word a line is what nobody reads'],"
        "['width: 19px; overflow-wrap: anywhere', '', '0.123456'],"
        "['width: 9rem; overflow: auto', 'width: 30rem', 'wide'],"
        "['width: 99rem', '', 'over']]) {"
        "  const box = document.createElement('div');"
        "  box.innerHTML = '<p></p>';"
        "  box.style.cssText = outer;"
        "  box.firstChild.style.cssText = inner;"
        "  box.firstChild.textContent = text;"
        "  document.querySelector('#reading').append(box);"
        "}"
        "document.querySelector('#layers svg text').textContent = 'much longer'.repeat(99)"
    )
    new = [one.split(":")[0] for one in browser.run(BOXES) if one not in before]
    assert new == [
        "broken number",
        "crushed to 19 px",
        "crushed to 80 px",
        "cut at the edge",
        "hides 336 px unsaid",
        "page",
    ]
    browser.size(1280)
