"""Lines of recordings for tests, as the recorder writes them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from gateway.recorder.line import Line, encode
from gateway.recorder.recorder import Noted, line_of
from gateway.telemetry.metrics import Spent
from gateway.tenants import OPEN
from gateway.visit import Source, Visit
from policies.request import Request
from tests.fakes.ledger import an_entry


def a_line(
    came: Request,
    sent: Request | None = None,
    *,
    with_content: bool = False,
    tokens: int = 9,
    source: Source | Literal[""] = "miss",
    **fields: Any,
) -> Line:
    """A request that came at 1000 s, was sent as it was, and was answered within 0.2 s."""
    fields.setdefault("conversation", "")
    fields.setdefault("time_s", 1000.2)
    entry = an_entry(call_id=fields.pop("id", "call"), completion_tokens=tokens, **fields)
    visit = Visit("id", "call", "POST", "/", tenant=OPEN, cache=source, spent=Spent(10, tokens))
    return line_of(Noted(came, sent or came, entry, visit, with_content))


def written(path: Path, lines: Iterable[Line]) -> Path:
    path.write_bytes(b"".join(map(encode, lines)))
    return path
