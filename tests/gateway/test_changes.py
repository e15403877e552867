"""What of a new configuration holds in a gateway that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.changes import Applicable, applicable
from gateway.config import Config, load

FIRST = """
server: {port: 8080}
store: sqlite:keys.sqlite3
models:
  ours: {gguf: smollm2-135m, fallback: [large]}
  large: {openai: "http://127.0.0.1:1/v1"}
aliases: {gpt: chat}
routes:
  chat: {model: ours, budget: {max_tokens: 10}}
"""


class Running:
    """A gateway's configuration, from one file to the next."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "fewer.yaml"
        self.first = self.current = self.read(FIRST)

    def read(self, text: str) -> Config:
        self.path.write_text(text)
        return load(self.path, {"HOME": "/nowhere"})

    def change(self, *edits: tuple[str, str], text: str = FIRST) -> Applicable:
        """What holds after these replacements in the first file."""
        for before, after in edits:
            assert before in text
            text = text.replace(before, after)
        found = applicable(self.read(text), self.current, self.first)
        self.current = found.config
        return found

    @property
    def shown(self) -> dict[str, Any]:
        """What clients can reach, in short."""
        config = self.current
        return {
            "models": {name: model.gguf or "-" for name, model in config.models.items()},
            "routes": {name: route.model for name, route in config.routes.items()},
            "aliases": config.aliases,
            "default": config.default_route,
        }


@pytest.fixture
def running(tmp_path: Path) -> Running:
    return Running(tmp_path)


AS_BEFORE = {
    "models": {"ours": "smollm2-135m", "large": "-"},
    "routes": {"chat": "ours"},
    "aliases": {"gpt": "chat"},
    "default": "chat",
}


def test_the_same_file_changes_nothing(running: Running) -> None:
    assert running.change().postponed == []
    assert running.shown == AS_BEFORE


def test_what_needs_no_process_holds_at_once(running: Running) -> None:
    found = running.change(
        ("max_tokens: 10", "max_tokens: 20"),
        ("port: 8080", "port: 8080, keepalive: 'off'"),
        ("[large]", "[]"),
        ("aliases: {gpt: chat}", "aliases: {gpt: more, other: large}"),
        ("routes:", "default_route: more\nroutes:\n  more: {model: new}"),
        ("models:", "models:\n  new: {openai: 'http://127.0.0.1:2/v1'}"),
    )
    assert found.postponed == []
    budget = found.config.routes["chat"].budget
    assert budget is not None
    assert budget.max_tokens == 20
    assert found.config.server.keepalive == "off"
    assert found.config.models["ours"].fallback == ()
    assert running.shown == {
        "models": {"new": "-", "ours": "smollm2-135m", "large": "-"},
        "routes": {"more": "new", "chat": "ours"},
        "aliases": {"gpt": "more", "other": "large"},
        "default": "more",
    }


def test_what_was_started_with_waits_for_a_restart(running: Running) -> None:
    found = running.change(
        ("port: 8080", "port: 9090, host: '::1', workers: 3, drain_s: 1, max_headers: 9"),
        ("keys.sqlite3", "other.sqlite3"),
        ("models:", "cache: {max_mb: 3}\nrecords: {ttl_s: 9}\nmodels:"),
        ("models:", "responses: {max_mb: 3}\nengine: {max_num_seqs: 3}\nmodels:"),
        ("max_tokens: 10", "max_tokens: 20"),
    )
    assert found.postponed == [
        *("server.host", "server.port", "server.workers", "server.drain_s"),
        *("store", "cache", "records", "responses", "engine.max_num_seqs"),
    ]
    config, first = found.config, running.first
    assert (config.server.port, config.server.host, config.server.workers) == (8080, "127.0.0.1", 1)
    assert (config.store, config.cache) == (first.store, first.cache)
    assert (config.records, config.responses) == (first.records, first.responses)
    assert config.engine == first.engine
    assert config.server.max_headers == 9
    budget = config.routes["chat"].budget
    assert budget is not None
    assert budget.max_tokens == 20


def test_they_are_told_until_the_file_says_what_it_said(running: Running) -> None:
    assert running.change(("8080", "9090")).postponed == ["server.port"]
    assert running.change(("8080", "9090")).postponed == ["server.port"]
    assert running.change().postponed == []


def test_a_port_from_the_command_line_stays(running: Running) -> None:
    """What the server listens on and what the file says may differ from the start."""
    running.current = running.read(FIRST.replace("8080", "41000"))
    found = running.change()
    assert found.postponed == []
    assert found.config.server.port == 41000


