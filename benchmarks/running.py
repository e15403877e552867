"""Engines that run, each in processes of its own: libraries behind a pipe, servers behind HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp

from benchmarks import processes
from benchmarks.client import Answer, Client, Refused, connected
from benchmarks.jobs import Job, Reply
from benchmarks.service import said, started
from benchmarks.stack import HOST, serving
from fewer import ports

START_DEADLINE_S = 600.0
POLL_S = 0.05


class EngineError(Exception):
    """An engine did not start, or ended in the middle of its work."""


class Running(Protocol):
    """pid: the root of its processes; version: its name and version, as it tells them"""

    pid: int
    version: str

    def wake(self, prompt: list[int]) -> None:
        """Get a first token out of it, as soon as it can give one. Raises `EngineError`."""

    def run(self, job: Job) -> Reply:
        """Do all of it. Raises `EngineError`."""


class Library:
    """An adapter of adapters/: jobs in and timings out, a line of JSON each."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid
        self.version = str(self._reply()["ready"])

    def wake(self, prompt: list[int]) -> None:
        self.run(Job([prompt], [1], 1))

    def run(self, job: Job) -> Reply:
        assert self._process.stdin is not None
        words = {"prompts": job.prompts, "outputs": job.outputs}
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return Reply(**self._reply())

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # libraries print what they like
                reply: dict[str, Any] = json.loads(line)
                return reply
        status = self._process.wait()
        raise EngineError(f"{self._process.args!r} ended with status {status}.")


class Server:
    """Anything that serves `/v1/completions` at `url`."""

    def __init__(self, url: str, pid: int, version: str, log: Path | None = None) -> None:
        self.pid, self.version = pid, version
        self._url, self._log = url, log

    def wake(self, prompt: list[int]) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while processes.tree(self.pid) and time.monotonic() < deadline:
            if self._listens():  # cheap, so that looking does not slow the start
                with contextlib.suppress(aiohttp.ClientError, Refused):
                    self.run(Job([prompt], [1], 1))
                    return
            time.sleep(POLL_S)
        raise EngineError(f"{self.version} did not start: {self._said()}")

    def run(self, job: Job) -> Reply:
        return asyncio.run(self._run(job))

    async def _run(self, job: Job) -> Reply:
        async with connected(self._url) as client:
            began = time.monotonic()
            answers = await _answers(client, job)
            ended = max(answer.sent_s + answer.last_s for answer in answers)
        gaps_s = [gap_s for answer in answers for gap_s in answer.gaps_s]
        return Reply(ended - began, [answer.first_s for answer in answers], gaps_s)

    def _listens(self) -> bool:
        address = urlsplit(self._url)
        try:
            socket.create_connection((address.hostname, address.port), POLL_S).close()
        except OSError:
            return False
        return True

    def _said(self) -> str:
        return said(self._log) if self._log else ""


async def _answers(client: Client, job: Job) -> list[Answer]:
    """As many streams as the job wants, each taking the next request once it is done with one."""
    requests = iter(zip(job.prompts, job.outputs, strict=True))

    async def stream() -> list[Answer]:
        return [await client.ask(prompt, tokens) for prompt, tokens in requests]

    streams = await asyncio.gather(*(stream() for _ in range(job.concurrency)))
    return [answer for answers in streams for answer in answers]


@contextmanager
def library(command: Sequence[str], environ: Mapping[str, str]) -> Iterator[Running]:
    """`command` runs an adapter; it has ended when the block is left."""
    pipe = subprocess.PIPE
    environment = os.environ | dict(environ)
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        try:
            yield Library(process)
        finally:
            process.kill()


@contextmanager
def server(command: Sequence[str], environ: Mapping[str, str], name: str) -> Iterator[Running]:
    """`command` starts a server once `--host` and `--port` are added; all of it ends with the
    block."""
    port = ports.claim(HOST, 0, "--port")
    with tempfile.TemporaryDirectory(prefix="fewer-bench-") as folder:
        log = Path(folder) / "log"
        listening = [*command, "--host", HOST, "--port", str(port)]
        with started(listening, log, environ) as process:
            yield Server(f"http://{HOST}:{port}", process.pid, name, log)


@contextmanager
def our_stack(model: Path, threads: int) -> Iterator[Running]:
    """`fewer serve`, with default policies."""
    with serving(str(model), threads) as stack:
        yield Server(stack.url, stack.pid, f"fewer {version('fewer')}, gateway")
