"""Soft limits of upstreams that know none: the gateway ends the answer, and cancels the rest.

Where text may end is told by the rule that our engine goes by, `engine.protocol.landing`. How many
tokens have come is counted here: exactly where an upstream sends logprobs, otherwise a token for
each short delta, as all servers send them that do not join several, and an estimate of longer ones.
"""

from __future__ import annotations

from msgspec.structs import replace

from engine.protocol.frames import Accepted, Event, StreamEvent, TokenLogprob, Usage
from engine.protocol.landing import LandingPoints
from gateway.backends.base import Call, Stream, is_terminal
from gateway.estimate import prompt_tokens
from policies.counting import text_tokens

_ONE_TOKEN_BYTES = 16
"""Deltas up to this length are taken for a token: few words of any vocabulary are longer."""


class LandingStream(Stream):
    """`inner`, of a request with a soft limit, up to where its choices have landed.

    What was cut off is cancelled upstream as soon as no choice goes on. The upstream then tells no
    usage: it is estimated from what has come, that which is not passed on included, since it was
    produced and will be charged. Where one choice lands and another goes on to its own end, the
    first one's rest is produced all the same, and the usage is the upstream's.
    """

    def __init__(self, call: Call, soft_max_tokens: int, inner: Stream) -> None:
        self._call = call
        self._inner = inner
        # Where thoughts have a room of their own, the soft limit is a share of the answer's.
        is_split = call.request.reasoning_tokens is not None
        self._choices = [_Choice(soft_max_tokens, is_split) for _ in range(call.request.choices)]
        self._accepted_tokens: int | None = None
        self._ended = False

    async def receive(self) -> list[StreamEvent]:
        while not self._ended:
            arrived = await self._inner.receive()
            self._ended = not arrived or is_terminal(arrived[-1])
            events = [event for each in arrived for event in self._passed(each)]
            if not self._ended and self._is_cut_off:
                self._ended = True
                await self._inner.aclose()
                events.append(Event(self._call.id, usage=self._usage()))
            if events:
                return events
        return []

    async def aclose(self) -> None:
        self._ended = True
        await self._inner.aclose()

    @property
    def _is_cut_off(self) -> bool:
        """Has every choice ended, and one of them here alone, so that it goes on upstream?"""
        return all(choice.ended for choice in self._choices) and any(
            not choice.ended_upstream for choice in self._choices
        )

    def _passed(self, event: StreamEvent) -> list[StreamEvent]:
        if isinstance(event, Accepted):
            self._accepted_tokens = event.prompt_tokens
        if type(event) is not Event or event.usage is not None:
            return [event]
        passed = self._choices[event.choice].feed(event)
        return [] if passed is None else [passed]

    def _usage(self) -> Usage:
        prompt = self._accepted_tokens
        return Usage(
            prompt_tokens=prompt_tokens(self._call.request) if prompt is None else prompt,
            completion_tokens=sum(choice.tokens for choice in self._choices),
            estimated=True,
        )


class _Choice:
    """One choice: what has come of it, and where it lands.

    tokens:         that have come
    ended:          nothing more is passed on
    ended_upstream: nothing more will come
    """

    def __init__(self, soft_max_tokens: int, is_split: bool) -> None:
        self.tokens = self._counted = 0
        self._is_split = is_split
        self.ended = self.ended_upstream = False
        self._soft_max_tokens = soft_max_tokens
        self._chars = 0
        self._points: LandingPoints | None = LandingPoints()

    def feed(self, event: Event) -> Event | None:
        """What is to be passed on of `event`."""
        tokens = _tokens(event)
        self._count(event, tokens)
        self.ended_upstream = self.ended_upstream or event.finish is not None
        if self.ended:
            return None
        passed = self._landed(event) or event
        self.ended = passed.finish is not None
        return passed

    def _count(self, event: Event, tokens: int) -> None:
        """Note them; those that reach the soft limit make ends count."""
        self.tokens += tokens
        if self._is_split and event.kind == "reasoning":
            return
        before = self._counted
        self._counted += tokens
        if self._points is not None and before < self._soft_max_tokens <= self._counted:
            # Of a delta of several tokens, what is before the limit does not count.
            text = event.text if event.kind == "text" else ""
            share = (self._soft_max_tokens - before - 1) / tokens
            self._points.earliest = self._chars + int(len(text) * share) + 1

    def _landed(self, event: Event) -> Event | None:
        """`event` up to the place where it lands, if it does."""
        if event.kind == "tool":
            # The rest of a call is not to be cut off, nor are the calls after it.
            self._points = None
        if self._points is None or event.kind != "text":
            return None
        start, self._chars = self._chars, self._chars + len(event.text)
        if (end := self._points.feed(event.text)) is not None:
            # It may be before this event, with nothing but white space between.
            chars = max(0, end - start)
            text, logprobs = event.text[:chars], _within(event.logprobs, chars)
            return replace(event, text=text, logprobs=logprobs, finish="length", landed=True)
        if event.finish == "length" and self._points.ends_cleanly:
            return replace(event, landed=True)
        return None


def _tokens(event: Event) -> int:
    """Of one delta."""
    if event.logprobs or len(event.text.encode("utf-8", "surrogatepass")) <= _ONE_TOKEN_BYTES:
        return event.tokens
    return max(event.tokens, text_tokens(event.text))


def _within(logprobs: list[TokenLogprob] | None, chars: int) -> list[TokenLogprob] | None:
    """Those of the tokens that begin in the first `chars` characters."""
    kept: list[TokenLogprob] = []
    for logprob in logprobs or ():
        if chars <= 0:
            break
        kept.append(logprob)
        chars -= len(logprob.token)
    return kept or None
