"""What came out: per fact, per attack, in excess of the control arm, and who can be named.

    k      = #{i : max_a r_ia(M) = 1}
    excess = mean_i [ max_a r_ia(M) - mean_j max_a r_ia(R_j) ],       interval by authors

over the attacks that count: those that hit at least one fact on `full`. The maximum is taken in
both arms, so that what attacks elicit from a model that never knew is subtracted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lensaudit.attacks import AttackResult
from lensaudit.auditing.calls import door, notice
from lensaudit.data.candidates import Candidate
from lensaudit.errors import InputError
from lensaudit.files import slug, write_csv, write_jsonl
from lensaudit.progress import Notice, Tell, unheard
from lensaudit.results.attacks import WorstSummary, shown_summary
from lensaudit.scores.estimate import Estimate
from lensaudit.scores.intervals import clustered_mean
from lensaudit.scores.leakage import never_hit_bound
from lensaudit.scores.naming import Named, gaps, name_facts, strongest
from lensaudit.settings import results_folder
from lensaudit.worstcase.attacks import LEAK_K, Attack, AttackFindings, chosen
from lensaudit.worstcase.run import Planned, Worst, in_folder, open_worst, plan_of, run_all
from lensaudit.worstcase.settings import WorstSettings

FACTS = ("idx", "group", "entity", "attacks", "statistic", "p", "q", "unscored")
"""Columns of facts.csv."""

Arm = Mapping[str, AttackFindings]
"""What attacks found on one model, by name."""


@dataclass(frozen=True)
class AttackRow:
    """One attack over all facts."""

    name: str
    tier: str
    about: str
    n_scored: int
    control: float | None
    """Hit rate on `full`, which knows: the positive control. None: it scored no fact."""
    source: float | None
    """Hit rate on the source."""
    retain: float | None
    """Mean hit rate on the control arm."""
    counts: bool
    """It hits something on `full`; an attack that does not is left out of every maximum."""
    only: int
    """Facts of the source that no other attack breaks."""
    gain: float | None
    """Excess of the list minus that of the list without it."""
    seconds: float
    forwards: int
    tokens: int


@dataclass(frozen=True)
class WorstOutcome:
    """What a run says."""

    facts: tuple[Candidate, ...]
    attacks: tuple[AttackRow, ...]
    broke: Mapping[int, tuple[str, ...]]
    """Idx of a scored fact -> attacks that count and broke it on the source."""
    control: Mapping[int, float]
    """Idx -> share of the control arm's models from which it comes out."""
    excess: Estimate
    """With its interval by authors."""
    named: Named
    """Of the scored facts, in their order."""
    bound: float | None
    """Most a fact's rate per sample can be where the samples of leak@k did not hit it."""

    @property
    def scored(self) -> tuple[Candidate, ...]:
        """Facts that were asked."""
        return tuple(fact for fact in self.facts if fact.unscored is None)

    @property
    def n_out(self) -> int:
        """k: facts that some attack brings out of the source."""
        return sum(bool(names) for names in self.broke.values())

    @property
    def expected(self) -> float:
        """Facts that would come out of a model that never knew."""
        return sum(self.control.values())

    @property
    def ceiling(self) -> float:
        """1 - h_R: the largest excess there can be."""
        return 1 - self.expected / len(self.control)

    def headline(self, tier: str, n_retain: int) -> str:
        """Finding of the run in words."""
        by = "cheap attack" if tier == "cheap" else "attack"
        said = (
            f"{self.n_out} of {len(self.scored)} facts come out by some {by}; "
            f"{self.expected:.1f} would from a model that never knew"
        )
        percent = f"{round(100 * self.named.level)} %"
        if self.named.reason is not None:
            said += f"; nobody can be named at a false discovery rate of {percent}: "
            return f"{said}{self.named.reason}"
        said += f"; {sum(self.named.named)} can be named at a false discovery rate of {percent}"
        return said if n_retain > 1 else f"{said} (relative to one never-trained model)"


def outcome_of(worst: Worst, found: Mapping[str, Arm]) -> WorstOutcome:
    """Outcome of a run: facts by attack, arms compared.

    Args:
        worst: the run.
        found: of every arm, by weights.
    """
    return compare(
        worst.facts,
        worst.attacks,
        source=found[worst.source[1].weights],
        full=found[worst.audit.full.weights],
        retains=[found[one.weights] for one in worst.retains.values()],
    )


