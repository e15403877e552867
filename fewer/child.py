"""One process that `fewer serve` starts: its output, its readiness and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence

from fewer.lifeline import READY
from fewer.merged_log import LineSplitter, MergedLog

READ_BYTES = 65_536


class Child:
    """A command that can be started again and again. Every line it prints goes to the log.

    The child runs in a session of its own, so that Ctrl-C in the terminal reaches the parent
    alone, which then ends its children in order; and it can be killed with all of its own.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: MergedLog,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.ready = asyncio.Event()
        self._command = command
        self._log = log
        self._environ = {**os.environ, **(environ or {}), "PYTHONUNBUFFERED": "1"}
        self._life: asyncio.Task[int] | None = None
        self.pid = 0

    @property
    def running(self) -> bool:
        return self._life is not None and not self._life.done()

    async def start(self) -> None:
        """Start it, once it is not running. `ready` is set when it says so."""
        self.ready.clear()
        # Pipes of our own: asyncio's keep `wait` from returning while a worker that the child
        # left behind has them open.
        lifeline, their_line = _socket_pair()
        output, their_output = _socket_pair()
        with their_line, their_output:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=their_line.fileno(),
                stdout=their_output.fileno(),
                stderr=asyncio.subprocess.STDOUT,
                env=self._environ,
                start_new_session=True,
            )
        self.pid = process.pid
        self._life = asyncio.create_task(self._live(process, lifeline, output))

    async def wait(self) -> int:
        """Its exit status, as `subprocess` gives it, after its last line has been logged."""
        if self._life is None:
            raise RuntimeError(f"{self.name} was never started")
        return await asyncio.shield(self._life)

    async def stop(self, deadline_s: float) -> None:
        """Ask it to end; kill it when it has not after `deadline_s`."""
        if not self.running:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(deadline_s):
                await self.wait()
        except TimeoutError:
            self._log.line(self.name, f"did not end within {deadline_s:g} s: killed")
            self.kill()
            await self.wait()

    def hang_up(self) -> None:
        """Ask it to read its configuration again. Does nothing before it is ready."""
        if self.running and self.ready.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGHUP)

    def kill(self) -> None:
        """End it and all of its own at once. Does nothing when it has ended."""
        if self.running:
            self._kill_group()

    async def _live(
        self, process: asyncio.subprocess.Process, lifeline: socket.socket, output: socket.socket
    ) -> int:
        with lifeline, output:
            copying = asyncio.create_task(self._copy(output))
            listening = asyncio.create_task(self._await_ready(lifeline))
            status = await process.wait()
            # A worker that it left behind would hold the port, and the next start would fail.
            self._kill_group()
            listening.cancel()
            await asyncio.gather(copying, listening, return_exceptions=True)
        return status

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _copy(self, output: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        splitter = LineSplitter()
        while data := await loop.sock_recv(output, READ_BYTES):
            for line in splitter.feed(data):
                self._log.line(self.name, line)
        for line in splitter.flush():
            self._log.line(self.name, line)

    async def _await_ready(self, lifeline: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        heard = b""
        while not heard.endswith(READY):
            data = await loop.sock_recv(lifeline, len(READY))
            if not data:
                return
            heard += data
        self.ready.set()


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    """Our end, which does not block, and the child's, which does."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs
