"""Pages of the documentation: their text, their sections, their blocks of code."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def page(name: str) -> str:
    """The text of `docs/NAME.md`, or of the section `NAME#Heading` of it."""
    name, _, heading = name.partition("#")
    text = (DOCS / f"{name}.md").read_text()
    return sections(text)[heading] if heading else text


def sections(text: str) -> dict[str, str]:
    """Heading of the second level -> the text below it; what stands before is under ""."""
    outside = re.sub(
        r"^```.*?^```$", lambda one: one[0].replace("\n#", "\n "), text, flags=re.S | re.M
    )
    cuts = [(0, ""), *((one.start(), one[1]) for one in re.finditer(r"^## (.+)$", outside, re.M))]
    ends = [at for at, _ in cuts[1:]] + [len(text)]
    return {heading: text[at:end] for (at, heading), end in zip(cuts, ends, strict=True)}


def blocks(text: str) -> list[tuple[str, str, str]]:
    """Language, name or kind, and content of every fenced block."""
    return re.findall(r"```(\w+)(?: ([\w.-]+))?\n(.*?)```", text, re.S)


def commands(block: str) -> list[str]:
    """The calls of `lensaudit` in a block, without remarks."""
    lines = (re.split(r"\s#", line)[0].strip() for line in block.splitlines())
    return [line for line in lines if line.startswith("lensaudit ")]
