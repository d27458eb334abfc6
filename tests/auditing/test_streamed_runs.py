import errno
import re
from dataclasses import replace

import pytest
import torch
from support import checkpoint_of
from support.tolerance import NATS

from lensaudit.activations.opening import open_activations
from lensaudit.auditing.evaluate import evaluate_into, open_evaluation
from lensaudit.auditing.settings import EvaluateSettings
from lensaudit.cli.main import run
from lensaudit.doors.cache_fill import cache_into, plan_cache
from lensaudit.doors.settings import CacheSettings
from lensaudit.errors import InputError
from lensaudit.models import causal
from lensaudit.models.large import placement
from lensaudit.models.large.placement import all_on, stored_tensors
from lensaudit.models.large.streaming import streamed
from lensaudit.patching.settings import PatchSettings
from lensaudit.plans.depth import plan_patch


@pytest.fixture
def brought(monkeypatch):
    """Weights take all memory but what one block needs; gives what was loaded."""
    least = all_on("cpu", stored_tensors(checkpoint_of("demo/npo").folder), torch.float32).least
    plain, loaded = causal.load_placed, []

    def noted(*args, **options):
        model, found = plain(*args, **options)
        loaded.append(streamed(model))
        return model, found

    monkeypatch.setattr(causal, "load_placed", noted)
    # so much is left for activations, whatever else is
    monkeypatch.setattr(placement, "free_bytes", lambda device: least + (2 << 30))
    return loaded


@pytest.mark.parametrize("positions", [pytest.param("span", marks=pytest.mark.slow), "all"])
def test_caches_block_by_block_are_those_of_whole_models(positions, tmp_path, brought, monkeypatch):
    asked = {"positions": positions, "component": ("resid", "heads"), "limit": 40}
    part = cache_into("demo/npo", CacheSettings(**asked, activations=tmp_path / "part"))
    (brings,) = brought
    n_layers = checkpoint_of("demo/npo").n_layers
    assert brings.placement.way == "streamed"
    # heads are read in a pass of their own
    assert brings.n_brought == 2 * n_layers
    monkeypatch.undo()
    whole = cache_into("demo/npo", CacheSettings(**asked, activations=tmp_path / "whole"))
    for name in ("resid", "heads"):
        assert part.parts[name].key == whole.parts[name].key
        with (
            open_activations(part.parts[name].folder) as one,
            open_activations(whole.parts[name].folder) as other,
        ):
            for idx in other.idx:
                mine, theirs = one.example(idx), other.example(idx)
                torch.testing.assert_close(mine.resid, theirs.resid, rtol=0, atol=1e-5)
                torch.testing.assert_close(mine.final_norm, theirs.final_norm, rtol=0, atol=1e-5)
                assert torch.equal(mine.positions, theirs.positions)
    assert not list((tmp_path / "part").rglob("*.partial"))


def test_a_plan_says_which_way_the_weights_take_and_what_is_brought(tmp_path, brought, monkeypatch):
    settings = CacheSettings(limit=4, component=("resid", "mlp"), activations=tmp_path)
    said = plan_cache("demo/npo", settings).text().splitlines()[-1]
    assert re.fullmatch(
        r"weights: streamed \(786\.7 kB in memory of cpu, 3\.0 MB on disk\); 5\.9 MB to bring in 2 "
        r"passes",
        said,
    )
    assert not brought
    planned = plan_patch(["demo/npo"], PatchSettings(limit=4, activations=tmp_path))
    # three caches, the preflight, one batch
    assert "to bring in 12 passes" in planned.text()
    planned = plan_patch(["demo/npo"], PatchSettings(limit=4, score="lens", activations=tmp_path))
    # three caches, and the preflight without the sweep: read is with the head alone
    assert "to bring in 7 passes" in planned.text()
    monkeypatch.setattr(placement, "free_bytes", lambda device: 1_500_000)
    with pytest.raises(InputError, match="run it block by block, with --device auto"):
        plan_cache("demo/npo", replace(settings, device="cpu"))


def test_what_needs_gradients_has_no_value_and_the_rest_does(tmp_path, brought, monkeypatch):
    asked = EvaluateSettings(
        metrics=("mia_gradnorm", "forget_Q_A_Prob"), limit=3, activations=tmp_path / "cached"
    )
    part = evaluate_into("demo/npo", asked, tmp_path / "part")
    assert len(brought) == 1
    assert part.summary["mia_gradnorm"] is None
    assert "needs all weights at once" in str(part.why_not("mia_gradnorm"))
    monkeypatch.undo()
    whole = evaluate_into("demo/npo", asked, tmp_path / "whole")
    assert part.summary["forget_Q_A_Prob"] == pytest.approx(
        whole.summary["forget_Q_A_Prob"], abs=NATS
    )
    assert whole.summary["mia_gradnorm"] is not None


def test_memory_says_what_is_left_to_the_activations_of_an_evaluation(tmp_path, brought):
    # so much is free that two gigabytes and a block fit, or one gigabyte and all blocks
    asked = EvaluateSettings(metrics=("forget_Q_A_Prob",), limit=3, activations=tmp_path)
    evaluate_into("demo/npo", replace(asked, memory="1G"), tmp_path / "whole")
    assert not brought
    evaluate_into("demo/npo", asked, tmp_path / "part")
    assert [one.placement.way for one in brought] == ["streamed"]


def test_texts_at_once_follow_from_memory(tmp_path):
    asked = EvaluateSettings(limit=3, data="demo")

    def at_once(n_new=0, **how):
        opened = open_evaluation("demo/npo", replace(asked, **how))
        wide = replace(opened.subject, sizes=replace(opened.subject.sizes, d_ff=10**6))
        return opened._fitting(wide, [tuple(range(40))], n_new)

    assert (at_once(batch_size=5), at_once(memory="64G")) == (5, 32)
    few = at_once(memory="2G")
    # 3 million float32 of a token's block, 40 tokens, three quarters of what is no fixed cost
    assert 1 <= few < 8
    assert at_once(memory="256M") == 1
    # what is continued counts, whoever says by how much
    assert at_once(memory="8G", n_new=120) == at_once(memory="8G", n_new=120, max_new_tokens=1)
    assert at_once(memory="8G", n_new=120) < at_once(memory="8G", n_new=0, max_new_tokens=120)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"
        ),
        OSError(errno.ENOMEM, "Cannot allocate memory", "model.safetensors"),
    ],
)
def test_a_lack_of_memory_is_said_in_our_words(tmp_path, monkeypatch, capsys, error):
    def fails(*args, **options):
        raise error

    monkeypatch.setattr(causal.transformers.AutoModelForCausalLM, "from_pretrained", fails)
    monkeypatch.chdir(tmp_path)
    asked = ["--model", "demo/npo", "--limit", "2", "--metric", "forget_Q_A_Prob"]
    assert run(["eval", *asked, "--device", "cpu"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("lensaudit: demo/npo: batch size 1 does not fit into memory; ")
    assert not re.search("alloc|Errno|os error", "".join(said))
