"""The ledger at work: requests are noted in memory and written in batches, away from their path.

When the store cannot be written, requests are served all the same: what does not fit into memory
until it can be written again is dropped, and counted. That is said once in the log, and once when
it is over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from engine.protocol.errors import DeadlineExceeded, Unavailable
from gateway.config import LedgerConfig
from gateway.ledger.entry import Entry
from gateway.ledger.experiments import QUALITY, due, findings, harm, look
from gateway.ledger.lengths import control_lengths
from gateway.ledger.machine import Machine
from gateway.stores.ledger import Experiment, LedgerStore, Look
from gateway.telemetry.metrics import Metrics
from policies.budget import BudgetPolicy
from policies.lengths import Lengths
from policies.savings import saving

FLUSH_EVERY_S = 2.0
LOOK_EVERY_S = 30.0
PRUNE_EVERY_S = 3600.0
DEADLINE_S = 5.0
"""For whatever is asked of the store. SQLite itself waits two seconds for a lock."""

LOOK_DEADLINE_S = 60.0
"""For looks: about 8 microseconds for each conversation, at every doubling of them."""

MAX_PENDING = 20_000
"""Entries that wait to be written, about 1 kB each."""

_DAY_S = 86_400
_log = logging.getLogger("fewer.ledger")
_T = TypeVar("_T")


class Ledger:
    """One for a process; it outlasts every configuration.

    clock: Unix time in seconds
    """

    def __init__(
        self, store: LedgerStore, metrics: Metrics, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._settings = LedgerConfig()
        self._pending: list[Entry] = []
        self._writing: list[Entry] = []
        self._write: asyncio.Future[None] | None = None
        self._failing = False
        self._looks: dict[Experiment, Look] = {}
        self._harmful: dict[Experiment, str] = {}
        self._lengths: dict[Experiment, Lengths] = {}
        self._machines: dict[str, Machine] = {}
        # One thread: the store is used by one at a time, and a disk that hangs holds up one.
        self._thread = ThreadPoolExecutor(1, "ledger")

    def __repr__(self) -> str:
        return f"<Ledger {self.pending} pending, {len(self._looks)} experiments>"

    @property
    def pending(self) -> int:
        return len(self._pending) + len(self._writing)

    def keep(self, settings: LedgerConfig) -> None:
        """How long and how much, from now on."""
        self._settings = settings

    def machine(self, model: str) -> Machine:
        """Of the machine behind a model of the configuration."""
        return self._machines.setdefault(model, Machine())

    def is_harmful(self, experiment: Experiment) -> bool:
        """Was the policy found to do harm with these settings? Then it is a shadow."""
        return experiment in self._harmful

    def lengths(self, experiment: Experiment) -> Lengths | None:
        """Of the control arm's answers, as of the latest look; None where nobody learns them."""
        return self._lengths.get(experiment)

    @property
    def harmful(self) -> dict[Experiment, str]:
        """What each policy that was switched off makes worse."""
        return dict(self._harmful)

    def record(self, entry: Entry) -> None:
        """Note a request that has ended. Takes no time, and never fails."""
        self._count(entry)
        if self.pending >= MAX_PENDING:
            self._metrics.ledger_dropped.inc()
            return
        self._pending.append(entry)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write, look and prune while the block lasts; its end writes what is left."""
        worker = asyncio.create_task(self._work())
        worker.add_done_callback(_report)
        try:
            yield
        finally:
            worker.cancel()
            await asyncio.wait([worker])
            try:
                await self.flush()
            finally:
                self._thread.submit(self._store.close)
                self._thread.shutdown(wait=False)

    async def flush(self) -> None:
        """Write what is pending. When that cannot be done, it stays pending."""
        if self._write is not None:
            await self._finished(self._write)
        if self._write is not None or not self._pending:
            return
        self._writing, self._pending = self._pending, []
        self._write = self._on_thread(partial(self._store.write, self._writing))
        self._write.add_done_callback(self._written)
        await self._finished(self._write)

    async def look(self) -> None:
        """Look at the experiments that are due, and switch off what does harm."""
        examined = self._on_thread(self._examine)
        for found in await self._finished(examined, LOOK_DEADLINE_S) or []:
            if self._looks.get(found.experiment) != found:
                await self._learn(found)
                self._take(found)

    async def prune(self) -> None:
        """Forget what is older than is to be kept."""
        before_s = self._clock() - self._settings.retention_days * _DAY_S
        prune = partial(self._store.prune, before_s, self._settings.max_rows)
        await self._finished(self._on_thread(prune))

    async def ask(self, question: Callable[[LedgerStore], _T]) -> _T:
        """Ask the store, after writing what is pending.

        Raises `Unavailable` when it cannot be asked, and `DeadlineExceeded`.
        """
        await self.flush()
        answer = self._on_thread(partial(self._answer, question))
        await asyncio.wait([answer], timeout=DEADLINE_S)
        if not answer.done():
            answer.cancel()
            raise DeadlineExceeded("The ledger did not answer in time.")
        return answer.result()

    async def _work(self) -> None:
        """Until it is cancelled."""
        await self.look()
        looked_s = pruned_s = time.monotonic()
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            await self.flush()
            now_s = time.monotonic()
            if now_s - looked_s >= LOOK_EVERY_S:
                looked_s = now_s
                await self.look()
            if now_s - pruned_s >= PRUNE_EVERY_S:
                pruned_s = now_s
                await self.prune()

    async def _finished(
        self, work: asyncio.Future[_T], deadline_s: float | None = None
    ) -> _T | None:
        """What `work` came to, by the deadline. None when the store cannot be used, which the log
        says once; what hangs is left to itself, and nothing of it is done twice."""
        await asyncio.wait([work], timeout=deadline_s or DEADLINE_S)
        try:
            done = work.result() if work.done() else None
            reason = None if work.done() else "It does not answer."
        except Unavailable as error:
            done, reason = None, error.message
        if reason is not None and not self._failing:
            _log.error("the ledger is not written; requests are served all the same. %s", reason)
        elif reason is None and self._failing:
            _log.warning("the ledger is written again")
        self._failing = reason is not None
        return done

    def _on_thread(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _written(self, write: asyncio.Future[None]) -> None:
        """What was not written is pending again."""
        if write.cancelled() or write.exception() is not None:
            self._pending = self._writing + self._pending
        self._writing, self._write = [], None

    def _answer(self, question: Callable[[LedgerStore], _T]) -> _T:
        """On the thread."""
        self._store.catch_up()
        return question(self._store)

    def _examine(self) -> list[Look]:
        """On the thread. The latest look at each experiment."""
        if not self._store.exists:
            return []
        self._store.catch_up()
        latest = self._store.looks()
        for experiment, counts in self._store.arms().items():
            last = latest.get(experiment)
            if due(counts, last):
                self._store.add_look(look(self._store, experiment, last, self._clock()))
        return sorted(self._store.looks().values(), key=lambda found: found.time_s)

    async def _learn(self, found: Look) -> None:
        """What answers are like where nothing cuts them early, for the policy that learns it."""
        if found.experiment.policy == BudgetPolicy.name:
            observed = self._on_thread(partial(control_lengths, self._store, found))
            lengths = await self._finished(observed, LOOK_DEADLINE_S)
            if lengths is not None:
                self._lengths[found.experiment] = lengths

    def _take(self, found: Look) -> None:
        """What a look found holds from now on."""
        experiment = found.experiment
        self._looks[experiment] = found
        self._show(found)
        damage = harm(found)
        if damage is not None and experiment not in self._harmful:
            self._harmful[experiment] = damage
            _log.error(
                "the policy %s of the route %s does harm and is only a shadow until its settings "
                "change: %s",
                experiment.policy,
                experiment.route,
                damage,
            )

    def _show(self, found: Look) -> None:
        route, policy = found.experiment.route, found.experiment.policy
        for finding in findings(found):
            if finding.effect is None or finding.interval is None or finding.measure in QUALITY:
                continue
            bounds = {
                "estimate": saving(finding.effect),
                "low": saving(finding.interval.high),
                "high": saving(finding.interval.low),
            }
            for bound, value in bounds.items():
                self._metrics.saving.labels(route, policy, finding.measure, bound).set(value)

    def _count(self, entry: Entry) -> None:
        for ruling in () if entry.asked_by else entry.rulings:
            if ruling.arm is not None:
                self._metrics.arms.labels(entry.route, ruling.policy, ruling.arm).inc()
            if ruling.mode == "active" and ruling.arm != "control" and ruling.cut_tokens > 0:
                saved = self._metrics.estimated_saved.labels(entry.route, ruling.policy)
                saved.inc(ruling.cut_tokens)
        if entry.dollars and entry.model:
            self._metrics.cost_dollars.labels(entry.route, entry.model).inc(entry.dollars)


def _report(worker: asyncio.Task[None]) -> None:
    """It only ends by cancellation; anything else is a fault of ours."""
    if not worker.cancelled() and (error := worker.exception()) is not None:
        _log.critical("the ledger is not written any more: %r", error, exc_info=error)
