from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fewer.health import is_ready, until_ready


class Gateway(HTTPServer):
    """Not ready for the first few questions."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.refusals = 3


class _Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_GET(self) -> None:
        ready = self.path == "/health/ready" and self.server.refusals == 0
        self.server.refusals -= 0 if ready else 1
        self.send_response(200 if ready else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def test_it_waits_until_the_gateway_says_yes(gateway: Gateway) -> None:
    assert not is_ready(gateway.url)
    assert await until_ready(gateway.url, deadline_s=20.0)
    assert gateway.refusals == 0


async def test_it_gives_up_at_the_deadline() -> None:
    assert not is_ready("http://127.0.0.1:1")
    assert not await until_ready("http://127.0.0.1:1", deadline_s=0.1)
