"""`fewer serve` as a process, over a scripted model: no engine, so it starts at once."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fewer.children import wait_gone

REPOSITORY = Path(__file__).parents[2]
CONFIG = """
store: sqlite:keys.sqlite3
models: {played: {scripted: script.json}}
routes: {chat: {model: played}}
"""
SCRIPT = {"steps": [{"text": "Tok"}, {"text": "yo"}]}


class Serving:
    """A running `fewer serve`, and everything it has printed."""

    def __init__(self, *words: str, config: Path) -> None:
        command = [sys.executable, "-m", "fewer", "serve", "--config", str(config), *words]
        self.process = subprocess.Popen(
            command, cwd=REPOSITORY, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.printed = ""

    def until(self, pattern: str) -> str:
        """Read on until a line matches; its first group."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed += line
            if found := re.search(pattern, line):
                return found[1] if found.groups() else found[0]
        raise AssertionError(f"No line like {pattern!r} in:\n{self.printed}")

    def end(self) -> int:
        """Read what is left and wait; the exit code."""
        assert self.process.stdout is not None
        self.printed += self.process.stdout.read()
        return self.process.wait(timeout=30)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "script.json").write_text(json.dumps(SCRIPT))
    path = tmp_path / "fewer.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def serving(config: Path) -> Iterator[Serving]:
    service = Serving("--port", "0", config=config)
    with service.process:
        yield service
        service.process.kill()


def child_of(serving: Serving) -> int:
    pid = serving.process.pid
    (gateway,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(gateway)


def answer(url: str) -> str:
    body = {"messages": [{"role": "user", "content": "Capital of Japan?"}]}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        content: str = json.load(response)["choices"][0]["message"]["content"]
        return content


def test_it_serves_until_it_is_told_to_stop(serving: Serving) -> None:
    url = serving.until(r"chat page +(http://127\.0\.0\.1:\d+)/")
    serving.until(r"try +curl -N")
    assert answer(url) == "Tokyo"
    serving.process.send_signal(signal.SIGTERM)
    assert serving.end() == 0
    assert "fewer   | stopping; running answers may take 30 s" in serving.printed
    assert serving.printed.endswith("fewer   | stopped\n")


def test_ctrl_c_ends_it_as_well(serving: Serving) -> None:
    serving.until("Fewer is ready")
    serving.process.send_signal(signal.SIGINT)
    assert serving.end() == 0


def test_a_gateway_that_is_killed_comes_back(serving: Serving) -> None:
    url = serving.until(r"chat page +(http://127\.0\.0\.1:\d+)/")
    os.kill(child_of(serving), signal.SIGKILL)
    serving.until("gateway was ended by SIGKILL; starts again in 0.5 s")
    serving.until("gateway is back")
    assert answer(url) == "Tokyo"


def test_children_do_not_outlive_it_however_it_ends(serving: Serving) -> None:
    serving.until("Fewer is ready")
    gateway = child_of(serving)
    serving.process.kill()
    wait_gone(gateway)


def test_a_port_in_use_is_one_line(config: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        service = Serving("--port", str(port), config=config)
        with service.process:
            assert service.end() == 1
    assert service.printed.startswith(f"fewer: Port {port} is in use by ")
    assert service.printed.count("\n") == 1


def test_the_network_is_refused_while_there_are_no_keys(config: Path) -> None:
    service = Serving("--host", "0.0.0.0", "--port", "0", config=config)
    with service.process:
        assert service.end() == 1
    assert "gateway | fewer: Will not listen on 0.0.0.0: there are no keys" in service.printed
    assert service.printed.endswith(
        "fewer: gateway ended with status 1 before it was ready; see above.\n"
    )
