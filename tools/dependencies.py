"""Which packages do the dependencies of lensaudit bring, and who brings each?

    python tools/dependencies.py

Walks the requirements of what is installed (importlib.metadata), from the dependencies of
pyproject.toml, without extras. A size is that of a package's files on disk.
"""

import tomllib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rich.filesize import decimal as size

ROOT = Path(__file__).resolve().parents[1]


def declared() -> dict[str, Requirement]:
    """The dependencies of pyproject.toml by name, as PyPI compares names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {
        canonicalize_name((one := Requirement(text)).name): one for text in project["dependencies"]
    }


def asked_by(name: str, extras: frozenset[str] = frozenset()) -> dict[str, frozenset[str]]:
    """What an installed package requires here, with the extras that it wants of each."""
    found: dict[str, frozenset[str]] = {}
    for one in map(Requirement, requires(name) or ()):
        here = one.marker is None or any(one.marker.evaluate({"extra": e}) for e in ("", *extras))
        if here:
            asked = canonicalize_name(one.name)
            found[asked] = found.get(asked, frozenset()) | frozenset(one.extras)
    return found


def brought() -> dict[str, set[str]]:
    """Installed package that we do not declare -> the packages that require it."""
    ours = declared()
    waiting = [(name, frozenset(one.extras)) for name, one in ours.items()]
    seen = set(waiting)
    found: dict[str, set[str]] = {}
    while waiting:
        name, extras = waiting.pop()
        try:
            asked = asked_by(name, extras)
        except PackageNotFoundError:
            found.pop(name, None)
            continue
        for one in asked.items():
            if one[0] not in ours:
                found.setdefault(one[0], set()).add(name)
            if one not in seen:
                seen.add(one)
                waiting.append(one)
    return found


def bytes_of(name: str) -> int:
    """Of the files that a package recorded when it was installed."""
    files = [one.locate() for one in distribution(name).files or ()]
    return sum(Path(one).stat().st_size for one in files if Path(one).is_file())


def alone(name: str, by: Mapping[str, set[str]]) -> set[str]:
    """A package, and what of those `brought` would not be installed without it."""
    found = {name}
    while more := {one for one, who in by.items() if one not in found and who <= found}:
        found |= more
    return found


def main() -> None:
    """One Markdown row a package, the largest first."""
    by = brought()
    sizes = {name: bytes_of(name) for name in by}
    print(f"{len(declared())} declared, {len(by)} brought by others, {size(sum(sizes.values()))}\n")
    print("| package | brought by | size | alone it brings |\n|---|---|---|---|")
    for name in sorted(by, key=lambda one: -sizes[one]):
        rest = ", ".join(sorted(alone(name, by) - {name}))
        print(f"| {name} | {', '.join(sorted(by[name]))} | {size(sizes[name])} | {rest} |")


if __name__ == "__main__":
    main()
