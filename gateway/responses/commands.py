"""What a client says over the WebSocket of the Responses API, one JSON object a frame."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from engine.protocol.body import decode_object
from engine.protocol.errors import FewerError, InvalidRequest
from engine.protocol.sse import one_line_json
from gateway.responses.fields import checked

_LANE = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_KNOWN = ("response.create", "response.cancel", "response.steer")


class Command(msgspec.Struct, frozen=True):
    """One frame.

    type:     one of three
    fields:   of a create those of a body, not checked yet; of the others as they came
    lane:     `stream_id`: what is on one lane comes one after the other; None has a lane, too
    generate: false: the prompt is read, and nothing is written
    """

    type: str
    fields: dict[str, Any]
    lane: str | None = None
    generate: bool = True

    def checked(self) -> dict[str, Any]:
        """The fields of a create. Raises `InvalidRequest`, which names what is wrong."""
        fields = {name: value for name, value in self.fields.items() if name != "stream"}
        return checked(fields) | {"stream": True}


def read(text: str) -> Command:
    """Raises `InvalidRequest` for what is no command."""
    fields = decode_object(text.encode())
    kind = fields.pop("type", None)
    if kind not in _KNOWN:
        shown = repr(kind[:64]) if isinstance(kind, str) else "no string"
        raise InvalidRequest(
            f"The type of a frame must be one of: {', '.join(_KNOWN)}; it is {shown}.",
            param="type",
            code="unknown_event",
        )
    lane, generate = fields.pop("stream_id", None), fields.pop("generate", None)
    if lane is not None and not (isinstance(lane, str) and _LANE.fullmatch(lane)):
        raise InvalidRequest(
            "stream_id must be 1 to 256 letters, digits and _ . - only.",
            param="stream_id",
            code="invalid_stream_id",
        )
    if generate not in (None, True, False):
        raise InvalidRequest("generate must be true or false.", param="generate")
    return Command(kind, fields, lane, generate is not False)


def told(error: FewerError, lane: str | None) -> bytes:
    """The frame of an error, after which nothing comes of what it is about."""
    code = "server_is_overloaded" if error.status == 503 else error.code
    wire = error.to_wire()["error"] | {"code": code}
    frame = {"type": "error", "status": error.status, "error": wire}
    return one_line_json(frame if lane is None else frame | {"stream_id": lane}) + b"\n"


def not_steered(command: Command) -> bytes:
    """Input for a response that is being written is not taken."""
    error = {
        "type": "invalid_request_error",
        "code": "steering_not_supported",
        "message": "A response that is being written takes no more input here.",
    }
    steer = {name: command.fields.get(name) for name in ("previous_response_id", "input")}
    return one_line_json({"type": "response.steer.failed", "error": error, "steer": steer}) + b"\n"
