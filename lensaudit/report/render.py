"""A document becomes one HTML file: no torch, no network, nothing to fetch when it is opened."""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from lensaudit.data.facts import Fact
from lensaudit.files import check_output, write_bytes
from lensaudit.groups import assumption
from lensaudit.partials import sweep_partials
from lensaudit.progress import Notice
from lensaudit.report.assemble import Document, assemble, refused
from lensaudit.report.evidence import by_model, columns_of, empty_of, missing_of
from lensaudit.report.headline import LIMITS, headline, tally
from lensaudit.report.packing import visible_values
from lensaudit.results.locate import Found, LeftOut
from lensaudit.settings import Place
from lensaudit.verdict.decide import WORDS
from lensaudit.verdict.depth import calibration_problem
from lensaudit.verdict.thresholds import TAIL_BELOW

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

DIGITS = 6
"""Significant ones of a number on the page."""


def write_report(
    paths: Place | Sequence[Place],
    out: Place,
    *,
    title: str | None = None,
    examples: Iterable[Fact] = (),
    force: bool = False,
    idle: Notice = refused,
    read: Iterable[Found] = (),
) -> list[LeftOut]:
    """Write the page of everything found under `paths`; returns what is not on it, and why.

    `paths` may be one. Arguments are those of `assemble`.

    Raises:
        InputError: as `assemble`, or `out` is there, no page of ours, and `force` is not given.
    """
    page, places = Path(out), [paths] if isinstance(paths, str | Path) else paths
    check_output(page, ours=is_page, force=force)
    document = assemble(
        [Path(one) for one in places], title=title, examples=examples, idle=idle, read=read
    )
    if page.parent.is_dir():
        sweep_partials(page.parent)
    write_bytes(page, render(document).encode("utf-8"))
    return document.left_out


def is_page(content: bytes) -> bool:
    """Whether a file is a page of ours, of any version: by its brand."""
    return b"lens<b>audit</b>" in content


def render(document: Document) -> str:
    """The page. Every text of a model or a data set in it is text, whatever it spells."""
    script = "\n".join(["(() => {", "'use strict';", *map(asset, SCRIPTS), "})();\n"])
    style = asset("page.css")
    first, words, data = document.first, document.words(), document.data()
    groups = ([one.group for one in runs[0].examples] for runs in document.conditions)
    return template("page.html.j2").render(
        document=data,
        condition=data["conditions"][0] if first else None,
        headline=headline(words, document.too_few),
        n_judged=len(words),
        failed=document.missing,
        tally=tally(words),
        problem=calibration_problem(first[0].calibration) if first and not first[0].scale else None,
        alone=next(filter(None, map(assumption, groups)), None),
        by_rule=dict.fromkeys(said for one in data["conditions"] for said in one["by_rule"]),
        rows=document.rows,
        columns=columns_of(document.rows),
        n_models=len(by_model(document.rows)),
        missing=missing_of(document.rows),
        empty=empty_of(document.rows),
        words=WORDS,
        read_below=f"{TAIL_BELOW:g}",
        most_read=MOST_READ,
        limits=LIMITS,
        script=Markup(script),
        style=Markup(style),
        # manifests keep every digit
        data=Markup(
            as_script_data(
                visible_values({**data, "manifests": []}, DIGITS)
                | {"manifests": visible_values(data["manifests"]), "limits": LIMITS, "words": WORDS}
            )
        ),
        policy=policy(script, style),
    )


def template(name: str) -> Template:
    """An HTML file of the assets; what is filled in is visible text unless it is markup."""
    environment = Environment(
        loader=PackageLoader("lensaudit.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else visible_values(value),
    )
    return environment.get_template(name)


def policy(script: str, style: str) -> str:
    """A content-security policy: this script and this style sheet run, and nothing is fetched."""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def as_script_data(value: Any) -> str:
    r"""JSON that cannot end the script element around it.

    >>> as_script_data({"a": "</script>"})
    '{"a":"\\u003c/script>"}'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def asset(name: str) -> str:
    """The text of a script or a style sheet."""
    return (resources.files("lensaudit.report") / "assets" / name).read_text(encoding="utf-8")


MOST_READ = 8
"""Facts that a model's chain names; the map of examples has all."""
