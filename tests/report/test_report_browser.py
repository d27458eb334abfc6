"""The page as a reader meets it: opened from disk in Chromium, clicked and typed at."""

import json
import re

import numpy as np
import pytest
from support.report_cases import ERRORS, eval_run, patch_run

from lensaudit.report.render import asset, write_report
from lensaudit.screen.cells import number

MEBIBYTE = 1 << 20


def names(browser) -> list[str]:
    """Models in the table, top to bottom, without the anchors."""
    return browser.run(
        "[...document.querySelectorAll('#models tbody:not(.anchor, [hidden]) th button')]"
        ".map(cell => cell.textContent)"
    )


def requests(browser) -> list[str]:
    return [
        url
        for one in browser.heard("Network.requestWillBeSent")
        if not (url := one["request"]["url"]).startswith(("data:", "blob:"))
    ]


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """The page of three models, and their results beside it."""
    tmp_path = tmp_path_factory.mktemp("three")
    for at, (name, held) in enumerate((("keeps", 0.95), ("half", 0.5), ("loses", 0.05))):
        patch_run(tmp_path / "out" / name, name, held=held, seed=at)
        eval_run(tmp_path / "out" / f"{name}-tofu", name, forget_Q_A_Prob=held, forget_quality=None)
    write_report([tmp_path / "out"], tmp_path / "audit.html")
    return tmp_path


@pytest.fixture
def small(three, browser):
    """The same, opened."""
    browser.open((three / "audit.html").as_uri())
    return three


def test_150_models_load_in_two_seconds_from_5_megabytes_and_ask_nothing(browser, big_page):
    assert big_page.stat().st_size < 5 * MEBIBYTE
    # the best of three: other processes share the machine
    assert min(browser.open(big_page.as_uri()) for _ in range(3)) < 2
    assert len(names(browser)) == 150
    assert browser.run("document.querySelectorAll('#scale circle.dot').length") == 150
    assert requests(browser) == [big_page.as_uri()]
    assert browser.heard(*ERRORS) == []


def test_models_sort_by_click_and_by_key(browser, small):
    assert names(browser) == ["keeps", "half", "loses"]
    browser.click("#models [data-sort=uds]")
    assert names(browser) == ["loses", "half", "keeps"]
    browser.run("document.querySelector('#models [data-sort=label]').focus()")
    browser.press("Enter")
    assert names(browser) == ["half", "keeps", "loses"]
    sorted_by = "document.querySelector('#models th[aria-sort]')"
    assert browser.run(f"[{sorted_by}.textContent, {sorted_by}.ariaSort]") == ["Model", "ascending"]
    browser.press("Enter")  # the focus is still on the heading
    assert names(browser) == ["loses", "keeps", "half"]


def test_models_filter_by_name_and_by_method(browser, big_page):
    browser.open(big_page.as_uri())
    browser.type("#models input[type=search]", "npo_lr1e5")
    found = names(browser)
    assert 0 < len(found) < 40
    assert all("npo_lr1e5" in name for name in found)
    assert browser.run("document.querySelector('#models .count').textContent").startswith(
        f"{len(found)} of 150"
    )
    browser.open(big_page.as_uri() + "#method=RMU")
    assert {name.partition("_")[0] for name in names(browser)} == {"rmu"}
    browser.open(big_page.as_uri())
    browser.click("#models details.menu summary")
    browser.click("#models input[name=method-UNDIAL]")
    assert {name.partition("_")[0] for name in names(browser)} == {"undial"}


def test_what_is_chosen_is_in_the_address_and_comes_back_from_it(browser, small):
    browser.click("#models [data-name=half]")
    assert "model=half" in browser.run("location.hash")
    browser.click("#models [data-sort=label]")
    address = browser.run("location.href")
    browser.open(address)
    assert browser.run("document.querySelector('#models .chosen button').textContent") == "half"
    assert names(browser) == ["half", "keeps", "loses"]
    browser.press("]")
    assert "model=loses" in browser.run("location.hash")


def test_examples_can_be_found_ordered_and_walked_by_key(browser, small):
    asked = "document.querySelector('.detail .q').textContent"
    facts = "document.querySelector('.detail .facts').textContent"
    everything = browser.run("document.querySelector('#examples .count').textContent")
    assert everything == "24 of 24 examples"
    browser.click("#examples .heat-scroll", 0.5, 0.02)
    first = browser.run(asked)
    browser.run("document.querySelector('.heat-scroll').focus()")
    browser.press("ArrowDown")
    second = browser.run(asked)
    assert first != second
    browser.press("Enter")
    kept = int(re.search(r"example=(\d+)", browser.run("location.hash"))[1])
    rows = (small / "out" / "keeps" / "results.jsonl").read_text().splitlines()
    assert json.loads(rows[kept])["question"] == second
    browser.type("#examples input[type=search]", "author 1")
    assert (
        browser.run("document.querySelector('#examples .count').textContent") == "8 of 24 examples"
    )
    browser.open((small / "audit.html").as_uri() + "#only=no+verdict")
    assert "no layer encodes the fact" in browser.run(facts)


