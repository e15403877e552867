"""Output items while they are being written, and the events that tell of them.

Each step gives its events as (type, fields), in order, without their numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from engine.protocol.frames import Kind, TokenLogprob, ToolDelta
from engine.protocol.shapes import chat_logprobs

Happening = tuple[str, dict[str, Any]]


class _Wording(msgspec.Struct, frozen=True):
    """How a kind of text is told: in which part, its field, the names of its events."""

    part: str
    field: str
    event: str

    def fresh(self) -> dict[str, Any]:
        part: dict[str, Any] = {"type": self.part, self.field: ""}
        return part | {"annotations": [], "logprobs": []} if self.part == "output_text" else part


_WORDINGS: dict[Kind, _Wording] = {
    "text": _Wording("output_text", "text", "response.output_text"),
    "refusal": _Wording("refusal", "refusal", "response.refusal"),
    "reasoning": _Wording("reasoning_text", "text", "response.reasoning_text"),
}


class Item(ABC):
    """One of a response's `output`, at `place` in it."""

    def __init__(self, id: str, place: int) -> None:
        self.id = id
        self.place = place
        self.status = "in_progress"

    @property
    def _where(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.place}

    def opened(self) -> Happening:
        return "response.output_item.added", {"output_index": self.place, "item": self.shape()}

    def close(self, status: str) -> list[Happening]:
        """status: `completed`, or `incomplete` where it was cut short"""
        said = self._finished()
        self.status = status
        return [
            *said,
            ("response.output_item.done", {"output_index": self.place, "item": self.shape()}),
        ]

    @abstractmethod
    def shape(self) -> dict[str, Any]:
        """As it stands."""

    @abstractmethod
    def _finished(self) -> list[Happening]:
        """What is told before the item itself is done."""


class Written(Item):
    """A message, or what was thought: parts of text, the last of them being written."""

    def __init__(self, id: str, place: int, *, thought: bool) -> None:
        super().__init__(id, place)
        self.thought = thought
        self._parts: list[dict[str, Any]] = []
        self._kind: Kind = "text"
        self._pieces: list[str] = []

    def shape(self) -> dict[str, Any]:
        parts = [dict(part) for part in self._parts]
        if parts:
            parts[-1][_WORDINGS[self._kind].field] = "".join(self._pieces)
        if self.thought:
            return {
                "id": self.id,
                "type": "reasoning",
                "summary": [],
                "content": parts,
                "status": self.status,
            }
        return {
            "id": self.id,
            "type": "message",
            "status": self.status,
            "role": "assistant",
            "content": parts,
        }

    def write(self, kind: Kind, text: str, logprobs: list[TokenLogprob]) -> list[Happening]:
        """`logprobs` are those of this text; they go with it where it is the answer's."""
        said: list[Happening] = []
        if not self._parts or kind != self._kind:
            said = self._finished()
            self._kind, self._pieces = kind, []
            self._parts.append(_WORDINGS[kind].fresh())
            added = self._where_in_it | {"part": dict(self._parts[-1])}
            said.append(("response.content_part.added", added))
        self._pieces.append(text)
        fields = self._where_in_it | {"delta": text}
        if kind == "text":
            fields["logprobs"] = shown = logprobs_of(logprobs)
            self._parts[-1]["logprobs"] += shown
        said.append((f"{_WORDINGS[kind].event}.delta", fields))
        return said

    @property
    def _where_in_it(self) -> dict[str, Any]:
        return self._where | {"content_index": len(self._parts) - 1}

    def _finished(self) -> list[Happening]:
        if not self._parts:
            return []
        wording, part = _WORDINGS[self._kind], self._parts[-1]
        part[wording.field] = "".join(self._pieces)
        done = self._where_in_it | {wording.field: part[wording.field]}
        if "logprobs" in part:
            done["logprobs"] = part["logprobs"]
        return [
            (f"{wording.event}.done", done),
            ("response.content_part.done", self._where_in_it | {"part": dict(part)}),
        ]


class Call(Item):
    """A call of a function, whose arguments come in pieces."""

    def __init__(self, id: str, place: int, first: ToolDelta) -> None:
        super().__init__(id, place)
        self._call_id = first.id or f"call_{id}"
        self._name = first.name or ""
        self._pieces: list[str] = []

    def shape(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function_call",
            "status": self.status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": "".join(self._pieces),
        }

    def add(self, piece: str) -> list[Happening]:
        if not piece:
            return []
        self._pieces.append(piece)
        return [("response.function_call_arguments.delta", self._where | {"delta": piece})]

    def _finished(self) -> list[Happening]:
        done = self._where | {"name": self._name, "arguments": "".join(self._pieces)}
        return [("response.function_call_arguments.done", done)]


def logprobs_of(tokens: list[TokenLogprob]) -> list[dict[str, Any]]:
    """As chat has them."""
    shape = chat_logprobs(tokens, [])
    return [] if shape is None else list(shape["content"])
