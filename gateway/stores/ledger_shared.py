"""The ledger of several gateways that share a Redis.

What any of them writes goes into one stream, and each takes all of it into its own file, in that
order: entries, feedback, looks. So all files come to say the same, every question is answered from
a file, and a conversation whose turns went to different gateways is one. The stream reaches back a
while; whoever was away for longer misses what it has lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from engine.protocol.errors import Unavailable
from gateway.ledger.entry import Entry
from gateway.ledger.feedback import Feedback
from gateway.stores.database import store_errors, transaction
from gateway.stores.ledger import (
    LedgerStore,
    Look,
    find_request,
    put_entry,
    put_feedback,
    put_look,
)

STREAM = b"fewer-ledger-1"
MOST_ITEMS = 5000
"""That the stream keeps, about; each has up to 20 entries, of 0.7 kB."""

_ENTRIES = 20
_ITEMS_AT_ONCE = 200
_BEGINNING = b"0"


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the three."""

    entries: list[Entry] = []
    feedback: Feedback | None = None
    look: Look | None = None


_log = logging.getLogger("fewer.ledger")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Item)


class SharedLedgerStore(LedgerStore):
    """url: redis://, rediss:// or unix://; may hold a password. deadline_s: for a command.

    Every method may also raise `Unavailable` because Redis cannot be used; what it was to write
    may then have been written. Entries that come twice count once.
    """

    def __init__(self, path: Path | None, url: str, deadline_s: float) -> None:
        super().__init__(path)
        self._redis = Redis.from_url(
            url,
            socket_timeout=deadline_s,
            socket_connect_timeout=deadline_s,
            retry=Retry(NoBackoff(), 0),
        )

    @property
    def exists(self) -> bool:
        """Others may have written."""
        return True

    def catch_up(self) -> None:
        while items := self._after(position := self._position()):
            with store_errors(self.path), transaction(self._open()):
                # Another worker of this machine, which shares the file, may just have done it.
                if self._position() == position:
                    for _, item in items:
                        self._take(item)
                    self._open().execute(
                        "INSERT OR REPLACE INTO followed VALUES (?, ?)", (STREAM, items[-1][0])
                    )

    def write(self, entries: Iterable[Entry]) -> None:
        left = list(entries)
        parts = (left[start : start + _ENTRIES] for start in range(0, len(left), _ENTRIES))
        self._publish(Item(entries=part) for part in parts)
        self.catch_up()

    def add_feedback(self, feedback: Feedback) -> bool:
        self.catch_up()
        with store_errors(self.path):
            if find_request(self._open(), feedback) is None:
                return False
        self._publish([Item(feedback=feedback)])
        self.catch_up()
        return True

    def add_look(self, look: Look) -> bool:
        """The first in the stream counts, in every gateway."""
        self._publish([Item(look=look)])
        self.catch_up()
        return self.looks().get(look.experiment) == look

    def close(self) -> None:
        super().close()
        self._redis.close()

    def _position(self) -> bytes:
        with store_errors(self.path):
            row = self._open().execute("SELECT position FROM followed WHERE stream = ?", (STREAM,))
            found = row.fetchone()
        return found[0] if found else _BEGINNING

    def _take(self, item: Item) -> None:
        """What is there already is left as it is."""
        connection = self._open()
        for entry in item.entries:
            known = connection.execute(
                "SELECT 1 FROM requests WHERE call_id = ? AND call_id != ''", (entry.call_id,)
            )
            if known.fetchone() is None:
                put_entry(connection, entry)
        if item.feedback is not None:
            put_feedback(connection, item.feedback)
        if item.look is not None:
            put_look(connection, item.look)

    def _after(self, position: bytes) -> list[tuple[bytes, Item]]:
        """What stands in the stream after it, or the next part of that."""
        reply = self._ask(lambda redis: redis.xread({STREAM: position}, count=_ITEMS_AT_ONCE))
        found = reply[0][1] if reply else []
        return [(id, _read(fields.get(b"item", b""))) for id, fields in found]

    def _publish(self, items: Iterable[Item]) -> None:
        """All of them or none, in one step."""
        pipeline = self._redis.pipeline(transaction=True)
        for item in items:
            pipeline.xadd(STREAM, {b"item": _encoder.encode(item)}, maxlen=MOST_ITEMS)
        if len(pipeline):
            self._ask(lambda _: pipeline.execute())

    def _ask(self, command: Callable[[Redis], Any]) -> Any:
        try:
            return command(self._redis)
        except (RedisError, OSError) as error:
            # What redis-py says may hold the address, which may hold the password.
            reason = type(error).__name__
            raise Unavailable(f"Redis cannot be used: {reason}.", retry_after_s=2.0) from error


def _read(data: bytes) -> Item:
    """What another version has written, and this one cannot read, is passed over."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        _log.warning("an item of the ledger's stream is passed over: %s", error)
        return Item()
