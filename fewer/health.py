"""Asking a gateway on this machine whether it can serve."""

from __future__ import annotations

import asyncio
import http.client
from urllib.parse import urlsplit

POLL_S = 0.05
ANSWER_DEADLINE_S = 2.0


async def until_ready(url: str, deadline_s: float) -> bool:
    """Wait until `/health/ready` says yes; False when it has not after `deadline_s`."""
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                if await asyncio.to_thread(is_ready, url):
                    return True
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        return False


def is_ready(url: str) -> bool:
    """What the gateway at `url` says now; no answer is a no."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port, timeout=ANSWER_DEADLINE_S
    )
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
