"""Frames waiting to be sent on one WebSocket, bounded in bytes.

A peer that reads slowly fills the kernel's buffer, then uvicorn's, then this queue; from then
on `crowded` asks for its requests to be paused. One that reads nothing for a while is cut.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from starlette.types import Send

from engine.protocol.frames import FromEngine, encode

PAUSE_BYTES = 512 * 1024
RESUME_BYTES = 64 * 1024
MAX_BYTES = 32 * 1024 * 1024
"""Paused requests add nothing, so only a peer that goes on asking gets here."""
STALL_S = 30.0
"""How long one frame may wait for the peer to read."""


class PeerStalled(Exception):
    """The peer does not read. Its connection is to be cut with 1013."""


class SendQueue:
    """One writer task (`run`), any number of `put`s on the same loop."""

    def __init__(self, send: Send, crowded: Callable[[bool], None]) -> None:
        """crowded: called with True when too much waits, with False once it has been sent."""
        self._send = send
        self._tell_crowded = crowded
        self._frames: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._wake = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self.crowded = False

    def put(self, frame: FromEngine) -> None:
        data = encode(frame)
        self._frames.append(data)
        self._waiting_bytes += len(data)
        self.idle.clear()
        self._wake.set()
        if self._waiting_bytes > PAUSE_BYTES and not self.crowded:
            self.crowded = True
            self._tell_crowded(True)

    async def run(self) -> None:
        """Send frames in order until cancelled. Raises `PeerStalled`."""
        while True:
            while self._frames:
                await self._send_next()
            self.idle.set()
            self._wake.clear()
            await self._wake.wait()

    async def _send_next(self) -> None:
        if self._waiting_bytes > MAX_BYTES:
            raise PeerStalled
        data = self._frames.popleft()
        try:
            async with asyncio.timeout(STALL_S):
                await self._send({"type": "websocket.send", "text": data.decode()})
        except TimeoutError:
            raise PeerStalled from None
        self._waiting_bytes -= len(data)
        if self.crowded and self._waiting_bytes < RESUME_BYTES:
            self.crowded = False
            self._tell_crowded(False)
