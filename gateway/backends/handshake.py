"""Opening a WebSocket to an engine of ours: hello, welcome, and what a refusal means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from engine.protocol import frames
from engine.protocol.errors import UpstreamFailed, from_code
from gateway.backends.mapping import transport_errors

CLOSE_TIMEOUT_S = 1.0
POLICY_VIOLATION = 1008


async def open_connection(
    name: str, url: str, token: str
) -> tuple[ClientConnection, frames.Welcome]:
    """A connection on which both sides have introduced themselves.

    Takes as long as it takes; no proxy is used and no redirect followed. Raises a `FewerError`
    that tells the operator what is wrong.
    """
    with link_errors(name):
        connection = await _Connect(
            url,
            proxy=None,
            compression=None,
            open_timeout=None,
            close_timeout=CLOSE_TIMEOUT_S,
            ping_interval=None,
            max_size=frames.MAX_FRAME_BYTES,
        )
        try:
            hello = frames.Hello(frames.PROTOCOL_VERSION, token)
            await connection.send(frames.encode(hello), text=True)
            answer = frames.decode_from_engine(await connection.recv(False))
            return connection, _welcome(name, answer)
        except BaseException:
            connection.transport.abort()
            raise


@contextmanager
def link_errors(name: str) -> Iterator[None]:
    """Raise the transport's exceptions as errors of ours; the engine's reasons are kept."""
    try:
        with transport_errors(name):
            yield
    except UpstreamFailed as error:
        closed = error.__cause__
        if isinstance(closed, ConnectionClosed) and closed.rcvd is not None:
            if closed.rcvd.code == POLICY_VIOLATION:
                raise UpstreamFailed(
                    f"The engine of {name} refused the connection: {closed.rcvd.reason}. Both "
                    "ends need the same version of Fewer and the same FEWER_ENGINE_TOKEN."
                ) from closed
        raise


def _welcome(name: str, frame: frames.FromEngine) -> frames.Welcome:
    if isinstance(frame, frames.Failed):
        raise from_code(frame.code, frame.message)
    if not isinstance(frame, frames.Welcome):
        raise UpstreamFailed(f"The engine of {name} did not begin with a welcome.")
    if frame.version != frames.PROTOCOL_VERSION:
        raise UpstreamFailed(
            f"The engine of {name} speaks protocol {frame.version}, this gateway "
            f"{frames.PROTOCOL_VERSION}. Run the same version of Fewer on both ends."
        )
    return frame


class _Connect(connect):
    """Follows no redirects: the token is for the configured address."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc
