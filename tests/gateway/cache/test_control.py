"""Clients' `cache-control`."""

from __future__ import annotations

import pytest

from gateway.cache.control import ANY, CacheControl, parse


@pytest.mark.parametrize(
    ("header", "control"),
    [
        (None, ANY),
        ("", ANY),
        ("no-cache", CacheControl(no_cache=True)),
        ("No-Store , max-age=0", CacheControl(no_store=True, max_age_s=0)),
        ("max-age=60, max-age=30", CacheControl(max_age_s=30)),
        ('max-age="60"', CacheControl(max_age_s=60)),
        ("max-age=soon", CacheControl(max_age_s=0)),
        ("max-age=-1", CacheControl(max_age_s=0)),
        ("max-age=\u00b2", CacheControl(max_age_s=0)),
        (f"max-age={'9' * 5000}", ANY),
        ("only-if-cached, public, max-stale=900", ANY),
    ],
)
def test_it_only_narrows(header: str | None, control: CacheControl) -> None:
    assert parse(header) == control
