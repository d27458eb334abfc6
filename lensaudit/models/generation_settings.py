"""Settings that greedy generation obeys beside weights and texts: penalties, beams."""

from collections.abc import Mapping
from typing import Any

from lensaudit.models.checkpoint import Checkpoint, config_of, loading

_INERT = (
    *("_from_model_config", "transformers_version", "use_cache", "cache_implementation"),
    *("bos_token_id", "pad_token_id", "decoder_start_token_id", "eos_token_id"),
    # greedy, of a length that is given
    *("do_sample", "temperature", "top_p", "top_k", "max_length", "max_new_tokens"),
)
"""Settings that no greedy continuation of a given length depends on, and where texts end."""


def generation_config_of(checkpoint: Checkpoint) -> Any:
    """What transformers generates under: `generation_config.json`, else the configuration's.

    Raises:
        InputError: the file is broken.
    """
    from transformers import GenerationConfig  # takes seconds

    path = checkpoint.folder / "generation_config.json"
    if not path.is_file():
        return GenerationConfig.from_model_config(config_of(checkpoint))
    with loading(f"{path}: cannot be read"):
        return GenerationConfig.from_pretrained(checkpoint.folder, local_files_only=True)


def own_end(checkpoint: Checkpoint) -> int | list[int] | None:
    """The end of text that `config.json` names; its hash is part of the weights'."""
    return getattr(config_of(checkpoint).get_text_config(), "eos_token_id", None)


def obeyed(checkpoint: Checkpoint, tokenizer: Any) -> Mapping[str, Any]:
    """What greedy generation depends on beside weights and texts: penalties, beams.

    Empty for an ordinary checkpoint. Where texts end counts where it is not what `config.json`
    says, whose hash is part of the weights' already; the tokenizer's where none is configured.
    """
    given = generation_config_of(checkpoint)
    changed = given.to_diff_dict().items()
    found = {
        key: value
        for key, value in changed
        if key not in _INERT and not key.startswith(("output_", "return_"))
    }
    end = tokenizer.eos_token_id if given.eos_token_id is None else given.eos_token_id
    if end != own_end(checkpoint):
        found["eos_token_id"] = end
    return found
