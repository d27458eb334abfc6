"""Sentences drawn at random, to be read coldly: does one that stands alone say what it means?

    python -m tools.sentences --seed 1 [--n 10] [--of pages|help|messages] [--only docs/gate.md]

Of each page, of the help of each command, and of the messages of each room of the package.
"""

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

import click

from lensaudit.cli.main import cli

ROOT = Path(__file__).parents[1]
FEWEST = 4
"""Words of what counts as a sentence."""


def sentences(text: str) -> list[str]:
    """Of Markdown, without code, headings and tables."""
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    prose = re.sub(r"^(\||#|    |!\[).*$", "", prose, flags=re.M)
    found = re.split(r"(?<=[.?!])\s+|\n\s*\n|\n[-*] ", prose)
    return [" ".join(one.split()) for one in found if len(one.split()) >= FEWEST]


def pages() -> Iterator[tuple[str, list[str]]]:
    """What users read."""
    places = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/doors/*.md")]
    for path in sorted(places):
        yield path.relative_to(ROOT).as_posix(), sentences(path.read_text())


def commands(group: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """A command and all below it."""
    yield name, group
    if isinstance(group, click.Group):
        context = click.Context(group)
        for inner in group.list_commands(context):
            if (one := group.get_command(context, inner)) is not None:
                yield from commands(one, f"{name} {inner}")


def helps() -> Iterator[tuple[str, list[str]]]:
    """What `--help-all` says of commands and options."""
    for name, command in commands(cli, "lensaudit"):
        options = [getattr(one, "help", None) or "" for one in command.params]
        texts = [*sentences(command.help or ""), *(" ".join(one.split()) for one in options)]
        yield name, [one for one in texts if len(one.split()) >= FEWEST]


def messages() -> Iterator[tuple[str, list[str]]]:
    """What is raised and remarked, by room; what is filled in stands in braces."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "lensaudit").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                texts = [_text(one) for one in node.exc.args]
                found.setdefault(parts[1], []).extend(
                    one for one in texts if len(one.split()) >= FEWEST
                )
    yield from sorted(found.items())


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(one) for one in node.values)
    if isinstance(node, ast.FormattedValue):
        return f"{{{ast.unparse(node.value)}}}"
    return ""


SOURCES = {"pages": pages, "help": helps, "messages": messages}


def main() -> None:
    """Print the draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--n", type=int, default=10, help="of each")
    parser.add_argument("--of", choices=SOURCES, action="append", help="default: all")
    parser.add_argument("--only", help="part of a name: a page, a command, a room")
    chosen = parser.parse_args()
    for kind in chosen.of or SOURCES:
        for name, found in SOURCES[kind]():
            if chosen.only and chosen.only not in name:
                continue
            # by name, so that another page does not change what is drawn of this one
            draw = random.Random(f"{chosen.seed} {name}")
            print(f"\n## {name}\n")
            for one in draw.sample(found, min(chosen.n, len(found))):
                print(f"- {one}")


if __name__ == "__main__":
    main()
