"""How often do samples of free text give a fact away, beyond what models that never knew say?"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lensaudit.attacks.elicit import AttackedModel, chosen
from lensaudit.attacks.settings import SampleSettings
from lensaudit.attacks.worst import Worst, arm_of, in_folder, open_worst, place_of
from lensaudit.data.facts import Fact, read_rows, row_problems, sound_rows
from lensaudit.data.matching import mentions
from lensaudit.errors import InputError
from lensaudit.files import write_csv, write_jsonl
from lensaudit.groups import grouped
from lensaudit.models.generation import Choose
from lensaudit.patching.exposure import sample
from lensaudit.progress import Notice, Progress, Tell, unheard
from lensaudit.results.keyed import planned
from lensaudit.results.kinds.sample import LeakRow, SampleRecord
from lensaudit.results.records import RunResult
from lensaudit.scores.intervals import clustered_excess
from lensaudit.scores.naming import Errors, leak_at_k, leak_corrected, never_hit_bound
from lensaudit.settings import plain
from lensaudit.steer.draws import draws_of

COMMAND = "sample"
FILES = ("leak.csv", "facts.csv", "samples.jsonl", "summary.json")
KS = (1, 8, 64)
_LOW = -1e30
"""A logit that is never drawn, and still finite."""


@dataclass(frozen=True)
class SamplerSetting:
    """One setting of the sampler."""

    temperature: float
    top_p: float


def open_sample(
    source: str, settings: SampleSettings, *, notice: Notice = unheard
) -> tuple[Worst, Errors | None]:
    """The models and facts of a run, checked; the matcher's errors where labels are named.

    Raises:
        InputError: a name, a file or a setting is wrong.
    """
    opened = open_worst(source, settings, chosen("full", ("greedy",)), notice=notice)
    errors = None if settings.labels is None else errors_of(Path(settings.labels))
    return opened, errors


def errors_of(path: Path) -> Errors:
    """Sensitivity and specificity of the matcher on labelled texts.

    Raises:
        InputError: rows are not labelled texts, one kind of label is missing, or the matcher is no
            better than a coin on them.
    """
    wanted = "wanted rows with text, entity and label (1 or true: the text gives the entity away)"
    rows, problems = read_rows(path)
    labelled = sound_rows(
        rows,
        str(path),
        wanted,
        _problems,
        lambda row, _: (bool(row["label"]), mentions(row["text"], row["entity"])),
        problems=problems,
        own_idx=False,
    )
    found = grouped(labelled)
    if len(found) < 2:
        raise InputError(f"{path}: holds one kind of label only; {wanted}")
    try:
        return Errors(float(np.mean(found[True])), 1 - float(np.mean(found[False])))
    except ValueError as error:
        raise InputError(f"{path}: {error}; its labels cannot correct the matcher") from error


def _problems(row: Any) -> list[str]:
    """What is wrong with one labelled text."""
    if problems := row_problems(row, ("text", "entity")):
        return problems
    if not re.search(r"\w", row["entity"]):
        problems.append("an entity without a word")
    return problems if row.get("label") in (0, 1) else [*problems, "no label of 0 or 1"]


def settings_grid(settings: SampleSettings) -> list[SamplerSetting]:
    """Every temperature with every top-p."""
    return [
        SamplerSetting(temperature, top_p)
        for temperature in dict.fromkeys(settings.temperature or (1.0,))
        for top_p in dict.fromkeys(settings.top_p or (1.0,))
    ]


def nucleus(logits: torch.Tensor, how: SamplerSetting) -> torch.Tensor:
    """Logits of the smallest set of tokens that holds `top_p` of the tempered distribution.

    The others are set so low that they are never drawn; the likeliest token always stays.
    """
    if how.top_p >= 1:
        return logits
    ranked, order = (logits.double() / how.temperature).softmax(-1).sort(-1, descending=True)
    # a token stays if what is ranked before it does not fill the share yet
    outside = (ranked.cumsum(-1) - ranked) >= how.top_p
    return logits.masked_fill(torch.zeros_like(outside).scatter(-1, order, outside), _LOW)


def drawing(fact: Fact, how: SamplerSetting, n: int, n_steps: int, seed: int) -> Choose:
    """How a fact's rows draw: each has numbers of its own, the same for every model."""
    keys = [f"{fact.idx}/{fact.question}/{number}" for number in range(n)]
    draws = draws_of(keys, n_steps=n_steps, seed=seed, temperature=how.temperature)

    def choose(logits: Any, row: Any, step: int) -> Any:
        return draws(nucleus(logits, how), row, step)

    return choose


