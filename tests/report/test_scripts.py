"""The pages' scripts are such that an engine can read them."""

import shutil
import subprocess
from importlib import resources

import pytest

from lensaudit.report.render import SCRIPTS

NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="no node on this machine")
@pytest.mark.parametrize("names", [SCRIPTS, ("dom.js", "spans.js")])
def test_node_reads_the_script(tmp_path, names):
    assets = resources.files("lensaudit.report") / "assets"
    parts = [(assets / name).read_text() for name in names]
    script = tmp_path / "page.js"
    for text in ("\n".join(["'use strict';", "(() => {", *parts, "})();"]), "const a = ;"):
        script.write_text(text)
        done = subprocess.run([str(NODE), "--check", script], capture_output=True, text=True)
        assert (done.returncode == 0) == (text != "const a = ;"), done.stderr
