"""Which auditor is right? Models whose truth is planted and proven, and what auditors say of them.

A recipe plants a truth, an auditor guesses it; either is one decorated function:

    @recipe("scaled", truth="hidden", how="all logits a tenth of what they were")
    def scaled(ground, strength): ...

    @auditor("greedy", reads="outputs", high_means="knows", source="...")
    def greedy(case): ...
"""

import importlib
from typing import Any

_PUBLIC = {
    "registry": ("recipe", "recipes", "Recipe", "Planted"),
    "claims": ("Untouched", "Undone", "Asked", "NeverSaw", "Says", "Rounds", "Certificate"),
    "ground": ("Ground",),
    "auditors": ("auditor", "auditors", "Case", "Finding"),
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a name when it is used: the settings of the room are read without torch."""
    if name not in _MODULES:
        raise AttributeError(f"{__name__} has no {name}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
