"""The lens by token on the page: where it was read, beside UDS too, and in bounded bytes."""

import base64
import json
import math

import pytest
from support.report_cases import change, patch_run

from lensaudit.report import packing as tokens
from lensaudit.report.assemble import assemble
from lensaudit.report.render import write_report
from lensaudit.results.kinds.patch import read_patch

LAYERS = 8


def lens_run(folder, name, *, read=True, words=("Ada", " Lovelace")):
    """A run of the lens; of row 3 only means are known."""
    found = patch_run(folder, name, n=8, n_layers=LAYERS)
    path = folder / "results.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["lens"] = row.pop("uds")
        if read and row["idx"] != 3:
            row["span_tokens"] = list(words)
            row["lens_by_token"] = [
                [math.log(value(row["idx"], layer, at)) for at in range(len(words))]
                for layer in range(LAYERS)
            ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    change(folder, score="lens", lens=found["uds"], uds=None, engine="lens")
    return read_patch(folder / "summary.json", {})


def value(idx, layer, at):
    """A probability that tells which one it is."""
    return (1 + idx + 8 * layer + 64 * at) / 254


def test_a_table_holds_what_was_read_in_the_order_of_the_rows(tmp_path):
    run = lens_run(tmp_path / "lens", "keeps")
    found, n_values = tokens.token_table(run)
    assert [bool(texts) for texts in found["texts"]] == [one != 3 for one in range(8)]
    assert found["texts"][0] == ["Ada", " Lovelace"]
    wanted = [
        1 + idx + 8 * layer + 64 * at
        for idx in range(8)
        if idx != 3
        for layer in range(LAYERS)
        for at in range(2)
    ]
    assert list(base64.b64decode(found["base64"])) == wanted
    assert n_values == len(wanted)
    assert tokens.token_table(lens_run(tmp_path / "means", "keeps", read=False)) == ({}, 0)


def test_long_spans_hostile_texts_and_many_runs_stay_small(tmp_path, monkeypatch):
    long = lens_run(tmp_path / "long", "keeps", words=["\u202e" + "x" * 99] + ["y"] * 0)
    (text,) = tokens.token_table(long)[0]["texts"][0]
    assert text.startswith("‹U+202E›x")
    assert len(text) < 60
    monkeypatch.setattr(tokens, "MOST_TOKENS", 1)
    run = lens_run(tmp_path / "lens", "keeps")
    found, n = tokens.token_table(run)
    assert found["texts"][0] == ["Ada"]
    assert n == 7 * LAYERS
    monkeypatch.setattr(tokens, "MOST_VALUES", 2 * n)
    assert [bool(one) for one in tokens.token_tables([run] * 3)] == [True, True, False]


@pytest.mark.parametrize("beside", [True, False])
def test_the_detail_draws_a_strip_for_each_token(tmp_path, browser, beside):
    lens_run(tmp_path / "out" / "lens", "keeps")
    if beside:
        patch_run(tmp_path / "out" / "uds", "keeps", n=8, n_layers=LAYERS)
    data = assemble([tmp_path / "out"]).data()
    assert sum("tokens" in one["extra"] for one in data["depths"]) == 1
    write_report([tmp_path / "out"], tmp_path / "audit.html")
    page = (tmp_path / "audit.html").as_uri()
    browser.open(page + "#example=2")
    strips = "[...document.querySelectorAll('.detail .tokens dd .strip')]"
    said = browser.run(f"{strips}.map(one => one.getAttribute('aria-label'))")
    assert said == [
        "by layer: " + " ".join(f"{value(2, layer, at):.2f}" for layer in range(LAYERS))
        for at in range(2)
    ]
    words = "[...document.querySelectorAll('.detail .tokens dt')].map(one => one.textContent)"
    assert browser.run(words) == ["Ada", "Lovelace"]
    browser.open(page + "#example=3")
    assert browser.run(f"{strips}.length") == 0
    assert browser.heard("Runtime.exceptionThrown", "Log.entryAdded") == []
