"""HTTP to one upstream: its session, how long it may be silent, how much it may say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import aiohttp
import orjson

from engine.protocol.errors import DeadlineExceeded, Unavailable, UpstreamFailed
from gateway.backends.mapping import RETRY_AFTER_S

CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 4.0
"""Below uvicorn's 5 s, so that it is rarely the upstream that closes an idle connection."""

_T = TypeVar("_T")


class Upstream:
    """One upstream. Its connections are kept and reused; proxies of the environment are not used,
    redirects not followed, cookies not kept.

    Transports' exceptions come through as they are: see `gateway.backends.mapping`.

    name:                  of the model, for messages
    base_url:              with its version, http://host:port/v1
    max_connections:       open at once; requests beyond wait for one
    first_event_timeout_s: silence from the request until the first bytes
    gap_timeout_s:         silence between later bytes
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        api_key: str | None,
        *,
        max_connections: int,
        first_event_timeout_s: float,
        gap_timeout_s: float,
    ) -> None:
        self.name = name
        self.first_event_timeout_s = first_event_timeout_s
        self.gap_timeout_s = gap_timeout_s
        self._base_url = base_url.rstrip("/")
        self._api_key = api_key
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None
        self.closed = False

    async def post(
        self,
        path: str,
        body: dict[str, Any],
        headers: dict[str, str],
        deadline_s: float | None = None,
    ) -> aiohttp.ClientResponse:
        """The response, as soon as its headers are here. Close or release it."""
        if self.closed:
            raise Unavailable("The gateway is shutting down.", retry_after_s=RETRY_AFTER_S)
        if self._session is None:
            self._session = self._open_session()
        sending = self._session.post(
            self._base_url + path,
            data=orjson.dumps(body),
            headers={"content-type": "application/json", **headers},
            allow_redirects=False,
        )
        return await self.within(sending, self.first_event_timeout_s, deadline_s)

    async def read_all(self, response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
        """The whole body. Raises `UpstreamFailed` when it is larger, or stops coming."""
        content = bytearray()
        while piece := await self.within(response.content.readany(), self.gap_timeout_s, None):
            content += piece
            if len(content) > limit_bytes:
                raise UpstreamFailed(
                    f"The backend of {self.name} answered with more than {limit_bytes} bytes."
                )
        return bytes(content)

    async def within(
        self, awaitable: Awaitable[_T], quiet_s: float, deadline_s: float | None
    ) -> _T:
        """Await it, for `quiet_s` and until the deadline at most.

        Raises `DeadlineExceeded` for the deadline, `UpstreamFailed` for the silence.
        """
        until_s = asyncio.get_running_loop().time() + quiet_s
        late = deadline_s is not None and deadline_s < until_s
        try:
            async with asyncio.timeout_at(deadline_s if late else until_s) as scope:
                return await awaitable
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise (out_of_time() if late else self.silent(quiet_s)) from error

    def silent(self, quiet_s: float) -> UpstreamFailed:
        """What it fails with that has sent nothing for so long."""
        return UpstreamFailed(
            f"The backend of {self.name} sent nothing for {quiet_s:g} s.",
            retry_after_s=RETRY_AFTER_S,
        )

    async def aclose(self) -> None:
        self.closed = True
        if self._session is not None:
            await self._session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        # An event stream that is compressed is held back by the compressor.
        headers = {"accept-encoding": "identity", "user-agent": "fewer"}
        if self._api_key is not None:
            headers["authorization"] = f"Bearer {self._api_key}"
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._max_connections, keepalive_timeout=KEEPALIVE_S
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
            trust_env=False,
        )


def out_of_time() -> DeadlineExceeded:
    return DeadlineExceeded("The request's time ran out.")
