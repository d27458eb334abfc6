"""Kills, environments, odd names, full disks, other hours: the result is the undisturbed one."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from campaign.bench import Bench, slug, well_said
from campaign.calls import Breach, Skipped
from campaign.folders import apart, changes, state, written
from campaign.recipes import RECIPES, Recipe
from campaign.relation import relation
from campaign.relations.asking import own, start, without_plan

KILLED = (
    "patch",
    "eval",
    "audit",
    "know",
    "sample",
    "unlearn",
    "quantize",
    "steer extract",
    "judge",
    "cache",
    "worst",
    "relearn",
    "rtt",
    "sweep run",
    "meta faithfulness",
    "annotate",
)
TRAINING = (
    "unlearn",
    "relearn",
    "rtt",
    "quantize",
    "meta faithfulness",
    "meta robustness",
    "watch",
    "effort",
    "sweep run",
    "judge",
)
"""Where one process at a time works; a second ends with 75."""


def same_as_shelf(bench: Bench, recipe: Recipe, folder: Path, told: object) -> None:
    """Hold a result, made in a disturbed way, to the undisturbed one."""
    if recipe.name == "cache":
        return  # its document is compared when it is read
    names = ("sweep-run", "sweep-plan") if recipe.name == "sweep run" else (slug(recipe.name),) * 2
    docs = [_made(base, name) for base, name in zip((bench.shelf, folder), names, strict=True)]
    if names[0] != names[1]:
        docs[0] = json.loads(json.dumps(docs[0]).replace(f"{names[0]}/", f"{names[1]}/"))
    if docs[0].keys() != docs[1].keys():
        raise Breach(f"files: {sorted(docs[0].keys() ^ docs[1].keys())[:4]}; after {told}")
    for path in docs[0]:
        # a manifest says which file of names was read
        if path.endswith("manifest.json") and "LENSAUDIT_REGISTRY" in str(told):
            for one in docs:
                cast(Any, one[path]).get("options", {}).pop("registry", None)
        # rows that were left are in other batches
        if what := apart(docs[0][path], docs[1][path], 1e-6, path):
            raise Breach(f"{what}; after {told}")


def _made(base: Path, name: str) -> dict[str, object]:
    """What a result says: of a folder, or of the one file it is."""
    place = base / name
    if not place.is_dir():
        place = next(iter(base.glob(f"{name}.*")), place)
    files = state(place) if place.is_dir() else {"": place.read_bytes()}
    found = written(files, base)
    passed = re.compile(r"\.html$|plan\.json$|attempt|\.partial$|\.lock$|tmp")
    return {path: without_plan(path, doc) for path, doc in found.items() if not passed.search(path)}


@relation("killed", "killed or interrupted and run again: the undisturbed result")
def killed(seed: int) -> Iterator[tuple]:
    for name in KILLED:
        for how, sent in (("killed", signal.SIGKILL), ("interrupted", signal.SIGINT)):
            quick = (name, how) == ("judge", "killed")
            yield f"{name}, {how}", partial(_killed, name, sent), quick


def _killed(name: str, sent: int, bench: Bench) -> None:
    recipe = RECIPES[name]
    measured = start(bench, recipe, finished=False, warm=False)
    took = bench.done(own(recipe), measured).seconds
    folder = start(bench, recipe, finished=False, warm=False)
    after = took * bench.random.uniform(0.1, 0.95)
    first = bench.call(own(recipe), folder, stop=(sent, lambda seconds: seconds >= after))
    if sent == signal.SIGINT and first.exit not in (0, 130):
        raise Breach(f"interrupted after {after:.1f} of {took:.1f} s: {first}")
    if "Traceback" in first.stderr:
        raise Breach(f"traceback: {first}")
    done = bench.done(own(recipe), folder)
    same_as_shelf(bench, recipe, folder, done)


@relation(
    "at once",
    "three at once in a fresh folder: exit 0, or 75 where one at a time works; the "
    "undisturbed result",
)
def at_once(seed: int) -> Iterator[tuple]:
    for name in (
        "patch",
        "eval",
        "know",
        "audit",
        "sample",
        "judge",
        "steer extract",
        "cache",
        "quantize",
        "unlearn",
        "rtt",
        "sweep run",
        "relearn",
        "meta faithfulness",
    ):
        yield name, partial(_at_once, name), False


def _at_once(name: str, bench: Bench) -> None:
    recipe = RECIPES[name]
    folder = start(bench, recipe, finished=False, warm=False)
    ended = bench.at_once(own(recipe), folder, 3)
    for one in ended:
        well_said(one, exits=(0, 75) if name in TRAINING else (0,), lines=0)
    if all(one.exit for one in ended):
        raise Breach(f"none ended well: {ended[0]}")
    done = bench.done(own(recipe), folder)
    same_as_shelf(bench, recipe, folder, done)


ENVIRONMENTS: tuple[tuple[str, Mapping[str, str | None]], ...] = (
    ("no HOME", {"HOME": None}),
    ("a HOME that is not there", {"HOME": "/nowhere/at/all"}),
    ("an empty HOME", {"HOME": ""}),
    ("a HOME that is a file", {"HOME": "{here}/rows.jsonl"}),
    ("no PATH", {"PATH": None}),
    ("an empty PATH", {"PATH": ""}),
    ("LANG=C", {"LANG": "C", "LC_ALL": None}),
    ("LC_ALL=C", {"LC_ALL": "C"}),
    ("LC_ALL=POSIX", {"LC_ALL": "POSIX"}),
    ("LC_ALL=C.UTF-8", {"LC_ALL": "C.UTF-8"}),
    ("LC_ALL=de_DE.UTF-8", {"LC_ALL": "de_DE.UTF-8"}),
    ("LC_ALL=tr_TR.UTF-8", {"LC_ALL": "tr_TR.UTF-8"}),
    ("LC_NUMERIC=de_DE.UTF-8", {"LC_NUMERIC": "de_DE.UTF-8"}),
    ("PYTHONIOENCODING=ascii", {"PYTHONIOENCODING": "ascii"}),
    ("PYTHONIOENCODING=latin-1", {"PYTHONIOENCODING": "latin-1"}),
    ("PYTHONUTF8=0", {"PYTHONUTF8": "0", "LC_ALL": "C"}),
    ("PYTHONUTF8=1", {"PYTHONUTF8": "1"}),
    ("PYTHONHASHSEED=0", {"PYTHONHASHSEED": "0"}),
    ("PYTHONHASHSEED=77", {"PYTHONHASHSEED": "77"}),
    ("PYTHONOPTIMIZE=2", {"PYTHONOPTIMIZE": "2"}),
    ("PYTHONWARNINGS=error", {"PYTHONWARNINGS": "error"}),
    ("PYTHONDONTWRITEBYTECODE=1", {"PYTHONDONTWRITEBYTECODE": "1"}),
    ("PYTHONUNBUFFERED=1", {"PYTHONUNBUFFERED": "1"}),
    ("PYTHONDEVMODE=1", {"PYTHONDEVMODE": "1"}),
    ("PYTHONSAFEPATH=1", {"PYTHONSAFEPATH": "1"}),
    ("TERM=dumb", {"TERM": "dumb"}),
    ("no TERM", {"TERM": None}),
    ("TERM=xterm-256color", {"TERM": "xterm-256color"}),
    ("COLUMNS=0", {"COLUMNS": "0"}),
    ("COLUMNS=1", {"COLUMNS": "1"}),
    ("COLUMNS=20", {"COLUMNS": "20"}),
    ("COLUMNS=100000", {"COLUMNS": "100000"}),
    ("COLUMNS=x", {"COLUMNS": "x"}),
    ("LINES=1", {"LINES": "1"}),
    ("NO_COLOR=1", {"NO_COLOR": "1"}),
    ("FORCE_COLOR=1", {"FORCE_COLOR": "1"}),
    ("CLICOLOR_FORCE=1", {"CLICOLOR_FORCE": "1"}),
    ("TTY_COMPATIBLE=1", {"TTY_COMPATIBLE": "1"}),
    ("CI=true", {"CI": "true"}),
    ("TZ=Asia/Kathmandu", {"TZ": "Asia/Kathmandu"}),
    ("TZ=nonsense", {"TZ": "nonsense"}),
    ("TMPDIR that is not there", {"TMPDIR": "/nowhere/at/all"}),
    ("TMPDIR in a folder with blanks", {"TMPDIR": "{here}/a b"}),
    ("OMP_NUM_THREADS=2", {"OMP_NUM_THREADS": "2"}),
    ("OMP_NUM_THREADS=0", {"OMP_NUM_THREADS": "0"}),
    ("OMP_NUM_THREADS=x", {"OMP_NUM_THREADS": "x"}),
    ("no OMP_NUM_THREADS", {"OMP_NUM_THREADS": None}),
    ("MKL_NUM_THREADS=2", {"MKL_NUM_THREADS": "2"}),
    ("MALLOC_ARENA_MAX=1", {"MALLOC_ARENA_MAX": "1"}),
    ("CUDA_VISIBLE_DEVICES empty", {"CUDA_VISIBLE_DEVICES": ""}),
    ("CUDA_VISIBLE_DEVICES=-1", {"CUDA_VISIBLE_DEVICES": "-1"}),
    ("CUDA_VISIBLE_DEVICES=7", {"CUDA_VISIBLE_DEVICES": "7"}),
    ("HF_HOME not there", {"HF_HOME": "{here}/hub"}),
    ("HF_HOME is a file", {"HF_HOME": "{here}/rows.jsonl"}),
    ("HF_HUB_OFFLINE=0", {"HF_HUB_OFFLINE": "0"}),
    ("HF_TOKEN empty", {"HF_TOKEN": ""}),
    ("HF_TOKEN with a line break", {"HF_TOKEN": "a\nb"}),
    ("HF_ENDPOINT nonsense", {"HF_ENDPOINT": "http://127.0.0.1:9"}),
    ("TRANSFORMERS_OFFLINE=1", {"TRANSFORMERS_OFFLINE": "1"}),
    ("TRANSFORMERS_VERBOSITY=debug", {"TRANSFORMERS_VERBOSITY": "error"}),
    ("TOKENIZERS_PARALLELISM=true", {"TOKENIZERS_PARALLELISM": "true"}),
    ("a proxy that is not there", {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://x"}),
    ("XDG_CACHE_HOME not there", {"XDG_CACHE_HOME": "{here}/cache"}),
    ("XDG_CACHE_HOME cannot be made", {"XDG_CACHE_HOME": "/dev/null/x"}),
    ("no XDG_CACHE_HOME, no HOME", {"XDG_CACHE_HOME": None, "HOME": None}),
    ("LENSAUDIT_OUT elsewhere", {"LENSAUDIT_OUT": "{here}/elsewhere"}),
    ("LENSAUDIT_PROJECT=none", {"LENSAUDIT_PROJECT": "none"}),
    ("LENSAUDIT_REGISTRY of our own", {"LENSAUDIT_REGISTRY": "{here}/names.toml"}),
    ("LENSAUDIT_MODELS elsewhere", {"LENSAUDIT_MODELS": "{here}/fetched"}),
    ("a variable that is no UTF-8", {"FOO": "\udcff"}),
    ("PWD is wrong", {"PWD": "/"}),
    ("LENSAUDIT_SOURCE, which nobody reads", {"LENSAUDIT_SOURCE": "demo/full"}),
)
AT_IMPORT = ("PYTHON", "OMP", "MKL", "MALLOC", "LC_", "LANG", "HF_", "TRANSFORMERS", "CUDA")
"""Variables that are read when a process begins or imports: a process of its own."""
SURROUNDED = ("patch", "eval")


@relation("environment", "seventy environments: the same numbers and words, or a refusal in a line")
def environment(seed: int) -> Iterator[tuple]:
    chance = random.Random(seed)
    for of, env in ENVIRONMENTS:
        name = chance.choice(SURROUNDED)
        yield of, partial(_environment, name, env), of == "no HOME"


def _environment(name: str, env: Mapping[str, str | None], bench: Bench) -> None:
    recipe = RECIPES[name]
    folder = start(bench, recipe, finished=False)
    (folder / "a b").mkdir()
    (folder / "names.toml").write_text('mine = "models/npo"\n')
    here = {key: value and value.replace("{here}", str(folder)) for key, value in env.items()}
    if any(key.startswith(AT_IMPORT) for key in here):
        _in_a_process(own(recipe), folder, here)
    else:
        done = bench.call(own(recipe), folder, env=here)
        well_said(done, lines=0)
        if done.exit != 0:
            raise Breach(f"{done}")
    same_as_shelf(bench, recipe, folder, here)


def _in_a_process(argv: list[str], folder: Path, env: Mapping[str, str | None]) -> None:
    around = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    for key, value in env.items():
        if value is None:
            around.pop(key, None)
        else:
            around[key] = value
    typed = [sys.executable, "-m", "lensaudit.cli.main", *argv]
    done = subprocess.run(typed, cwd=folder, env=around, capture_output=True, timeout=600)
    if done.returncode == 2 and len(done.stderr.splitlines()) == 1:
        raise Skipped(f"refused: {done.stderr.decode(errors='replace')[:200]}")
    if done.returncode != 0 or b"Traceback" in done.stderr:
        raise Breach(f"exit {done.returncode}: {done.stderr.decode(errors='replace')[-600:]}")


ODD = (
    "two words",
    "Ünïcödé",
    "名前",
    "naïve 🦙",
    "-dash",
    "..dots..",
    "100%",
    'it\'s "quoted"',
    "a\nnew line",
    "con",
    "x" * 200,
    "[brackets]",
    "$HOME;#&",
)
"""Names of folders that people and programs come up with."""


@relation("names", "thirteen names for the result folder, the working folder and a model's folder")
def names(seed: int) -> Iterator[tuple]:
    for name in ODD:
        shown = name if len(name) < 30 else f"{name[:10]}… ({len(name)})"
        shown = shown.replace("\n", "\\n")
        yield f"--out {shown}", partial(_out_named, name), name == "two words"
        yield f"working folder {shown}", partial(_place_named, name), False
        yield f"model folder {shown}", partial(_model_named, name), False
        yield f"readers of {shown}", partial(_read_named, name), False


def _out_named(name: str, bench: Bench) -> None:
    folder = bench.folder()
    recipe = RECIPES["patch"]
    argv = recipe.typed("{}")
    at = argv.index("--out")
    argv[at : at + 2] = [f"--out={name}"]
    done = bench.call(argv, folder)
    well_said(done, lines=0)
    if done.exit != 0:
        raise Breach(f"{done}")
    again = bench.done(argv, folder)
    (folder / name).rename(folder / "patch")
    same_as_shelf(bench, recipe, folder, again)


def _place_named(name: str, bench: Bench) -> None:
    inner = bench.folder("patch") / name
    try:
        shutil.copytree(inner.parent, inner, ignore=lambda *_: [name], dirs_exist_ok=True)
    except OSError as error:
        raise Skipped(str(error)) from error
    for argv in (
        own(RECIPES["patch"]),
        own(RECIPES["eval"]),
        ["verdict", "patch"],
        ["report", "patch", "-o", "page.html"],
        ["runs", "ls", "."],
        ["verify", "patch"],
        ["init", ".", "--dry-run"],
    ):
        done = bench.call(argv, inner)
        well_said(done, lines=0)
        if done.exit != 0:
            raise Breach(f"{done}")
    same_as_shelf(bench, RECIPES["eval"], inner, name)


def _model_named(name: str, bench: Bench) -> None:
    import lensaudit

    folder = bench.folder()
    package = Path(lensaudit.__file__).parent / "embedded"
    shutil.copytree(package / "npo", folder / "m" / name)
    given = str(folder / "m" / name)
    argv = [
        "patch",
        "--source",
        given,
        "--full",
        "demo/full",
        "--retain",
        "demo/retain",
        "--data",
        "demo",
        "--limit",
        "4",
        "--layers",
        "8,15",
        "--out",
        "out",
    ]
    done = bench.call(argv, folder)
    well_said(done, lines=0)
    if done.exit != 0:
        raise Breach(f"{done}")
    for more in (
        ["verdict", "out"],
        ["report", "out", "-o", "page.html"],
        ["runs", "show", "out"],
        ["verify", "out"],
        ["export", "out", "--to", "eee", "-o", "ex"],
    ):
        done = bench.call(more, folder)
        well_said(done, lines=0)
        if done.exit != 0:
            raise Breach(f"{done}")


def _read_named(name: str, bench: Bench) -> None:
    folder = bench.folder(warm=False)
    bench.bring("patch", folder, name)
    given = f"./{name}"
    for argv in (
        ["verdict", given],
        ["report", given, "-o", "page.html"],
        ["runs", "show", given],
        ["verify", given],
        ["export", given, "--to", "markdown", "-o", "x.md"],
        ["export", given, "--to", "junit", "-o", "x.xml"],
        ["runs", "rm", given],
    ):
        done = bench.call(argv, folder)
        well_said(done, lines=0)
        if done.exit != 0:
            raise Breach(f"{done}")


@relation("full disk", "a disk that is full: exit 75, nothing half written, then the same result")
def full_disk(seed: int) -> Iterator[tuple]:
    for name in (
        "patch",
        "eval",
        "know",
        "quantize",
        "judge",
        "unlearn",
        "steer extract",
        "sample",
        "annotate",
        "report",
    ):
        for kilobytes in (16, 160, 900):
            yield f"{name}, {kilobytes} kB", partial(_full, name, kilobytes), False


def _full(name: str, kilobytes: int, bench: Bench) -> None:
    recipe = RECIPES[name]
    folder = start(bench, recipe, finished=False, warm=False)
    disk = folder / "disk"
    disk.mkdir()
    with small_disk(disk, kilobytes):
        for path in folder.iterdir():
            if path != disk:
                (disk / path.name).symlink_to(path)
        if _filled(recipe, bench, disk) == 75:
            subprocess.run(["mount", "-o", "remount,size=6G", str(disk)], check=True)
            again = bench.done(own(recipe), disk)
            same_as_shelf(bench, recipe, disk, again)


def _filled(recipe: Recipe, bench: Bench, disk: Path | None = None) -> int | str:
    """The exit code of a call whose disk is full at some point."""
    disk = disk or bench.folder()
    done = bench.call(own(recipe), disk)
    well_said(done, exits=(0, 75), lines=0)
    half = [one for one in disk.rglob("*") if one.is_file() and ".partial" in one.name]
    if half and done.exit == 0:
        raise Breach(f"half written: {half[0].name}, after {done}")
    return done.exit


@contextlib.contextmanager
def small_disk(place: Path, kilobytes: int) -> Iterator[None]:
    """A file system of its own in memory, where the system lets us mount one."""
    size = f"size={kilobytes}k"
    if os.geteuid() != 0 or shutil.which("mount") is None:
        raise Skipped("only root mounts a small disk")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(place)], capture_output=True, text=True
    )
    if made.returncode != 0:
        raise Skipped(f"no small disk here: {made.stderr.strip()[:100]}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


@relation("clock", "the clock set back, or a day ahead: the same result, found again")
def clock(seed: int) -> Iterator[tuple]:
    for name in ("patch", "eval", "know", "judge", "unlearn", "sample", "watch", "steer extract"):
        for hours in (-24 * 400, 24):
            quick = (name, hours) == ("eval", 24)
            yield f"{name}, {hours} hours", partial(_clock, name, hours * 3600.0), quick


def set_clock(seconds: float) -> None:
    """Let this process believe in another hour."""
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + seconds
    time.time_ns = lambda: real_ns() + int(seconds * 1e9)


def _clock(name: str, seconds: float, bench: Bench) -> None:
    recipe = RECIPES[name]
    folder = start(bench, recipe, finished=False)
    bench.done(own(recipe), folder)
    place = folder / slug(name)
    before = state(place)
    done = bench.done(own(recipe), folder, before=partial(set_clock, seconds))
    if what := changes(before, state(place)):
        raise Breach(f"{what}, after {done}")
    fresh = start(bench, recipe, finished=False)
    done = bench.done(own(recipe), fresh, before=partial(set_clock, seconds))
    same_as_shelf(bench, recipe, fresh, done)
    done = bench.done(own(recipe), fresh)
    same_as_shelf(bench, recipe, fresh, done)


NOBODY = 65534


@relation("read-only", "a working folder that may only be read: results elsewhere, or a refusal")
def read_only(seed: int) -> Iterator[tuple]:
    for name in (
        "patch",
        "eval",
        "know",
        "judge",
        "quantize",
        "annotate",
        "report",
        "verdict",
        "verify",
        "runs ls",
        "sample",
        "steer extract",
        "models",
        "sweep plan",
        "doctor",
    ):
        yield name, partial(_read_only, name, False), name == "models"
        if RECIPES[name].out:
            yield f"{name}, found again", partial(_read_only, name, True), False


def as_nobody() -> None:
    """Go on as a user who owns nothing."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def _read_only(name: str, done_before: bool, bench: Bench) -> None:
    if os.geteuid() != 0:
        raise Skipped("only root becomes somebody else")
    recipe = RECIPES[name]
    folder = start(bench, recipe, finished=done_before and recipe.keeps)
    if done_before:
        bench.done(own(recipe), folder)
    _close(folder)
    before = state(folder, unseen=())
    cache = {"XDG_CACHE_HOME": "/dev/null/x", "HOME": "/nowhere"}
    done = bench.call(own(recipe), folder, env=cache, before=as_nobody)
    well_said(done)
    if f"{sys.executable}: access refused" in done.stderr:
        raise Skipped("nobody else may start this Python")
    if what := changes(before, state(folder, unseen=())):
        raise Breach(f"{what}, after {done}")
    if recipe.out and not done_before and done.exit != 2:
        raise Breach(f"nothing could be written: {done}")
    if done_before and recipe.keeps and done.exit != 0:
        raise Breach(f"a finished result is there to be read: {done}")


def _close(folder: Path) -> None:
    """Let everybody read a folder, and nobody write into it."""
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o555 if path.is_dir() else 0o444)
    for place in folder.parents:
        # whoever reads it must be let in
        with contextlib.suppress(OSError):
            place.chmod(place.stat().st_mode | 0o011)
