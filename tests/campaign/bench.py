"""Working folders in which relations are asked: rows, warm caches, and results of other calls."""

import contextlib
import json
import os
import random
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from campaign.calls import Breach, Caller, Done
from campaign.folders import state
from campaign.recipes import FILES, RECIPES, Recipe

EXITS = {0, 2, 3, 4}
"""What a call may end with where nothing is wrong with the machine."""
WORDS = 3
"""Lines of an error."""
UNCHANGED = (".h5", ".safetensors")
"""Files that nobody writes into once they are there: linked, not copied."""


def slug(name: str) -> str:
    """The folder of a recipe's result."""
    return name.replace(" ", "-")


def linked(source: str, target: str) -> None:
    """A copy that costs nothing where a file is never written into."""
    if source.endswith(UNCHANGED):
        with contextlib.suppress(OSError):  # another disk
            os.link(source, target)
            return
    shutil.copy2(source, target)


class Bench:
    """Makes working folders and calls in them."""

    def __init__(self, shelf: Path, scratch: Path, seed: int) -> None:
        self.shelf = shelf
        self.scratch = scratch
        self.caller = Caller(scratch / "screens")
        self.random = random.Random(seed)
        self.call = self.caller.call
        self._n = 0

    def at_once(self, argv: Sequence[str], folder: Path, n: int) -> list[Done]:
        """The same call several times at once."""
        running = [self.caller.start(argv, folder) for _ in range(n)]
        return [self.caller.end(one) for one in running]

    def folder(self, *recipes: str, warm: bool = True, files: bool = True) -> Path:
        """A new working folder.

        Args:
            recipes: whose results, and those that these need, lie in it.
            warm: whether the caches of all recipes lie in it.
            files: whether rows and papers lie in it.
        """
        self._n += 1
        place = self.scratch / f"work-{self._n}"
        place.mkdir(parents=True)
        if files:
            write_files(place)
        for name in needed(recipes):
            self.bring(name, place)
        if warm and (self.shelf / "activations").is_dir():
            shutil.copytree(self.shelf / "activations", place / "activations", copy_function=linked)
        return place

    def bring(self, name: str, place: Path, called: str | None = None) -> Path:
        """The finished result of a recipe, copied into a working folder."""
        source = self.shelf / RECIPES[name].name.replace(" ", "-")
        found = [one for one in (source, *self.shelf.glob(f"{source.name}.*")) if one.exists()]
        if not found:
            raise Breach(f"the recipe {name!r} left no result")
        target = place / (called or found[0].name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if found[0].is_dir():
            shutil.copytree(found[0], target, symlinks=True)
        else:
            shutil.copy2(found[0], target)
        return target

    def done(self, argv: Sequence[str] | str, folder: Path, **how: Any) -> Done:
        """A call that must end well."""
        done = self.call(argv.split() if isinstance(argv, str) else argv, folder, **how)
        if done.exit != 0:
            raise Breach(f"{done}")
        return done


def needed(recipes: Iterable[str]) -> list[str]:
    """Recipes whose results must lie there, each once, in order of need."""
    found: list[str] = []
    for name in recipes:
        for one in (*needed(RECIPES[name].after), name):
            if one not in found and RECIPES[one].out and one not in ("cache", "init"):
                found.append(one)
    return found


def write_files(place: Path) -> None:
    """Rows and papers that every working folder begins with."""
    for path, text in FILES.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)


def prepare(recipe: Recipe, place: Path, shelf: Path) -> None:
    """What a recipe needs beside results: folders under other names."""
    for target, name in recipe.more.items():
        if not (place / target).exists():
            shutil.copytree(shelf / slug(name), place / target)


def well_said(done: Done, *, exits: Iterable[int] = EXITS, lines: int = WORDS) -> None:
    """Hold a call to how every call ends: a known code, few lines, no traceback.

    Raises:
        Breach: it ended otherwise.
    """
    if "Traceback (most recent call last)" in done.stderr + done.stdout:
        raise Breach(f"traceback: {done}")
    if done.exit not in set(exits):
        raise Breach(f"exit code: {done}")
    said = done.stderr.strip().splitlines()
    if done.exit != 0 and not said and not done.stdout.strip():
        raise Breach(f"nothing said: {done}")
    if done.exit == 2 and lines and len(said) > lines:
        raise Breach(f"{len(said)} lines on stderr: {done}")


def unchanged(before: dict[str, bytes], folder: Path, done: Done) -> None:
    """Hold a call to having changed no file below a folder."""
    from campaign.folders import changes

    if what := changes(before, state(folder, unseen=())):
        raise Breach(f"{what}, after {done}")


def document(done: Done) -> Any:
    """The one JSON document on stdout."""
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        raise Breach(f"stdout is no JSON document ({error}): {done}") from error
