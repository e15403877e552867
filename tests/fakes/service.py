"""A real `fewer serve` as a process, and everything that it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SILENCE_S = 180.0


class Service:
    """Its output is read all the time: a full pipe would stop it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.printed = ""
        self._position = 0
        self._ended = False
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def until(self, pattern: str) -> str:
        """Wait for a line that matches, after those waited for before; its first group."""
        deadline = time.monotonic() + SILENCE_S
        with self._news:
            while True:
                if found := re.compile(pattern).search(self.printed, self._position):
                    self._position = found.end()
                    return found[1] if found.groups() else found[0]
                left_s = deadline - time.monotonic()
                if left_s < 0 or self._ended or not self._news.wait(left_s):
                    raise AssertionError(f"Nothing like {pattern!r} in:\n{self.printed}")

    def url(self) -> str:
        """Of the gateway, once it serves."""
        url = self.until(r"chat page +(http://127\.0\.0\.1:\d+)/")
        self.until(r"try +curl -N")
        return url

    def child(self, command: str) -> int:
        """The process id of its `fewer engine` or `fewer gateway`."""
        pid = self.process.pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if command.encode() in words:
                return int(child)
        raise AssertionError(f"{pid} has no child {command}")

    def end(self) -> int:
        """Wait until it has ended of its own, and all is read; its exit code."""
        code = self.process.wait(timeout=SILENCE_S)
        self._reader.join()
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.printed += line
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


@contextmanager
def serving(
    config: Path, *words: str, environ: Mapping[str, str] | None = None
) -> Iterator[Service]:
    """`fewer serve --config config …`, which is asked to stop at the end."""
    command = [sys.executable, "-m", "fewer", "serve", "--config", str(config), *words]
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**os.environ, **(environ or {})},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        service = Service(process)
        try:
            yield service
            process.terminate()
            service.end()
        finally:
            process.kill()
            service.end()
