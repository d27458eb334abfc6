"""Write the pictures of the page into docs/img: the embedded family's, as Chromium shows it.

Command: python docs/make_screenshot.py [RESULTS] (needs a Chromium and Pillow). Without a folder of
results `lensaudit demo` runs first, and attacks on one of its models: two minutes on one core.
"""

import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from lensaudit.cli.main import run
from lensaudit.report.render import write_report

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "img"
ATTACKED = "demo/masked_upper"
ATTACKS = (
    f"worst --source {ATTACKED} --retain demo/retain"
    " --attack greedy --attack prefix --attack first_token --attack lens"
)
COLOURS = 256
"""Of a palette that covers the picture: verdicts keep their colours."""


@dataclass(frozen=True)
class Picture:
    """Parts of the page at one width, in pixels."""

    name: str
    width: int
    parts: tuple[str, ...]
    address: str


PICTURES = (
    Picture("verdict", 1150, ("verdict",), "theme=light"),
    Picture("report", 1150, ("verdict", "examples"), f"model={ATTACKED}&example=8&theme=light"),
    Picture("page-390", 390, ("verdict", "models", "examples"), "theme=light"),
    Picture("page-1150", 1150, ("models", "layers", "compare"), "theme=light"),
    Picture("page-1600", 1600, ("verdict", "models", "layers", "examples"), "theme=dark"),
)


def main(results: Path | None = None) -> None:
    """Audit the family, write its page, take the pictures."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.chromium import Chromium, find

    program = find()
    if program is None:
        sys.exit("no Chromium on this machine: apt-get install chromium")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if results is None:
            results = folder / "family"
            kept = ["--activations", str(folder / "cache")]
            run(["demo", "--out", str(results), *kept])
            run([*shlex.split(ATTACKS), "--out", str(results / "worst"), *kept])
        write_report([results], folder / "audit.html")
        browser = Chromium(program, folder / "profile")
        for one in PICTURES:
            browser.size(one.width, 1400)
            browser.open(f"{(folder / 'audit.html').as_uri()}#{one.address}")
            browser.run(
                "document.querySelectorAll('main > section, footer').forEach(part => "
                f"{{ part.hidden = !{list(one.parts)}.includes(part.id) }});"
                "document.querySelector('main').style.paddingBottom = '1.5rem';"
                "dispatchEvent(new Event('resize'))"
            )
            path = IMAGES / f"{one.name}.png"
            browser.picture(path, "body")
            with Image.open(path) as shot:
                shot.convert("RGB").quantize(
                    COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE
                ).save(path, optimize=True)
        browser.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
