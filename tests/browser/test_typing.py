from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.visitor import Visitor
from tests.fakes.chat_gateway import Answer, ChatGateway, ending, text

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]


@pytest.fixture
def visitor(gateway: ChatGateway, visit: Visit) -> Visitor:
    gateway.answers.extend(Answer([text("Yes."), ending()]) for _ in range(3))
    return visit()


def test_enter_sends_and_shift_enter_breaks_the_line(
    gateway: ChatGateway, visitor: Visitor
) -> None:
    page = visitor.page
    expect(page.locator("#message")).to_be_focused()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    assert gateway.requests == []
    page.keyboard.press("Enter")
    visitor.wait_for("done")
    assert gateway.requests[0]["messages"][-1]["content"] == "one\ntwo"
    expect(page.locator("#message")).to_have_value("")


def test_nothing_but_spaces_is_not_sent(gateway: ChatGateway, visitor: Visitor) -> None:
    visitor.ask(" \n ")
    visitor.ask("real")
    visitor.wait_for("done")
    assert len(gateway.requests) == 1


def test_enter_inside_an_input_methods_composition_never_sends(
    gateway: ChatGateway, visitor: Visitor
) -> None:
    page = visitor.page
    devtools = visitor.context.new_cdp_session(page)
    composition = {"text": "ri ben", "selectionStart": 6, "selectionEnd": 6}
    devtools.send("Input.imeSetComposition", composition)
    enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 229}
    devtools.send("Input.dispatchKeyEvent", {"type": "rawKeyDown", **enter})
    devtools.send("Input.dispatchKeyEvent", {"type": "keyUp", **enter})
    expect(page.locator("#message")).to_have_value("ri ben")
    devtools.send("Input.insertText", {"text": "日本"})
    expect(page.locator("#message")).to_have_value("日本")
    assert gateway.requests == []
    page.keyboard.press("Enter")
    visitor.wait_for("done")
    assert gateway.requests[0]["messages"][-1]["content"] == "日本"


# How browsers report the Enter that accepts a candidate, as events on the field.
ACCEPTING_ENTER = {
    "Chrome and Firefox: the key belongs to the composition": """
        start(); key({isComposing: true, keyCode: 229}); end();""",
    "old Chrome on Windows: only the key code tells": """
        start(); key({isComposing: false, keyCode: 229}); end();""",
    "Safari: the composition ends first, the key code tells": """
        start(); end(); key({isComposing: false, keyCode: 229});""",
    "Safari with some input methods: nothing tells but the order": """
        start(); end(); key({isComposing: false, keyCode: 13});""",
    "isComposing without a key code": """
        key({isComposing: true, keyCode: 13});""",
}


@pytest.mark.parametrize("browser_and_reason", ACCEPTING_ENTER)
def test_an_accepting_enter_never_sends_in_any_browsers_order(
    gateway: ChatGateway, visitor: Visitor, browser_and_reason: str
) -> None:
    visitor.page.locator("#message").fill("日本")
    visitor.run(
        """(steps) => {
            const field = document.getElementById("message");
            const fire = (event) => field.dispatchEvent(event);
            const start = () => fire(new CompositionEvent("compositionstart", {bubbles: true}));
            const end = () => fire(new CompositionEvent("compositionend", {bubbles: true}));
            const key = (init) => fire(new KeyboardEvent("keydown",
                {key: "Enter", code: "Enter", bubbles: true, cancelable: true, ...init}));
            STEPS
        }""".replace("STEPS", ACCEPTING_ENTER[browser_and_reason])
    )
    expect(visitor.page.locator("article")).to_have_count(0)
    visitor.page.keyboard.press("Enter")
    visitor.wait_for("done")
    assert [body["messages"][-1]["content"] for body in gateway.requests] == ["日本"]


