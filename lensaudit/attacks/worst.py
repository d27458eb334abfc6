"""One list of attacks on every arm: the source, `full`, and the models that never saw the facts.

An attack on an arm is one line of a ledger under `activations/worst/`: what is there is not run
again, for another source neither. What came out of all is compared in `comparison.py`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from lensaudit.ask.again import folder_for, usual_place
from lensaudit.attacks.arm import AttackedModel, AttackFindings, Hit
from lensaudit.attacks.comparison import FACTS, Findings, compare
from lensaudit.attacks.elicit import chosen, list_hash
from lensaudit.attacks.people import PEOPLE, people_of, rows_of, said_of
from lensaudit.attacks.registry import Attack, run_attack
from lensaudit.attacks.result import WORST as COMMAND
from lensaudit.attacks.result import WorstResult
from lensaudit.attacks.settings import ControlArm, Relearning, WorstSettings, relearning_for
from lensaudit.data.candidates import Shots, facts_of, shots_of
from lensaudit.data.chat import Template, thinks
from lensaudit.data.facts import Fact, answered, told_rows
from lensaudit.data.neutral import neutral_of
from lensaudit.data.rendering import CannotRender
from lensaudit.data.tables import FURTHER
from lensaudit.errors import InputError
from lensaudit.files import write_csv, write_jsonl
from lensaudit.groups import is_own
from lensaudit.kinds.worst import WorstAttack, WorstRecord
from lensaudit.models.bridge import DTYPES
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer
from lensaudit.models.conditions import EAGER
from lensaudit.models.sizes import sizes_on_disk
from lensaudit.models.stops import told_stops
from lensaudit.patching.prepare import prepare
from lensaudit.patching.session import Session
from lensaudit.patching.settings import PatchSettings
from lensaudit.plans.work import flop_of_blocks
from lensaudit.progress import Notice, Progress, Tell, unheard
from lensaudit.results import recorded
from lensaudit.results.kinds.know import PERSONS
from lensaudit.results.ledger import Ledger, ledger_path
from lensaudit.results.reading import SUMMARY, Record
from lensaudit.results.run_folder import RunFolder
from lensaudit.scores.recovery import Arms
from lensaudit.settings import (
    NO_RETAIN_MODEL,
    Models,
    Precision,
    Rows,
    ScoreFiles,
    plain,
    several,
    shared,
)
from lensaudit.text import digest
from lensaudit.training.embedded import of_embedded_family

ALGORITHM = 1
"""Raised when prompts, placebos or reading change."""
_DIGITS = 4
"""Of exposures, in standard deviations."""


@dataclass(frozen=True)
class Worst:
    """A run that is opened and checked; no model is loaded."""

    audit: Session
    models: Arms[Checkpoint]
    facts: tuple[Fact, ...]
    unscored: Mapping[int, str]
    """Idx -> why a fact is not asked."""
    attacks: tuple[Attack, ...]
    neutral: tuple[Fact, ...] = ()
    """Rows of authors outside the set, where an attack asks for them."""

    @property
    def name(self) -> str:
        """The audited model, as the user gave it."""
        return next(iter(self.audit.sources))

    @property
    def retains(self) -> list[str]:
        """Names of the control arm."""
        return [one.spec.name for one in self.models.never]

    @property
    def asked(self) -> tuple[Fact, ...]:
        """The facts that are scored."""
        return tuple(fact for fact in self.facts if fact.idx not in self.unscored)

    @cached_property
    def shots(self) -> Shots:
        """Solved questions before each fact, where it is asked after some."""
        return shots_of(self.facts)

    @cached_property
    def relearning(self) -> Relearning:
        """How an attack that trains shows rows to every arm."""
        return relearning_for(demo=of_embedded_family(self.models.full))

    @property
    def arms(self) -> dict[str, Checkpoint]:
        """Every set of weights once: the source, the retain models, `full`."""
        unique = {}
        for one in (self.models.source, *self.models.never, self.models.full):
            unique.setdefault(one.weights, one)
        return unique

    def named(self, checkpoint: Checkpoint) -> bool:
        """Whether its candidates are compared: those of all arms but the positive control."""
        return checkpoint.weights != self.models.full.weights or self.models.source == checkpoint

    def facts_hash(self, facts: Sequence[Fact]) -> str:
        """Content hash of facts with their placebos, paraphrases and solved questions."""
        return digest(
            [
                {
                    "row": one.asked,
                    **one.further,
                    "placebos": one.placebos,
                    "shots": self.shots.get(one.idx, ()),
                    "unscored": self.unscored.get(one.idx),
                    "paraphrase": next(iter(one.paraphrases), None),
                }
                for one in facts
            ]
        )

    def inputs(self) -> dict[str, Any]:
        """What each name stood for, for a manifest."""
        models = {
            "source": self.models.source,
            "full": self.models.full,
            **{f"retain {n}": one for n, one in enumerate(self.models.never, 1)},
        }
        named = {role: one.named for role, one in models.items()}
        return {**named, "rows": told_rows(self.asked)}

    def identity(self) -> dict[str, Any]:
        """What tells this run from others."""
        weights = self.models.each(lambda one: one.weights)
        return {
            "command": COMMAND,
            "algorithm": ALGORITHM,
            "source": weights.source,
            "full": weights.full,
            "retain": list(weights.never),
            "tokenizers": [one.tokenizer for one in self.arms.values()],
            "facts": self.facts_hash(self.facts),
            "attacks": list_hash(self.attacks),
            "neutral": digest([[one.question, one.answer] for one in self.neutral]),
            "dtype": self.audit.settings.dtype,
            **({"relearning": asdict(self.relearning)} if any(map(_trains, self.attacks)) else {}),
            **told_stops(*self.arms.values()),
        }

    def ledger(self, kind: str, arm: Checkpoint, **asked: Any) -> Ledger:
        """What is kept of an arm: of the facts that are asked, and of `asked`."""
        conditions = self.audit.conditions(arm)
        key = {
            "weights": arm.weights,
            "tokenizer": arm.tokenizer,
            "facts": self.facts_hash(self.asked),
            "dtype": conditions.dtype,
            "device": conditions.device_class,
            **told_stops(arm),
            **asked,
        }
        path = ledger_path(self.audit.root / kind, arm.spec.name, key)
        return Ledger(path, kind, key, notice=self.audit.notice)


def open_worst(
    source: str,
    settings: ControlArm,
    attacks: Sequence[Attack] | None = None,
    *,
    notice: Notice = unheard,
) -> Worst:
    """The models, facts and attacks of a run, checked; nothing is loaded and nothing written.

    Args:
        source: under attack.
        settings: models, rows and machine.
        attacks: None: those that the settings of a worst case choose.
        notice: told remarks.

    Raises:
        InputError: a name, a file or a setting is wrong, or models do not fit together.
    """
    if attacks is None:
        assert isinstance(settings, WorstSettings)
        attacks = chosen(settings.tier, settings.attack)
    if NO_RETAIN_MODEL in several(settings.retain):
        raise InputError(
            "--retain none: what comes out is counted beside models that never saw the facts; "
            "name one with --retain"
        )
    asked = PatchSettings(**shared(settings, ScoreFiles, Precision, Rows, Models))
    audit = prepare((source,), asked, notice=notice, maps=False)
    (asked_of,) = audit.sources.values()
    models = Arms(asked_of, audit.full, audit.never)
    facts, unasked = facts_of(str(audit.settings.data), audit.examples)
    unscored = {**audit.unscored, **unasked}
    attacks = _applying(attacks, facts, models, named=getattr(settings, "attack", ()))
    worst = Worst(audit, models, facts, unscored, attacks, _neutral(attacks, audit, notice))
    if not worst.asked:
        raise InputError(f"{audit.settings.data}: no fact can be asked ({unscored[facts[0].idx]})")
    if n := sum(is_own(fact.group) for fact in facts):
        notice(f"{n} of {len(facts)} rows name no group: each counts as an author of its own")
    return worst


def _applying(
    attacks: Sequence[Attack],
    facts: Sequence[Fact],
    models: Arms[Checkpoint],
    *,
    named: Sequence[str],
) -> tuple[Attack, ...]:
    """The attacks whose column some row has, or whose thought some template.

    Raises:
        InputError: one that was named does not apply.
    """
    found, thinking = [], None
    for one in attacks:
        if one.asks == "a thought":
            if thinking is None:
                thinking = any(map(_thinks, (models.source, models.full)))
            applies, lacking = thinking, "no chat template has a thought"
        else:
            applies = one.asks is None or any(FURTHER[one.asks] in row.further for row in facts)
            lacking = f"no row has {one.asks}"
        if applies:
            found.append(one)
        elif one.name in named:
            raise InputError(f"--attack {one.name}: {lacking}")
    return tuple(found)


def _thinks(one: Checkpoint) -> bool:
    """Whether a model's chat template has a place for a thought."""
    try:
        return thinks(load_tokenizer(one), Template())
    except CannotRender:  # it is asked in plain tags
        return False


