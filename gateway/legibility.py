"""Can a program read the answer that it asked for? JSON that parses, arguments of tools that do.

A sign of quality that is compared between the arms of a holdout: a policy that ends answers early,
or asks another model, may leave programs with half an object.
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from engine.protocol.frames import Event, StreamEvent
from policies.request import Request

MAX_CHARS = 1_000_000
"""Of one answer; of a longer one nobody knows."""

_FORMS = ("json_object", "json_schema")
_PARAMETERS = ("guided_json", "json_schema")


class Legibility:
    """Hears the events of one answer, as its client gets them.

    wants_json: every choice that calls no tool is to be JSON
    """

    def __init__(self, *, wants_json: bool) -> None:
        self._wants_json = wants_json
        self._texts: dict[int, list[str]] = {}
        self._calls: dict[tuple[int, int], list[str]] = {}
        self._chars = 0

    @classmethod
    def of(cls, request: Request) -> Legibility | None:
        """None where nothing of the answer has to be read by a program."""
        wants_json = _wants_json(request)
        if not (wants_json or request.tools or request.parameters.get("functions")):
            return None
        return cls(wants_json=wants_json)

    def feed(self, events: Iterable[StreamEvent]) -> None:
        for event in events:
            if type(event) is not Event or self._chars > MAX_CHARS:
                continue
            if event.tool is not None:
                self._chars += len(event.tool.arguments)
                place = event.choice, event.tool.index
                self._calls.setdefault(place, []).append(event.tool.arguments)
            elif self._wants_json and event.kind == "text":
                self._chars += len(event.text)
                self._texts.setdefault(event.choice, []).append(event.text)

    @property
    def failed(self) -> bool:
        """Of an answer that has ended well: is there something that cannot be read?"""
        if self._chars > MAX_CHARS:
            return False
        calling = {choice for choice, _ in self._calls}
        texts = [text for choice, text in self._texts.items() if choice not in calling]
        # Some servers send no arguments at all for a tool that takes none.
        calls = [call for call in self._calls.values() if "".join(call).strip()]
        return not all(_parses("".join(pieces)) for pieces in (*texts, *calls))


def _wants_json(request: Request) -> bool:
    form = request.parameters.get("response_format")
    asked = isinstance(form, dict) and form.get("type") in _FORMS
    named = any(request.parameters.get(name) for name in _PARAMETERS)
    return asked or named or request.schema is not None


def _parses(text: str) -> bool:
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True
