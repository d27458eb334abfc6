"""Do a page and a terminal say the same of the same models? Words are read off what both print."""

import contextlib
import io
import re
from pathlib import Path

from lensaudit.cli.main import run
from support.page_reader import Answers

HELD = re.compile("says them|hidden|partly erased|.*holds some")
"""Words of a model that holds facts."""
FORMS = {"say them": "says them", "hold some": "holds some"}
"""Said of several -> of one."""


def printed(*argv: object) -> list[str]:
    """Lines of a command."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run([*map(str, argv)]) in (0, 4)
    return out.getvalue().splitlines()


def agreed(place: Path, *folders: Path) -> dict[str, str]:
    """Word by audited model, after page, `verdict` and gate were held against each other.

    Args:
        place: an empty folder, for the page and a policy.
        *folders: of results.
    """
    page, policy = place / "agreed.html", place / "agreed.toml"
    printed("report", *folders, "-o", page)
    policy.write_text("")
    answers, table = Answers(page), Answers(page).verdicts
    gate = [re.fullmatch("(?:FAIL|pass)  (.+?): (.+)", one) for one in gated(policy, *folders)]
    assert {one[1]: one[2] for one in gate if one} == table
    told = printed("verdict", *folders)
    *said, last = [line for line in told if not line.startswith((" ", "not read: "))]
    if len(table) > 1:
        assert last == answers.headline
        counted(answers.headline, table)
        assert tallied(answers) == table
    else:
        said.append(last)
    assert len(said) == len(table)
    for line in said:  # what is found but not decided stands in the reason
        label, _, rest = line.partition(": ")
        assert rest.startswith(table[label].removesuffix(", holds some")), line
    return table


def gated(policy: Path, *folders: Path) -> list[str]:
    """Lines of a gate, a model each."""
    lines = printed("verdict", *folders, "--gate", policy)
    n = sum(line.startswith(("FAIL", "pass")) for line in lines)
    assert lines[-1].endswith(f" of {n} pass")
    return lines


def tallied(answers: Answers) -> dict[str, str]:
    """Model -> word, of the tally below the headline."""
    found = {}
    (tally,) = answers.page.every("dl", class_="tally")
    for word, names in zip(tally.every("dt"), tally.every("dd"), strict=True):
        n, _, said = word.text.partition(" ")
        labels = [one.text for one in names.every("bdi")]
        assert int(n) == len(labels)
        for many, one in FORMS.items():
            assert (many in said) <= (len(labels) > 1), word.text
            said = said.replace(many, one)
        found |= dict.fromkeys(labels, said)
    return found


def counted(headline: str, table: dict[str, str]) -> None:
    """Holds the numbers of a headline against the words of the table."""
    held = [word for word in table.values() if HELD.match(word)]
    n = f"{len(held)} of {len(table)}" if len(held) < len(table) else f"All {len(held)}"
    if not held:
        assert headline.startswith(f"{len(table)} audited models: ")
        return
    assert headline.startswith(f"{n} audited models still hold"), headline
    part = held.count("partly erased")
    assert (f"{part} of them in part" in headline) == (0 < part < len(held))
    for word in {one for one in held if one.startswith("says them")}:
        n_said = held.count(word)
        assert f"; {n_said} {word if n_said == 1 else word.replace('says', 'say')}" in headline
