"""Which facts to keep are scored beside the forget set, and against which model?"""

from collections.abc import Sequence
from typing import Any

from lensaudit.auditing.settings import PatchSettings
from lensaudit.data.kept import kept_facts
from lensaudit.data.tofu import FORGET10
from lensaudit.errors import InputError
from lensaudit.models.checkpoint import Checkpoint, open_checkpoint
from lensaudit.models.registry import load_registry, resolve
from lensaudit.patching.audit import Audit
from lensaudit.patching.bench import Bench
from lensaudit.patching.collateral import Anchored, anchored, collateral_of, family_base
from lensaudit.patching.outcome import Outcome


def kept_beside(settings: PatchSettings, audit: Audit) -> list[Anchored]:
    """The sets that `--also` names, with their anchors; nothing is loaded.

    Raises:
        InputError: a set, a file or the base is wrong, or the score has no such part.
    """
    if not settings.also:
        if settings.base is not None:
            raise InputError("--base: is the anchor of --also; name facts to keep with it")
        return []
    if settings.score != "uds" or settings.component != "resid":
        raise InputError("--also: needs --score uds and --component resid")
    data = audit.chosen.data if audit.chosen else FORGET10
    kept = [kept_facts(one, data, limit=settings.limit) for one in settings.also]
    return anchored(kept, _base(settings, list(audit.sources)), audit.full)


def _base(settings: PatchSettings, sources: Sequence[str]) -> Checkpoint | None:
    """The model before fine-tuning; None where none is known."""
    if settings.base is None:
        return family_base(sources)
    return open_checkpoint(resolve(settings.base, load_registry(settings.registry)))


def with_collateral(
    bench: Bench, sets: Sequence[Anchored], outcomes: Sequence[Outcome]
) -> dict[str, dict[str, Any]]:
    """Source -> the part `collateral` of its summary; empty without `--also`."""
    if not sets:
        return {one.source: {} for one in outcomes}
    found = collateral_of(bench, sets, outcomes)
    return {source: {"collateral": by_set} for source, by_set in found.items()}
