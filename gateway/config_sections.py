"""The sections of `fewer.yaml` as frozen objects. `docs/configuration.md` is the table of all keys.

Names carry their units. Secrets never show in a repr.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.protocol.settings import EngineSettings
from gateway.budgets.limits import Limits
from gateway.config_policies import (
    AgentConfig,
    BudgetConfig,
    CoalesceConfig,
    DedupConfig,
    HistoryConfig,
    InputConfig,
    RouteCacheConfig,
    RoutingConfig,
    ShapeConfig,
)
from gateway.config_values import Count, Dollars, FieldPath, Seconds, Secret, Section

KeepAlive = Literal["comment", "chunk", "off"]


def default_store(environ: Mapping[str, str]) -> Path:
    """`fewer.sqlite3` in the user's state folder (XDG base directories)."""
    home = environ.get("XDG_STATE_HOME") or os.path.join(
        environ.get("HOME") or os.path.expanduser("~"), ".local", "state"
    )
    return Path(home) / "fewer" / "fewer.sqlite3"


class ServerConfig(Section, frozen=True):
    """Where and how the gateway listens.

    host, port:         address to bind; port 0 takes a free one
    workers:            processes that share the port
    allowed_origins:    browser origins beside the gateway's own that may call it, as
                        `https://chat.example.org`, or `*`
    max_body_bytes:     larger bodies are refused with 413
    body_timeout_s:     a body must be complete after this long, else 408
    max_header_bytes, max_headers, header_timeout_s:  beyond them 431, 431 and 408
    keepalive:          what a silent event stream sends: an SSE comment, an empty chunk, or
                        nothing. Some clients cannot bear comments
    keepalive_first_s, keepalive_s:  silence before the first one, and between later ones
    slow_reader_s:      a client that reads nothing for this long is cut off
    drain_s:            running requests may take this long after SIGTERM
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    workers: Count = 1
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: Count = 8 * 1024 * 1024
    body_timeout_s: Seconds = 30.0
    max_header_bytes: Annotated[int, Meta(ge=1024)] = 64 * 1024
    max_headers: Count = 128
    header_timeout_s: Seconds = 10.0
    keepalive: KeepAlive = "comment"
    keepalive_first_s: Seconds = 3.0
    keepalive_s: Seconds = 12.0
    slow_reader_s: Seconds = 30.0
    drain_s: Seconds = 30.0


class Price(Section, frozen=True):
    """Dollars per million tokens in and out, or per hour of the machine.

    machine_hour: what an hour of the machine costs, for models of our own
    """

    input: Dollars = 0.0
    output: Dollars = 0.0
    machine_hour: Dollars | None = None


class SamplingConfig(Section, frozen=True):
    """How tokens are chosen where the client does not say; see `engine.protocol.sampling`.

    Ranges are those of `Sampling.validate`.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def given(self) -> dict[str, float | int]:
        """What is set, by the names that requests have for it."""
        return {n: v for n, v in msgspec.structs.asdict(self).items() if v is not None}


