"""Is unlearned knowledge gone, or only hidden? An audit of language models from inside.

The names below are the Python API; each is loaded when it is first used, so that importing the
package costs nothing.

    import lensaudit as la

    full = la.load_model("demo/full")
    cache = la.open_activations("demo/npo")
    with la.intervening(full, {8: la.replace_at(stream, mask)}):
        logits = la.logits_of(full, tokens)
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    # models
    "load_model": "lensaudit.models.named",
    "bridge_from": "lensaudit.models.bridge",
    "residuals": "lensaudit.models.bridge",
    "logits_of": "lensaudit.models.bridge",
    "intervening": "lensaudit.models.bridge",
    # data
    "Example": "lensaudit.data.examples",
    "load_examples": "lensaudit.data.examples",
    "forget_set": "lensaudit.data.tofu",
    "Batch": "lensaudit.data.spans",
    "Encoded": "lensaudit.data.spans",
    "encode": "lensaudit.data.spans",
    "make_batch": "lensaudit.data.spans",
    # activations
    "ActivationStore": "lensaudit.activations.store",
    "open_activations": "lensaudit.activations.store",
    # interventions
    "add": "lensaudit.patching.interventions",
    "clamp": "lensaudit.patching.interventions",
    "project_out": "lensaudit.patching.interventions",
    "replace_at": "lensaudit.patching.interventions",
    # patched scores and text
    "baseline": "lensaudit.patching.oracle",
    "patched": "lensaudit.patching.oracle",
    "layer_deltas": "lensaudit.patching.oracle",
    "patched_generation": "lensaudit.patching.generation",
    # scores
    "depth_score": "lensaudit.scores.depth",
    "span_logprob": "lensaudit.scores.depth",
    # what the commands do
    "audit": "lensaudit.auditing.doors",
    "patch": "lensaudit.auditing.doors",
    "evaluate": "lensaudit.auditing.doors",
    "cache": "lensaudit.auditing.doors",
    "effort": "lensaudit.attacks.effort.runs",
    "lens": "lensaudit.auditing.lens",
    "last_prompt": "lensaudit.auditing.last_prompt",
    "worst": "lensaudit.worstcase.folder",
    "show": "lensaudit.screen.show",
    "write_report": "lensaudit.report.render",
    "verify": "lensaudit.auditing.verify",
    "read_project": "lensaudit.project",
    # a patching run, step by step
    "prepare": "lensaudit.patching.prepare",
    "score_all": "lensaudit.patching.session",
    "load_registry": "lensaudit.models.registry",
}
"""Public name -> module that defines it."""

__all__ = ["__version__", *_PUBLIC]


_MODULES = ("frames", "plot")
"""Results as data frames, and pictures of them: `la.frames.layers(folder)`."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"lensaudit.results.{name}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'lensaudit' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
