"""What an answer costs: by its tokens, or by its share of a machine's time.

A machine that is paid by the hour costs the same whether one request runs or thirty. Its time is
divided evenly among the requests that are with it at each moment, so that the costs of all
answers add up to the time in which it had work: machine_hour x busy hours. Hours in which it
stands idle are nobody's. With several gateway processes each knows only its own requests, and
together they count more than the machine has cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.config import Price
from gateway.telemetry.metrics import Spent


class Machine:
    """One machine's time, shared by those who use it at once.

    A clock that runs at 1/n while n are there: what someone used is how far it went meanwhile.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._users = 0
        self._read_s = 0.0
        self._shared_s = 0.0

    def enter(self) -> float:
        """Begin to use it. Give `leave` what this returns."""
        self._advance()
        self._users += 1
        return self._shared_s

    def leave(self, entered_s: float) -> float:
        """Seconds of the machine that were used."""
        self._advance()
        self._users -= 1
        return self._shared_s - entered_s

    def _advance(self) -> None:
        now_s = self._clock()
        if self._users:
            self._shared_s += (now_s - self._read_s) / self._users
        self._read_s = now_s


def dollars(price: Price | None, spent: Spent, machine_s: float) -> float | None:
    """None without a price. A price by the hour goes before one by tokens."""
    if price is None:
        return None
    if price.machine_hour is not None:
        return price.machine_hour * machine_s / 3600
    millionths = price.input * spent.prompt_tokens + price.output * spent.completion_tokens
    return millionths / 1_000_000
