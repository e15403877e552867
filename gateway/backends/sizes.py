"""About how much memory events hold."""

from __future__ import annotations

from engine.protocol.frames import Event, StreamEvent, TokenLogprob

EVENT_BYTES = 64
LOGPROB_BYTES = 100


def size_bytes(event: StreamEvent) -> int:
    size = EVENT_BYTES
    if type(event) is Event:
        size += len(event.text)
        if event.tool is not None:
            size += len(event.tool.arguments)
        if event.logprobs is not None:
            size += LOGPROB_BYTES * sum(map(_entries, event.logprobs))
    return size


def _entries(logprob: TokenLogprob) -> int:
    return 1 + len(logprob.top)
