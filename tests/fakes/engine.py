"""A whole engine of fakes: real core, real server, tokens that are hashes and bytes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from engine.assembly import Engine
from engine.core import Core
from engine.protocol.errors import InvalidRequest
from engine.protocol.settings import EngineSettings
from engine.runner.base import Batch
from engine.server.app import EngineApp, build_app, server_config
from tests.fakes.executor import HashExecutor
from tests.fakes.tokenizer import START, ByteTokenizer, byte_tokenizer

TOKEN = "engine-token"
MODEL = "hash"
LETTERS = list(range(ord("a"), ord("z") + 1))
"""Token ids that keep the fake's output readable: `allowed_token_ids=LETTERS`."""


class PromptTokenizer(ByteTokenizer):
    """A prompt begins with nothing of its own."""

    def encode_prompt(self, text: str) -> list[int]:
        return self.encode(text)


class ByteTemplate:
    """Each message is a start token, its role and its text. Knows tools by name only."""

    supports_tools = True

    def render(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None
    ) -> list[int]:
        if messages[-1].get("content") == "refuse me":
            raise InvalidRequest("The template refuses this order of roles.", param="messages")
        ids: list[int] = []
        for tool in tools or []:
            ids += [START, *tool["function"]["name"].encode()]
        for message in messages:
            content = message.get("content") or ""
            if isinstance(content, list):
                content = "".join(part["text"] for part in content)
            ids += [START, *ByteTokenizer().encode(f"{message['role']}:{content}")]
        return ids


class Gate:
    """`on_run` of a fake: the core thread waits before each step until it is let through."""

    def __init__(self) -> None:
        self._steps = threading.Semaphore(0)
        self._open = False

    def __call__(self, batch: Batch) -> None:
        if not self._open:
            self._steps.acquire()

    def let(self, steps: int) -> None:
        """Let this many more steps run."""
        self._steps.release(steps)

    def open(self) -> None:
        """Let everything through from now on."""
        self._open = True
        self._steps.release()


def fake_engine(
    *,
    on_run: Callable[[Batch], None] | None = None,
    num_blocks: int = 4096,
    end_every: int = 0,
    clock: Callable[[], float] = time.monotonic,
    **settings: Any,
) -> Engine:
    """on_run: called on the core thread before each step; may block or raise.

    clock: the core's; where it stands still steps take no time, and guesses always pay
    """
    told = EngineSettings(**({"max_model_len": 2048} | settings))
    executor = HashExecutor(on_run=on_run, end_every=end_every)
    return Engine(
        name=MODEL,
        executor=executor.name,
        shape=executor.shape,
        max_model_len=told.max_model_len,
        num_blocks=num_blocks,
        core=Core(executor, byte_tokenizer(), told, num_blocks, clock=clock),
        tokenizer=PromptTokenizer(),
        template=ByteTemplate(),
    )


class Served:
    """A running server: where it is, and the app and engine behind it."""

    def __init__(self, port: int, engine: Engine, app: EngineApp) -> None:
        self.port = port
        self.engine = engine
        self.app = app
        self.http = f"http://127.0.0.1:{port}"
        self.link = f"ws://127.0.0.1:{port}/v1/engine"
        self.headers = {"authorization": f"Bearer {TOKEN}"}

    def drained(self) -> bool:
        """Nothing runs, waits or is paused, and no block is owned."""
        now = self.engine.core.statistics()
        return (now.running, now.waiting, now.paused, now.kv_usage_ratio) == (0, 0, 0, 0.0)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.up.set()


@asynccontextmanager
async def serve(engine: Engine) -> AsyncIterator[Served]:
    """The engine's real server on a free port, on this event loop."""
    app = build_app(engine, TOKEN)
    config = server_config(app)
    config.port = 0
    server = _Server(config)
    task = asyncio.create_task(server._serve())
    waiting = asyncio.create_task(server.up.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    if not server.up.is_set():
        waiting.cancel()
        await task
    try:
        yield Served(server.servers[0].sockets[0].getsockname()[1], engine, app)
    finally:
        server.should_exit = True
        await task


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Wait for what another thread brings about; fails after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (the core thread has no event for us)
            await asyncio.sleep(0.002)
