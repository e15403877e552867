from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.protocol.errors import FewerError, ModelNotFound, SetupError, Unavailable
from fewer.chat import Conversation
from fewer.chat_client import Answer, ChatClient
from fewer.main import main
from fewer.terminal import painted, printable

REPOSITORY = Path(__file__).parents[2]


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [], **fields}).encode() + b"\n\n"


def delta(text: str | None = None, finish: str | None = None) -> bytes:
    content = {} if text is None else {"content": text}
    return event(choices=[{"index": 0, "delta": content, "finish_reason": finish}])


USAGE = event(
    usage={
        "prompt_tokens": 36,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
)
DONE = b"data: [DONE]\n\n"
TOKYO = [
    delta(""),
    delta("To"),
    b": keep-alive\n\n",
    delta("kyo"),
    delta(finish="stop"),
    USAGE,
    DONE,
]


class Gateway(ThreadingHTTPServer):
    """Answers each request with the next script; a None in it waits until the client is gone."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.status = 200
        self.script: list[bytes | None] = list(TOKYO)
        self.bodies: list[dict[str, Any]] = []
        self.authorizations: list[str | None] = []
        self.left = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        self.server.bodies.append(json.loads(self.rfile.read(length)))
        self.server.authorizations.append(self.headers["authorization"])
        self.send_response(self.server.status)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for part in self.server.script:
            if part is None:
                self.rfile.read(1)
                self.server.left.set()
                return
            self.wfile.write(part)
            self.wfile.flush()

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


def ask(gateway: Gateway, **options: Any) -> tuple[list[str], Answer]:
    answer = Answer()
    stream = ChatClient(gateway.url, **options).stream([{"role": "user", "content": "?"}], answer)
    return list(stream), answer


def test_an_answer_streams_and_is_measured(gateway: Gateway) -> None:
    pieces, answer = ask(gateway)
    assert pieces == ["To", "kyo"]
    assert answer.text == "Tokyo"
    assert (answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens) == (36, 16, 3)
    assert answer.finish_reason == "stop"
    assert 0 < answer.first_token_s <= answer.last_token_s


def test_what_is_sent(gateway: Gateway) -> None:
    ask(gateway, key="fw-1-2", parameters={"model": "chat", "temperature": 0.0})
    assert gateway.bodies == [
        {
            "model": "chat",
            "temperature": 0.0,
            "messages": [{"role": "user", "content": "?"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]
    assert gateway.authorizations == ["Bearer fw-1-2"]


def test_without_a_route_the_gateway_chooses(gateway: Gateway) -> None:
    ask(gateway)
    assert "model" not in gateway.bodies[0]
    assert gateway.authorizations == [None]


def test_a_refusal_is_the_gateways_error(gateway: Gateway) -> None:
    gateway.status = 404
    wire = {"message": "There is no route 'x'.", "type": "t", "param": None}
    gateway.script = [json.dumps({"error": {**wire, "code": "model_not_found"}}).encode()]
    with pytest.raises(ModelNotFound, match="no route 'x'"):
        ask(gateway)


def test_a_missing_key_says_where_to_put_it(gateway: Gateway) -> None:
    gateway.status = 401
    wire = {"message": "An API key is missing.", "type": "authentication_error", "param": None}
    gateway.script = [json.dumps({"error": {**wire, "code": "missing_api_key"}}).encode()]
    with pytest.raises(FewerError, match=r"missing\. Here: --key KEY, or FEWER_API_KEY\."):
        ask(gateway)


@pytest.mark.parametrize("option", ["--route", "--model"])
def test_a_route_is_asked_by_either_name(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("?"))
    assert main(["chat", "--url", gateway.url, option, "large"]) == 0
    assert gateway.bodies[0]["model"] == "large"


def test_an_answer_that_is_not_ours_is_told(gateway: Gateway) -> None:
    gateway.status, gateway.script = 502, [b"<html>bad gateway</html>"]
    with pytest.raises(Unavailable, match="answered 502"):
        ask(gateway)


def test_an_error_in_mid_stream_ends_the_answer(gateway: Gateway) -> None:
    error = {"message": "The engine went away.", "type": "t", "param": None, "code": "unavailable"}
    gateway.script = [
        delta("To"),
        b"data: " + json.dumps({"error": error}).encode() + b"\n\n",
        DONE,
    ]
    with pytest.raises(Unavailable, match="The engine went away"):
        ask(gateway)


def test_a_stream_that_breaks_off_is_no_answer(gateway: Gateway) -> None:
    gateway.script = [delta("To")]
    with pytest.raises(Unavailable, match="broke off"):
        ask(gateway)


def test_closing_the_stream_closes_the_connection(gateway: Gateway) -> None:
    gateway.script = [delta("To"), None]
    stream = ChatClient(gateway.url).stream([], Answer())
    assert next(stream) == "To"
    stream.close()
    assert gateway.left.wait(timeout=20)


def test_no_gateway_is_one_line_that_helps() -> None:
    client = ChatClient("http://127.0.0.1:1")
    with pytest.raises(Unavailable, match=r"No gateway answers .*Start one with `fewer serve`"):
        list(client.stream([], Answer()))


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://x", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SetupError, match="--url must be like"):
        ChatClient(url)


def test_the_v1_of_other_clients_is_understood() -> None:
    assert ChatClient("http://127.0.0.1:8080/v1/").url == "http://127.0.0.1:8080"


def test_a_conversation_remembers_turns_and_forgets_failed_ones(
    gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = Conversation(ChatClient(gateway.url))
    conversation.ask("Japan?")
    gateway.script = [delta("?!")]
    with pytest.raises(Unavailable):
        conversation.ask("lost")
    gateway.script = list(TOKYO)
    conversation.ask("Sure?")
    assert [message["content"] for message in gateway.bodies[-1]["messages"]] == [
        "Japan?",
        "Tokyo",
        "Sure?",
    ]
    assert capsys.readouterr().out == "Tokyo\n?!\nTokyo\n"


def test_through_a_pipe_only_the_answer_is_on_standard_output(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Capital of Japan?\n"))
    assert main(["chat", "--url", gateway.url]) == 0
    shown = capsys.readouterr()
    assert shown.out == "Tokyo\n"
    assert "36 in (16 cached) · 3 out" in shown.err
    assert gateway.bodies[0]["messages"] == [{"role": "user", "content": "Capital of Japan?"}]


def test_an_empty_pipe_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(" \n"))
    assert main(["chat"]) == 2


def test_ctrl_c_in_a_pipe_stops_and_says_so(gateway: Gateway) -> None:
    gateway.script = [delta("To"), None]
    with subprocess.Popen(
        [sys.executable, "-m", "fewer", "chat", "--url", gateway.url],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPOSITORY,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"hi")
        process.stdin.close()
        assert process.stdout.read(2) == b"To"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
        assert process.stdout.read() == b" [stopped]\n"
    assert gateway.left.wait(timeout=20)


def test_in_a_terminal_ctrl_c_stops_and_ctrl_d_leaves(gateway: Gateway) -> None:
    gateway.script = [delta("To"), None]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fewer", "chat", "--url", gateway.url],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=REPOSITORY, start_new_session=True,
        env={**os.environ, "TERM": "dumb"},
    )  # fmt: skip
    os.close(theirs)
    with process, os.fdopen(ours, "r+b", buffering=0) as terminal:
        _read_until(terminal, b"> ")
        terminal.write(b"hello\n")
        _read_until(terminal, b"To")
        process.send_signal(signal.SIGINT)
        _read_until(terminal, b"[stopped]")
        _read_until(terminal, b"> ")
        terminal.write(b"\x04")
        assert process.wait(timeout=20) == 0


def test_ctrl_c_at_the_prompt_says_how_to_leave(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed: Iterator[str | type[BaseException]] = iter([KeyboardInterrupt, "", "Japan?", EOFError])

    def type_next(prompt: str) -> str:
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", type_next)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    assert main(["chat", "--url", gateway.url]) == 0
    greeting, hint, answer, summary, *_ = filter(None, capsys.readouterr().out.splitlines())
    assert greeting == f"{gateway.url} · Ctrl-C stops an answer, Ctrl-D leaves."
    assert (hint, answer) == ("(Ctrl-D leaves)", "Tokyo")
    assert summary.startswith("first token ")


def test_a_refusal_does_not_end_the_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter(["hello?"])

    def type_next(prompt: str) -> str:
        for line in typed:
            return line
        raise EOFError

    monkeypatch.setattr("builtins.input", type_next)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    assert main(["chat", "--url", "http://127.0.0.1:1"]) == 0
    shown = capsys.readouterr()
    assert "No gateway answers" in shown.err
    assert shown.out.count("\n") == 2  # the greeting, and the end of the last prompt's line


def _read_until(terminal: io.FileIO, wanted: bytes) -> None:
    seen = b""
    while wanted not in seen:
        seen += terminal.read(1) or b""


def test_the_summary_leaves_out_what_is_not_known() -> None:
    assert str(Answer(first_token_s=0.25)) == "first token 0.25 s"
    stopped = Answer("ab", first_token_s=0.5, last_token_s=1.5)
    assert str(stopped) == "first token 0.50 s"
    cut = Answer("ab", 0.5, 1.5, 10, 0, 11, "length")
    assert str(cut) == "first token 0.50 s · 10.0 tokens/s · 10 in · 11 out · cut at the limit"


def test_a_models_words_cannot_steer_the_terminal() -> None:
    assert printable("\x1b[2J\x9b31mred\x07\r\n\tok é 東京") == "[2J31mred\n\tok é 東京"


def test_what_is_not_a_terminal_gets_no_colour() -> None:
    assert painted("plain", "31") == "plain"
