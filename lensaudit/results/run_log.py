"""What was run, on what, and why do two numbers differ? Read from the manifests of result folders.

A run is a folder with `manifest.json`. Nothing is kept beside: the log is what is there.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal, TypeVar

from lensaudit.errors import InputError
from lensaudit.files import files_below, read_bytes, remove_files
from lensaudit.partials import is_partial
from lensaudit.progress import Notice, unheard
from lensaudit.results.integrity import answered_for, check_whole, misfits
from lensaudit.results.kinds.eval import LOGS
from lensaudit.results.kinds.patch import SCORES
from lensaudit.results.ledger_check import is_ledger
from lensaudit.results.locate import OF_RETAIN, PASSES, folders_below
from lensaudit.results.manifest import (
    BEGUN,
    MANIFEST,
    Manifest,
    manifests_of,
    signed_object,
)
from lensaudit.results.owner import another, place_of
from lensaudit.results.question import LOOKED_AT_BYTES
from lensaudit.results.reading import SUMMARY, JsonObject, checked, json_object, part
from lensaudit.turns import alone

T = TypeVar("T")
Weight = Literal["explains", "may explain", "does not matter"]

SUMMARIES = tuple(one.replace("_EVAL", "_SUMMARY") for one in LOGS)
"""Values of an evaluation, beside its log."""
_VALUES = (SUMMARY, *SUMMARIES, "aggregate.json")
"""Files of a run whose numbers are its values; the first that is there."""
PASS = re.compile(r"[a-z0-9._-]+-[0-9a-f]{16}\.npz")
"""What a kept pass is called."""
_BATCH = re.compile(
    r"batch_state\.json|batch-requests-\d+\.jsonl|batch-.+-[0-9a-f]{8}-(?:output|errors)\.jsonl"
)
"""What `judge batch run` keeps of what it sent and got."""
_KEEPS = (PASSES, "responses")
"""Folders of a run with what it keeps for the next one."""
_INSIDE: Mapping[str, Sequence[str]] = {
    "eval": (OF_RETAIN,),
    "relearn --audit": ("before/*", "after/*"),
}
"""Command -> where the runs lie that it makes for its own, each with a manifest."""
_CONFIGS = ("config.json", "adapter_config.json")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_OF_A_MODEL = ("model", "adapter_model", "pytorch_model")
"""What files of weights are called."""
_NO_MATTER = {
    "activations",
    "batch_size",
    "cache_batch",
    "classifier_tokens",
    "force",
    "fresh",
    "keep",
    "memory",
    "memory_bytes",
    "model",
    "out",
    "registry",
    "retain_log",
    "save_every",
    "workers",
}
"""Options that are places, names or sizes of batches: what they lead to is among the hashes."""
_CONTENT = {
    "options.data": {"inputs.facts", "inputs.asked", "inputs.data_digest", "inputs.data.forget"},
    "options.holdout": {"inputs.data.holdout"},
    "options.retain_set": {"inputs.data.retain"},
    "inputs.data": {"inputs.data_digest"},
}
"""Places of rows -> what may hold the hash of their content: where one does, they do not matter."""
_SCORED_BY = "inputs.scores_computed_by"
"""Versions -> how many scores they computed: a number that grows with the rows."""
_OWN = {"files", "asked", "check"}
"""Of a manifest, what it says of its files and of itself: told by values and inputs."""
_NAMES = {
    "forget_source",
    "name",
    "notes",
    "path",
    "repo",
    "retain_source",
    "revision",
    "start",
}
"""Of an input, what it is called; its hash says what it is."""


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    made: Manifest
    models: Mapping[str, str]
    """Role -> name."""
    values: Mapping[str, float]
    """Numbers of its summary."""
    score: str | None
    """Which of them it was run for."""
    manifest: JsonObject
    """All that it recorded."""

    @property
    def model(self) -> str:
        """What was audited, attacked or made."""
        roles = ("source", "model", "sources", *self.models)
        return next((self.models[role] for role in roles if role in self.models), "")

    @property
    def data(self) -> str | None:
        """Forget set, as it was named; else how many examples."""
        for key in ("data", "forget"):
            if isinstance(named := self.made.options.get(key), str):
                return named
        n = part(self.made.inputs, "examples").get("n")
        return f"{n} examples" if isinstance(n, int) else None

    @property
    def value(self) -> float | None:
        """The run's score."""
        return self.values.get(self.score) if self.score else None

    def document(self) -> dict[str, Any]:
        """The record as a JSON object."""
        return {
            "folder": str(self.folder),
            "command": self.made.command,
            "models": dict(self.models),
            "data": self.data,
            "score": self.score,
            "value": self.value,
            "finished": self.made.finished,
            "seconds": self.made.seconds,
            "versions": self.made.versions,
            "git_commit": self.made.git_commit,
        }


