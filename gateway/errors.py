"""Errors that only the gateway raises, beside the tree of `engine.protocol.errors`.

ClientError
├── NotFound
│   └── MethodNotAllowed   405  the page exists, for another method
├── InvalidRequest
│   └── UnsupportedMedia   415  not JSON, or compressed
├── RateLimited
│   └── QuotaExceeded      429  a budget is used up; waiting will not help before its period ends
└── BodyTooSlow            408  the body was not complete in time
Cancelled
├── SlowReader             499  the client stopped reading; its connection is cut
└── Stopped                499  the client has ended it by another request
"""

from __future__ import annotations

from typing import Any

from engine.protocol.errors import (
    Cancelled,
    ClientError,
    FewerError,
    InvalidRequest,
    NotFound,
    RateLimited,
    from_code,
)
from engine.protocol.frames import Failed


class MethodNotAllowed(NotFound):
    """allowed: the methods that the page knows, as the header `allow` lists them."""

    status, code = 405, "method_not_allowed"

    def __init__(self, message: str, *, allowed: str, **rest: Any) -> None:
        super().__init__(message, **rest)
        self.allowed = allowed


class UnsupportedMedia(InvalidRequest):
    status, code = 415, "unsupported_media_type"


class QuotaExceeded(RateLimited):
    """Named as OpenAI names it."""

    type = code = "insufficient_quota"


class BodyTooSlow(ClientError):
    status, code = 408, "request_timeout"


class SlowReader(Cancelled):
    code = "slow_reader"


class Stopped(Cancelled):
    """Whoever waits for the answer is told of its end."""


def of_failed(failed: Failed) -> FewerError:
    """The error that a backend's terminal stands for."""
    return from_code(
        failed.code, failed.message, param=failed.param, retry_after_s=failed.retry_after_s
    )


def with_tried(error: FewerError, tried: list[str]) -> FewerError:
    """`error`, saying which models were tried; itself where it was only one."""
    if len(tried) < 2:
        return error
    return type(error)(
        f"{error.message} Tried: {', '.join(tried)}.",
        param=error.param,
        code=error.code,
        retry_after_s=error.retry_after_s,
    )