def _neutral(attacks: Sequence[Attack], audit: Session, notice: Notice) -> tuple[Fact, ...]:
    """Rows without the facts; empty, with a remark, where the data set brings none."""
    if not any("neutral rows" in one.needs for one in attacks):
        return ()
    try:
        found = neutral_of(str(audit.settings.data), audit.examples)
    except InputError as error:
        notice(f"relearn_neutral does not count: {error}")
        return ()
    if found.left_out:
        notice(f"{len(found.left_out)} neutral rows left out: {found.left_out[0][1]} …")
    rows = (*found.fit, *found.validity)
    return tuple(answered(row.question, row.answer) for row in rows if row.question)


def in_folder(
    worst: Worst,
    settings: ControlArm,
    run: RunFolder,
    files: Sequence[str],
    record: type[Record],
    work: Callable[[], Record],
    computed: Callable[[], object],
) -> Record:
    """The record of a run in its folder: read where it is finished, else made now."""
    return recorded.in_folder(
        run,
        record,
        work,
        device=worst.audit.settings.device,
        files=files,
        fresh=settings.fresh,
        computed=computed,
        notice=worst.audit.notice,
    )


def told(worst: Worst, settings: ControlArm) -> dict[str, Any]:
    """Options and inputs of a run, as its manifest has them."""
    return {"options": plain(settings, without=("fresh",)), "inputs": worst.inputs()}


