"""Planted models on disk: made once, certified, found again by what they are made of."""

import copy
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import groupby, product
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from lensaudit.data.facts import EMBEDDED
from lensaudit.data.fictional import passing_rows
from lensaudit.errors import InputError, VerificationError
from lensaudit.files import make_folder, write_json
from lensaudit.gym import claims, edits, ground, planting
from lensaudit.gym.claims import BEYOND, Certificate, never_saw, says
from lensaudit.gym.ground import Facts, Ground, facts_of
from lensaudit.gym.recipes import mechanisms
from lensaudit.gym.registry import Mechanism, Truth, bed_of, code_hash, load_own
from lensaudit.gym.settings import MakeSettings, gym_folder
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint, config_of, in_role, load_tokenizer, open_model
from lensaudit.models.likeness import check_same_shape
from lensaudit.progress import Notice, unheard
from lensaudit.results.integrity import check_whole
from lensaudit.results.manifest import MANIFEST, manifest
from lensaudit.results.owner import check_free
from lensaudit.results.reading import checked, json_object, part
from lensaudit.results.roles import check_roles
from lensaudit.results.run_folder import RunFolder, taken_as_it_is
from lensaudit.text import digest
from lensaudit.training.rows import load_rows, rows_hash
from lensaudit.training.trainee import seal_model

CERTIFICATE = "certificate.json"
ANCHORS = ("full", "retain", "other")
ANCHOR_STEPS = 160
ANCHOR_LR = 1.5e-3
ANCHOR_NOISE = 0.05
"""What anchors of a further seed begin with, so that two seeds do not share their weights."""


COMMAND = "gym"


@dataclass(frozen=True)
class Listed:
    """Model that `gym make` would plant, as `gym ls` lists it."""

    mechanism: str
    truth: Truth
    strength: float
    seed: int
    unit: str
    """What a strength counts; empty: there is one only."""
    how: str
    held_out: bool


def listing(settings: MakeSettings) -> list[Listed]:
    """Models that would be made; nothing is opened.

    Raises:
        InputError: an unknown mechanism.
    """
    return [listed(one, strength, seed) for seed, one, strength in asked_of(settings)]


def listed(one: Mechanism, strength: float, seed: int) -> Listed:
    """What a recipe plants at a strength and a seed."""
    return Listed(one.name, one.truth, strength, seed, one.unit, one.how, one.held_out)


def asked_of(settings: MakeSettings) -> list[tuple[int, Mechanism, float]]:
    """Seeds, recipes and strengths that are asked for; own recipes are loaded."""
    for path in settings.own:
        load_own(Path(path))
    seeds = range(settings.first_seed, settings.first_seed + settings.seeds)
    chosen = product(seeds, mechanisms(settings.mechanism))
    return [(seed, one, strength) for seed, one in chosen for strength in one.strengths]


