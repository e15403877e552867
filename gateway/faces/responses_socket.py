"""The WebSocket mode of `/v1/responses`: many responses over one connection, on lanes.

What is on one lane comes one after the other, different lanes go on side by side. A frame that is
wrong is answered with an error, and the socket lives; who closes it ends all that runs on it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque

from starlette.types import Message, Receive, Scope, Send

from engine.protocol.errors import FewerError, Forbidden, NotFound, RateLimited, Unauthenticated
from gateway.errors import SlowReader
from gateway.faces.responding import Responding
from gateway.faces.socket_responses import SocketResponses
from gateway.middleware.access_log import note
from gateway.responses.commands import Command, not_steered, read, told
from gateway.responses.sockets import Sockets
from gateway.telemetry.metrics import Metrics
from gateway.tenants import Tenants
from gateway.visit import Visit, header, visit_of

MAX_WAITING = 16
"""Responses of one socket that run or wait, as at OpenAI."""

MAX_LANES = 32
POLICY, RESTART = 1008, 1012


class ResponsesSocketFace:
    """The ASGI endpoint of the upgrade."""

    def __init__(
        self,
        responding: Responding,
        tenants: Tenants,
        sockets: Sockets,
        metrics: Metrics,
        slow_reader_s: float,
    ) -> None:
        self.responding = responding
        self.tenants = tenants
        self.metrics = metrics
        self.slow_reader_s = slow_reader_s
        self._sockets = sockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.responding.drain.check()
        await receive()  # that a client wants to connect
        await send({"type": "websocket.accept"})
        visit_of(scope).status = 101
        session = _Session(self, scope, send)
        with self._sockets.open(session.wind_up):
            await session.run(receive)


class _Session:
    """One connection."""

    def __init__(self, face: ResponsesSocketFace, scope: Scope, send: Send) -> None:
        self._face = face
        self._scope = scope
        self._send = send
        self._lanes: dict[str | None, deque[Command]] = {}
        self._tasks: dict[str | None, asyncio.Task[None]] = {}
        self._responses = SocketResponses(face.responding, scope, self)
        self._winding_up = asyncio.Event()

    def wind_up(self) -> None:
        """Close as soon as nothing runs."""
        self._winding_up.set()

    async def run(self, receive: Receive) -> None:
        ending = asyncio.ensure_future(self._winding_up.wait())
        hearing = asyncio.ensure_future(_message(receive))
        try:
            while not (ending.done() and not self._tasks):
                waiting = {hearing, *self._tasks.values(), *([] if ending.done() else [ending])}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                self._reap()
                if hearing.done():
                    message = hearing.result()
                    if message["type"] == "websocket.disconnect":
                        return
                    if not await self._heard(message.get("text")):
                        return
                    hearing = asyncio.ensure_future(_message(receive))
            await self._send({"type": "websocket.close", "code": RESTART})
        except OSError:
            return  # the client has gone
        finally:
            for task in (ending, hearing, *self._tasks.values()):
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _reap(self) -> None:
        """Forget lanes that have come to their end; raise what one ended with."""
        for lane, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[lane]
                task.result()

    async def _heard(self, text: str | None) -> bool:
        """False when the socket was closed for it."""
        command: Command | None = None
        try:
            command = read(text or "")
            if command.type == "response.create":
                self._authenticate()
                self._enqueue(command)
            elif command.type == "response.cancel":
                self._cancel(command)
            else:
                await self.write(not_steered(command))
        except (Unauthenticated, Forbidden) as error:
            # The key was good when the socket was opened.
            await self.write(told(error, None))
            await self._send({"type": "websocket.close", "code": POLICY})
            return False
        except FewerError as error:
            await self.write(told(error, command.lane if command else None))
        return True

    def _authenticate(self) -> None:
        presented = header(self._scope, b"authorization") or header(self._scope, b"x-api-key")
        tenant = self._face.tenants.authenticate(presented)
        if tenant.name != visit_of(self._scope).known_tenant.name:
            raise Forbidden("This socket was opened for another tenant.")

    def _enqueue(self, command: Command) -> None:
        waiting = sum(len(commands) for commands in self._lanes.values())
        if waiting >= MAX_WAITING:
            raise _limit(f"{MAX_WAITING} responses of this socket run or wait already.")
        named = sum(lane is not None for lane in self._lanes)
        if command.lane not in (None, *self._lanes) and named >= MAX_LANES:
            raise _limit(f"This socket has {MAX_LANES} lanes already.")
        lane = self._lanes.setdefault(command.lane, deque())
        lane.append(command)
        if command.lane not in self._tasks:
            self._tasks[command.lane] = asyncio.create_task(self._run_lane(lane))

    def _cancel(self, command: Command) -> None:
        wanted = command.fields.get("response_id")
        if not self._responses.stop(wanted):
            raise NotFound(
                "No such response is being written on this socket.",
                param="response_id",
                code="response_not_found",
            )

    async def _run_lane(self, lane: deque[Command]) -> None:
        while lane:
            command = lane[0]
            visit = self._visit()
            try:
                await self._responses.create(command, visit)
            except FewerError as error:
                if isinstance(error, SlowReader):
                    raise
                visit.status, visit.error = error.status, error.code
                self._responses.forget_parent(command.fields)
                await self.write(told(error, command.lane))
            finally:
                note(visit, self._face.metrics)
                lane.popleft()

    def _visit(self) -> Visit:
        """Of one response: on a socket each is a request of its own."""
        own, id = visit_of(self._scope), secrets.token_hex(16)
        return Visit(id=id, call_id=id, method="WEBSOCKET", path=own.path, tenant=own.tenant)

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Each line is a frame, none of them the socket's last. Waits for a client that does not
        read, but not for ever."""
        try:
            async with asyncio.timeout(self._face.slow_reader_s):
                for line in data.split(b"\n")[:-1]:
                    await self._send({"type": "websocket.send", "text": line.decode()})
        except TimeoutError:
            raise SlowReader("The client stopped reading.") from None


def _limit(message: str) -> RateLimited:
    return RateLimited(message, code="websocket_stream_limit_reached")


async def _message(receive: Receive) -> Message:
    return await receive()
