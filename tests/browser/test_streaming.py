from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.visitor import Visitor
from tests.fakes.chat_gateway import Answer, ChatGateway, Refusal, chunk, ending, text

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]


def one_byte_at_a_time(stream: bytes) -> list[bytes | threading.Event]:
    return [stream[i : i + 1] for i in range(len(stream))]


def test_text_shows_while_the_answer_is_still_being_made(
    gateway: ChatGateway, visit: Visit
) -> None:
    more = threading.Event()
    gateway.answers.append(
        Answer(
            [chunk({"role": "assistant", "content": ""}), text("Tok"), more, text("yo."), ending()]
        )
    )
    visitor = visit()
    visitor.ask("What is the capital of Japan?")
    turn = visitor.wait_for("streaming")
    expect(turn.locator(".answer")).to_have_text("Tok")
    expect(turn.locator(".answer")).to_have_attribute("aria-busy", "true")
    expect(visitor.page.locator("#stop")).to_be_visible()
    more.set()
    visitor.wait_for("done")
    expect(turn.locator(".answer")).to_have_text("Tokyo.")
    expect(turn.locator(".answer")).to_have_attribute("aria-busy", "false")
    expect(visitor.page.locator("#send")).to_be_visible()


def test_the_request_is_streamed_and_asks_for_usage(gateway: ChatGateway, visit: Visit) -> None:
    gateway.answers.append(Answer([text("Yes."), ending()]))
    visitor = visit()
    visitor.page.locator("#routes").select_option("extract")
    visitor.ask("Is it?")
    visitor.wait_for("done")
    assert gateway.requests == [
        {
            "model": "extract",
            "messages": [{"role": "user", "content": "Is it?"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


def test_characters_and_events_cut_anywhere_arrive_whole(
    gateway: ChatGateway, visit: Visit
) -> None:
    said = "东京 🗼 está, naïve\u2028line\u0085end"
    stream = b": keep-alive\n\n" + text(said[:4]) + b": ka\n\n" + text(said[4:]) + ending()
    gateway.answers.append(Answer(one_byte_at_a_time(stream)))
    visitor = visit()
    visitor.ask("?")
    turn = visitor.wait_for("done")
    assert turn.locator(".answer p").evaluate("element => element.textContent") == said


def test_numbers_under_an_answer_are_those_of_the_usage(gateway: ChatGateway, visit: Visit) -> None:
    gateway.answers.append(
        Answer(
            [text("Tokyo."), ending(prompt=1234, output=56, cached=1024)],
            {"x-fewer-model": "small"},
        )
    )
    visitor = visit()
    visitor.ask("?")
    shown = visitor.statistics(visitor.wait_for("done"))
    assert {name: shown[name] for name in ("tokensIn", "tokensOut", "cached", "model")} == {
        "tokensIn": "1,234",
        "tokensOut": "56",
        "cached": "1,024",
        "model": "small",
    }
    assert shown["ttft"].endswith(" s")
    assert float(shown["ttft"].removesuffix(" s")) < 10


def test_time_to_first_token_and_speed_follow_the_clock(gateway: ChatGateway, visit: Visit) -> None:
    first, rest = threading.Event(), threading.Event()
    gateway.answers.append(
        Answer([chunk({"role": "assistant"}), first, text("a"), rest, text("b"), ending(output=11)])
    )
    visitor = visit()
    visitor.run("performance.now = () => window.nowMs")
    visitor.run("window.nowMs = 1000")
    visitor.ask("?")
    visitor.wait_for("waiting")
    visitor.run("window.nowMs = 2500")
    first.set()
    expect(visitor.turn().locator(".answer")).to_have_text("a")
    visitor.run("window.nowMs = 4500")
    rest.set()
    shown = visitor.statistics(visitor.wait_for("done"))
    assert shown["ttft"] == "1.50 s"
    assert shown["speed"] == "5.0 tok/s"  # ten more tokens in two seconds


def test_what_each_policy_did_is_told(gateway: ChatGateway, visit: Visit) -> None:
    decisions = [
        {"policy": "budget", "mode": "active", "action": "rewrite", "reason": "900 to 512"},
        {"policy": "cache", "mode": "shadow", "action": "answer", "reason": "equal request"},
        {"policy": "later", "mode": "active", "action": "something-new", "reason": "because"},
    ]
    headers = {"x-fewer-decisions": json.dumps(decisions, separators=(",", ":"))}
    gateway.answers.append(Answer([text("Yes."), ending()], headers))
    gateway.answers.append(Answer([text("Yes."), ending()]))
    gateway.answers.append(Answer([text("Yes."), ending()], {"x-fewer-decisions": '[{"policy'}))
    visitor = visit()
    visitor.ask("?")
    rows = visitor.wait_for("done").locator(".decisions li")
    expect(rows).to_have_text(
        [
            "budget · changed the request · 900 to 512",
            "cache · answered itself · equal request · shadow: not applied",
            "later · something-new · because",
        ]
    )
    for number in (1, 2):
        visitor.ask("again")
        expect(visitor.turn(number)).to_have_attribute("data-status", "done")
        expect(visitor.turn(number).locator(".decisions")).to_have_text(
            "Policies · none changed this request"
        )


def test_stop_ends_the_generation_and_keeps_what_came(gateway: ChatGateway, visit: Visit) -> None:
    never = threading.Event()
    gateway.answers.append(Answer([text("One, "), text("two"), never]))
    visitor = visit()
    visitor.ask("Count.")
    visitor.wait_for("streaming")
    visitor.page.locator("#stop").click()
    turn = visitor.wait_for("stopped")
    assert gateway.cancelled.wait(10), "the gateway did not see that the client left"
    never.set()
    expect(turn.locator(".answer")).to_have_text("One, two")
    expect(turn.locator(".notice")).to_have_text("You stopped this answer.")
    assert visitor.statistics(turn)["tokensOut"] == "≈ 2"
    expect(visitor.page.locator("#message")).to_be_focused()


def test_stop_works_before_the_first_token(gateway: ChatGateway, visit: Visit) -> None:
    never = threading.Event()
    gateway.answers.append(Answer([never]))
    gateway.answers.append(Answer([text("Yes."), ending()]))
    visitor = visit()
    visitor.ask("Count.")
    visitor.wait_for("waiting")
    visitor.page.keyboard.press("Escape")
    visitor.wait_for("stopped")
    assert gateway.cancelled.wait(10)
    never.set()
    visitor.ask("Again?")
    visitor.wait_for("done")
    assert [message["content"] for message in gateway.requests[1]["messages"]] == ["Again?"]


def test_turns_go_along_until_a_new_chat(gateway: ChatGateway, visit: Visit) -> None:
    gateway.answers.extend(Answer([text(f"answer {i}"), ending()]) for i in range(3))
    visitor = visit()
    visitor.page.locator("#open-settings").click()
    visitor.page.locator("#system-prompt").fill("Be brief.")
    visitor.page.locator("#max-tokens").fill("64")
    visitor.page.keyboard.press("Escape")
    for question in ("first", "second"):
        visitor.ask(question)
        visitor.wait_for("done")
    assert gateway.requests[1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "answer 0"},
        {"role": "user", "content": "second"},
    ]
    assert gateway.requests[1]["max_tokens"] == 64
    visitor.page.locator("#new-chat").click()
    expect(visitor.page.locator("article")).to_have_count(0)
    visitor.ask("third")
    visitor.wait_for("done")
    assert [message["content"] for message in gateway.requests[2]["messages"]] == [
        "Be brief.",
        "third",
    ]


def test_an_error_inside_the_stream_is_shown_and_retried(
    gateway: ChatGateway, visit: Visit
) -> None:
    failed = b'data: {"error": {"message": "The engine is gone.", "code": "unavailable"}}\n\n'
    gateway.answers.append(Answer([text("Half an ans"), failed, b"data: [DONE]\n\n"]))
    gateway.answers.append(Answer([text("A whole answer."), ending()]))
    visitor = visit()
    visitor.ask("?")
    turn = visitor.wait_for("failed")
    expect(turn.locator(".answer")).to_have_text("Half an ans")
    expect(turn.locator(".failure strong")).to_have_text("The answer failed on the way.")
    expect(turn.locator(".failure .detail")).to_have_text("The engine is gone.")
    turn.locator("[data-part=retry]").click()
    visitor.wait_for("done")
    expect(turn.locator(".answer")).to_have_text("A whole answer.")
    expect(turn.locator(".failure")).to_be_hidden()
    assert gateway.requests[0] == gateway.requests[1]


@pytest.mark.parametrize("tail", [b"", b"data: {\n\n", b'data: {"choices":[]', b"data: [DONE]\n\n"])
def test_a_stream_that_breaks_off_is_never_taken_for_an_answer(
    gateway: ChatGateway, visit: Visit, tail: bytes
) -> None:
    gateway.answers.append(Answer([text("Half"), tail]))
    visitor = visit()
    visitor.ask("?")
    turn = visitor.wait_for("failed")
    expect(turn.locator(".failure strong")).to_have_text(
        "The connection ended before the answer did."
    )


@pytest.mark.parametrize(
    ("refusal", "title", "hint"),
    [
        (
            Refusal(400, "5000 tokens, 4096 fit.", "context_length_exceeded"),
            "The request was not accepted.",
            "The conversation is too long",
        ),
        (
            Refusal(404, "No such model.", "model_not_found"),
            "This route does not",
            "Choose another",
        ),
        (Refusal(413, "Too large.", "too_large"), "The message is too large.", "Shorten it"),
        (
            Refusal(429, "Key over its limit.", "rate", {"retry-after": "17"}),
            "A limit of this key is used up.",
            "Try again in 17 s.",
        ),
        (Refusal(503, "Starting.", "unavailable"), "The model cannot answer", "It may be busy"),
        (Refusal(502, "Nonsense.", "upstream_failed"), "The gateway failed", "Try again;"),
    ],
)
def test_refusals_say_what_happened_and_what_to_do(
    gateway: ChatGateway, visit: Visit, refusal: Refusal, title: str, hint: str
) -> None:
    refusal.headers["x-request-id"] = "req-77"
    gateway.answers.append(refusal)
    visitor = visit()
    visitor.ask("?")
    failure = visitor.wait_for("failed").locator(".failure")
    expect(failure.locator("strong")).to_contain_text(title)
    expect(failure.locator(".detail")).to_have_text(refusal.message)
    expect(failure).to_contain_text(hint)
    expect(failure.locator(".request-id")).to_have_text("Request req-77")


def test_a_gateway_that_is_away_is_said_plainly(gateway: ChatGateway, visit: Visit) -> None:
    visitor = visit()
    visitor.page.route("**/v1/chat/completions", lambda route: route.abort())
    visitor.ask("?")
    turn = visitor.wait_for("failed")
    expect(turn.locator(".failure strong")).to_have_text("The gateway cannot be reached.")
    visitor.forgive("net::ERR_FAILED")


def test_routes_that_cannot_be_had_can_be_asked_for_again(
    gateway: ChatGateway, visit: Visit
) -> None:
    visitor = visit()
    visitor.page.route("**/v1/models", lambda route: route.fulfill(status=503, body="busy"))
    visitor.open()
    expect(visitor.page.locator("#start-failure")).to_contain_text("The model cannot answer")
    visitor.page.unroute("**/v1/models")
    visitor.page.locator("#retry-start").click()
    expect(visitor.page.locator("#start-failure")).to_be_hidden()
    expect(visitor.page.locator("#routes")).to_be_enabled()


def test_the_chosen_route_is_remembered(gateway: ChatGateway, visit: Visit) -> None:
    visitor = visit()
    visitor.page.locator("#routes").select_option("extract")
    visitor.open()
    expect(visitor.page.locator("#routes")).to_have_value("extract")


@pytest.mark.parametrize(
    ("finish", "notice"),
    [("length", "reached its limit of tokens"), ("content_filter", "A policy ended this answer")],
)
def test_an_answer_that_was_cut_says_so(
    gateway: ChatGateway, visit: Visit, finish: str, notice: str
) -> None:
    gateway.answers.append(Answer([text("Once upon"), ending(finish)]))
    visitor = visit()
    visitor.ask("?")
    expect(visitor.wait_for("done").locator(".notice")).to_contain_text(notice)


def test_reasoning_is_folded_away_from_the_answer(gateway: ChatGateway, visit: Visit) -> None:
    gateway.answers.append(
        Answer(
            [
                chunk({"reasoning_content": "Let me "}),
                chunk({"reasoning_content": "think."}),
                text("42"),
                ending(),
            ]
        )
    )
    visitor = visit()
    visitor.ask("?")
    turn = visitor.wait_for("done")
    expect(turn.locator(".answer")).to_have_text("42")
    expect(turn.locator("[data-part=reasoning]")).to_be_hidden()
    turn.locator("summary").click()
    expect(turn.locator("[data-part=reasoning]")).to_have_text("Let me think.")


def test_the_parser_does_as_the_standard_says(
    gateway: ChatGateway, visit: Visit, shared_data: Callable[[str], Path]
) -> None:
    vectors = json.loads((shared_data("sse") / "sse_parse_vectors.json").read_text())["vectors"]
    streams = [[list(base64.b64decode(c)) for c in vector["chunks_b64"]] for vector in vectors]
    visitor = visit()
    parse = """async ([streams, size]) => {
        const { EventParser } = await import("/assets/sse.js");
        return streams.map((chunks) => {
            const parser = new EventParser();
            const bytes = chunks.flat();
            const cut = size === 0 ? chunks : bytes.map((byte) => [byte]);
            return cut.flatMap((chunk) => parser.feed(new Uint8Array(chunk)));
        });
    }"""
    expected = [[event["data"] for event in vector["events"]] for vector in vectors]
    assert visitor.run(parse, [streams, 0]) == expected
    assert visitor.run(parse, [streams, 1]) == expected
