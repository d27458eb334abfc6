"""The page on which a person reviews where the facts of own rows stand."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from lensaudit.data.annotate import Proposal, heading, help_of, named_rule
from lensaudit.files import check_output, write_bytes
from lensaudit.report.render import as_script_data, asset, is_page, policy, template
from lensaudit.text import digest


def write_spans(
    page: Path,
    proposals: Sequence[Proposal],
    remarks: Mapping[int, Sequence[str]],
    *,
    review: Path,
    out: Path,
    force: bool = False,
) -> Path:
    """Write the page of all rows, in the order given; no text of a row can become markup.

    Args:
        page: the file; nothing is fetched when it is opened.
        proposals: question, answer and where the fact stands.
        remarks: what a person should look at, by idx.
        review: the review file, which the page downloads under its name.
        out: the forget set, for the command that reads the review back.
        force: write over a file that is no page of ours.

    Raises:
        InputError: `page` is there and no page of ours.
    """
    check_output(page, ours=is_page, force=force)
    rows = [
        {
            "name": f"idx {one.pair.idx} · {one.pair.group}",
            "head": heading(one.pair),
            "rule": "" if one.reviewed else named_rule(one),
            "seen": one.origin == "reviewed",
            "remarks": list(remarks.get(one.pair.idx, ())),
            "relation": one.pair.relation,
            "question": one.pair.question,
            "before": one.pair.answer[: one.start],
            "entity": one.entity,
            "after": one.pair.answer[one.end :],
        }
        for one in proposals
    ]
    help_ = help_of(shlex.quote(review.name), shlex.quote(str(out)))
    data = {"key": digest(rows), "name": review.name, "help": help_, "rows": rows}
    script = "".join(("(() => {\n'use strict';\n", asset("dom.js"), asset("spans.js"), "})();\n"))
    style = asset("page.css") + asset("spans.css")
    text = template("spans.html.j2").render(
        title=f"spans of {out.name}",
        name=review.name,
        command=f"lensaudit annotate PLACE/{shlex.quote(review.name)} -o {shlex.quote(str(out))}",
        data=Markup(as_script_data(data)),
        script=Markup(script),
        style=Markup(style),
        policy=policy(script, style),
    )
    return write_bytes(page, text.encode("utf-8", "backslashreplace"))