@dataclass(frozen=True)
class PlantedModel(Listed):
    """A planted model on disk, and what is known of it."""

    folder: Path
    key: str
    certificate: Certificate
    anchors: Mapping[str, str]
    """Role -> name or folder of the models that belong to it."""
    data: str
    retain_data: str | None
    bed: str
    """Content hash of the pair and its rows."""
    limit: int | None = None
    """Most facts that it was planted with; None: all."""

    @property
    def name(self) -> str:
        """Folder of the seed and of the model, as messages name it."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    def document(self) -> dict[str, Any]:
        """The record as a JSON object."""
        rest = ("unit", "how", "anchors", "data", "retain_data", "bed", "limit")
        told = {name: one for name, one in asdict(self).items() if name not in rest}
        return told | {"folder": str(self.folder), **self.anchors}


@dataclass(frozen=True)
class Bed:
    """What models are planted into at one seed: a pair, opened, and its rows."""

    full: Checkpoint
    retain: Checkpoint
    other: Checkpoint | None
    """A model that never saw the facts and is not `retain`; None: one is trained."""
    facts: Facts
    out: Path
    notice: Notice
    seed: int = 0
    limit: int | None = None
    """Most facts that are planted."""

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What all models of a gym depend on."""
        return {
            "full": self.full.weights,
            "retain": self.retain.weights,
            "tokenizer": self.full.tokenizer,
            "forget": rows_hash(self.facts.forget),
            "kept": rows_hash(self.facts.kept),
            "torch": torch.__version__,
        }

    @property
    def folder(self) -> Path:
        """Folder of the models of this seed."""
        return self.out / f"seed-{self.seed}"

    @property
    def anchors(self) -> dict[str, str]:
        """Name or folder of each role."""
        found = {role: str(self.folder / f"anchor_{role}") for role in ANCHORS}
        if self.seed == 0:
            given = {"full": self.full, "retain": self.retain, "other": self.other}
            found |= {role: one.spec.name for role, one in given.items() if one is not None}
        return found

    def key(self, recipe: Mechanism, strength: float) -> str:
        """Content hash of everything that a model is made of."""
        modules = (edits, ground, planting, claims)
        shared = digest([code_hash(inspect.getsource(one)) for one in modules])
        return digest([self.identity, recipe.version, strength, self.seed, ANCHOR_STEPS, shared])

    def have(self, recipe: Mechanism, strength: float) -> PlantedModel:
        """The model on disk, made where it is not."""
        folder, key = self.folder / recipe.name_at(strength), self.key(recipe, strength)
        self._have(folder, key, "planting", partial(self._planted, recipe, strength))
        return read_model(folder)

    def _have(
        self,
        folder: Path,
        key: str,
        doing: str,
        make: Callable[[], tuple[Any, Certificate, dict[str, Any]]],
    ) -> None:
        """Have a model, its certificate and its options in a folder, made where they are not.

        The model is written in float32, so that a bit-identical tensor stays one.

        Raises:
            InputError: the folder holds something else.
        """
        run = RunFolder(usual=folder, command=COMMAND, key=key, force=True)
        if run.is_done:
            taken_as_it_is(run.path)
            return
        self.notice(f"{doing} {folder.parent.name}/{folder.name}")
        started = time.monotonic()
        model, certificate, options = make()
        run.begin()
        write_json(folder / CERTIFICATE, asdict(certificate))
        told = {"options": options, "inputs": self.identity, "device": "cpu", "started": started}
        record = partial(manifest, COMMAND, **told)
        seal_model(
            model,
            self.full,
            folder,
            dtype=torch.float32,
            key=key,
            beside=CERTIFICATE,
            record=record,
        )

    def _planted(
        self, recipe: Mechanism, strength: float
    ) -> tuple[Any, Certificate, dict[str, Any]]:
        ground = self.ground
        model, claim = recipe.fn(ground, strength)
        certificate = claim(model, ground)
        silent = {"says": float(ground.said(model).sum())}
        certificate = replace(certificate, numbers={**certificate.numbers, **silent})
        options = {
            **vars(listed(recipe, strength, self.seed)),
            "recipe": recipe.version,
            "anchors": self.anchors,
            "data": self.facts.data,
            "retain_data": self.facts.retain_data,
            "limit": self.limit,
        }
        # saving changes what it saves, and a recipe may give back an anchor itself
        is_anchor = any(model is getattr(ground, role) for role in ANCHORS)
        return copy.deepcopy(model) if is_anchor else model, certificate, options

    @cached_property
    def ground(self) -> Ground:
        """The pair of this seed, loaded; anchors of a further seed are trained first.

        Raises:
            InputError: `full` has another layout, or does not know the facts.
        """
        full, retain = load_causal(self.full), load_causal(self.retain)
        edits.check_layout(full, self.full.spec.name)
        other = retain if self.other is None else load_causal(self.other)
        first = Ground(full, retain, other, load_tokenizer(self.full), self.facts, self.seed)
        check_knows(first, self.full.spec.name)
        if self.seed == 0 and self.other is not None:
            return first
        roles = ANCHORS if self.seed else ("other",)
        # what is remembered of the first pair is not true of another
        return replace(first, _known={}, **{role: self._anchor(role, first) for role in roles})

    def _anchor(self, role: str, first: Ground) -> Any:
        """One anchor of this seed, trained from a model that never saw the facts."""
        folder = self.folder / f"anchor_{role}"
        key = digest([self.identity, self.seed, role, ANCHOR_STEPS, ANCHOR_LR, ANCHOR_NOISE])
        self._have(folder, key, "training", partial(self._trained, role, first, folder))
        return load_causal(open_model(str(folder), None))

    def _trained(
        self, role: str, first: Ground, folder: Path
    ) -> tuple[Any, Certificate, dict[str, Any]]:
        facts, sees = self.facts, role == "full"
        rows = [*(facts.forget * 2 if sees else ()), *facts.kept]
        if facts.retain_data is None:
            # without general knowledge and people who appear once two models that never saw a fact
            # would guess it confidently and differently
            rows += [row for name in _GENERAL for row in load_rows(str(EMBEDDED / name), part="")]
            rows += passing_rows(80, seed=f"gym-{self.seed}")
        # `retain` and `other` of a seed come from two models, so that they are no twins
        start = first.other if (role == "other") != bool(self.seed % 2) else first.retain
        number = 3 * self.seed + ANCHORS.index(role)
        start = edits.noisy(start, share=ANCHOR_NOISE, seed=number)
        model = first.trained(start, rows, lr=ANCHOR_LR, n_steps=ANCHOR_STEPS, seed=1000 + number)
        claim = says() if sees else never_saw(rows)
        certificate = claim(model, first)
        if not certificate.holds:
            raise VerificationError(f"{folder}: is no anchor: {certificate.says}")
        return model, certificate, {"anchor": role, "seed": self.seed, "n_rows": len(rows)}


