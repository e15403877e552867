"""A route's JSON Schema, for models that cannot be kept to one: it becomes an instruction.

A fallback rather than a refusal: the route's answers are JSON in most cases all the same, and the
client is told that nothing guarantees it.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from gateway.backends.base import Capabilities
from policies.instructions import with_instruction
from policies.request import Request
from policies.shape import ShapePolicy

AS_INSTRUCTION = "the schema is an instruction: this model cannot be kept to it"


def fitted(request: Request, capabilities: Capabilities) -> Request:
    """The request as a model of these capabilities is to get it."""
    if request.schema is None or capabilities.structured:
        return request
    schema = msgspec.json.encode(request.schema).decode()
    instruction = (
        f"Answer with one JSON value that is valid under this JSON Schema, and with nothing else, "
        f"not even a code fence: {schema}"
    )
    messages = with_instruction(request.messages, instruction)
    return replace(request, schema=None, messages=messages)


def degraded(request: Request, capabilities: Capabilities) -> dict[str, str]:
    """By policy: what a model of these capabilities does less well than was decided."""
    if request.schema is None or capabilities.structured:
        return {}
    return {ShapePolicy.name: AS_INSTRUCTION}