def test_two_models_are_compared_on_the_same_examples_with_an_interval(browser, small):
    browser.open((small / "audit.html").as_uri() + "#model=keeps&with=loses")
    said = browser.run(
        "document.querySelector('#compare .lede + .controls ~ .lede')?.textContent"
        " ?? document.querySelector('#compare .body').textContent"
    )
    means = [
        json.loads((small / "out" / name / "summary.json").read_text())["uds"]
        for name in ("keeps", "loses")
    ]
    assert f"keeps minus loses: −{means[1] - means[0]:.3f} (95 % interval −" in said
    assert "on the 23 examples that both score" in said


def test_metrics_that_were_asked_otherwise_are_not_set_beside_others_without_a_word(
    browser, tmp_path
):
    how = {"keeps": {}, "half": {"rows": "other"}, "loses": {"n_new": 2}, "full": {"n_new": 2}}
    for at, (name, asked) in enumerate(how.items()):
        values = {"forget_Q_A_Prob": 0.2 * at, "forget_Q_A_ROUGE": 0.1 * at}
        if name != "full":
            patch_run(tmp_path / "out" / name, name, seed=at)
        eval_run(tmp_path / "out" / f"{name}-tofu", name, **values, **asked)
    heads = "[...document.querySelectorAll('#metrics thead th small')].map(one => one.textContent)"
    note = "[...document.querySelectorAll('#compare p')].map(one => one.textContent)"
    told = "The metrics of these models were not all asked alike: retain rows, --max-new-tokens."

    def shown():
        write_report([tmp_path / "out"], tmp_path / "page.html")
        browser.open(f"{(tmp_path / 'page.html').as_uri()}#model=keeps&with=half")
        return browser.run(heads), told in browser.run(note)

    said, noted = shown()
    assert said == ["asked otherwise: retain rows", "asked otherwise: --max-new-tokens"]
    assert noted
    for at, name in enumerate(how):
        values = {"forget_Q_A_Prob": 0.2 * at, "forget_Q_A_ROUGE": 0.1 * at}
        eval_run(tmp_path / "out" / f"{name}-tofu", name, **values)
    assert shown() == ([], False)


def test_what_a_high_value_of_facts_to_keep_and_of_an_unreadable_stream_means(browser, tmp_path):
    names_of = ("collateral", "uds_validity", "retain_Q_A_Prob", "forget_quality")
    eval_run(tmp_path / "out", "npo", **dict.fromkeys(names_of, 0.5))
    write_report([tmp_path / "out"], tmp_path / "page.html")
    browser.open((tmp_path / "page.html").as_uri())
    said = browser.run(
        "Object.fromEntries([...document.querySelectorAll('#metrics tr[data-metric]')]"
        ".map(row => [row.dataset.metric, row.querySelector('small').textContent]))"
    )
    wanted = ("high = lost", "high = unreadable", "high = keeps", "high = erased")
    assert said == dict(zip(names_of, wanted, strict=True))


def test_downloads_are_csv_and_json_of_what_is_shown(browser, small):
    browser.run(
        "window.saved = []; URL.createObjectURL = blob => { saved.push(blob); return 'blob:x' };"
        "HTMLAnchorElement.prototype.click = function () { saved.push(this.download) }"
    )
    browser.run("[...document.querySelectorAll('#downloads button')].forEach(one => one.click())")
    kinds = browser.run("saved.filter(one => typeof one === 'string')")
    assert kinds == ["models.csv", "examples.csv", "metrics.csv", "audit.json"]
    texts = browser.run(
        "Promise.all(saved.filter(one => typeof one !== 'string').map(one => one.text()))"
    )
    models, examples, metrics, everything = texts
    assert [line.split(",")[0] for line in models.splitlines()] == [
        "model",
        "half",
        "keeps",
        "loses",
    ]
    assert len(examples.splitlines()) == 25
    header, first, *_ = (line.split(",") for line in examples.splitlines())
    # of the model nearest the middle, which is the one that is shown
    row = json.loads((small / "out" / "half" / "results.jsonl").read_text().splitlines()[0])
    assert float(first[header.index("s2_3")]) == pytest.approx(row["s2"][3], abs=1e-4)
    assert "keeps,forget_Q_A_Prob,knows,0.95" in metrics
    assert json.loads(everything)["models"][0]["name"] == "half"


HOSTILE = {
    "question": "</script><script>window.owned = 1</script><img src=x onerror=owned=1>",
    "answer": "<b>bold</b> \u202egnp.exe \x1b[31m " + "x" * MEBIBYTE,
    "prefix": "<b>bold</b>",
    "entity": "\u202egnp.exe",
}
NAME = "</script><svg onload=owned=1>\u2066model\u202e"