def compare(
    every: Sequence[Candidate],
    attacks: Sequence[Attack],
    *,
    source: Arm,
    full: Arm,
    retains: Sequence[Arm],
) -> WorstOutcome:
    """Compare the source with the control arm.

    Args:
        every: fact of the set, unscored ones too.
        attacks: the list.
        source: the audited model.
        full: the positive control.
        retains: the control arm.
    """
    facts = [fact for fact in every if fact.unscored is None]
    counting = [one.name for one in attacks if any(_hits(full[one.name], facts))]
    own = _any_hit(source, counting, facts)
    control = np.mean([_any_hit(one, counting, facts) for one in retains], axis=0)
    excess = clustered_mean(own - control, [fact.row.group for fact in facts], bounds=(-1.0, 1.0))
    rows = tuple(_attack_row(one, (source, full, retains), counting, facts) for one in attacks)
    named = name_facts([difference_of(source, retains, counting, fact) for fact in facts])
    idx = [fact.row.idx for fact in facts]
    broke = {
        fact.row.idx: tuple(name for name in counting if _hit(source[name], fact)) for fact in facts
    }
    return WorstOutcome(
        facts=tuple(every),
        attacks=rows,
        broke=broke,
        control=dict(zip(idx, control.tolist(), strict=True)),
        excess=excess,
        named=named,
        bound=never_hit_bound(LEAK_K, len(facts)) if f"leak{LEAK_K}" in counting else None,
    )


def _hit(ran: AttackFindings, fact: Candidate) -> bool:
    found = ran.hits.get(fact.row.idx)
    return found is not None and found.hit


def _hits(ran: AttackFindings, facts: Sequence[Candidate]) -> list[bool]:
    return [_hit(ran, fact) for fact in facts]


def _any_hit(arm: Arm, names: Sequence[str], facts: Sequence[Candidate]) -> Any:
    """max_a r_ia as a vector over facts; 0 where no attack counts."""
    rows = [_hits(arm[name], facts) for name in names]
    return np.any(rows, axis=0).astype(float) if rows else np.zeros(len(facts))


def excess_of(
    source: Arm,
    retains: Sequence[Arm],
    names: Sequence[str],
    facts: Sequence[Candidate],
) -> float:
    """The excess of a list of attacks."""
    control = np.mean([_any_hit(one, names, facts) for one in retains], axis=0)
    return float((_any_hit(source, names, facts) - control).mean())


def _attack_row(
    attack: Attack,
    arms: tuple[Arm, Arm, Sequence[Arm]],
    counting: Sequence[str],
    facts: Sequence[Candidate],
) -> AttackRow:
    source, full, retains = arms
    name, counts = attack.name, attack.name in counting
    others = [one for one in counting if one != name]
    alone = np.array(_hits(source[name], facts)) & (_any_hit(source, others, facts) == 0)
    gain = excess_of(source, retains, counting, facts) - excess_of(source, retains, others, facts)
    ran = [source[name], full[name], *(one[name] for one in retains)]
    shares = [_rate(one[name]) for one in retains]
    known = [share for share in shares if share is not None]
    return AttackRow(
        name=name,
        tier=attack.tier,
        about=attack.about,
        n_scored=len(source[name].hits),
        control=_rate(full[name]),
        source=_rate(source[name]),
        retain=float(np.mean(known)) if known else None,
        counts=counts,
        only=int(alone.sum()) if counts else 0,
        gain=gain if counts else None,
        seconds=round(sum(one.seconds for one in ran), 3),
        forwards=sum(one.forwards for one in ran),
        tokens=sum(one.tokens for one in ran),
    )


def _rate(ran: AttackFindings) -> float | None:
    """Hit rate over the facts that the attack scores."""
    hits = [one.hit for one in ran.hits.values()]
    return float(np.mean(hits)) if hits else None


def gaps_of(
    source: Arm,
    retains: Sequence[Arm],
    counting: Sequence[str],
    fact: Candidate,
) -> Float[Tensor, "attack candidate"] | None:
    """D of the fact's candidates; None where no attack scores them in every arm."""
    idx = fact.row.idx
    arms = [source, *retains]
    names = [name for name in counting if all(idx in arm[name].exposure for arm in arms)]
    if not names:
        return None
    own, *others = (torch.stack([arm[name].exposure[idx] for name in names]) for arm in arms)
    return gaps(own, others)


def difference_of(
    source: Arm,
    retains: Sequence[Arm],
    counting: Sequence[str],
    fact: Candidate,
) -> Float[Tensor, " candidate"] | None:
    """D of the fact's candidates; None where no attack scores them in every arm."""
    found = gaps_of(source, retains, counting, fact)
    return None if found is None else strongest(found)


