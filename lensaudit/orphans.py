"""Processes beside this one: how many have a core, and what each does once this one is gone."""

import multiprocessing
import os
import threading
from collections.abc import Callable


def when_orphaned(end: Callable[[], object]) -> None:
    """Call `end` in a thread once the parent has ended, however it did.

    The parent is the process of `multiprocessing` that began this one; a process that has none
    never calls.
    """
    if (parent := multiprocessing.parent_process()) is not None:

        def wait() -> None:
            parent.join()
            end()

        threading.Thread(target=wait, daemon=True).start()


def n_cores() -> int:
    """Processor cores that this process may use, where the system tells; else those there are."""
    return len(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0))
