"""What is to be done, and where? A hashed list of units, and the folder that holds all of it.

A unit is one checkpoint in one variant. The folder is shared by every process that works on it.
"""

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from lensaudit import __version__
from lensaudit.attacks.settings import Relearning, relearning_for
from lensaudit.auditing.question import own_data
from lensaudit.data.tofu import DEMO as DEMO_ROWS
from lensaudit.errors import InputError, shortened
from lensaudit.files import make_folder, read_json, write_json
from lensaudit.models.checkpoint import Checkpoint, open_checkpoint
from lensaudit.models.hashing import folder_sha256
from lensaudit.models.likeness import tokenization
from lensaudit.models.registry import DEMO, ModelSpec
from lensaudit.results.planned import PLAN, UNITS, unit_label
from lensaudit.results.reading import checked, checked_as, json_object, part
from lensaudit.results.roles import ModelRole
from lensaudit.settings import Asked, Machine, NeutralRows, Place, Questions, plain
from lensaudit.text import digest, slug
from lensaudit.training.embedded import embedded_full

COMMAND = "sweep"
"""Whose the folder of a plan is."""
SCHEMA = 2
ALGORITHM = 1
"""Raised when a unit's numbers change their meaning: finished units are then done again."""
AttackVariant = Literal["nf4", "int8", "relearn-1ep"]
Variant = Literal["base", AttackVariant]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
ANCHORS: tuple[ModelRole, ...] = ("retain", "full")
"""In this order: the log of `retain` is what others are compared with."""
_UNSAID = {"also": (), "exclude": (), **plain(NeutralRows())}
_UNSAID |= {"patch": True, "relearn_lr": None, "keep": False, "activations": None}
"""Conditions that a plan does not name where they have these values."""
_OF_NO_NUMBER = ("memory", "keep", "activations")
"""Conditions that decide none."""
_STEPS = ("checkpoint", "step", "epoch")
"""So begin the folders of a training run, whose own names do not tell two runs apart."""
_ID = re.compile(r"[0-9a-f]{32}")


def is_id(text: str) -> bool:
    """Whether a text is the id of a unit, which its folders are called by."""
    return _ID.fullmatch(text) is not None


