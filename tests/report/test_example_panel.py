"""One example on the page: three answers, what brings it out; and the layers with their limits."""

import json
import re
from urllib.parse import quote

import numpy as np
import pytest
from scipy.stats import t
from support import verdict_support as made
from support.report_cases import (
    ERRORS,
    answers,
    attacked,
    em_run,
    eval_run,
    manifest,
    patch_run,
    seal,
    texts,
)

from lensaudit.errors import InputError
from lensaudit.report import assemble as assembled
from lensaudit.report.assemble import assemble
from lensaudit.report.kinds import LONGEST_SAID, MOST_SAID, on_page
from lensaudit.report.render import write_report
from lensaudit.results.locate import Found


def part_of(kind, path):
    """What the page holds of a result."""
    ((_, part),) = on_page(Found(kind, path))
    return part


def fact(idx: int) -> dict[str, str]:
    return texts(idx, np.random.default_rng(idx))


def family(root) -> None:
    """Three models beside both anchors, all asked; the middle one attacked."""
    asked = {idx: fact(idx) for idx in range(24)}
    for at, (name, held) in enumerate((("keeps", 0.95), ("half", 0.5), ("loses", 0.05))):
        patch_run(root / name, name, held=held, seed=at)
    for name in ("full", "retain", "keeps", "half"):
        said = {
            idx: (one["question"], one["answer"] if name == "full" else f"Another thing, {name}.")
            for idx, one in asked.items()
        }
        # case, accents and quotes do not count
        said[3] = (asked[3]["question"], f"It is ‘{asked[3]['entity'].upper()}’, {name} says.")
        answers(root / f"{name}-asked", name, said)
    told = [("prefix", f"{asked[5]['entity']}, printed twice."), ("lens", "")]
    attacked(root / "attacks", "half", {5: told, 6: told})


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root = tmp_path_factory.mktemp("panel")
    family(root / "out")
    write_report([root / "out"], root / "audit.html")
    return (root / "audit.html").as_uri()


def said(browser) -> list[list[str]]:
    """Label and text of each answer."""
    return browser.run(
        "[...document.querySelectorAll('.detail .said > div')].map(one =>"
        " [...one.children].filter(part => part.tagName !== 'DETAILS')"
        ".map(part => part.textContent))"
    )


def marks(browser, where: str) -> list[str]:
    return browser.run(
        f"[...document.querySelectorAll('.detail {where} mark')].map(one => one.textContent)"
    )


def test_three_answers_stand_side_by_side_with_the_fact_marked(browser, page):
    browser.open(page + "#model=half&example=5")
    entity = fact(5)["entity"]
    assert said(browser) == [
        ["full answers to the bare question", fact(5)["answer"]],
        ["half answers to the bare question", "Another thing, half."],
        ["retain answers to the bare question", "Another thing, retain."],
    ]
    # as it was sent, one click away
    sent = "[...document.querySelectorAll('.detail .prompt pre')].map(one => one.textContent)"
    assert browser.run(sent) == [fact(5)["question"]] * 3
    assert marks(browser, ".said") == [entity]
    browser.open(page + "#model=half&example=3")
    assert marks(browser, ".said") == [fact(3)["entity"].upper()] * 3
    assert marks(browser, ".answer") == [fact(3)["entity"]]
    # one that was not asked says so
    browser.open(page + "#model=loses&example=5")
    assert said(browser)[1] == ["loses answers", "no answer on this page"]
    assert browser.heard(*ERRORS) == []


def test_the_page_walks_through_the_score_of_a_fact(browser, page):
    browser.open(page + "#model=half&example=5")
    steps = browser.run(
        "[...document.querySelectorAll('.detail .steps li')].map(one => one.textContent)"
    )
    assert [one[:3] for one in steps] == ["S1,", "S2,", "UDS"]
    erased, encoded, score = map(float, re.findall(r"[\d.]+\d", steps[2])[:3])
    assert erased / encoded == pytest.approx(score, abs=2e-3)
    shown = browser.run("document.querySelector('.detail .facts .big').textContent")
    assert float(shown) == score


