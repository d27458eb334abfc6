"""docs/meta_fields.md is true: its fields are those of the files, its numbers of the code."""

import json
import re

import pytest
from support.pages import page

from lensaudit.meta.aggregate import SCORES
from lensaudit.meta.documents import COLUMNS, faithfulness_document, robustness_document
from lensaudit.meta.judging import LEAST_UTILITY, faithfulness, stability, usable
from lensaudit.meta.reading import CATALOGUE, values_of
from lensaudit.results.reading import document

PAGE = page("meta_fields")


def commands(kind):
    blocks = re.findall(rf"```sh{kind}\n(.*?)```", PAGE, re.S)
    return [line for block in blocks for line in block.splitlines() if line]


@pytest.mark.slow
def test_a_tiny_run_of_the_experiment_writes_every_judgement(tmp_path, capsys):
    from experiments.metrics import meta_family

    options = ["--tiny", "--out", str(tmp_path / "out"), "--activations", str(tmp_path / "a")]
    meta_family.main(options, standalone_mode=False)
    table = json.loads((tmp_path / "out" / "meta_table.json").read_text())
    rows = {row["metric"]: row for row in table["metrics"]}
    assert set(rows) == set(meta_family.TINY)
    assert rows["uds"]["faithfulness"] == 1.0
    assert all(0 <= row[key] <= 1 for row in rows.values() for key in ("robustness", "overall"))
    assert {row["n_relearning"] for row in rows.values()} == {1}


def test_the_page_names_every_field():
    values = values_of({m: {"uds": v} for m, v in (("a", 0.1), ("b", 0.2), ("c", 0.8), ("d", 1.0))})
    one = CATALOGUE["uds"]
    found = faithfulness(one, ["a", "b"], ["c", "d"], values)
    row = usable(one, ["c"], values, utility_rel={"c": 1.0}, threshold=0.5)
    stable = stability(one, "quantize", ["c"], row, values, values)
    documents = [
        faithfulness_document([found], ["a", "b"], ["c", "d"], values),
        robustness_document(
            [stable],
            "quantize",
            form="symmetric",
            models=["c"],
            thresholds={"uds": 0.7},
            conditions={"filter": "both"},
        ),
    ]
    names = set(COLUMNS) | set(SCORES)
    for written in map(document, documents):
        json.dumps(written, allow_nan=False)
        names |= set(written["metrics"][0]) | set(written)
    assert sorted(name for name in names if f"`{name}`" not in PAGE) == []


def test_the_numbers_of_the_page_are_those_of_the_code():
    assert f"relative utility at least {LEAST_UTILITY}" in PAGE
    assert set(re.findall(r"`(uds s_mia_\* [^`]*)`", PAGE)) == {
        "uds s_mia_* cka logit_lens fisher_masked_*"
    }
