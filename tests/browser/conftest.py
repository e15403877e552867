"""A real Chromium, a gateway for it to talk to, and a visitor who may not see anything amiss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.visitor import Visitor
from tests.fakes.chat_gateway import ChatGateway, running


@pytest.fixture(scope="module")
def browser(chromium_path: str) -> Iterator[Browser]:
    # For a module and not for the session: Playwright keeps an event loop running meanwhile,
    # and asynchronous tests could have none of their own.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def running_gateway() -> Iterator[ChatGateway]:
    with running(ChatGateway()) as gateway:
        yield gateway


@pytest.fixture
def gateway(running_gateway: ChatGateway) -> ChatGateway:
    running_gateway.reset()
    return running_gateway


@pytest.fixture
def address(gateway: ChatGateway) -> str:
    """Where the page is. A module that tests another server overrides this."""
    return gateway.url


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Callable[..., Visitor]]:
    """`visit(locale="zh-CN", ...)` opens the page; options are those of a browser context.

    At the end every visitor's page must have been free of script errors, and must have asked
    no other host for anything.
    """
    visitors: list[Visitor] = []

    def open_page(**options: Any) -> Visitor:
        visitor = Visitor(browser.new_context(**{"locale": "en-US", **options}), address)
        visitors.append(visitor)
        visitor.open()
        return visitor

    yield open_page
    for visitor in visitors:
        visitor.leave()
    assert [problem for visitor in visitors for problem in visitor.problems] == []
    assert {host for visitor in visitors for host in visitor.hosts} <= {address}
