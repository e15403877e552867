"""A backend that plays a script: the same events after the same delays for every call.

For tests and benchmarks; no model is behind it. The script is a JSON object, or a file of one:

    {"steps": [{"text": "Hel"}, {"delay_s": 0.02, "text": "lo"}]}

`steps` is played for every call. `scripts`, a list of such lists, is played one list a call,
the last for all later calls. See `Step` for what a step can do. A script that ends without a
terminal is completed: each choice still open gets the finish `stop`, and usage counts what was
played. Like any backend it obeys the output budget: a choice that reaches it ends with `length`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from engine.protocol.errors import ConfigError, DeadlineExceeded, Unavailable, from_code
from engine.protocol.frames import (
    Accepted,
    Event,
    Failed,
    Finish,
    Started,
    StreamEvent,
    TokenLogprob,
    ToolDelta,
    Usage,
)
from gateway.backends.base import Backend, Call, Capabilities, Stream, is_terminal
from policies.request import Request

REMEMBERED_CALLS = 1000
EVENTS_PER_RECEIVE = 32


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An error by its wire code, as `engine.protocol.errors.from_code` reads it."""

    code: str
    message: str = "The script says so."
    param: str | None = None
    retry_after_s: float | None = None


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step of a script. Everything but `delay_s` and `repeat` names what happens.

    delay_s:  due this long after the step before it; measured from the start of the call, so
              that a slow reader does not stretch the script
    repeat:   play this step so many times, each after its delay
    choice:   which choice it belongs to; every choice of the request when absent
    text, reasoning, tool, logprobs: content; `tokens` is how many tokens it stands for
    finish:   the choice ends
    usage:    the call ends; when the script gives none, usage counts what was played
    accepted: an `Accepted` frame with so many prompt tokens
    started:  a `Started` frame with so many cached tokens
    refuse:   only as the first step: the call does not start, `generate` raises this
    fail:     the call ends with this error
    hang:     nothing more happens until the call is cancelled or its deadline passes
    """

    delay_s: float = 0.0
    repeat: int = 1
    choice: int | None = None
    text: str | None = None
    reasoning: str | None = None
    tool: ToolDelta | None = None
    logprobs: list[TokenLogprob] | None = None
    tokens: int = 1
    finish: Finish | None = None
    usage: Usage | None = None
    accepted: int | None = None
    started: int | None = None
    refuse: Fault | None = None
    fail: Fault | None = None
    hang: bool = False


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole script.

    steps, scripts: exactly one of the two, see the module
    prompt_tokens:  reported in usage
    ready:          what `ready()` says
    images:         capability
    embedding:      the answer to every embeddings request; null means none are made
    """

    steps: list[Step] | None = None
    scripts: list[list[Step]] | None = None
    prompt_tokens: int = 1
    ready: bool = True
    images: bool = False
    embedding: dict[str, Any] | None = None

    @classmethod
    def read(cls, path: Path) -> Script:
        """Raises `ConfigError` naming the file when it is missing or is no script."""
        try:
            return cls.of(msgspec.json.decode(path.read_bytes()))
        except OSError as error:
            raise ConfigError(f"{path}: cannot read the script: {error.strerror}.") from error
        except (msgspec.DecodeError, ConfigError) as error:
            raise ConfigError(f"{path}: not a script: {error}") from error

    @classmethod
    def of(cls, value: dict[str, Any]) -> Script:
        """Raises `ConfigError` saying which field is wrong."""
        try:
            script = msgspec.convert(value, cls)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{error}.") from error
        if (script.steps is None) == (not script.scripts):
            raise ConfigError("Give exactly one of steps and scripts.")
        return script

    def nth(self, number: int) -> list[Step]:
        """The steps of the call with this number, counted from 0."""
        if self.steps is not None:
            return self.steps
        scripts = self.scripts or [[]]
        return scripts[min(number, len(scripts) - 1)]