@pytest.mark.parametrize("gguf", ["other", "./smollm2-135m.gguf"])
def test_a_model_whose_file_changes_is_served_from_the_old_one(running: Running, gguf: str) -> None:
    found = running.change(
        ("gguf: smollm2-135m", f"timeout_s: 5, gguf: {gguf}"), ("max_tokens: 10", "max_tokens: 20")
    )
    assert found.postponed == ["models.ours.gguf"]
    assert found.config.models["ours"] == running.first.models["ours"]
    assert running.shown == AS_BEFORE


def test_a_new_gguf_model_is_left_out_and_what_leads_to_it_stays_as_it_was(
    running: Running,
) -> None:
    found = running.change(
        ("models:", "models:\n  new: {gguf: other, fallback: [large]}"),
        ("fallback: [large]}\n  large:", "fallback: [new, large]}\n  large:"),
        ("aliases: {gpt: chat}", "aliases: {gpt: new, fresh: new, kept: chat}"),
        ("routes:", "default_route: more\nroutes:\n  more: {model: new}"),
        ("chat: {model: ours", "chat: {model: new"),
    )
    assert found.postponed == ["models.new.gguf"]
    assert running.current.models["ours"].fallback == ("large",)
    assert running.shown == AS_BEFORE | {"aliases": {"gpt": "chat", "kept": "chat"}}


def test_the_model_of_a_route_that_stays_stays_with_it(running: Running) -> None:
    """The usual way to another model: its name and its file change in one go."""
    text = FIRST.replace("ours", "qwen").replace("smollm2-135m", "./qwen.gguf")
    found = running.change(text=text)
    assert found.postponed == ["models.qwen.gguf"]
    models = AS_BEFORE["models"]
    assert isinstance(models, dict)
    assert running.shown == AS_BEFORE | {"models": dict(reversed(models.items()))}


def test_where_nothing_of_it_can_be_served_all_stays(running: Running) -> None:
    found = running.change(
        text="models: {b: {gguf: b}}\nroutes: {c: {model: b}}\nserver: {max_headers: 9}\n"
        f"store: sqlite:{running.first.store}\n"
    )
    assert found.postponed == ["models.b.gguf"]
    assert running.shown == AS_BEFORE
    assert found.config.server.max_headers == 9


def test_an_engine_keeps_the_window_it_was_started_with(running: Running) -> None:
    for edit in (
        ("gguf: smollm2-135m", "gguf: smollm2-135m, max_model_len: 100"),
        ("model: ours", "model: ours, max_model_len: 8000"),
    ):
        found = running.change(edit)
        assert found.postponed == ["models.ours.max_model_len"]
        assert found.config.engine_settings("ours").max_model_len == 4096


def test_the_window_of_an_upstream_is_only_a_number(running: Running) -> None:
    found = running.change(
        ('http://127.0.0.1:1/v1"', 'http://127.0.0.1:1/v1", max_model_len: 100'),
        ("model: ours", "model: large, max_model_len: 50"),
    )
    assert found.postponed == []
    assert found.config.models["large"].max_model_len == 100
    assert found.config.routes["chat"].max_model_len == 50


def test_an_engine_that_was_left_alone_can_be_had_again(running: Running) -> None:
    running.change(
        ("ours: {gguf: smollm2-135m, fallback: [large]}", ""), ("model: ours", "model: large")
    )
    assert list(running.current.models) == ["large"]
    assert running.change().postponed == []
    assert running.shown == AS_BEFORE


def test_a_name_that_becomes_an_engine_of_ours_stays_what_it_was(running: Running) -> None:
    found = running.change(('{openai: "http://127.0.0.1:1/v1"}', "{gguf: big}"))
    assert found.postponed == ["models.large.gguf"]
    assert running.shown == AS_BEFORE


def test_the_ledgers_store_stays_and_how_much_it_keeps_may_change(running: Running) -> None:
    more = "ledger: {store: 'redis://localhost', retention_days: 7}\nmodels:"
    found = running.change(("models:", more))
    assert found.postponed == ["ledger.store"]
    assert found.config.ledger.store.reveal() == "sqlite"
    assert found.config.ledger.retention_days == 7


CHOICE = "budget: {max_tokens: 10}, route: {rules: [{script: han, model: large}]}"


def test_a_route_chooses_among_models_that_are_there(running: Running) -> None:
    """A new model of ours would need an engine: until a restart the route chooses as before."""
    chosen = FIRST.replace("budget: {max_tokens: 10}", CHOICE)
    running.change(text=chosen)
    assert running.current.routes["chat"].chosen == ("large",)
    added = chosen.replace("models:", "models:\n  new: {gguf: ./new.gguf}")
    found = running.change(("model: large}", "model: new}"), text=added)
    assert found.postponed == ["models.new.gguf"]
    assert running.current.routes["chat"].chosen == ("large",)
    running.change()
    running.change(("model: large}", "model: new}"), text=added)
    assert not running.current.routes["chat"].chosen
