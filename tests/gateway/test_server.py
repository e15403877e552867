"""The whole process: start, several workers, metrics of all of them, SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from engine.protocol.errors import SetupError
from gateway import garbage, server
from gateway.config import Config, ModelConfig, RouteConfig, ServerConfig
from gateway.reload import Live
from gateway.source import Source
from gateway.stores.keys import KeyStore
from tests.fakes.serving import CHAT_BODY, until

STREAMED = CHAT_BODY | {"stream": True}

PROGRAM = """
import sys
from functools import partial
from pathlib import Path
from gateway import garbage, server
from gateway.config import load
from gateway.source import Source

if __name__ == "__main__":
    bind, ports = server.bind, []

    def noting_bind(host, port):
        listener = bind(host, port)
        ports.append(listener.getsockname()[1])
        return listener

    server.bind = noting_bind
    path = Path(sys.argv[1])
    source = Source(path, partial(load, path, {}))
    server.run(
        source.load(), host="127.0.0.1", port=0, workers=int(sys.argv[2]), source=source,
        on_ready=lambda: print(ports[0], flush=True),
    )
"""


@contextmanager
def gateway_process(
    folder: Path, script: dict[str, Any], workers: int = 1, **settings: Any
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A gateway in a process of its own, over one scripted model, and its base URL."""
    (folder / "script.json").write_text(json.dumps(script))
    (folder / "fewer.yaml").write_text(
        json.dumps(
            {
                "server": settings,
                "store": "sqlite:keys.sqlite3",
                "models": {"one": {"scripted": "script.json"}},
                "routes": {"chat": {"model": "one"}},
            }
        )
    )
    (folder / "program.py").write_text(PROGRAM)
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with (folder / "log").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(folder / "program.py"), str(folder / "fewer.yaml"), str(workers)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environ,
        )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, (folder / "log").read_text()
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def test_sigterm_lets_running_streams_finish(tmp_path: Path) -> None:
    script = {"steps": [{"text": "a"}, {"delay_s": 0.4, "text": "b"}]}
    with gateway_process(tmp_path, script, drain_s=20) as (process, url):
        with httpx2.stream("POST", f"{url}/v1/chat/completions", json=STREAMED) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            process.send_signal(signal.SIGTERM)
            rest = "\n".join(lines)
        assert '"content":"b"' in rest
        assert rest.rstrip().endswith("data: [DONE]")
        assert process.wait(10) == 0
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{url}/health/live")
        assert "Traceback" not in (tmp_path / "log").read_text()


def test_what_outlasts_the_drain_fails_in_band(tmp_path: Path) -> None:
    script = {"steps": [{"text": "a"}, {"hang": True}]}
    with gateway_process(tmp_path, script, drain_s=0.3) as (process, url):
        with httpx2.stream("POST", f"{url}/v1/chat/completions", json=STREAMED) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            process.send_signal(signal.SIGTERM)
            rest = "\n".join(lines)
        assert "shutting down" in rest
        assert 'finish_reason":"stop' not in rest
        assert process.wait(10) == 0


def test_workers_share_the_port_and_add_up_their_metrics(tmp_path: Path) -> None:
    with gateway_process(tmp_path, {"steps": [{"text": "a"}]}, workers=2) as (process, url):
        for _ in range(12):
            # A new connection each, so that both workers get some.
            response = httpx2.post(f"{url}/v1/chat/completions", json=CHAT_BODY)
            assert response.status_code == 200
        counts = {_count(httpx2.get(f"{url}/metrics").text) for _ in range(6)}
        assert counts == {12.0}
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def _count(metrics: str) -> float:
    line = 'fewer_requests_total{route="chat",status="200"} '
    return next(float(each.removeprefix(line)) for each in metrics.splitlines() if line in each)


def rewrite(folder: Path, **route: Any) -> None:
    """The file again, with more about its route."""
    path = folder / "fewer.yaml"
    config = json.loads(path.read_text())
    config["routes"]["chat"] = {"model": "one"} | route
    path.write_text(json.dumps(config, indent=1))


def decisions(url: str, times: int = 6) -> set[str]:
    """What a few requests, each on a connection of its own, are told of policies."""
    answers = [httpx2.post(f"{url}/v1/chat/completions", json=CHAT_BODY) for _ in range(times)]
    return {answer.headers["x-fewer-decisions"] for answer in answers}


