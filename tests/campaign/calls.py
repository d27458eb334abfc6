"""One call of the command line in a process of its own, forked from one that has imported all.

Importing torch and TransformerLens takes longer than most calls. The process that imported them
forks; the child changes into a folder, writes both screens into files and runs `lensaudit`.
"""

import contextlib
import encodings
import gc
import importlib
import os
import pkgutil
import select
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 600.0
"""A call that takes longer is stopped, and that is a breach: commands end by themselves."""
TIMED_OUT = "timed out"
ENVIRONMENT = {
    "COLUMNS": "200",
    "HF_HUB_OFFLINE": "1",
    "LENSAUDIT_MODELS": "fetched",
    "OMP_NUM_THREADS": "1",
    "PIP_NO_INDEX": "1",
    "SUBMITIT_LOG_LEVEL": "NOCONFIG",
    "UV_OFFLINE": "1",
}
"""Set before anything is imported: no call may need a network."""
LEFT_OUT = ("lensaudit.embedded", "lensaudit.doors")
"""Other people's tools are imported by the call that needs them."""


@dataclass(frozen=True)
class Done:
    """What a call came to."""

    argv: tuple[str, ...]
    exit: int | str
    """The exit code; `-9` and the like of a signal; or that it was stopped."""
    stdout: str
    stderr: str
    seconds: float

    def __str__(self) -> str:
        said = self.stderr.strip().splitlines()[-1:] or [""]
        return f"`lensaudit {' '.join(self.argv)}`: exit {self.exit} {said[0][:200]}"


class Breach(Exception):
    """A relation that does not hold."""


class Skipped(Exception):
    """A relation that cannot be asked here, and why."""


def import_all() -> None:
    """Import the package and what it rests on, once for all calls."""
    for name in ("torch", "transformers", "transformer_lens", "h5py"):
        importlib.import_module(name)
    package = importlib.import_module("lensaudit")
    for found in pkgutil.walk_packages(package.__path__, "lensaudit."):
        if not found.name.startswith(LEFT_OUT):
            with contextlib.suppress(ImportError):
                importlib.import_module(found.name)
    for found in pkgutil.iter_modules(encodings.__path__):
        with contextlib.suppress(ImportError):  # somebody else may not read our library
            importlib.import_module(f"encodings.{found.name}")
    gc.collect()
    gc.freeze()


class Caller:
    """Makes calls one after the other and counts how they end."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.exits: Counter[str] = Counter()
        self.n_tracebacks = 0

    def call(
        self,
        argv: Sequence[str],
        folder: Path,
        *,
        env: Mapping[str, str | None] | None = None,
        before: Callable[[], None] | None = None,
        limit_s: float = LIMIT_S,
        stop: tuple[int, Callable[[float], bool]] | None = None,
    ) -> Done:
        """Run `lensaudit` in a folder.

        Args:
            argv: what is typed after `lensaudit`.
            folder: the working folder.
            env: variables that are set, or, with None, taken away.
            before: called in the child before the command.
            limit_s: when the call is stopped.
            stop: a signal, and whether it is sent, asked with the seconds since the start.
        """
        running = self.start(argv, folder, env=env, before=before)
        return self.end(running, limit_s=limit_s, stop=stop)

    def start(
        self,
        argv: Sequence[str],
        folder: Path,
        *,
        env: Mapping[str, str | None] | None = None,
        before: Callable[[], None] | None = None,
    ) -> "Running":
        """Begin a call; `end` waits for it."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        screens = Path(tempfile.mkdtemp(dir=self.scratch))
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _child(argv, folder, screens, env or {}, before)
        return Running(tuple(argv), pid, screens, time.monotonic())

    def end(
        self,
        running: "Running",
        *,
        limit_s: float = LIMIT_S,
        stop: tuple[int, Callable[[float], bool]] | None = None,
    ) -> Done:
        """Wait for a call and read its screens."""
        ended = _wait(running, limit_s, stop)
        seconds = time.monotonic() - running.begun
        out, err = (
            (running.screens / name).read_bytes().decode(errors="replace")
            for name in ("out", "err")
        )
        done = Done(running.argv, ended, out, err, seconds)
        self.exits[str(ended)] += 1
        self.n_tracebacks += "Traceback (most recent call last)" in err
        return done


@dataclass(frozen=True)
class Running:
    """A call that has not ended."""

    argv: tuple[str, ...]
    pid: int
    screens: Path
    begun: float


def _wait(
    running: Running, limit_s: float, stop: tuple[int, Callable[[float], bool]] | None
) -> int | str:
    poll = select.poll()
    handle = os.pidfd_open(running.pid)
    poll.register(handle, select.POLLIN)
    timed_out = False
    try:
        while not poll.poll(20 if stop else 200):
            seconds = time.monotonic() - running.begun
            if stop is not None and stop[1](seconds):
                os.kill(running.pid, stop[0])
                stop = None
            if seconds > limit_s:
                timed_out = True
                break
    finally:
        os.close(handle)
    with contextlib.suppress(ProcessLookupError):
        # what a call started ends with it
        os.killpg(running.pid, signal.SIGKILL)
    _, status = os.waitpid(running.pid, 0)
    return TIMED_OUT if timed_out else os.waitstatus_to_exitcode(status)


def _child(
    argv: Sequence[str],
    folder: Path,
    screens: Path,
    env: Mapping[str, str | None],
    before: Callable[[], None] | None,
) -> None:
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(screens / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        for number, name in ((1, "stdout"), (2, "stderr")):
            # as Python opens them where nothing else is said
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
        os.fsync = lambda descriptor: None  # a kill of a process loses nothing that was written
        os.chdir(folder)
        os.environ["PWD"] = str(folder)
        for name, value in env.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if before is not None:
            before()
        code = _run(argv)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 255)


def _run(argv: Sequence[str]) -> int:
    main = importlib.import_module("lensaudit.cli.main").main
    sys.argv = ["lensaudit", *argv]
    try:
        main(list(argv))
    except SystemExit as ended:
        if isinstance(ended.code, int):
            return ended.code
        return 0 if ended.code is None else 1
    return 0
