from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.visitor import Visitor
from tests.fakes.chat_gateway import Answer, ChatGateway, Refusal, ending, text

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
PHONE = {
    "viewport": {"width": 375, "height": 667},
    "has_touch": True,
    "is_mobile": True,
    "device_scale_factor": 2,
}
WIDE = "word " * 40 + "x" * 300 + "\n\n```\n" + "y" * 400 + "\n```\n" + "东京" * 200


def background(visitor: Visitor) -> str:
    return str(visitor.run("getComputedStyle(document.body).backgroundColor"))


@pytest.mark.parametrize(
    ("locale", "language", "send"),
    [
        ("zh-CN", "zh-CN", "发送"),
        ("zh-TW", "zh-CN", "发送"),
        ("en-GB", "en", "Send"),
        ("fr", "en", "Send"),
    ],
)
def test_the_browsers_language_is_spoken(
    gateway: ChatGateway, visit: Visit, locale: str, language: str, send: str
) -> None:
    visitor = visit(locale=locale)
    expect(visitor.page.locator("html")).to_have_attribute("lang", language)
    expect(visitor.page.locator("#send")).to_have_attribute("aria-label", send)


def test_switching_the_language_changes_everything_and_is_remembered(
    gateway: ChatGateway, visit: Visit
) -> None:
    gateway.answers.append(Answer([text("Yes."), ending("length")]))
    gateway.answers.append(Refusal(503, "Starting.", "unavailable", {"retry-after": "4"}))
    visitor = visit()
    visitor.ask("?")
    visitor.wait_for("done")
    visitor.ask("?")
    visitor.wait_for("failed")
    visitor.page.locator("#language").click()
    first, second = visitor.turn(0), visitor.turn(1)
    expect(first.locator(".notice")).to_have_text("已达到 token 上限，回答到此为止。")
    expect(first.locator("[data-statistic=tokensOut]")).to_have_text("输出34")
    expect(first.locator(".decisions")).to_have_text("策略 · 没有策略改动本次请求")
    expect(second.locator(".failure")).to_contain_text("模型暂时无法回答。")
    expect(second.locator(".failure")).to_contain_text("请在 4 秒后重试。")
    expect(visitor.page.locator("#message")).to_have_attribute("placeholder", "输入消息")
    assert visitor.page.title() == "Fewer · 对话"
    visitor.open()
    expect(visitor.page.locator("html")).to_have_attribute("lang", "zh-CN")
    visitor.page.locator("#language").click()
    expect(visitor.page.locator("html")).to_have_attribute("lang", "en")


def test_both_languages_say_the_same_things(gateway: ChatGateway, visit: Visit) -> None:
    texts = visit().run("async () => (await import('/assets/texts.js')).TEXTS")
    assert texts["en"].keys() == texts["zh-CN"].keys()
    for key, english in texts["en"].items():
        chinese = texts["zh-CN"][key]
        placeholders = [part.split("}")[0] for part in english.split("{")[1:]]
        assert [part.split("}")[0] for part in chinese.split("{")[1:]] == placeholders
        assert english.strip()
        assert chinese.strip()