class ModelConfig(Section, frozen=True):
    """One source of tokens: exactly one of `gguf`, `engine`, `openai` and `scripted`.

    gguf:       a model of `fewer models`, or a path to a GGUF file; `fewer serve` starts an
                engine of ours for it
    engine:     an engine of ours started elsewhere, ws://host:port/v1/engine
    openai:     base URL of any OpenAI-compatible server, http://host:port/v1
    scripted:   a JSON file of events to play, for tests and benchmarks
    model:      the name to send to the upstream; by default the name here
    api_key, api_key_file:  the upstream's key, or a file with it (`engine`: the shared token)
    fallback:   models to try, in order, when this one fails before its first token
    price:      for the ledger
    max_model_len:          tokens a request may span. gguf: overrides the engine's setting;
                            openai: the upstream's window, so that a fallback fits
    timeout_s:              a whole answer must be complete after this long
    first_token_timeout_s:  and its first token must be here after this long
    max_concurrency:        requests at once; more wait for a slot
    images:     openai: `accepted` passes image parts on, `refused` answers 400
    schemas:    openai: `accepted` passes a route's JSON Schema on; for others it is an instruction
    reasoning_field: openai: what the upstream calls the limit of what its model thinks
    sampling:   what the model's makers recommend, for requests that do not say
    """

    gguf: str | None = None
    engine: str | None = None
    openai: str | None = None
    scripted: Path | None = None
    model: str | None = None
    api_key: Secret | None = None
    api_key_file: Path | None = None
    fallback: tuple[str, ...] = ()
    price: Price | None = None
    max_model_len: Count | None = None
    timeout_s: Seconds = 600.0
    first_token_timeout_s: Seconds = 120.0
    max_concurrency: Count = 256
    images: Literal["accepted", "refused"] = "accepted"
    schemas: Literal["accepted", "refused"] = "accepted"
    reasoning_field: FieldPath | None = None
    sampling: SamplingConfig | None = None


class CacheConfig(Section, frozen=True):
    """Where answers are kept, for all routes.

    store:         `memory`, each worker's own; `sqlite`, a file beside `store`, for the workers of
                   one machine; or `redis://…`, for all gateways that share one. May hold a
                   password
    max_mb:        room for all of them; of Redis, its own `maxmemory` says so
    max_answer_kb: longer answers are not kept, and cannot be joined
    deadline_ms:   the store must have answered by then; else the request goes on without it
    """

    store: Secret = Secret("memory")
    max_mb: Count = 64
    max_answer_kb: Count = 1024
    deadline_ms: Count = 100


class RecordsConfig(Section, frozen=True):
    """Where records of conversations are kept: text that a model wrote about what clients said.

    store:       as that of `cache`; the file is `fewer.history.sqlite3`
    max_mb:      room for all of them
    ttl_s:       how long one is kept
    deadline_ms: what a request looks for must be found by then; else it goes on without
    """

    store: Secret = Secret("memory")
    max_mb: Count = 16
    ttl_s: Seconds = 604_800.0
    deadline_ms: Count = 100


class ResponsesConfig(Section, frozen=True):
    """Where responses are kept for `previous_response_id` and to be asked for: text, with all that
    was sent for them.

    store:       as that of `cache`, the file is `fewer.responses.sqlite3`; or `none` keeps nothing,
                 whatever clients ask for
    max_mb:      room for all of them
    ttl_s:       how long one is kept
    deadline_ms: the store must have answered by then
    """

    store: Secret = Secret("memory")
    max_mb: Count = 64
    ttl_s: Seconds = 2_592_000.0
    deadline_ms: Count = 250


class LedgerConfig(Section, frozen=True):
    """What is kept of each request, without a word of it.

    store:          `sqlite`, a file beside the store's; `redis://…`: a file, too, which takes in
                    what all gateways write that share the Redis; `memory`, each worker's own. May
                    hold a password
    retention_days: how long
    max_rows:       requests, and conversations of a holdout, that are kept at most
    """

    store: Secret = Secret("sqlite")
    retention_days: Count = 90
    max_rows: Count = 1_000_000


class LimitsConfig(Section, frozen=True):
    """Where it is counted what keys, tenants and routes have used of their limits.

    store:       `memory`, each worker its own; `sqlite`, a file beside `store`, for the workers of
                 one machine; or `redis://…`, for all gateways that share one. May hold a password
    deadline_ms: the store must have answered by then; else it is away
    when_away:   `local` counts in each worker meanwhile, `open` lets everything through, `closed`
                 nothing that is limited
    each_tenant: limits of every tenant that has none of its own
    """

    store: Secret = Secret("sqlite")
    deadline_ms: Count = 250
    when_away: Literal["open", "closed", "local"] = "local"
    each_tenant: Limits | None = None


