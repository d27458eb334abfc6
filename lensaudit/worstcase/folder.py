"""From a model's name to a finished folder: what `lensaudit worst` and `la.worst` do."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lensaudit.auditing.calls import door, notice
from lensaudit.errors import InputError
from lensaudit.files import digest, slug, write_csv, write_json, write_jsonl
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.results import keyed
from lensaudit.results.records import manifest
from lensaudit.results.worst import shown_worst
from lensaudit.settings import plain, results_folder
from lensaudit.worstcase.attacks import chosen
from lensaudit.worstcase.outcome import (
    FACTS,
    AttackRow,
    evidence_rows,
    fact_rows,
    matrix_rows,
    outcome_of,
    summary_of,
)
from lensaudit.worstcase.run import Planned, Worst, open_worst, plan_of, run_all
from lensaudit.worstcase.settings import WorstSettings

FILES = ("facts.csv", "matrix.csv", "attacks.csv", "evidence.jsonl", "summary.json")


@dataclass(frozen=True)
class WorstResult:
    """Which facts come out of one model, and where it is written."""

    source: str
    folder: Path
    """Holds manifest.json, summary.json, facts.csv, matrix.csv, attacks.csv, evidence.jsonl."""
    summary: Mapping[str, Any]
    """The content of summary.json."""

    @property
    def headline(self) -> str:
        """The finding, in words."""
        return self.summary["headline"]

    @property
    def excess(self) -> float:
        """Share of facts that come out, in excess of the control arm's."""
        return self.summary["excess"]

    @property
    def ci95(self) -> tuple[float, float] | None:
        """Interval of the excess, by authors; None: see the summary's `no_interval`."""
        ends = self.summary["ci95"]
        return None if ends is None else (ends[0], ends[1])

    @property
    def named(self) -> tuple[int, ...]:
        """Idx of the facts that are named."""
        return tuple(self.summary["named"])

    @property
    def unscored(self) -> Mapping[int, str]:
        """Idx -> why a fact was not asked."""
        return {int(idx): why for idx, why in self.summary["unscored"].items()}


def plan_worst(source: str, settings: WorstSettings, *, notice: Notice = unheard) -> Planned:
    """What a run would compute; nothing is loaded or written.

    Raises:
        InputError: as `worst_into`.
    """
    return plan_of(_opened(source, settings, notice))


def _opened(source: str, settings: WorstSettings, notice: Notice) -> Worst:
    return open_worst(source, settings, chosen(settings.tier, settings.attack), notice=notice)


def worst_into(
    source: str,
    settings: WorstSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> WorstResult:
    """Run the attacks on the source, on `full` and on the control arm; write what came out.

    Args:
        source: name, Hub id or folder.
        settings: how.
        folder: of the results; None: experiments/out/worst-<source>.
        notice: told remarks.
        progress: told what is done.

    Raises:
        InputError: before any work.
        WorkError: logits are not finite.
    """
    started = time.monotonic()
    worst = _opened(source, settings, notice)
    out = folder or results_folder() / f"worst-{slug(source)}"
    key = digest(worst.identity())
    keyed.check_own(out, key)
    if keyed.finished(out, key) and not settings.fresh:
        notice(f"{out} holds this run already; nothing to do")
        return WorstResult(source, out, shown_worst(out / "summary.json"))
    keyed.begin(out, key)
    summary = _write(worst, settings, out, progress)
    inputs = {**worst.identity(), **worst.inputs()}
    made = manifest(
        "worst",
        options=plain(settings, without=("fresh",)),
        inputs=inputs,
        device=worst.audit.options.device,
        started=started,
    )
    keyed.seal(out, made, key=key, files=FILES)
    return WorstResult(source, out, summary)


def _write(worst: Worst, settings: WorstSettings, out: Path, progress: Tell) -> dict[str, Any]:
    found = run_all(worst, progress=progress)
    outcome = outcome_of(worst, found)
    own = found[worst.source[1].weights]
    tier = settings.tier if not settings.attack else "named"
    summary = summary_of(worst, outcome, tier)
    write_csv(out / "facts.csv", FACTS, fact_rows(outcome))
    names = [one.name for one in worst.attacks]
    write_csv(out / "matrix.csv", ("idx", *names), matrix_rows(worst, outcome, own))
    columns = [one.name for one in fields(AttackRow)]
    rows = [[getattr(row, name) for name in columns] for row in outcome.attacks]
    write_csv(out / "attacks.csv", columns, rows)
    write_jsonl(out / "evidence.jsonl", evidence_rows(worst, own))
    write_json(out / "summary.json", summary)
    return summary


@door(WorstSettings)
def worst(
    source: tuple[str, ...], settings: WorstSettings, out: Path | None, progress: Tell
) -> Sequence[WorstResult]:
    """Which facts come out of a model by any of a list of attacks, beside models that never knew.

    As `lensaudit worst`: `out` is experiments/out/worst-<source>, and anchors and forget set are
    those of the model's family where none is named.

    >>> found = la.worst("demo/npo", retain=["demo/retain", "demo/never"])  # doctest: +SKIP
    >>> found.headline, found.excess, found.named  # doctest: +SKIP
    """
    if out is not None and len(source) > 1:
        raise InputError("la.worst: several models and one folder; call it once for each")
    return [worst_into(one, settings, out, notice=notice, progress=progress) for one in source]
