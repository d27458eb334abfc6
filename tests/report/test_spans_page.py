"""The page on which spans are moved: what it shows, and that its download is read back."""

import json
import re

import pytest
from support.report_cases import ERRORS

from lensaudit.cli.main import run

ROWS = (
    ("What is Ada's father?", "Ada's father is a civil engineer.", "Ada"),
    ("Where was Ada born?", "Ada was born in Oslo, Norway.", "Ada"),
    ("What did Bo write?", "Bo wrote a saga of\nrye [and \\n barley] \U0001f33e fields.", "Bo"),
    ("Who is Bo?", "...", "Bo"),
)
HOSTILE = (
    "</script><script>window.owned = 1</script><img src=x onerror=owned=1>",
    "\u202egnp.exe <b>bold</b> is a `${owned=1}` {{ owned }} \u2028 <!-- <script> judge.",
    "' onmouseover=owned=1 \" (rule: phrase 0:1)",
)


def written(folder, rows=ROWS):
    """The page of annotated rows; its folder is the working folder."""
    keys = ("question", "answer", "author")
    lines = [json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows]
    (folder / "qa.jsonl").write_text("".join(lines))
    assert run(["annotate", "qa.jsonl", "-o", "forget.json", "--page"]) == 0
    return folder / "forget.page.html"


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return written(tmp_path)


def rows_of(folder):
    return {row["idx"]: row for row in json.loads((folder / "forget.json").read_text())}


def spans(folder):
    return {idx: (row["entity"], row["span"]) for idx, row in rows_of(folder).items()}


def opened(browser, page):
    browser.open(page.as_uri())
    browser.run("localStorage.clear()")
    browser.open(page.as_uri())
    browser.run(
        "window.saved = []; URL.createObjectURL = blob => { saved.push(blob); return 'blob:x' };"
        "HTMLAnchorElement.prototype.click = function () { saved.push(this.download) }"
    )
    # doubtful rows stand first; these tests walk the rows of the file
    first = "document.querySelector('article .check') !== null"
    assert browser.run(first) or not browser.run("document.querySelectorAll('.check').length")
    browser.run(
        "[...document.querySelectorAll('#filter button')]"
        ".find(one => one.textContent === 'as in the file').click()"
    )


def downloaded(browser, folder):
    """What the page downloads, in a folder of downloads."""
    browser.click("#save")
    browser.wait("saved.length >= 2")
    assert browser.run("saved.at(-1)") == "forget.review.txt"
    there = folder / "Downloads"
    there.mkdir(exist_ok=True)
    text = browser.run("saved.at(-2).text()")
    (there / "forget.review.txt").write_bytes(text.encode())
    return ["annotate", "Downloads/forget.review.txt", "-o", "forget.json"]


def marked(browser, n):
    return browser.run(f"document.querySelector('#row-{n} mark').textContent")


def test_spans_are_moved_by_keys_and_read_back_as_reviewed(browser, page, tmp_path, capsys):
    before = spans(tmp_path)
    assert before == {
        0: ("civil engineer", "rule"),
        1: ("Oslo, Norway", "rule"),
        2: ("wrote a saga of", "rule"),
    }
    opened(browser, page)
    said = "document.querySelector('#said').textContent"
    assert browser.run(said) == "0 of 4 spans reviewed"
    browser.press("ArrowRight")
    assert marked(browser, 0) == "engineer"
    browser.press("ArrowLeft")
    browser.press("ArrowLeft")
    assert marked(browser, 0) == "a civil engineer"
    browser.press("ArrowDown")
    browser.press("ArrowLeft", shift=True)
    assert marked(browser, 1) == "Oslo"
    browser.press("ArrowRight")  # a span of one word moves whole
    assert marked(browser, 1) == "Norway"
    browser.press("ArrowDown")
    browser.press("ArrowDown")
    browser.press("x")
    assert browser.run(said) == "2 of 3 spans reviewed, 1 rows left out"
    assert browser.run("[done.value, done.max]") == [2, 3]
    command = downloaded(browser, tmp_path)
    capsys.readouterr()
    assert run(command) == 0  # no --force
    assert "1 of 3 spans by rule, not reviewed" in capsys.readouterr().out
    assert spans(tmp_path) == {
        0: ("a civil engineer", "reviewed"),
        1: ("Norway", "reviewed"),
        2: before[2],
    }
    # what is in the review now is what the page shows when it is made again
    assert run(["annotate", "qa.jsonl", "-o", "forget.json", "--page"]) == 0
    assert spans(tmp_path)[1] == ("Norway", "reviewed")
    opened(browser, page)
    assert browser.run(said) == "2 of 3 spans reviewed"
    assert marked(browser, 1) == "Norway"


