"""The seam between the pipeline and whatever produces tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any

import msgspec

from engine.protocol.errors import InvalidRequest
from engine.protocol.frames import Event, Failed, StreamEvent
from policies.request import Request


class Capabilities(msgspec.Struct, frozen=True):
    """What a backend can do beyond plain generation. A policy that needs more falls back.

    landing:    ends an answer at a clean place after `soft_max_tokens`; for others the gateway does
    images:     accepts image parts in messages
    embeddings: has an embeddings endpoint
    structured: keeps an answer to a JSON Schema; for others it becomes an instruction
    reasoning:  takes a limit of its own for what the model thinks; for others thought and answer
                share one
    prediction: verifies the parameter `prediction`, and writes only what differs from it
    """

    landing: bool = False
    images: bool = False
    embeddings: bool = False
    structured: bool = False
    reasoning: bool = False
    prediction: bool = False


class Call(msgspec.Struct, frozen=True):
    """One call of a backend: the canonical request and what the gateway adds to it.

    id:         the gateway's request id, unique
    deadline_s: loop time (`loop.time()`) after which the call fails with DeadlineExceeded
    salt:       the tenant's, never the client's
    draft:      an answer that this one may be like; for a backend that verifies predictions
    """

    id: str
    request: Request
    tenant: str = ""
    salt: str = ""
    weight: float = 1.0
    priority: int = 0
    deadline_s: float | None = None
    expected_tokens: int | None = None
    draft: str = ""
    traceparent: str | None = None


class Stream(ABC):
    """The events of one call, in order, until exactly one terminal.

    The terminal is an `Event` with `usage` or a `Failed`. A backend that counts the prompt
    before it answers delivers `Accepted` first; a foreign upstream cannot. Buffers are bounded:
    a reader that stops reading makes the backend pause this call and no other.
    """

    @abstractmethod
    def receive(self) -> Coroutine[Any, Any, list[StreamEvent]]:
        """The events since the last call, at least one; waits for it. Empty after the terminal.

        Failures after the call was accepted arrive as a `Failed`, not as an exception.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Stop caring. Cancels the generation unless it has ended. Safe to call twice."""


class Backend(ABC):
    """A source of tokens. Lives as long as the gateway; shared by all requests."""

    name: str
    capabilities: Capabilities

    @abstractmethod
    async def generate(self, call: Call) -> Stream:
        """Start a call; returns once the backend has accepted or queued it.

        Raises a `FewerError` when it did not start: `Unavailable` and `Overloaded` may be tried
        elsewhere, a `ClientError` may not. Cancelling this coroutine cancels the call.
        """

    async def embed(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer an OpenAI embeddings request: `body` as the client sent it, model aside.

        Returns OpenAI's response object. Raises a `FewerError`; `InvalidRequest` where the
        backend has no embeddings, which `capabilities.embeddings` tells beforehand.
        """
        raise InvalidRequest(
            f"The model {self.name} makes no embeddings; ask for one that does.", param="model"
        )

    @abstractmethod
    async def ready(self) -> bool:
        """Can it serve now? Answers within a second, from what it knows."""

    @abstractmethod
    async def aclose(self) -> None:
        """End every stream with a `Failed` and close connections."""


def is_terminal(event: StreamEvent) -> bool:
    """Does nothing follow this event in its stream?"""
    return event.usage is not None if type(event) is Event else type(event) is Failed
