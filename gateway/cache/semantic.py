"""Answers to earlier requests that ask nearly the same, in nearly the same words.

Loaded with the first such request: only who uses this needs the text embedding, and numpy.
"""

from __future__ import annotations

import msgspec

from gateway.cache.answers import Answers
from gateway.cache.kept import Kept
from gateway.cache.neighbours import Entry, Neighbours
from gateway.cache.question import Question
from gateway.embedding import Embed, bundled
from policies.reading import Reading, reading_of
from policies.slots import difference
from policies.thresholds import threshold


class Similar(msgspec.Struct, frozen=True):
    """An answer to a question that is near enough for its policy's use.

    similarity: cosine of the two texts
    """

    similarity: float
    kept: Kept

    @property
    def draft(self) -> str:
        """The text of the answer; empty where it is more than text."""
        if any(event.kind == "tool" for event in self.kept.events):
            return ""
        return "".join(event.text for event in self.kept.events if event.kind == "text")


class SimilarAnswers:
    """Finds them among what `answers` keeps. Knows what this process has answered, whatever the
    store; an answer that another tenant may have is in no partition of this one's."""

    def __init__(self, answers: Answers, embed: Embed | None = None) -> None:
        """embed: the one that is installed unless given. Raises `SetupError` where there is none"""
        self._answers = answers
        self._embed = embed or bundled()
        self._neighbours = Neighbours()

    def __repr__(self) -> str:
        return f"<SimilarAnswers {self._neighbours!r}>"

    async def find(self, question: Question, max_age_s: float) -> Similar | None:
        """The most similar one that is still kept."""
        text, policy = question.text, question.policy
        answers = policy.use == "answer"
        reading = reading_of(text) if answers else None
        if answers and reading is None:
            return None
        least = max(threshold(text, answers=answers), policy.min_similarity)
        for similarity, entry in self._neighbours.near(
            question.partition, self._embed(text), least
        ):
            if reading is not None and not _is_same(reading, entry):
                continue
            kept = await self._answers.find(entry.key, max_age_s)
            if kept is None:
                continue
            similar = Similar(similarity, kept)
            if answers or similar.draft:
                self._neighbours.use(entry)
                return similar
        return None

    def add(self, question: Question, key: bytes, ttl_s: float) -> None:
        """From now on others find it. Its answer is kept under `key`, for as long."""
        answers = question.policy.use == "answer"
        self._neighbours.add(
            Entry(
                question.partition,
                question.owner,
                key,
                reading_of(question.text) if answers else None,
            ),
            self._embed(question.text),
            ttl_s=ttl_s,
            max_entries=question.policy.max_entries,
        )


def _is_same(reading: Reading, entry: Entry) -> bool:
    return entry.reading is not None and difference(reading, entry.reading) is None
