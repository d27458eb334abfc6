"""Shared fixtures. Heavy imports stay inside them, so pure tests start in seconds."""

import functools
import json
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
"""Checkpoints, data and golden values that are not part of the project."""


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of golden values; the test is skipped where it is absent."""
    if not (SHARED / "README.md").exists():
        pytest.skip("no ../shared folder with checkpoints and golden values")
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

    from lensaudit.data.examples import load_examples
    from lensaudit.data.spans import encode

    tokenizer = AutoTokenizer.from_pretrained(shared / "family" / "full")
    return [encode(e, tokenizer) for e in load_examples(shared / "family" / "forget.json")]


def tiny_model(seed: int = 0, **changes):
    """A random Llama, 3 layers of 32, grouped-query attention, uneven norm weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    settings = {
        "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "tie_word_embeddings": False, "attn_implementation": "eager", "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2,
    } | changes  # fmt: skip
    model = LlamaForCausalLM(LlamaConfig(**settings)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # logits of a fresh model are nearly flat: every test would pass on noise
            weight.copy_(torch.rand_like(weight) + 0.5 if "norm" in name else weight * 4)
    return model


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


ARCHITECTURES = {
    "Llama": ("Llama", {}),
    "Llama with a key head per query head": ("Llama", {"num_key_value_heads": 4}),
    "Llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "Llama-3.2": (
        "Llama",
        {
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "Qwen2": ("Qwen2", {}),
    "Mistral": ("Mistral", {"sliding_window": 4}),
    "Gemma": ("Gemma", {"head_dim": 8}),
    "Gemma2": ("Gemma2", {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4}),
}  # fmt: skip
"""What the sweep is verified on: transformers' class, and its settings beside those of `tiny`."""


def tiny_model_of(kind: str, seed: int = 0, **changes):
    """A random model of 4 layers of one of transformers' causal classes."""
    import torch
    import transformers

    torch.manual_seed(seed)
    settings = {
        "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "attn_implementation": "eager", "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    } | changes  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(**settings)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # logits of a fresh model are nearly flat: every test would pass on noise
            uneven = torch.rand_like(weight) if "norm" in name or "bias" in name else weight * 8
            weight.copy_(uneven)
    return model


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
