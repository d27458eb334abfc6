"""What may a run cost? Checked before each call, settled by what the server counted."""

import math
import threading
from dataclasses import dataclass

from lensaudit.errors import InputError
from lensaudit.judge.calls import Call, Usage
from lensaudit.judge.settings import EndpointAccess

_CHARS_PER_TOKEN = 3.0
"""Lower than the usual 4: a reservation should not be too small."""
_MESSAGE_TOKENS = 12
"""What chat templates add."""


@dataclass(frozen=True)
class Spent:
    """What a run used."""

    calls: int
    """Sent, those that failed too: `--max-calls` limits what is sent."""
    tokens_in: int
    tokens_out: int
    cost: float
    n_estimated: int
    """Calls whose tokens the server did not count; they enter as reserved."""
    n_failed: int = 0
    """Calls without a usable answer. Those that the server refused cost nothing; the others may
    have been billed and enter as reserved."""


def expected_usage(call: Call) -> Usage:
    """Tokens a call may take: its characters over 3, and all the tokens it allows."""
    tokens_in = math.ceil(call.n_chars / _CHARS_PER_TOKEN) + _MESSAGE_TOKENS
    return Usage(tokens_in, call.max_tokens)


class Budget:
    """Reserve before a call, settle after it. Thread-safe.

    Raises:
        InputError: a cap on the cost without prices.
    """

    def __init__(self, caps: EndpointAccess):
        self.caps = caps
        if caps.max_cost is not None and not (caps.price_in or caps.price_out):
            raise InputError("--max-cost needs --price-in and --price-out (per million tokens)")
        self._lock = threading.Lock()
        self._calls = self._estimated = self._failed = 0
        self._in = self._out = 0

    def reserve(self, call: Call) -> str:
        """Take the call's share; or the reason why not, if a cap would be passed."""
        usage = expected_usage(call)
        with self._lock:
            problem = self._problem(usage)
            if not problem:
                self._calls += 1
                self._add(usage, 1)
            return problem

    def settle(self, call: Call, usage: Usage | None) -> None:
        """Replace the reservation by what was counted; without a count it stays."""
        with self._lock:
            if usage is None:
                self._estimated += 1
            else:
                self._add(expected_usage(call), -1)
                self._add(usage, 1)

    def fail(self, call: Call, *, billed: bool) -> None:
        """A call without a usable answer: it stays a call; its tokens stay if it may be billed."""
        with self._lock:
            self._failed += 1
            if billed:
                self._estimated += 1
            else:
                self._add(expected_usage(call), -1)

    def cost(self, usage: Usage) -> float:
        """What tokens cost; prices are per million, in any currency."""
        caps = self.caps
        return (usage.tokens_in * caps.price_in + usage.tokens_out * caps.price_out) / 1e6

    @property
    def spent(self) -> Spent:
        """So far, reservations included."""
        cost = self.cost(Usage(self._in, self._out))
        return Spent(self._calls, self._in, self._out, cost, self._estimated, self._failed)

    def _add(self, usage: Usage, sign: int) -> None:
        self._in += sign * usage.tokens_in
        self._out += sign * usage.tokens_out

    def _problem(self, usage: Usage) -> str:
        caps = self.caps
        after = Usage(self._in + usage.tokens_in, self._out + usage.tokens_out)
        if caps.max_calls is not None and self._calls + 1 > caps.max_calls:
            return f"--max-calls {caps.max_calls} reached"
        if (
            caps.max_tokens_total is not None
            and after.tokens_in + after.tokens_out > caps.max_tokens_total
        ):
            return f"--max-tokens-total {caps.max_tokens_total} would be passed"
        if caps.max_cost is not None and self.cost(after) > caps.max_cost:
            return f"--max-cost {caps.max_cost:g} would be passed"
        return ""
