"""Shared fixtures. Heavy imports stay inside them, so pure tests start in seconds."""

import fcntl
import functools
import gc
import importlib
import importlib.util
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ARCHITECTURES, SHARED, tiny_model, tiny_model_of
from support.answers import share_answers
from support.bridges import share_bridges
from support.loaded import share_loaded

# submitit's logging at import closes every handler there is, absl's with pytest's captured stream
os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")

# TransformerLens installs torchvision where the bridge does not stop it: never from a test
os.environ |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "UV_OFFLINE": "1"}

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell starts its background jobs deaf to interrupts, and their children are so, too
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = (
    *("test_command_goldens", "test_audit", "test_evidence", "test_other_kernels"),
    *("test_owners_of_results", "test_cli_keys", "test_know_address", "test_docs"),
    *("test_cli_demo", "test_scoring", "test_counterfactual", "test_rtt_planted"),
    *("test_shapes", "test_asked", "test_make", "test_wavefront", "test_trainer"),
    *("test_cli_patch", "test_real_study", "test_campaign", "test_site", "test_sweep_serial"),
    *("test_again", "test_know_command", "test_steer_audit", "test_association"),
    *("test_cli_loading", "test_outside", "test_meta_command", "test_corruption"),
    *("test_collateral", "test_other_sizes", "test_em_audit", "test_embedded_family"),
    *("test_report_browser", "test_oracle", "test_cli_layouts", "test_goldens"),
    *("test_cli_project", "test_readme", "test_mutants", "test_asking", "test_door"),
    *("test_unfinished_blocks", "test_faults", "test_attack_list", "test_relearn"),
    *("test_representation", "test_effort", "test_depth_metrics", "test_lens", "test_figures"),
    *("test_readers", "test_sweep_checks", "test_table", "test_open_unlearning"),
    *("test_controls", "test_components", "test_upkeep", "test_house", "test_know_refusals"),
    *("test_audit_run", "test_muse_books", "test_worst_command", "test_planting"),
    *("test_caches", "test_cli_roles", "test_data_sets", "test_preflight", "test_cli_hostile"),
    *("test_eval_command", "test_crossing", "test_action", "test_predict"),
)
"""Files of more than some seven seconds, the longest first: one that begins last lets the other
process wait."""

LEFT_OUT = pytest.StashKey[int]()
"""How many comparisons with the references this run leaves out."""


def pytest_configure(config: pytest.Config) -> None:
    """What the goldens hold are a processor's numbers: a card is for the tests that ask for one."""
    if "gpu" not in config.getoption("markexpr", "").replace("not gpu", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session):
    """One process after the other, the first time: what it compiles, the next need not compile."""
    if _compiled():
        return (yield)
    with open(__file__) as this:
        fcntl.flock(this, fcntl.LOCK_EX)
        return (yield)


def _compiled() -> bool:
    """Whether an earlier run left bytecode of what takes longest to be imported."""
    found = importlib.util.find_spec("transformers")
    trainer = found and found.origin and Path(found.origin).with_name("trainer.py")
    return bool(trainer) and Path(importlib.util.cache_from_source(str(trainer))).exists()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Longest files first: two processes end together; without ../shared no test skips.

    Where all types are checked, a call that they forbid does not get as far as its one line.
    """
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))
    if "lensaudit" in (config.getoption("jaxtyping_packages", None) or "").split(","):
        _leave_out(config, items, [one for one in items if one.get_closest_marker("misuse")])
    if (SHARED / "README.md").exists():
        return
    compares = [item for item in items if "shared" in getattr(item, "fixturenames", ())]
    _leave_out(config, items, compares)
    config.stash[LEFT_OUT] = len(compares)
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = len(compares)


def _leave_out(config: pytest.Config, items: list[pytest.Item], some: list[pytest.Item]) -> None:
    items[:] = [item for item in items if item not in some]
    config.hook.pytest_deselected(items=some)


def pytest_collection_finish() -> None:
    """Look for garbage seldom: millions of objects stay, and each walk over them takes a while."""
    _set_aside()
    gc.set_threshold(700, 10, 100)


SET_ASIDE_S = 120.0
"""Files that begin sooner after the last time leave it to a later one."""


def pytest_runtest_setup(item: pytest.Item, last: list = [Path(), 0.0]) -> None:  # noqa: B006
    """Between two files nothing is left but what all tests share."""
    path, at = last
    if item.path != path and time.monotonic() - at > SET_ASIDE_S:
        _set_aside()
        last[1] = time.monotonic()
    last[0] = item.path


def _set_aside() -> None:
    """What is there now is not walked over again, by whoever collects garbage, until next time."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    """Each process of a parallel run collects the same tests."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    """One line for what is left out."""
    if n := config.stash.get(LEFT_OUT, 0):
        said = f"no {SHARED}: {n} comparisons with the references are left out"
        terminalreporter.write_line(said)


if os.environ.get("CI") == "true":
    # what is not installed there is not tested anywhere: its absence is an error, not a skip
    pytest.importorskip = lambda name, *_, **__: importlib.import_module(name)


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """What a test writes need not survive a loss of power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def _of_the_run(tmp_path_factory) -> Path:
    """A folder that all processes of this run share."""
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "answers"
    shared.mkdir(exist_ok=True)
    return shared


