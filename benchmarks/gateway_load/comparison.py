"""Who is compared at what, and the rows of the table that come of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.figures import Row
from benchmarks.gateway_load.load import ClosedLoop, Measured, OpenLoop
from benchmarks.gateway_load.servers import Servers
from benchmarks.gateway_load.targets import EngineTarget, HttpTarget, Target

DIRECT, GATEWAY, PASSTHROUGH, LITELLM = "direct", "gateway", "pass-through", "litellm"

SHORT_TOKENS = 8
CLOSED_RAMP_S = 0.5
WARM_UP_STREAMS = 100


@dataclass(frozen=True, slots=True)
class Shape:
    """streams: at once; tokens: of each, one every `pace_s`; clients: that wait for answers"""

    streams: int
    pace_s: float
    tokens: int
    seconds: float
    clients: int

    @property
    def stream_s(self) -> float:
        return self.tokens * self.pace_s

    def open_loop(self, seed: int) -> OpenLoop:
        return OpenLoop(self.streams / self.stream_s, self.stream_s, self.seconds, seed)

    def closed_loop(self, seed: int) -> ClosedLoop:
        return ClosedLoop(self.clients, CLOSED_RAMP_S, self.seconds)


@dataclass(slots=True)
class Comparison:
    """One kind of load on several contenders, by name: the first is what others are held against.

    row:       the figures of one round; what the table shows are medians of them
    processes: whose CPU time is a contender's; for the direct way there is none
    """

    name: str
    meaning: str
    contenders: Mapping[str, Callable[[], Target]]
    load: Callable[[int], OpenLoop | ClosedLoop]
    row: Callable[[str | None, Measured, Measured], Row]
    processes: Mapping[str, str]
    warm_up_clients: int
    results: dict[str, list[Measured]] = field(default_factory=dict)

    def order(self, number: int) -> list[str]:
        """Of a round: every other one backwards, so that drifts do not favour anyone."""
        names = list(self.contenders)
        return names if number % 2 == 0 else names[::-1]

    async def run(self, name: str, number: int, pids: Mapping[str, int]) -> None:
        measured = await self.load(number).run(self.contenders[name](), pids)
        self.results.setdefault(name, []).append(measured)

    def rows(self) -> list[Row]:
        base = self.results[next(iter(self.contenders))]
        rows: list[Row] = []
        for name, rounds in self.results.items():
            pairs, process = zip(rounds, base, strict=True), self.processes.get(name)
            rows.append(Row(through=name) | medians([self.row(process, *pair) for pair in pairs]))
        return rows


def medians(rows: list[Row]) -> Row:
    """Of each column, over rounds; None where a round has none."""
    middle: Row = {}
    for column in rows[0]:
        values = [row[column] for row in rows]
        numbers = [value for value in values if isinstance(value, int | float)]
        whole = len(numbers) == len(values)
        middle[column] = round(statistics.median(numbers), 2) if whole else None
    return middle


def comparisons(servers: Servers, shape: Shape) -> list[Comparison]:
    """The three that are made in rounds."""
    return [_engine(servers, shape), _sse(servers, shape), _requests(servers, shape)]


def _engine(servers: Servers, shape: Shape) -> Comparison:
    port = servers.upstream["engine_paced"]
    return Comparison(
        "engine",
        "streams from an engine over its WebSocket; added: against asking the engine directly",
        {
            DIRECT: lambda: EngineTarget(port, tokens=shape.tokens),
            GATEWAY: lambda: _http(servers.gateway.port, "engine_paced", shape.tokens),
        },
        shape.open_loop,
        stream_row,
        {GATEWAY: "gateway"},
        WARM_UP_STREAMS,
    )


def _sse(servers: Servers, shape: Shape) -> Comparison:
    model = "openai_paced"
    port, passthrough = servers.upstream[model], servers.passthrough[model].port
    return Comparison(
        "sse",
        "streams from an OpenAI-compatible server; the pass-through is a bare ASGI application",
        {
            DIRECT: lambda: _http(port, model, shape.tokens),
            PASSTHROUGH: lambda: _http(passthrough, model, shape.tokens),
            GATEWAY: lambda: _http(servers.gateway.port, model, shape.tokens),
        },
        shape.open_loop,
        stream_row,
        {PASSTHROUGH: f"passthrough {model}", GATEWAY: "gateway"},
        WARM_UP_STREAMS,
    )


def _requests(servers: Servers, shape: Shape) -> Comparison:
    model = "openai_at_once"
    ports = {
        DIRECT: servers.upstream[model],
        PASSTHROUGH: servers.passthrough[model].port,
        GATEWAY: servers.gateway.port,
    }
    if servers.litellm is not None:
        ports[LITELLM] = servers.litellm.port

    def target(port: int) -> Callable[[], Target]:
        return lambda: HttpTarget(port, model, tokens=SHORT_TOKENS, stream=False)

    return Comparison(
        "requests",
        f"answers of {SHORT_TOKENS} tokens in one piece, from an OpenAI-compatible server",
        {name: target(port) for name, port in ports.items()},
        shape.closed_loop,
        requests_row,
        {PASSTHROUGH: f"passthrough {model}", GATEWAY: "gateway", LITELLM: "litellm"},
        shape.clients,
    )


def _http(port: int, model: str, tokens: int) -> Target:
    return HttpTarget(port, model, tokens=tokens, stream=True)


def stream_row(process: str | None, measured: Measured, direct: Measured) -> Row:
    """One round of streams. Added times are against the direct way in the same round.

    process: whose CPU time counts
    """
    book, base = measured.book, direct.book
    row: Row = {
        "chunks_per_s": round(book.chunks / measured.seconds),
        "ttft_p50_ms": book.first_ms(50),
        "ttft_p99_ms": book.first_ms(99),
        "added_ttft_p50_ms": book.first_ms(50) - base.first_ms(50) if process else None,
        "added_ttft_p99_ms": book.first_ms(99) - base.first_ms(99) if process else None,
        "late_p50_ms": book.late_ms(50),
        "late_p99_ms": book.late_ms(99),
        "cpu_us_per_chunk": measured.cpu_us_per_chunk(process) if process else None,
    }
    return row | _shares(measured, process)


def requests_row(process: str | None, measured: Measured, direct: Measured) -> Row:
    """One round of whole answers."""
    cpu_us = measured.cpu_s[process] * 1e6 / measured.book.ended if process else None
    row: Row = {"requests_per_s": measured.requests_per_s, "cpu_us_per_request": cpu_us}
    return row | _shares(measured, process)


def _shares(measured: Measured, process: str | None) -> Row:
    """How busy each process was, in percent of a core: two cores have 200 for all of them."""

    def percent(name: str) -> float:
        return 100 * measured.cpu_s[name] / measured.seconds

    return {
        "its_cpu_percent": percent(process) if process else None,
        "upstream_cpu_percent": percent("upstream"),
        "generator_cpu_percent": percent("generator"),
        "failed": measured.book.failed,
    }
