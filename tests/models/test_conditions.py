"""Numbers are shared where the conditions agree: keys of the first release are found again."""

from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
from metric_helpers import tiny_passes

from lensaudit.activations.spec import Fingerprint
from lensaudit.files import digest
from lensaudit.metrics.registry import Read
from lensaudit.models.conditions import Conditions, batch_policy
from lensaudit.patching.options import ResolvedSettings
from lensaudit.patching.score_cache import ScoreKey, TextKey

FULL = Conditions(
    weights="sha256:aa",
    tokenizer="sha256:bb",
    dtype="float32",
    device_class="cpu",
    attention="eager",
    batch_policy="right-padded",
)
CACHE = Fingerprint(
    **vars(FULL),
    examples="cc",
    template="dd",
    hook="resid_post",
    layers=3,
    d_model=32,
    positions="span",
)
SCORES = ScoreKey(
    **vars(FULL),
    source="sha256:ee",
    scope="span",
    component="resid",
    last_layer="resid_post",
    engine="sweep",
    measure="logprob",
)
TEXTS = TextKey(
    **vars(replace(FULL, dtype="bfloat16", device_class="cuda-9", batch_policy="padded-auto")),
    source="sha256:ee",
    last_layer="resid_post",
    max_new_tokens=20,
    stop=(2, 7),
)


@pytest.mark.parametrize(
    ("key", "of_release_0_1_0"),
    [
        (CACHE, "780fb0b8ebab2a2f1673133c49487ceb"),
        (SCORES, "e0dadb47d3bc8e49c53bc77db69c216a"),
        (TEXTS, "c45848f2bc389140e90ecbfbd628559d"),
    ],
    ids=["cache", "scores", "texts"],
)
def test_what_the_first_release_kept_is_found_again(key, of_release_0_1_0):
    assert digest(key.document()) == of_release_0_1_0


@pytest.mark.parametrize("key", [CACHE, SCORES, TEXTS], ids=["cache", "scores", "texts"])
def test_every_condition_changes_every_key(key):
    for one in fields(key):
        others = {"dtype": "float16", "positions": "all", "engine": "oracle", "measure": "hit"}
        of_kind = {int: 99, str: "another", tuple: (1,)}[type(getattr(key, one.name))]
        changed = replace(key, **{one.name: others.get(one.name, of_kind)})
        assert digest(changed.document()) != digest(key.document()), one.name


def test_a_pass_of_the_first_release_is_found_again(tiny_tokenizer):
    passes = tiny_passes(tiny_tokenizer)
    keys = []

    def get(label, key, make):
        keys.append(key)
        return [], True

    passes.store = SimpleNamespace(get=get)
    passes._kept("trace-forget-answer", passes.subject, [(1, 2)], lambda size: [])
    (key,) = keys
    assert key == digest(
        {
            "version": 1,
            "kind": "trace",
            "texts": [digest([[1, 2], 2, [True, True]])],
            "weights": "seed 0",
            "conditions": {"dtype": "float32", "device": "cpu", "attn": "eager"},
        }
    )
    assert not passes.missing(Read("trace", "forget"))


def test_the_number_of_examples_in_a_batch_counts_in_half_precision_alone():
    assert batch_policy("right-padded", "float32", 4) == batch_policy("right-padded", "float32", 8)
    half = {batch_policy("right-padded", "bfloat16", size) for size in (None, 4, 8)}
    assert half == {"right-padded-auto", "right-padded-4", "right-padded-8"}


def test_a_neighbouring_gpu_is_the_same_device_in_the_key_of_a_pass():
    on_gpu = replace(FULL, device_class="cuda-9")
    assert on_gpu.as_run() == {"dtype": "float32", "device": "cuda", "attn": "eager"}


@pytest.mark.parametrize(
    ("options", "of_full", "of_sources"),
    [
        ({}, "all", "span"),
        ({"scope": "boundary"}, "all", "span"),
        ({"scope": "prefix"}, "all", "all"),
        ({"engine": "oracle"}, "all", "span"),
        ({"score": "lens"}, "span", "span"),
        ({"component": "mlp"}, "all", None),
        ({"component": "mlp", "engine": "oracle"}, None, None),
    ],
)
def test_only_what_is_read_is_cached(options, of_full, of_sources):
    chosen = ResolvedSettings(at_layers=(0,), **options)
    assert chosen.positions_needed(of_full=True) == of_full
    assert chosen.positions_needed(of_full=False) == of_sources
