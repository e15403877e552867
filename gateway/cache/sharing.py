"""Where a request's answer comes from: kept, on its way to another, or a model.

Whatever is shared passes the event transformers of each request by itself: what is kept and
joined is what the model said.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Hashable
from functools import cached_property, partial
from typing import TYPE_CHECKING

import msgspec

from gateway.backends.base import Stream
from gateway.cache.answers import Answers
from gateway.cache.flights import Flight, Flights, Note
from gateway.cache.kept import CUT, WHOLE, Kept, KeptStream, lasting
from gateway.cache.question import Question
from gateway.cache.terms import Terms
from gateway.stores.cache_memory import MemoryCacheStore
from gateway.telemetry.metrics import Metrics
from gateway.visit import Source, Visit

if TYPE_CHECKING:
    from gateway.cache.semantic import Similar, SimilarAnswers

MAX_ANSWER_BYTES = 1024 * 1024

Begin = Callable[[Note, str], Awaitable[Stream]]
"""Asks a model, with a draft of its answer, which may be empty. Else as `flights.Begin`."""


class Asked(msgspec.Struct, frozen=True):
    """A request, as far as sharing is concerned.

    key:      what its answer is kept under (`policies.cache.key_of`)
    backends: those that may answer it, in order. A backend of the same name in another
              configuration is another: it may be closed before its reader is done
    models:   whose answers may be kept: a fallback's may not
    choices:  how many outputs it makes
    question: what it is compared with earlier ones by; None for one that is not
    """

    key: bytes
    backends: tuple[Hashable, ...]
    models: tuple[str, ...]
    choices: int
    route: str
    terms: Terms
    question: Question | None = None


class Sharing:
    """One for a process; it outlasts every configuration. Closes `answers`."""

    def __init__(self, answers: Answers, metrics: Metrics) -> None:
        self._answers = answers
        self._metrics = metrics
        self._flights = Flights()

    @classmethod
    def in_memory(cls, metrics: Metrics) -> Sharing:
        """With room for a few answers, in this process alone."""
        store = MemoryCacheStore(16 * MAX_ANSWER_BYTES)
        return cls(Answers(store, metrics, MAX_ANSWER_BYTES), metrics)

    def __repr__(self) -> str:
        return f"<Sharing {self._flights!r}, {self._answers!r}>"

    async def stream(self, asked: Asked, begin: Begin, visit: Visit) -> Stream:
        """The answer's events; says in the visit where they come from.

        begin: asks a model, when it must be
        Raises as `begin` does.
        """
        terms = asked.terms
        if terms.is_alone:
            self._note(asked.route, visit, "bypass")
            return await begin(partial(_booked, visit), "")
        await self._report(asked)
        flight, near = self._joinable(asked), None
        if flight is None and terms.read:
            kept = await self._answers.find(asked.key, terms.max_age_s)
            if kept is not None:
                return self._hit(asked, kept, visit, "hit")
            near = await self._near(asked, visit)
            # While the store was asked, another may have begun.
            flight = self._joinable(asked)
        if flight is not None:
            return await self._join(asked, flight, visit)
        if near is not None and _answers(asked):
            return self._hit(asked, near.kept, visit, "similar")
        # Nothing is awaited between looking for a flight and opening one: two would be opened.
        return await self._lead(asked, begin, visit, near)

    async def aclose(self) -> None:
        await self._flights.aclose()
        await self._answers.aclose()

    def _joinable(self, asked: Asked) -> Flight | None:
        if not asked.terms.join:
            return None
        flight = self._flights.find((asked.key, asked.backends))
        # One that is complete is as good as kept.
        return flight if flight is None or asked.terms.read or not flight.is_complete else None

    @cached_property
    def _similar(self) -> SimilarAnswers:
        from gateway.cache.semantic import SimilarAnswers

        return SimilarAnswers(self._answers)

    async def _near(self, asked: Asked, visit: Visit) -> Similar | None:
        """An answer to a similar request; a shadow only reports it."""
        if (question := asked.question) is None:
            return None
        near = await self._similar.find(question, asked.terms.max_age_s)
        if near is None:
            return None
        visit.similarity = near.similarity
        if question.is_shadow:
            would = "similar" if _answers(asked) else "draft"
            self._metrics.cache_shadow.labels(asked.route, would).inc()
            return None
        return near

    def _hit(self, asked: Asked, kept: Kept, visit: Visit, source: Source) -> Stream:
        self._note(asked.route, visit, source)
        visit.model, visit.reused = kept.model, True
        visit.saved_tokens = kept.usage.prompt_tokens + kept.usage.completion_tokens
        return KeptStream(visit.call_id, kept)

    async def _join(self, asked: Asked, flight: Flight, visit: Visit) -> Stream:
        self._note(asked.route, visit, "joined")
        visit.reused = True
        reader = await flight.board(visit.call_id, partial(_booked, visit))
        visit.model = flight.model
        return reader

    async def _lead(self, asked: Asked, begin: Begin, visit: Visit, near: Similar | None) -> Stream:
        terms, draft = asked.terms, "" if near is None else near.draft
        source: Source = "miss" if terms.read or terms.join else "bypass"
        self._note(asked.route, visit, "draft" if draft else source)
        flight = self._flights.open(
            _place(asked),
            lambda note: begin(note, draft),
            partial(self._landed, asked),
            self._answers.max_answer_bytes,
        )
        return await flight.board(visit.call_id, partial(_booked, visit))

    async def _landed(self, asked: Asked, flight: Flight) -> None:
        """Keep what is to be kept of an answer that has ended."""
        terms = asked.terms
        if not flight.is_whole or flight.model not in asked.models:
            return
        events = lasting(flight.events, asked.choices, CUT if terms.keep_cut else WHOLE)
        if events is None:
            return
        if terms.shadow_cache:
            await self._answers.keep(_shadow(asked.key), flight.model, events[-1:], terms.ttl_s)
        elif terms.write and await self._answers.keep(asked.key, flight.model, events, terms.ttl_s):
            self._metrics.cache_stored.labels(asked.route).inc()
            if asked.question is not None:
                self._similar.add(asked.question, asked.key, terms.ttl_s)

    async def _report(self, asked: Asked) -> None:
        """What the policies that are shadows would have done."""
        terms, would = asked.terms, None
        if terms.shadow_cache and await self._answers.find(_shadow(asked.key), terms.max_age_s):
            would = "hit"
        elif terms.shadow_coalesce and self._flights.find(_place(asked)) is not None:
            would = "joined"
        if would is not None:
            self._metrics.cache_shadow.labels(asked.route, would).inc()

    def _note(self, route: str, visit: Visit, source: Source) -> None:
        visit.cache = source
        self._metrics.cache_requests.labels(route, source).inc()


def _answers(asked: Asked) -> bool:
    """Is an answer to a similar request an answer to it?"""
    return asked.question is not None and asked.question.policy.use == "answer"


def _place(asked: Asked) -> Hashable | None:
    """Where its flight is found: for a shadow, where nobody joins; alone, nowhere."""
    if asked.terms.share:
        return asked.key, asked.backends
    return (_shadow(asked.key), asked.backends) if asked.terms.shadow_coalesce else None


def _shadow(key: bytes) -> bytes:
    """Of what is kept in place of an answer that is not: that there was one."""
    return hashlib.blake2b(key, digest_size=len(key), person=b"fewer-shadow").digest()


def _booked(visit: Visit, model: str) -> None:
    """The generation is booked on this request."""
    visit.model, visit.reused = model, False