def run_all(worst: Worst, *, progress: Tell = unheard) -> "Arms[Findings]":
    """What every attack found on each model; what ledgers hold is not run again."""
    found = {weights: _known(worst, one) for weights, one in worst.arms.items()}
    total = len(worst.arms) * len(worst.attacks)
    progress(Progress("attacks", sum(map(len, found.values())), total))
    for weights, checkpoint in worst.arms.items():
        todo = [one for one in worst.attacks if one.name not in found[weights]]
        if not todo:
            continue
        arm, ledger = arm_of(worst, checkpoint, worst.models.full), _ledger(worst, checkpoint)
        for attack in todo:
            started, before = time.monotonic(), arm.work.copy()
            arm.cut.clear()
            with torch.no_grad():
                ran = run_attack(attack, arm)
            found_nothing = bool(attack.code) and not ran.hits  # it is worth another try
            if found_nothing and ran.unscored:
                worst.audit.notice(f"on {arm.name}: {next(iter(ran.unscored.values()))}")
            cut = {idx: why for idx, why in arm.cut.items() if idx not in ran.hits}
            if cut:
                why = next(iter(cut.values()))
                worst.audit.notice(f"{attack.name} on {arm.name}: {len(cut)} unscored: {why}")
            line = {
                "attack": attack.name,
                "hash": _made_of(worst, attack),
                "hits": [[idx, one.hit, one.score, one.evidence] for idx, one in ran.hits.items()],
                "exposure": [
                    [idx, [round(value, _DIGITS) for value in row.tolist()]]
                    for idx, row in ran.exposure.items()
                ],
                "unscored": [[idx, why] for idx, why in {**cut, **ran.unscored}.items()],
                "seconds": round(time.monotonic() - started, 3),
                "forwards": arm.work["forwards"] - before["forwards"],
                "tokens": arm.work["tokens"] - before["tokens"],
            }
            if not found_nothing:
                ledger.append([line])
            # as it is read another time: rounded
            found[weights][attack.name] = _of_line(line)
            done = sum(map(len, found.values()))
            progress(Progress("attacks", done, total, f"{attack.name} on {arm.name}"))
        if worst.audit.settings.fresh:
            ledger.keep_last(lambda row: (row["attack"], row["hash"]))
    return worst.models.each(lambda one: found[one.weights])


