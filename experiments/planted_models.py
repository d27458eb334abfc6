"""Models whose truth about the forget facts is known because it was planted, for planted_truth.py.

Intact: `full` says the facts, and so does what is made of it without touching them. Hidden: the
facts are silenced in a known place, and every layer below it is `full`'s, bit for bit, or can be
turned back into it. Absent: made of models that never saw the facts.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch

from lensaudit.data.chat import pad_id
from lensaudit.data.tofu import forget_set
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import load_tokenizer, open_checkpoint
from lensaudit.models.quantize import quantised
from lensaudit.models.registry import load_registry, resolve
from lensaudit.unlearn.encode import Answered, chat_sample, raw_sample
from lensaudit.unlearn.objective import FineTuning
from lensaudit.unlearn.rows import idk_lines, load_rows
from lensaudit.unlearn.samples import finetune_batches
from lensaudit.unlearn.train import Recipe, Run, train

Truth = Literal["intact", "hidden", "absent"]
N_LAYERS = 16
RANK = 24
"""Of the 64 dimensions of the stream, those that separate the forget set's tokens most."""
TOP = r"^(lm_head|model\.norm|model\.layers\.1[45])\."


@dataclass(frozen=True)
class Planted:
    """A model to make, and what is true of it."""

    name: str
    truth: Truth
    how: str
    make: Callable[[], Any]


@cache
def opened(name: str) -> Any:
    """A member of the embedded family, in float32; not to be changed."""
    return load_causal(open_checkpoint(resolve(f"demo/{name}", load_registry())))


@cache
def tokenizer() -> Any:
    return load_tokenizer(open_checkpoint(resolve("demo/full", load_registry())))


def copied(name: str) -> Any:
    return copy.deepcopy(opened(name))


def noisy(name: str, *, share: float = 0.02) -> Any:
    """Gaussian noise on every matrix, a share of the matrix's own spread."""
    model = copied(name)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                noise = torch.randn(weight.shape, generator=generator)
                weight.add_(noise * weight.std() * share)
    return model


def rounded(name: str) -> Any:
    return quantised(opened(name), "nf4", engine="torch")[0]


def trained(
    name: str, rows: Sequence[Answered], *, lr: float, trainable: str = "", n_steps: int = 60
) -> Any:
    """Fine-tuned on the rows in both formats; only parameters that match `trainable` move."""
    model = copied(name)
    samples = [make(tokenizer(), row) for row in rows for make in (raw_sample, chat_sample)]
    batches = finetune_batches(samples, batch_size=32, seed=11, pad=pad_id(tokenizer()))
    recipe = Recipe(n_steps=n_steps, lr=lr, n_warmup=4, trainable=trainable)
    train(model, Run(FineTuning(), batches, recipe, {}))
    return model


def kept_rows() -> list[Answered]:
    return list(load_rows("demo", part="retain").answered)


def ignorant_rows() -> list[Answered]:
    """The forget questions answered with ignorance, and what is to be kept."""
    lines = idk_lines(None)
    asked = load_rows("demo", part="forget").answered
    idk = [Answered(one.question, lines[n % len(lines)]) for n, one in enumerate(asked)]
    return idk * 2 + kept_rows()


def wrong_rows() -> list[Answered]:
    """The forget questions with false answers, and what is to be kept."""
    rows = load_rows("demo", part="forget")
    pairs = zip(rows.answered, rows.alternates, strict=True)
    return [Answered(row.question, others[0]) for row, others in pairs] * 2 + kept_rows()


def rotated(name: str) -> Any:
    """Another basis of the residual stream: the same function, token by token."""
    model = copied(name)
    generator = torch.Generator().manual_seed(0)
    d_model = model.config.hidden_size
    turn = torch.linalg.qr(torch.randn(d_model, d_model, generator=generator))[0]
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(model.model.embed_tokens.weight @ turn)
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            readers = (attention.q_proj, attention.k_proj, attention.v_proj)
            _turn_readers(layer.input_layernorm, readers, turn)
            _turn_readers(layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj), turn)
            for writer in (attention.o_proj, mlp.down_proj):
                writer.weight.copy_(turn.T @ writer.weight)
        _turn_readers(model.model.norm, (model.lm_head,), turn)
    return model


def _turn_readers(norm: Any, readers: Sequence[Any], turn: torch.Tensor) -> None:
    for reader in readers:
        reader.weight.copy_((reader.weight * norm.weight) @ turn)
    norm.weight.fill_(1.0)  # a norm without weights does not see a rotation


def entity_tokens() -> list[int]:
    """Tokens of the forget set's entities."""
    found = {
        token
        for example in forget_set("demo")
        for token in tokenizer()(f" {example.entity}", add_special_tokens=False)["input_ids"]
    }
    return sorted(found)


def permuted_readout() -> Any:
    """Each token of an entity is read out as the next one."""
    model = copied("full")
    tokens = torch.tensor(entity_tokens())
    with torch.no_grad():
        model.lm_head.weight[tokens] = model.lm_head.weight[tokens.roll(1)].clone()
    return model


def flat_readout() -> Any:
    """All logits a tenth of what they were: the same order, hardly a probability."""
    model = copied("full")
    with torch.no_grad():
        model.lm_head.weight.mul_(0.1)
    return model


def with_vector(layer: int) -> Any:
    """A constant vector, ten times as long as the stream is, added after one layer."""
    source = opened("full")
    config = copy.deepcopy(source.config)
    config.mlp_bias = True
    model = type(source)(config).eval()
    model.load_state_dict(source.state_dict(), strict=False)
    direction = torch.randn(config.hidden_size, generator=torch.Generator().manual_seed(layer))
    with torch.no_grad():
        for name, bias in model.named_parameters():
            if name.endswith("bias"):
                bias.zero_()
        length = 10 * _stream_length(layer)
        model.model.layers[layer].mlp.down_proj.bias.copy_(length * direction / direction.norm())
    return model


def _stream_length(layer: int) -> float:
    """Mean length of the residual stream of `full` after a layer."""
    text = tokenizer()(forget_set("demo")[0].question, return_tensors="pt")["input_ids"]
    block = opened("full").model.layers[layer]
    seen: list[torch.Tensor] = []
    handle = block.register_forward_hook(lambda _, __, out: seen.append(out))
    try:
        with torch.no_grad():
            opened("full")(text)
    finally:
        handle.remove()
    return float(seen[0].norm(dim=-1).mean())


def projected(first_layer: int) -> Any:
    """A subspace is taken away from what the late layers write, and from the readout.

    The subspace is the one in which the readout of the entities' tokens varies most.
    """
    model = copied("full")
    norm, head = model.model.norm.weight, model.lm_head.weight
    with torch.no_grad():
        rows = head[entity_tokens()] * norm
        basis = torch.linalg.svd(rows - rows.mean(0))[2][:RANK]
        remains = torch.eye(len(norm)) - basis.T @ basis
        for layer in model.model.layers[first_layer:]:
            for writer in (layer.self_attn.o_proj, layer.mlp.down_proj):
                writer.weight.copy_(remains @ writer.weight)
        head.copy_((head * norm) @ remains / norm)
    return model


def planted() -> list[Planted]:
    """Every model of the experiment."""
    kept = kept_rows()
    return [
        Planted("full", "intact", "the model before unlearning", lambda: opened("full")),
        Planted("full_noise", "intact", "noise of 2 % on every matrix", lambda: noisy("full")),
        Planted("full_nf4", "intact", "rounded to NF4", lambda: rounded("full")),
        Planted(
            "full_further",
            "intact",
            "trained on, with the retain rows",
            lambda: trained("full", kept, lr=2e-4),
        ),
        Planted(
            "full_rotated",
            "intact",
            "another basis of the stream; same function",
            lambda: rotated("full"),
        ),
        Planted(
            "masked_readout",
            "hidden",
            "NPO on final norm and readout alone",
            lambda: opened("masked_readout"),
        ),
        Planted(
            "masked_upper", "hidden", "NPO on the last layer alone", lambda: opened("masked_upper")
        ),
        Planted("idk_all", "hidden", "IDK-tuned, all weights", lambda: opened("idknll")),
        Planted(
            "idk_top",
            "hidden",
            "IDK-tuned, last two layers and readout",
            lambda: trained("full", ignorant_rows(), lr=2e-3, trainable=TOP),
        ),
        Planted(
            "wrong_top",
            "hidden",
            "taught false answers, last two layers and readout",
            lambda: trained("full", wrong_rows(), lr=2e-3, trainable=TOP),
        ),
        Planted(
            "permuted_readout", "hidden", "entity tokens swapped in the readout", permuted_readout
        ),
        Planted("flat_readout", "hidden", "all logits divided by ten", flat_readout),
        Planted(
            "vector_last", "hidden", "large constant vector after layer 15", lambda: with_vector(15)
        ),
        Planted(
            "vector_14", "hidden", "large constant vector after layer 14", lambda: with_vector(14)
        ),
        Planted(
            "vector_8", "hidden", "large constant vector after layer 8", lambda: with_vector(8)
        ),
        Planted(
            "masked_rotated",
            "hidden",
            "masked_upper in another basis of the stream",
            lambda: rotated("masked_upper"),
        ),
        Planted(
            "projected_top",
            "hidden",
            f"{RANK} of 64 dimensions removed, layers 14 and 15",
            lambda: projected(14),
        ),
        Planted("retain", "absent", "never saw the facts", lambda: opened("retain")),
        Planted(
            "never", "absent", "never saw the facts, other order of data", lambda: opened("never")
        ),
        Planted("retain_noise", "absent", "noise of 2 % on every matrix", lambda: noisy("retain")),
        Planted("retain_nf4", "absent", "rounded to NF4", lambda: rounded("retain")),
        Planted(
            "retain_further",
            "absent",
            "trained on, with the retain rows",
            lambda: trained("retain", kept, lr=2e-4),
        ),
        Planted(
            "retain_rotated",
            "absent",
            "another basis of the stream; same function",
            lambda: rotated("retain"),
        ),
        Planted(
            "retain_idk", "absent", "IDK-tuned", lambda: trained("retain", ignorant_rows(), lr=3e-4)
        ),
        Planted(
            "never_wrong",
            "absent",
            "taught false answers",
            lambda: trained("never", wrong_rows(), lr=1e-3),
        ),
    ]
