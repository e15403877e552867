"""Fixtures of the gateway's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.fakes.serving import Gateway, Serve, running


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """`await serve(config, backends, tenants)`: a `Gateway`, stopped after the test."""
    async with AsyncExitStack() as stack:

        async def start(*arguments: Any, **named: Any) -> Gateway:
            return await stack.enter_async_context(running(*arguments, **named))

        yield start