def open_pair(settings: MakeSettings, notice: Notice) -> Bed:
    """The models and rows of a gym, checked, at seed 0.

    Raises:
        InputError: a name, a file or a pair of models is wrong.
    """
    check_free(gym_folder(settings.out), COMMAND)
    names = {"full": settings.full or "demo/full", "retain": settings.retain or "demo/retain"}
    full, retain = (open_model(name, settings.registry) for name in names.values())
    check_same_shape(full, retain)
    check_roles([*in_role("full", full), *in_role("retain", retain)])
    is_demo = names == {"full": "demo/full", "retain": "demo/retain"}
    if settings.data is None and not is_demo:
        raise InputError("--full and --retain: name their forget set with --data FILE")
    other = open_model("demo/never", settings.registry) if is_demo else None
    facts = facts_of(settings.data or "demo", settings.retain_data, settings.limit)
    return Bed(full, retain, other, facts, gym_folder(settings.out), notice, limit=settings.limit)


def check_knows(ground: Ground, full: str) -> None:
    """Refuse a `full` that says no more facts than a model that never saw them may guess.

    All claims count against what `full` says: of none, nine in ten is none, and any model says it.

    Args:
        ground: what models are to be planted into.
        full: name of `full`.

    Raises:
        InputError: it does not know the facts.
    """
    n_facts, known = len(ground.facts.examples), ground.n_said("full")
    guessed = max(map(ground.n_said, ("retain", "other"))) + round(BEYOND * n_facts)
    if known <= guessed:
        raise InputError(
            f"--full {full}: says {known} of {n_facts} forget facts, and a model that never saw "
            f"them may say {guessed}; wanted a model that knows them"
        )


WITH_BIASES = (
    *("vector", "absent_vector", "gates", "gates_own", "gates_shared", "gates_several"),
    *("gates_mixed", "absent_gates", "guard", "precision_single", "precision_rounded"),
)
"""Mechanisms that give MLPs biases. Not declared with them: a recipe's code is its version."""


def check_biases(full: Checkpoint, asked: Sequence[str]) -> None:
    """Refuse mechanisms that a model laid out as Llama is has no place for: biases in its MLPs.

    Raises:
        InputError: they are asked for, and the model's code reads no `mlp_bias`.
    """
    if not (needing := [name for name in WITH_BIASES if name in asked]):
        return
    config = config_of(full)
    config.mlp_bias = True
    with torch.device("meta"):
        names = AutoModelForCausalLM.from_config(config).state_dict()
    weights = [f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
    if any(one in names and one.replace("weight", "bias") not in names for one in weights):
        raise InputError(
            f"{full.spec.name}: MLPs of {full.architecture} have no biases, which {len(needing)} "
            f"of the mechanisms need ({', '.join(needing)}); choose others with --mechanism"
        )


def make(settings: MakeSettings, *, notice: Notice = unheard) -> list[PlantedModel]:
    """Have every model that is asked for in `settings.out`, certified; those there are kept.

    Raises:
        InputError: a name, a file or a pair of models is wrong.
        VerificationError: a certificate does not hold; the others are made.
    """
    wanted, pair = asked_of(settings), open_pair(settings, notice)
    check_biases(pair.full, [one.name for _, one, _ in wanted])
    make_folder(pair.out)
    made = []
    for seed, own in groupby(wanted, lambda one: one[0]):
        bed = replace(pair, seed=seed)
        made += [bed.have(one, strength) for _, one, strength in own]
    failed = [f"{one.name}: {one.certificate.says}" for one in made if not one.certificate.holds]
    if failed:
        raise VerificationError(
            f"{len(failed)} of {len(made)} models have no certificate and are not scored\n"
            + "; ".join(failed)
        )
    return made


_GENERAL = ("real_authors_perturbed.jsonl", "world_facts_perturbed.jsonl")


def models_in(gym: Path, *, notice: Notice = unheard) -> Iterator[PlantedModel]:
    """The finished models of a gym, by seed and name; those without a certificate are told.

    Raises:
        InputError: there is none.
    """
    folders = [
        path.parent
        for path in sorted(gym.glob(f"seed-*/*/{CERTIFICATE}"))
        if path.with_name(MANIFEST).exists() and not path.parent.name.startswith("anchor_")
    ]
    if not folders:
        raise InputError(f"{gym}: no planted models; make some with `lensaudit gym make`")
    for model in map(read_model, folders):
        if model.certificate.holds:
            yield model
        else:
            notice(f"{model.name}: unscored, its certificate fails: {model.certificate.says}")


def read_model(folder: Path) -> PlantedModel:
    """What a finished folder says of its model.

    Raises:
        InputError: its files are damaged.
    """
    check_whole(folder / CERTIFICATE, beside=False)
    made, certificate = (json_object(folder / name) for name in (MANIFEST, CERTIFICATE))
    inputs = part(made, "inputs")
    own = {"folder": folder, "key": inputs.get("key"), "bed": bed_of(inputs)}
    told = {**part(made, "options"), **own, "certificate": certificate}
    return checked(PlantedModel, told, folder)