class RecorderConfig(Section, frozen=True):
    """Every request as a line of a file, for `fewer replay`.

    path:    of the file that grows; older ones lie beside it as PATH.1, PATH.2, …
    content: `none` writes sizes and hashes, `full` also what clients wrote
    max_mb:  of one file
    files:   that are kept, the one that grows included
    """

    path: Path
    content: Literal["none", "full"] = "none"
    max_mb: Count = 64
    files: Count = 5


class RouteConfig(Section, frozen=True):
    """A name that clients use as the model, and what happens to requests under it.

    model:         which of `models` answers
    budget:        the output budget; without it only the model's own limits hold
    history:       what becomes of long conversations; without it they are refused in the end
    dedup:         references in place of what is in the prompt twice
    max_model_len: the window this route needs: its gguf model is served with at least this
    sampling:      goes before what its models recommend
    cache:         which answers are kept for the same request
    coalesce:      which requests share an answer that is on its way
    shape:         what answers look like
    input:         how long a prompt may be
    agent:         how far a model may go on by itself
    limits:        what all its requests together may use
    route:         which model answers, where it is not always the same
    """

    model: str
    budget: BudgetConfig | None = None
    history: HistoryConfig | None = None
    dedup: DedupConfig | None = None
    max_model_len: Count | None = None
    sampling: SamplingConfig | None = None
    cache: RouteCacheConfig = RouteCacheConfig()
    coalesce: CoalesceConfig = CoalesceConfig()
    shape: ShapeConfig | None = None
    input: InputConfig | None = None
    agent: AgentConfig | None = None
    limits: Limits | None = None
    route: RoutingConfig | None = None

    @property
    def chosen(self) -> tuple[str, ...]:
        """Models that may be chosen in place of `model`."""
        active = self.route is not None and self.route.mode == "active"
        return self.route.models if active and self.route is not None else ()


class Config(Section, frozen=True):
    """The whole of `fewer.yaml`.

    store:         file of what must last (keys); spelled `sqlite` or `sqlite:PATH`. The ledger is
                   a file of its own beside it
    recorder:      None records nothing
    aliases:       other names for routes and models
    default_route: for requests that name no model; the only route, if there is one
    """

    server: ServerConfig = ServerConfig()
    store: Path = msgspec.field(default_factory=lambda: default_store(os.environ))
    ledger: LedgerConfig = LedgerConfig()
    recorder: RecorderConfig | None = None
    cache: CacheConfig = CacheConfig()
    records: RecordsConfig = RecordsConfig()
    responses: ResponsesConfig = ResponsesConfig()
    limits: LimitsConfig = LimitsConfig()
    engine: EngineSettings = EngineSettings()
    models: dict[str, ModelConfig] = msgspec.field(default_factory=dict)
    aliases: dict[str, str] = msgspec.field(default_factory=dict)
    routes: dict[str, RouteConfig] = msgspec.field(default_factory=dict)
    default_route: str | None = None

    def gguf_models(self) -> list[str]:
        """Names of the models that `fewer serve` starts an engine for, in file order.

        The i-th is reached at ws://127.0.0.1:(engine_port + i)/v1/engine.
        """
        return [name for name, model in self.models.items() if model.gguf is not None]

    def engine_settings(self, model: str) -> EngineSettings:
        """What the engine of a gguf model is started with: the longest window asked of it."""
        own = self.models[model].max_model_len or self.engine.max_model_len
        asked = [
            route.max_model_len or 0
            for route in self.routes.values()
            if model in (route.model, *route.chosen)
        ]
        return msgspec.structs.replace(self.engine, max_model_len=max([own, *asked]))

    def window(self, model: str) -> int | None:
        """Tokens that a request to the model may span; None where nothing is known of it."""
        if self.models[model].gguf is not None:
            return self.engine_settings(model).max_model_len
        return self.models[model].max_model_len
