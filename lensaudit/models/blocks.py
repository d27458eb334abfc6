"""The decoder block of a tensor, by the tensor's name."""

import re

_BLOCK = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")


def block_of(name: str) -> int | None:
    """The decoder block that a tensor belongs to; None: to none.

    >>> block_of("model.layers.11.mlp.up_proj.weight"), block_of("model.norm.weight")
    (11, None)
    """
    found = _BLOCK.search(name)
    return None if found is None or "vision" in name else int(found[1])


def block_name(name: str) -> str:
    """The module that holds a block, from one of its tensors.

    >>> block_name("model.layers.11.mlp.up_proj.weight")
    'model.layers.11'
    """
    found = _BLOCK.search(name)
    assert found is not None
    return name[: found.end(1)]
