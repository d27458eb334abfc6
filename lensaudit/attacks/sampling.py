"""How often do samples of free text give a fact away, beyond what models that never knew say?"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lensaudit.ask.again import folder_for, usual_place
from lensaudit.attacks.arm import AttackedModel
from lensaudit.attacks.elicit import chosen
from lensaudit.attacks.result import SAMPLE as COMMAND
from lensaudit.attacks.settings import SampleSettings
from lensaudit.attacks.worst import Worst, arm_of, in_folder, open_worst, told
from lensaudit.data.chat import Template, check_tokenizer
from lensaudit.data.facts import Fact
from lensaudit.data.matching import gives_away, mentions
from lensaudit.data.rows import read_rows, row_problems, sound_rows
from lensaudit.errors import InputError
from lensaudit.files import write_csv, write_jsonl
from lensaudit.groups import grouped
from lensaudit.kinds.sample import LeakRow, SampleRecord
from lensaudit.models.checkpoint import load_tokenizer
from lensaudit.models.generation import Choose
from lensaudit.models.stops import told_stops
from lensaudit.patching.speech import Answer, sample
from lensaudit.progress import Notice, Progress, Tell, unheard
from lensaudit.results.reading import SUMMARY
from lensaudit.results.recorded import planned
from lensaudit.results.run import RunResult
from lensaudit.results.run_folder import RunFolder
from lensaudit.scores.excess import clustered_excess
from lensaudit.scores.intervals import share_of, typical_size
from lensaudit.scores.sampled import Errors, leak_at_k, leak_corrected, never_hit_bound
from lensaudit.settings import plain
from lensaudit.steer.draws import draws_of

FILES = ("leak.csv", "facts.csv", "samples.jsonl", SUMMARY)
KS = (1, 8, 64)
NOISY = 0.2
"""Standard error from which a corrected excess is not given."""
RATES = 32
"""Rates at which the noise of a corrected leak is looked at."""
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
    if settings.think:
        for one in (opened.models.source, *opened.models.never):
            template = Template(think=settings.think)
            check_tokenizer(load_tokenizer(one), template, one.spec.name)
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
    return lambda logits, row, step: draws(nucleus(logits, how), row, step)


def sample_into(
    source: str,
    settings: SampleSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
    opened: Callable[[], None] = unheard,
) -> RunResult:
    """Sample answers of the source and of the control arm, and write their leak@k.

    Args:
        source: name, Hub id or folder.
        settings: how.
        folder: of the results; None: experiments/out/sample-<source>.
        notice: told remarks.
        progress: told what is done.
        opened: told once all names stand for something, before any work.

    Raises:
        InputError: before any work.
        WorkError: logits are not finite.
    """
    usual_place(COMMAND, source, folder)  # refused before anything is opened
    arms, errors = open_sample(source, settings, notice=notice)
    opened()
    run = _folder(arms, errors, source, settings, folder, notice)
    said = cache(lambda: _said_by_all(arms, settings, progress))
    record = in_folder(
        arms,
        settings,
        run,
        FILES,
        SampleRecord,
        lambda: _written(arms, settings, errors, said(), run.path),
        said,
    )
    return RunResult(source, run.path, record)


def _folder(
    opened: Worst,
    errors: Errors | None,
    source: str,
    settings: SampleSettings,
    folder: Path | None,
    tell: Notice,
) -> RunFolder:
    how = {**told(opened, settings), "force": settings.force, "tell": tell}
    return folder_for(COMMAND, source, folder, identity_of(opened, settings, errors), **how)


def identity_of(opened: Worst, settings: SampleSettings, errors: Errors | None) -> dict[str, Any]:
    """What tells a run from others."""
    arms = (opened.models.source, *opened.models.never)
    return {
        "command": COMMAND,
        "weights": [one.weights for one in arms],
        "tokenizers": [one.tokenizer for one in arms],
        "facts": opened.facts_hash(opened.facts),
        "settings": plain(settings, without=("full", "activations", "registry", "device", "fresh")),
        # earlier runs cut each fact's rate before the power
        "errors": None if errors is None else {**asdict(errors), "corrected": "unbiased"},
        "dtype": opened.audit.settings.dtype,
        **told_stops(*arms),
    }


def plan_sample(
    source: str, settings: SampleSettings, folder: Path | None = None, *, notice: Notice = unheard
) -> str:
    """What `sample_into` would do, as text; of a finished run nothing.

    Raises:
        InputError: as the run would.
    """
    usual_place(COMMAND, source, folder)  # refused before anything is opened
    opened, errors = open_sample(source, settings, notice=notice)
    run = _folder(opened, errors, source, settings, folder, notice)
    return planned(run, lambda: plan_text(opened, settings), fresh=settings.fresh)


Texts = Mapping[SamplerSetting, Mapping[int, list[Answer]]]
"""By setting and idx, what was sampled."""


def _said_by_all(
    opened: Worst, settings: SampleSettings, progress: Tell
) -> dict[str, dict[SamplerSetting, dict[int, list[Answer]]]]:
    """Sampled answers of all models, by weights; samples in the ledgers are not drawn again."""
    arms = {one.weights: one for one in (opened.models.source, *opened.models.never)}
    found: dict[str, dict[SamplerSetting, dict[int, list[Answer]]]] = {}
    think = {"think": settings.think} if settings.think else {}
    wanted = list(product(settings_grid(settings), opened.asked))
    for number, (weights, checkpoint) in enumerate(arms.items()):
        ledger = opened.ledger(
            "samples",
            checkpoint,
            n=settings.n,
            max_new_tokens=settings.max_new_tokens,
            seed=settings.seed,
            **think,
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
                asked = arm.ids(arm.asked(fact))
                prompt = arm.chatted(fact, settings.think) if settings.think else asked
                said = sample(arm.reader, prompt, n, choose, max_new_tokens=longest)
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
    n_lost = sum(
        one.count(None) for arm in said.values() for by in arm.values() for one in by.values()
    )
    if n_lost:
        opened.audit.notice(
            f"{n_lost} samples are not counted: their thought was cut at {settings.max_new_tokens} "
            "tokens; raise --max-new-tokens, or ask with --think empty"
        )
    for how in settings_grid(settings):
        lost = [[arm[how][fact.idx].count(None) for fact in facts] for arm in (own, *retains)]
        specificity[how] = specificity_of(facts, own[how])
        hits, others = hits_of(facts, own[how]), [hits_of(facts, one[how]) for one in retains]
        assumed = errors or Errors(1.0, max(specificity[how], 1e-9))
        rows += [
            leak_row(how, k, settings.n, hits, others, facts, errors, assumed, lost=lost)
            for k in ks
        ]
        for at, fact in enumerate(facts):
            control = float(np.mean([one[at] for one in others]))
            counts.append(
                [
                    fact.idx,
                    fact.group,
                    how.temperature,
                    how.top_p,
                    settings.n - lost[0][at],
                    hits[at],
                    control,
                    next((s for s in own[how][fact.idx] if s and gives_away(s, fact)), ""),
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
        never_hit_bound=bound_of(own),
    )


def bound_of(said: Texts) -> float | None:
    """Most a fact's rate per sample can be where none hit, by the fact with the fewest answers.

    None where thoughts were cut of all samples of some fact.
    """
    n_answers = [
        len(answers) - answers.count(None) for by in said.values() for answers in by.values()
    ]
    n_facts = max(map(len, said.values()))
    return never_hit_bound(min(n_answers), n_facts) if min(n_answers) else None


def hits_of(facts: Sequence[Fact], said: Mapping[int, Sequence[Answer]]) -> list[int]:
    """Samples of each fact that give its entity away."""
    return [sum(bool(text) and gives_away(text, fact) for text in said[fact.idx]) for fact in facts]


def specificity_of(facts: Sequence[Fact], said: Mapping[int, Sequence[Answer]]) -> float:
    """Share of other authors' samples that the matcher does not take for a fact's entity.

    One other author's fact for each, the next in order: as many texts as were sampled.
    """
    wrong: list[bool] = []
    for at, fact in enumerate(facts):
        later = [*facts[at + 1 :], *facts[:at]]
        other = next((one for one in later if one.group != fact.group), None)
        if other is not None:
            wrong += [gives_away(text, fact) for text in said[other.idx] if text is not None]
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
    *,
    lost: Sequence[Sequence[int]] = (),
) -> LeakRow:
    """One row of leak.csv; a fact with fewer than k answers, of any model, is left out.

    Args:
        how: the sampler's setting.
        k: samples that one may hit of.
        n: samples drawn of each fact.
        hits: of the source, by fact.
        others: of each model of the control arm.
        facts: whose authors the interval is by.
        errors: of the matcher, where labels are known.
        assumed: those that the false leak is reckoned from.
        lost: samples without an answer, of the source and of each model of the control arm, by
            fact; none if not given.
    """
    false_leak, place = assumed.false_leak(k), (how.temperature, how.top_p, k)
    if k > n:
        why, unread = f"k is more than {n} samples", (None,) * 6
        return LeakRow(*place, *unread, false_leak=false_leak, reason=why, n=0)
    arms = (hits, *others)
    drawn = [[n - one for one in arm] for arm in lost or [[0] * len(facts)] * len(arms)]
    read = [at for at in range(len(facts)) if min(arm[at] for arm in drawn) >= k]
    if not read:
        why = f"no fact has {k} samples left: thoughts were cut"
        return LeakRow(*place, *(None,) * 6, false_leak=false_leak, reason=why, n=0)
    counts = [[(n_of[at], c[at]) for at in read] for n_of, c in zip(drawn, arms, strict=True)]
    own, *never = (np.array([leak_at_k(m, c, k) for m, c in one]) for one in counts)
    control = np.mean(never, axis=0)
    groups = [facts[at].group for at in read]
    excess = clustered_excess(own, control, groups)
    n_left = len(facts) - len(read)
    left_out = f"left out, as thoughts were cut: {n_left} facts" if n_left else None
    corrected, noisy = (None, None) if errors is None else _corrected(counts, k, errors)
    return LeakRow(
        *place,
        source=float(own.mean()),
        retain=float(control.mean()),
        excess=excess.value,
        low=excess.low,
        high=excess.high,
        corrected=corrected,
        false_leak=false_leak,
        reason="; ".join(filter(None, (excess.why or left_out, noisy))) or None,
        n=len(read),
        authors=len(set(groups)),
        per_author=typical_size(groups),
    )


def _corrected(
    counts: Sequence[Sequence[tuple[int, int]]], k: int, errors: Errors
) -> tuple[float | None, str | None]:
    """Excess without the matcher's errors, or why there is none; only the mean is cut.

    `counts`: samples and hits of each fact, of the source and of each model of the control arm.
    """
    n_models, n_facts = len(counts) - 1, len(counts[0])
    own, *never = (sum(noise_of(n, c, k, errors) ** 2 for n, c in arm) for arm in counts)
    noise = math.sqrt(own + sum(never) / n_models**2) / n_facts
    if noise > NOISY:
        why = f"not corrected, too noisy: standard error up to {noise:.2g}; draw more samples"
        return None, why
    own, *never = (np.mean([leak_corrected(n, c, k, errors) for n, c in arm]) for arm in counts)
    return float(np.clip(own - np.mean(never), -1.0, 1.0)), None


@cache
def noise_of(n: int, hits: int, k: int, errors: Errors) -> float:
    """Standard deviation of `leak_corrected`, the most at any rate that `hits` of `n` allow.

        sqrt(sum over c of P(c) m^c (1 - p)^(2 (k - c)) - (1 - p)^(2 k))

    p: rate, of those whose hits lie in the exact 95 % limits; P(c): two sets of k of n samples
    share c; m: mean square of a factor. `RATES` of p stand for all, and as many of leak@k.

    >>> round(noise_of(8, 0, 8, Errors(1.0, 1.0)), 3)  # leak@8 of a rate of .083 is a coin
    0.5
    >>> round(noise_of(64, 64, 64, Errors(1.0, 1.0)), 3)
    0.0
    """
    miss, hit = errors.factors
    right = errors.sensitivity + errors.specificity - 1
    limits = np.array(share_of(hits, n).ends)
    low, high = ((limits + errors.specificity - 1) / right).clip(0, 1)
    leaks = np.linspace((1 - low) ** k, (1 - high) ** k, RATES)
    rates = np.concatenate([np.linspace(low, high, RATES), 1 - leaks ** (1 / k)])[:, None]
    seen, mean = 1 - errors.specificity + rates * right, 1 - rates
    square, common = (1 - seen) * miss**2 + seen * hit**2, np.arange(max(0, 2 * k - n), k + 1)
    ways = [math.comb(k, c) * math.comb(n - k, k - c) / math.comb(n, k) for c in common.tolist()]
    with np.errstate(over="ignore", invalid="ignore"):  # beyond floats is beyond `NOISY`, too
        every = (ways * square**common * mean ** (2 * (k - common))).sum(1)
    variance = np.nan_to_num(every, nan=math.inf, posinf=math.inf) - mean[:, 0] ** (2 * k)
    return math.sqrt(max(0.0, float(variance.max())))


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
