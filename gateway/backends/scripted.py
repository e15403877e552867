"""A backend that plays a script: the same events after the same delays for every call.

For tests and benchmarks; no model is behind it. `gateway.backends.script` tells what a script
looks like.
"""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import Any

from engine.protocol.errors import DeadlineExceeded, Unavailable, from_code
from engine.protocol.frames import Failed, StreamEvent
from gateway.backends.base import Backend, Call, Capabilities, Stream, is_terminal
from gateway.backends.script import Happening, Script, Step, timeline

REMEMBERED_CALLS = 1000
EVENTS_PER_RECEIVE = 32


class ScriptedBackend(Backend):
    """Plays a script and records what became of its calls.

    calls:      the latest calls, oldest first
    cancelled:  ids of calls that were closed before their terminal
    running:    ids of calls that are neither ended nor closed
    embeddings: bodies of embeddings requests
    """

    def __init__(self, name: str, script: Script | dict[str, Any] | Path) -> None:
        if isinstance(script, Path):
            script = Script.read(script)
        elif isinstance(script, dict):
            script = Script.of(script)
        self.name = name
        self.script = script
        self.capabilities = Capabilities(
            images=script.images, embeddings=script.embedding is not None
        )
        self.is_ready = script.ready
        self.calls: deque[Call] = deque(maxlen=REMEMBERED_CALLS)
        self.cancelled: deque[str] = deque(maxlen=REMEMBERED_CALLS)
        self.embeddings: deque[dict[str, Any]] = deque(maxlen=REMEMBERED_CALLS)
        self._streams: dict[str, ScriptedStream] = {}
        self._started = 0

    def __repr__(self) -> str:
        return f"<ScriptedBackend {self.name} {len(self._streams)} running, {self._started} calls>"

    @property
    def running(self) -> frozenset[str]:
        return frozenset(self._streams)

    async def generate(self, call: Call) -> Stream:
        steps = self.script.nth(self._started)
        self._started += 1
        self.calls.append(call)
        if steps and steps[0].refuse is not None:
            refusal = steps[0].refuse
            await asyncio.sleep(steps[0].delay_s)
            raise from_code(
                refusal.code,
                refusal.message,
                param=refusal.param,
                retry_after_s=refusal.retry_after_s,
            )
        stream = ScriptedStream(self, call, steps)
        self._streams[call.id] = stream
        return stream

    async def embed(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.script.embedding is None:
            return await super().embed(body)
        self.embeddings.append(body)
        return self.script.embedding

    async def ready(self) -> bool:
        return self.is_ready

    async def aclose(self) -> None:
        self.is_ready = False
        for stream in list(self._streams.values()):
            stream.fail(Failed.of(stream.id, Unavailable("The gateway is shutting down.")))

    def forget(self, id: str, *, cancelled: bool) -> None:
        """The stream with this id has ended, or was closed before it had."""
        if self._streams.pop(id, None) is not None and cancelled:
            self.cancelled.append(id)


class ScriptedStream(Stream):
    """One playing of a script. Events are due by the clock, whether or not they are read."""

    def __init__(self, backend: ScriptedBackend, call: Call, steps: list[Step]) -> None:
        self.id = call.id
        self._backend = backend
        self._loop = asyncio.get_running_loop()
        self._due_s = self._loop.time()
        self._deadline_s = call.deadline_s
        self._timeline = timeline(call, steps, backend.script.prompt_tokens)
        self._next: tuple[float, Happening] | None = None
        self._failed: Failed | None = None
        self._wake: asyncio.Event = asyncio.Event()
        self._ended = False

    async def receive(self) -> list[StreamEvent]:
        if self._ended:
            return []
        batch: list[StreamEvent] = []
        while len(batch) < EVENTS_PER_RECEIVE and not self._ended:
            event = await self._take(wait=not batch)
            if event is None:
                break
            batch.append(event)
            if is_terminal(event):
                self._end(cancelled=False)
        return batch

    async def aclose(self) -> None:
        self._end(cancelled=True)
        self._wake.set()

    def fail(self, failed: Failed) -> None:
        """End the stream with this, whatever the script says."""
        self._failed = failed
        self._wake.set()

    async def _take(self, *, wait: bool) -> StreamEvent | None:
        """The next event: when it is due, or None when it is not due and `wait` is false."""
        if self._next is None:
            delay_s, event = next(self._timeline)
            self._due_s += delay_s
            self._next = self._due_s, event
        due_s, event = self._next
        if event == "hang":
            due_s = float("inf")
        while self._failed is None and self._loop.time() < due_s:
            if not wait or self._ended:
                return None
            await self._sleep_until(due_s)
        if self._failed is not None:
            return self._failed
        self._next = None
        return event if event != "hang" else None

    async def _sleep_until(self, due_s: float) -> None:
        """Or until something happens, of which the deadline is one."""
        late = self._deadline_s is not None and self._deadline_s < due_s
        until_s = self._deadline_s if late else due_s
        try:
            async with asyncio.timeout_at(None if until_s == float("inf") else until_s):
                await self._wake.wait()
        except TimeoutError:
            if late:
                self.fail(Failed.of(self.id, DeadlineExceeded("The request's time ran out.")))

    def _end(self, *, cancelled: bool) -> None:
        if not self._ended:
            self._ended = True
            self._backend.forget(self.id, cancelled=cancelled)
