"""The page's script is one that an engine can read."""

import shutil
import subprocess
from importlib import resources

import pytest

from lensaudit.report.render import SCRIPTS

NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="no node on this machine")
def test_node_reads_the_script(tmp_path):
    assets = resources.files("lensaudit.report") / "assets"
    parts = [(assets / name).read_text() for name in SCRIPTS]
    script = tmp_path / "page.js"
    script.write_text("\n".join(["'use strict';", "(() => {", *parts, "})();"]))
    done = subprocess.run([str(NODE), "--check", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    script.write_text("const a = ;")
    assert subprocess.run([str(NODE), "--check", str(script)], capture_output=True).returncode != 0