def test_every_text_that_the_markup_names_exists(gateway: ChatGateway, visit: Visit) -> None:
    missing = visit().run(
        """async () => {
            const { TEXTS } = await import("/assets/texts.js");
            const roots = [document, document.getElementById("turn").content];
            const kinds = ["text", "label", "title", "placeholder"];
            return roots.flatMap((root) => kinds.flatMap((kind) =>
                [...root.querySelectorAll(`[data-${kind}]`)].map((one) => one.dataset[kind])))
                .filter((key) => !(key in TEXTS.en));
        }"""
    )
    assert missing == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_one_is_chosen(
    gateway: ChatGateway, visit: Visit, scheme: str
) -> None:
    light, dark = "rgb(251, 250, 248)", "rgb(22, 22, 21)"
    system, other = (light, dark) if scheme == "light" else (dark, light)
    visitor = visit(color_scheme=scheme)
    assert background(visitor) == system
    visitor.page.locator("#theme").click()
    assert background(visitor) == other
    visitor.open()
    assert background(visitor) == other
    visitor.page.locator("#theme").click()
    assert background(visitor) == system
    visitor.page.emulate_media(color_scheme="dark" if scheme == "light" else "light")
    assert background(visitor) == other  # following again


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(gateway: ChatGateway, visit: Visit, scheme: str) -> None:
    """WCAG 2.2, success criterion 1.4.3: 4.5 to 1."""
    gateway.answers.append(Answer([text("Yes, `code`.\n```\ncode\n```\n"), ending("length")]))
    gateway.answers.append(Refusal(400, "No.", "no"))
    visitor = visit(color_scheme=scheme)
    for status in ("done", "failed"):
        visitor.ask("?")
        visitor.wait_for(status)
    visitor.page.mouse.move(0, 0)
    faint = visitor.run(
        """() => {
            const channels = (color) => color.match(/[\\d.]+/g).map(Number);
            const light = (color) => {
                const [r, g, b] = channels(color).map((c) => c / 255)
                    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const ground = (one) => {
                for (; one; one = one.parentElement) {
                    const color = getComputedStyle(one).backgroundColor;
                    if (channels(color)[3] !== 0) return color;
                }
            };
            return [...document.querySelectorAll("body *")].filter((one) =>
                one.checkVisibility()
                && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
                .map((one) => {
                    const [a, b] = [light(getComputedStyle(one).color), light(ground(one))];
                    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
                    return [ratio, one.className || one.id || one.tagName];
                }).filter(([ratio]) => ratio < 4.5);
        }"""
    )
    assert faint == []


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_a_phone_never_scrolls_sideways(gateway: ChatGateway, visit: Visit, locale: str) -> None:
    gateway.routes = ["a-route-with-a-rather-long-name-that-goes-on-and-on", "chat"]
    gateway.answers.append(Answer([text(WIDE), ending()], {"x-fewer-model": "m" * 200}))
    gateway.answers.append(Refusal(400, "z" * 300, "no"))
    visitor = visit(locale=locale, **PHONE)
    for status in ("done", "failed"):
        visitor.ask("w" * 200)
        visitor.wait_for(status)
        wide = visitor.run(
            """[...document.querySelectorAll("body *")].filter((one) => one.checkVisibility()
                && !one.closest("pre, option, .unseen, .symbols, .skip")
                && one.getBoundingClientRect().right > innerWidth + 0.5)
                .map((one) => one.outerHTML)"""
        )
        assert wide == []
        assert visitor.run("document.scrollingElement.scrollWidth") == 375
        assert visitor.run("document.getElementById('conversation').scrollWidth") <= 375
    for control in ("#routes", "#new-chat", "#language", "#theme", "#open-settings", "#send"):
        box = visitor.page.locator(control).bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) >= 32
    # Smaller than this, and iOS zooms into the field.
    assert visitor.run("getComputedStyle(document.getElementById('message')).fontSize") == "16px"


def test_the_end_stays_in_sight_unless_the_reader_scrolled_away(
    gateway: ChatGateway, visit: Visit
) -> None:
    line = "A line of text that takes its place.\n\n"
    more, rest = threading.Event(), threading.Event()
    gateway.answers.append(
        Answer([text(line * 60), more, text(line * 20 + "middle"), rest, text(line * 20), ending()])
    )
    visitor = visit(viewport={"width": 800, "height": 600})
    distance = """() => {
        const one = document.getElementById("conversation");
        return Math.round(one.scrollHeight - one.scrollTop - one.clientHeight);
    }"""
    visitor.ask("?")
    visitor.wait_for("streaming")
    expect(visitor.turn().locator(".answer p")).to_have_count(60)
    assert visitor.run(distance) <= 1
    visitor.page.mouse.move(400, 300)
    visitor.page.mouse.wheel(0, -900)
    expect(visitor.page.locator("#to-end")).to_be_hidden()
    visitor.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    before = visitor.run("document.getElementById('conversation').scrollTop")
    more.set()
    expect(visitor.turn().locator(".answer")).to_contain_text("middle")
    expect(visitor.page.locator("#to-end")).to_be_visible()
    assert visitor.run("document.getElementById('conversation').scrollTop") == before
    visitor.page.locator("#to-end").click()
    assert visitor.run(distance) <= 1
    rest.set()
    visitor.wait_for("done")
    assert visitor.run(distance) <= 1
    expect(visitor.page.locator("#to-end")).to_be_hidden()