def test_enter_confirms_and_goes_to_the_next_that_nobody_saw(browser, page, tmp_path):
    opened(browser, page)
    browser.press("Enter")
    browser.press("Enter")
    browser.press("u")  # on the third row: as proposed, which it is
    here = "document.querySelector('.here').id"
    assert browser.run(here) == "row-2"
    assert run(downloaded(browser, tmp_path)) == 0
    assert [span for _, span in spans(tmp_path).values()] == ["reviewed", "reviewed", "rule"]
    # a second download of the same person replaces the first, without --force
    browser.click("#row-2 .q")
    browser.press("Enter")
    assert run(downloaded(browser, tmp_path)) == 0
    assert [span for _, span in spans(tmp_path).values()] == ["reviewed"] * 3


def test_a_review_that_forgets_what_a_person_saw_is_refused(page, tmp_path, capsys):
    review, old = tmp_path / "forget.review.txt", tmp_path / "old.txt"
    text = review.read_text()
    old.write_text(text)
    review.write_text(re.sub(r" \(rule: \w+ [\d:]+\)", "", text, count=1))
    assert run(["annotate", str(review), "-o", "forget.json"]) == 0
    capsys.readouterr()
    assert run(["annotate", str(old), "-o", "forget.json"]) == 2
    assert "holds other spans" in capsys.readouterr().err
    assert spans(tmp_path)[0] == ("civil engineer", "reviewed")


def test_a_word_is_marked_by_a_click_and_what_was_marked_is_kept(browser, page, tmp_path):
    opened(browser, page)
    browser.click("#row-0 .a mark", -0.3, 0.5)  # left of the span: "father is a"
    clicked = marked(browser, 0)
    assert clicked in ("is", "father", "a")
    browser.open(page.as_uri())
    assert marked(browser, 0) == clicked
    # text that is selected is marked as it is, without blanks at its ends
    browser.run(
        "getSelection().setBaseAndExtent(document.querySelector('#row-1 .a bdi').firstChild, 3,"
        "document.querySelector('#row-1 .a bdi').firstChild, 8);"
        "document.querySelector('#row-1 .a bdi').dispatchEvent("
        "new MouseEvent('click', {bubbles: true}))"
    )
    assert marked(browser, 1) == "was"


def test_hostile_rows_are_shown_as_text_and_come_back_as_they_were(
    browser, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    page = written(tmp_path, (*ROWS, HOSTILE))
    opened(browser, page)
    assert browser.heard(*ERRORS) == []
    for _ in range(6):
        browser.press("Enter")
    assert browser.run("window.owned === undefined && !document.querySelector('#rows img')")
    asked = [one["request"]["url"] for one in browser.heard("Network.requestWillBeSent")]
    assert {url for url in asked if not url.startswith(("data:", "blob:"))} == {page.as_uri()}
    assert browser.run("document.querySelector('#row-4 .a').textContent") == HOSTILE[1]
    before = rows_of(tmp_path)
    assert run(downloaded(browser, tmp_path)) == 0
    after = rows_of(tmp_path)
    assert {row.pop("span") for row in after.values()} == {"reviewed"}
    assert [row.pop("span") for row in before.values()] == ["rule"] * len(before)
    assert after == before
    assert after[4]["group"] == HOSTILE[2]