def test_hostile_text_stays_text(browser, tmp_path):
    asked = dict.fromkeys(range(24), HOSTILE)
    patch_run(tmp_path / "out" / "a", NAME, asked=asked)
    eval_run(tmp_path / "out" / "b", NAME, **{"<img src=x onerror=owned=1>": 0.5})
    (tmp_path / "out" / "<u>broken").mkdir()
    (tmp_path / "out" / "<u>broken" / "manifest.json").write_text("{}")
    write_report([tmp_path / "out"], tmp_path / "audit.html", title="<script>owned=1</script>")
    page = (tmp_path / "audit.html").read_text()
    assert len(page) < MEBIBYTE
    assert page.count("<script") == 2
    browser.open((tmp_path / "audit.html").as_uri())
    assert browser.run("typeof window.owned") == "undefined"
    assert browser.heard(*ERRORS) == []
    assert browser.run("document.querySelectorAll('img, u, section b b, svg[onload]').length") == 0
    assert browser.run("document.querySelector('.detail .q').textContent") == HOSTILE["question"]
    assert "‹U+202E›gnp.exe" in browser.run("document.querySelector('.detail').textContent")
    assert "‹U+2066›model‹U+202E›" in browser.run("document.querySelector('h1').textContent")
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b]", browser.run("document.body.innerHTML"))


def test_the_page_rounds_as_the_commands_print(browser, small):
    """Shares of 8, 16 or 64 facts are often exact ties."""
    values = [at / n for n in (8, 16, 32, 64, 128) for at in range(n + 5)]
    values += [-1 / 16, -0.3125, 0.0005, 2.5, 31.25, 999.5, *np.random.default_rng(0).random(200)]
    values = list(map(float, values))
    script = f"(() => {{ {asset('dom.js')} return {values}.map(one => "
    for digits in (2, 3):
        told = browser.run(f"{script} fmt(one, {digits})) }})()")
        assert told == [number(one, digits) for one in values]
    assert browser.run(f"{script} percent(one)) }})()") == [f"{100 * one:.0f} %" for one in values]
    told = browser.run(f"{script} Number(brief(one))) }})()")
    assert told == [float(f"{one:.4g}") for one in values]


def test_a_script_that_is_not_the_page_s_own_does_not_run(browser, small):
    browser.run(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.owned = 1';"
        "document.body.append(s); document.body.insertAdjacentHTML('beforeend',"
        "'<img src=x onerror=\"window.owned = 2\">'); })()"
    )
    assert browser.run("typeof window.owned") == "undefined"
    leaked = browser.run("fetch('https://example.org').then(() => 'sent', () => 'refused')")
    assert leaked == "refused"


def test_dark_follows_the_system_and_the_choice_and_print_is_light(browser, small):
    page = (small / "audit.html").as_uri()
    paper = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(paper)
    browser.media(scheme="dark")
    browser.wait(f"{paper} !== '{light}'")
    dark = browser.run(paper)
    browser.open(page + "#theme=light")
    assert browser.run(paper) == light
    browser.open(page)
    assert browser.run(paper) == dark
    browser.media(scheme="dark", medium="print")
    assert browser.run(paper) == "rgb(255, 255, 255)"
    assert browser.run("getComputedStyle(document.querySelector('.top')).display") == "none"
    browser.media()


def test_the_keyboard_keeps_its_place_when_a_part_is_drawn_again(browser, small):
    label = "document.activeElement.textContent"
    browser.run(
        "[...document.querySelectorAll('#examples button')]"
        ".find(one => one.textContent === 'S1').focus()"
    )
    browser.press("Enter")
    assert "heat=s1" in browser.run("location.hash")
    assert browser.run(label) == "S1"
    browser.run("document.querySelector('#models [data-name=loses]').focus()")
    browser.press("Enter")
    assert browser.run(label) == "loses"
    assert browser.run("document.querySelector('#models .chosen button').textContent") == "loses"


def test_where_s2_is_known_at_ke_layers_only_both_lines_are_means_over_those(
    browser, shown, tmp_path
):
    found = patch_run(tmp_path / "out", "npo", profile="ke")
    assert [row["s2_ke"] is None for row in found["per_layer"]] == [True, False, False, False]
    shown(tmp_path / "out")
    assert browser.run("document.querySelectorAll('#layers circle').length") == 6
    assert "S2 was computed at KE layers only" in browser.run(
        "document.querySelector('#layers figcaption').textContent"
    )
    lines = browser.run(
        "[...document.querySelectorAll('#layers path')].map(one => one.getAttribute('d'))"
    )
    assert lines[1].count("M") == lines[2].count("M") == 1
    assert lines[1].count("L") == lines[2].count("L") == 2  # three layers, no line through 0
