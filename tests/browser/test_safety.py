from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Error, expect

from tests.browser.visitor import Visitor
from tests.fakes.chat_gateway import Answer, ChatGateway, Refusal, chunk, ending, text

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]

ATTACKS = [
    "<img src=x onerror='window.pwned=1'>",
    "</script><script>window.pwned=1</script>",
    "<svg/onload=window.pwned=1>",
    "<style>*{display:none}</style><iframe srcdoc='<script>parent.pwned=1</script>'></iframe>",
    "[click](javascript:window.pwned=1) ![](http://evil.invalid/x.png)",
    "```html\n<script>window.pwned=1</script>\n```\n<b onclick=pwned()>b</b>",
    "**<img src=x onerror=window.pwned=1>** and `<script>window.pwned=1</script>`",
    "### <img src=x onerror=window.pwned=1>",
    "`````" * 2000 + "**" * 2000,
    "\u202e\u2066 right to left \u0000 and nothing",
    "{{constructor.constructor('window.pwned=1')()}} ${window.pwned=1} {id} {value}",
]
FOREIGN = "img, script, iframe, style, object, embed, a, b, link, base, form, svg:not(button svg)"


def expect_unharmed(visitor: Visitor) -> None:
    assert visitor.run("window.pwned") is None
    assert visitor.page.locator(f"#conversation :is({FOREIGN})").count() == 0


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_a_model_writes_is_shown_and_never_obeyed(
    gateway: ChatGateway, visit: Visit, attack: str
) -> None:
    pieces = [text(attack[i : i + 3]) for i in range(0, min(len(attack), 600), 3)]
    gateway.answers.append(
        Answer([chunk({"reasoning_content": attack}), *pieces, text(attack[600:]), ending()])
    )
    visitor = visit()
    visitor.ask(attack.replace("\u0000", ""))
    turn = visitor.wait_for("done")
    expect_unharmed(visitor)
    shown = turn.locator(".answer").evaluate("element => element.textContent")
    for word in ("onerror", "<script>", "srcdoc", "javascript:"):
        assert (word in attack) == (word in shown)


@pytest.mark.parametrize("attack", ATTACKS[:4])
def test_names_headers_and_errors_are_shown_and_never_obeyed(
    gateway: ChatGateway, visit: Visit, attack: str
) -> None:
    gateway.routes = [attack, "chat"]
    decision = {"policy": attack, "mode": attack, "action": attack, "reason": attack}
    headers = {
        "x-fewer-decisions": json.dumps([decision, attack, None, 7]),
        "x-fewer-model": attack,
        "x-request-id": attack,
    }
    failed = (
        b"data: " + json.dumps({"error": {"message": attack, "code": attack}}).encode() + b"\n\n"
    )
    gateway.answers.append(Answer([text("Yes."), ending()], headers))
    gateway.answers.append(Answer([text("Yes."), failed], headers))
    gateway.answers.append(Refusal(400, attack, attack, {"x-request-id": attack}))
    visitor = visit()
    for status in ("done", "failed", "failed"):
        visitor.page.locator("#message").fill("?")
        visitor.page.keyboard.press("Enter")
        visitor.wait_for(status)
    expect_unharmed(visitor)
    expect(visitor.page.locator(".decisions .policy").first).to_have_text(attack)
    expect(visitor.turn().locator(".failure .detail")).to_have_text(attack)
    expect(visitor.page.locator("#routes option").first).to_have_text(attack)
    assert gateway.requests[0]["model"] == attack


def test_the_page_itself_cannot_turn_text_into_markup(gateway: ChatGateway, visit: Visit) -> None:
    visitor = visit()
    with pytest.raises(Error, match="TrustedHTML"):
        visitor.run("document.body.innerHTML = '<b>text</b>'")
    with pytest.raises(Error, match="unsafe-eval"):
        visitor.run(
            """new Promise((done, fail) => setTimeout(() => {
                try { done(window.eval("1 + 1")); } catch (error) { fail(error); }
            }))"""
        )
    visitor.forgive("requires 'Trusted", "violates the following Content Security Policy")


def test_scripts_and_addresses_from_elsewhere_are_refused(
    gateway: ChatGateway, visit: Visit
) -> None:
    visitor = visit()
    refused = visitor.run(
        """async () => {
            const refused = [];
            document.addEventListener("securitypolicyviolation",
                (event) => refused.push(event.effectiveDirective));
            const image = document.createElement("img");
            image.src = "http://evil.invalid/x.png";
            const inline = document.createElement("p");
            inline.setAttribute("style", "color: red");
            document.body.append(image, inline);
            await fetch("http://evil.invalid/").catch(() => null);
            await new Promise((resolve) => setTimeout(resolve));
            image.remove();
            inline.remove();
            return refused.sort();
        }"""
    )
    assert refused == ["connect-src", "img-src", "style-src-attr"]
    visitor.forgive("violates the following Content Security Policy", "evil.invalid")
    visitor.hosts.discard("http://evil.invalid")


def test_prose_is_built_of_paragraphs_headings_and_code(gateway: ChatGateway, visit: Visit) -> None:
    said = (
        "One **bold** word and `code`.\nSame paragraph.\n\n"
        "## A heading\n"
        "After it.\n"
        "```python title\n"
        "def f():\n\n"
        "    return '''```'''  # ``` inside\n"
        "  ~~~\n"
        "```\n"
        "~~~~\nfour\n~~~\n~~~~\n"
        "Last **unfinished and `so is this\n"
        "```\nnever closed"
    )
    gateway.answers.append(Answer([*(text(letter) for letter in said), ending()]))
    visitor = visit()
    visitor.ask("?")
    answer = visitor.wait_for("done").locator(".answer")
    shown = answer.evaluate(
        """(answer) => [...answer.children].map((one) => [one.tagName,
            one.querySelector("pre")?.textContent ?? one.textContent])"""
    )
    assert shown == [
        ["P", "One bold word and code.\nSame paragraph."],
        ["H3", "A heading"],
        ["P", "After it."],
        ["FIGURE", "def f():\n\n    return '''```'''  # ``` inside\n  ~~~\n"],
        ["FIGURE", "four\n~~~\n"],
        ["P", "Last **unfinished and `so is this"],
        ["FIGURE", "never closed"],
    ]
    expect(answer.locator("p strong")).to_have_text("bold")
    expect(answer.locator("p code")).to_have_text("code")
    expect(answer.locator("figcaption span").first).to_have_text("python")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_how_the_text_was_cut_does_not_change_what_is_shown(
    gateway: ChatGateway, visit: Visit, size: int
) -> None:
    said = "# h\n\n```\n``\n```\n\n  \n#no\n``` not `a fence\n~~~x\n~~\n~~~\n`````\n```\n`````\nend"
    visitor = visit()
    show = """async ([text, size]) => {
        const { Prose } = await import("/assets/prose.js");
        const root = document.createElement("div");
        const prose = new Prose(root, () => document.createElement("button"));
        for (let i = 0; i < text.length; i += size) prose.feed(text.slice(i, i + size));
        prose.end();
        return [...root.children].map((one) => `${one.tagName}:${one.textContent}`);
    }"""
    assert visitor.run(show, [said, size]) == [
        "H3:h",
        "FIGURE:``\n",
        "P:#no\n``` not `a fence",
        "FIGURE:x~~\n",
        "FIGURE:```\n",
        "P:end",
    ]
