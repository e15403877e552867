"""Whether the gateway's memory grows with the requests it has served."""

from __future__ import annotations

from benchmarks import processes
from benchmarks.bench import say
from benchmarks.figures import Row
from benchmarks.gateway_load.comparison import SHORT_TOKENS
from benchmarks.gateway_load.load import send_all
from benchmarks.gateway_load.servers import Servers
from benchmarks.gateway_load.targets import HttpTarget

LEGS = 10
"""So many rows from the first count of requests to the last."""


async def memory(servers: Servers, between: tuple[int, int], clients: int) -> list[Row]:
    """Resident memory after so many requests, half of them over each backend, half streamed."""
    first, last = between
    counts = [first + (last - first) * leg // LEGS for leg in range(LEGS + 1)]
    sent, rows, start_mb = 0, list[Row](), 0.0
    for count in counts:
        say(f"memory: up to {count:,} requests")
        failed = await _send(servers, count - sent, clients)
        sent = count
        resident_mb = processes.resident_mb(servers.gateway.pid)
        start_mb = start_mb or resident_mb
        grown_mb = round(resident_mb - start_mb, 1)
        rows.append(
            {"requests": sent, "resident_mb": resident_mb, "grown_mb": grown_mb, "failed": failed}
        )
    return rows


async def _send(servers: Servers, requests: int, clients: int) -> int:
    """How many of them failed."""
    failed = 0
    for model in ("engine_at_once", "openai_at_once"):
        for stream in (True, False):
            target = HttpTarget(servers.gateway.port, model, tokens=SHORT_TOKENS, stream=stream)
            await send_all(target, clients, requests // 4)
            failed += target.book.failed
    return failed
