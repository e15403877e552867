"""Uvicorn's WebSocket protocol, with faults that end in an answer or a close code."""

from __future__ import annotations

from typing import Any, cast

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from engine.protocol.http import LINGER_S, refusal

MAX_FRAGMENTS = 16_384
"""Of one WebSocket message: empty ones cost memory that no limit on its size sees."""


class HardenedWebSocketProtocol(WebSocketsSansIOProtocol):
    """WebSockets whose failures reach the peer as a close code, and never as a traceback."""

    def handle_events(self) -> None:
        # After a close frame nothing counts, not even the rest of a fragmented message.
        if self.transport.is_closing():
            return
        super().handle_events()
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            # Uvicorn waits for ever: for it, what is no request has not come yet.
            self.transport.write(refusal(400, "The WebSocket handshake is malformed."))
            self.transport.close()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:  # the application's task starts after this
            extensions = cast("dict[str, Any]", self.scope["extensions"])
            extensions["fewer.abort"] = {"call": self.transport.abort}

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= MAX_FRAGMENTS:
            self.frames = []
            self.conn.fail(1009, f"a message may come in {MAX_FRAGMENTS} fragments")
            self.handle_parser_exception()
        elif not self.close_sent:
            super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.fail(1007, "a text message must be UTF-8")
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    async def send(self, message: ASGISendEvent) -> None:
        if self.close_sent:  # by us, for a fault of the peer's; the application cannot know yet
            raise ClientDisconnected
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # refused, which uvicorn would log as a fault of ours

    def handle_parser_exception(self) -> None:
        """Send the close frame and read on until the peer has it: else a reset would destroy it."""
        if self.close_sent or self.conn.close_sent is None:
            return
        sent = self.conn.close_sent
        self.queue.put_nowait(
            {"type": "websocket.disconnect", "code": sent.code, "reason": sent.reason}
        )
        self.close_sent = True
        self.transport.write(b"".join(self.conn.data_to_send()))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(LINGER_S, self.transport.close)
