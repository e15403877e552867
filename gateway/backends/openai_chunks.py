"""The chunks of an OpenAI-compatible stream as events of ours. No I/O."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import msgspec

from engine.protocol.errors import FewerError, UpstreamFailed
from engine.protocol.frames import Event, Failed, Finish, StreamEvent, ToolDelta, Usage
from gateway.backends.openai_errors import error_in_stream
from gateway.backends.openai_shapes import (
    Choice,
    Chunk,
    Delta,
    Function,
    ToolCall,
    logprobs_of,
    usage_of,
)
from gateway.backends.sse import ServerSentEvent

DONE = "[DONE]"
_FINISHES: dict[str, Finish] = {
    "stop": "stop",
    "stop_sequence": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
}


_decoder = msgspec.json.Decoder(Chunk)


class ChunkReader:
    """Turns server-sent events into ours until the terminal, and holds the upstream to its form.

    An answer is only complete when each choice that was asked for has a finish and `[DONE]` has
    come; anything less ends in a `Failed`. Without usage from the upstream it is estimated:
    tokens out are counted from the deltas, one for each that has no logprobs.

    ended: the terminal was given; nothing more may be fed
    """

    def __init__(
        self, name: str, id: str, choices: int, estimate_prompt: Callable[[], int] = int
    ) -> None:
        """estimate_prompt: tokens of the prompt, asked for only when the upstream tells none."""
        self._name = name
        self._id = id
        self._choices = choices
        self._estimate_prompt = estimate_prompt
        self._finished: set[int] = set()
        self._tools: dict[tuple[int, int], str | None] = {}
        self._counted_tokens = 0
        self._usage: Usage | None = None
        self.ended = False

    def feed(self, events: list[ServerSentEvent]) -> list[StreamEvent]:
        """Our events for these; ends with the terminal when the stream has ended."""
        out: list[StreamEvent] = []
        for event in events:
            try:
                out += self._done() if event.data == DONE else self._chunk(event.data)
            except FewerError as error:
                out.append(self.fail(error))
            if self.ended:
                break
        return out

    def finish(self, rest: list[ServerSentEvent]) -> list[StreamEvent]:
        """The upstream closed the stream; `rest` is what its parser had not completed.

        Some servers leave out the blank line after `[DONE]`; nothing else is accepted so.
        """
        if [event.data for event in rest] == [DONE]:
            return self.feed(rest)
        return [
            self.fail(
                UpstreamFailed(f"The backend of {self._name} broke off before the answer's end.")
            )
        ]

    def fail(self, error: FewerError) -> Failed:
        """The terminal for `error`."""
        self.ended = True
        return Failed.of(self._id, error)

    def _done(self) -> list[StreamEvent]:
        if len(self._finished) < self._choices:
            raise UpstreamFailed(
                f"The backend of {self._name} ended its stream without a finish_reason."
            )
        self.ended = True
        return [Event(self._id, usage=self._usage or self._estimated())]

    def _estimated(self) -> Usage:
        return Usage(self._estimate_prompt(), self._counted_tokens, estimated=True)

    def _chunk(self, data: str) -> list[StreamEvent]:
        try:
            chunk = _decoder.decode(data)
        except msgspec.DecodeError as error:
            raise UpstreamFailed(
                f"The backend of {self._name} sent a chunk that is not OpenAI's form: {error}."
            ) from error
        if chunk.error:
            raise error_in_stream(self._name, msgspec.json.decode(data))
        if chunk.choices is msgspec.UNSET and chunk.usage is None:
            # An error in the flat form of older servers, or something else entirely.
            raise error_in_stream(self._name, msgspec.json.decode(data))
        if chunk.usage is not None:
            self._usage = usage_of(chunk.usage)
        out: list[StreamEvent] = []
        for choice in chunk.choices or ():
            out += self._choice(choice)
        return out

    def _choice(self, choice: Choice) -> list[StreamEvent]:
        number = choice.index
        if not 0 <= number < self._choices:
            raise UpstreamFailed(
                f"The backend of {self._name} sent choice {number} of {self._choices}."
            )
        if number in self._finished:
            # Some servers repeat the finish beside the usage.
            return []
        events = self._content(choice)
        if isinstance(choice.seed, int):
            # Engines of ours tell the seed that was drawn, with a choice's first chunk.
            events.insert(0, Event(self._id, number, seed=choice.seed))
        if choice.finish_reason:  # some servers write "" for null
            finish = self._finish(choice.finish_reason)
            stop = choice.stop_reason if isinstance(choice.stop_reason, str | int) else None
            landed = choice.landed is True
            events.append(Event(self._id, number, finish=finish, stop=stop, landed=landed))
            self._finished.add(number)
        return events

    def _content(self, choice: Choice) -> list[StreamEvent]:
        id, number = self._id, choice.index
        logprobs, refusal_logprobs = logprobs_of(choice.logprobs)
        events: list[StreamEvent] = []
        delta = choice.delta or Delta(content=choice.text)
        if reasoning := delta.reasoning_content or delta.reasoning:
            events.append(Event(id, number, "reasoning", reasoning, 1))
        # A token whose text is held back, or empty, still has its logprobs.
        if delta.content or logprobs:
            tokens = len(logprobs) if logprobs else 1
            events.append(Event(id, number, "text", delta.content or "", tokens, logprobs))
        if delta.refusal or refusal_logprobs:
            tokens = len(refusal_logprobs) if refusal_logprobs else 1
            text = delta.refusal or ""
            events.append(Event(id, number, "refusal", text, tokens, refusal_logprobs))
        for position, call in enumerate(delta.tool_calls or ()):
            events.append(Event(id, number, "tool", "", 1, tool=self._tool(number, position, call)))
        self._counted_tokens += sum(event.tokens for event in events if isinstance(event, Event))
        return events

    def _tool(self, choice: int, position: int, call: ToolCall) -> ToolDelta:
        """Id and name with a call's first piece, and only there.

        Some servers leave the id out, some repeat it in each piece, which clients concatenate.
        """
        function = call.function or Function()
        index = self._index(choice, position, call)
        arguments = function.arguments or ""
        if (choice, index) in self._tools:
            return ToolDelta(index, arguments=arguments)
        self._tools[choice, index] = call.id
        id = call.id or f"call_{uuid.uuid4().hex[:24]}"
        return ToolDelta(index, id, function.name, arguments)

    def _index(self, choice: int, position: int, call: ToolCall) -> int:
        """Where it is left out, an id that is new makes a call of its own."""
        if call.index is not None:
            return call.index
        if not call.id:
            return position
        ids = [id for (other, _), id in self._tools.items() if other == choice]
        return ids.index(call.id) if call.id in ids else len(ids)

    def _finish(self, reason: str) -> Finish:
        try:
            return _FINISHES[reason]
        except KeyError:
            raise UpstreamFailed(
                f"The backend of {self._name} ended with finish_reason {reason[:64]!r}."
            ) from None
