"""What a gate says, for people, pages, test reports and pull requests."""

from collections.abc import Callable, Mapping
from xml.etree import ElementTree

from lensaudit.files import canonical_json
from lensaudit.verdict.gate import Gated

_TITLE = "lensaudit release gate"


def as_text(found: Gated) -> str:
    """A line a model, and one for each reason."""
    lines = []
    for one in found.models:
        lines.append(f"{'pass' if one.passed else 'FAIL'}  {one.model}: {one.code}")
        lines += [f"      {reason}" for reason in one.why]
    n = sum(one.passed for one in found.models)
    return "\n".join([*lines, f"{n} of {len(found.models)} pass"])


def as_markdown(found: Gated) -> str:
    """A table, for a step summary or a comment."""
    rows = [
        f"| {markdown_cell(one.model)} | {one.code} | {'pass' if one.passed else '**fail**'} | "
        f"{'<br>'.join(map(markdown_cell, one.why)) or '–'} |"
        for one in found.models
    ]
    head = ["| model | verdict | gate | why |", "|---|---|---|---|"]
    said = "passed" if found.passed else "failed"
    return "\n".join([f"### {_TITLE}: {said}", "", *head, *rows])


def markdown_cell(text: str) -> str:
    """Text of a model or a data set inside a table."""
    for mark in "\\|`*_<>[]":
        text = text.replace(
            mark, f"\\{mark}" if mark not in "<>" else {"<": "&lt;", ">": "&gt;"}[mark]
        )
    return " ".join(text.split())


def as_junit(found: Gated) -> str:
    """A test case a model, as CI systems read them."""
    failed = sum(not one.passed for one in found.models)
    count = {"tests": str(len(found.models)), "failures": str(failed)}
    suite = ElementTree.Element("testsuite", {"name": _TITLE, **count})
    for one in found.models:
        case = ElementTree.SubElement(suite, "testcase", {"classname": "gate", "name": one.model})
        if not one.passed:
            problem = {"message": _plain(one.why[0]), "type": one.code}
            failure = ElementTree.SubElement(case, "failure", problem)
            failure.text = "\n".join(map(_plain, one.why))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def _plain(text: str) -> str:
    """Without characters that XML cannot hold."""
    return "".join(c if c >= " " or c in "\n\t" else "?" for c in text)


def as_github(found: Gated) -> str:
    """Workflow commands: an error for each reason, a notice for a model that passes."""
    lines: list[str] = []
    for one in found.models:
        if one.passed:
            lines.append(f"::notice title={_TITLE}::{_escaped(one.sentence)}")
        else:
            lines += [f"::error title={_TITLE}::{_escaped(f'{one.model}: {n}')}" for n in one.why]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """As GitHub reads it: a line break would begin another command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def as_json(found: Gated) -> str:
    """`{policy, passed, models}`."""
    return canonical_json(found.document())


FORMATS: Mapping[str, Callable[[Gated], str]] = {
    "text": as_text,
    "json": as_json,
    "markdown": as_markdown,
    "junit": as_junit,
    "github": as_github,
}
