"""Two kinds of load: requests that arrive whatever happens, and clients that wait their turn."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks import processes
from benchmarks.gateway_load.book import Book
from benchmarks.gateway_load.targets import Target

DRAIN_DEADLINE_S = 30.0
SPARE_CONNECTIONS = 1.5
"""Arrivals are random, so there are sometimes more streams than usual."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was heard in `seconds`, and CPU seconds of each process meanwhile."""

    book: Book
    seconds: float
    cpu_s: dict[str, float]

    def cpu_us_per_chunk(self, process: str) -> float:
        return self.cpu_s[process] * 1e6 / self.book.chunks

    @property
    def requests_per_s(self) -> float:
        return self.book.ended / self.seconds


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """`rate` requests a second, at random times, from a seed: the same for all who are compared.

    ramp_s:  before the figures begin: how long an answer takes, so that as many end as begin
    """

    rate: float
    ramp_s: float
    seconds: float
    seed: int

    async def run(self, target: Target, pids: Mapping[str, int]) -> Measured:
        """Raises `TimeoutError` when answers do not end."""
        await target.open(int(self.rate * self.ramp_s * SPARE_CONNECTIONS) + 50)
        with _uninterrupted():
            asking = asyncio.create_task(self._ask(target))
            await asyncio.sleep(self.ramp_s)
            measured = await _measure(target, self.seconds, pids)
            await asking
            await _drain(target.book)
        await target.aclose()
        return measured

    async def _ask(self, target: Target) -> None:
        gaps = random.Random(self.seed)
        due_s = time.monotonic()
        until_s = due_s + self.ramp_s + self.seconds
        while (due_s := due_s + gaps.expovariate(self.rate)) < until_s:
            if (wait_s := due_s - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            target.ask()


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`clients`, each of which asks again as soon as it was answered."""

    clients: int
    ramp_s: float
    seconds: float

    async def run(self, target: Target, pids: Mapping[str, int]) -> Measured:
        """Raises `TimeoutError` when answers do not end."""
        await target.open(self.clients)
        with _uninterrupted():
            clients = Clients(target)
            clients.start(self.clients)
            await asyncio.sleep(self.ramp_s)
            measured = await _measure(target, self.seconds, pids)
            clients.stop()
            await _drain(target.book)
        await target.aclose()
        return measured


class Clients:
    """Ask again and again until stopped, or until `requests` were sent."""

    def __init__(self, target: Target, requests: int | None = None) -> None:
        self._target = target
        self._left = requests

    def start(self, clients: int) -> None:
        for _ in range(clients):
            self._again()

    def stop(self) -> None:
        self._left = 0

    def _again(self) -> None:
        if self._left is not None:
            if self._left <= 0:
                return
            self._left -= 1
        self._target.ask(self._again)


async def send_all(target: Target, clients: int, requests: int) -> None:
    """So many requests, from so many clients. Returns when all are answered."""
    await target.open(clients)
    Clients(target, requests).start(clients)
    await target.book.idle.wait()
    await target.aclose()


async def _measure(target: Target, seconds: float, pids: Mapping[str, int]) -> Measured:
    before_s, began_s = _cpu_s(pids), time.monotonic()
    target.book.begin()
    await asyncio.sleep(seconds)
    target.book.open = False
    took_s, after_s = time.monotonic() - began_s, _cpu_s(pids)
    return Measured(target.book, took_s, {name: after_s[name] - before_s[name] for name in after_s})


def _cpu_s(pids: Mapping[str, int]) -> dict[str, float]:
    others = {name: processes.cpu_s(pid) for name, pid in pids.items()}
    return {**others, "generator": time.process_time()}


async def _drain(book: Book) -> None:
    async with asyncio.timeout(DRAIN_DEADLINE_S):
        await book.idle.wait()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """No garbage collection of ours, which the figures would hold against others."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
