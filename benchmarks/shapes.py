"""What is timed: model shapes with random weights, and token ids as long as TOFU's."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lensaudit.activations.spec import SHARD_EXAMPLES
from lensaudit.data.spans import Encoded, buckets, by_length
from lensaudit.models.bridge import DTYPES, TransformerBridge, bridge_from
from lensaudit.models.checkpoint import Checkpoint
from lensaudit.models.linear import with_fast_layers
from lensaudit.models.registry import ModelSpec

PERCENTILES = (0, 5, 25, 50, 75, 90, 95, 99, 100)
N_PROMPT = (17, 23, 30, 37, 44, 54, 58, 70, 96)
N_TAIL = (0, 1, 4, 13, 22, 31, 35, 48, 52)
N_WITH_SPAN = (40, 36, 49, 30, 43, 51, 37, 20, 19, 13, 9, 8, 4, 3, 1, 2, 1, 1)
"""TOFU forget10, 367 annotated examples under the Llama-3 tokenizer: percentiles of the prompt's
and the tail's length, and how many examples have a span of 1, 2, … 18 tokens."""


@dataclass(frozen=True)
class Shape:
    """A Llama configuration, and how much of the slow form is timed."""

    name: str
    text: str
    config: LlamaConfig
    n_examples: int
    n_doubled: int
    """Examples of the run that is compared with one of twice as many."""
    n_oracle_layers: int
    """Layers whose hooked pass is timed; the others cost the same."""
    n_runs: int = 1
    """Of every row, unless it is said."""


SHAPES = ("embedded", "llama-1b")


def shape_named(name: str) -> Shape:
    """`embedded`: the family shipped here; `smollm2`: SmolLM2-135M; `llama-1b`: Llama-3.2-1B."""
    if name == "embedded":
        config = LlamaConfig(
            vocab_size=2048,
            hidden_size=64,
            intermediate_size=176,
            num_hidden_layers=16,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=False,
            max_position_embeddings=512,
        )
        return Shape(name, "16 layers of 64, vocabulary 2,048", config, 128, 128, 4, 3)
    if name == "smollm2":
        config = LlamaConfig(
            vocab_size=49152,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            tie_word_embeddings=True,
            max_position_embeddings=8192,
        )
        return Shape(name, "30 layers of 576, vocabulary 49,152", config, 32, 32, 30, 1)
    if name == "llama-1b":
        config = LlamaConfig(
            vocab_size=128256,
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=16,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=64,
            tie_word_embeddings=True,
            max_position_embeddings=131072,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        )
        text = "Llama-3.2-1B, random weights"
        return Shape(name, text, config, 16, 16, 2, 1)
    raise ValueError(f"shape {name}: wanted one of {', '.join(SHAPES)}")


def random_model(
    config: LlamaConfig, *, seed: int = 0, dtype: str = "float32", device: str = "cpu"
) -> TransformerBridge:
    """A bridged model whose weights were never trained; its layers are those of a loaded one."""
    torch.manual_seed(seed)
    with torch.device(device):
        made = LlamaForCausalLM(config).to(DTYPES[dtype])
    return bridge_from(with_fast_layers(made), no_words())


def no_words() -> PreTrainedTokenizerFast:
    """A tokenizer for those who bring token ids."""
    words = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1}, unk_token="<s>"))
    # without a token for the beginning: TransformerLens would load it again from its folder
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>")


def random_examples(n: int, d_vocab: int, *, seed: int = 0) -> list[Encoded]:
    """Random tokens whose lengths are the n-quantiles of TOFU's, independently shuffled."""
    generator = np.random.default_rng(seed)
    at = (np.arange(n) + 0.5) / n
    spans = np.repeat(np.arange(1, len(N_WITH_SPAN) + 1), N_WITH_SPAN)
    n_span = generator.permutation(np.quantile(spans, at, method="nearest"))
    n_prompt = generator.permutation(np.interp(100 * at, PERCENTILES, N_PROMPT).round())
    n_tail = generator.permutation(np.interp(100 * at, PERCENTILES, N_TAIL).round())
    found = []
    for idx, parts in enumerate(zip(n_prompt, n_span, n_tail, strict=True)):
        prompt, span, tail = map(int, parts)
        tokens = generator.integers(2, d_vocab, prompt + span + tail).tolist()
        found.append(Encoded(idx, idx // 20, tuple(tokens), prompt, prompt - 1, prompt - 1 + span))
    return found


def whole_batches(encoded: Sequence[Encoded], batch_size: int) -> Iterator[Sequence[Encoded]]:
    """Batches of whole sequences that pad least: alike in all their tokens."""
    return buckets(encoded, batch_size, length=lambda e: len(e.token_ids))


def cache_batches(encoded: Sequence[Encoded], batch_size: int) -> Iterator[Sequence[Encoded]]:
    """Those in which a cache of all positions is made: shard by shard."""
    ordered = by_length(encoded)
    for at in range(0, len(ordered), SHARD_EXAMPLES):
        yield from whole_batches(ordered[at : at + SHARD_EXAMPLES], batch_size)


@dataclass(frozen=True)
class Lengths:
    """Token counts over a set of examples."""

    total: int
    """Whole sequences."""
    read: int
    """Up to the last position whose logits are read."""
    span: int


def lengths_of(encoded: Sequence[Encoded]) -> Lengths:
    """Sums over the examples."""
    return Lengths(
        total=sum(len(e.token_ids) for e in encoded),
        read=sum(e.end for e in encoded),
        span=sum(e.n_span for e in encoded),
    )


def checkpoint_of(shape: Shape, name: str, dtype: str) -> Checkpoint:
    """What stands for a model on disk; its hash is its name."""
    config = shape.config
    return Checkpoint(
        spec=ModelSpec(name, name, None, "full", None),
        folder=Path(),
        weights=name,
        tokenizer="-",
        n_layers=config.num_hidden_layers,
        d_model=config.hidden_size,
        d_vocab=config.vocab_size,
        architecture="LlamaForCausalLM",
        dtype=dtype,
    )
