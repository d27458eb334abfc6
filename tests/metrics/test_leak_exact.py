"""`leak_exact`: its log-probs are those of the whole span, its powers those of sampling."""

import json

import pytest
import torch

from lensaudit.cli.main import run
from lensaudit.data.spans import encode
from lensaudit.data.tofu import forget_set
from lensaudit.groups import spread


def test_leak_is_that_of_the_plain_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = ["--retain", "demo/retain", "--limit", "4", "--metric", "leak_exact"]
    assert run(["eval", "--model", "demo/npo", *given, "--out", "e"]) == 0
    log = json.loads((tmp_path / "e" / "TOFU_EVAL.json").read_text())["leak_exact"]
    from support import EMBEDDED
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(EMBEDDED / "npo", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED / "npo")
    expected = {}
    for one in spread(forget_set("demo"), 4, lambda row: row.group):
        e = encode(one, tokenizer)
        ids = torch.tensor([e.token_ids])
        with torch.no_grad():
            logprob = model(ids).logits[0].log_softmax(-1)
        p = 1.0
        for at in range(e.start, e.end):
            p *= float(logprob[at, ids[0, at + 1]].exp())
        expected[one.idx] = 1 - (1 - p) ** 64
    found = {int(idx): row["leak_64"] for idx, row in log["value_by_index"].items()}
    assert found == pytest.approx(expected, abs=1e-4)
    assert log["agg_value"] == pytest.approx(sum(expected.values()) / 4, abs=1e-4)
    assert log["excess@64"] == pytest.approx(log["leak@64"] - log["retain_leak@64"])
    assert log["leak@1"] < log["leak@8"] < log["leak@128"]