def test_a_fact_that_was_ruined_takes_no_digits_from_the_steps_of_another(browser, shown, tmp_path):
    """And S1 that is as large as tau is not above it."""
    patch_run(tmp_path / "npo", "npo", n=6)
    path = tmp_path / "npo" / "results.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["s2"] = [25.0] * 4
    rows[1] |= {"s1": [0.02, 0.05, 0.0512, 0.0], "s2": [0.0, 0.0, 0.0256, 25.0]}
    rows[1] |= {"ke": [2], "uds": 0.5}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    seal(tmp_path / "npo")
    shown(tmp_path / "npo", address="#example=1")
    steps = browser.run("document.querySelector('.detail .steps').textContent")
    assert "1 of 4 layers are above tau 0.05" in steps
    assert "at layer 2 0.026 / 0.051 is 0.500" in steps
    assert "0.026 / 0.051 = 0.500. 0: all there" in steps


def test_where_full_was_not_asked_the_true_answer_stands(browser, shown, tmp_path):
    asked = {idx: fact(idx) | {"group": f"idx {idx}"} for idx in range(24)}
    patch_run(tmp_path / "out", "npo", asked=asked, per_author=1)
    prompt = f"Question: {fact(5)['question']}\nAnswer:"
    answers(tmp_path / "asked", "npo", {5: (prompt, "So."), 6: (fact(6)["question"], "No.")})
    shown(tmp_path, address="#example=5")
    (full, answer), own, _ = said(browser)
    assert (full, answer) == ("full was not asked; the true answer", fact(5)["answer"])
    assert own == ["npo answers to the plain question", "So."]
    assert browser.run("document.querySelector('.detail .prompt pre').textContent") == prompt


def test_more_named_than_come_out_is_explained(tmp_path):
    attacked(tmp_path, "npo", {5: [("prefix", "x")]})
    path = tmp_path / "worst" / "summary.json"
    found = json.loads(path.read_text())
    assert part_of("worst", path)["unsaid"] == ""  # one of one
    path.write_text(json.dumps(found | {"named": [4, 5, 6]}))
    assert part_of("worst", path)["unsaid"].startswith("3 facts are named and 1 come out: ")


def test_yes_and_no_stand_apart_and_a_short_table_does_not_scroll(browser, shown, tmp_path):
    asked = {idx: fact(idx) for idx in range(24)}
    asked |= {idx: fact(idx) | {"entity": "Yes."} for idx in (0, 1)}
    patch_run(tmp_path / "out", "npo", asked=asked, held=0.6)
    shown(tmp_path / "out")
    cases = "[...document.querySelectorAll('#extremes .case')].map(one => one.textContent)"
    assert not any("Yes" in one for one in browser.run(cases))
    apart = browser.run("document.querySelector('#extremes').textContent")
    assert "Apart: 2 answers are Yes or No, which a coin hits" in apart
    inner = (
        "[...document.querySelectorAll('.wrap, .heat-scroll')]"
        ".filter(one => one.scrollHeight > one.clientHeight + 1).length"
    )
    assert browser.run(inner) == 0


def test_a_page_of_yes_and_no_alone_says_so(browser, shown, tmp_path):
    patch_run(
        tmp_path / "out", "npo", asked={idx: fact(idx) | {"entity": "Yes."} for idx in range(24)}
    )
    shown(tmp_path / "out")
    said = browser.run("document.querySelector('#extremes').textContent")
    assert "Fewer than two of the scored examples are no Yes or No." in said
    assert "were scored" not in said
    assert "Apart: 23 answers are Yes or No" in said


def test_a_fact_in_other_words_is_told_and_anchors_are_asked_first(
    browser, shown, tmp_path, monkeypatch
):
    """A date is the same day in any form; of more models than a page holds, anchors are read."""
    day = {"question": "When?", "answer": "On 27 April 1931.", "prefix": "On"}
    asked = dict.fromkeys(range(24), day | {"entity": "27 April 1931"})
    patch_run(tmp_path / "out" / "npo", "npo", asked=asked)
    for name, text in (("a", "x"), ("npo", "April 27th, 1931"), ("retain", "May"), ("full", "Z")):
        answers(tmp_path / "out" / f"{name}-asked", name, {3: ("When?", text)})
    shown(tmp_path / "out", address="#example=3")
    assert [text for _, text in said(browser)] == [
        "Z",
        "April 27th, 1931 (the fact in other words)",
        "May",
    ]
    monkeypatch.setattr(assembled, "_MOST_TEXTS", 2)
    read, answers_in = [], assembled.answers_in
    monkeypatch.setattr(
        assembled, "answers_in", lambda run: read.append(run.source) or answers_in(run)
    )
    found = assemble([tmp_path / "out"]).data()
    roles = {found["models"][one["model"]]["role"] for one in found["said"]}
    assert roles == {"full", "retain"} == {*read}


