"""One answer to one question of one set of weights: generating is a third of what the tests do.

What a bridge generates follows from its weights, its configuration and the tokens of the batch.
A batch that a process of the run asked before is answered from what was said then, to the last
token; where anything hooks the model, or its weights are not all there, it is generated.
"""

import functools
import hashlib
import json
import os
import sys
from pathlib import Path

from support.bridges import has_hooks, weights_hash


def key_of(model, prompts, more) -> str | None:
    """What a batch's answers depend on; None where that is not known."""
    inner = model.original_model
    weights = weights_hash(inner)
    if weights is None or has_hooks(model) or model.training:
        return None
    parts = (type(inner).__name__, inner.config.to_json_string(), weights, prompts, more)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def share_answers(folder: Path) -> None:
    """From now on, in this process and in those that name the folder: `patching.asking` alone."""
    module = sys.modules.get("lensaudit.patching.asking")
    if module is None or hasattr(module.generate, "shared"):
        return
    for name in ("generate", "as_guessed"):
        setattr(module, name, _shared(getattr(module, name), folder))


def _shared(said_by, folder: Path):
    """Of a way to generate, which is asked once for what was asked before."""

    @functools.wraps(said_by)
    def shared(model, *asked, **how):
        given = [[tuple(ids) for ids in one] for one in asked]
        key = key_of(model, given, sorted(how.items()))
        place = folder / f"{key}.json"
        if key is not None and place.exists():
            return [tuple(ids) for ids in json.loads(place.read_text())]
        said = said_by(model, *asked, **how)
        if key is not None:
            whole = place.with_suffix(f".{os.getpid()}")
            whole.write_text(json.dumps(said))
            whole.rename(place)
        return said

    shared.shared = True
    return shared
