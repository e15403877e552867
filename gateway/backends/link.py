"""One WebSocket to an engine of ours, shared by all calls of this process.

It is opened at first use, opened again whenever it breaks, and watched: an engine that says
nothing to several pings in a row, because it is stopped or stuck, counts as gone. What is
written waits in an outbox, so that no caller is ever held up, or cut in the middle of a frame,
by a socket that does not drain.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Protocol

import msgspec
from websockets.asyncio.client import ClientConnection

from engine.protocol import frames
from engine.protocol.errors import (
    FewerError,
    InternalFault,
    Overloaded,
    TooLarge,
    Unavailable,
    from_code,
)
from gateway.backends.handshake import link_errors, open_connection
from gateway.backends.mapping import RETRY_AFTER_S

_log = logging.getLogger(__name__)

MAX_OUTBOX_BYTES = 4 * frames.MAX_FRAME_BYTES


class Timing(msgspec.Struct, frozen=True):
    """How patient a link is, in seconds.

    open_s:          connection and handshake must be complete
    wait_s:          a call waits for a connection that is being made
    ping_s:          between pings
    unheard_pings:   so many pings without hearing anything, and the engine is gone
    first_backoff_s, max_backoff_s:  between attempts to connect; doubled each time, jittered
    """

    open_s: float = 5.0
    wait_s: float = 2.5
    ping_s: float = 2.0
    unheard_pings: int = 3
    first_backoff_s: float = 0.1
    max_backoff_s: float = 2.0


class Receiver(Protocol):
    """Whoever started a call."""

    def deliver(self, event: frames.StreamEvent) -> None: ...


class EngineLink:
    """The connection, and who waits for what on it.

    welcome: what the engine said of itself; None while there is no connection
    stats:   its latest load
    """

    def __init__(self, name: str, url: str, token: str, timing: Timing) -> None:
        self.name = name
        self.welcome: frames.Welcome | None = None
        self.stats: frames.Stats | None = None
        self._url = url
        self._token = token
        self._timing = timing
        self._receivers: dict[str, Receiver] = {}
        self._outbox: list[bytes] = []
        self._outbox_bytes = 0
        self._outbox_filled = asyncio.Event()
        self._up = asyncio.Event()
        self._unheard_pings = 0
        self._complaint = ""
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "up" if self.is_up else "down"
        return f"<EngineLink {self.name} {state}, {len(self._receivers)} running>"

    @property
    def is_up(self) -> bool:
        return self.welcome is not None

    def start(self) -> None:
        """Begin connecting, unless that was done. Needs a running loop."""
        if not self._closed and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(_report)

    async def wait_up(self, deadline_s: float | None) -> None:
        """Returns once there is a connection. Raises `Unavailable` when it does not come soon."""
        self.start()
        if self.is_up:
            return
        until_s = asyncio.get_running_loop().time() + self._timing.wait_s
        if deadline_s is not None:
            until_s = min(until_s, deadline_s)
        try:
            async with asyncio.timeout_at(until_s):
                await self._up.wait()
        except TimeoutError:
            raise self._gone() from None
        if self._closed:
            raise self._gone()

    def open(self, frame: frames.Generate, receiver: Receiver) -> None:
        """Send `frame`; what comes for its id goes to `receiver`, until its terminal.

        Raises `TooLarge`, or `Overloaded` when the engine takes nothing off us.
        """
        data = frames.encode(frame)
        if len(data) > frames.MAX_FRAME_BYTES:
            raise TooLarge(
                f"The request has {len(data)} bytes; the engine takes {frames.MAX_FRAME_BYTES}."
            )
        if self._outbox_bytes + len(data) > MAX_OUTBOX_BYTES:
            raise Overloaded(
                f"The engine of {self.name} is not taking requests.", retry_after_s=RETRY_AFTER_S
            )
        if not self.is_up:
            raise self._gone()
        if frame.id in self._receivers:
            raise InternalFault(f"The request id {frame.id} is in use.")
        self._receivers[frame.id] = receiver
        self._send(data)

    def post(self, frame: frames.Cancel | frames.Pause | frames.Resume | frames.Ping) -> None:
        """Send a small frame, if there is a connection; without one it has no meaning."""
        if self.is_up:
            self._send(frames.encode(frame))

    def cancel(self, id: str) -> None:
        """Nobody waits for this id any more: tell the engine, and drop what still comes."""
        if self._receivers.pop(id, None) is not None:
            self.post(frames.Cancel(id))

    async def aclose(self) -> None:
        """Close the connection. Every call that is running ends with `Unavailable`."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._down()
        self._up.set()

    def _send(self, data: bytes) -> None:
        self._outbox.append(data)
        self._outbox_bytes += len(data)
        self._outbox_filled.set()

    async def _run(self) -> None:
        backoff_s = self._timing.first_backoff_s
        while True:
            try:
                connection = await self._connect()
                backoff_s = self._timing.first_backoff_s
                await self._converse(connection)
            except FewerError as error:
                self._complain(error)
            except TimeoutError:
                self._complain(Unavailable(f"The engine of {self.name} did not say welcome."))
            finally:
                self._down()
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(2 * backoff_s, self._timing.max_backoff_s)

    async def _connect(self) -> ClientConnection:
        async with asyncio.timeout(self._timing.open_s):
            connection, welcome = await open_connection(self.name, self._url, self._token)
        self.welcome = welcome
        self._complaint = ""
        self._unheard_pings = 0
        self._up.set()
        _log.info(
            "%s: connected to its engine (%s executor, %d tokens of context, %d of KV cache)",
            self.name,
            welcome.executor,
            welcome.max_model_len,
            welcome.kv_capacity_tokens,
        )
        return connection

    async def _converse(self, connection: ClientConnection) -> None:
        """Read, write and watch until one of them fails. Raises what made it fail."""
        tasks = [
            asyncio.create_task(self._read(connection)),
            asyncio.create_task(self._write(connection)),
            asyncio.create_task(self._watch()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()  # none of them returns
        except asyncio.CancelledError:
            await connection.close()
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            connection.transport.abort()

    async def _read(self, connection: ClientConnection) -> None:
        with link_errors(self.name):
            while True:
                frame = frames.decode_from_engine(await connection.recv(False))
                self._unheard_pings = 0
                self._dispatch(frame)

    async def _write(self, connection: ClientConnection) -> None:
        with link_errors(self.name):
            while True:
                await self._outbox_filled.wait()
                self._outbox_filled.clear()
                batch, self._outbox = self._outbox, []
                for data in batch:
                    await connection.send(data, text=True)
                    self._outbox_bytes -= len(data)

    async def _watch(self) -> None:
        """Counts pings and not seconds: a stall of ours must not look like one of the engine's."""
        while True:
            await asyncio.sleep(self._timing.ping_s)
            if self._unheard_pings == self._timing.unheard_pings:
                raise Unavailable(f"The engine of {self.name} does not answer any more.")
            self._unheard_pings += 1
            self.post(frames.Ping())

    def _dispatch(self, frame: frames.FromEngine) -> None:
        match frame:
            case frames.Events(events):
                for event in events:
                    if event.usage is not None:
                        self._hand_over(event, last=True)
                    elif (receiver := self._receivers.get(event.id)) is not None:
                        receiver.deliver(event)
            case frames.Accepted() | frames.Started():
                self._hand_over(frame, last=False)
            case frames.Failed():
                if not frame.id:
                    raise from_code(frame.code, frame.message)
                self._hand_over(frame, last=True)
            case frames.Stats():
                self.stats = frame
            case _:
                pass

    def _hand_over(self, event: frames.StreamEvent, *, last: bool) -> None:
        """To whoever started the call; nobody waits for what comes after a cancel."""
        receivers = self._receivers
        receiver = receivers.pop(event.id, None) if last else receivers.get(event.id)
        if receiver is not None:
            receiver.deliver(event)

    def _down(self) -> None:
        """There is no connection: whoever waits for something on it hears so."""
        self.welcome = self.stats = None
        self._up.clear()
        self._outbox, self._outbox_bytes = [], 0
        self._outbox_filled.clear()
        receivers, self._receivers = self._receivers, {}
        for id, receiver in receivers.items():
            receiver.deliver(frames.Failed.of(id, self._gone()))

    def _gone(self) -> Unavailable:
        what = "is shutting down" if self._closed else "cannot be reached"
        whose = "The gateway" if self._closed else f"The engine of {self.name}"
        return Unavailable(f"{whose} {what}.", retry_after_s=RETRY_AFTER_S)

    def _complain(self, error: FewerError) -> None:
        """Log why there is no connection, once for each reason in a row."""
        if error.message != self._complaint:
            _log.warning("%s: no engine: %s", self.name, error.message)
            self._complaint = error.message


def _report(task: asyncio.Task[None]) -> None:
    """A link's task only ends by cancellation; anything else is a fault of ours."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.critical("an engine link died and is started anew: %r", error, exc_info=error)
