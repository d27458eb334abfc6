"""Small sweeps of the embedded family, and units that cost nothing."""

import errno
import functools
import json
import os
import signal
import time
from pathlib import Path

import httpx
from huggingface_hub.errors import (
    HfHubHTTPError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage]
)

from lensaudit.cli.main import run
from lensaudit.errors import InputError, TryAgainError, WorkError
from lensaudit.evaluation.log import write_log
from lensaudit.files import make_folder
from lensaudit.progress import unheard
from lensaudit.results.kinds.eval import MetricResult
from lensaudit.results.manifest import manifest
from lensaudit.sweep.attempts import finished, publish, states_of
from lensaudit.sweep.engines import run_serial
from lensaudit.sweep.plan import Target, UnitConditions, make_plan, read_plan, write_plan
from lensaudit.sweep.run import run_sweep
from lensaudit.sweep.settings import RunSettings
from lensaudit.sweep.values import values_in

METRICS = "exact_memorization,forget_Q_A_Prob,privleak,uds"
SMALL = ("--metric", METRICS, "--limit", "2")


def command(*arguments) -> int:
    """Exit code of a command; a text of several words is several arguments."""
    return run([part for one in arguments for part in str(one).split(" ")])


def planned(out, *models, variants="base", more=SMALL) -> int:
    return command("sweep", "plan", *models, "--variants", variants, *more, "--out", out)


def targets(*names: str) -> list[Target]:
    """Checkpoints that exist by name only."""
    return [Target(name, f"org/{name}", "main", "unlearned", None, False) for name in names]


def plan_of(
    chosen,
    variants=("base",),
    conditions=None,
    data="d",
    attacks=None,
    root=Path("nowhere"),
    names=None,
):
    """A plan of checkpoints, or of some that exist by name only."""
    retain, full = targets("retain", "full")
    return make_plan(
        root,
        [*chosen] if isinstance(chosen[0], Target) else targets(*chosen),
        anchors={"retain": retain, "full": full},
        variants=variants,
        conditions=conditions or UnitConditions(),
        data=data,
        attacks=attacks or {},
        names=names or {},
    )


def toy_sweep(root: Path, n: int = 3):
    """A plan whose checkpoints exist by name only, on disk."""
    sweep = plan_of([f"m{i}" for i in range(n)], root=root)
    write_plan(sweep)
    return sweep


def names(sweep) -> dict[str, str]:
    """State of every unit by label."""
    return {one.unit.label: one.name for one in states_of(sweep)}


VALUE = MetricResult(0.5, records={0: {"score": 0.5}}, high_means="knows", family="toy")


def toy_run_unit(sweep, unit, obtain=None, halvings=0, report=unheard):
    """In place of measuring: says who was asked, and publishes one value."""
    with (sweep.root / "calls.txt").open("a") as stream:
        stream.write(f"{unit.label}\n")
    publish_values(sweep, unit, halvings, {"toy": VALUE})


def publish_values(sweep, unit, halvings, values):
    """Publish an evaluation's log, as `eval` writes it, with these metrics."""
    place = make_folder(sweep.work(unit.id) / "eval")
    log, started = write_log(place, "tofu", values), time.monotonic()
    said = {n: {"family": one.family, "high_means": one.high_means} for n, one in values.items()}
    inputs = {"model": {"name": unit.target, "weights": "w"}, "metrics": said}
    made = manifest("eval", kind="eval", options={}, inputs=inputs, device="cpu", started=started)
    made.write(place, [log.name])
    about = {"role": "unlearned", "method": None, "weights": "w", "dtype": "float32"}
    about |= {"device": "cpu", "halvings": halvings, "seconds": 1.0, "not_asked": None}
    publish(sweep, unit, {"plan": sweep.hash, **about})


def values_of(root, label):
    """Metric -> value of a finished unit."""
    sweep = read_plan(root)
    unit = next(unit for unit in sweep.units if unit.label == label)
    result = finished(sweep, unit)
    return {n: one.value for n, one in values_in(sweep.unit(unit.id), result["not_asked"]).items()}


def toy_run_nothing(sweep, unit, obtain=None, halvings=0, report=unheard):
    """A unit that says it is done and leaves nothing."""


def calls(root: Path) -> list[str]:
    path = root / "calls.txt"
    return path.read_text().splitlines() if path.exists() else []


def rows_of(sweep, unit) -> list[dict]:
    return [json.loads(line) for line in sweep.attempts(unit.id).read_text().splitlines()]


def behave(root: Path, label: str, *actions: str) -> None:
    """What happens at the first attempts at a unit; later ones go well."""
    folder = root / "behaviour"
    folder.mkdir(exist_ok=True)
    (folder / label).write_text("\n".join(actions))


def unruly_run_unit(sweep, unit, obtain=None, halvings=0, report=unheard):
    """A toy unit that does what `behave` said."""
    path = sweep.root / "behaviour" / unit.label
    actions = path.read_text().splitlines() if path.exists() else []
    if actions:
        path.write_text("\n".join(actions[1:]))
        with (sweep.root / "calls.txt").open("a") as stream:
            stream.write(f"{unit.label} {actions[0]}\n")
        _act(actions[0], sweep.work(unit.id), report)
    toy_run_unit(sweep, unit, obtain, halvings)


def _act(action: str, work: Path, report) -> None:
    if action == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "wait":
        (work.parent / f"{work.name}.waits").touch()
        while True:
            time.sleep(0.05)
            report("")
    raise ERRORS[action]


def http(status: int, **headers: str) -> HfHubHTTPError:
    response = httpx.Response(
        status, headers=headers, request=httpx.Request("GET", "https://hub.test")
    )
    return HfHubHTTPError("no", response=response)


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


ERRORS = {
    "429": caused(InputError("HTTP 429"), http(429, **{"Retry-After": "0"})),
    "404": caused(InputError("HTTP 404"), http(404)),
    "full disk": TryAgainError("no space left"),
    "reset": caused(InputError("no network"), ConnectionResetError()),
    "OOM": RuntimeError("CUDA out of memory. Tried to allocate"),
    "bug": KeyError("layer"),
    "bad weights": WorkError("activations of example 3 are not finite"),
    "memory": MemoryError(),
    "system memory": OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    "cuBLAS": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
    "C++": RuntimeError("std::bad_alloc"),
    "flipped bit": RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    "full": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "stale": caused(WorkError("x: Stale file handle"), OSError(errno.ESTALE, "Stale file handle")),
    "no answer": caused(InputError("no network"), HTTPError("All connection attempts failed")),
}
UNRULY = "support.sweep_helpers:unruly_run_unit"


def swept(root: Path, engine=run_serial, *, runner=UNRULY, **settings) -> list:
    """Run a toy sweep; pauses cost nothing."""
    told = RunSettings(**settings)
    engine = functools.partial(engine, settings=told, report=unheard)
    return run_sweep(root, engine, told, unheard, runner=runner, pause_s=0.0)
