"""Whether streams of one model can replace another's: shapes, settings and tokenizers compared."""

import re
from collections.abc import Callable
from importlib.metadata import version

from lensaudit.errors import InputError
from lensaudit.models.checkpoint import Checkpoint, config_of, load_tokenizer, tell_stored_twice
from lensaudit.models.hashing import remembered_of
from lensaudit.text import digest

_INERT_SETTINGS = (
    *("architectures", "transformers_version", "_name_or_path", "dtype", "torch_dtype"),
    *("id2label", "label2id", "problem_type", "initializer_range", "pretraining_tp"),
    *("use_cache", "output_hidden_states", "output_attentions", "return_dict"),
    *(
        "chunk_size_feed_forward",
        "tie_word_embeddings",
        "quantization_config",
        "_attn_implementation",
    ),
)
"""Settings of a configuration that change no activation, beside `…_token_id` and dropouts."""


def check_same_shape(*checkpoints: Checkpoint, notice: Callable[[str], None] | None = None) -> None:
    """Refuse models that cannot be patched into the first one; say which settings differ.

    Args:
        checkpoints: models trained from one base.
        notice: receives a line where they fit and some compute with other settings.

    Raises:
        InputError: depth, width, vocabulary or tokenizer differ; names all differences.
    """
    wanted, *others = checkpoints
    differences = [
        f"{found.spec.name}: {label} {getattr(found, field)}, "
        f"but {wanted.spec.name} has {getattr(wanted, field)}"
        for found in others
        for field, label in _SHAPE.items()
        if getattr(found, field) != getattr(wanted, field)
    ]
    differences += [
        f"{found.spec.name}: {told}"
        for found in others
        if found.d_vocab == wanted.d_vocab and (told := other_tokenizer(found, wanted))
    ]
    if differences:
        raise InputError(
            f"models of different shape: {'; '.join(differences)}\n"
            "wanted checkpoints trained from one base model, with its tokenizer"
        )
    if notice is not None:
        tell_stored_twice(*checkpoints, notice=notice)
        if differing := differing_settings(*checkpoints):
            notice(f"models with other settings: {differing}")


def misfit(source: Checkpoint, full: Checkpoint) -> str | None:
    """Why a stream of one model cannot replace the other's unchanged; None where it can."""
    why = []
    if (source.n_layers, source.d_model) != (full.n_layers, full.d_model):
        why.append(
            f"its stream ({source.n_layers} layers of {source.d_model}) does not fit that of full "
            f"({full.n_layers} of {full.d_model})"
        )
    if not same_tokenizer(source, full):
        why.append("its tokenizer is not that of full")
    return ", and ".join(why) or None


def same_tokenizer(one: Checkpoint, other: Checkpoint) -> bool:
    """Whether two tokenizers do the same to any text, however their files were saved.

    Raises:
        InputError: the files differ, and one of the tokenizers cannot be loaded.
    """
    return one.tokenizer == other.tokenizer or tokenization(one) == tokenization(other)


def tokenization(checkpoint: Checkpoint) -> str:
    """Hash of how the loaded tokenizer cuts texts, ends them and puts them in a chat.

    Raises:
        InputError: the tokenizer cannot be loaded.
    """
    versions = [version(one) for one in ("tokenizers", "transformers")]
    known = ["tokenization", checkpoint.tokenizer, *versions]
    return remembered_of(known, lambda: _tokenization(checkpoint))


def _tokenization(checkpoint: Checkpoint) -> str:
    tokenizer = load_tokenizer(checkpoint)
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.no_truncation()
    return digest(
        [
            tokenizer.backend_tokenizer.to_str(),
            [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id],
            [tokenizer.split_special_tokens, tokenizer.chat_template],
        ]
    )


def other_tokenizer(one: Checkpoint, other: Checkpoint) -> str | None:
    """By how many tokens two tokenizers differ, and what to do; None where they are the same.

    Raises:
        InputError: one of them cannot be loaded.
    """
    if same_tokenizer(one, other):
        return None
    own, theirs = (load_tokenizer(which).get_vocab() for which in (one, other))
    n = sum(own.get(token) != theirs.get(token) for token in own.keys() | theirs.keys())
    told = f"{n} tokens" if n else "no token, but in how it cuts words, or in its chat template"
    return (
        f"its tokenizer differs from that of {other.spec.name} in {told}; if it was trained from "
        f"that model, copy the tokenizer files of {other.folder} into {one.folder}"
    )


def differing_settings(*checkpoints: Checkpoint) -> str | None:
    """Settings that change what a model computes, and in which models differ from the first.

    Rotary embeddings, norms' epsilons, activations, caps, windows …: legitimate, and to be known.
    None where there is no difference.
    """
    named = []
    for one in checkpoints:  # as transformers reads them: old and new spellings are one
        settings = config_of(one).get_text_config().to_dict()
        inert = {*_INERT_SETTINGS, *filter(re.compile("_token_id$|dropout").search, settings)}
        named.append((one.spec.name, {key: settings[key] for key in settings.keys() - inert}))
    (full, wanted), *others = named
    said = [
        f"{name} has {key} {found.get(key)!r}, {full} {wanted.get(key)!r}"
        for name, found in others
        for key in sorted(wanted.keys() | found.keys())
        if found.get(key) != wanted.get(key)
    ]
    return "; ".join(dict.fromkeys(said)) or None


_SHAPE = {
    "n_layers": "layers",
    "d_model": "width",
    "d_vocab": "vocabulary",
}
