"""Which mechanisms and auditors are there? One decorated function each, found by name."""

import ast
import inspect
import json
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lensaudit.errors import InputError
from lensaudit.files import read_text
from lensaudit.own_code import calling_own, enter, is_outside
from lensaudit.plugins import code_of, load_entries, run_own
from lensaudit.results.reading import Length, Number, Text, Whole, checked
from lensaudit.results.roles import ends_as_sources
from lensaudit.text import digest

if TYPE_CHECKING:
    from lensaudit.gym.auditors import Case
    from lensaudit.gym.claims import Planted
    from lensaudit.gym.ground import Ground

Truth = Literal["intact", "hidden", "partial", "absent", "damaged"]
"""Of the forget facts: said; silenced and still there; some of each; never there; `damaged` is for
models that lost something else, and counts neither as knowing nor as not."""
KNOWS, FORGOT = ("intact", "hidden"), ("absent",)
"""Truths that are told apart; partial and damaged models are shown apart."""
Reads = Literal["stream", "aligned", "outputs", "training", "weights"]
"""What an auditor looks at: the stream through `full`; the stream carried to `full`'s basis, or in
its own; what the model says; what training on some rows brings; the weights themselves."""
HighMeans = Literal["knows", "forgot"]

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
        """Content hash of the function, of somebody's own of its file: what it calls is there."""
        own = code_of(self.fn) if is_outside(self.fn) else code_hash(inspect.getsource(self.fn))
        return digest([self.name, self.truth, own])[:16]

    def name_at(self, strength: float) -> str:
        """Name of a planted model, as its folder is called.

        >>> Mechanism("x", "absent", "", (0.5,), "share", False, None).name_at(0.5)
        'x-0.5'
        """
        return f"{self.name}-{strength:g}" if self.unit else self.name


@dataclass(frozen=True)
class AuditorScore:
    """Score of one model, of its facts where there are any, and whether the control held."""

    score: Number | None
    facts: Mapping[int, Number] | None = None
    """Idx -> score of one fact, with the same meaning."""
    control: bool | None = None
    """Whether the auditor's own control passed; None: it has none beside its anchors."""
    why: str | None = None
    """Why there is no score."""
    ci95: tuple[Number, Number] | None = None
    """Of the score, by authors; None: the auditor gives none, or there are too few."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Kind of result -> what its summary holds for a verdict."""


@dataclass(frozen=True, kw_only=True)
class ScoreRow(AuditorScore):
    """A line of scores: what an auditor says of a model, and what is true of that."""

    auditor: Text
    version: str
    reads: str
    high_means: HighMeans
    model: Text
    mechanism: Text
    truth: Truth | Literal["anchor"]
    strength: Number
    seed: Whole
    held_out: bool
    knows: Sequence[Whole] | None
    seconds: Length

    @property
    def point(self) -> float:
        """The score; NaN where there is none."""
        return math.nan if self.score is None else self.score

    @property
    def holds(self) -> float:
        """Share of the facts that the model holds, silenced or not."""
        if self.truth != "partial":
            return float(self.truth in KNOWS)
        n_facts = len(self.evidence["patch"]["rows"])
        return len(self.knows or ()) / n_facts if n_facts else 0.0


