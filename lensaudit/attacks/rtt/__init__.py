"""Does retraining on some facts bring back others? Retraining on T, measured on V.

RTT, "retraining on T" (arXiv:2410.08827): facts are independent of each other and all of them were
unlearned. An attacker who knows some (T) fine-tunes the model on them; what it then says about the
others (V) was hidden and not taught. `run(Study(...))` fills a log, `summarize(log)` reads it.
"""

import importlib
from typing import Any

_PUBLIC = {
    "defects": ("Defect", "Inspection", "handled", "inspect"),
    "items": ("Dataset", "Draft", "Item", "McqSplit", "make_dataset"),
    "log": ("Log", "read_log"),
    "mcq": ("load_mcq", "save_mcq"),
    "retrain": ("Sweep",),
    "study": ("Gate", "Study", "StudySubject", "from_checkpoint", "in_memory"),
    "summary": ("Summary", "summarize"),
    "tofu": ("load_facts", "split_by_author"),
    "work": ("plan_of", "run"),
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a name when it is used: the settings of the room are read without torch."""
    if name not in _MODULES:
        raise AttributeError(f"{__name__} has no {name}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