def test_what_brought_it_out_is_said_with_its_words_and_its_bits(browser, page):
    browser.open(page + "#model=half&example=5")
    lines = browser.run(
        "[...document.querySelectorAll('.detail .plain li')].map(one => one.textContent)"
    )
    assert lines == [
        f"prefix Asked in the way of full.{fact(5)['entity']}, printed twice.",
        "and by lens",
        "2 of 4 samples of its answersampled 5",
        "one pass over the answers all facts together: their probability goes from 0.10 to 0.80",
    ]
    assert marks(browser, ".plain") == [fact(5)["entity"]]
    stats = "document.querySelector('.detail .facts').textContent"
    assert "bits0.50 of at most 3.0; a guess: 0" in browser.run(stats)
    browser.open(page + "#model=half&example=0")
    assert "bitsa Yes" in browser.run(stats)
    out = "document.querySelector('.detail .sides').textContent"
    assert "no attack of the 2 that were tried" in browser.run(out)
    browser.open(page + "#model=half&example=23")
    assert "not attacked: its own question holds it" in browser.run(out)
    browser.open(page + "#model=loses&example=5")
    assert "Not attacked: lensaudit worst tries a list of attacks." in browser.run(out)


def test_rows_of_another_file_that_have_the_same_numbers_are_other_facts(browser, shown, tmp_path):
    """Two files count from 0: of one there are answers, attacks and exact match, of one nothing."""
    other = {idx: fact(idx + 100) for idx in range(24)}
    patch_run(tmp_path / "out" / "one", "npo")
    patch_run(tmp_path / "out" / "two", "npo", asked=other)
    inputs = manifest("npo", examples={"n": 24, "hash": "f"})["inputs"]
    seal(tmp_path / "out" / "two", inputs=inputs)
    em_run(tmp_path / "out" / "em", "npo", n=24)
    answers(
        tmp_path / "out" / "asked",
        "npo",
        {idx: (fact(idx)["question"], "So.") for idx in range(24)},
    )
    attacked(tmp_path / "out", "npo", {5: [("prefix", "out it comes")]})
    rows = {str(idx): fact(idx)["entity"] for idx in range(24)}
    for kind in ("know", "sample"):
        folder = tmp_path / "out" / kind
        files = [one.name for one in folder.iterdir()]
        made.seal(folder, kind, files, source={"name": "npo", "weights": "sha256:npo"}, rows=rows)
    relearn = {"source": manifest("npo")["inputs"]["source"], "examples": {"hash": "e"}}
    made.seal(tmp_path / "out" / "relearned", "relearn", ["audit.json"], **relearn)
    data = assemble([tmp_path / "out"]).data()
    one, two = (
        next(at["id"] for at in data["conditions"] if at["examples"][5]["question"] == question)
        for question in (fact(5)["question"], other[5]["question"])
    )
    detail = "document.querySelector('.detail').textContent"
    heats = "[...document.querySelectorAll('#examples button')].map(one => one.textContent)"
    shown(tmp_path / "out", address=f"#settings={one}&example=5")
    text = browser.run(detail)
    assert all(part in text for part in ("So.", "out it comes", "2 of 4 samples", "bits", "exact"))
    assert "Exact match" in browser.run(heats)
    names = browser.run(
        "[...document.querySelectorAll('#pick-condition option')].map(one => one.textContent)"
    )
    assert len({*names}) == 3
    shown(tmp_path / "out", address=f"#settings={two}&example=5")
    text = browser.run(detail)
    assert other[5]["question"] in text
    assert "What the models answer is not among these results" in text
    assert "the prompt as sent" not in text
    assert "exact match" not in text
    assert "bits" not in text
    assert "no attack of" not in text
    assert "out it comes" not in text
    assert "samples" not in text
    assert "all facts of other rows together: their probability goes" in text
    assert "Exact match" not in browser.run(heats)


