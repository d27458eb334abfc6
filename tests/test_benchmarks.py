"""A benchmark times work that was done, or it is an error."""

import sys
from contextlib import nullcontext

import pytest
from transformers import LlamaConfig

from benchmarks import bridge, gpu, know, validity
from benchmarks.shapes import Shape, random_model
from benchmarks.sweep import Asked, Bench, bench_of, facts, oracle_runs, sweep_runs, table
from benchmarks.work import NotMeasured, all_read, share_of_peak, tokens_read
from lensaudit.models import booting
from lensaudit.patching import wavefront

N_LAYERS = 7
SHAPE = Shape(
    "tiny",
    "",
    LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=2,
        initializer_range=0.5,
    ),
    4,
    4,
    1,
)


@pytest.fixture(scope="module")
def model():
    return random_model(SHAPE.config)


@pytest.fixture
def bench(model):
    with bench_of(SHAPE, model, 4, Asked("1G", 1)) as made:
        yield made


def test_a_sweep_reads_every_row_of_every_layer(bench):
    bench.source_run([0])
    span = sum(e.n_span for e in bench.encoded)
    with tokens_read(bench.model) as read:
        bench.sweep(range(N_LAYERS))
    # rows of layers 0 to l - 1 pass block l; the clean run is read beside those of all layers
    assert read == [*(span * layer for layer in range(N_LAYERS)), span * (N_LAYERS + 1)]


def test_the_whole_table_of_a_tiny_shape(bench):
    fast = sweep_runs(bench, n_runs=1)
    slow = oracle_runs(bench, n_runs=1, n_layers=1)
    assert len(table(bench, slow, fast)) == 2 + 1 + 4  # (a) at batch 1 alone, (b) to (e)
    assert "(b) at" in facts(bench, slow, fast, 1e15)[0]
    with pytest.raises(NotMeasured, match="% of the peak of matrix products"):
        facts(bench, slow, fast, 1.0)


def test_a_source_that_is_full_again_is_an_error(bench, monkeypatch):
    monkeypatch.setattr(Bench, "as_source", lambda one: nullcontext(one.model))
    monkeypatch.setattr(Asked, "peak", lambda asked: 1e15)
    with pytest.raises(NotMeasured, match=r"block 1 read 0 tokens of \d+; a cache or a shortcut"):
        bench.source_run([0])
    with pytest.raises(NotMeasured, match="a cache or a shortcut"):
        gpu.measured(SHAPE, Asked("1G", 1), n_rows=2)


def test_rows_that_are_left_out_are_an_error(bench, monkeypatch):
    bench.source_run([0])
    plain = wavefront.unchanged

    def one_more(*args):
        same = plain(*args)
        same[0, 0, 3] = True
        return same

    monkeypatch.setattr(wavefront, "unchanged", one_more)
    with pytest.raises(NotMeasured, match="sweep: block 4 read"):
        bench.sweep(range(N_LAYERS))


def test_scores_that_are_there_are_an_error(bench, monkeypatch):
    bench.source_run([0])
    monkeypatch.setattr("benchmarks.sweep.shutil.rmtree", lambda *args, **options: None)
    bench.sweep([3])
    with pytest.raises(NotMeasured, match="sweep: block 4 read 0 tokens"):
        bench.sweep([3])


def test_the_unembedding_is_counted_too(model):
    nothing = all_read(model, [0] * N_LAYERS + [1], "")
    with pytest.raises(NotMeasured, match="the unembedding read 0 tokens of 1"), nothing:
        pass


def test_values_after_prompts_are_read_by_both_sides(model, monkeypatch):
    asked = [([(2, 3, 4), (2, 5)], [(6, 7), (8,), (9, 10, 11)])]
    found = know.compared(model, asked)
    # pairs: 3 or 2 tokens of a prompt, and 1, 0 or 2 of a value that are read before its last
    assert found.n_alone >= 3 * (3 + 2) + 2 * (1 + 0 + 2)
    assert 5 <= found.n_shared < found.n_alone
    kept = know.alone(model, asked[0])
    monkeypatch.setattr(know, "alone", lambda *args: kept)
    with pytest.raises(NotMeasured, match="each by itself: 0 tokens read of 21"):
        know.compared(model, asked)


@pytest.mark.parametrize(("flop", "share"), [(50.0, 0.5), (100.0, 1.0)])
def test_a_share_of_the_peak_is_at_most_all_of_it(flop, share):
    assert share_of_peak(flop, 1.0, 100.0) == share
    with pytest.raises(NotMeasured, match="101% of the peak"):
        share_of_peak(101.0, 1.0, 100.0)


def test_what_a_source_says_is_the_same_by_its_cache_and_by_a_pass(bench, monkeypatch):
    bench.source_run([0])
    assert min(validity.both(bench)) > 0
    # the cache holds what the source said; `full` says something else
    monkeypatch.setattr(Bench, "as_source", lambda one: nullcontext(one.model))
    with pytest.raises(NotMeasured, match="differs by its cache"):
        validity.both(bench)


def test_what_the_controls_cost_of_a_tiny_shape(monkeypatch, tmp_path):
    monkeypatch.setattr(validity, "shape_named", lambda name: SHAPE)
    monkeypatch.setattr(validity, "N_FORGET", 24)
    asked = ["--share", "0.5", "--threads", "1", "--out", f"{tmp_path}/v.md"]
    monkeypatch.setattr(sys, "argv", ["validity", *asked])
    validity.main()
    text = (tmp_path / "v.md").read_text()
    assert "(12 and 24 rows)" in text
    assert "load before the run" in text
    assert "(aligned + shared) / aligned" in text


def test_wrappers_that_change_a_number_end_the_run():
    """And a way to compute that only rounds otherwise does not."""
    said = iter(range(100))
    with pytest.raises(NotMeasured):
        bridge.fastest(lambda _: next(said), bridge.all_wrappers, lambda: None)
    assert len(bridge.fastest(lambda _: next(said), bridge.own_products, lambda: None)) == 2
    kept = booting.unheard_left_out
    with bridge.all_wrappers():
        assert booting.unheard_left_out is not kept
    assert booting.unheard_left_out is kept
