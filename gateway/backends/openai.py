"""Any OpenAI-compatible upstream, over HTTP and server-sent events.

The upstream is always asked to stream, with usage, whatever the client asked for: so a call can
be cancelled at any moment, a silent upstream is noticed, and tokens are metered.

The output budget goes out as `max_tokens`, the one name that every server knows (some silently
ignore `max_completion_tokens`, and an ignored cap is worse than a refused one). OpenAI's
reasoning models refuse that name; the first such refusal is remembered and the call sent again
as `max_completion_tokens`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import aiohttp
import orjson

from engine.protocol.errors import FewerError, InvalidRequest, Unavailable, UpstreamFailed
from engine.protocol.frames import Failed, StreamEvent
from gateway.backends.base import Backend, Call, Capabilities, Stream
from gateway.backends.fields import to_fields
from gateway.backends.mapping import RETRY_AFTER_S, transport_errors
from gateway.backends.openai_chunks import ChunkReader
from gateway.backends.openai_errors import error_in_stream, error_of_status
from gateway.backends.openai_http import Upstream, out_of_time
from gateway.backends.sse import SseParser
from gateway.estimate import prompt_tokens

GAP_TIMEOUT_S = 60.0
TAIL_TIMEOUT_S = 0.2
MAX_ERROR_BYTES = 64 * 1024
MAX_EMBEDDINGS_BYTES = 64 * 1024 * 1024

_PATHS = {"chat": "/chat/completions", "completions": "/completions"}


class OpenAIBackend(Backend):
    """One upstream. `base_url` comes from the configuration only, never from a client.

    model:   the name sent to the upstream
    api_key: sent as a bearer token
    images:  whether image parts are passed on
    schemas: whether a route's JSON Schema is
    reasoning_field: what the upstream calls the limit of what its model thinks, if it has one
    The others are those of `Upstream`.
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        model: str,
        api_key: str | None = None,
        images: bool = True,
        schemas: bool = True,
        reasoning_field: str | None = None,
        max_connections: int = 256,
        first_event_timeout_s: float = 120.0,
        gap_timeout_s: float = GAP_TIMEOUT_S,
    ) -> None:
        self.name = name
        self.capabilities = Capabilities(
            images=images,
            embeddings=True,
            structured=schemas,
            reasoning=reasoning_field is not None,
        )
        self._reasoning_field = reasoning_field
        self._upstream = Upstream(
            name,
            base_url,
            api_key,
            max_connections=max_connections,
            first_event_timeout_s=first_event_timeout_s,
            gap_timeout_s=gap_timeout_s,
        )
        self._model = model
        self._budget_field = "max_tokens"
        self._streams: set[OpenAIStream] = set()

    def __repr__(self) -> str:
        state = "closed" if self._upstream.closed else "open"
        return f"<OpenAIBackend {self.name} {state}, {len(self._streams)} running>"

    async def generate(self, call: Call) -> Stream:
        budget_field = self._budget_field
        try:
            response = await self._post(call, budget_field)
        except InvalidRequest as error:
            if budget_field != "max_tokens" or not _refuses_max_tokens(error):
                raise
            self._budget_field = "max_completion_tokens"
            response = await self._post(call, self._budget_field)
        stream = OpenAIStream(self._upstream, call, response, self._streams.discard)
        self._streams.add(stream)
        return stream

    async def embed(self, body: dict[str, Any]) -> dict[str, Any]:
        body = body | {"model": self._model}
        with transport_errors(self.name):
            async with await self._upstream.post("/embeddings", body, {}) as response:
                content = await self._upstream.read_all(response, MAX_EMBEDDINGS_BYTES)
        answer = _json(content)
        if response.status != 200:
            raise error_of_status(self.name, response.status, answer, response.headers)
        if not isinstance(answer, dict) or not isinstance(answer.get("data"), list):
            raise UpstreamFailed(f"The backend of {self.name} sent no embeddings.")
        return answer

    async def ready(self) -> bool:
        return not self._upstream.closed

    async def aclose(self) -> None:
        for stream in list(self._streams):
            stream.abort(Unavailable("The gateway is shutting down.", retry_after_s=RETRY_AFTER_S))
        await self._upstream.aclose()

    async def _post(self, call: Call, budget_field: str) -> aiohttp.ClientResponse:
        """The response, once it is known to be an event stream."""
        fields = to_fields(call.request, budget_field, self._reasoning_field)
        fields |= {
            "model": self._model,
            "stream": True,
            "stream_options": fields.get("stream_options", {}) | {"include_usage": True},
        }
        headers = {"accept": "text/event-stream", "x-request-id": call.id}
        if call.traceparent is not None:
            headers["traceparent"] = call.traceparent
        path = _PATHS[call.request.surface]
        with transport_errors(self.name):
            response = await self._upstream.post(path, fields, headers, call.deadline_s)
            if response.status == 200 and response.content_type == "text/event-stream":
                return response
            async with response:
                content = await self._upstream.read_all(response, MAX_ERROR_BYTES)
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


