"""Which figure differs by how much under the kernels of other processors?

    python -m benchmarks.kernels

PyTorch, oneDNN and MKL choose their kernels when a process starts, by the processor or by what the
environment says: so one machine computes as older ones do. The same commands on the embedded family
run once for each of KERNELS and once as the machine would; printed is the largest difference of
every figure, how many words and counts differ, and where.
"""

import csv
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.machine import describe

KERNELS: Mapping[str, Mapping[str, str]] = {
    "oldest": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_CBWR": "COMPATIBLE",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_CBWR": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    "avx2, two threads": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OMP_NUM_THREADS": "2",
    },
    "avx512": {
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "MKL_CBWR": "AVX512",
    },
}
"""What the environment of a process says, before it starts."""
WIDTHS = ("DEFAULT", "AVX2", "AVX512")
"""PyTorch's own kernels, each of which a later processor has, too."""
COMMANDS = (
    "patch --source demo/npo --source demo/masked_readout --limit 16 --out patch",
    "eval --model demo/npo --limit 8 --max-new-tokens 12 --out eval",
    "know --source demo/npo --limit 32 --reader outputs --placebos 0 --out know",
)
FIGURES = {
    "baseline": "log-probability of the answer, nats per token",
    "s1": "S1",
    "s2": "S2",
    "erasure": "S2 / S1 at a layer",
    "uds": "UDS",
    "ci95": "end of an interval",
    "agg_value": "metric of the suite",
    "score": "metric of a row",
    "p": "p of permutations",
    "bits_associated": "bits a fact",
    "generation": "text that a model says",
    "code": "verdict",
}
"""Fields of results -> what they are; all else is counted as other."""


def fingerprint() -> dict[str, str]:
    """What this process computes with: PyTorch's width, and products and sums by their bits."""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, 256, generator=generator) for n in (64, 256))
    found = {"mkl": x @ w.T, "aten": x.softmax(-1).sum(0)}
    if torch.backends.mkldnn.is_available():
        # the call of lensaudit.models.linear
        found["onednn"] = torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], "")
    bits = {name: hashlib.sha256(one.numpy().tobytes()).hexdigest() for name, one in found.items()}
    return {"width": torch.backends.cpu.get_cpu_capability(), **bits}


def why_not(kernel: str) -> str | None:
    """Why this machine cannot run those kernels; None if it can."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"{kernel}: kernels of x86-64, and this is {platform.machine()}"
    wanted, here = KERNELS[kernel]["ATEN_CPU_CAPABILITY"].upper(), fingerprint()["width"]
    if here not in WIDTHS or WIDTHS.index(wanted) > WIDTHS.index(here):
        return f"{kernel}: this processor has {here}"
    return None


def environment(kernel: str | None) -> dict[str, str]:
    """Of a process with these kernels, or with the machine's own."""
    names = {name for one in KERNELS.values() for name in one} - {"OMP_NUM_THREADS"}
    own = {name: value for name, value in os.environ.items() if name not in names}
    return own | {"OMP_NUM_THREADS": "1"} | (dict(KERNELS[kernel]) if kernel else {})


RUN = """
import json, sys
from benchmarks.kernels import fingerprint
from lensaudit.cli.main import main
print(json.dumps(fingerprint()))
for command in sys.argv[1:]:
    try:
        main(command.split())
    except SystemExit as end:
        if end.code:
            raise
"""


def run(folder: Path, kernel: str | None, *commands: str) -> dict[str, str]:
    """Run commands in a folder, in one process with these kernels; its fingerprint.

    Raises:
        subprocess.CalledProcessError: a command failed.
    """
    root = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", RUN, *commands],
        cwd=folder,
        env=environment(kernel) | {"PYTHONPATH": root},
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout.partition("\n")[0])


