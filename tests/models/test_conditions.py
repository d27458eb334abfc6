"""Numbers are shared where the conditions agree: keys of the first release are found again."""

from dataclasses import fields, replace

import pytest
import torch
from support.metric_helpers import tiny_passes

import lensaudit as la
from lensaudit.activations.spec import Fingerprint
from lensaudit.errors import InputError
from lensaudit.evaluation import passes as passes_module
from lensaudit.metrics.registry import Read
from lensaudit.models.conditions import Conditions, batch_policy
from lensaudit.models.device import device_class
from lensaudit.patching.options import ResolvedSettings
from lensaudit.patching.score_cache import score_key, text_key
from lensaudit.text import digest

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
SETTINGS = ResolvedSettings(at_layers=(0,))
HALF = replace(FULL, dtype="bfloat16", device_class="cuda-9", batch_policy="padded-auto")
TEXTS = {
    "donor": "sha256:ee",
    "last_layer": "resid_post",
    "max_new_tokens": 20,
    "stop": frozenset((2, 7)),
}
CHANGED = {
    "dtype": "float16",
    "positions": "all",
    "engine": "oracle",
    "measure": "hit",
    "scope": "prefix",
    "last_layer": "reference",
    "component": "mlp",
    "stop": frozenset((1,)),
}


def of_cache(conditions=FULL, **asked):
    return replace(CACHE, **vars(conditions) | asked).document()


def of_scores(conditions=FULL, donor="sha256:ee", **asked):
    return score_key(conditions, donor, replace(SETTINGS, **asked))


def of_texts(conditions=HALF, **asked):
    return text_key(conditions, **TEXTS | asked)


OF_CACHE = ("examples", "template", "hook", "layers", "d_model", "positions", "schema")
OF_SCORES = ("donor", "scope", "component", "last_layer", "engine", "measure")
KEYS = pytest.mark.parametrize(
    ("key", "asked", "of_release_0_1_0"),
    [
        (of_cache, OF_CACHE, "780fb0b8ebab2a2f1673133c49487ceb"),
        (of_scores, OF_SCORES, "e0dadb47d3bc8e49c53bc77db69c216a"),
        (of_texts, tuple(TEXTS), "c45848f2bc389140e90ecbfbd628559d"),
    ],
    ids=["cache", "scores", "texts"],
)


@KEYS
def test_what_the_first_release_kept_is_found_again_and_every_condition_changes_its_key(
    key, asked, of_release_0_1_0
):
    assert digest(key()) == of_release_0_1_0
    conditions = HALF if key is of_texts else FULL
    for one in fields(Conditions):
        changed = replace(conditions, **{one.name: CHANGED.get(one.name, "another")})
        assert digest(key(changed)) != digest(key()), one.name
    for name in asked:
        number = name in ("layers", "d_model", "schema", "max_new_tokens")
        changed = {name: CHANGED.get(name, 99 if number else "another")}
        assert digest(key(**changed)) != digest(key()), name


def test_a_pass_of_the_first_release_is_found_again(tiny_tokenizer, monkeypatch):
    passes = tiny_passes(tiny_tokenizer)
    keys = []

    def kept(folders, label, key, make, *, fresh):
        keys.append(key)
        return [], True

    monkeypatch.setattr(passes_module, "kept", kept)
    split = passes.splits["forget"]
    passes._kept("trace-forget-answer", passes.subject, [(1, 2)], lambda size: [], split)
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


def test_no_number_is_kept_from_an_autocast_block(tmp_path, tiny):
    begin = [
        lambda: la.last_prompt("demo/npo", limit=1, activations=tmp_path),
        lambda: la.evaluate("demo/npo", tmp_path / "eval", limit=1),
        lambda: la.patch("demo/npo", tmp_path / "patch", limit=1, activations=tmp_path),
        lambda: la.cache_prompts(tiny(), "a", name="mine", root=tmp_path),
    ]
    with torch.autocast("cpu", torch.bfloat16):
        for one in begin:
            with pytest.raises(InputError, match=r"autocast is on: .*; leave its block"):
                one()
    assert not list(tmp_path.rglob("*.h5"))
    assert device_class("cpu") == "cpu"
