"""Samples: drawn from the model's own distribution, reproducible, and counted without bias."""

import json
import math
import shlex
import shutil
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from scipy.stats import binom
from support import lines_of

from lensaudit.attacks import sampling
from lensaudit.attacks.sampling import (
    SamplerSetting,
    bound_of,
    drawing,
    errors_of,
    hits_of,
    leak_row,
    noise_of,
    nucleus,
    settings_grid,
    specificity_of,
)
from lensaudit.attacks.settings import SampleSettings
from lensaudit.cli.main import run
from lensaudit.data.facts import Fact
from lensaudit.data.tofu import forget_set
from lensaudit.errors import InputError
from lensaudit.kinds.sample import LeakRow, SampleRecord
from lensaudit.models.bridge import logits_of
from lensaudit.models.registry import EMBEDDED
from lensaudit.patching.reader import Reader
from lensaudit.patching.speech import sample
from lensaudit.scores.sampled import Errors, leak_corrected
from lensaudit.screen.attacks import of_sample

PROMPT = [1, 8, 15, 22, 9]


def fact(idx, entity="Ada Moor", group=0):
    return Fact(idx, "Who?", f"It is {entity}.", "It is", entity, group)


def test_nucleus_worked_by_hand():
    # shares .5, .3, .2: the first two are needed for .7, the first alone for .5
    logits = torch.tensor([[0.5, 0.2, 0.3]]).log()
    kept = {
        p: (nucleus(logits, SamplerSetting(1.0, p)) > -1e20).tolist()[0]
        for p in (0.1, 0.5, 0.7, 0.9, 1.0)
    }
    assert kept[0.1] == kept[0.5] == [True, False, False]
    assert kept[0.7] == [True, False, True]
    assert kept[0.9] == kept[1.0] == [True, True, True]
    # at T = .25 the first token's share is .5^4 / (.5^4 + .2^4 + .3^4) = .866
    assert (nucleus(logits, SamplerSetting(0.25, 0.8)) > -1e20).tolist() == [[True, False, False]]


def test_samples_follow_the_models_own_distribution(tiny):
    model, n = tiny(), 2000
    choose = drawing(fact(0), SamplerSetting(1.0, 1.0), n, 1, 0)
    said = sample(Reader(model), PROMPT, n, choose, max_new_tokens=1)
    shares = logits_of(model, torch.tensor([PROMPT]))[0, -1].softmax(-1)
    likely = int(shares.argmax())
    word = model.tokenizer.decode([likely], skip_special_tokens=True)
    p = float(shares[likely])
    assert abs(sum(text == word for text in said) / n - p) < 4 * (p * (1 - p) / n) ** 0.5


def test_rows_draw_the_same_whatever_is_drawn_beside_them(tiny):
    model = tiny()

    def said(idx, n):
        choose = drawing(fact(idx), SamplerSetting(1.0, 0.9), n, 5, 0)
        return sample(Reader(model), PROMPT, n, choose, max_new_tokens=5)

    many, few, other = said(0, 6), said(0, 2), said(1, 6)
    assert many[:2] == few
    assert many != other


def test_leak_is_paired_and_k_beyond_n_has_no_value():
    facts = [fact(n, group=n) for n in range(6)]
    hits, control = [4, 2, 0, 0, 0, 0], [[1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]]
    errors = Errors(1.0, 1.0)
    row = leak_row(SamplerSetting(1.0, 1.0), 1, 4, hits, control, facts, errors, errors)
    assert row.source == pytest.approx((1 + 0.5) / 6)
    assert row.retain == pytest.approx(0.25 / 6)
    assert row.excess == pytest.approx(1.25 / 6)
    assert row.corrected == pytest.approx(row.excess)
    assert row.low < row.excess < row.high
    none = leak_row(SamplerSetting(1.0, 1.0), 8, 4, hits, control, facts, None, Errors(1.0, 0.99))
    assert (none.source, none.excess, none.reason) == (None, None, "k is more than 4 samples")
    facts = [fact(0, "Ada Moor", 0), fact(1, "Eve Fell", 1)]
    said = {0: ["Ada Moor", "Eve Fell"], 1: ["Eve Fell", "nobody"]}
    # Eve Fell among the two texts about author 0; Ada Moor not among those about author 1
    assert specificity_of(facts, said) == pytest.approx(3 / 4)
    grid = settings_grid(SampleSettings(temperature=(1.0, 0.5, 1.0), top_p=(0.9,)))
    assert grid == [SamplerSetting(1.0, 0.9), SamplerSetting(0.5, 0.9)]


def leaks(facts, rate, k, errors, seed):
    """A row of 64 samples a fact that a matcher with these errors reads, beside one of nothing."""
    random, n, never = np.random.default_rng(seed), 64, 1 - errors.specificity
    seen = rate * errors.sensitivity + (1 - rate) * never
    hits = [random.binomial(n, one, len(facts)).tolist() for one in (seen, never)]
    return leak_row(SamplerSetting(1.0, 1.0), k, n, hits[0], hits[1:], facts, errors, errors)


