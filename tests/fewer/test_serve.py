"""`fewer serve` as a process, over a scripted model: no engine, so it starts at once."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.fakes.service import Service, serving
from tests.fewer.children import wait_gone

CONFIG = """
store: sqlite:keys.sqlite3
models: {played: {scripted: script.json}}
routes: {chat: {model: played}}
"""
SCRIPT = {"steps": [{"text": "Tok"}, {"text": "yo"}]}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "script.json").write_text(json.dumps(SCRIPT))
    path = tmp_path / "fewer.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def service(config: Path) -> Iterator[Service]:
    with serving(config, "--port", "0") as started:
        yield started


def post(url: str, **fields: Any) -> Request:
    body = {"messages": [{"role": "user", "content": "Capital of Japan?"}], **fields}
    headers = {"content-type": "application/json"}
    return Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)


def answer(url: str) -> str:
    with urlopen(post(url), timeout=30) as response:
        content: str = json.load(response)["choices"][0]["message"]["content"]
        return content


@contextmanager
def stream(url: str) -> Iterator[HTTPResponse]:
    with urlopen(post(url, stream=True), timeout=30) as response:
        yield response


def read_until(response: HTTPResponse, wanted: bytes) -> bytes:
    """Everything up to the line that has `wanted`."""
    seen = b""
    while wanted not in seen:
        line = response.readline()
        assert line, f"The stream ended before {wanted!r}: {seen!r}"
        seen += line
    return seen


def test_it_serves_until_it_is_told_to_stop(service: Service) -> None:
    assert answer(service.url()) == "Tokyo"
    service.process.send_signal(signal.SIGTERM)
    assert service.end() == 0
    assert "fewer   | stopping; running answers may take 30 s" in service.printed
    assert service.printed.endswith("fewer   | stopped\n")


def test_ctrl_c_ends_it_as_well(service: Service) -> None:
    service.until("Fewer is ready")
    service.process.send_signal(signal.SIGINT)
    assert service.end() == 0


def test_it_can_be_told_to_stop_while_it_starts(service: Service) -> None:
    service.until("starting the gateway")
    service.process.send_signal(signal.SIGTERM)
    assert service.end() == 0
    assert service.printed.endswith("fewer   | stopped\n")


def test_a_second_ctrl_c_does_not_wait_for_running_answers(config: Path) -> None:
    slow = {"steps": [{"text": "Tok"}, {"text": "yo", "delay_s": 60}]}
    config.with_name("script.json").write_text(json.dumps(slow))
    with serving(config, "--port", "0") as service:
        with stream(service.url()) as response:
            assert b"Tok" in read_until(response, b"Tok")
            service.process.send_signal(signal.SIGINT)
            service.until("stopping; running answers")
            service.process.send_signal(signal.SIGINT)
            assert service.end() == 0


def test_a_running_answer_is_finished_before_the_end(config: Path) -> None:
    slow = {"steps": [{"text": "Tok"}, {"text": "yo", "delay_s": 0.7}]}
    config.with_name("script.json").write_text(json.dumps(slow))
    with serving(config, "--port", "0") as service:
        with stream(service.url()) as response:
            read_until(response, b"Tok")
            service.process.send_signal(signal.SIGTERM)
            assert b"yo" in read_until(response, b"data: [DONE]")
            assert service.end() == 0


def test_an_edited_file_holds_without_a_restart(service: Service, config: Path) -> None:
    url = service.url()
    config.write_text(CONFIG.replace("played}}", "played, budget: {max_tokens: 1}}}"))
    service.until("fewer.yaml was read again")
    assert answer(url) == "Tok"
    config.write_text(CONFIG.replace("routes", "rutes"))
    os.kill(service.process.pid, signal.SIGHUP)
    service.until(r"fewer\.yaml:4:rutes: unknown key. Did you mean routes\?")
    assert answer(url) == "Tok"


def test_a_gateway_that_is_killed_comes_back(service: Service) -> None:
    url = service.url()
    os.kill(service.child("gateway"), signal.SIGKILL)
    service.until("gateway was ended by SIGKILL; starts again in 0.5 s")
    service.until("gateway is back")
    assert answer(url) == "Tokyo"


def test_children_do_not_outlive_it_however_it_ends(service: Service) -> None:
    service.until("Fewer is ready")
    gateway = service.child("gateway")
    service.process.kill()
    wait_gone(gateway)


def test_workers_end_with_it_too(config: Path) -> None:
    with serving(config, "--port", "0", "--workers", "2") as service:
        assert answer(service.url()) == "Tokyo"
        gateway = service.child("gateway")
        children = Path(f"/proc/{gateway}/task/{gateway}/children").read_text().split()
        assert len(children) >= 2
        service.process.kill()
        for pid in (gateway, *map(int, children)):
            wait_gone(pid)


def test_a_port_in_use_is_one_line(config: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with serving(config, "--port", str(port)) as service:
            assert service.end() == 1
    assert service.printed.startswith(f"fewer: Port {port} is in use by ")
    assert service.printed.count("\n") == 1


def test_the_network_is_refused_while_there_are_no_keys(config: Path) -> None:
    with serving(config, "--host", "0.0.0.0", "--port", "0") as service:
        assert service.end() == 1
    assert "gateway | fewer: Will not listen on 0.0.0.0: there are no keys" in service.printed
    assert service.printed.endswith(
        "fewer: gateway ended with status 1 before it was ready; see above.\n"
    )
