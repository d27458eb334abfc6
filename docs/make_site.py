"""Hooks of mkdocs.yml: what the site needs beside the pages of docs/.

The navigation and `llms.txt` come from the tables of docs/README.md. Files of the repository that a
page links to become pages too: Markdown as it is, code as a listing. `make_reference.py` makes a
page for each command and one of all public names. Each page's Markdown lies beside it, for readers
that are programs. Command: make site
"""

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from make_reference import pages, summaries
from mkdocs.structure.files import File, Files

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")
ROW = re.compile(r"^\| \[[^]]*\]\((?!http)([^)]+)\) \| (.+) \|$")
NAMED = re.compile(r"\[[\w./-]+\.md\]\((?!https?:|#)([^)#\s]+)")
"""A link whose text is the name of a file: in the site it is the page's title."""
LISTINGS = {".py": "python", ".jsonl": "json", ".json": "json"}
"""Files that become a page with a listing; of other kinds a page may link to Markdown alone."""
LONGEST = 200_000
"""Bytes of a file that is shown; a longer one is named."""


def groups() -> dict[str, list[tuple[str, str]]]:
    """Heading of docs/README.md -> its pages and what they are for."""
    parts = re.split(r"^## (.+)$", (DOCS / "README.md").read_text(), flags=re.M)[1:]
    tables = {
        heading: [found.groups() for line in text.splitlines() if (found := ROW.match(line))]
        for heading, text in zip(parts[::2], parts[1::2], strict=True)
    }
    return {heading: rows for heading, rows in tables.items() if rows}


def on_config(config: Any) -> Any:
    config.nav = [
        {"Overview": "README.md"},
        *({name: [placed(at) for at, _ in rows]} for name, rows in groups().items()),
        {"Commands and names": [*pages()]},
    ]
    return config


def on_files(files: Files, config: Any) -> Files:
    for path in linked_outside():
        files.append(
            File.generated(config, placed(os.path.relpath(path, DOCS)), content=shown(path))
        )
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def linked_outside() -> list[Path]:
    """Files outside docs/ that pages lead to, by however many links, README.md not among them."""
    found, left = set(), [*DOCS.rglob("*.md")]
    while left:
        page = left.pop()
        targets = {(page.parent / one).resolve() for one in LINK.findall(page.read_text())}
        new = {one for one in targets if one.is_file() and DOCS not in one.parents} - found
        found |= new
        left += [one for one in new if one.suffix == ".md"]
    return sorted(found)


def placed(path: str) -> str:
    """Where a file lies in the site; `path` is relative to docs/."""
    inside = posixpath.normpath(path)
    if not inside.startswith("../"):
        return inside
    inside = inside.replace("../", "")
    return f"repository/{inside}" + ("" if inside.endswith((".md", ".svg", ".png")) else ".md")


def shown(path: Path) -> str:
    """A file as Markdown; links are those that it has where it lies."""
    if path.suffix == ".md":
        return path.read_text()
    name = path.relative_to(ROOT)
    if path.stat().st_size > LONGEST or path.suffix not in LISTINGS:
        return f"# {name}\n\n`{name}` of the repository, {path.stat().st_size:,} bytes.\n"
    return f"# {name}\n\n````{LISTINGS[path.suffix]}\n{path.read_text()}\n````\n"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    source = page.file.src_uri
    outside = source.startswith("repository/")
    at = ROOT / source.removeprefix("repository/") if outside else DOCS / source

    def link(found: re.Match[str]) -> str:
        there = os.path.relpath((at.parent / found[1]).resolve(), DOCS)
        return posixpath.relpath(placed(there), posixpath.dirname(source) or ".")

    def titled(found: re.Match[str]) -> str:
        there = (at.parent / found[1]).resolve()  # a folder of generated pages is not on disk
        return f"[{title(there)}]({found[1]}" if there.suffix == ".md" else found[0]

    parts = re.split(r"(^````?\w.*?^````?$)", markdown, flags=re.M | re.S)
    parts[::2] = [LINK.sub(link, NAMED.sub(titled, one)) for one in parts[::2]]
    # a fence's second word is for the tests
    return re.sub(r"^```(\w+) [\w.-]+$", r"```\1", "".join(parts), flags=re.M)


def on_post_build(config: Any) -> None:
    """Write llms.txt, and every page's Markdown beside it."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", f"\n> {config.site_description}"]
    for name, rows in groups().items():
        lines.append(f"\n## {name}\n")
        lines += [f"- [{title(DOCS / path)}]({placed(path)}): {text}" for path, text in rows]
    lines.append("\n## Commands and names\n")
    for path, text in pages().items():
        lines.append(f"- [{text.splitlines()[0][2:]}]({path}): {summaries()[path]}")
    (site / "llms.txt").write_text("\n".join(lines) + "\n")
    for path, text in pages().items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    for path in sources():
        copy = site / placed(os.path.relpath(path, DOCS))
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())


def sources() -> Iterator[Path]:
    yield from DOCS.rglob("*.md")
    yield from (path for path in linked_outside() if path.suffix == ".md")


def title(path: Path) -> str:
    """The first heading of a page."""
    return path.read_text().splitlines()[0].removeprefix("# ")