@cache
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
        ValueError: two recipes of one name, a name that is no file name, or strengths whose models
            would share a folder.
    """

    def register(plant: Plant) -> Plant:
        half = drawn(name) if held_out is None else held_out
        one = Mechanism(name, truth, how, strengths, unit, half, plant)
        if len({*map(one.name_at, strengths)}) < len(strengths):
            raise ValueError(
                f"recipe {name}: models of its strengths {strengths} share a folder; give them a "
                "unit=, and strengths that differ in six digits"
            )
        return enter(RECIPES, "recipe", one)

    return register


@dataclass(frozen=True)
class Auditor:
    """A registered way to ask, with what it reads and what a high score means."""

    name: str
    reads: Reads
    high_means: HighMeans
    cheap: bool
    """Seconds a model of the embedded family; the others take minutes and are asked for by name."""
    source: str
    fn: Callable[..., Any]
    """As it is written, of a case or of all cases of one seed."""
    judge: Callable[[Sequence["Case"]], list[AuditorScore]]
    """Scores of an auditor, one per case."""

    @property
    def version(self) -> str:
        """Content hash of the file that the function stands in and of all that it may call."""
        if is_outside(self.fn):
            return digest([self.name, code_of(self.fn), engine_version()])[:16]
        own = code_hash(read_text(Path(inspect.getfile(self.fn))))
        return digest([self.name, own, engine_version()])[:16]


_PACKAGE = __name__.partition(".")[0]
ENGINE = ("gym/auditors.py", "gym/others.py", "metrics/*.py", "data/template_process.py")
"""Files of the package in which a score begins, whatever auditor says it: what no import names, as
metrics, which are found by their folder, and a program that is started, is listed here."""


@lru_cache
def engine_version(package: Path = Path(__file__).parents[1]) -> str:
    """Content hash of the code that scores depend on: `ENGINE` and what that imports, however far.

    A score belongs to the engine that made it: another one is asked again. Layout, comments and
    docstrings count for nothing.
    """
    import torch  # takes a second

    todo = [path for pattern in ENGINE for path in package.glob(pattern)]
    code: dict[str, str] = {}
    while todo:
        path = todo.pop()
        if (name := path.relative_to(package).as_posix()) not in code:
            tree = ast.parse(read_text(path))
            todo += _imported(tree, package)
            for node in ast.walk(tree):
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                    node.value = ast.Constant(None)  # a docstring
            code[name] = digest(ast.dump(tree))
    return digest([sorted(code.items()), torch.__version__])


def _imported(tree: ast.Module, package: Path) -> Iterator[Path]:
    """Files of the package that a module imports, inside functions too."""
    for node in ast.walk(tree):
        found = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            found = [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
        for first, *names in (one.split(".") for one in found):
            if first == _PACKAGE:
                place = package.joinpath(*names)
                files = (place.with_suffix(".py"), place / "__init__.py") if names else ()
                yield from filter(Path.is_file, files)


def bed_of(inputs: Mapping[str, Any]) -> str:
    """Content hash of a pair and its rows, from the inputs in the manifest of a planted model."""
    return digest([inputs.get(name) for name in ("full", "retain", "forget", "kept")])[:16]


AUDITORS: dict[str, Auditor] = {}
"""Registered auditors by name."""


def auditor(
    name: str,
    *,
    reads: Reads,
    high_means: HighMeans,
    source: str,
    cheap: bool = True,
    at_once: bool = False,
) -> Callable[[Any], Any]:
    """Register a function of a case, or with `at_once` of all cases of one seed.

    Raises:
        ValueError: two auditors of one name, or a name that is no file name.
    """

    def register(fn: Any) -> Any:
        every = fn if at_once else lambda cases: [fn(case) for case in cases]
        sound = _sound(name, every) if is_outside(fn) else every
        judge = ends_as_sources()(sound)  # anchors are cases too
        return enter(
            AUDITORS, "auditor", Auditor(name, reads, high_means, cheap, source, fn, judge)
        )

    return register


def _sound(name: str, judge: Callable[..., Any]) -> Callable[..., list[AuditorScore]]:
    """The scores of an auditor of somebody else's, if they are scores.

    Raises:
        InputError: it raises, or gives something else.
    """

    def judged(cases: Sequence["Case"]) -> list[AuditorScore]:
        with calling_own(f"auditor {name}"):
            found = [_as_kept(f"auditor {name}: gave {one!r:.40}", one) for one in judge(cases)]
        if len(found) != len(cases):
            raise InputError(f"auditor {name}: gave {len(found)} scores of {len(cases)} models")
        return found

    return judged


def _as_kept(told: str, one: Any) -> AuditorScore:
    """A score as a ledger gives it back, scalars of NumPy and torch as numbers.

    Raises:
        InputError: it is no score, or none that can be kept; `told` begins the message.
    """
    if not isinstance(one, AuditorScore) or (one.score is None and not one.why):
        raise InputError(f"{told}, wanted a score or a reason")
    facts: Any = one.facts
    if isinstance(facts, Mapping):  # JSON asks nobody about keys
        facts = {idx.item() if hasattr(idx, "item") else idx: of for idx, of in facts.items()}
    kept = json.dumps(vars(one) | {"facts": facts}, default=lambda value: value.item())
    return checked(AuditorScore, json.loads(kept), told)


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


def bring_auditors(names: Sequence[str]) -> None:
    """Import auditors that installed packages bring under these names.

    Raises:
        InputError: one cannot be imported.
    """
    load_entries("auditors", [name for name in names if name not in AUDITORS])


def load_own(path: Path) -> None:
    """Run a Python file that registers recipes or auditors; it is code, run what you have read.

    Raises:
        InputError: no such file, or it cannot be run.
    """
    run_own(path, "decorated functions")