def sample_into(
    source: str,
    settings: SampleSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
) -> RunResult:
    """Sample answers of the source and of the control arm, and write their leak@k.

    Args:
        source: name, Hub id or folder.
        settings: how.
        folder: of the results; None: experiments/out/sample-<source>.
        notice: told remarks.
        progress: told what is done.

    Raises:
        InputError: before any work.
        WorkError: logits are not finite.
    """
    out = place_of(COMMAND, source, folder)
    opened, errors = open_sample(source, settings, notice=notice)
    identity = identity_of(opened, settings, errors)
    said = cache(lambda: _said_by_all(opened, settings, progress))

    def work() -> SampleRecord:
        return _written(opened, settings, errors, said(), out)

    record = in_folder(opened, settings, out, identity, FILES, SampleRecord, work, said)
    return RunResult(source, out, record)


def identity_of(opened: Worst, settings: SampleSettings, errors: Errors | None) -> dict[str, Any]:
    """What tells a run from others."""
    return {
        "command": COMMAND,
        "weights": [one.weights for one in (opened.models.source, *opened.models.never)],
        "facts": opened.facts_hash(opened.facts),
        "settings": plain(settings, without=("full", "activations", "registry", "device", "fresh")),
        "errors": None if errors is None else asdict(errors),
        "dtype": opened.audit.settings.dtype,
    }


def plan_sample(
    source: str, settings: SampleSettings, folder: Path | None = None, *, notice: Notice = unheard
) -> str:
    """What `sample_into` would do, as text; of a finished run nothing.

    Raises:
        InputError: as the run would.
    """
    out = place_of(COMMAND, source, folder)
    opened, errors = open_sample(source, settings, notice=notice)
    identity = identity_of(opened, settings, errors)
    return planned(out, identity, lambda: plan_text(opened, settings), fresh=settings.fresh)


Texts = Mapping[SamplerSetting, Mapping[int, list[str]]]
"""By setting and idx, what was sampled."""


def _said_by_all(
    opened: Worst, settings: SampleSettings, progress: Tell
) -> dict[str, dict[SamplerSetting, dict[int, list[str]]]]:
    """By weights; what the ledgers hold is not drawn again."""
    arms = {one.weights: one for one in (opened.models.source, *opened.models.never)}
    found: dict[str, dict[SamplerSetting, dict[int, list[str]]]] = {}
    wanted = list(product(settings_grid(settings), opened.asked))
    for number, (weights, checkpoint) in enumerate(arms.items()):
        ledger = opened.ledger(
            "samples",
            checkpoint,
            n=settings.n,
            max_new_tokens=settings.max_new_tokens,
            seed=settings.seed,
        )
        known = {
            (SamplerSetting(row["temperature"], row["top_p"]), row["idx"]): row["said"]
            for row in (() if settings.fresh else ledger.rows)
        }
        arm: AttackedModel | None = None
        for done, (how, fact) in enumerate(wanted, number * len(wanted) + 1):
            if (how, fact.idx) not in known:
                arm = arm or arm_of(opened, checkpoint, checkpoint)
                n, longest = settings.n, settings.max_new_tokens
                choose = drawing(fact, how, n, longest, settings.seed)
                said = sample(
                    arm.reader, arm.ids(arm.asked(fact)), n, choose, max_new_tokens=longest
                )
                ledger.append([{"idx": fact.idx, **asdict(how), "said": said}])
                known[how, fact.idx] = said
                progress(Progress("sampling", done, len(arms) * len(wanted)))
            found.setdefault(weights, {}).setdefault(how, {})[fact.idx] = known[how, fact.idx]
        if settings.fresh:
            ledger.keep_last(lambda row: (row["temperature"], row["top_p"], row["idx"]))
    return found


