"""The embedded family: what its models still hold, and what they say of their own accord."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from lensaudit.auditing.patch import Patched, patch_into
from lensaudit.auditing.progress import Notice, Tell, unheard
from lensaudit.auditing.settings import PatchSettings
from lensaudit.data.spans import make_batch
from lensaudit.data.tofu import DEMO as DATA
from lensaudit.data.tofu import forget_set
from lensaudit.errors import WorkError
from lensaudit.models.bridge import load, logits_of
from lensaudit.models.checkpoint import open_checkpoint
from lensaudit.models.registry import DEMO, is_demo, load_registry, resolve
from lensaudit.patching.prepare import encode_all
from lensaudit.results.words import ERASED_FROM, HIDDEN_BELOW
from lensaudit.scores.depth import span_logprob
from lensaudit.settings import ACTIVATIONS, Place

FULL, RETAIN = f"{DEMO}full", f"{DEMO}retain"
SILENT_NATS = 1.0
"""A model counts as not saying the answers when their log-prob is this far below that of full."""


@dataclass(frozen=True)
class Demo:
    """The family, audited."""

    patched: Patched
    says: Mapping[str, float]
    """Model -> mean log-prob it gives the forgotten answers by itself, nats per token."""

    @property
    def hidden(self) -> list[str]:
        """Models that stopped saying the answers and still hold them."""
        silent = self.says[FULL] - SILENT_NATS
        return [
            one.source
            for one in self.patched.results
            if one.uds is not None and one.uds < HIDDEN_BELOW and self.says[one.source] < silent
        ]

    @property
    def erased(self) -> list[str]:
        """Models without the answers."""
        return [
            one.source
            for one in self.patched.results
            if one.uds is not None and one.uds >= ERASED_FROM
        ]


def demo_into(
    folder: Path,
    *,
    activations: Place = ACTIVATIONS,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> Demo:
    """Audit every unlearned model of the family; the planted ones show the scale.

    Raises:
        WorkError: the package was built without the family.
    """
    names = [one.name for one in load_registry().listed("unlearned") if is_demo(one.name)]
    if not names:
        raise WorkError("this build of lensaudit has no embedded family; install a released one")
    settings = PatchSettings(profile="full", activations=activations)
    found = patch_into(names, settings, folder, notice=notice, progress=progress)
    return Demo(found, {name: said(name) for name in (FULL, RETAIN, *names)})


def said(name: str) -> float:
    """Mean log-prob a model gives the forgotten answers by itself, nats per token."""
    checkpoint = open_checkpoint(resolve(name, load_registry()))
    encoded, _ = encode_all(forget_set(DATA), checkpoint)
    batch = make_batch(encoded)
    with torch.no_grad():
        logits = logits_of(load(checkpoint), batch.tokens)
        return float(span_logprob(logits, batch.tokens, batch.predict_at).mean())
