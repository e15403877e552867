"""What is known of a request, and what must not be taken for granted."""

from __future__ import annotations

import pytest

from gateway.tenants import OPEN
from gateway.visit import Visit


def test_nobody_is_somebody_before_the_guard_says_so() -> None:
    visit = Visit("id", "call", "GET", "/")
    with pytest.raises(RuntimeError, match="passed no guard"):
        _ = visit.known_tenant
    visit.tenant = OPEN
    assert visit.known_tenant is OPEN
