"""A reader without a script: what the text of a page says, and nothing else of it."""

from html.parser import HTMLParser
from pathlib import Path

SILENT = ("script", "style", "noscript")
VOID = ("meta", "link", "br", "input", "img", "hr")


class Node:
    """One element: its name, its attributes, its children in order."""

    def __init__(self, tag: str, attributes: dict[str, str | None]):
        self.tag, self.attributes = tag, attributes
        self.children: list[Node | str] = []

    def every(self, tag: str, **attributes: str) -> "list[Node]":
        """Elements below, in order, by name and attributes."""
        found = []
        for child in self.children:
            if isinstance(child, Node):
                own = child.attributes
                same = all(own.get(key.strip("_")) == one for key, one in attributes.items())
                found += [child] if child.tag == tag and same else []
                found += child.every(tag, **attributes)
        return found

    @property
    def text(self) -> str:
        """What is read aloud, blanks as one."""
        parts = [
            child if isinstance(child, str) else "" if child.tag in SILENT else f" {child.text} "
            for child in self.children
        ]
        return " ".join("".join(parts).split())


class _Parser(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open = [Node("page", {})]

    def handle_starttag(self, tag, attrs):
        if tag == "wbr":  # where a word may break, and no blank
            return
        node = Node(tag, dict(attrs))
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_endtag(self, tag):
        while len(self.open) > 1 and self.open.pop().tag != tag:
            pass

    def handle_data(self, data):
        self.open[-1].children.append(data)


def read(page: Path) -> Node:
    """The elements of a page."""
    parser = _Parser()
    parser.feed(page.read_text())
    return parser.open[0]


class Answers:
    """What a page answers to five questions."""

    def __init__(self, page: Path):
        self.page = read(page)
        (self.section,) = self.page.every("section", id="models")
        (table,) = self.section.every("table")
        head, *bodies = [*table.every("thead"), *table.every("tbody")]
        titles = [one.text for one in head.every("th")]
        self.models: dict[str, dict[str, str]] = {}
        self._why: dict[str, Node] = {}
        for body in bodies:
            first, *why = body.every("tr")
            cells = [child for child in first.children if isinstance(child, Node)]
            row = dict(zip(titles, (cell.text for cell in cells), strict=True))
            self.models[row["Model"]] = row
            if why:
                self._why[row["Model"]] = why[0]

    @property
    def headline(self) -> str:
        """The first sentence."""
        (one,) = self.page.every("h1")
        return one.text

    @property
    def verdicts(self) -> dict[str, str]:
        """Which models hold it? Model -> word; anchors have none."""
        said = {name: row["Verdict"] for name, row in self.models.items()}
        return {name: word for name, word in said.items() if word not in ("anchor", "–")}

    def number(self, model: str, column: str) -> str:
        """How sure? A number with its interval and its rows, or why it has none."""
        return self.models[model][column]

    def chain(self, model: str) -> dict[str, list[str]]:
        """Questions in order, and what each said."""
        found: dict[str, list[str]] = {}
        (answers,) = self._why[model].every("dl")
        for child in answers.children:
            if isinstance(child, Node) and child.tag == "dt":
                found[child.text] = []
            elif isinstance(child, Node):
                found[list(found)[-1]].append(child.text)
        return found

    def facts(self, model: str) -> list[str]:
        """Which facts are still read?"""
        return self.chain(model)["Which facts are still read?"]

    @property
    def not_asked(self) -> dict[str, str]:
        """What was not asked? It -> of whom, and what asks it."""
        lists = self.section.every("ul", class_="missing")
        said = [one.text.partition(": ") for ul in lists for one in ul.every("li")]
        return {what: of for what, _, of in said}
