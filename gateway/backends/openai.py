"""Any OpenAI-compatible upstream, over HTTP and server-sent events.

The upstream is always asked to stream, with usage, whatever the client asked for: so a call can
be cancelled at any moment, a silent upstream is noticed, and tokens are metered.

The output budget goes out as `max_tokens`, the one name that every server knows (TGI and Ollama
silently ignore `max_completion_tokens`, and an ignored cap is worse than a refused one). OpenAI's
reasoning models refuse that name; the first such refusal is remembered and the call sent again
as `max_completion_tokens`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import aiohttp
import msgspec
import orjson

from engine.protocol.errors import (
    DeadlineExceeded,
    FewerError,
    InvalidRequest,
    Unavailable,
    UpstreamFailed,
)
from engine.protocol.frames import Failed, StreamEvent
from gateway.backends.base import Backend, Call, Capabilities, Stream
from gateway.backends.fields import to_fields
from gateway.backends.mapping import RETRY_AFTER_S, transport_errors
from gateway.backends.openai_chunks import ChunkReader
from gateway.backends.openai_errors import error_in_stream, error_of_status
from gateway.backends.sse import SseParser

CONNECT_TIMEOUT_S = 5.0
GAP_TIMEOUT_S = 60.0
KEEPALIVE_S = 4.0
"""Below uvicorn's 5 s, so that it is rarely the upstream that closes an idle connection."""
TAIL_TIMEOUT_S = 0.2
MAX_ERROR_BYTES = 64 * 1024
MAX_EMBEDDINGS_BYTES = 64 * 1024 * 1024

_PATHS = {"chat": "/chat/completions", "completions": "/completions"}
_T = TypeVar("_T")