@pytest.mark.parametrize("rate", [0.0, 0.02])
def test_the_corrected_excess_is_that_of_a_matcher_without_errors(rate):
    """On average: cut fact by fact, 64 samples at 2 % used to say .36 in place of .73."""
    facts = [fact(n, group=n % 8) for n in range(128)]
    found = [leaks(facts, rate, 64, Errors(0.95, 0.99), seed).corrected for seed in range(30)]
    error = np.std(found) / 30**0.5
    assert error < 0.04
    assert abs(np.mean(found) - (1 - (1 - rate) ** 64)) < 3 * error


def test_a_correction_that_is_all_noise_is_not_given():
    facts = [fact(n, group=n % 8) for n in range(64)]
    row = leaks(facts, 0.02, 64, Errors(0.95, 0.97), 0)
    assert row.corrected is None
    why = "not corrected, too noisy: standard error up to 0.49; draw more samples"
    assert row.reason == why
    assert row.low < row.excess < row.high
    assert leaks(facts, 0.02, 8, Errors(0.95, 0.97), 0).reason is None
    # m is 3.7: its power is beyond floats
    assert noise_of(1000, 300, 1000, Errors(0.6, 0.7)) == math.inf
    # of a fact that is always said the first of two samples alone misses half the time
    assert noise_of(2, 1, 1, Errors(0.5, 1.0)) == pytest.approx(0.5**0.5)
    record = SampleRecord(
        source="m", retain=["r"], n_scored=64, samples=64, leak=[row], errors={"sensitivity": 0.95}
    )
    assert f"  T 1, top-p 1, k 64: {why}" in list(of_sample(record))


@pytest.mark.parametrize("errors", [Errors(1.0, 1.0), Errors(0.9, 0.95), Errors(0.98, 0.999)])
@pytest.mark.parametrize(("n", "k"), [(6, 3), (8, 8), (64, 8)])
def test_the_noise_of_rates_between_never_and_always_counts(n, k, errors):
    """In 94 of 100 samples and more it is no less than the standard deviation at the true rate."""
    values = np.array([leak_corrected(n, c, k, errors) for c in range(n + 1)])
    noise = np.array([noise_of(n, c, k, errors) for c in range(n + 1)])
    for rate in (0.0, 0.01, 0.1, 0.5, 1.0):
        hit = rate * errors.sensitivity + (1 - rate) * (1 - errors.specificity)
        chance = binom.pmf(np.arange(n + 1), n, hit)
        true = np.sqrt(chance @ (values - chance @ values) ** 2)
        assert chance[noise >= 0.99 * true - 1e-6].sum() > 0.94


def test_a_correction_is_not_given_where_the_rates_of_few_facts_are_a_guess():
    """Eight facts that come out in a tenth of samples: its standard deviation is .22."""
    facts, errors = [fact(n, group=n) for n in range(8)], Errors(0.95, 0.99)
    hits = [1, 0, 2, 0, 1, 0, 0, 2]
    few = leak_row(SamplerSetting(1.0, 1.0), 8, 8, hits, [[0] * 8], facts, errors, errors)
    assert few.corrected is None
    assert few.reason.startswith("not corrected, too noisy: standard error up to 0.28;")
    # all say it always, where the other says it never: what is not known is that of the other
    sure = Errors(1.0, 1.0)
    said = leak_row(SamplerSetting(1.0, 1.0), 8, 64, [64] * 8, [[0] * 8], facts, sure, sure)
    assert said.corrected == 1.0


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"text": "Ada", "entity": "Ada"}], "no label of 0 or 1"),
        ([{"text": "Ada", "entity": "–", "label": 1}], "an entity without a word"),
        ([{"text": "Ada", "entity": "Ada", "label": 1}], "one kind of label"),
        (
            [
                {"text": "Eve", "entity": "Ada", "label": 1},
                {"text": "Eve", "entity": "Ada", "label": 0},
            ],
            "above 1",
        ),
    ],
)
def test_labels_that_cannot_correct_are_refused(tmp_path, rows, said):
    path = tmp_path / "labels.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match=said):
        errors_of(path)


