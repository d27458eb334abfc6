"""Small random models and paths that tests and fixtures share; beside them the other helpers.

What is where:
- models: `loaded` (a folder is read once), `bridges` (one bridge a set of weights), `answers` (what
  it said when it was asked), `widened` (the same model in another shape), `planted` (answers behind
  one direction), `llama_helpers` (what a model says and thinks), `served_model`, `toy_hub`
- rows and runs: `generated` (rows and tokenizers with the traps of real ones), `rtt_support` (a
  world to retrain), `audit_helpers` (tiny audits from disk), `metric_helpers`, `wavefront_helpers`,
  `store_cases`, `sweep_helpers`, `verdict_support` and `report_cases` (results as commands write),
  `lm_eval_tasks` (tasks for the harness)
- goldens: `command_cases` and `command_golden` (calls, and what they say), `frozen`,
  `frozen_suites` and `loss_cases` (numbers), `tolerance` (how far a number may move)
- servers, pages, misuse: `judge_server`, `pages`, `page_reader`, `chromium`, `hostile`
- between rooms: `agreement` (one word for a model everywhere), `closure` (what a room stands on)
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
GOLDEN = TESTS / "golden"
"""Numbers that travel with the code: published tables, unit vectors, frozen results."""

SHARED = Path(os.environ.get("LENSAUDIT_TEST_SHARED", TESTS.parents[1] / "shared"))
"""Checkpoints, data and values of the references: an extra, not part of the project."""

EMBEDDED = TESTS.parent / "lensaudit" / "embedded"
"""The trained family that comes with the package."""


def golden_values(name: str) -> Any:
    """What the golden file `name` holds; its other fields say where that comes from."""
    return json.loads((GOLDEN / name).read_text())["values"]


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The lines of a ledger that count under its own header."""
    from lensaudit.results.ledger import Ledger

    header = json.loads(path.read_bytes().splitlines()[0])
    return Ledger(path, header["ledger"], header["key"]).rows


def checkpoint_of(name: str | Path, **how: Any) -> Any:
    """The opened checkpoint of a name or a folder."""
    from lensaudit.models.checkpoint import open_checkpoint
    from lensaudit.models.registry import load_registry, resolve

    return open_checkpoint(resolve(str(name), load_registry()), **how)


def silent_in_float32(folder: Path) -> Path:
    """`demo/full` with two units that are one but for what float32 alone can tell.

    Their ways out are S (1 + 2^-9) v and -S v: together S 2^-9 v, which drowns the stream. In
    bfloat16 1 + 2^-9 is 1, and they cancel. S is too large for float16.
    """
    import torch

    from lensaudit.models.causal import load_causal
    from lensaudit.models.checkpoint import load_tokenizer

    one, drowning = checkpoint_of("demo/full"), 2.0**18
    model = load_causal(one)
    mlp = model.model.layers[-1].mlp
    v = torch.ones(model.config.hidden_size)
    v[::2] = -1.0
    with torch.no_grad():
        for way_in in (mlp.gate_proj, mlp.up_proj):
            way_in.weight[1] = way_in.weight[0]
        mlp.down_proj.weight[:, 0] = drowning * (1 + 2.0**-9) * v
        mlp.down_proj.weight[:, 1] = -drowning * v
    model.save_pretrained(folder)
    load_tokenizer(one).save_pretrained(folder)
    return folder


def refusal(call: Callable[..., Any], *arguments: Any, n_lines: int = 1, **options: Any) -> str:
    """The line, or the few, with which a call refuses its input."""
    import pytest

    from lensaudit.errors import InputError

    with pytest.raises(InputError) as caught:
        call(*arguments, **options)
    assert len(str(caught.value).splitlines()) <= n_lines
    return str(caught.value)


def printed(code: str) -> str:
    """What a program of its own prints, which has imported nothing yet."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def of_role(registry, role: str) -> list[Any]:
    """The specs of one role, in the order of the registry."""
    return [spec for spec in registry.values() if spec.role == role]


SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "attn_implementation": "eager",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""A configuration that runs in milliseconds."""


def tiny_model(seed: int = 0, **changes):
    """A random Llama, 3 layers of 32, grouped-query attention, uneven norm weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    own = {"num_hidden_layers": 3, "tie_word_embeddings": False}
    model = LlamaForCausalLM(LlamaConfig(**SMALL | own | changes)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # logits of a fresh model are nearly flat: every test would pass on noise
            weight.copy_(torch.rand_like(weight) + 0.5 if "norm" in name else weight * 4)
    return model


def llama_of(tokenizer, seed: int = 0, **changes):
    """A random Llama of 2 layers for a tokenizer; the caller's random stream is untouched."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "pad_token_id": tokenizer.pad_token_id,
    } | changes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**settings)).eval()


