"""What any ASGI proxy must cost: bytes from an upstream to the client, looked at by nobody.

    python -m benchmarks.gateway_load.passthrough PORT UPSTREAM_URL

On the gateway's own server and HTTP client, with the same event loop; no JSON, no policies, no
metrics, no log, no keep-alives, no limits.
"""

from __future__ import annotations

import argparse

import aiohttp
import uvicorn
from starlette.types import Receive, Scope, Send

from benchmarks.gateway_load.upstream import BACKLOG, HOST


class Passthrough:
    """POST anything; the answer's bytes come as the upstream sends them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {"content-type": "application/json"}
        async with self._session.post(self._url, data=body, headers=headers) as response:
            kind = response.content_type.encode()
            start = {"type": "http.response.start", "status": response.status}
            await send(start | {"headers": [(b"content-type", kind)]})
            async for data in response.content.iter_any():
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("url")
    arguments = parser.parse_args()
    uvicorn.run(
        Passthrough(arguments.url),
        host=HOST,
        port=arguments.port,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_config=None,
        access_log=False,
        backlog=BACKLOG,
    )
