"""Somebody who uses the chat page, by keyboard and mouse, and notes whatever goes wrong in it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Error, Locator, Request, expect

TIMEOUT_MS = 10_000


class Visitor:
    """hosts: scheme, host and port of everything that the page asked for"""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self._problems: list[str] = []
        self._forgiven = ["the server responded with a status of"]  # the browser's own note
        self.hosts: set[str] = set()
        context.set_default_timeout(TIMEOUT_MS)
        expect.set_options(timeout=TIMEOUT_MS)
        self.page = context.new_page()
        self.page.on("console", self._note_console)
        self.page.on("pageerror", self._note_error)
        self.page.on("request", self._note_request)

    def open(self) -> None:
        """Load the page and wait until it knows the routes, or that it cannot."""
        self.page.goto(self.url)
        expect(self.page.locator("#routes option")).not_to_have_count(0)

    @property
    def problems(self) -> list[str]:
        """Script errors and console errors and warnings, but for those that the test provoked."""
        return [
            problem
            for problem in self._problems
            if not any(words in problem for words in self._forgiven)
        ]

    def forgive(self, *words: str) -> None:
        """Problems with these words are what the test is about."""
        self._forgiven.extend(words)

    def leave(self) -> None:
        self.context.close()

    def ask(self, question: str) -> None:
        """Type a question and press Enter."""
        self.page.locator("#message").fill(question)
        self.page.keyboard.press("Enter")

    def turn(self, number: int = -1) -> Locator:
        turns = self.page.locator("article")
        return turns.last if number == -1 else turns.nth(number)

    def wait_for(self, status: str) -> Locator:
        """The last turn, once it is `waiting`, `streaming`, `done`, `stopped` or `failed`."""
        turn = self.turn()
        expect(turn).to_have_attribute("data-status", status)
        return turn

    def statistics(self, turn: Locator) -> dict[str, str]:
        """What stands under an answer: the name of each number and its text."""
        pairs = turn.locator("[data-statistic]")
        return {
            str(pair.get_attribute("data-statistic")): pair.locator("dd").inner_text()
            for pair in pairs.all()
        }

    def run(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._problems.append(f"{message.type}: {message.text} {message.location['url']}")

    def _note_error(self, error: Error) -> None:
        self._problems.append(f"script: {error}")

    def _note_request(self, request: Request) -> None:
        address = urlsplit(request.url)
        self.hosts.add(f"{address.scheme}://{address.netloc}")
