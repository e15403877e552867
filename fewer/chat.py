"""`fewer chat`: talk to a running gateway in the terminal, or through a pipe."""

from __future__ import annotations

import argparse
import os
import sys

from engine.protocol.errors import FewerError
from fewer.chat_client import Answer, ChatClient, Message
from fewer.terminal import DIM, painted, printable

DEFAULT_URL = "http://127.0.0.1:8080"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Ctrl-C stops an answer, Ctrl-D leaves. In a pipe: echo hello | fewer chat"
    parser.add_argument(
        "--url", default=DEFAULT_URL, help="the gateway's address (default: %(default)s)"
    )
    parser.add_argument(
        "--route",
        "--model",
        metavar="NAME",
        help="route or model to ask (default: the gateway's choice)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="0 gives the likeliest answer, every time (default: what the model recommends)",
    )
    parser.add_argument(
        "--key",
        default=os.environ.get("FEWER_API_KEY", ""),
        help="client key, where the gateway wants one (default: $FEWER_API_KEY)",
    )


def run(arguments: argparse.Namespace) -> int:
    parameters = {"model": arguments.route, "temperature": arguments.temperature}
    conversation = Conversation(ChatClient(arguments.url, arguments.key, parameters))
    if not sys.stdin.isatty():
        return _answer_pipe(conversation)
    print(painted(f"{arguments.url} · Ctrl-C stops an answer, Ctrl-D leaves.", DIM))
    return _converse(conversation)


class Conversation:
    """The turns so far. A turn that failed leaves no trace; one that was stopped, what it said."""

    def __init__(self, client: ChatClient) -> None:
        self.messages: list[Message] = []
        self._client = client

    def ask(self, text: str) -> Answer:
        """Print the answer as it streams. Ctrl-C stops it, and is then done with."""
        answer = Answer()
        asked: list[Message] = [*self.messages, {"role": "user", "content": text}]
        stream = self._client.stream(asked, answer)
        try:
            for piece in stream:
                print(printable(piece), end="", flush=True)
        except KeyboardInterrupt:
            stream.close()
            print(" [stopped]", flush=True)
        except FewerError:
            if answer.text:  # its line has not been ended
                print(flush=True)
            raise
        else:
            print(flush=True)
        if answer.text:
            self.messages = [*asked, {"role": "assistant", "content": answer.text}]
        return answer


def _answer_pipe(conversation: Conversation) -> int:
    text = sys.stdin.read().strip()
    if not text:
        print("fewer: nothing came through the pipe to ask.", file=sys.stderr)
        return 2
    answer = conversation.ask(text)
    print(answer, file=sys.stderr)
    return 0 if answer.finish_reason else 130


def _converse(conversation: Conversation) -> int:
    import readline  # noqa: F401  gives input() its line editing and history

    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:
            print("\n(Ctrl-D leaves)")
            continue
        if not text:
            continue
        try:
            answer = conversation.ask(text)
        except FewerError as error:
            print(f"fewer: {error.message}", file=sys.stderr)
        else:
            print(painted(str(answer), DIM), end="\n\n")