def test_a_long_answer_is_appended_and_nothing_earlier_is_touched(
    gateway: ChatGateway, visit: Visit
) -> None:
    words = [text(f"word{i} " + ("\n\n" if i % 50 == 49 else "")) for i in range(5000)]
    gateway.answers.append(Answer([text("first"), ending()]))
    gateway.answers.append(
        Answer([b"".join(words[i : i + 20]) for i in range(0, 5000, 20)] + [ending()])
    )
    visitor = visit()
    visitor.ask("?")
    visitor.wait_for("done")
    visitor.run(
        """() => {
            window.changed = {earlier: 0, added: 0, removed: 0};
            const first = document.querySelector("article");
            new MutationObserver((records) => {
                for (const {target, addedNodes, removedNodes} of records) {
                    if (first.contains(target)) window.changed.earlier += 1;
                    window.changed.added += addedNodes.length;
                    window.changed.removed += removedNodes.length;
                }
            }).observe(document.getElementById("conversation"),
                {childList: true, characterData: true, subtree: true});
        }"""
    )
    visitor.ask("Go on.")
    expect(visitor.page.locator("article")).to_have_count(2)
    turn = visitor.wait_for("done")
    expect(turn.locator(".answer p")).to_have_count(100)
    changed = visitor.run("window.changed")
    assert changed["earlier"] == 0
    # Each of the hundred paragraphs is built once, and its text exchanged once when it is done.
    assert changed["added"] < 100 * 4 + 100
    assert changed["removed"] < 100 * 2 + 100


def test_lists_have_bullets_and_code_keeps_its_signs(gateway: ChatGateway, visit: Visit) -> None:
    said = "Two:\n* **one** * 1\n  - two\n+ three\n*not one*\n-1\n\n```\n- four\n```\n"
    gateway.answers.append(Answer([text(said), ending()]))
    visitor = visit()
    visitor.ask("?")
    answer = visitor.wait_for("done").locator(".answer")
    assert answer.locator("p").inner_text() == ("Two:\n• one * 1\n  • two\n• three\n*not one*\n-1")
    expect(answer.locator("p strong")).to_have_text("one")
    expect(answer.locator("code")).to_have_text("- four\n")


def test_the_narrowest_phone_shows_the_routes_name(gateway: ChatGateway, visit: Visit) -> None:
    visitor = visit(viewport={"width": 320, "height": 568})
    cut = "(one => one.scrollWidth > one.clientWidth)(document.getElementById('routes'))"
    assert visitor.run(cut) is False
    box = visitor.page.locator("#routes").bounding_box()
    assert box is not None
    assert box["width"] >= 72  # "chat" and its arrow


def test_copy_takes_the_answer_as_it_was_written(gateway: ChatGateway, visit: Visit) -> None:
    said = "One **two**.\n\n- four\n\n```py\nthree()\n```\n"
    gateway.answers.append(Answer([text(said), ending()]))
    visitor = visit(permissions=["clipboard-read", "clipboard-write"])
    visitor.ask("?")
    turn = visitor.wait_for("done")
    turn.locator("[data-part=copy]").click()
    expect(turn.locator("[data-part=copy]")).to_have_text("Copied")
    assert visitor.run("navigator.clipboard.readText()") == said
    turn.locator("figcaption button").click()
    expect(turn.locator("figcaption button")).to_have_text("Copied")
    assert visitor.run("navigator.clipboard.readText()") == "three()\n"


def test_a_browser_that_forbids_storage_is_served_all_the_same(
    gateway: ChatGateway, visit: Visit
) -> None:
    gateway.answers.append(Answer([text("Yes."), ending()]))
    visitor = visit()
    visitor.page.add_init_script(
        """for (const name of ["localStorage", "sessionStorage"]) {
            Object.defineProperty(window, name, {get() { throw new DOMException("no"); }});
        }"""
    )
    visitor.open()
    visitor.page.locator("#language").click()
    visitor.ask("?")
    visitor.wait_for("done")
    expect(visitor.page.locator("html")).to_have_attribute("lang", "zh-CN")
