"""What was decided about the form of an answer, as far as a model can be held to it.

A JSON Schema becomes an instruction where a model cannot be kept to one, and what it thinks shares
the answer's limit where it cannot be told another. Fallbacks rather than refusals: the answers are
of use in most cases all the same, and the client is told that nothing guarantees it.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from gateway.backends.base import Capabilities
from policies.budget import BudgetPolicy
from policies.instructions import with_instruction
from policies.request import Request
from policies.shape import ShapePolicy

AS_INSTRUCTION = "the schema is an instruction: this model cannot be kept to it"
ONE_LIMIT = "reasoning and answer share max_tokens: this model has no reasoning_field"


def fitted(request: Request, capabilities: Capabilities) -> Request:
    """The request as a model of these capabilities is to get it."""
    if request.reasoning_tokens is not None and not capabilities.reasoning:
        request = replace(request, reasoning_tokens=None)
    if request.schema is not None and not capabilities.structured:
        return _instructed(request, request.schema)
    return request


def degraded(request: Request, capabilities: Capabilities) -> dict[str, str]:
    """By policy: what a model of these capabilities does less well than was decided."""
    found: dict[str, str] = {}
    if request.reasoning_tokens is not None and not capabilities.reasoning:
        found[BudgetPolicy.name] = ONE_LIMIT
    if request.schema is not None and not capabilities.structured:
        found[ShapePolicy.name] = AS_INSTRUCTION
    return found


def _instructed(request: Request, schema: dict[str, object]) -> Request:
    text = msgspec.json.encode(schema).decode()
    instruction = (
        f"Answer with one JSON value that is valid under this JSON Schema, and with nothing else, "
        f"not even a code fence: {text}"
    )
    messages = with_instruction(request.messages, instruction)
    return replace(request, schema=None, messages=messages)
