"""What a part of the package stands on: every module that any import reaches, lazy ones too."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "lensaudit"
NAME = PACKAGE.name


def modules() -> dict[str, ast.Module]:
    """Name -> source of every module of the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = ast.parse(path.read_text())
    return found


def n_statements(source: ast.Module) -> int:
    """Statements besides docstrings."""
    every = (node for node in ast.walk(source) if isinstance(node, ast.stmt))
    return sum(1 for node in every if not _is_docstring(node))


def _is_docstring(node: ast.stmt) -> bool:
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_constant and isinstance(node.value.value, str)


def imports(node: ast.AST) -> Iterator[str]:
    """Names that are imported when the code runs; what only type checkers read is none."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Import):
        yield from (one.name for one in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert not node.level, "imports are absolute"
        yield str(node.module)
        yield from (f"{node.module}.{one.name}" for one in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imports(child)


def closure(of: Callable[[str], bool], without: Callable[[str], bool]) -> dict[str, int]:
    """Module -> statements, of those that some modules reach, themselves among them.

    Args:
        of: which modules are the first.
        without: which are not entered.
    """
    sources = modules()
    found: dict[str, int] = {}
    waiting = [name for name in sources if of(name)]
    while waiting:
        name = waiting.pop()
        if name not in sources or name in found or without(name):
            continue
        found[name] = n_statements(sources[name])
        waiting += imports(sources[name])
    return found