class OpenAIStream(Stream):
    """One answer. TCP holds the upstream back while nobody reads, so nothing is queued here.

    Silence counts while somebody waits. One timer watches over all waits: one for each would be
    a tenth of what a chunk costs.
    """

    def __init__(
        self,
        upstream: Upstream,
        call: Call,
        response: aiohttp.ClientResponse,
        forget: Callable[[OpenAIStream], None],
    ) -> None:
        """forget: called once, when the connection was let go of."""
        self._upstream = upstream
        self._forget = forget
        self._deadline_s = call.deadline_s
        self._response = response
        self._parser = SseParser()
        self._reader = ChunkReader(
            upstream.name, call.id, call.request.choices, partial(prompt_tokens, call.request)
        )
        self._quiet_s = upstream.first_event_timeout_s
        self._waits_since_s: float | None = None
        self._abort: FewerError | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._timer = self._look_at(self._due_s(self._loop.time()))

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
        self._timer.cancel()
        self._forget(self)
        if self._response.content.at_eof() and self._reader.ended:
            self._response.release()
        else:
            self._response.close()

    async def _next(self) -> list[StreamEvent]:
        try:
            with transport_errors(self._upstream.name):
                data = await self._read()
            return self._reader.feed(self._parser.feed(data)) if data else self._at_end()
        except FewerError as error:
            return [self._reader.fail(self._abort or error)]

    async def _read(self) -> bytes:
        """What has come, when there is anything; nothing at the end."""
        now_s = self._loop.time()
        if self._deadline_s is not None and now_s >= self._deadline_s:
            raise out_of_time()
        self._waits_since_s = now_s
        try:
            data: bytes = await self._response.content.readany()
        finally:
            self._waits_since_s = None
        self._quiet_s = self._upstream.gap_timeout_s
        return data

    def _at_end(self) -> list[StreamEvent]:
        return self._reader.finish(self._parser.flush())

    def _due_s(self, since_s: float) -> float:
        """When a wait that began then has been too long."""
        return min(since_s + self._quiet_s, self._deadline_s or float("inf"))

    def _look_at(self, due_s: float) -> asyncio.TimerHandle:
        """Sooner than that where patience may be shorter by then, after the first event."""
        soon_s = self._loop.time() + self._upstream.gap_timeout_s
        return self._loop.call_at(min(due_s, soon_s), self._watch)

    def _watch(self) -> None:
        """End a wait that has been too long, or look again when it will be."""
        now_s = self._loop.time()
        since_s = now_s if self._waits_since_s is None else self._waits_since_s
        due_s = self._due_s(since_s)
        if now_s < due_s:
            self._timer = self._look_at(due_s)
        elif self._waits_since_s is not None:
            late = due_s == self._deadline_s
            self.abort(out_of_time() if late else self._upstream.silent(self._quiet_s))


def _refuses_max_tokens(error: InvalidRequest) -> bool:
    return error.param == "max_tokens" and error.code == "unsupported_parameter"


def _json(content: bytes) -> Any:
    """Read as it will be written again: integers of more than 64 bits become floats."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