@pytest.fixture(autouse=True)
def _shared_bridges(request, _of_the_run) -> None:
    """What is measured under `slow` is built and asked as users do it."""
    if request.node.get_closest_marker("slow") is None:
        share_loaded()
        share_bridges()
        share_answers(_of_the_run)


@pytest.fixture(scope="module")
def one_type() -> Iterator[None]:
    """As where memory holds no model in a second type of numbers: asking in them is left out."""
    from lensaudit.patching.asking import DirectQuestions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectQuestions, "types", lambda asking, source: [])
        yield


@pytest.fixture
def ends() -> Iterator[None]:
    """`full` and `retain` may be sources, as in a sweep: what is known of them is looked for."""
    from lensaudit.results.roles import ends_as_sources

    with ends_as_sources():
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The references' values; a test that asks for it runs only where they are."""
    return SHARED


@pytest.fixture(scope="session")
def golden(shared):
    """Reads a golden JSON file of the UDS reference."""
    return lambda name: json.loads((shared / "golden" / "uds" / name).read_text())


@functools.cache
def _bridge(folder: Path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from lensaudit.models.bridge import bridge_from

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return bridge_from(model, AutoTokenizer.from_pretrained(folder))


@pytest.fixture(scope="session")
def family(shared):
    """Bridges on the trained family in ../shared, by name; loaded once per session."""
    return lambda name: _bridge(shared / "family" / name)


@pytest.fixture(scope="session")
def forget(shared):
    """The family's forget set, encoded."""
    from transformers import AutoTokenizer

    from lensaudit.data.spans import encode
    from lensaudit.data.tofu import forget_set

    tokenizer = AutoTokenizer.from_pretrained(shared / "family" / "full")
    return [encode(e, tokenizer) for e in forget_set(shared / "family" / "forget.json")]


@pytest.fixture(scope="session")
def tiny_tokenizer():
    """A fast word-level tokenizer for the tiny models."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(3, 61)} | {"<pad>": 0, "<bos>": 1, "<eos>": 2}
    inner = Tokenizer(models.WordLevel(words, unk_token="w3"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
    )


@pytest.fixture
def tiny(tiny_tokenizer):
    """A factory of bridged tiny models, by seed."""
    from lensaudit.models.bridge import bridge_from

    return lambda seed=0, **changes: bridge_from(tiny_model(seed, **changes), tiny_tokenizer)


@pytest.fixture(scope="session")
def tiny_of(tiny_tokenizer):
    """Bridged random models by architecture (a key of ARCHITECTURES) and seed; made once."""
    from lensaudit.models.bridge import bridge_from

    @functools.cache
    def make(architecture: str, seed: int = 0):
        kind, changes = ARCHITECTURES[architecture]
        return bridge_from(tiny_model_of(kind, seed, **changes), tiny_tokenizer)

    return make


@pytest.fixture(scope="session")
def ragged():
    """Encoded examples of uneven length: long prompt, short prompt, span of 1, span to the end."""
    import torch

    from lensaudit.data.spans import Encoded

    generator = torch.Generator().manual_seed(7)
    shapes = [(5, 5, 8, 12), (9, 9, 10, 14), (3, 4, 9, 10), (1, 0, 2, 6), (7, 6, 9, 10)]
    return [
        Encoded(
            idx=idx,
            group=idx // 2,
            token_ids=tuple(torch.randint(3, 61, (n,), generator=generator).tolist()),
            n_prompt=n_prompt,
            start=start,
            end=min(end, n - 1),
        )
        for idx, (n_prompt, start, end, n) in enumerate(shapes)
    ]


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory, tiny_tokenizer) -> Path:
    """A folder with a random 3-layer Llama and its tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_model().save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def drills():
    """The module `benchmarks/store_faults.py`, on a cache of 5 shards."""
    from benchmarks import store_faults

    store_faults.N_EXAMPLES = 160
    return store_faults