@dataclass(frozen=True)
class Target:
    """A checkpoint of the plan, resolved: names may change their meaning, this does not."""

    name: str
    """Unique in the plan; what tables and reports show."""
    repo: str
    """On the Hub, or the folder."""
    revision: str | None
    role: str
    method: str | None
    is_folder: bool
    weights: str | None = None
    """Content hash; None for a Hub checkpoint, whose files name their own hashes."""
    adapter: str | None = None
    """Folder or `repo@revision` of a LoRA adapter on it."""
    tokenizer: str | None = None
    """Content hash with that of the chat template, as `weights`."""
    tokenization: str | None = None
    """Hash of what the tokenizer does: its files may be saved otherwise after the plan was made."""

    @property
    def path(self) -> str:
        """Where it is: a folder, or a repository and its revision; and the adapter on it."""
        place = f"{self.repo}@{self.revision}" if self.revision else self.repo
        return f"{place}+{self.adapter}" if self.adapter else place

    @property
    def identity(self) -> list[str | None]:
        """What decides its numbers: content where that is known, else where it comes from."""
        held = [self.weights, self.tokenizer]
        return held if self.weights else [self.repo, self.revision, self.adapter]

    def check(self, opened: Checkpoint) -> None:
        """Refuse another checkpoint than the planned one, where its content was planned.

        Raises:
            InputError: its weights, its tokenizer or its chat template are others.
        """
        for what, is_planned in (
            ("other weights", self.weights in (None, opened.weights)),
            ("another tokenizer or chat template", self.tokenizer is None or self.reads_as(opened)),
        ):
            if not is_planned:
                raise InputError(
                    f"{self.name}: {opened.folder} holds {what} than when the plan was made; plan "
                    "again, in another folder"
                )

    def reads_as(self, opened: Checkpoint) -> bool:
        """Whether the tokenizer does the same to any text as that of a checkpoint.

        Raises:
            InputError: the files differ, and the checkpoint's tokenizer cannot be loaded.
        """
        return self.tokenizer == opened.tokenizer or self.tokenization == tokenization(opened)

    def entry(self, folder: Path | None = None) -> dict[str, Any]:
        """Row of the target in a registry file; `folder` is where its files are by now."""
        path = folder or (self.repo if self.is_folder else None)
        place = {"path": str(path)} if path else {"repo": self.repo, "revision": self.revision}
        rest = {"role": self.role, "method": self.method, "adapter": self.adapter}
        return {key: value for key, value in {**place, **rest}.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class UnitConditions(Machine, NeutralRows, Questions):
    """What is measured and how: the same for every unit."""

    metrics: tuple[str, ...] = ()
    """Empty means all that can be computed."""
    association: Asked = "quick"
    """Who has what, wherever annotated rows are patched."""
    patch: bool = True
    """Depth as `lensaudit patch` leaves it, wherever a metric looks inside."""
    lens: bool = False
    """Logit Lens depth beside UDS."""
    also: tuple[str, ...] = ()
    """Facts to keep whose loss is scored beside UDS: `retain`, `world`, `authors`."""
    relearn_on: str | None = None
    """Rows of the relearn variant; None: the forget set."""
    relearn_lr: float | None = None
    """Its peak rate; None: that of the published attack."""
    keep: bool = False
    """Attacked checkpoints stay with the results of their units."""
    activations: Place | None = None
    """Folder of the activation caches; None: the sweep's own."""

    @property
    def identity(self) -> dict[str, Any]:
        """Fields that decide numbers; memory does not, nor does the place of files.

        What these hold is in the hash of what is asked.
        """
        return {
            key: os.path.basename(one) if isinstance(one, str) and os.path.isabs(one) else one
            for key, one in self.content.items()
            if key not in _OF_NO_NUMBER
        }

    @property
    def content(self) -> dict[str, Any]:
        """The conditions as JSON, without what `_UNSAID` names."""
        unsaid = object()
        return {key: one for key, one in plain(self).items() if one != _UNSAID.get(key, unsaid)}


@dataclass(frozen=True)
class Unit:
    """A checkpoint in one variant, with all its scores."""

    id: str
    target: str
    """The checkpoint's name."""
    variant: Variant

    @property
    def label(self) -> str:
        """Name of the unit in messages."""
        return unit_label(self.target, self.variant)


@dataclass(frozen=True)
class Sweep:
    """A plan, which is units, checkpoints, anchors and conditions, and the folder of all of it."""

    conditions: UnitConditions
    data: str
    """Content hash of what is asked."""
    anchors: Mapping[str, str]
    """`full` and `retain` -> the target's name."""
    targets: tuple[Target, ...]
    units: tuple[Unit, ...]
    attacks: Mapping[str, Any]
    """Variant -> the settings that make it."""
    lensaudit: str = __version__
    """The version that made it."""
    command: str = COMMAND
    """Whose plan it is; in a folder of `meta` all units stay, those of its earlier plans too."""
    root: Path = Path()
    """Its folder, shared by every process that works on it; no part of the plan."""

    @property
    def file(self) -> Path:
        """File of the plan; another plan takes its place only where it keeps every unit."""
        return self.root / PLAN

    @property
    def weights(self) -> Path:
        """Checkpoints fetched for this sweep."""
        return self.root / "weights"

    def unit(self, unit_id: str) -> Path:
        """Folder of a finished unit; where it is there it is complete."""
        return self.root / UNITS / unit_id

    def work(self, unit_id: str) -> Path:
        """Folder in which a unit is worked on; finished parts are kept for the next attempt."""
        return self.root / "work" / unit_id

    def attempts(self, unit_id: str) -> Path:
        """Log of who tried a unit, and how that ended."""
        return self.root / "attempts" / f"{unit_id}.jsonl"

    def claim(self, unit_id: str) -> Path:
        """File that says who works on a unit."""
        return self.root / "claims" / f"{unit_id}.json"

    @cached_property
    def by_name(self) -> Mapping[str, Target]:
        """Targets by name."""
        return {target.name: target for target in self.targets}

    @cached_property
    def by_id(self) -> Mapping[str, Unit]:
        """Units by id."""
        return {unit.id: unit for unit in self.units}

    def is_other(self, unit_id: str) -> bool:
        """Is a unit of the folder of another plan, which nobody here reads?"""
        return self.command == COMMAND and unit_id not in self.by_id

    def anchor_units(self) -> list[Unit]:
        """The units that all others wait for, in order."""
        base = {unit.target: unit for unit in self.units if unit.variant == "base"}
        return [base[self.anchors[role]] for role in ANCHORS]

    @cached_property
    def content(self) -> dict[str, Any]:
        """The plan as JSON, without its hash."""
        return {
            "schema": SCHEMA,
            "lensaudit": self.lensaudit,
            "conditions": self.conditions.content,
            "data": self.data,
            "anchors": dict(self.anchors),
            "attacks": dict(self.attacks),
            "targets": [asdict(target) for target in self.targets],
            "units": [asdict(unit) for unit in self.units],
            **({} if self.command == COMMAND else {"command": self.command}),
        }

    @cached_property
    def hash(self) -> str:
        """Content hash of the plan."""
        return digest(self.content)


Identity = tuple[str | None, ...]
"""What decides a checkpoint's numbers, see `Target.identity`."""
Names = Mapping[Identity, str]
"""What a plan calls its checkpoints."""


def names_in(root: Path) -> Names:
    """What the plan of a folder calls its checkpoints; nothing where it is of an earlier version.

    Raises:
        InputError: the plan was changed, or a later version made it.
    """
    if not (root / PLAN).exists() or is_earlier(root):
        return {}
    return {tuple(one.identity): one.name for one in read_plan(root).targets}


def make_plan(
    root: Path,
    targets: Sequence[Target],
    *,
    anchors: Mapping[str, Target],
    variants: Sequence[Variant],
    conditions: UnitConditions,
    data: str,
    attacks: Mapping[str, Any],
    names: Names = MappingProxyType({}),
) -> Sweep:
    """The units of every target and variant; the anchors are added where they are not named.

    The retain model is a unit of every variant: what an attack does to it is the measure of what
    the attack does to others. A target that `names` knows keeps its name, and nobody else gets it.
    """
    everyone: dict[Identity, Target] = {}
    for one in (*(anchors[role] for role in ANCHORS), *targets):
        taken = {*names.values(), *(other.name for other in everyone.values())}
        own = f"{one.name}-{digest(one.identity)[:8]}" if one.name in taken else one.name
        name = names.get(tuple(one.identity), own)
        everyone.setdefault(tuple(one.identity), replace(one, name=name))
    named = {role: everyone[tuple(anchors[role].identity)].name for role in ANCHORS}
    asked = {everyone[tuple(target.identity)].name for target in targets} | {named["retain"]}
    keys = [[anchors[role].identity for role in ANCHORS], data, conditions.identity, ALGORITHM]
    units = [
        Unit(digest([target.identity, one, attacks.get(one), *keys]), target.name, one)
        for target in everyone.values()
        for one in VARIANTS
        if (one in variants and target.name in asked)
        or (one == "base" and target.name in named.values())
    ]
    return Sweep(
        conditions,
        data,
        named,
        tuple(everyone.values()),
        tuple(units),
        {one: attacks[one] for one in VARIANTS if one in attacks and one in variants},
        root=root,
    )


def target_of(spec: ModelSpec, opened: Checkpoint | None) -> Target:
    """Record of a checkpoint in a plan; `opened` where its content is known."""
    inner = spec.adapter
    return Target(
        name=_name_of(spec),
        repo=str(spec.local or spec.repo),
        revision=spec.revision,
        role=spec.role,
        method=spec.method,
        is_folder=spec.local is not None,
        weights=opened and opened.weights,
        tokenizer=opened and opened.tokenizer,
        adapter=inner and str(inner.local or f"{inner.repo}@{inner.revision}"),
    )


def planned(spec: ModelSpec) -> Target:
    """A checkpoint of the plan; a folder's is opened and hashed, the Hub is not asked."""
    opened = open_checkpoint(spec) if spec.is_here else None
    return replace(target_of(spec, opened), tokenization=opened and tokenization(opened))


def planned_or_why(spec: ModelSpec) -> tuple[Target, str]:
    """The same; of a folder that cannot be opened also why, which its units will say."""
    try:
        return planned(spec), ""
    except InputError as error:
        return target_of(spec, None), str(error)


def _name_of(spec: ModelSpec) -> str:
    """A name that a registry file accepts and a reader knows."""
    plain = spec.name if spec.name.startswith(DEMO) else spec.alias_of or spec.name
    if spec.name.startswith(DEMO) or file_name(plain) == plain.lower():
        return plain
    if spec.local is None or spec.adapter is not None:
        return file_name(plain)
    # of a folder its own name says enough, of `checkpoint-500` the run's name is wanted too
    parts = Path(plain).parts
    return file_name("-".join(parts[-2:] if parts[-1].startswith(_STEPS) else parts[-1:]))


def file_name(text: str, most_bytes: int = 120) -> str:
    """A name as a file name, in any alphabet; of a long one the end, with method, rate and step.

    >>> file_name("runs/模型甲"), file_name("grad_ascent/NPO_lr1e-05", 12)
    ('runs-模型甲', 'npo_lr1e-05')
    """
    whole = slug(text, len(text) * 4, letters=r"\w").encode()
    return whole[-most_bytes:].decode(errors="ignore").lstrip(".-_")


def has_plan(sweep: Sweep) -> bool:
    """Does the sweep's folder hold its plan already?

    Raises:
        InputError: the folder holds another plan, and units of it are none of the sweep's.
    """
    if not sweep.file.exists():
        return False
    # of a plan that an earlier version made nothing can be run, and its ids are others
    if is_earlier(sweep.root):
        content, labels = json_object(sweep.file), {unit.label for unit in sweep.units}
        units = checked_as(list[Unit], content.get("units"), sweep.file)
        lost = [unit.label for unit in units if unit.label not in labels]
        command, made = content.get("command", COMMAND), None
    else:
        found = read_plan(sweep.root)
        lost = [unit.label for unit in found.units if unit.id not in sweep.by_id]
        command, made = found.command, found.hash
    if lost:
        raise InputError(
            f"{sweep.root}: holds another plan, and these units of it are not in this one: "
            f"{shortened(lost, 6, ', ')}; plan them too and in the same way, or name another "
            "folder with --out"
        )
    if command != sweep.command:
        raise InputError(f"{sweep.root}: holds a plan of `{command}`; name another --out")
    return made == sweep.hash


def is_earlier(root: Path) -> bool:
    """Whether an earlier version made the plan that a folder holds."""
    return _schema(read_json(root / PLAN)) in range(1, SCHEMA)


def write_plan(sweep: Sweep) -> Path:
    """Write `plan.json`, unless it is there; in place of one only if that one's units all stay.

    Raises:
        InputError: units of the plan in the folder are none of the sweep's.
    """
    return sweep.file if has_plan(sweep) else replace_plan(sweep)


def replace_plan(sweep: Sweep) -> Path:
    """Write `plan.json`, whatever plan was there: finished units are found by their ids."""
    make_folder(sweep.root)
    return write_json(sweep.file, sweep.content | {"hash": sweep.hash})


def _schema(content: Any) -> Any:
    """Version of a plan's fields; None of what is no plan."""
    return part(content).get("schema")


def read_plan(root: Path) -> Sweep:
    """The sweep of a folder.

    Raises:
        InputError: there is none, it was changed, or another version wrote it.
    """
    path = root / PLAN
    if not path.exists():
        raise InputError(f"{root}: holds no plan.json; make one with `lensaudit sweep plan`")
    content = read_json(path)
    if not isinstance(content, dict) or _schema(content) != SCHEMA:
        raise InputError(
            f"{path}: is not a plan of this version (schema {_schema(content)}, wanted {SCHEMA}); "
            "plan again with `lensaudit sweep plan`, which keeps finished units that are the same, "
            "or name another folder"
        )
    made, now = content.pop("hash", None), None
    with contextlib.suppress(ValueError):  # NaN
        now = digest(content)
    if now is None or now != made:
        raise InputError(
            f"{path}: was changed after it was made; make another one in another folder with "
            "`lensaudit sweep plan`"
        )
    known = {one.name for one in fields(UnitConditions)}
    if unknown := sorted(part(content, "conditions").keys() - known):
        raise InputError(f"{path}: has the condition {unknown[0]!r}; another version wrote it")
    sweep = replace(checked(Sweep, content, path), root=root)
    base = {unit.target for unit in sweep.units if unit.variant == "base"}
    problems = {
        "a unit's id is no hash": not all(is_id(unit.id) for unit in sweep.units),
        "two units have one id": len(sweep.by_id) < len(sweep.units),
        "two checkpoints have one name": len(sweep.by_name) < len(sweep.targets),
        "a unit is of no checkpoint": any(one.target not in sweep.by_name for one in sweep.units),
        "an anchor is missing": any(sweep.anchors.get(role) not in base for role in ANCHORS),
    }
    # no `sweep plan` makes such a plan, whoever hashed it
    if wrong := [what for what, found in problems.items() if found]:
        raise InputError(f"{path}: {wrong[0]}; make the plan again with `lensaudit sweep plan`")
    return sweep


def relearning_of(conditions: UnitConditions, full: Target) -> Relearning:
    """The published attack, or that of the embedded family, as in `lensaudit relearn`.

    Args:
        conditions: may name another rate.
        full: of the family.
    """
    how = relearning_for(demo=full.reads_as(embedded_full()))
    return replace(how, lr=conditions.relearn_lr or how.lr)


def rater_files(classifier: str | None) -> list[list[str]]:
    """Name and content hash of every file in a classifier's folder; none where it is no folder."""
    return folder_sha256(Path(classifier)) if classifier else []


def relearned_rows(asked: Questions, named: Place | None) -> str:
    """Rows of the relearn variant, as `lensaudit relearn --data` takes them: those named, or asked.

    Args:
        asked: what the model is asked.
        named: other rows, where the user wants them relearned.
    """
    data, own = own_data(asked.data)
    if rows := named or asked.forget or own:
        return str(rows)
    if data == DEMO_ROWS:
        return DEMO_ROWS
    if data is not None and Path(data).is_dir():
        for suffix in ("", "_perturbed"):
            file = Path(data) / f"{asked.forget_split}{suffix}.jsonl"
            if file.is_file():
                return str(file)
    return asked.forget_split
