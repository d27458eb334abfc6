"""What a process does once the one that began it is gone."""

import multiprocessing
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