class ScriptedBackend(Backend):
    """Plays a script and records what became of its calls.

    calls:      the latest calls, oldest first
    cancelled:  ids of calls that were closed before their terminal
    running:    ids of calls that are neither ended nor closed
    embeddings: bodies of embeddings requests
    """

    def __init__(self, name: str, script: Script | dict[str, Any] | Path) -> None:
        if isinstance(script, Path):
            script = Script.read(script)
        elif isinstance(script, dict):
            script = Script.of(script)
        self.name = name
        self.script = script
        self.capabilities = Capabilities(
            images=script.images, embeddings=script.embedding is not None
        )
        self.is_ready = script.ready
        self.calls: deque[Call] = deque(maxlen=REMEMBERED_CALLS)
        self.cancelled: deque[str] = deque(maxlen=REMEMBERED_CALLS)
        self.embeddings: deque[dict[str, Any]] = deque(maxlen=REMEMBERED_CALLS)
        self._streams: dict[str, ScriptedStream] = {}
        self._started = 0

    def __repr__(self) -> str:
        return f"<ScriptedBackend {self.name} {len(self._streams)} running, {self._started} calls>"

    @property
    def running(self) -> frozenset[str]:
        return frozenset(self._streams)

    async def generate(self, call: Call) -> Stream:
        steps = self.script.nth(self._started)
        self._started += 1
        self.calls.append(call)
        if steps and steps[0].refuse is not None:
            refusal = steps[0].refuse
            await asyncio.sleep(steps[0].delay_s)
            raise from_code(
                refusal.code,
                refusal.message,
                param=refusal.param,
                retry_after_s=refusal.retry_after_s,
            )
        stream = ScriptedStream(self, call, steps)
        self._streams[call.id] = stream
        return stream

    async def embed(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.script.embedding is None:
            return await super().embed(body)
        self.embeddings.append(body)
        return self.script.embedding

    async def ready(self) -> bool:
        return self.is_ready

    async def aclose(self) -> None:
        self.is_ready = False
        for stream in list(self._streams.values()):
            stream.fail(Failed.of(stream.id, Unavailable("The gateway is shutting down.")))

    def forget(self, id: str, *, cancelled: bool) -> None:
        """The stream with this id has ended, or was closed before it had."""
        if self._streams.pop(id, None) is not None and cancelled:
            self.cancelled.append(id)


Happening = StreamEvent | Literal["hang"]


class ScriptedStream(Stream):
    """One playing of a script. Events are due by the clock, whether or not they are read."""

    def __init__(self, backend: ScriptedBackend, call: Call, steps: list[Step]) -> None:
        self.id = call.id
        self._backend = backend
        self._loop = asyncio.get_running_loop()
        self._due_s = self._loop.time()
        self._deadline_s = call.deadline_s
        self._timeline = _timeline(call, steps, backend.script.prompt_tokens)
        self._next: tuple[float, Happening] | None = None
        self._failed: Failed | None = None
        self._wake: asyncio.Event = asyncio.Event()
        self._ended = False

    async def receive(self) -> list[StreamEvent]:
        if self._ended:
            return []
        batch: list[StreamEvent] = []
        while len(batch) < EVENTS_PER_RECEIVE and not self._ended:
            event = await self._take(wait=not batch)
            if event is None:
                break
            batch.append(event)
            if is_terminal(event):
                self._end(cancelled=False)
        return batch

    async def aclose(self) -> None:
        self._end(cancelled=True)
        self._wake.set()

    def fail(self, failed: Failed) -> None:
        """End the stream with this, whatever the script says."""
        self._failed = failed
        self._wake.set()

    async def _take(self, *, wait: bool) -> StreamEvent | None:
        """The next event: when it is due, or None when it is not due and `wait` is false."""
        if self._next is None:
            delay_s, event = next(self._timeline)
            self._due_s += delay_s
            self._next = self._due_s, event
        due_s, event = self._next
        if event == "hang":
            due_s = float("inf")
        while self._failed is None and (now := self._loop.time()) < due_s:
            if not wait or self._ended:
                return None
            if self._deadline_s is not None and now >= self._deadline_s:
                return Failed.of(self.id, DeadlineExceeded("The request's time ran out."))
            await self._sleep_until(due_s)
        if self._failed is not None:
            return self._failed
        self._next = None
        return event if event != "hang" else None

    async def _sleep_until(self, due_s: float) -> None:
        until_s = due_s if self._deadline_s is None else min(due_s, self._deadline_s)
        try:
            async with asyncio.timeout_at(None if until_s == float("inf") else until_s):
                await self._wake.wait()
        except TimeoutError:
            return

    def _end(self, *, cancelled: bool) -> None:
        if not self._ended:
            self._ended = True
            self._backend.forget(self.id, cancelled=cancelled)


def _timeline(
    call: Call, steps: list[Step], prompt_tokens: int
) -> Iterator[tuple[float, Happening]]:
    """(delay in seconds, event) in order, until the terminal."""
    request = call.request
    produced = [0] * request.choices
    finished: set[int] = set()
    delay_s = 0.0
    for step in (each for each in steps for _ in range(each.repeat)):
        delay_s += step.delay_s
        for event in _events(call.id, step, request, produced, finished):
            yield delay_s, event
            delay_s = 0.0
    for choice in sorted(set(range(request.choices)) - finished):
        yield delay_s, Event(call.id, choice, finish="stop")
        delay_s = 0.0
    usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=sum(produced))
    yield delay_s, Event(call.id, usage=usage)


def _events(
    id: str, step: Step, request: Request, produced: list[int], finished: set[int]
) -> Iterator[Happening]:
    if step.accepted is not None:
        yield Accepted(id, step.accepted)
    if step.started is not None:
        yield Started(id, step.started, 0.0)
    chosen = range(request.choices) if step.choice is None else [step.choice]
    for choice in chosen:
        if choice < request.choices and choice not in finished:
            yield from _content(id, step, choice, request.max_tokens, produced, finished)
    if step.hang:
        yield "hang"
    if step.fail is not None:
        fault = step.fail
        yield Failed(id, fault.code, fault.message, fault.param, fault.retry_after_s)
    if step.usage is not None:
        yield Event(id, usage=step.usage)


def _content(
    id: str,
    step: Step,
    choice: int,
    max_tokens: int | None,
    produced: list[int],
    finished: set[int],
) -> Iterator[Event]:
    pieces = [
        Event(id, choice, "reasoning", step.reasoning, step.tokens) if step.reasoning else None,
        Event(id, choice, "text", step.text, step.tokens, step.logprobs) if step.text else None,
        Event(id, choice, "tool", "", step.tokens, tool=step.tool) if step.tool else None,
    ]
    for event in filter(None, pieces):
        if max_tokens is not None and produced[choice] + event.tokens > max_tokens:
            finished.add(choice)
            yield Event(id, choice, finish="length")
            return
        produced[choice] += event.tokens
        yield event
    if step.finish is not None:
        finished.add(choice)
        yield Event(id, choice, finish=step.finish)
