"""Which recorded requests would have been given another's answer, by keys and times alone."""

from __future__ import annotations

import msgspec

from gateway.cache.terms import Terms
from gateway.visit import Source


class _Made(msgspec.Struct, frozen=True):
    """An answer that a model made, or would have."""

    begun_s: float
    ended_s: float
    terms: Terms
    whole: bool
    cut: bool

    def is_kept(self, now_s: float, max_age_s: float) -> bool:
        good = self.whole and self.terms.write and (self.terms.keep_cut or not self.cut)
        return good and 0 <= now_s - self.ended_s <= min(self.terms.ttl_s, max_age_s)

    def may_be_joined(self, now_s: float) -> bool:
        return self.terms.share and now_s < self.ended_s


class Reuse:
    """Asked about requests in the order in which they came. The store forgets nothing but by age,
    and whoever led still takes as long as it took."""

    def __init__(self) -> None:
        self._made: dict[bytes, list[_Made]] = {}

    def source(
        self, key: bytes, terms: Terms, begun_s: float, seconds: float, *, whole: bool, cut: bool
    ) -> Source:
        """Where the answer comes from.

        key:   of the request, after all policies
        whole: its answer was complete, so it can be kept
        """
        if terms.is_alone:
            return "bypass"
        earlier = self._made.get(key, [])
        if terms.join and any(made.may_be_joined(begun_s) for made in earlier):
            return "joined"
        if terms.read and any(made.is_kept(begun_s, terms.max_age_s) for made in earlier):
            return "hit"
        made = _Made(begun_s, begun_s + seconds, terms, whole, cut)
        # The latest to begin is the one that may still be joined; one that ended may be kept.
        self._made[key] = [*earlier[-1:], made]
        return "miss" if terms.read or terms.join else "bypass"