def until_filled(url: str, max_tokens: int) -> None:
    """Returns once every worker fills in so many."""
    reason = f"max_tokens filled: {max_tokens}"
    while not all(reason in told for told in decisions(url)):
        pass


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Multiprocessing's resource tracker is a child, too."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [
        int(child)
        for child in children
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def said(folder: Path, what: str) -> list[str]:
    """Lines of the log with this, once there is one."""
    log = folder / "log"
    while not (found := [line for line in log.read_text().splitlines() if what in line]):
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_an_edited_file_holds_in_every_worker(tmp_path: Path, workers: int) -> None:
    with gateway_process(tmp_path, {"steps": [{"text": "a"}]}, workers) as (process, url):
        assert not any("budget" in each for each in decisions(url))
        rewrite(tmp_path, budget={"max_tokens": 7})
        until_filled(url, 7)
        rewrite(tmp_path, buget={"max_tokens": 8})
        process.send_signal(signal.SIGHUP)
        said(tmp_path, "routes.chat.buget")
        until_filled(url, 7)
        rewrite(tmp_path, budget={"max_tokens": 9})
        process.send_signal(signal.SIGHUP)
        until_filled(url, 9)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    (line,) = said(tmp_path, "buget")
    assert re.search(r"fewer\.yaml:\d+:routes\.chat\.buget: unknown key\. Did you mean", line)
    assert len(said(tmp_path, "was read again")) == 2
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_worker_that_starts_later_has_the_latest(tmp_path: Path) -> None:
    with gateway_process(tmp_path, {"steps": [{"text": "a"}]}, 2) as (process, url):
        rewrite(tmp_path, budget={"max_tokens": 7})
        until_filled(url, 7)
        first = workers_of(process)
        os.kill(first[0], signal.SIGKILL)
        while {*workers_of(process)} <= {*first}:
            time.sleep(0.01)
        until_filled(url, 7)
        assert len(said(tmp_path, "was read again")) == 1


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=f"127.0.0.1:{port}.*--port"):
            server.bind("127.0.0.1", port)


def test_a_name_that_is_no_address_is_named() -> None:
    with pytest.raises(SetupError, match=r"Cannot listen on nowhere\.invalid"):
        server.bind("nowhere.invalid", 0)


def config_in(folder: Path, host: str) -> Config:
    return Config(
        server=ServerConfig(host=host),
        store=folder / "keys.sqlite3",
        models={"one": ModelConfig(openai="http://127.0.0.1:1/v1")},
        routes={"chat": RouteConfig("one")},
    )


def live_of(config: Config) -> Live:
    return Live(config, Source(Path("fewer.yaml"), lambda: config))


def test_without_keys_only_loopback_is_served(tmp_path: Path) -> None:
    server.check_access(config_in(tmp_path, "127.0.0.1"))
    with pytest.raises(SetupError, match="fewer keys create"):
        server.check_access(config_in(tmp_path, "0.0.0.0"))
    KeyStore(tmp_path / "keys.sqlite3").create("acme")
    server.check_access(config_in(tmp_path, "0.0.0.0"))


def test_the_token_is_in_no_repr(tmp_path: Path) -> None:
    config = config_in(tmp_path, "127.0.0.1")
    application = server.Application(live_of(config), 1, "token-of-the-engine")
    assert "token-of-the-engine" not in repr(application) + repr(application.config)


async def test_the_collector_runs_when_idle_and_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(garbage, "WORTHWHILE_OBJECTS", 100)
    collected = asyncio.Event()
    gc.callbacks.append(lambda phase, info: collected.set())
    idle = False
    asked = 0

    def is_idle() -> bool:
        nonlocal asked
        asked += 1
        return idle

    try:
        async with garbage.collecting_when_idle(is_idle):
            assert not gc.isenabled()
            assert gc.get_freeze_count() > 0
            collected.clear()
            rubbish: list[Any] = [[[]] for _ in range(1000)]
            await until(lambda: asked >= 2)
            assert not collected.is_set()
            idle = True
            await collected.wait()
            assert len(rubbish) == 1000
    finally:
        gc.callbacks.pop()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


async def test_the_application_is_made_of_the_configuration(tmp_path: Path) -> None:
    """Backends from their entries, keys from the store."""
    (tmp_path / "script.json").write_text('{"steps": []}')
    config = Config(
        store=tmp_path / "keys.sqlite3",
        models={"one": ModelConfig(scripted=tmp_path / "script.json")},
        routes={"chat": RouteConfig("one")},
    )
    application = server.Application(live_of(config), 0, "")()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/v1/models"}
    scope |= {"raw_path": b"/v1/models", "headers": [(b"host", b"localhost")]}
    await application(scope, receive, send)
    assert sent[0]["status"] == 200
    assert json.loads(sent[1]["body"])["data"][0]["id"] == "chat"
    assert (tmp_path / "keys.sqlite3").exists()