def test_escape_while_composing_does_not_stop_the_answer(
    gateway: ChatGateway, visit: Visit
) -> None:
    more = threading.Event()
    gateway.answers.append(Answer([text("a"), more, text("b"), ending()]))
    visitor = visit()
    visitor.ask("?")
    visitor.wait_for("streaming")
    visitor.run(
        """document.getElementById("message").dispatchEvent(
            new KeyboardEvent("keydown", {key: "Escape", isComposing: true, bubbles: true}))"""
    )
    more.set()
    visitor.wait_for("done")


def test_a_held_enter_sends_once_and_typing_goes_on_while_it_streams(
    gateway: ChatGateway, visit: Visit
) -> None:
    more = threading.Event()
    gateway.answers.append(Answer([text("a"), more, ending()]))
    visitor = visit()
    visitor.page.keyboard.type("first")
    for _ in range(5):
        visitor.page.keyboard.down("Enter")
    visitor.page.keyboard.up("Enter")
    visitor.wait_for("streaming")
    visitor.page.keyboard.type("second")
    visitor.page.keyboard.press("Enter")
    expect(visitor.page.locator("#message")).to_have_value("second")
    more.set()
    visitor.wait_for("done")
    assert len(gateway.requests) == 1


def test_everything_can_be_reached_by_keyboard(gateway: ChatGateway, visitor: Visitor) -> None:
    page = visitor.page
    visitor.ask("?")
    visitor.wait_for("done")
    page.locator(".skip").focus()
    reached = []
    for _ in range(10):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "document.activeElement.id || document.activeElement.dataset.part "
                "|| document.activeElement.className"
            )
        )
    assert reached == [
        "routes", "new-chat", "language", "theme", "open-settings",
        "conversation", "copy", "retry", "message", "send",
    ]  # fmt: skip


def test_a_whole_conversation_by_keyboard_alone(gateway: ChatGateway, visitor: Visitor) -> None:
    page = visitor.page
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#message")).to_be_focused()
    page.keyboard.type("hello")
    page.keyboard.press("Enter")
    visitor.wait_for("done")
    page.locator("[data-part=retry]").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#message")).to_be_focused()
    visitor.wait_for("done")
    page.locator("#open-settings").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#settings")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#settings")).to_be_hidden()
    expect(page.locator("#open-settings")).to_be_focused()
    page.locator("#new-chat").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#message")).to_be_focused()
    assert len(gateway.requests) == 2


def test_escape_closes_a_dialog_and_leaves_the_answer_alone(
    gateway: ChatGateway, visit: Visit
) -> None:
    more = threading.Event()
    gateway.answers.append(Answer([text("a"), more, ending()]))
    visitor = visit()
    visitor.ask("?")
    visitor.wait_for("streaming")
    visitor.page.locator("#open-settings").click()
    visitor.page.keyboard.press("Escape")
    expect(visitor.page.locator("#settings")).to_be_hidden()
    expect(visitor.turn()).to_have_attribute("data-status", "streaming")
    more.set()
    visitor.wait_for("done")


def test_screen_readers_hear_the_turns_of_events_and_not_each_token(
    gateway: ChatGateway, visit: Visit
) -> None:
    gateway.answers.append(Answer([*(text(f"word{i} ") for i in range(50)), ending()]))
    visitor = visit()
    visitor.run(
        """() => {
            window.heard = [];
            const status = document.getElementById("status");
            new MutationObserver(() => window.heard.push(status.textContent))
                .observe(status, {childList: true, characterData: true, subtree: true});
        }"""
    )
    visitor.ask("?")
    visitor.wait_for("done")
    assert visitor.run("window.heard") == ["Answering", "The answer is complete."]
    assert visitor.run("document.querySelectorAll('[aria-live], [role=log]').length") == 0


def test_every_control_has_a_name(gateway: ChatGateway, visitor: Visitor) -> None:
    visitor.ask("?")
    visitor.wait_for("done")
    nameless = visitor.run(
        """[...document.querySelectorAll("button, select, textarea, input, main")].filter((one) =>
            !one.getAttribute("aria-label") && !one.textContent.trim() && !one.labels?.length
        ).map((one) => one.outerHTML)"""
    )
    assert nameless == []
