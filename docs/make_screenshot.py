"""Write docs/img/report.png: the page of the embedded family, as Chromium shows it.

Command: python docs/make_screenshot.py (needs a Chromium; runs `lensaudit demo` first)
"""

import sys
import tempfile
from pathlib import Path

from lensaudit.cli.main import run
from lensaudit.report.render import write_report

ROOT = Path(__file__).resolve().parents[1]
SHOWN = ("verdict", "examples")
"""Parts of the page that fit into a README."""


def main() -> None:
    """Audit the family, write its page, take the picture."""
    sys.path.insert(0, str(ROOT / "tests" / "report"))
    from chromium import Chromium, find

    program = find()
    if program is None:
        sys.exit("no Chromium on this machine: apt-get install chromium")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(["demo", "--out", str(folder / "family"), "--activations", str(folder / "cache")])
        write_report([folder / "family"], folder / "audit.html")
        browser = Chromium(program, folder / "profile")
        browser.open((folder / "audit.html").as_uri() + "#model=demo%2Fnpo&example=33&theme=light")
        browser.run(
            "document.querySelectorAll('main > section, footer').forEach(part => "
            f"{{ part.hidden = !{list(SHOWN)}.includes(part.id) }});"
            "document.querySelector('main').style.paddingBottom = '1.5rem';"
            "dispatchEvent(new Event('resize'))"
        )
        browser.picture(ROOT / "docs" / "img" / "report.png", "body")
        browser.close()


if __name__ == "__main__":
    main()
