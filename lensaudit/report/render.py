"""A document becomes one HTML file: no torch, no network, nothing to fetch when it is opened."""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from lensaudit.data.facts import Fact
from lensaudit.files import check_output, write_bytes
from lensaudit.groups import assumption
from lensaudit.partials import sweep_partials
from lensaudit.report.assemble import assemble
from lensaudit.report.document import Condition, Document
from lensaudit.report.evidence import ModelRow, Table
from lensaudit.report.pack import visible_values
from lensaudit.results.locate import LeftOut
from lensaudit.results.reading import brief
from lensaudit.settings import Place
from lensaudit.verdict.depth import calibration_problem
from lensaudit.verdict.thresholds import TAIL_BELOW
from lensaudit.verdict.words import LIMITS, WORDS, headline, tally

SCRIPTS = (
    "dom.js",
    "data.js",
    "state.js",
    "colour.js",
    "chart.js",
    "table.js",
    "overview.js",
    "profile.js",
    "heat.js",
    "examples.js",
    "metrics.js",
    "compare.js",
    "more.js",
    "main.js",
)
"""In this order one script."""

_KEEP = ("s1", "s2", "scores", "baseline", "base64")
"""Packed tables: long, and made of letters that need no care."""


def write_report(
    paths: Sequence[Place],
    out: Place,
    *,
    title: str | None = None,
    examples: Iterable[Fact] = (),
    force: bool = False,
) -> list[LeftOut]:
    """Write the page of everything found under `paths`; returns what is not on it, and why.

    Raises:
        InputError: a path does not exist, nothing under any of them is a finished result, or `out`
            is there, no page of ours, and `force` is not given.
    """
    page = Path(out)
    check_output(page, ours=is_page, force=force)
    document = assemble([Path(one) for one in paths], title=title, examples=examples)
    if page.parent.is_dir():
        sweep_partials(page.parent)
    write_bytes(page, render(document).encode("utf-8"))
    return [LeftOut(one["path"], one["reason"]) for one in document.left_out]


def is_page(content: bytes) -> bool:
    """Whether a file is a page of ours, of any version: by its brand."""
    return b"lens<b>audit</b>" in content


def render(document: Document) -> str:
    """The page. Every text of a model or a data set in it is text, whatever it spells."""
    script = "\n".join(["'use strict';", *map(asset, SCRIPTS)])
    script = f"(() => {{\n{script}\n}})();\n"
    style = asset("page.css")
    shown = _shown(document)
    return template("page.html.j2").render(
        document=visible_values(_light(document)),
        table=visible_values(_table(document.table)) if document.table else None,
        lead=_lead(document),
        limits=LIMITS,
        script=Markup(script),
        style=Markup(style),
        data=Markup(as_script_data(shown)),
        policy=policy(script, style),
    )


def template(name: str) -> Template:
    """An HTML file of the assets; what is filled in is text unless it is marked as markup."""
    environment = Environment(
        loader=PackageLoader("lensaudit.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def policy(script: str, style: str) -> str:
    """A content-security policy: this script and this style sheet run, and nothing is fetched."""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def as_script_data(value: Any) -> str:
    r"""JSON that cannot end the script element it stands in.

    >>> as_script_data({"a": "</script>"})
    '{"a":"\\u003c/script>"}'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"


def asset(name: str) -> str:
    """The text of a script or a style sheet."""
    return (resources.files("lensaudit.report") / "assets" / name).read_text(encoding="utf-8")


def _shown(document: Document) -> dict[str, Any]:
    """The document as the script reads it: visible texts, short numbers, packed tables as is.

    Manifests keep every digit.
    """
    rest = _walk(asdict(replace(document, manifests=[], table=None)))
    return rest | {
        "manifests": visible_values(document.manifests),
        "limits": LIMITS,
        "words": WORDS,
    }


def _walk(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            (key if isinstance(key, str) else str(key)): (
                one if key in _KEEP and isinstance(one, str) else _walk(one)
            )
            for key, one in visible_keys(value)
        }
    if isinstance(value, list | tuple):
        return [_walk(one) for one in value]
    return brief(visible_values(value))


def visible_keys(record: dict[Any, Any]) -> Iterable[tuple[str, Any]]:
    """Items under keys that are made visible too: a reason or a metric's name may be hostile."""
    return ((visible_values(str(key), 300), one) for key, one in record.items())


def _light(document: Document) -> dict[str, Any]:
    """What the template itself shows: no tables."""
    return {
        "title": document.title,
        "version": document.version,
        "made": document.made,
        "left_out": document.left_out,
        "alone": _alone(document),
        "by_rule": dict.fromkeys(said for one in document.conditions for said in one.by_rule),
    }


MOST_READ = 8
"""Facts that a model's chain names; the map of examples has all."""


def _table(table: Table) -> dict[str, Any]:
    """The table of models as the template prints it."""
    return {
        "columns": [vars(column) for column in table.columns],
        "rows": [_row(row) for row in table.rows],
        "read_below": f"{TAIL_BELOW:g}",
        "missing": [
            {"asks": column.asks, "command": column.command, "labels": labels}
            for column, labels in table.missing
        ],
        "n": sum(not row.is_anchor for row in table.rows),
    }


def _row(row: ModelRow) -> dict[str, Any]:
    word, tone = WORDS[row.code] if row.code and not row.is_anchor else ("", "no-verdict")
    cells = {name: vars(cell) for name, cell in row.cells.items()}
    read = row.read and [
        {"idx": text.idx, "asked": text.question, "fact": text.entity, "at": depth}
        for text, depth in row.read[:MOST_READ]
    ]
    return vars(row) | {
        "anchor": row.is_anchor,
        "word": word,
        "tone": tone,
        "rank": list(WORDS).index(row.code) if word and row.code else None,
        "cells": cells,
        "read": read,
        "n_read": len(row.read or ()),
    }


def _alone(document: Document) -> str | None:
    """What to know of intervals where rows name no author."""
    said = (assumption(one.group for one in c.examples) for c in document.conditions)
    return next(filter(None, said), None)


def _lead(document: Document) -> dict[str, Any]:
    """The verdict in words, of the runs under the first UDS condition."""
    condition = None if document.first is None else document.conditions[document.first]
    codes = document.judged()
    found = tally(codes)
    return visible_values(
        {
            "headline": headline(codes, document.too_few),
            "n": len(codes),
            "tone": found[0][1] if found else "no-verdict",
            "tally": [{"word": word, "tone": tone, "names": names} for word, tone, names in found],
            "problem": calibration_problem(condition.calibration) if condition else None,
            "condition": _condition(condition) if condition else None,
        },
        300,
    )


def _condition(condition: Condition) -> dict[str, Any]:
    return {
        "unit": condition.unit,
        "full": condition.full,
        "retain": condition.retain,
        "n": len(condition.examples),
        "n_layers": len(condition.layers),
    }
