"""Answers that would have been another's, by keys and times."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gateway.cache.terms import Terms
from gateway.recorder.reuse import Reuse

BOTH = Terms(read=True, write=True, join=True, share=True, ttl_s=60, max_age_s=1000)


def source(
    reuse: Reuse, begun_s: float, terms: Terms = BOTH, key: bytes = b"k", **fields: Any
) -> str:
    """A request of one second."""
    return reuse.source(key, terms, begun_s, 1.0, **{"whole": True, "cut": False} | fields)


def test_the_same_request_joins_hits_and_expires() -> None:
    reuse = Reuse()
    found = [source(reuse, at_s) for at_s in (0.0, 0.5, 1.0, 61.0, 61.5, 62.5)]
    assert found == ["miss", "joined", "hit", "hit", "miss", "hit"]
    assert source(reuse, 62.5, key=b"other") == "miss"


def test_only_within_the_terms() -> None:
    reuse = Reuse()
    assert source(reuse, 0.0, replace(BOTH, share=False, write=False)) == "miss"
    assert source(reuse, 0.5) == "miss"
    assert source(reuse, 0.7, replace(BOTH, join=False)) == "miss"
    assert source(reuse, 2.0, replace(BOTH, read=False)) == "miss"
    assert source(reuse, 30.0, replace(BOTH, max_age_s=5.0)) == "miss"
    assert source(reuse, 30.0, Terms()) == "bypass"
    assert source(reuse, 30.0, Terms(shadow_cache=True)) == "bypass"


def test_broken_answers_are_not_kept_and_cut_ones_by_setting() -> None:
    reuse = Reuse()
    strict = replace(BOTH, keep_cut=False)
    assert source(reuse, 0.0, whole=False) == "miss"
    assert source(reuse, 2.0, strict, cut=True) == "miss"
    assert source(reuse, 4.0, cut=True) == "miss"
    assert source(reuse, 6.0) == "hit"