WINDOWS = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
GEMMA3 = {"head_dim": 12, "query_pre_attn_scalar": 8} | WINDOWS
EYES = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "image_size": 8,
    "patch_size": 4,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "mlp_only_layers": [1],
}
ARCHITECTURES = {
    "Llama": ("Llama", {}),
    "Llama with a key head per query head": ("Llama", {"num_key_value_heads": 4}),
    "Llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "Llama-3.2": (
        "Llama",
        {
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "Qwen2": ("Qwen2", {}),
    "Mistral": ("Mistral", {"sliding_window": 4}),
    "Gemma": ("Gemma", {"head_dim": 8}),
    "Gemma2": ("Gemma2", {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4}),
    "Qwen3": ("Qwen3", {"head_dim": 12}),
    "Phi3": ("Phi3", {"sliding_window": 4}),
    "Phi": ("Phi", {}),
    "GPT-NeoX": ("GPTNeoX", {"num_key_value_heads": 4}),
    "GPT-NeoX, one after the other": (
        "GPTNeoX",
        {"num_key_value_heads": 4, "use_parallel_residual": False},
    ),
    "GPT-2": ("GPT2", {"num_key_value_heads": 4, "scale_attn_by_inverse_layer_idx": True}),
    "StableLM": ("StableLm", {"use_qkv_bias": True}),
    "StableLM, parallel": ("StableLm", {"use_parallel_residual": True}),
    "SmolLM3": ("SmolLM3", {"no_rope_layers": [1, 0, 1, 1]}),
    "Granite": (
        "Granite",
        {
            "logits_scaling": 4.0,
            "residual_multiplier": 0.5,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
        },
    ),
    "Gemma3": ("Gemma3Text", GEMMA3),
    "Gemma3 with eyes": ("Gemma3", {"text_config": GEMMA3, "vision_config": EYES}),
    "OLMo": ("Olmo", {"clip_qkv": 0.5}),
    "OLMo2": ("Olmo2", {}),
    "OLMo3": ("Olmo3", WINDOWS),
    "Cohere": ("Cohere", {"logit_scale": 2.0}),
    "Cohere, normed": ("Cohere", {"use_qk_norm": True, "logit_scale": 2.0}),
    "Cohere2": ("Cohere2", {"logit_scale": 2.0} | WINDOWS),
    "Mixtral": ("Mixtral", {"num_local_experts": 4, "sliding_window": 4}),
    "Qwen2-MoE": ("Qwen2Moe", {"shared_expert_intermediate_size": 40} | EXPERTS),
    "Qwen3-MoE": ("Qwen3Moe", {"head_dim": 12} | EXPERTS),
    "OLMoE": ("Olmoe", {"num_key_value_heads": 4, "clip_qkv": 1.0} | EXPERTS),
}
"""What the sweep is verified on: transformers' class, and its settings beside those of `tiny`."""


def tiny_model_of(kind: str, seed: int = 0, **changes):
    """A random model of 4 layers of one of transformers' causal classes."""
    import torch
    import transformers

    torch.manual_seed(seed)
    if "text_config" in changes:
        changes["text_config"] = SMALL | changes["text_config"]
    config = getattr(transformers, f"{kind}Config")(**SMALL | changes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.config.architectures = [type(model).__name__]  # as a saved one says
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # logits of a fresh model are nearly flat: every test would pass on noise
            drawn = any(part in name for part in ("norm", "ln_", "bias"))
            weight.copy_(torch.rand_like(weight) if drawn else weight * 8)
    return model


def without(monkeypatch, *packages: str) -> None:
    """As if these packages were not installed; every other is there as it was."""
    known = importlib.util.find_spec

    def found(name: str, package: str | None = None):
        return None if name in packages else known(name, package)

    monkeypatch.setattr("importlib.util.find_spec", found)


def taken_for_tofu(monkeypatch) -> None:
    """Let `--exclude` read any rows as those of forget10: no text of TOFU comes along."""
    from lensaudit.data import tofu

    plain = tofu._is_tofu

    def is_tofu(config: str, rows: Any, starts: Any = tofu.TAILS) -> bool:
        return starts == (0,) or plain(config, rows, starts)

    monkeypatch.setattr(tofu, "_is_tofu", is_tofu)


def as_written(lines: str | list[str]) -> str:
    """A file of a golden that can be read; what differs from run to run is null or nothing."""
    if isinstance(lines, str):
        return ""
    text = re.sub("{…}", "{}", "\n".join(lines).replace('"seconds": …', '"seconds": 0.0'))
    return re.sub(r"(?m)(?<= )(…|<\w+>)(?=,?$)", "null", text)


def lay_out(golden: str, folder: Path) -> Path:
    """The folder of a run as the golden of its command tells it, sealed over what lies there.

    `golden` is a case of tests/golden/commands and a folder in it: `patch:out`. What is no text,
    or differs from run to run, is empty.
    """
    from lensaudit.results.integrity import home_of
    from lensaudit.results.manifest import MANIFEST, mark_of, signed

    case, _, top = golden.partition(":")
    written = json.loads((GOLDEN / "commands" / f"{case}.json").read_text())["files"]
    for name, lines in written.items():
        if name.startswith(f"{top}/"):
            place = folder / Path(name).relative_to(top)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(as_written(lines))
    # those of the parts before that of the whole
    for place in sorted(folder.rglob(f"*{MANIFEST}"), key=lambda path: -len(path.parts)):
        content, home = json.loads(place.read_text()), home_of(place)
        there = [name for name in content["files"] if (home / name).is_file()]
        files = {name: mark_of(home / name) for name in there}
        content |= {"finished": "2026-01-01T00:00:00+00:00", "versions": {}, "files": files}
        place.write_text(json.dumps(signed(content)))
    return folder
