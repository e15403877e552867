"""`POST /v1/chat/completions`."""

from __future__ import annotations

from engine.protocol.openai import parse_chat
from engine.protocol.projection import ChatProjection
from gateway.faces.generation import Format

CHAT = Format(
    surface="chat",
    id_prefix="chatcmpl-",
    parse=parse_chat,
    projection=ChatProjection,
    empty_choice={"index": 0, "delta": {}, "logprobs": None, "finish_reason": None},
)
