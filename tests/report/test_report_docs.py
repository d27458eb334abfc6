"""docs/report.md and docs/evidence/page.md are true: their claims hold."""

import re

from support.pages import DOCS, page

from lensaudit.report.headline import LIMITS
from lensaudit.report.packing import LONGEST
from lensaudit.report.shelf import MOST_RUNS

TEXT = page("report")
WIDTHS = page("evidence/page")


def test_the_numbers_of_the_text_are_those_of_the_code():
    assert f"below {LIMITS['hidden_below']}" in TEXT
    assert f"from {LIMITS['erased_from']}" in TEXT
    assert f"up to {MOST_RUNS} models" in TEXT
    assert f"cut at {LONGEST} characters" in TEXT


def test_the_pictures_are_there_as_wide_as_they_say_and_small():
    links = re.findall(r"\[(\d+) px.*?\]\(\.\./(.*?)\)", WIDTHS)
    told = {int(width): path for width, path in links}
    assert list(told) == [390, 1150, 1600]
    for width, path in told.items():
        head = (DOCS / path).read_bytes()[:24]
        assert int.from_bytes(head[16:20]) == width  # of a PNG's first chunk
    sizes = [(DOCS / path).stat().st_size for path in (*told.values(), "img/report.png")]
    assert sum(sizes) < 700_000