def test_the_command_writes_counts_and_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    labels = [
        {"text": "It is Ada.", "entity": "Ada", "label": 1},
        {"text": "It is Eve.", "entity": "Ada", "label": 0},
    ]
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, labels)))
    given = shlex.split("sample --source demo/npo --limit 2 --samples 7 --k 1 --k 8")
    given += ["--max-new-tokens", "12", "--labels", "labels.jsonl", "--out", "s", "--json"]
    assert run([*given, "--dry-run"]) == 0
    assert "28 answers of at most 12 tokens" in capsys.readouterr().out
    assert run(given) == 0
    found = json.loads(capsys.readouterr().out)
    one, eight = found["leak"]
    assert one["excess"] == pytest.approx(one["source"] - one["retain"])
    assert one["corrected"] == pytest.approx(one["excess"])
    assert eight["source"] is None
    assert found["unscored"] == {}
    before = (tmp_path / "s" / "samples.jsonl").read_bytes()
    assert run(given) == 0
    assert "already" in capsys.readouterr().err
    assert run([*given, "--dry-run"]) == 0
    assert capsys.readouterr().out == "nothing to do: s holds this run already\n"
    assert run([*given, "--fresh", "--dry-run"]) == 0
    assert "28 answers" in capsys.readouterr().out
    assert run([*given, "--seed", "5", "--dry-run"]) == 2
    assert (
        "s: holds the result of another run (seed: 0, here 5); name another"
        in capsys.readouterr().err
    )
    # another folder reads the same ledgers and draws nothing new
    ledgers = {one: one.read_bytes() for one in (tmp_path / "activations/samples").iterdir()}
    assert run([*given[:-3], "--out", "t"]) == 0
    assert (tmp_path / "t" / "samples.jsonl").read_bytes() == before
    assert ledgers == {
        one: one.read_bytes() for one in (tmp_path / "activations/samples").iterdir()
    }
    # a fresh run that breaks leaves answers and result; one that ends has drawn each answer again
    draw, drawn = sampling.sample, []

    def broken(*how, **more):
        drawn.append(how)
        if len(drawn) == 2:
            raise KeyboardInterrupt
        return draw(*how, **more)

    monkeypatch.setattr(sampling, "sample", broken)
    assert run([*given, "--fresh"]) == 130
    assert all(one.read_bytes().startswith(before) for one, before in ledgers.items())
    assert run(given) == 0
    assert len(drawn) == 2
    assert run([*given, "--fresh"]) == 0
    assert len(drawn) == 2 + 2 * 2  # two facts of two models
    assert [len(lines_of(one)) for one in ledgers] == [2, 2]


def test_own_models_are_sampled_with_their_own_full(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("npo", "full", "retain"):
        shutil.copytree(EMBEDDED / name, name)
    rows = [asdict(one) for one in forget_set("demo", limit=2)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    given = ["sample", "--source", "./npo", "--full", "./full", "--retain", "./retain"]
    given += ["--data", "rows.json", "--samples", "2", "--max-new-tokens", "4", "--out", "s"]
    assert run([*given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_scored"] == 2
    inputs = json.loads((tmp_path / "s" / "manifest.json").read_text())["inputs"]
    assert inputs["full"]["name"] == "./full"
    # what `full` is called decides no number: the folder is known again
    assert run([part if part != "./full" else str(tmp_path / "full") for part in given]) == 0
    assert "already" in capsys.readouterr().err


def test_a_fact_whose_thoughts_were_cut_has_fewer_samples_or_none():
    facts = [fact(n, group=n) for n in range(6)]
    hits, control = [2, 2, 0, 0, 0, 0], [[0] * 6]
    # of four samples fact 0 has lost two: 2 of 2; fact 5 of the control arm all: it is left out
    lost = [[2, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 4]]
    how = SamplerSetting(1.0, 1.0), 1, 4, hits, control, facts, None, Errors(1.0, 1.0)
    row = leak_row(*how, lost=lost)
    assert row.source == pytest.approx((1 + 0.5) / 5)
    assert row.reason == "left out, as thoughts were cut: 1 facts"
    assert (row.n, row.authors, row.per_author) == (5, 5, 1)
    none = leak_row(*how, lost=[[4] * 6, [0] * 6])
    assert (none.source, none.reason) == (None, "no fact has 1 samples left: thoughts were cut")
    assert (none.n, none.authors) == (0, 0)
    assert hits_of(facts[:1], {0: [None, facts[0].entity]}) == [1]


def test_what_no_sample_hit_is_bounded_by_the_samples_that_there_are():
    hot, cold = SamplerSetting(1.0, 1.0), SamplerSetting(0.5, 1.0)
    said = {hot: {0: ["a"] * 4, 1: ["a", None, "a", None]}, cold: {0: ["a"] * 4, 1: ["a"] * 4}}
    # two samples of a fact are left: 1 - (.05 / 2)^(1 / 2)
    assert bound_of(said) == pytest.approx(1 - 0.025**0.5)
    assert bound_of({**said, cold: {0: [None] * 4, 1: ["a"] * 4}}) is None


def test_without_a_bound_none_is_told():
    row = LeakRow(1.0, 1.0, 1, 0.0, 0.0, 0.0, None, None, None, 0.0, None)
    run = SampleRecord(source="m", retain=["r"], n_scored=2, samples=4, leak=[row])
    for bound, n in ((0.25, 1), (None, 0)):
        parts = of_sample(replace(run, never_hit_bound=bound))
        assert sum("25.0% of samples" in str(one) for one in parts) == n
    assert not any("at most" in str(one) for one in of_sample(run))