def _written(
    opened: Worst,
    settings: SampleSettings,
    errors: Errors | None,
    said: Mapping[str, Texts],
    out: Path,
) -> SampleRecord:
    facts, own = opened.asked, said[opened.models.source.weights]
    retains = [said[one.weights] for one in opened.models.never]
    ks = sorted(set(settings.k or KS))
    rows, counts, specificity = [], [], {}
    for how in settings_grid(settings):
        specificity[how] = specificity_of(facts, own[how])
        hits, others = hits_of(facts, own[how]), [hits_of(facts, one[how]) for one in retains]
        assumed = errors or Errors(1.0, max(specificity[how], 1e-9))
        rows += [leak_row(how, k, settings.n, hits, others, facts, errors, assumed) for k in ks]
        for at, fact in enumerate(facts):
            control = float(np.mean([one[at] for one in others]))
            counts.append(
                [
                    fact.idx,
                    fact.group,
                    how.temperature,
                    how.top_p,
                    settings.n,
                    hits[at],
                    control,
                    next((s for s in own[how][fact.idx] if mentions(s, fact.entity)), ""),
                ]
            )
    columns = list(LeakRow.__dataclass_fields__)
    write_csv(out / "leak.csv", columns, map(attrgetter(*columns), rows))
    header = ("idx", "group", "temperature", "top_p", "n", "hits", "retain_hits", "said")
    write_csv(out / "facts.csv", header, counts)
    write_jsonl(
        out / "samples.jsonl",
        (
            {"idx": idx, **asdict(how), "said": texts}
            for how, by_idx in own.items()
            for idx, texts in by_idx.items()
        ),
    )
    return SampleRecord(
        source=opened.name,
        retain=opened.retains,
        data=str(opened.audit.settings.data),
        n=len(opened.facts),
        n_scored=len(facts),
        authors=len({fact.group for fact in facts}),
        unscored={
            str(one.idx): opened.unscored[one.idx]
            for one in opened.facts
            if one.idx in opened.unscored
        },
        samples=settings.n,
        leak=rows,
        errors=None if errors is None else asdict(errors),
        specificity=[{**asdict(how), "specificity": value} for how, value in specificity.items()],
        never_hit_bound=never_hit_bound(settings.n, len(facts)),
    )


def hits_of(facts: Sequence[Fact], said: Mapping[int, Sequence[str]]) -> list[int]:
    """Samples of each fact that give its entity away."""
    return [sum(mentions(text, fact.entity) for text in said[fact.idx]) for fact in facts]


def specificity_of(facts: Sequence[Fact], said: Mapping[int, Sequence[str]]) -> float:
    """Share of other authors' samples that the matcher does not take for a fact's entity.

    One other author's fact for each, the next in order: as many texts as were sampled.
    """
    wrong: list[bool] = []
    for at, fact in enumerate(facts):
        later = [*facts[at + 1 :], *facts[:at]]
        other = next((one for one in later if one.group != fact.group), None)
        if other is not None:
            wrong += [mentions(text, fact.entity) for text in said[other.idx]]
    return 1 - sum(wrong) / len(wrong) if wrong else 1.0


def leak_row(
    how: SamplerSetting,
    k: int,
    n: int,
    hits: Sequence[int],
    others: Sequence[Sequence[int]],
    facts: Sequence[Fact],
    errors: Errors | None,
    assumed: Errors,
) -> LeakRow:
    """One row of leak.csv.

    Args:
        how: the sampler's setting.
        k: samples that one may hit of.
        n: samples drawn of each fact.
        hits: of the source, by fact.
        others: of each model of the control arm.
        facts: whose authors the interval is by.
        errors: of the matcher, where labels are known.
        assumed: those that the false leak is reckoned from.
    """
    false_leak, place = assumed.false_leak(k), (how.temperature, how.top_p, k)
    if k > n:
        why, unread = f"k is more than {n} samples", (None,) * 6
        return LeakRow(*place, *unread, false_leak=false_leak, reason=why)
    own = np.array([leak_at_k(n, c, k) for c in hits])
    control = np.mean([[leak_at_k(n, c, k) for c in one] for one in others], axis=0)
    excess = clustered_excess(own, control, [fact.group for fact in facts])
    corrected = None
    if errors is not None:
        true = np.mean([leak_corrected(n, c, k, errors) for c in hits])
        guessed = np.mean([[leak_corrected(n, c, k, errors) for c in one] for one in others])
        corrected = float(true - guessed)
    return LeakRow(
        *place,
        source=float(own.mean()),
        retain=float(control.mean()),
        excess=excess.value,
        low=excess.low,
        high=excess.high,
        corrected=corrected,
        false_leak=false_leak,
        reason=excess.why,
    )


def plan_text(opened: Worst, settings: SampleSettings) -> str:
    """Plan of the sampling, as text."""
    arms, grid = 1 + len(opened.models.never), settings_grid(settings)
    rows = arms * len(grid) * len(opened.asked) * settings.n
    return (
        f"{len(opened.asked)} facts ({len(opened.facts) - len(opened.asked)} unscored), "
        f"{settings.n} samples, {len(grid)} settings, {arms} models: {rows} answers of at most "
        f"{settings.max_new_tokens} tokens, at most {rows * settings.max_new_tokens} tokens in "
        f"{arms * len(grid) * len(opened.asked) * settings.max_new_tokens} forwards"
    )
