"""Engine settings: vLLM's names, typed, and no unknown ones."""

from __future__ import annotations

import msgspec
import pytest

from engine.protocol.settings import EngineSettings


def test_the_served_context_is_well_below_most_windows() -> None:
    assert EngineSettings().max_model_len == 4096


@pytest.mark.parametrize(
    "data", [{"max_model_length": 5}, {"max_model_len": "5"}, {"executor": "abacus"}]
)
def test_unknown_names_and_wrong_types_are_refused(data: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(data, EngineSettings)
