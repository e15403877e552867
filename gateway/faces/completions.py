"""`POST /v1/completions`."""

from __future__ import annotations

from engine.protocol.openai import parse_completion
from engine.protocol.projection import CompletionProjection
from gateway.faces.generation import Format

COMPLETIONS = Format(
    surface="completions",
    id_prefix="cmpl-",
    parse=parse_completion,
    projection=CompletionProjection,
    empty_choice={"index": 0, "text": "", "logprobs": None, "finish_reason": None},
)
