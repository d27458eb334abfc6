"""Which mechanisms are there? One decorated function each, found by name."""

import ast
import importlib.util
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from lensaudit.errors import InputError
from lensaudit.files import digest

if TYPE_CHECKING:
    from lensaudit.gym.claims import Planted
    from lensaudit.gym.ground import Ground

Truth = Literal["intact", "hidden", "partial", "absent", "damaged"]
"""Of the forget facts: said; silenced and still there; some of each; never there; `damaged` is for
models that lost something else, and counts neither as knowing nor as not."""


Plant = Callable[["Ground", float], "Planted"]
"""What a recipe makes of a ground at a strength."""


@dataclass(frozen=True)
class Mechanism:
    """Registered recipe: which truth it plants, how, and at what strengths."""

    name: str
    truth: Truth
    how: str
    """In words."""
    strengths: tuple[float, ...]
    """What it is made with; the first is the usual one."""
    unit: str
    """What a strength counts; empty: there is one only."""
    held_out: bool
    """No threshold is set on it: error is reported on these."""
    fn: Plant

    @property
    def version(self) -> str:
        """Content hash of the function: other code is another recipe."""
        return digest([self.name, self.truth, code_hash(inspect.getsource(self.fn))])[:16]

    def name_at(self, strength: float) -> str:
        """Name of a planted model, as its folder is called.

        >>> Mechanism("x", "absent", "", (0.5,), "share", False, None).name_at(0.5)
        'x-0.5'
        """
        return f"{self.name}-{strength:g}" if self.unit else self.name


def code_hash(source: str) -> str:
    """Of what code says, whatever its layout and comments.

    >>> code_hash("x = 1  # one") == code_hash("x=1"), code_hash("x = 1") == code_hash("x = 2")
    (True, False)
    """
    return digest(ast.dump(ast.parse(textwrap.dedent(source))))[:16]


RECIPES: dict[str, Mechanism] = {}
"""All of them by name, in the order they are written; those of `recipes` once it is imported."""


def recipe(
    name: str,
    *,
    truth: Truth,
    how: str,
    strengths: tuple[float, ...] = (1.0,),
    unit: str = "",
    held_out: bool | None = False,
) -> Callable[[Plant], Plant]:
    """Register a function that plants a truth; `held_out` None: `drawn` by its name.

    Raises:
        ValueError: two recipes of one name, or a name that is no file name.
    """

    def register(plant: Plant) -> Plant:
        half = drawn(name) if held_out is None else held_out
        made = Mechanism(name, truth, how, strengths, unit, half, plant)
        return enter(RECIPES, "recipe", name, made, plant)

    return register


def enter(known: dict[str, Any], kind: str, name: str, entry: Any, fn: Any) -> Any:
    """Keep a decorated function under its name.

    Raises:
        ValueError: there is another of this name, or it is no file name.
    """
    if not name.isidentifier():
        raise ValueError(f"{kind} {name!r}: wanted a name of letters, digits and _")
    before = known.get(name)
    if before is not None and before.fn.__module__ != fn.__module__:
        raise ValueError(f"{kind} {name}: there is one of this name already")
    known[name] = entry
    return fn


def drawn(name: str) -> bool:
    """Is a mechanism held out that nobody chose a side for? A hash of its name's first word says.

    Variants of one mechanism, which share that word, stand on one side.

    >>> drawn("gates") == drawn("gates_shared")
    True
    """
    return bool(int(digest(name.partition("_")[0])[:8], 16) % 2)


def named(names: Sequence[str], known: Mapping[str, Any], kind: str) -> list[Any]:
    """Entries under these names.

    Raises:
        InputError: an unknown name; the known ones are listed.
    """
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"no {kind} {unknown[0]!r}; there are {', '.join(known)}")
    return [known[name] for name in names]


def load_own(path: Path) -> ModuleType:
    """Run a Python file that registers recipes or auditors; it is code, run what you have read.

    Raises:
        InputError: no such file, or it cannot be run.
    """
    spec = importlib.util.spec_from_file_location(f"lensaudit_gym_own_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise InputError(f"{path}: wanted a Python file with decorated functions")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # inspect.getsource looks there
    try:
        spec.loader.exec_module(module)
    except (ImportError, SyntaxError, NameError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: cannot be run ({type(error).__name__}: {error})") from error
    return module
