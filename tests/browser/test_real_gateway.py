"""The page against the gateway itself, over scripted backends."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from gateway.backends.scripted import ScriptedBackend
from gateway.config import BudgetConfig, Config, ModelConfig, RouteConfig
from gateway.stores.keys import KeyStore
from gateway.tenants import Tenants
from tests.browser.visitor import Visitor
from tests.fakes.serving import Gateway, running

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
TOKYO = [{"text": word} for word in ("The ", "capital ", "of ", "Japan ", "is ", "Tokyo.")]
PLAYED = {"one": TOKYO, "endless": [{"text": "On and on"}, {"hang": True}], "broken": [
    {"text": "Half an"},
    {"fail": {"code": "unavailable", "message": "The engine is <b>gone</b>."}},
]}  # fmt: skip


class ServedGateway:
    """A gateway on a thread with an event loop of its own."""

    def __init__(self, config: Config, key_file: Path) -> None:
        self._started: queue.Queue[Gateway] = queue.Queue()
        self._config, self._key_file = config, key_file
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        self._gateway = self._started.get(timeout=20)
        self.url = f"http://127.0.0.1:{self._gateway.port}"

    def backend(self, name: str) -> ScriptedBackend:
        backend = self._gateway.backends[name]
        assert isinstance(backend, ScriptedBackend)
        return backend

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        backends = {name: ScriptedBackend(name, {"steps": PLAYED[name]}) for name in PLAYED}
        keys = KeyStore(self._key_file)
        async with running(self._config, backends, Tenants(keys)) as gateway:
            self._started.put(gateway)
            await self._stopping.wait()
        keys.close()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return tmp_path / "keys.sqlite3"


@pytest.fixture
def served(key_file: Path) -> Iterator[ServedGateway]:
    config = Config(
        models={name: ModelConfig(openai="http://127.0.0.1:1/v1") for name in PLAYED},
        routes={
            "chat": RouteConfig("one"),
            "short": RouteConfig("one", BudgetConfig(4)),
            "endless": RouteConfig("endless"),
            "broken": RouteConfig("broken"),
        },
        default_route="chat",
    )
    served = ServedGateway(config, key_file)
    yield served
    served.stop()


@pytest.fixture
def address(served: ServedGateway) -> str:
    return served.url


def choose(visitor: Visitor, route: str) -> None:
    visitor.page.locator("#routes").select_option(route)


def test_an_answer_streams_through(served: ServedGateway, visit: Visit) -> None:
    visitor = visit()
    choose(visitor, "chat")
    visitor.ask("What is the capital of Japan?")
    turn = visitor.wait_for("done")
    expect(turn.locator(".answer")).to_have_text("The capital of Japan is Tokyo.")
    shown = visitor.statistics(turn)
    assert shown["tokensOut"] == "6"
    assert shown["model"] == "one"
    assert "ttft" in shown


def test_the_budget_policy_is_seen_at_work(served: ServedGateway, visit: Visit) -> None:
    visitor = visit()
    choose(visitor, "short")
    visitor.ask("What is the capital of Japan?")
    turn = visitor.wait_for("done")
    expect(turn.locator(".answer")).to_have_text("The capital of Japan")
    expect(turn.locator(".notice")).to_contain_text("limit of tokens")
    expect(turn.locator(".decisions .policy").first).to_have_text("budget")
    expect(turn.locator(".decisions .action").first).to_have_text("changed the request")
    expect(turn.locator(".decisions .reason").first).to_contain_text("4")
    assert visitor.statistics(turn)["tokensOut"] == "4"


@pytest.mark.parametrize("how", ["button", "escape", "reload", "new chat"])
def test_leaving_an_answer_cancels_it_at_the_backend(
    served: ServedGateway, visit: Visit, how: str
) -> None:
    visitor = visit()
    choose(visitor, "endless")
    visitor.ask("Go on for ever.")
    visitor.wait_for("streaming")
    backend = served.backend("endless")
    assert len(backend.running) == 1
    if how == "button":
        visitor.page.locator("#stop").click()
    elif how == "escape":
        visitor.page.keyboard.press("Escape")
    elif how == "reload":
        visitor.open()
    else:
        visitor.page.locator("#new-chat").click()
    for _ in range(500):
        if backend.cancelled:
            break
        visitor.page.wait_for_timeout(10)
    assert len(backend.cancelled) == 1
    assert backend.running == frozenset()


def test_a_backend_that_fails_midway_is_told(served: ServedGateway, visit: Visit) -> None:
    visitor = visit()
    choose(visitor, "broken")
    visitor.ask("?")
    turn = visitor.wait_for("failed")
    expect(turn.locator(".answer")).to_have_text("Half an")
    expect(turn.locator(".failure .detail")).to_contain_text("The engine is <b>gone</b>.")
    expect(turn.locator(".failure .request-id")).to_contain_text("Request ")


def test_a_wrong_value_is_refused_with_the_gateways_words(
    served: ServedGateway, visit: Visit
) -> None:
    visitor = visit()
    visitor.run("document.querySelector('#routes').append(new Option('gone', 'gone'))")
    choose(visitor, "gone")
    visitor.ask("?")
    failure = visitor.wait_for("failed").locator(".failure")
    expect(failure.locator("strong")).to_have_text("This route does not exist any more.")
    expect(failure.locator(".detail")).to_contain_text("'gone'")


def test_a_key_is_asked_for_as_soon_as_the_first_one_is_made(
    served: ServedGateway, visit: Visit, key_file: Path
) -> None:
    visitor = visit()
    store = KeyStore(key_file)
    key = store.create("someone").text
    store.close()
    choose(visitor, "chat")
    visitor.ask("What is the capital of Japan?")
    visitor.wait_for("failed")
    expect(visitor.page.locator("#key")).to_be_focused()
    visitor.page.keyboard.type(key)
    visitor.page.keyboard.press("Enter")
    turn = visitor.wait_for("done")
    expect(turn.locator(".answer")).to_have_text("The capital of Japan is Tokyo.")