class OpenAIBackend(Backend):
    """One upstream and the connections to it.

    base_url:              with its version, http://host:port/v1; from the configuration only
    model:                 the name sent to the upstream
    api_key:               sent as a bearer token
    images:                whether image parts are passed on
    max_connections:       open at once; calls beyond wait for one within their deadline
    first_event_timeout_s: silence from the call until its first bytes
    gap_timeout_s:         silence between later bytes
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        model: str,
        api_key: str | None = None,
        images: bool = True,
        max_connections: int = 256,
        first_event_timeout_s: float = 120.0,
        gap_timeout_s: float = GAP_TIMEOUT_S,
    ) -> None:
        self.name = name
        self.capabilities = Capabilities(images=images, embeddings=True)
        self.first_event_timeout_s = first_event_timeout_s
        self.gap_timeout_s = gap_timeout_s
        self._base_url = base_url.rstrip("/")
        self._model = model
        self._api_key = api_key
        self._max_connections = max_connections
        self._budget_field = "max_tokens"
        self._session: aiohttp.ClientSession | None = None
        self._streams: set[OpenAIStream] = set()
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<OpenAIBackend {self.name} {state}, {len(self._streams)} running>"

    async def generate(self, call: Call) -> Stream:
        try:
            response = await self._post(call)
        except InvalidRequest as error:
            if not self._learns_from(error):
                raise
            response = await self._post(call)
        stream = OpenAIStream(self, call, response)
        self._streams.add(stream)
        return stream

    async def embed(self, body: dict[str, Any]) -> dict[str, Any]:
        body = body | {"model": self._model}
        with transport_errors(self.name):
            response = await self.within(
                self._send("/embeddings", body, {}), self.first_event_timeout_s, None
            )
            async with response:
                content = await self._read_all(response, MAX_EMBEDDINGS_BYTES)
        if response.status != 200:
            raise error_of_status(self.name, response.status, _json(content), response.headers)
        answer = _json(content)
        if not isinstance(answer, dict) or not isinstance(answer.get("data"), list):
            raise UpstreamFailed(f"The backend of {self.name} sent no embeddings.")
        return answer

    async def ready(self) -> bool:
        return not self._closed

    async def aclose(self) -> None:
        self._closed = True
        for stream in list(self._streams):
            stream.abort(Unavailable("The gateway is shutting down.", retry_after_s=RETRY_AFTER_S))
        if self._session is not None:
            await self._session.close()

    def forget(self, stream: OpenAIStream) -> None:
        self._streams.discard(stream)

    async def within(
        self, awaitable: Awaitable[_T], quiet_s: float, deadline_s: float | None
    ) -> _T:
        """Await it, for `quiet_s` and until the deadline at most.

        Raises `DeadlineExceeded` for the deadline, `UpstreamFailed` for the silence.
        """
        until_s = asyncio.get_running_loop().time() + quiet_s
        late = deadline_s is not None and deadline_s < until_s
        try:
            async with asyncio.timeout_at(deadline_s if late else until_s) as scope:
                return await awaitable
        except TimeoutError as error:
            if not scope.expired():
                raise
            if late:
                raise DeadlineExceeded("The request's time ran out.") from error
            raise UpstreamFailed(
                f"The backend of {self.name} sent nothing for {quiet_s:g} s.",
                retry_after_s=RETRY_AFTER_S,
            ) from error

    async def _post(self, call: Call) -> aiohttp.ClientResponse:
        """The response, once it is known to be an event stream."""
        fields = to_fields(call.request, self._budget_field)
        options = fields.get("stream_options") or {}
        fields |= {
            "model": self._model,
            "stream": True,
            "stream_options": options | {"include_usage": True},
        }
        headers = {"accept": "text/event-stream", "x-request-id": call.id}
        if call.traceparent is not None:
            headers["traceparent"] = call.traceparent
        path = _PATHS[call.request.surface]
        with transport_errors(self.name):
            response = await self.within(
                self._send(path, fields, headers), self.first_event_timeout_s, call.deadline_s
            )
            if response.status == 200 and response.content_type == "text/event-stream":
                return response
            async with response:
                content = await self._read_all(response, MAX_ERROR_BYTES)
        raise self._refusal(response, _json(content))

    def _refusal(self, response: aiohttp.ClientResponse, body: Any) -> FewerError:
        if response.status != 200:
            return error_of_status(self.name, response.status, body, response.headers)
        if isinstance(body, dict) and ("error" in body or body.get("object") == "error"):
            return error_in_stream(self.name, body)
        return UpstreamFailed(
            f"The backend of {self.name} answered with {response.content_type[:64]} where an "
            "event stream was due."
        )

    async def _send(
        self, path: str, body: dict[str, Any], headers: dict[str, str]
    ) -> aiohttp.ClientResponse:
        if self._closed:
            raise Unavailable("The gateway is shutting down.", retry_after_s=RETRY_AFTER_S)
        if self._session is None:
            self._session = self._open_session()
        return await self._session.post(
            self._base_url + path,
            data=orjson.dumps(body),
            headers={"content-type": "application/json", **headers},
            allow_redirects=False,
        )

    def _open_session(self) -> aiohttp.ClientSession:
        # An event stream that is compressed is held back by the compressor.
        headers = {"accept-encoding": "identity", "user-agent": "fewer"}
        if self._api_key is not None:
            headers["authorization"] = f"Bearer {self._api_key}"
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._max_connections, keepalive_timeout=KEEPALIVE_S
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
            trust_env=False,
        )

    async def _read_all(self, response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
        content = bytearray()
        while piece := await self.within(response.content.readany(), self.gap_timeout_s, None):
            content += piece
            if len(content) > limit_bytes:
                raise UpstreamFailed(
                    f"The backend of {self.name} answered with more than {limit_bytes} bytes."
                )
        return bytes(content)

    def _learns_from(self, error: InvalidRequest) -> bool:
        """Is this the refusal of the name `max_tokens`, met for the first time?"""
        if self._budget_field != "max_tokens" or error.param != "max_tokens":
            return False
        if error.code != "unsupported_parameter":
            return False
        self._budget_field = "max_completion_tokens"
        return True


class OpenAIStream(Stream):
    """One answer. TCP holds the upstream back while nobody reads, so nothing is queued here."""

    def __init__(
        self, backend: OpenAIBackend, call: Call, response: aiohttp.ClientResponse
    ) -> None:
        self._backend = backend
        self._deadline_s = call.deadline_s
        self._response = response
        self._parser = SseParser()
        self._reader = ChunkReader(backend.name, call.id, call.request.choices)
        self._quiet_s = backend.first_event_timeout_s
        self._abort: FewerError | None = None
        self._closed = False

    async def receive(self) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        while not (events or self._reader.ended or self._closed):
            events = await self._next()
        if events and isinstance(events[-1], Failed):
            self._drop()
        return events

    async def aclose(self) -> None:
        if self._closed:
            return
        if self._reader.ended and not self._response.content.at_eof():
            # The last bytes after [DONE]; once read, the connection can serve again.
            try:
                async with asyncio.timeout(TAIL_TIMEOUT_S):
                    await self._response.content.readany()
            except (TimeoutError, aiohttp.ClientError):
                pass
        self._drop()

    def abort(self, error: FewerError) -> None:
        """End the stream with this error; whoever waits in `receive` gets it now."""
        self._abort = error
        self._response.close()

    def _drop(self) -> None:
        """Let go of the connection: back to the pool if its answer was read to the end."""
        self._closed = True
        self._backend.forget(self)
        if self._response.content.at_eof() and self._reader.ended:
            self._response.release()
        else:
            self._response.close()

    async def _next(self) -> list[StreamEvent]:
        try:
            with transport_errors(self._backend.name):
                data = await self._backend.within(
                    self._response.content.readany(), self._quiet_s, self._deadline_s
                )
            if self._abort is not None:
                raise self._abort
            if not data:
                return self._reader.finish(self._parser.flush())
            self._quiet_s = self._backend.gap_timeout_s
            return self._reader.feed(self._parser.feed(data))
        except FewerError as error:
            return [self._reader.fail(self._abort or error)]


def _json(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
