"""Models that compute the same in another shape: a wider stream, more layers, other token ids."""

import json
from pathlib import Path
from typing import Any

import torch

from lensaudit.gym import edits
from support import checkpoint_of


def widened(model: Any, d_wide: int, *, idle: int = 0, seed: int = 0) -> Any:
    """The stream with zeros beside it, turned; after each layer so many that write nothing.

    A norm over more dimensions divides by less: its weights and its epsilon make up for it.
    """
    config = type(model.config).from_dict(model.config.to_dict())
    d, share = config.hidden_size, model.config.hidden_size / d_wide
    config.head_dim = getattr(config, "head_dim", None) or d // config.num_attention_heads
    config.hidden_size = d_wide
    config.rms_norm_eps *= share
    config.num_hidden_layers *= 1 + idle
    made = type(model)(config).eval()
    given = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in made.named_parameters():
            weight.zero_()
            source = given.get(_source_of(name, 1 + idle))
            if source is not None:
                kept = weight[tuple(slice(n) for n in source.shape)]
                kept.copy_(source * share**0.5 if "norm" in name else source)
            if "norm" in name and (source is None or len(source) < len(weight)):
                weight[d if source is not None else 0 :] = 1.0
    return edits.turned(made, edits.random_turn(d_wide, seed))


def _source_of(name: str, every: int) -> str:
    """The parameter of the narrow model; none of what stands in an idle layer."""
    parts = name.split(".")
    if parts[1] != "layers":
        return name
    layer, rest = divmod(int(parts[2]), every)
    return "" if rest else ".".join((*parts[:2], str(layer), *parts[3:]))


def save_widened(name: str, folder: Path, d_wide: int, **how: Any) -> Path:
    """A member of the embedded family, widened, as a checkpoint."""
    from lensaudit.models.causal import load_causal
    from lensaudit.models.checkpoint import load_tokenizer

    opened = checkpoint_of(name)
    widened(load_causal(opened), d_wide, **how).save_pretrained(folder)
    load_tokenizer(opened).save_pretrained(folder)
    return folder


def save_relabelled(name: str, folder: Path) -> Path:
    """A member of the embedded family whose ordinary tokens have their ids in reverse."""
    from lensaudit.models.causal import load_causal
    from lensaudit.models.checkpoint import load_tokenizer

    opened = checkpoint_of(name)
    model, tokenizer = load_causal(opened), load_tokenizer(opened)
    n_special, n = len(tokenizer.all_special_ids) + 2, len(tokenizer)
    old = torch.cat((torch.arange(n_special), torch.arange(n_special, n).flip(0)))
    with torch.no_grad():
        for table in (model.get_input_embeddings(), model.get_output_embeddings()):
            table.weight.copy_(table.weight[old].clone())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer.json"
    document = json.loads(file.read_text())
    ids = document["model"]["vocab"]
    document["model"]["vocab"] = {
        piece: n_special + n - 1 - at if at >= n_special else at for piece, at in ids.items()
    }
    file.write_text(json.dumps(document))
    return folder