def figures(folder: Path) -> dict[str, dict[str, Any]]:
    """Figure -> place -> value, of all results below a folder."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for path in sorted(folder.rglob("*")):
        at = str(path.relative_to(folder))
        if at.startswith("activations") or path.name == "manifest.json":
            continue
        for place, name, value in _values(path):
            found[name][f"{at} {place}"] = value
    return found


def _values(path: Path) -> Iterator[tuple[str, str, Any]]:
    if path.suffix == ".csv":
        with path.open() as file:
            for nth, row in enumerate(csv.DictReader(file)):
                yield from ((f"{nth} {name}", name, _number(one)) for name, one in row.items())
    elif path.suffix in (".json", ".jsonl"):
        lines = [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines()
        for nth, line in enumerate(lines):
            yield from _leaves(json.loads(line), f"{nth}", "")


def _leaves(value: Any, place: str, name: str) -> Iterator[tuple[str, str, Any]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _leaves(one, f"{place}/{key}", key if re.match(r"[a-zA-Z]", key) else name)
    elif isinstance(value, list):
        for nth, one in enumerate(value):
            yield from _leaves(one, f"{place}/{nth}", name)
    elif name not in ("check", "seconds"):
        yield place, name, value


def _number(text: str) -> Any:
    try:
        return float(text) if "." in text or "e" in text else text
    except ValueError:
        return text


def apart(own: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The largest difference of the numbers, and of how many words and counts there is one."""
    pairs = [(own.get(place), other.get(place)) for place in own.keys() | other.keys()]
    computed = [(a, b) for a, b in pairs if isinstance(a, float) and isinstance(b, float)]
    words = [a != b for a, b in pairs if not (isinstance(a, float) and isinstance(b, float))]
    gaps = [f"{max(abs(a - b) for a, b in computed):.1e}"] if computed else []
    said = "equal" if not sum(words) else f"{sum(words)} differ"
    shown = [f"words and counts {said}"] if words and (sum(words) or not gaps) else []
    return ", ".join(gaps + shown)


def table(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    """Lines of the table: kernel -> figure -> place -> value, the machine's own kernels first."""
    (own, *others) = found
    yield f"| figure | values | {' | '.join(others)} |"
    yield "|---" * (len(others) + 2) + "|"
    rest = sorted({name for one in found.values() for name in one} - FIGURES.keys())
    for said, names in [*((FIGURES[one], [one]) for one in FIGURES), ("any other", rest)]:
        all_of = {kernel: _merged(one, names) for kernel, one in found.items()}
        cells = [apart(all_of[own], all_of[kernel]) for kernel in others]
        yield f"| {said} | {len(all_of[own])} | {' | '.join(cells)} |"


def _merged(of: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    return {place: value for name in names for place, value in of.get(name, {}).items()}


def largest(found: Mapping[str, Mapping[str, Mapping[str, Any]]], n: int = 5) -> Iterator[str]:
    """A line for each of the largest differences of a kernel, and for each word that differs."""
    (own, *others) = found
    names = sorted(found[own])
    for kernel in others:
        mine, theirs = (_merged(found[one], names) for one in (own, kernel))
        gaps = {
            place: abs(value - theirs[place]) if isinstance(value, float) else 1.0
            for place, value in mine.items()
            if place in theirs and value != theirs[place] and theirs[place] is not None
        }
        for place in sorted(gaps, key=lambda one: -gaps[one])[:n]:
            yield f"{kernel}: {place}: {mine[place]} and {theirs[place]}"


def main() -> None:
    print(describe())
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for kernel in (None, *KERNELS):
        if kernel and (why := why_not(kernel)):
            print(f"left out: {why}")
            continue
        with TemporaryDirectory() as folder:
            made = run(Path(folder), kernel, *COMMANDS)
            found[kernel or "own"] = figures(Path(folder))
        print(f"{kernel or 'own'}: {made['width']}", flush=True)
    print("\n".join((*table(found), "", *largest(found))))


if __name__ == "__main__":
    main()