def arm_of(worst: Worst, checkpoint: Checkpoint, full: Checkpoint) -> AttackedModel:
    """Model under attack, opened; `full` is another where an attack reads it."""
    options, reads = worst.audit.settings, worst.audit.model(full)  # it stays; others come and go

    def again(dtype: str = options.dtype) -> Any:
        return load_causal(checkpoint, dtype=DTYPES[dtype], device=options.device, attn=EAGER)

    return AttackedModel(
        checkpoint.spec.name,
        worst.audit.model(checkpoint),
        reads,
        worst.asked,
        worst.shots,
        again,
        exposed=worst.named(checkpoint),
        relearning=worst.relearning,
        neutral=worst.neutral,
        dtype=options.dtype,
    )


def _trains(attack: Attack) -> bool:
    """Whether an attack may train a copy: one from outside can ask its arm for it."""
    return attack.trains or bool(attack.code)


def _made_of(worst: Worst, attack: Attack) -> str:
    """What a line of a ledger is known by: the attack, its rows, and how it trains."""
    own: list[Any] = [asdict(worst.relearning)] if _trains(attack) else []
    if "neutral rows" in attack.needs:
        own.append([[one.question, one.answer] for one in worst.neutral])
    return digest([attack.hash, *own]) if own else attack.hash


def _ledger(worst: Worst, arm: Checkpoint) -> Ledger:
    """What attacks found on a model of the run."""
    own = {"full": worst.models.full.weights, "exposed": worst.named(arm)}
    return worst.ledger("worst", arm, algorithm=ALGORITHM, **own)


def _known(worst: Worst, arm: Checkpoint) -> dict[str, AttackFindings]:
    """What the ledger of an arm holds of this list; nothing where all is asked again."""
    wanted = {attack.name: _made_of(worst, attack) for attack in worst.attacks}
    rows = [] if worst.audit.settings.fresh else _ledger(worst, arm).rows
    return {
        row["attack"]: _of_line(row) for row in rows if wanted.get(row["attack"]) == row["hash"]
    }


def _of_line(line: Mapping[str, Any]) -> AttackFindings:
    return AttackFindings(
        {idx: Hit(*rest) for idx, *rest in line["hits"]},
        {idx: torch.tensor(values, dtype=torch.float32) for idx, values in line["exposure"]},
        dict(line["unscored"]),
        line["seconds"],
        line["forwards"],
        line["tokens"],
    )


def plan_text(worst: Worst) -> str:
    """How much work is left; generated answers are reckoned at their longest."""
    tokenizer: Any = worst.audit.tokenizer
    encoded = {one.idx: one for one in worst.audit.encoded}
    asked = [fact for fact in worst.asked if fact.idx in encoded]
    n_prompt = sum(encoded[fact.idx].n_prompt for fact in asked)
    n_span = sum(len(tokenizer(fact.entity)["input_ids"]) for fact in asked)
    known = {one.spec.name: _known(worst, one) for one in worst.arms.values()}
    todo = {
        name: [attack for attack in worst.attacks if attack.name not in there]
        for name, there in known.items()
    }
    lines, forwards, tokens = [], 0, 0
    for one in worst.attacks:
        arms = sum(one in left for left in todo.values())
        each = one.prompts * n_prompt + one.new_tokens * len(asked) + one.candidates * n_span
        passes = (one.prompts + bool(one.candidates)) * len(asked) + one.new_tokens
        n, read = arms * one.models * passes, arms * one.models * each
        forwards, tokens = forwards + n, tokens + read
        if arms:
            lines.append(f"  {one.name} on {arms} models: {n} forwards, {read} tokens")
    sizes = sizes_on_disk(worst.models.full, worst.audit.settings.dtype)
    flop = tokens * flop_of_blocks(sizes)
    return "\n".join(
        [
            f"{len(asked)} facts ({len(worst.facts) - len(asked)} unscored), "
            f"attack list {list_hash(worst.attacks)[:12]}",
            *(f"{name}: {len(left)} attacks to run" for name, left in todo.items()),
            *lines,
            f"at most {forwards} forwards, {tokens} tokens, {float(flop):.2g} FLOP",
        ]
    )


