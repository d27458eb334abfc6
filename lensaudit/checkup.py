"""Is this installation fit for use? One check per thing that goes wrong on a machine."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch
from huggingface_hub import constants
from packaging.requirements import Requirement
from rich.filesize import decimal as size

from lensaudit.activations.inventory import describe
from lensaudit.activations.naming import cache_folders
from lensaudit.choices import CheckupSettings
from lensaudit.errors import LensAuditError
from lensaudit.models.bridge import DTYPES, bridge_from, logits_of, residuals
from lensaudit.models.causal import load_causal
from lensaudit.models.checkpoint import Checkpoint, load_tokenizer, open_model
from lensaudit.models.device import resolve_device, resolve_dtype

TEXT = "Question: Where does the river end?\nAnswer: The river ends in a lake in the north."
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.05, "float16": 0.01}
"""Allowed gap over the largest value. Half precision rounds differently in every kernel."""
LOW_DISK_BYTES = 5_000_000_000
"""Below this a note is made: a 1B model and its caches take about as much."""

State = Literal["ok", "note", "fail"]


@dataclass(frozen=True)
class Check:
    """One check of the installation, and its outcome."""

    name: str
    state: State
    found: str


def examine(settings: CheckupSettings) -> Iterator[Check]:
    """Every check, as it is made."""
    yield from versions()
    device = _device(settings.device)
    yield device
    yield disk("activations", Path(settings.activations))
    yield disk("hub cache", Path(constants.HF_HUB_CACHE))
    # the token itself is never shown
    token = "a token is set" if os.environ.get("HF_TOKEN") else "no HF_TOKEN"
    tried = "not tried; HF_HUB_OFFLINE is not set"
    hub = "offline (HF_HUB_OFFLINE)" if constants.HF_HUB_OFFLINE else f"{tried}; {token}"
    yield Check("hub", "ok", hub)
    yield caches(Path(settings.activations))
    if device.state == "ok":
        yield bridge(settings, resolve_device(settings.device))


def versions() -> Iterator[Check]:
    """Every package that the installed lensaudit asks for, in one check per package."""
    for text in metadata.requires("lensaudit") or []:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            yield Check(wanted.name, "fail", f"not installed; pip install '{text}'")
            continue
        fits = wanted.specifier.contains(version, prereleases=True)
        yield Check(
            wanted.name,
            "ok" if fits else "fail",
            version if fits else f"{version}, wanted {wanted.specifier}; pip install '{text}'",
        )


def _device(device: str) -> Check:
    try:
        chosen = resolve_device(device)
    except LensAuditError as error:
        return Check("device", "fail", str(error))
    names = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    gpus = f"; CUDA devices: {', '.join(names)}" if names else "; no CUDA device"
    return Check("device", "ok", f"{chosen}, {torch.get_num_threads()} threads{gpus}")


def disk(name: str, folder: Path) -> Check:
    """Free space where `folder` is or would be made, and whether it may be written."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(there, os.W_OK):
        return Check(name, "fail", f"{there} cannot be written; name another folder")
    free = shutil.disk_usage(there).free
    low = f"; less than {size(LOW_DISK_BYTES)}" if free < LOW_DISK_BYTES else ""
    return Check(name, "note" if low else "ok", f"{folder}, {size(free)} free{low}")


def caches(root: Path) -> Check:
    """What the listings of the caches say; no shard is read."""
    infos = [describe(folder) for folder in cache_folders(root)]
    total = f"{len(infos)} caches, {size(sum(info.n_bytes for info in infos))}"
    if damaged := [info for info in infos if info.state == "damaged"]:
        first = f"{damaged[0].folder}: {damaged[0].problem}"
        advice = "run `lensaudit activations repair`"
        return Check("caches", "fail", f"{len(damaged)} damaged, first {first}; {advice}")
    if unfinished := [info for info in infos if info.state == "incomplete"]:
        return Check("caches", "note", f"{total}; {len(unfinished)} unfinished")
    return Check("caches", "ok", total)


def bridge(settings: CheckupSettings, device: str) -> Check:
    """Parity of logits and residual streams."""
    name = f"bridge on {settings.model}"
    try:
        checkpoint = open_model(settings.model, settings.registry)
        dtype = resolve_dtype(settings.dtype, device)
        logits, resid = parity(checkpoint, dtype=dtype, device=device)
    except LensAuditError as error:
        return Check(name, "fail", str(error))
    allowed = TOLERANCE[dtype]
    holds = logits <= allowed and resid <= allowed  # NaN is not
    said = (
        f"logits differ from Hugging Face's by {logits:.1e} of the largest, residuals by "
        f"{resid:.1e} (allowed {allowed:.0e})"
    )
    return Check(name, "ok" if holds else "fail", said)


def parity(checkpoint: Checkpoint, *, dtype: str = "float32", device: str = "cpu") -> list[float]:
    """Largest differences between the bridge and Hugging Face on one text, over the largest value.

    Of the logits, and of the residuals of all layers but the last, which Hugging Face norms. The
    model is loaded once and bridged after it has spoken.
    """
    model = load_causal(checkpoint, dtype=DTYPES[dtype], device=device, attn="eager")
    tokenizer = load_tokenizer(checkpoint)
    tokens = tokenizer(TEXT, return_tensors="pt")["input_ids"].to(device)
    with torch.no_grad():
        plain = model(tokens, output_hidden_states=True)
    stack, _ = residuals(bridge := bridge_from(model, tokenizer), tokens)
    wanted = torch.stack(plain.hidden_states[1:-1], dim=1)
    pairs = (logits_of(bridge, tokens), plain.logits), (stack[:, :-1], wanted)
    return [float((one.float() - own.float()).abs().max() / own.abs().max()) for one, own in pairs]
