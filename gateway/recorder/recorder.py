"""Writing a recording: requests are noted in memory, and written once a second by a thread.

When the file cannot be written, requests are served all the same: what does not fit into memory
until it can be written again is dropped, and counted. That is said once in the log, and once when
it is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from gateway.config import RecorderConfig
from gateway.ledger.entry import Entry
from gateway.recorder.files import RotatedFile
from gateway.recorder.line import FORMAT, Ended, Line, encode
from gateway.recorder.sizes import Measuring, allowed_tokens
from gateway.telemetry.metrics import Metrics
from gateway.visit import Visit
from policies.counting import request_tokens
from policies.holdout import conversation_of
from policies.request import Request

FLUSH_EVERY_S = 1.0
MAX_PENDING = 2000
MAX_PENDING_CHARS = 32 * 1024 * 1024
"""Of the texts of requests that wait to be written."""

MAX_GIVEN_CHARS = 128
"""Of the model's name and the header that a client gives: no more is of any use."""

END_S = 5.0
"""For what is left when the gateway stops."""

_log = logging.getLogger("fewer.recorder")


class Noted(msgspec.Struct, frozen=True):
    """A request that has ended, as it came and as the model got it.

    with_content: as the settings said when it ended: later ones ask for later requests
    """

    came: Request
    sent: Request
    entry: Entry
    visit: Visit
    with_content: bool = False


class Recorder:
    """One for a process; it outlasts every configuration. Off until `keep` says where."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._settings: RecorderConfig | None = None
        self._pending: list[Noted] = []
        self._chars = 0
        self._lines: deque[bytes] = deque()
        self._write: asyncio.Future[None] | None = None
        self._failing = False
        self._thread = ThreadPoolExecutor(1, "recorder")

    def __repr__(self) -> str:
        state = "off" if self._settings is None else f"to {self._settings.path}"
        return f"<Recorder {state}, {len(self._pending) + len(self._lines)} pending>"

    def keep(self, settings: RecorderConfig | None) -> None:
        """Where to write from now on; None for nowhere."""
        self._settings = settings

    def note(self, came: Request, sent: Request, entry: Entry, visit: Visit) -> None:
        """Takes no time, and never fails. Requests are not changed after this."""
        if self._settings is None:
            return
        chars = _chars(came)
        # Lines that could not be written yet have been measured, and are at most as long.
        waiting = len(self._pending) + len(self._lines)
        if waiting >= MAX_PENDING or self._chars + chars > MAX_PENDING_CHARS:
            self._metrics.recorder_dropped.inc()
            return
        self._chars += chars
        with_content = self._settings.content == "full"
        self._pending.append(Noted(came, sent, entry, visit, with_content))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write while the block lasts; its end writes what is left."""
        worker = asyncio.create_task(self._work())
        try:
            yield
        finally:
            worker.cancel()
            await asyncio.wait([worker])
            await self.flush()
            if self._write is not None:
                await asyncio.wait([self._write], timeout=END_S)
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def flush(self) -> None:
        """Write what is pending, unless the thread is still at what was before."""
        if self._write is not None or self._settings is None:
            return
        noted, self._pending = self._pending, []
        if not noted and not self._lines:
            return
        work = partial(self._written, self._settings, noted)
        self._write = asyncio.get_running_loop().run_in_executor(self._thread, work)
        self._write.add_done_callback(self._done)
        await asyncio.wait([self._write], timeout=END_S)

    async def _work(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            await self.flush()

    def _written(self, settings: RecorderConfig, noted: Iterable[Noted]) -> None:
        """On the thread."""
        for each in noted:
            try:
                self._lines.append(encode(line_of(each)))
            except (UnicodeEncodeError, RecursionError):
                # A lone surrogate, or a nesting that no model will be shown either.
                self._metrics.recorder_dropped.inc()
        file = RotatedFile(settings.path, settings.max_mb * 1024 * 1024, settings.files)
        file.append(self._lines)

    def _done(self, write: asyncio.Future[None]) -> None:
        self._write = None
        self._chars = sum(map(len, self._lines)) + sum(_chars(each.came) for each in self._pending)
        error = None if write.cancelled() else write.exception()
        if error is not None and not isinstance(error, OSError):
            _log.critical("requests are not recorded: %r", error, exc_info=error)
        elif error is not None and not self._failing:
            _log.error("requests are not recorded; they are served all the same. %s", error)
        elif error is None and self._failing:
            _log.warning("requests are recorded again")
        self._failing = error is not None


def line_of(noted: Noted) -> Line:
    """What is written about a request."""
    entry, visit, came = noted.entry, noted.visit, noted.came
    return Line(
        format=FORMAT,
        id=entry.call_id,
        begun_s=round(entry.time_s - entry.seconds, 6),
        tenant=entry.tenant,
        route=entry.route,
        asked=came.model[:MAX_GIVEN_CHARS],
        surface=came.surface,
        conversation=entry.conversation or conversation_of(came),
        ended=_ended(noted),
        decisions=entry.rulings,
        cache_control=visit.cache_control and visit.cache_control[:MAX_GIVEN_CHARS],
        sizes=None if noted.with_content else Measuring(visit.known_tenant.salt).sizes(came),
        request=came if noted.with_content else None,
    )


def _ended(noted: Noted) -> Ended:
    entry, visit = noted.entry, noted.visit
    return Ended(
        seconds=round(entry.seconds, 6),
        sent_tokens=request_tokens(noted.sent),
        allowed_tokens=allowed_tokens(noted.sent),
        prompt_tokens=visit.spent.prompt_tokens,
        completion_tokens=visit.spent.completion_tokens,
        model=entry.model,
        source=visit.cache,
        error=entry.error,
        cut=entry.cut,
        cached_tokens=entry.cached_tokens,
        first_token_s=entry.first_token_s,
        per_token_s=entry.per_token_s,
        queue_ms=entry.queue_ms,
        dollars=entry.dollars,
    )


def _chars(request: Request) -> int:
    """About how long its texts are, wherever they stand: an image is one, too."""
    held = (request.messages, request.tools, request.schema, request.parameters)
    return sum(map(len, request.prompts)) + sum(map(_length, held))


def _length(value: Any) -> int:
    """Of a value of JSON. Bodies bound how many it holds, and how deep (`engine.protocol.body`)."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(len, value)) + sum(map(_length, value.values()))
    return sum(map(_length, value)) if isinstance(value, list) else 1