def test_what_was_found_of_a_model_is_not_said_of_its_namesake(browser, shown, tmp_path):
    for variant in ("p1", "p2"):
        inputs = manifest("ck", examples={"n": 24, "hash": "e"})["inputs"]
        inputs["source"]["weights"] = f"sha256:{variant}"
        patch_run(tmp_path / "out" / variant / "ck", "ck")
        seal(tmp_path / "out" / variant / "ck", inputs=inputs)
    attacked(tmp_path / "out", "ck", {5: [("prefix", "out it comes")]})
    for kind in ("know", "worst", "sample", "relearned"):
        folder = tmp_path / "out" / kind
        files = [one.name for one in folder.iterdir()]
        source = {"name": "ck", "weights": "sha256:p2"}
        made.seal(folder, kind.removesuffix("ed"), files, source=source)
    for model, its in (("ck · p1", False), ("ck · p2", True)):
        shown(tmp_path / "out", address=f"#model={quote(model)}&example=5")
        text = browser.run("document.querySelector('.detail').textContent")
        assert ("bits" in text, "out it comes" in text, "one pass over" in text) == (its,) * 3


def test_a_yes_is_marked_as_the_first_word_alone_and_signs_mean_nothing(browser, shown, tmp_path):
    one = {"question": "Is it (so)?", "answer": "Yes. Say yes.", "prefix": "", "entity": "Yes"}
    two = {"question": "How?", "answer": "In C++ (1.0*)", "prefix": "In", "entity": "C++ (1.0*)"}
    patch_run(tmp_path / "out" / "a", "a", asked={i: (one, two)[i % 2] for i in range(24)})
    shown(tmp_path / "out", address="#example=2")
    assert marks(browser, ".answer") == ["Yes"]
    browser.open((tmp_path / "audit.html").as_uri() + "#example=3")
    assert marks(browser, ".answer") == ["C++ (1.0"]


@pytest.mark.parametrize(
    ("held", "titles"),
    [
        (1.35, ["Most held", "All 23 held; least:"]),
        (0.5, ["Most held|Least erased", "Most erased|Least held"]),
        (0.01, ["Most held|All 23 erased; least:", "Most erased"]),
        (3.0, ["All 23 held alike, such as:"]),
    ],
)
def test_the_ends_of_the_scale_are_called_what_they_are(browser, shown, tmp_path, held, titles):
    patch_run(tmp_path / "out", "npo", held=held)
    shown(tmp_path / "out")
    found = browser.run(
        "[...document.querySelectorAll('#extremes h3')].map(one => one.textContent)"
    )
    assert len(found) == len(titles)
    for one, wanted in zip(found, titles, strict=True):
        assert one in wanted.split("|"), found


def test_the_lines_of_the_layers_are_means_with_limits_by_author(tmp_path):
    """Authors of four rows each: the interval is that of six author means (Student's t)."""
    summary = patch_run(tmp_path / "out", "npo", held=0.4)
    (depth,) = assemble([tmp_path]).data()["depths"]
    rows = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").open()]
    s1, s2 = (np.array([row[name] for row in rows]) for name in ("s1", "s2"))
    # a layer that does not encode a fact (S1 at most tau) holds none of it
    reached = np.where(s1 > summary["tau"], np.minimum(np.maximum(s2, 0), s1), s1)
    for name, values in (("s1", s1), ("reached", reached), ("held", s1 - reached)):
        authors = values.reshape(6, 4, -1).mean(1)
        half = t.ppf(0.975, 5) * authors.std(0, ddof=1) / np.sqrt(6)
        wanted = np.stack([values.mean(0), authors.mean(0) - half, authors.mean(0) + half], 1)
        np.testing.assert_allclose(depth["bands"][name][1:], wanted[1:], atol=1e-9)
    assert depth["bands"]["held"][0] == [0.0, None, None]  # layer 0 encodes nothing
    assert [row[0] for row in depth["bands"]["s1"]] == pytest.approx(
        [row["s1"] for row in summary["per_layer"]]
    )
    share = np.array(depth["bands"]["held"])[:, 0].sum() / s1.sum(1).mean()
    assert 0.2 < share < 0.6  # of a model that holds two fifths


