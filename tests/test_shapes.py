"""The whole way of a question with every type and shape checked, in a process of its own."""

import os
import subprocess
import sys

RUN = """
from pathlib import Path

from jaxtyping import install_import_hook

install_import_hook("lensaudit", "beartype.beartype")  # modules are imported as they are used

import lensaudit as la
from lensaudit.cli.main import run
from lensaudit.attacks.rtt.embedded import embedded_rows
from lensaudit.files import write_json

for name in la.__all__:
    getattr(la, name)
write_json(Path("rows.json"), embedded_rows("forget")[::16])
write_json(Path("kept.json"), embedded_rows("retain")[::5])
few = {"data": "rows.json", "activations": "kept"}
neutral = {"validity_data": "kept.json", "align": "affine", "align_tokens": 200}
la.cache("demo/npo", **few)
found = la.patch("demo/npo", out="patch", layers="7,14", **neutral, **few)
assert found.summary["aligned"] is not None, found.summary
la.patch("demo/npo", out="head", component="head:1", layers="3", ask="none", **few)
said = la.evaluate("demo/npo", out="eval", limit=1, metrics="exact_memorization")
assert said.summary["exact_memorization"] is not None
readers = ("outputs", "lens")
known = la.know(
    "demo/npo", out="know", readers=readers, placebos=0, retain_data="kept.json", **few
)
assert 0 <= known.p <= 1
assert run(["report", "patch", "eval", "know", "-o", "page.html"]) == 0
print(Path("page.html").stat().st_size)
"""
"""Every room from cache to page on a fact of each of four authors, and few neutral rows."""


def test_cache_patch_eval_know_and_page_are_what_their_annotations_say(tmp_path):
    (tmp_path / "run.py").write_text(RUN)
    done = subprocess.run(
        [sys.executable, "run.py"],
        cwd=tmp_path,
        env=os.environ | {"LENSAUDIT_MODELS": "fetched"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) > 10_000