Pair = tuple[T | None, T | None]
"""Of either run; None where it has none."""


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side."""

    first: Run
    second: Run
    values: Mapping[str, Pair[float]]
    """Numbers that differ."""
    differing: Mapping[str, Pair[str]]
    """What was recorded and differs, as `options.tau` or `inputs.source.weights`."""
    weights: Mapping[str, Weight]
    """Whether each of it can move a number."""

    def of(self, weight: Weight) -> list[str]:
        """What explains the numbers, what may, or what does not matter, a line each."""
        return [
            f"{name}: {' -> '.join(map(_short, pair))}"
            for name, pair in self.differing.items()
            if self.weights[name] == weight
        ]

    def document(self) -> dict[str, object]:
        """The comparison as `runs diff --json` prints it."""
        return {
            "first": str(self.first.folder),
            "second": str(self.second.folder),
            "values": {key: list(pair) for key, pair in self.values.items()},
            "differing": [
                {"name": name, "first": one, "second": other, "weight": self.weights[name]}
                for name, (one, other) in self.differing.items()
            ],
            "sentence": self.sentence(),
        }

    def sentence(self) -> str:
        """What explains two numbers."""
        reasons, perhaps = self.of("explains"), self.of("may explain")
        if not self.values:
            what = "no number differs"
            return f"{what}, though {_listed(reasons)} does" if reasons else what
        if len(reasons) == 1:
            return f"explained by {reasons[0]}"
        if reasons:
            return f"{len(reasons)} things could explain it: {_listed(reasons)}"
        if perhaps:
            return f"nothing that was asked for differs, but {_listed(perhaps)}"
        return "nothing that is recorded differs"


def find_runs(places: Sequence[Path], notice: Notice = unheard) -> list[Run]:
    """Every finished run in some folders, the latest first.

    `notice` is told what is left out: a folder or manifest that cannot be read, and numbers that
    are not as they were written, or whose manifest is not.

    Raises:
        InputError: a place is no folder.
    """
    found: dict[Path, Run] = {}

    def unread(error: OSError) -> None:
        notice(f"{error.filename}: cannot be read ({error.strerror}); runs in it are left out")

    for place in places:
        if not place.is_dir():
            raise InputError(f"{place}: no such folder; wanted one with results")
        for folder, names in folders_below(place, unread=unread):
            if MANIFEST not in names:
                continue
            try:
                found[folder.resolve()] = read_run(folder, notice=notice)
            except InputError as error:
                notice(f"{error}; the run is left out")
    runs = [*found.values()]
    # a sweep keeps each unit by its hash, and collects it by its name
    collected = {one.manifest.get("check") for one in runs if not _of_unit(one)}
    runs = [one for one in runs if not _of_unit(one) or one.manifest.get("check") not in collected]
    return sorted(runs, key=lambda run: (run.made.finished, str(run.folder)), reverse=True)


def _of_unit(run: Run) -> bool:
    return run.folder.parent.parent.name == "units"


def read_run(folder: Path, *, whole: bool = False, notice: Notice = unheard) -> Run:
    """The run of a result folder.

    Args:
        folder: of its result.
        whole: refuse it where a file is not what its manifest says; of weights the size.
        notice: told that numbers are not as they were written: they are left out.

    Raises:
        InputError: it holds none, or a damaged one.
    """
    if not (folder / MANIFEST).is_file():
        raise InputError(f"{folder}: no {MANIFEST}; wanted the folder of a finished run")
    if whole:
        check_whole(folder, largest=LOOKED_AT_BYTES)
    manifest = json_object(folder / MANIFEST)
    made = checked(Manifest, manifest, folder / MANIFEST)
    content: JsonObject = {}
    with suppress(InputError):
        named = next((name for name in _VALUES if (folder / name).is_file()), None)
        ours = {"files", "check"} & manifest.keys()
        edited = misfits(folder, only=named or MANIFEST) if ours else []
        for line in edited:
            notice(f"{folder}: {line}; its numbers are left out")
        content = json_object(folder / named) if named and not edited else {}
    values = {
        key: float(value)
        for key, value in content.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    }
    score = SCORES.get(str(content.get("score")))
    return Run(folder, made, _models(made.inputs, made.options), values, score, manifest)


def compare(first: Run, second: Run) -> Comparison:
    """What differs between two runs, and which of it can move a number."""
    one, other = _flat(first.manifest), _flat(second.manifest)
    differing, both = _unlike(one, other), one.keys() & other.keys()
    weights: dict[str, Weight] = {name: _weight(name, both) for name in differing}
    return Comparison(first, second, _unlike(first.values, second.values), differing, weights)


def _unlike(one: Mapping[str, T], other: Mapping[str, T]) -> dict[str, Pair[T]]:
    pairs = {name: (one.get(name), other.get(name)) for name in dict.fromkeys([*one, *other])}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def tell_replaced(
    folder: Path,
    options: Mapping[str, Any],
    inputs: Mapping[str, Any],
    tell: Notice,
    name: str = MANIFEST,
) -> None:
    """Remark that the result of another run is replaced, whose work the folder's logs keep.

    Args:
        folder: of the results; may be missing.
        options: of this run, as its manifest will have them; places and sizes do not count.
        inputs: of this run, the same.
        tell: told by what the two differ first.
        name: of the manifest.
    """
    if (folder / name).exists():
        with suppress(InputError):  # a damaged one is replaced like any other
            why = difference(json_object(folder / name), {"options": options, "inputs": inputs})
            place_of(folder, why and another(why), "", named=True, replaced=True, tell=tell)


def difference(there: JsonObject, asked: JsonObject) -> str | None:
    """What a run has otherwise than another, as `name: theirs, here ours`; None: nothing is known.

    Args:
        there: manifest of the other run, or its mark of having begun.
        asked: options and inputs of this run, as its manifest will have them; of what they may
            differ in the first counts that can move a number, and nothing that they lack.
    """
    said, ours = _flat(there), _flat(asked)
    unlike = {one for one, value in ours.items() if said.get(one, "null") != value}
    names = [name for name in ours if name in unlike and _weight(name, said) == "explains"]

    def called(one: str) -> str | None:
        """What the model of these weights is called, where that differs too."""
        named = [f"{one.removesuffix('.weights')}.{name}" for name in ("name", "start")]
        return next((name for name in named if name in unlike), None)

    # other models first of all
    for one in sorted(names, key=lambda name: called(name) is None):
        shown = called(one) or one
        old, new = (texts.get(shown, "null") for texts in (said, ours))
        return f"{shown.partition('.')[2]}: {_short(old)}, here {_short(new)}"
    return None


def remove(run: Run, *, inner: Iterable[Path] = (), dry_run: bool = False) -> int:
    """Delete what runs wrote into a folder, file by file; how many bytes that frees.

    A file goes that a manifest in the folder names, or one of a run that this run made for its
    own, and what such a run keeps for the next one.

    Args:
        run: to delete.
        inner: folders of runs that may go with it, where they lie in it; others there stay.
        dry_run: only count.

    Raises:
        InputError: names what is neither, or a model; the folder is a link, or its manifest none
            of ours. Nothing was deleted.
        TryAgainError: another process works in the folder.
    """
    folder = run.folder
    if folder.is_symlink():
        raise InputError(f"{folder}: is a link; name the folder it leads to")
    own = folder / MANIFEST
    named = {own, *answered_for(own)}
    tops = [folder, *(one for one in inner if one.is_relative_to(folder))]
    tops += [one for part in _INSIDE.get(run.made.command, ()) for one in folder.glob(part)]
    for path in (top / name for top in tops for name in manifests_of(top)):
        with suppress(InputError):  # another program's, which is told with other foreign files
            named |= {path, *answered_for(path)}
    # a run that lies here and that none of them names is another's, with all that it keeps
    homes = {path.parent for path in named if path.name.endswith(MANIFEST)}
    for one in (path for path in folder.rglob("*") if path.suffix in _WEIGHTS):
        # also where its configuration was lost
        if one.name.startswith(_OF_A_MODEL) or any((one.parent / x).exists() for x in _CONFIGS):
            raise InputError(f"{one.parent}: holds a model, not results; delete it yourself")
    files = files_below(folder, lambda path: path in named or _is_left(path, homes))
    n_bytes = sum(one.stat().st_size for one in files)
    if not dry_run:
        # the manifests last: what a kill leaves can still be deleted
        last = sorted(files, key=lambda path: (path.name.endswith(MANIFEST), path == own))
        with alone(folder):
            remove_files(folder, last)
    return n_bytes


def _is_left(path: Path, homes: Collection[Path]) -> bool:
    """Whether one of these runs left a file for the next one: beside its manifest, or in `_KEEPS`.

    Another run's manifest has a checksum as well, but is its own.
    """
    home = path.parent.parent if path.parent.name in _KEEPS else path.parent
    return home in homes and not path.name.endswith(MANIFEST) and is_kept(path)


def is_kept(path: Path) -> bool:
    """What a run leaves for the next one: passes, ledgers, marks, documents with a checksum."""
    if path.name == BEGUN or is_partial(path) or _BATCH.fullmatch(path.name):
        return True
    if path.suffix == ".npz":
        return path.parent.name == PASSES and PASS.fullmatch(path.name) is not None
    if path.suffix == ".jsonl":
        return is_ledger(read_bytes(path))
    with suppress(InputError):
        return path.suffix == ".json" and bool(signed_object(path))
    return False


def _models(inputs: JsonObject, options: JsonObject) -> dict[str, str]:
    """Role -> name; what is hashed is a model where the options have no other name for it."""
    found = {
        role: str(one["name"])
        for role, one in inputs.items()
        if isinstance(one, Mapping) and isinstance(one.get("name"), str) and "weights" in one
    }
    for role in ("model", "name"):
        if not found and isinstance(options.get(role), str):
            found["model"] = str(options[role])
    return found


def _flat(manifest: JsonObject) -> dict[str, str]:
    """Dotted name -> value as text, of all that a manifest records."""
    found: dict[str, str] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                walk(name == _SCORED_BY or inner, f"{name}.{key}" if name else str(key))
        else:
            found[name] = value if isinstance(value, str) else json.dumps(value)

    walk({key: one for key, one in manifest.items() if key not in _OWN}, "")
    return found


def _weight(name: str, recorded: Collection[str] = ()) -> Weight:
    """Can a difference in this move a number, where both runs also recorded some names?

    >>> _weight("options.tau"), _weight("inputs.source.name"), _weight("versions.torch")
    ('explains', 'does not matter', 'may explain')
    >>> _weight("options.data"), _weight("options.data", ["inputs.data_digest"])
    ('explains', 'does not matter')
    """
    head, *rest = name.split(".")
    if head in ("versions", "git_commit", "device") or name == "options.device":
        return "may explain"
    if name.startswith(f"{_SCORED_BY}."):
        return "may explain"
    if not _CONTENT.get(name, set()).isdisjoint(recorded):
        return "does not matter"
    if head == "options":
        return "does not matter" if rest[0] in _NO_MATTER else "explains"
    if head == "inputs":
        return "does not matter" if rest[-1] in _NAMES or rest[0] in _NAMES else "explains"
    return "explains" if head == "command" else "does not matter"


def _short(text: str | None) -> str:
    if text is None:
        return "not recorded"
    return text if len(text) <= 40 else f"{text[:39]}…"


def _listed(lines: Sequence[str]) -> str:
    return "; ".join(lines[:5]) + (f"; and {len(lines) - 5} more" if len(lines) > 5 else "")