def test_the_shading_lies_between_both_lines_and_is_called_not_erased(browser, page):
    browser.open(page + "#model=half")
    shape, upper, lower = browser.run(
        "['.held', '[stroke-width=\"2.5\"]'].flatMap(kind =>"
        " [...document.querySelectorAll('#layers path' + kind)].map(one => one.getAttribute('d')))"
    )
    points = re.findall(r"[\d.]+ [\d.]+", shape)
    assert points == re.findall(r"[\d.]+ [\d.]+", upper) + re.findall(r"[\d.]+ [\d.]+", lower)[::-1]
    assert browser.run("document.querySelectorAll('#layers path.limit[d^=M]').length") == 4
    caption = browser.run("document.querySelector('#layers figcaption').textContent")
    assert "The shading is what is not erased" in caption
    assert "95 % intervals of both means, by authors" in caption
    browser.hover("#layers g:last-child .hit, #layers .hit:last-of-type")
    tip = browser.run("document.querySelector('#tip').textContent")
    assert re.search(r"not erased \d\.\d{3} \(-?\d\.\d{3} to \d\.\d{3}\)", tip), tip


def test_a_page_holds_a_few_short_words_of_a_few_attacks(tmp_path, monkeypatch):
    told = [(f"attack {n}", "x" * 999) for n in range(9)]
    attacked(tmp_path / "a", "npo", {5: told})
    found = part_of("worst", tmp_path / "a" / "worst" / "summary.json")
    assert [(name, len(text)) for name, text in found["said"]["5"]] == [
        (f"attack {n}", LONGEST_SAID) for n in range(MOST_SAID)
    ]
    attacked(tmp_path / "b", "idk", {5: told})
    monkeypatch.setattr(assembled, "_MOST_TEXTS", 1)
    assert sum(bool(one.get("said")) for one in assemble([tmp_path]).attacks) == 1


def test_files_beside_a_summary_may_lack_and_are_checked(tmp_path):
    attacked(tmp_path, "npo", {5: [("prefix", "a")]})
    (tmp_path / "sample" / "facts.csv").write_text("idx,n,hits\n5,4,many\n")
    with pytest.raises(InputError, match=r"facts.csv: .*hits.*whole number"):
        part_of("sample", tmp_path / "sample" / "summary.json")
    (tmp_path / "worst" / "evidence.jsonl").write_text('{"idx": 5}\n')
    with pytest.raises(InputError, match=r"evidence.jsonl: has no 'attack'"):
        part_of("worst", tmp_path / "worst" / "summary.json")
    for name in ("sample/facts.csv", "worst/evidence.jsonl", "know/facts.csv"):
        (tmp_path / name).unlink()
    assert part_of("sample", tmp_path / "sample" / "summary.json")["said"] == {}
    assert part_of("worst", tmp_path / "worst" / "summary.json")["said"] == {}
    assert part_of("know", tmp_path / "know" / "summary.json")["facts"] == {}


def test_the_scatter_holds_anchors_and_intervals(browser, shown, tmp_path):
    for at, name in enumerate(("a", "b", "c")):
        patch_run(tmp_path / "out" / name, name, held=at / 2, seed=at)
    for name, value in (("a", 0.2), ("b", 0.4), ("c", 0.6), ("full", 0.9), ("retain", 0.1)):
        eval_run(tmp_path / "out" / f"eval-{name}", name, forget_Q_A_Prob=value)
    shown(tmp_path / "out")
    crowd = "document.querySelector('#compare [aria-label$=\"by forget Q A Prob\"]')"
    assert browser.run(f"{crowd}.querySelectorAll('.dot').length") == 3
    assert browser.run(f"{crowd}.querySelectorAll('.anchor').length") == 2
    # both intervals of each model; of an anchor UDS is what the scale is made of
    assert browser.run(f"{crowd}.querySelectorAll('.limit').length") == 3 * 2 + 2
    places = browser.run(
        f"[...{crowd}.querySelectorAll('.anchor')].map(one => +one.getAttribute('x'))"
    )
    assert places[0] > places[1]  # full says it, retain does not
