"""One list of attacks on every arm: the source, `full`, and the models that never saw the facts.

An attack on an arm is one line of a ledger under `activations/worst/`: what is there is not run
again, for another source neither.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lensaudit.attacks.relearn import DEMO_RELEARNING, Relearning
from lensaudit.data.candidates import Candidate, facts_of, lost, n_without_author
from lensaudit.data.neutral import neutral_of
from lensaudit.errors import InputError
from lensaudit.files import digest, write_json
from lensaudit.models.bridge import DTYPES, TransformerBridge, load
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import (
    Checkpoint,
    check_same_shape,
    load_tokenizer,
    open_checkpoint,
)
from lensaudit.models.conditions import EAGER
from lensaudit.models.registry import is_demo, load_registry, resolve
from lensaudit.patching.prepare import prepare
from lensaudit.patching.session import Session
from lensaudit.patching.settings import PatchSettings
from lensaudit.progress import Notice, Progress, Tell, unheard
from lensaudit.results import keyed
from lensaudit.results.ledger import Ledger, ledger_path
from lensaudit.results.records import manifest
from lensaudit.settings import Models, Precision, Rows, ScoreFiles, plain, shared
from lensaudit.unlearn.rows import Answered
from lensaudit.worstcase.attacks import Attack, AttackedModel, AttackFindings, Hit, list_hash
from lensaudit.worstcase.settings import ControlArm

ALGORITHM = 1
"""Raised when prompts, placebos or reading change."""
_DIGITS = 4
"""Of exposures, in standard deviations."""


@dataclass(frozen=True)
class Worst:
    """A run that is opened and checked; no model is loaded."""

    audit: Session
    retains: Mapping[str, Checkpoint]
    facts: tuple[Candidate, ...]
    attacks: tuple[Attack, ...]
    data: str
    neutral: tuple[Answered, ...] = ()
    """Rows of authors outside the set, where an attack asks for them."""

    @property
    def source(self) -> tuple[str, Checkpoint]:
        """Name and checkpoint of the model that is audited."""
        ((name, checkpoint),) = self.audit.sources.items()
        return name, checkpoint

    @property
    def asked(self) -> tuple[Candidate, ...]:
        """The facts that are scored."""
        return tuple(fact for fact in self.facts if fact.unscored is None)

    @property
    def arms(self) -> dict[str, Checkpoint]:
        """Every set of weights once: the source, the retain models, `full`."""
        unique = {}
        for one in (self.source[1], *self.retains.values(), self.audit.full):
            unique.setdefault(one.weights, one)
        return unique

    def named(self, checkpoint: Checkpoint) -> bool:
        """Whether its candidates are compared: those of all arms but the positive control."""
        return checkpoint.weights != self.audit.full.weights or self.source[1] == checkpoint

    @property
    def hash(self) -> str:
        """Content hash of the list of attacks."""
        return list_hash(self.attacks)

    def inputs(self) -> dict[str, Any]:
        """What each name stood for, for a manifest."""
        models = {
            "source": self.source[1],
            "full": self.audit.full,
            **{f"retain {n}": one for n, one in enumerate(self.retains.values(), 1)},
        }
        return {
            role: {"name": one.spec.name, "weights": one.weights} for role, one in models.items()
        }

    def identity(self) -> dict[str, Any]:
        """What tells this run from others."""
        return {
            "command": "worst",
            "algorithm": ALGORITHM,
            "source": self.source[1].weights,
            "full": self.audit.full.weights,
            "retain": [one.weights for one in self.retains.values()],
            "facts": facts_hash(self.facts),
            "attacks": self.hash,
            "neutral": digest([[one.question, one.answer] for one in self.neutral]),
            "dtype": self.audit.options.dtype,
        }


def open_worst(
    source: str, settings: ControlArm, attacks: Sequence[Attack], *, notice: Notice = unheard
) -> Worst:
    """The models, facts and attacks of a run, checked; nothing is loaded and nothing written.

    Raises:
        InputError: a name, a file or a setting is wrong, or models do not fit together.
    """
    asked = PatchSettings(**shared(settings, ScoreFiles, Precision, Rows, Models))
    audit = prepare((source,), asked, notice=notice, maps=False)
    retains = _retains(settings, audit)
    facts = facts_of(str(audit.settings.data), audit.examples)
    facts = lost(facts, {one.idx: one.reason for one in audit.lost})
    worst = Worst(
        audit,
        retains,
        facts,
        tuple(attacks),
        str(audit.settings.data),
        _neutral(attacks, audit, notice),
    )
    if not worst.asked:
        raise InputError(f"{audit.settings.data}: no fact can be asked ({facts[0].unscored})")
    if n := n_without_author(facts):
        notice(f"{n} of {len(facts)} rows name no group: each is taken for an author of its own")
    return worst


def _neutral(attacks: Sequence[Attack], audit: Session, notice: Notice) -> tuple[Answered, ...]:
    """Rows without the facts; none, and it is said, where the data set brings none."""
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
    return tuple(Answered(row.question, row.answer) for row in rows if row.question)


def _retains(settings: ControlArm, audit: Session) -> dict[str, Checkpoint]:
    """The control arm: each set of weights once, none of them the source's or `full`'s."""
    registry = load_registry(settings.registry)
    others = [open_checkpoint(resolve(name, registry)) for name in settings.retain[1:]]
    models = [audit.retain, *others]
    check_same_shape(audit.full, *others, notice=audit.notice)
    (source,) = audit.sources.values()
    if len({one.weights for one in models}) < len(models):
        raise InputError("--retain: two of the models have the same weights; name each once")
    found = {one.spec.name: one for one in models}
    for name, one in found.items():
        if one.weights in (source.weights, audit.full.weights):
            raise InputError(
                f"--retain {name}: has the weights of the source or of full; the control arm must "
                "be a model that never saw the forget set"
            )
    return found


def in_folder(
    worst: Worst,
    settings: ControlArm,
    out: Path,
    *,
    identity: Mapping[str, Any],
    files: Sequence[str],
    shown: Callable[[Path], Mapping[str, Any]],
    work: Callable[[], Mapping[str, Any]],
) -> Mapping[str, Any]:
    """The summary of a run in its folder: as it was written where it is finished, else made now.

    Args:
        worst: the run.
        settings: how.
        out: the folder.
        identity: what tells the run from others, its `command` among it.
        files: that the manifest answers for.
        shown: reads the summary.
        work: writes all files but the summary, and returns that.
    """
    started, key, summary = time.monotonic(), digest(identity), out / "summary.json"
    keyed.check_own(out, key)
    if keyed.finished(out, key) and not settings.fresh:
        worst.audit.notice(f"{out} holds this run already; nothing to do")
        return shown(summary)
    keyed.begin(out, key)
    found = work()
    write_json(summary, found)
    made = manifest(
        identity["command"],
        options=plain(settings, without=("fresh",)),
        inputs={**identity, **worst.inputs()},
        device=worst.audit.options.device,
        started=started,
    )
    keyed.seal(out, made, key=key, files=files)
    return found


def run_all(worst: Worst, *, progress: Tell = unheard) -> dict[str, dict[str, AttackFindings]]:
    """What every attack found, by weights and attack; what ledgers hold is not run again."""
    ledgers = {weights: _ledger(worst, one) for weights, one in worst.arms.items()}
    for ledger in ledgers.values() if worst.audit.fresh else ():
        ledger.clear()
    found = {weights: _read(worst, ledger) for weights, ledger in ledgers.items()}
    total = len(worst.arms) * len(worst.attacks)
    progress(Progress("attacks", sum(map(len, found.values())), total))
    full: TransformerBridge | None = None
    for weights, checkpoint in worst.arms.items():
        todo = [one for one in worst.attacks if one.name not in found[weights]]
        if not todo:
            continue
        full = full or bridge_of(worst, worst.audit.full)
        is_full = weights == worst.audit.full.weights
        arm = arm_of(worst, checkpoint, full if is_full else bridge_of(worst, checkpoint), full)
        for attack in todo:
            ran = _ran(attack, arm)
            line = _line(attack, ran, _made_of(worst, attack))
            ledgers[weights].append([line])
            # as it is read another time: rounded
            found[weights][attack.name] = _of_line(line)
            done = sum(map(len, found.values()))
            progress(Progress("attacks", done, total, f"{attack.name} on {arm.name}"))
    return found


def _ran(attack: Attack, arm: AttackedModel) -> AttackFindings:
    started, before = time.monotonic(), replace(arm.work)
    with torch.no_grad():
        found = attack.run(arm)
    return replace(
        found,
        seconds=round(time.monotonic() - started, 3),
        forwards=arm.work.forwards - before.forwards,
        tokens=arm.work.tokens - before.tokens,
    )


def arm_of(
    worst: Worst, checkpoint: Checkpoint, model: TransformerBridge, full: TransformerBridge
) -> AttackedModel:
    """Model under attack, opened."""
    options = worst.audit.options

    def again() -> Any:
        return load_causal(
            checkpoint, dtype=DTYPES[options.dtype], device=options.device, attn=EAGER
        )

    demo = is_demo(worst.audit.full.spec.name)
    how = DEMO_RELEARNING if demo else Relearning()
    return AttackedModel(
        checkpoint.spec.name,
        model,
        full,
        worst.asked,
        again,
        exposed=worst.named(checkpoint),
        relearning=how,
        neutral=worst.neutral,
    )


def bridge_of(worst: Worst, checkpoint: Checkpoint) -> TransformerBridge:
    """A model of the run, loaded."""
    options = worst.audit.options
    return load(checkpoint, dtype=DTYPES[options.dtype], device=options.device)


def facts_hash(facts: Sequence[Candidate]) -> str:
    """Content hash of facts with their placebos, paraphrases and solved questions."""
    return digest(
        [{**vars(one), "row": one.row.asked, "paraphrase": one.paraphrase} for one in facts]
    )


def _ledger(worst: Worst, arm: Checkpoint) -> Ledger:
    conditions = worst.audit.conditions(arm)
    key = {
        "algorithm": ALGORITHM,
        "weights": arm.weights,
        "tokenizer": arm.tokenizer,
        "full": worst.audit.full.weights,
        "facts": facts_hash(worst.asked),
        "dtype": conditions.dtype,
        "device": conditions.device_class,
        "exposed": worst.named(arm),
    }
    path = ledger_path(worst.audit.root / "worst", arm.spec.name, key)
    return Ledger(path, "worst", key, notice=worst.audit.notice)


def _made_of(worst: Worst, attack: Attack) -> str:
    """What a line of a ledger is known by: the attack, and the rows that it alone reads."""
    if "neutral rows" not in attack.needs:
        return attack.hash
    return digest([attack.hash, [[one.question, one.answer] for one in worst.neutral]])


def _line(attack: Attack, found: AttackFindings, made_of: str) -> dict[str, Any]:
    return {
        "attack": attack.name,
        "hash": made_of,
        "hits": [[idx, one.hit, one.score, one.evidence] for idx, one in found.hits.items()],
        "exposure": [
            [idx, [round(value, _DIGITS) for value in row.tolist()]]
            for idx, row in found.exposure.items()
        ],
        "unscored": [[idx, why] for idx, why in found.unscored.items()],
        "seconds": found.seconds,
        "forwards": found.forwards,
        "tokens": found.tokens,
    }


def _read(worst: Worst, ledger: Ledger) -> dict[str, AttackFindings]:
    known = {attack.name: _made_of(worst, attack) for attack in worst.attacks}
    return {
        row["attack"]: _of_line(row)
        for row in ledger.rows
        if known.get(row["attack"]) == row["hash"]
    }


def _of_line(line: Mapping[str, Any]) -> AttackFindings:
    return AttackFindings(
        {idx: Hit(*rest) for idx, *rest in line["hits"]},
        {idx: torch.tensor(values) for idx, values in line["exposure"]},
        dict(line["unscored"]),
        line["seconds"],
        line["forwards"],
        line["tokens"],
    )


@dataclass(frozen=True)
class Planned:
    """What a run would compute, reckoned before anything is loaded."""

    arms: Mapping[str, int]
    """Model -> attacks that are still to be run on it."""
    n_facts: int
    n_unscored: int
    hash: str
    rows: tuple[tuple[str, int, int, int], ...]
    """Attack, arms it is to be run on, forward passes, tokens: upper bounds."""
    flop: float
    """Floating-point operations of those tokens."""

    def text(self) -> str:
        """The plan as lines for a person."""
        forwards = sum(row[2] for row in self.rows)
        tokens = sum(row[3] for row in self.rows)
        lines = [
            f"{self.n_facts} facts ({self.n_unscored} unscored), attack list {self.hash[:12]}",
            *(f"{name}: {n} attacks to run" for name, n in self.arms.items()),
            *(
                f"  {name} on {arms} models: {passes} forwards, {read} tokens"
                for name, arms, passes, read in self.rows
                if arms
            ),
            f"at most {forwards} forwards, {tokens} tokens, {self.flop:.2g} FLOP",
        ]
        return "\n".join(lines)


def plan_of(worst: Worst) -> Planned:
    """How much work is left; generated answers are reckoned at their longest."""
    from lensaudit.models.sizes import sizes_on_disk

    tokenizer: Any = load_tokenizer(worst.audit.full)
    encoded = {one.idx: one for one in worst.audit.encoded}
    asked = [fact for fact in worst.asked if fact.row.idx in encoded]
    n_prompt = sum(encoded[fact.row.idx].n_prompt for fact in asked)
    n_span = sum(len(tokenizer(fact.row.entity)["input_ids"]) for fact in asked)
    todo = {
        weights: list(worst.attacks)
        if worst.audit.fresh
        else [a for a in worst.attacks if a.name not in _read(worst, _ledger(worst, one))]
        for weights, one in worst.arms.items()
    }
    rows = []
    for attack in worst.attacks:
        arms = sum(attack in left for left in todo.values())
        cost = attack.cost
        each = cost.prompts * n_prompt + cost.new_tokens * len(asked) + cost.candidates * n_span
        passes = (cost.prompts + bool(cost.candidates)) * len(asked) + cost.new_tokens
        rows.append((attack.name, arms, arms * cost.models * passes, arms * cost.models * each))
    per_token = sizes_on_disk(worst.audit.full, worst.audit.options.dtype).per_token_flop
    return Planned(
        {one.spec.name: len(todo[weights]) for weights, one in worst.arms.items()},
        len(asked),
        len(worst.facts) - len(asked),
        worst.hash,
        tuple(rows),
        float(per_token * sum(row[3] for row in rows)),
    )
