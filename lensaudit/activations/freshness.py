"""Are the weights and rows that a cache was made of those that lie on this machine now?"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import get_args

from lensaudit.activations.spec import Spec
from lensaudit.data.facts import Fact
from lensaudit.errors import LensAuditError
from lensaudit.models.checkpoint import Checkpoint, config_of, load_tokenizer, open_checkpoint
from lensaudit.models.hashing import looking
from lensaudit.models.registry import load_registry, resolve
from lensaudit.models.sizes import context_of
from lensaudit.once import once
from lensaudit.settings import Place, Seam


@once
def files_of(*names: str) -> Checkpoint | None:
    """The first of some models whose files lie in folders here; None where none does."""
    for name in names:
        with suppress(LensAuditError), looking():
            if (spec := resolve(name, load_registry())).is_here:
                return open_checkpoint(spec, allow_packed=True)
    return None


def files_behind(spec: Spec, name: str) -> Checkpoint | None:
    """The files of a name, else of the model that a cache says it was made of.

    None where they are not at hand, or where the cache was made of a bridge.
    """
    made_of = spec.provenance.get("model")
    return files_of(name, str(made_of)) if made_of else None


def is_of_weights(spec: Spec, files: Checkpoint) -> bool:
    """Whether a cache was made of these weights, read by this tokenizer."""
    made = spec.fingerprint  # in memory weights are called otherwise: `cache_prompts` says both
    wanted = spec.provenance.get("files", [made.weights, made.tokenizer])
    return wanted == [files.weights, files.tokenizer]


def is_of_rows(spec: Spec, data: Place, files: Checkpoint) -> bool:
    """Whether a cache holds the rows that `data` has now, chosen as for the cache.

    `lensaudit patch --seam` is in no provenance: any seam counts.
    """
    from lensaudit.activations.fill import encoded_hash  # imports torch, as do spans
    from lensaudit.data.spans import Encoded, encode
    from lensaudit.data.tofu import forget_set

    tokenizer, context = load_tokenizer(files), context_of(config_of(files))

    def hashed(rows: Sequence[Fact]) -> str:
        found = [encode(one, tokenizer, too_long=context.too_long) for one in rows]
        return encoded_hash([one for one in found if isinstance(one, Encoded)])

    recipe = spec.provenance
    with suppress(LensAuditError):  # rows that the recipe cannot be used on are others
        rows = forget_set(str(data), exclude=recipe.get("exclude") or (), limit=recipe["limit"])
        seams = (rows, *([replace(one, seam=seam) for one in rows] for seam in get_args(Seam)))
        return any(hashed(one) == spec.fingerprint.examples for one in seams)
    return False
