"""R17: whatever order the roles come in, there is an answer, or a 400 with the reason."""

from __future__ import annotations

from itertools import product
from typing import Any
from urllib.error import HTTPError

import pytest

from tests.e2e.stack import Stack, faces

pytestmark = pytest.mark.model

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
KINDS: dict[str, dict[str, Any]] = {
    "empty system": {"role": "system", "content": ""},
    "developer": {"role": "developer", "content": "Be brief."},
    "user": {"role": "user", "content": "Hi"},
    "assistant": {"role": "assistant", "content": "Hello"},
    "call": {"role": "assistant", "content": None, "tool_calls": [CALL]},
    "tool": {"role": "tool", "tool_call_id": "1", "content": "5"},
}


@pytest.mark.parametrize("first", KINDS)
def test_no_order_of_roles_is_a_fault_of_ours(stack: Stack, first: str) -> None:
    for number, (second, third) in enumerate(product(KINDS, repeat=2)):
        messages = [KINDS[kind] for kind in (first, second, third)]
        assert status(stack, messages=messages, **faces(stack)[number % 3]) in (200, 400)


def status(stack: Stack, **fields: Any) -> int:
    try:
        stack.ask(max_tokens=1, **fields)
    except HTTPError as error:
        with error:
            return error.code
    return 200
