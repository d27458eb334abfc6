"""Code from outside the package: files that a person names, entries of installed packages.

Both are run late, when a question names them, and what they raise is one line. Groups of entry
points are `lensaudit.metrics`, `lensaudit.attacks`, `lensaudit.suites`, `lensaudit.rubrics` and
`lensaudit.auditors`; an entry is loaded where its own name is asked for.
"""

import ast
import inspect
import runpy
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from importlib import invalidate_caches, metadata
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any, Literal

from lensaudit.errors import InputError
from lensaudit.files import read_bytes, read_text
from lensaudit.once import holding
from lensaudit.own_code import OWN, calling_own
from lensaudit.text import digest

Group = Literal["metrics", "attacks", "suites", "rubrics", "auditors"]
_refused: ContextVar[frozenset[str]] = ContextVar("refused", default=frozenset())
_LIBRARIES = {"site-packages", "dist-packages"}
_imported: dict[str, str] = {}
"""Helper of a file that was run -> content hash of then."""


def run_own(path: Path, wanted: str) -> dict[str, Any]:
    """The names that a file defines; it is code, run what you have read.

    Args:
        path: of the file.
        wanted: what it should hold, for the message.

    Raises:
        InputError: no such file, or it cannot be run.
    """
    if not path.is_file() or path.suffix != ".py":
        raise InputError(f"{path}: wanted a Python file with {wanted}")
    invalidate_caches()  # a helper may have been written just now
    now = _helper_codes(path)
    # what somebody else imported may be of an older text
    known = {name: "" if name in sys.modules else code for name, code in now.items()} | _imported
    if any(known[name] != code for name, code in now.items()):
        for name in now:  # all of them: one may hold what it took from another
            sys.modules.pop(name, None)
    _imported.update(now)
    with calling_own(f"{path}: cannot be run"):
        found = runpy.run_path(str(path), run_name=f"{OWN}{path.stem}")
        _imported.update(_helper_codes(path))  # those too that it made a path to
        return found
    raise AssertionError("what the block raises is raised again")


def _helper_codes(path: Path) -> dict[str, str]:
    return {name: digest(_text(file)) for name, file in helpers_of([path]).items()}


def refusing(names: Iterable[str]) -> AbstractContextManager[None]:
    """Import no entry of these names in this block: a project file says them, and no person."""
    return holding(_refused, frozenset(names))


def run_files(
    files: Iterable[str | Path], known: Mapping[str, Any], names: Iterable[str], flag: str
) -> None:
    """Run files that enter something under names, of which one is asked for.

    Args:
        files: that a person named.
        known: what is entered, by name.
        names: that are asked for.
        flag: by which that is done.

    Raises:
        InputError: a file cannot be run, enters nothing, or nothing that is asked for.
    """
    for path in map(Path, files):
        before = dict(known)
        run_own(path, "decorated functions")
        new = [name for name, one in known.items() if before.get(name) is not one]
        if not {*new} & {*names}:
            brings = f"brings {', '.join(new)}; ask for one" if new else "enters nothing to ask for"
            raise InputError(f"{path}: {brings} with {flag}")


def entries(group: Group, names: Iterable[str]) -> dict[str, metadata.EntryPoint]:
    """The entries of installed packages of these names; nothing of them is imported.

    Raises:
        InputError: two packages have one of the same name.
    """
    wanted, found = {*names}, dict[str, metadata.EntryPoint]()
    for one in metadata.entry_points(group=f"lensaudit.{group}") if wanted else ():
        if one.name in wanted and found.setdefault(one.name, one).value != one.value:
            both = f"{found[one.name].value} and {one.value}"
            raise InputError(f"{one.name}: two installed packages bring it, {both}; remove one")
    return found


def load_entries(group: Group, names: Iterable[str]) -> dict[str, Any]:
    """What the entries of these names stand for, imported; those that there are none of are left.

    Raises:
        InputError: one cannot be imported, or no person named it.
    """
    found = {}
    for name, one in entries(group, names).items():
        if name in _refused.get():
            raise InputError(
                f"{name}: is code of an installed package ({one.value}), which no project file "
                "may run; give it on the command line"
            )
        with calling_own(f"{name}: {one.value} (lensaudit.{group}) cannot be imported"):
            found[name] = one.load()
    return found


def code_of(function: Any) -> str:
    """Content hash of the file of a function, or of all modules of its package, with helpers."""
    top = sys.modules.get(function.__module__.partition(".")[0])
    folders = map(Path, getattr(top, "__path__", ()))
    every = [(one.relative_to(folder), one) for folder in folders for one in folder.rglob("*.py")]
    own = Path(inspect.getfile(inspect.unwrap(function)))
    files = sorted(every) or [(Path(own.name), own)]
    code = digest([[name.as_posix(), _text(file)] for name, file in files])
    return with_helpers(code, [file for _, file in files])


def with_helpers(code: str, files: Iterable[Path]) -> str:
    """Content hash of files and of their helpers: that of the files alone where they have none."""
    helpers = sorted(helpers_of(files).items())
    return digest([code, *([name, _text(file)] for name, file in helpers)]) if helpers else code


def helpers_of(files: Iterable[Path]) -> dict[str, Path]:
    """Modules that files import, and that these import, by name; nothing of them is imported.

    Libraries, which a version tells, and this package are left out.
    """
    specs, own = dict[str, ModuleSpec | None](), {file.resolve() for file in files}
    todo, found = [(file, "") for file in own], dict[str, Path]()
    while todo:
        for name in _imports(*todo.pop()):
            if name not in specs:
                spec = specs[name] = _spec_of(name, specs.get(name.rpartition(".")[0]))
                if spec is not None and (spec.origin or "").endswith(".py"):
                    found[name] = Path(str(spec.origin)).resolve()
                    todo.append((found[name], spec.parent or ""))
    return {name: file for name, file in found.items() if file not in own}


def _text(file: Path) -> str:
    """What a Python file holds, for a hash: its bytes where they are no UTF-8."""
    try:
        return read_text(file)
    except InputError:
        return read_bytes(file).hex()


def _imports(file: Path, package: str) -> Iterator[str]:
    """Modules that a file may import, by name, each after the package that it is in."""
    try:
        every = [*ast.walk(ast.parse(read_bytes(file)))]
    except (SyntaxError, ValueError):  # whoever imports it is told
        return
    for node in every:
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        # what a file of a package imports by dots is of that package
        if isinstance(node, ast.ImportFrom) and (package or not node.level):
            with suppress(ImportError):
                base = resolve_name("." * node.level + (node.module or ""), package)
                names = [base, *(f"{base}.{one.name}" for one in node.names)]
        for parts in (name.split(".") for name in names):
            yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))


def _spec_of(name: str, package: ModuleSpec | None) -> ModuleSpec | None:
    """Where a module is; None: it is not there, or it is none of a person's own."""
    found = None
    if package is not None:
        found = PathFinder.find_spec(name, package.submodule_search_locations or [])
    elif "." not in name and name not in {*sys.stdlib_module_names, __name__.partition(".")[0]}:
        with suppress(ValueError):  # of one that was made by hand
            found = find_spec(name)
    return None if found and _LIBRARIES & {*Path(found.origin or "").parts} else found
