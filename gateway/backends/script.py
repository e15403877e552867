"""The script of a scripted backend: what happens in a call, and when.

A script is a JSON object, or a file of one:

    {"steps": [{"text": "Hel"}, {"delay_s": 0.02, "text": "lo"}]}

`steps` is played for every call. `scripts`, a list of such lists, is played one list a call,
the last for all later calls. See `Step` for what a step can do. A script that ends without a
terminal is completed: each choice still open gets the finish `stop`, and usage counts what was
played. Like any backend it obeys the output budget: a choice that reaches it ends with `length`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from engine.protocol.errors import ConfigError
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
from gateway.backends.base import Call
from policies.request import Request

Happening = StreamEvent | Literal["hang"]


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


def timeline(
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