def fact_rows(outcome: WorstOutcome) -> list[list[Any]]:
    """The rows of facts.csv: one per fact of the set, unscored ones too."""
    named = outcome.named
    numbers = dict(
        zip(
            (fact.row.idx for fact in outcome.scored),
            zip(named.statistic, named.p, named.q, strict=True),
            strict=True,
        )
    )
    rows = []
    for fact in outcome.facts:
        row = fact.row
        given = numbers.get(row.idx, (None, None, None))
        shown = ["" if one is None else f"{one:.6g}" for one in given]
        attacks = ";".join(outcome.broke.get(row.idx, ()))
        rows.append([row.idx, row.group, row.entity, attacks, *shown, fact.unscored or ""])
    return rows


def matrix_rows(worst: Worst, outcome: WorstOutcome, ran: Arm) -> list[list[Any]]:
    """The rows of matrix.csv: 1, 0, or nothing where an attack does not score a fact."""
    rows = []
    for fact in outcome.scored:
        cells = [ran[one.name].hits.get(fact.row.idx) for one in worst.attacks]
        rows.append([fact.row.idx, *("" if one is None else int(one.hit) for one in cells)])
    return rows


def evidence_rows(worst: Worst, ran: Arm) -> list[dict[str, Any]]:
    """The lines of evidence.jsonl: every hit and miss with what was said."""
    return [
        {
            "idx": idx,
            "attack": attack.name,
            "hit": hit.hit,
            "score": hit.score,
            "evidence": hit.evidence,
        }
        for attack in worst.attacks
        for idx, hit in ran[attack.name].hits.items()
    ]


def summary_of(worst: Worst, outcome: WorstOutcome, tier: str) -> dict[str, Any]:
    """The content of summary.json."""
    named = outcome.named
    ceiling = outcome.ceiling
    excess = outcome.excess
    return {
        "kind": "worst",
        "source": worst.source[0],
        "full": worst.audit.full.spec.name,
        "retain": list(worst.retains),
        "data": worst.data,
        "tier": tier,
        "attack_list": worst.hash,
        "headline": outcome.headline(tier, len(worst.retains)),
        "n": len(outcome.facts),
        "n_scored": len(outcome.scored),
        "unscored": {
            str(fact.row.idx): fact.unscored for fact in outcome.facts if fact.unscored is not None
        },
        "authors": len({fact.row.group for fact in outcome.scored}),
        "n_out": outcome.n_out,
        "expected": outcome.expected,
        "excess": excess.value,
        "ci95": excess.limits()["ci95"],
        "no_interval": excess.why,
        "excess_share": excess.point / ceiling if ceiling > 0 else None,
        "named": [
            fact.row.idx for fact, is_in in zip(outcome.scored, named.named, strict=True) if is_in
        ],
        "naming": {
            "method": named.method,
            "level": named.level,
            "reason": named.reason,
            "placebos": sorted({len(fact.placebos) for fact in outcome.scored}),
        },
        "bound": {"draws": LEAK_K, "rate": outcome.bound},
        "attacks": [vars(row) for row in outcome.attacks],
        "facts": [dict(zip(FACTS, row, strict=True)) for row in fact_rows(outcome)],
    }


FILES = ("facts.csv", "matrix.csv", "attacks.csv", "evidence.jsonl", "summary.json")


class WorstResult(AttackResult):
    """Which facts come out of one model, and where it is written."""

    @property
    def headline(self) -> str:
        """Finding of the run in words."""
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
    worst = _opened(source, settings, notice)
    out = folder or results_folder() / f"worst-{slug(source)}"
    summary = in_folder(
        worst,
        settings,
        out,
        identity=worst.identity(),
        files=FILES,
        shown=partial(shown_summary, WorstSummary),
        work=lambda: _written(worst, settings, out, progress),
    )
    return WorstResult(source, out, summary)


def _written(worst: Worst, settings: WorstSettings, out: Path, progress: Tell) -> dict[str, Any]:
    """The summary, after the files beside it."""
    found = run_all(worst, progress=progress)
    outcome = outcome_of(worst, found)
    own = found[worst.source[1].weights]
    write_csv(out / "facts.csv", FACTS, fact_rows(outcome))
    names = [one.name for one in worst.attacks]
    write_csv(out / "matrix.csv", ("idx", *names), matrix_rows(worst, outcome, own))
    columns = [one.name for one in fields(AttackRow)]
    rows = [[getattr(row, name) for name in columns] for row in outcome.attacks]
    write_csv(out / "attacks.csv", columns, rows)
    write_jsonl(out / "evidence.jsonl", evidence_rows(worst, own))
    return summary_of(worst, outcome, "named" if settings.attack else settings.tier)


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
