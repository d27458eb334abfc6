"""What may a run cost? Checked before each call, settled by what the server counted."""

import math
import threading
from dataclasses import dataclass

from lensaudit.errors import InputError
from lensaudit.judge.calls import Call, Usage

_CHARS_PER_TOKEN = 3.0
"""Lower than the usual 4: a reservation should not be too small."""
_MESSAGE_TOKENS = 12
"""What chat templates add."""


@dataclass(frozen=True)
class Prices:
    """Per million tokens, in any currency; there is no built-in table, it would be out of date."""

    per_million_in: float = 0.0
    per_million_out: float = 0.0

    def cost(self, usage: Usage) -> float:
        """Cost of one call."""
        tokens_in, tokens_out = usage.tokens_in, usage.tokens_out
        return (tokens_in * self.per_million_in + tokens_out * self.per_million_out) / 1e6


@dataclass(frozen=True)
class Caps:
    """The most that one run may use; None is no limit."""

    cost: float | None = None
    calls: int | None = None
    tokens: int | None = None


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

    def __init__(self, caps: Caps | None = None, prices: Prices | None = None):
        self.caps, self.prices = caps or Caps(), prices or Prices()
        if self.caps.cost is not None and not any(vars(self.prices).values()):
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

    @property
    def spent(self) -> Spent:
        """So far, reservations included."""
        cost = self.prices.cost(Usage(self._in, self._out))
        return Spent(self._calls, self._in, self._out, cost, self._estimated, self._failed)

    def _add(self, usage: Usage, sign: int) -> None:
        self._in += sign * usage.tokens_in
        self._out += sign * usage.tokens_out

    def _problem(self, usage: Usage) -> str:
        caps = self.caps
        after = Usage(self._in + usage.tokens_in, self._out + usage.tokens_out)
        if caps.calls is not None and self._calls + 1 > caps.calls:
            return f"--max-calls {caps.calls} reached"
        if caps.tokens is not None and after.tokens_in + after.tokens_out > caps.tokens:
            return f"--max-tokens-total {caps.tokens} would be passed"
        if caps.cost is not None and self.prices.cost(after) > caps.cost:
            return f"--max-cost {caps.cost:g} would be passed"
        return ""
