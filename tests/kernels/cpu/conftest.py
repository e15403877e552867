"""The instruction sets that this machine can test."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.cpu.build import library, supported_isas

NONE = "none"
ISAS = supported_isas() or [NONE]


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    """Each instruction set in turn."""
    return _usable(request.param)


@pytest.fixture
def best_isa() -> str:
    """The one that would be taken."""
    return _usable(ISAS[0])


@pytest.fixture
def built(isa: str) -> Path:
    """The library for each instruction set in turn."""
    return library(isa)


@pytest.fixture
def best_built(best_isa: str) -> Path:
    return library(best_isa)


def _usable(isa: str) -> str:
    if isa == NONE:
        pytest.skip("needs an x86-64 processor with AVX2, and Linux")
    return isa