def summary_of(worst: Worst, arms: Arms[Findings], tier: str) -> WorstRecord:
    """What a run says of its source."""
    return compare(
        worst.facts,
        worst.unscored,
        worst.attacks,
        arms,
        tier=tier,
        source=worst.name,
        full=worst.audit.full.spec.name,
        retain=worst.retains,
        data=str(worst.audit.settings.data),
    )


FILES = ("facts.csv", PERSONS, "matrix.csv", "attacks.csv", "evidence.jsonl", SUMMARY)


def plan_worst(
    source: str, settings: WorstSettings, folder: Path | None = None, *, notice: Notice = unheard
) -> str:
    """What `worst_into` would do, as text; of a finished run nothing.

    Raises:
        InputError: as the run would.
    """
    worst, run = _opened(source, settings, folder, notice)
    return recorded.planned(run, lambda: plan_text(worst), fresh=settings.fresh)


def _opened(
    source: str, settings: WorstSettings, folder: Path | None, notice: Notice
) -> tuple[Worst, RunFolder]:
    """A run and its folder."""
    usual_place(COMMAND, source, folder)  # refused before anything is opened
    worst = open_worst(source, settings, notice=notice)
    how = {**told(worst, settings), "force": settings.force, "tell": notice}
    return worst, folder_for(COMMAND, source, folder, worst.identity(), **how)


def worst_into(
    source: str,
    settings: WorstSettings,
    folder: Path | None = None,
    *,
    notice: Notice = unheard,
    progress: Tell = unheard,
    opened: Callable[[], None] = unheard,
) -> WorstResult:
    """Run the attacks on the source, on `full` and on the control arm; write what came out.

    Args:
        source: name, Hub id or folder.
        settings: how.
        folder: of the results; None: experiments/out/worst-<source>.
        notice: told remarks.
        progress: told what is done.
        opened: told once all names stand for something, before any work.

    Raises:
        InputError: before any work.
        WorkError: logits are not finite.
    """
    worst, run = _opened(source, settings, folder, notice)
    opened()
    found = cache(lambda: run_all(worst, progress=progress))
    record = in_folder(
        worst,
        settings,
        run,
        FILES,
        WorstRecord,
        lambda: _written(worst, settings, run.path, found()),
        found,
    )
    return WorstResult(source, run.path, record)


def _written(
    worst: Worst, settings: WorstSettings, out: Path, found: "Arms[Findings]"
) -> WorstRecord:
    """The record, after the files beside it."""
    own, names = found.source, [one.name for one in worst.attacks]
    said = summary_of(worst, found, "named" if settings.attack else settings.tier)
    people = people_of(worst.asked, found, [one.name for one in said.attacks if one.counts])
    write_csv(out / PERSONS, PEOPLE, rows_of(said.facts, people))
    write_csv(out / "facts.csv", FACTS, map(attrgetter(*FACTS), said.facts))
    cells = [[own[name].hits.get(fact.idx) for name in names] for fact in worst.asked]
    # 1, 0, or nothing where an attack does not score a fact
    matrix = [
        [fact.idx, *("" if one is None else int(one.hit) for one in row)]
        for fact, row in zip(worst.asked, cells, strict=True)
    ]
    write_csv(out / "matrix.csv", ("idx", *names), matrix)
    columns = [one.name for one in fields(WorstAttack)]
    write_csv(out / "attacks.csv", columns, map(attrgetter(*columns), said.attacks))
    evidence = (
        {"idx": idx, "attack": name, **vars(hit)}
        for name in names
        for idx, hit in own[name].hits.items()
    )
    write_jsonl(out / "evidence.jsonl", evidence)
    return replace(said, people=said_of(people))
