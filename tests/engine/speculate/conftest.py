from __future__ import annotations

import pytest


@pytest.fixture
def tireless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proposers that are never right are believed for ever, so that wrong guesses keep coming."""
    monkeypatch.setattr("engine.speculate.trust._LEARNING_RATE", 0.0)
