"""Check once whether the Hub answers at all, so that no command waits for it in vain."""

import functools
import os
from threading import Thread

from huggingface_hub import constants

WAIT_S = 1.5
"""Seconds the Hub is given to answer; HF_HUB_ETAG_TIMEOUT, where it is set, says another number."""


def reachable() -> bool:
    """Whether the Hub answers in time; what it says does not matter."""
    return not constants.HF_HUB_OFFLINE and _answers(constants.ENDPOINT)


@functools.cache
def _answers(address: str) -> bool:
    """Asked in a thread of its own: to look up a name may take longer than a request is given."""
    # a tenth of a second
    from huggingface_hub import get_session
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

    limit_s = float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or WAIT_S)
    heard: list[int] = []

    def ask() -> None:
        try:
            heard.append(get_session().head(address, timeout=limit_s).status_code)
        except (HTTPError, OSError, ValueError):
            return

    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(limit_s)
    return bool(heard)
