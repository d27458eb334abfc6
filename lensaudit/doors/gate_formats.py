"""The result of a gate as text, Markdown, a JUnit report or GitHub annotations."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from xml.etree import ElementTree

from lensaudit.doors.gate import Gated
from lensaudit.report.shelf import told_names
from lensaudit.results.locate import LeftOut
from lensaudit.screen.cells import name as line_of
from lensaudit.screen.tables import markdown_cell
from lensaudit.text import canonical_json
from lensaudit.verdict.decide import WORDS

_TITLE = "lensaudit release gate"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_text(found: Gated) -> str:
    """A line a model, and one for each reason."""
    lines, label = [], told_names(found.called)
    for one, why in found.models:
        named = f"{label[one.weights]}: {WORDS[one.word][0]}"
        lines.append(f"{'FAIL' if why else 'pass'}  {named}")
        lines += [f"      {reason}" for reason in why]
    lines += [f"{_out(one)}  {one.path}: {one.reason}" for one in found.left_out]
    n = sum(not why for _, why in found.models)
    return "\n".join(map(line_of, [*lines, f"{n} of {len(found.models)} pass"]))


def as_markdown(found: Gated) -> str:
    """A table, for a step summary or a comment."""
    label = told_names(found.called)
    rows = [
        f"| {markdown_cell(label[one.weights])} | {WORDS[one.word][0]} | "
        f"{'**fail**' if why else 'pass'} | "
        f"{'<br>'.join(map(markdown_cell, why)) or '–'} |"
        for one, why in found.models
    ]
    head = ["| model | verdict | gate | why |", "|---|---|---|---|"]
    said = "passed" if found.passed else "failed"
    out = [f"- {_out(one)}: {markdown_cell(f'{one.path}: {one.reason}')}" for one in found.left_out]
    return "\n".join([f"### {_TITLE}: {said}", "", *head, *rows, *([""] if out else []), *out])


def _out(one: LeftOut) -> str:
    return "FAIL" if one.unfinished else "left out"


def _cases(found: Gated) -> Iterator[tuple[str, str, str, Sequence[str]]]:
    """Each model and what is left out: its label, code, what JUnit calls it, what is said of it."""
    label = told_names(found.called)
    for one, why in found.models:
        name, said = label[one.weights], one.verdict.sentence.removeprefix(one.source)
        yield name, one.code, "failure" if why else "", why or [f"{name}{said}"]
    for one in found.left_out:
        yield one.path, _out(one), "failure" if one.unfinished else "skipped", [one.reason]


def as_junit(found: Gated) -> str:
    """A test case a model, and one for what is left out, as CI systems read them."""
    kinds = [kind for _, _, kind, _ in _cases(found)]
    told = {
        "name": _TITLE,
        "tests": len(kinds),
        "failures": kinds.count("failure"),
        "skipped": kinds.count("skipped"),
    }
    suite = ElementTree.Element("testsuite", {name: str(one) for name, one in told.items()})
    for name, code, kind, why in _cases(found):
        case = ElementTree.SubElement(suite, "testcase", classname="gate", name=xml_text(name))
        if kind:
            problem = ElementTree.SubElement(case, kind, message=xml_text(why[0]), type=code)
            problem.text = "\n".join(map(xml_text, why))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def xml_text(text: str) -> str:
    r"""Text without the characters that XML 1.0 cannot hold.

    >>> xml_text("a\x1b[31m\ufffe\ud800é\n😀")
    'a?[31m??é\n😀'
    """
    return _NOT_XML.sub("?", text)


def as_github(found: Gated) -> str:
    """Workflow commands: an error for each reason, a notice for a model that passes."""
    return "\n".join(
        f"::{'error' if kind == 'failure' else 'notice'} title={_TITLE}::"
        f"{_escaped(f'{name}: {text}' if kind else text)}"
        for name, _, kind, why in _cases(found)
        for text in why
    )


def _escaped(text: str) -> str:
    """Text escaped for GitHub, where a line break would begin another command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


FORMATS: Mapping[str, Callable[[Gated], str]] = {
    "text": as_text,
    "json": lambda found: canonical_json(found.document()),
    "markdown": as_markdown,
    "junit": as_junit,
    "github": as_github,
}
