"""What an OpenAI-compatible upstream means by an error: by status, headers and body.

A client's mistake keeps its message and `param`. What only the operator can mend (a wrong key,
an unknown model, a redirect) is a failed upstream to the client, and a line in the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from engine.protocol.errors import (
    ContextLengthExceeded,
    FewerError,
    InvalidRequest,
    Overloaded,
    TooLarge,
    UpstreamFailed,
)

_log = logging.getLogger(__name__)

MAX_MESSAGE_CHARS = 2000
MAX_NAME_CHARS = 128
"""Of a code, a type, and the field at fault."""

MAX_RETRY_AFTER_S = 3600.0
DEFAULT_RETRY_AFTER_S = 1.0
OVERLOADED_STATUSES = frozenset({429, 503, 529})
_CONTEXT_LENGTH = "context_length_exceeded"
_CLIENT_STATUSES = frozenset({400, 409, 411, 415, 422})


class Complaint(msgspec.Struct, frozen=True):
    """What an error body says, of whichever server's shape."""

    message: str = ""
    param: str | None = None
    code: str | None = None
    type: str | None = None


def complaint_of(body: Any) -> Complaint:
    """Reads OpenAI's `{"error": {…}}`, the flat object of older servers, TGI's and FastAPI's."""
    if not isinstance(body, dict):
        return Complaint()
    inner = body.get("error")
    if isinstance(inner, dict):
        fields = inner
    elif isinstance(inner, str):
        fields = {"message": inner, "type": body.get("error_type")}
    else:
        fields = body
    message = fields.get("message") or fields.get("detail") or ""
    return Complaint(
        message=str(message)[:MAX_MESSAGE_CHARS],
        param=_text(fields.get("param")),
        code=_text(fields.get("code")),
        type=_text(fields.get("type")),
    )


def error_of_status(
    name: str, status: int, body: Any, headers: Mapping[str, str] | None = None
) -> FewerError:
    """The error that an answer with this status means for the client of the backend `name`."""
    return _of_status(name, status, complaint_of(body), headers or {})


def error_in_stream(name: str, body: Any) -> FewerError:
    """The error that an error object inside a stream, or under status 200, means.

    It always has its class's own code, which is all that travels on in a `Failed`.
    """
    complaint = complaint_of(body)
    status = _status_in(complaint)
    if complaint.code != _CONTEXT_LENGTH:
        complaint = replace(complaint, code=None)
    if status is not None:
        return _of_status(name, status, complaint, {})
    _log.error("%s: the upstream failed within a stream: %s", name, complaint.message)
    return UpstreamFailed(f"The backend of {name} failed while it answered.")


def _of_status(
    name: str, status: int, complaint: Complaint, headers: Mapping[str, str]
) -> FewerError:
    if status in OVERLOADED_STATUSES:
        return Overloaded(
            f"The backend of {name} is overloaded; try again later.",
            retry_after_s=retry_after_s(headers),
        )
    if status == 413:
        return TooLarge(complaint.message or f"The request is too large for {name}.")
    if status in _CLIENT_STATUSES:
        return _clients_mistake(name, complaint)
    if status in (401, 403):
        # The upstream's words may show a piece of our key: neither client nor log gets them.
        _log.error("%s: the upstream answered %d; check api_key and model", name, status)
        return UpstreamFailed(f"The backend of {name} refused the gateway's credentials.")
    _log.error("%s: the upstream answered %d: %s", name, status, complaint.message)
    if 300 <= status < 400:
        return UpstreamFailed(
            f"The backend of {name} answered with a redirect, which is not followed."
        )
    return UpstreamFailed(f"The backend of {name} failed with status {status}.")


def _status_in(complaint: Complaint) -> int | None:
    """The HTTP status that the error object of a stream would have had."""
    code = complaint.code
    if code is not None and code.isdecimal() and 400 <= int(code[:4]) < 600:
        return int(code)
    if code == _CONTEXT_LENGTH or complaint.type == "invalid_request_error":
        return 400
    if code in ("rate_limit_exceeded", "overloaded", "unavailable"):
        return 503
    return None


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Seconds from `retry-after-ms` or `retry-after` (a number or an HTTP date), bounded."""
    value = headers.get("retry-after-ms")
    if value is not None and (milliseconds := _number(value)) is not None:
        return _bounded(milliseconds / 1000)
    value = headers.get("retry-after")
    if value is None:
        return DEFAULT_RETRY_AFTER_S
    if (seconds := _number(value)) is not None:
        return _bounded(seconds)
    try:
        return _bounded(parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return DEFAULT_RETRY_AFTER_S


def _clients_mistake(name: str, complaint: Complaint) -> FewerError:
    message = complaint.message or f"The backend of {name} refused the request."
    if complaint.code == _CONTEXT_LENGTH:
        return ContextLengthExceeded(message, param=complaint.param)
    return InvalidRequest(message, param=complaint.param, code=complaint.code)


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if number == number else None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)[:MAX_NAME_CHARS]
