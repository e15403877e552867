from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.visitor import Visitor
from tests.fakes.chat_gateway import Answer, ChatGateway, ending, text

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]


def enter_key(visitor: Visitor, key: str) -> None:
    expect(visitor.page.locator("#key")).to_be_focused()
    visitor.page.keyboard.type(key)
    visitor.page.keyboard.press("Enter")


def test_a_gateway_with_keys_asks_for_one_and_then_works(
    gateway: ChatGateway, visit: Visit
) -> None:
    gateway.key = "fw-1-secret"
    gateway.answers.append(Answer([text("Yes."), ending()]))
    visitor = visit()
    expect(visitor.page.locator("#key-message")).to_be_hidden()  # no key yet is no mistake
    enter_key(visitor, "fw-1-wrong")
    expect(visitor.page.locator("#key-message")).to_have_text("No such key.")
    visitor.page.keyboard.press("ControlOrMeta+a")
    enter_key(visitor, " fw-1-secret ")
    expect(visitor.page.locator("#key-dialog")).to_be_hidden()
    expect(visitor.page.locator("#routes")).to_be_enabled()
    visitor.ask("?")
    visitor.wait_for("done")


def test_a_key_revoked_in_a_conversation_is_asked_for_and_the_question_asked_again(
    gateway: ChatGateway, visit: Visit
) -> None:
    gateway.answers.append(Answer([text("Yes."), ending()]))
    visitor = visit()
    gateway.key = "fw-2-new"
    visitor.ask("the question")
    turn = visitor.wait_for("failed")
    expect(turn.locator(".failure strong")).to_have_text("A valid API key is needed.")
    enter_key(visitor, "fw-2-new")
    visitor.wait_for("done")
    expect(visitor.page.locator("article")).to_have_count(1)
    assert [body["messages"][-1]["content"] for body in gateway.requests] == ["the question"]


def test_the_key_is_kept_for_the_session_only(gateway: ChatGateway, visit: Visit) -> None:
    gateway.key = "fw-3-secret"
    visitor = visit()
    enter_key(visitor, "fw-3-secret")
    expect(visitor.page.locator("#routes")).to_be_enabled()
    visitor.open()
    expect(visitor.page.locator("#routes")).to_be_enabled()
    assert visitor.run("JSON.stringify(localStorage)") == "{}"
    assert "fw-3" not in visitor.run("location.href + document.cookie")
    second = visitor.context.new_page()
    second.goto(gateway.url)
    expect(second.locator("#key-dialog")).to_be_visible()


def test_the_question_can_wait(gateway: ChatGateway, visit: Visit) -> None:
    gateway.key = "fw-4-secret"
    visitor = visit()
    visitor.page.locator("[data-cancel]").click()
    expect(visitor.page.locator("#start-failure")).to_contain_text("A valid API key is needed.")
    visitor.page.locator("#open-settings").click()
    visitor.page.locator("#change-key").click()
    enter_key(visitor, "fw-4-secret")
    expect(visitor.page.locator("#start-failure")).to_be_hidden()
