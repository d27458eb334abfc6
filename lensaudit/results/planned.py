"""Planned units of sweeps that have no result.

The folder of a sweep says so by its plan, what `sweep collect` wrote by a list, and the folder of
one variant by a list of its own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from lensaudit.errors import InputError
from lensaudit.files import os_errors, read_json
from lensaudit.results.keyed import keyed_document
from lensaudit.results.locate import COLLECTED, NO_RESULTS, folders_below
from lensaudit.results.manifest import MANIFEST, PARTS, is_signed, signed_object
from lensaudit.results.reading import JsonObject, part

PLAN = "plan.json"
UNITS = "units"
"""Beside a plan: a folder for each finished unit."""
RESULT = "result.json"
TO_DO = "to_do.json"
"""Model -> why it has no result, beside the folders of those that have one."""
_Said = tuple[str | None, JsonObject]
"""Hash of the plan that a file tells of, and its units without a result: unit -> why."""


def unit_label(model: str, variant: str) -> str:
    """Name of a unit in messages."""
    return model if variant == "base" else f"{model} ({variant})"


def missing_in(places: Iterable[Path]) -> Iterator[tuple[Path, str, str]]:
    """Planned units of sweeps that have no result: file that says so, unit, and why.

    Raises:
        InputError: such a file was edited or damaged.
    """
    found = list[tuple[Path, str | None, JsonObject]]()
    for place in places:
        told = set[Path]()
        for folder, names in folders_below(place, skipped=NO_RESULTS, links=True):
            # a plan counts before what was collected of it, and that before its variants
            known = not told.isdisjoint(folder.parents)
            read = (folder / one for one in _READ if one in names and (one == PLAN or not known))
            for file in filter(Path.is_file, read):
                if (said := _READ[file.name](file)) is not None:
                    told.add(folder)
                    found.append((file, *said))
    plans = {plan for file, plan, _ in found if file.name == PLAN}
    for file, plan, lacks in found:
        if file.name == PLAN or plan not in plans:
            yield from ((file, unit, str(why)) for unit, why in lacks.items())


def _of_plan(file: Path) -> _Said | None:
    """Units of a plan without a result; None of a plan of `meta`, or of another program."""
    content = part(read_json(file)) if is_ours(file) else {}
    if "lensaudit" not in content:
        return None
    made = content.pop("hash", None)
    if not is_signed({"check": made, **content}):
        raise InputError(f"{file}: was changed after it was made; plan the sweep again")
    if "command" in content:
        return None
    try:
        return made, {
            unit_label(one["target"], one["variant"]): (
                f"not finished; `lensaudit sweep status {file.parent}` says more"
            )
            for one in content["units"]
            if keyed_document(file.parent / UNITS / one["id"] / RESULT, one["id"]) is None
        }
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(f"{file}: no plan of units ({error}); plan the sweep again") from error


def _of_collection(file: Path) -> _Said:
    """Units that a collection lacks, of a plan as it was then."""
    found = signed_object(file)
    return str(found.get("plan")), part(found, "missing")


def is_ours(plan: Path) -> bool:
    """Whether a plan is of a sweep, be it cut or damaged: it names the version or has units."""
    with os_errors(plan):
        return (plan.is_file() and b'"lensaudit"' in plan.read_bytes()) or (
            plan.parent / UNITS
        ).is_dir()


def _of_variant(file: Path) -> _Said | None:
    """Units of a variant without a result; None of a list that is in no folder of a collection."""
    folder = file.parent.resolve()
    beside = {one.parent.name for one in folder.glob(f"*/*/{MANIFEST}")}
    if beside.isdisjoint(PARTS) and not (folder.parent / COLLECTED).is_file():
        return None
    found = read_json(file)
    if not isinstance(found, dict):
        return None
    return None, {unit_label(one, folder.name): why for one, why in found.items()}


_READ: Mapping[str, Callable[[Path], _Said | None]] = {
    PLAN: _of_plan,
    COLLECTED: _of_collection,
    TO_DO: _of_variant,
}
"""Files that say what is missing -> how each is read; None of one that is another program's."""
