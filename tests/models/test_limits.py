"""Memory that limits of the process and of its control groups leave."""

import resource

import pytest
import torch
import transformers
from support import checkpoint_of

from lensaudit.models import memory
from lensaudit.models.causal import load_causal
from lensaudit.models.memory import free_bytes


def group(root, path, limit, used, cache):
    folder = root / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\n")


@pytest.mark.parametrize(("limit", "place"), [(resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5)])
def test_limits_of_the_process_are_kept(limit, place):
    before = resource.getrlimit(limit)
    used = int((memory.PROC / "self" / "statm").read_text().split()[place])
    resource.setrlimit(limit, (used * resource.getpagesize() + (300 << 20), before[1]))
    try:
        assert 290 <= free_bytes("cpu") >> 20 <= 300
    finally:
        resource.setrlimit(limit, before)


@pytest.mark.parametrize("limit", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_under_a_limit_that_counts_mapped_files_none_is_mapped(limit, tiny_checkpoint, monkeypatch):
    tokens, checkpoint = torch.tensor([[5, 6, 7, 8]]), checkpoint_of(tiny_checkpoint)
    wanted = load_causal(checkpoint, dtype=torch.bfloat16)(tokens).logits
    monkeypatch.delattr(transformers.AutoModelForCausalLM, "from_pretrained")
    before = resource.getrlimit(limit)
    resource.setrlimit(limit, (1 << 50, before[1]))
    try:
        found = load_causal(checkpoint, dtype=torch.bfloat16)
    finally:
        resource.setrlimit(limit, before)
    assert torch.equal(found(tokens).logits, wanted)
    assert all(one.requires_grad for one in found.parameters())


def test_the_narrowest_control_group_counts_and_cached_files_can_be_given_up(monkeypatch, tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("1:cpu:/elsewhere\n0::/outer/inner\n")
    monkeypatch.setattr(memory, "PROC", proc)
    monkeypatch.setattr(memory, "GROUPS", groups)
    assert memory.left_by_limits() is None
    group(groups, ".", "max", 900, 0)
    group(groups, "outer", 1000, 700, 50)
    group(groups, "outer/inner", 4000, 600, 0)
    assert memory.left_by_limits() == 350
    assert free_bytes("cpu") == 350
    group(groups, "outer/inner", 400, 600, 100)
    assert memory.left_by_limits() == 0


def test_what_pytorch_keeps_of_a_model_that_was_let_go_is_free_within_the_process_s_part(
    monkeypatch,
):
    def card(free, total, kept, own, part=1.0):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        told = {
            "mem_get_info": (free, total),
            "memory_reserved": kept,
            "memory_allocated": own,
            "get_per_process_memory_fraction": part,
        }
        for name, value in told.items():
            monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
        return free_bytes("cuda:0")

    assert card(30, 100, kept=60, own=0) == 90
    assert card(30, 100, kept=60, own=55) == 35
    # two workers share a card: the other half is not this one's, however free
    assert card(95, 100, kept=0, own=0, part=0.475) == 47
    assert card(60, 100, kept=35, own=30, part=0.475) == 17
