"""The policy `history`, strategy `summary`: a record takes the place of old turns.

Cuts are settled ahead (`policies.foresight`), and the record of what the next one leaves out is
asked for at once, as a continuation of the prompt that is in the model's prefix cache already: the
messages before the cut, then the request for a record. An earlier record is among those messages,
so that a later one includes it. A cut is made when it is due and its record is known; until then
the history stays as it is, up to `high_tokens` twice or what the model takes. Beyond that it is
cut all the same, and the reason says so.

What is known is looked up by the gateway before `decide`, under the keys that `recalls` names, and
given in the context. The record stands behind the system messages and does not change until the
next cut, so that every prompt in between begins with the one before.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from policies import record as records
from policies.base import Mode, Policy
from policies.context import Context
from policies.counting import json_tokens, message_tokens
from policies.decision import Decision, PromptTokens, keep, rewrite
from policies.foresight import Course, Link, ahead_tokens, course_of
from policies.history import Cut
from policies.record import Child, Record
from policies.request import Request
from policies.turns import Message, Turns, turns_of

KEPT_PARAMETERS = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "documents",
        "chat_template", "chat_template_kwargs", "reasoning_effort", "user", "safety_identifier",
        "prompt_cache_key",
    }
)  # fmt: skip
"""Of a request's parameters, those that its child has as well: how tokens are chosen, whose it is,
and what stands in the prompt. The rest is about the form of the answer."""


class Talk(msgspec.Struct, frozen=True):
    """A conversation, counted."""

    messages: list[Message]
    turns: Turns
    counts: list[int]
    tools_tokens: int

    @property
    def tokens(self) -> int:
        return self.tools_tokens + sum(self.counts)


class State(msgspec.Struct, frozen=True):
    """Where a conversation is.

    base:   the latest cut whose record is known, or the beginning
    record: of what `base` leaves out; None at the beginning
    since:  number of messages with which `base` was due
    due:    the latest cut that is due
    wanted: cuts after `base` whose records are not known
    """

    base: Cut
    record: Record | None
    since: int
    due: Cut
    wanted: list[Link]


class SummaryPolicy(Policy):
    """high_tokens, low_tokens: as those of `window`; both count the record
    summary_tokens: of a record, at most
    window_tokens:  what a request to the model may span; None where nothing is known of it
    """

    name = "history"

    def __init__(
        self,
        high_tokens: int,
        low_tokens: int,
        summary_tokens: int,
        mode: Mode = "active",
        *,
        window_tokens: int | None = None,
    ) -> None:
        self.high_tokens = high_tokens
        self.low_tokens = low_tokens
        self.summary_tokens = summary_tokens
        self.window_tokens = window_tokens
        self.mode = mode
        self._latest: tuple[Request, Talk, Course | None] | None = None

    def recalls(self, request: Request, context: Context) -> Sequence[bytes]:
        _, course = self._folded(request)
        return [link.key for link in _latest_first(course)] if course else ()

    def decide(self, request: Request, context: Context) -> Decision:
        talk, course = self._folded(request)
        if course is None:
            return keep(f"{talk.tokens} tokens, within {self.high_tokens}")
        state = _state_of(course, context)
        child = self._child(request, talk, state)
        asking = ", a record is asked for" if child else ""
        shown, why = self._shown(request, talk, state)
        messages = self._composed(talk, shown, state)
        left_out = len(talk.messages) - sum(_kept(talk, shown))
        if not left_out:
            return keep(f"{talk.tokens} tokens{why}{asking}", child=child)
        after = talk.tools_tokens + sum(map(message_tokens, messages))
        return rewrite(
            replace(request, messages=messages),
            f"{left_out} of {len(talk.messages)} messages left out: {talk.tokens} to {after} "
            f"tokens{why}{asking}",
            prompt=PromptTokens(talk.tokens, after),
            child=child,
        )

    @property
    def record_tokens(self) -> int:
        """Of the longest record, with what surrounds it."""
        return self.summary_tokens + sum(map(message_tokens, records.told("")))

    def _answer_tokens(self) -> int:
        """Of a child, at most."""
        return self.summary_tokens

    def _question(self) -> Message:
        return records.question(self.summary_tokens)

    def _notes(self, talk: Talk, state: State, kept: list[bool]) -> dict[int, list[Message]]:
        """What is told besides, by the message that it stands before. It does not depend on what
        comes after."""
        return {}

    def _folded(self, request: Request) -> tuple[Talk, Course | None]:
        """No course where there can be no cut. `recalls` and `decide` ask for the same one."""
        latest = self._latest
        if latest is None or latest[0] is not request:
            talk = _talk_of(request)
            latest = request, talk, self._course(talk) if self._is_long(talk) else None
            # Read once: another thread may be at another tenant's request.
            self._latest = latest
        return latest[1:]

    def _is_long(self, talk: Talk) -> bool:
        """May there be a cut at all, or one that is settled?"""
        ahead = ahead_tokens(self.high_tokens, self.low_tokens)
        return bool(talk.messages) and talk.tokens > self.high_tokens - ahead

    def _course(self, talk: Talk) -> Course:
        return course_of(
            talk.messages,
            talk.turns,
            talk.counts,
            fixed_tokens=talk.tools_tokens,
            high_tokens=self.high_tokens,
            low_tokens=self.low_tokens,
            record_tokens=self.record_tokens,
        )

    def _shown(self, request: Request, talk: Talk, state: State) -> tuple[Cut, str]:
        """The cut that holds, and why it is not the one that is due."""
        if state.due == state.base:
            return state.base, ""
        if self._tokens(talk, state.base, state.record) <= self._most_tokens(request):
            return state.base, ", the cut waits for its record"
        return state.due, ", cut without a record of all of it"

    def _most_tokens(self, request: Request) -> int:
        """So much a prompt may count while it waits. Counts are a sixth too low at worst."""
        most = 2 * self.high_tokens
        if self.window_tokens is not None:
            answer = min(request.max_tokens or 0, self.window_tokens // 4)
            most = min(most, (self.window_tokens - answer) * 5 // 6)
        return max(most, self.high_tokens)

    def _child(self, request: Request, talk: Talk, state: State) -> Child | None:
        """For the latest wanted record that can be asked for at once."""
        most = self._most_tokens(request)
        starts = [(link, state.base) for link in reversed(state.wanted)]
        if starts and starts[0][0].cut.unit > state.due.unit:
            # Where so much is not known that no record of it all can be asked for.
            starts.append((starts[0][0], state.due))
        for link, cut in starts:
            if self._tokens(talk, cut, state.record, link.place) <= most:
                asked = self._composed(talk, cut, state, link.place)
                return self._asking(request, asked, state, link)
        return None

    def _asking(self, request: Request, asked: list[Message], state: State, link: Link) -> Child:
        tokens = self._answer_tokens()
        facts = self._answer_tokens() > self.summary_tokens
        forced = request.tool_choice not in (None, "auto", "none")
        child = replace(
            request,
            messages=[*asked, self._question()],
            max_tokens=tokens,
            soft_max_tokens=None if facts else tokens * 3 // 4,
            clamp=True,
            n=1,
            # Without its tools, or with `none`, the prompt would begin otherwise.
            tool_choice=None if forced else request.tool_choice,
            schema=None,
            stream=True,
            parameters={k: v for k, v in request.parameters.items() if k in KEPT_PARAMETERS},
        )
        before = state.record.facts if state.record else ()
        return Child(child, link.key, tokens, facts=facts, before=before)

    def _composed(
        self, talk: Talk, cut: Cut, state: State, end: int | None = None
    ) -> list[Message]:
        """What is sent under a cut; `end`: of the messages before it alone."""
        kept = _kept(talk, cut, end)
        notes = self._notes(talk, state, kept)
        messages: list[Message] = []
        for place, message in enumerate(talk.messages):
            if kept[place]:
                messages += [*notes.get(place, ()), message]
        if state.record is None:
            return messages
        place = next((i for i, each in enumerate(messages) if not _is_system(each)), len(messages))
        return [*messages[:place], *records.told(state.record.summary), *messages[place:]]

    def _tokens(self, talk: Talk, cut: Cut, record: Record | None, end: int | None = None) -> int:
        """What `_composed` counts, with the longest record."""
        kept = _kept(talk, cut, end)
        tokens = sum(count for count, is_kept in zip(talk.counts, kept, strict=True) if is_kept)
        return talk.tools_tokens + tokens + (self.record_tokens if record else 0)


def _talk_of(request: Request) -> Talk:
    messages = request.messages
    return Talk(
        messages=messages,
        turns=turns_of(messages),
        counts=[message_tokens(message) for message in messages],
        tools_tokens=json_tokens(request.tools) if request.tools else 0,
    )


def _latest_first(course: Course) -> list[Link]:
    return [*([course.planned] if course.planned else []), *reversed(course.made)]


def _state_of(course: Course, context: Context) -> State:
    base, record, since = course.floor, None, 0
    wanted: list[Link] = []
    for link in _latest_first(course):
        known = records.decode(context.known.get(link.key))
        if known is None:
            wanted.append(link)
        elif link is not course.planned:
            base, record, since = link.cut, known, link.due
            break
    due = course.made[-1].cut if course.made else course.floor
    return State(base, record, since, due, wanted[::-1])


def _kept(talk: Talk, cut: Cut, end: int | None = None) -> list[bool]:
    """Of each message. end: only units that are over before this message."""
    unit_of = talk.turns.unit_of
    kept = [cut.keeps(talk.turns, unit) for unit in unit_of]
    if end is None:
        return kept
    open_units = set(unit_of[end:])
    return [
        is_kept and place < end and unit not in open_units
        for place, (is_kept, unit) in enumerate(zip(kept, unit_of, strict=True))
    ]


def _is_system(message: Message) -> bool:
    return message.get("role") in ("system", "developer")
