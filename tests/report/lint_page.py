"""Lint the page's script with Biome from the npm registry, as the page runs it: in one piece.

    python tests/report/lint_page.py

Exit code 1 where something is wrong. Without npx, or without the registry, it says so and passes.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

from lensaudit.report.render import SCRIPTS

BIOME = "@biomejs/biome@2.3.0"
RULES = {
    "linter": {
        "rules": {
            "recommended": True,
            "correctness": {"noUndeclaredVariables": "error", "noUnusedVariables": "error"},
        }
    },
    "formatter": {"enabled": False},
}


def main() -> int:
    """Lint; 0 where there is nothing to say."""
    npx = shutil.which("npx")
    if npx is None:
        print("no npx: the page's script is not linted")
        return 0
    assets = resources.files("lensaudit.report") / "assets"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        parts = [(assets / name).read_text() for name in SCRIPTS]
        (place / "page.js").write_text("\n".join(["(() => {", *parts, "})();"]))
        (place / "biome.json").write_text(json.dumps(RULES))
        biome = [npx, "--yes", BIOME]
        try:
            there = subprocess.run(
                [*biome, "--version"], cwd=place, capture_output=True, timeout=90
            )
        except subprocess.TimeoutExpired:
            there = None
        if there is None or there.returncode:
            print(f"{BIOME} cannot be fetched: the page's script is not linted")
            return 0
        command = [*biome, "lint", "--error-on-warnings", "page.js"]
        return subprocess.run(command, cwd=place).returncode


if __name__ == "__main__":
    sys.exit(main())
