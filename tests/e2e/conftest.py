"""One `fewer serve` with the real model for all tests that a process runs here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fewer import ports
from tests.e2e.stack import CONFIG, TOKEN, Stack
from tests.fakes.service import serving


@pytest.fixture(scope="session")
def stack(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    config = folder / "fewer.yaml"
    config.write_text(CONFIG)
    port = ports.claim("127.0.0.1", 0, "--engine-port")
    environ = {
        "MODEL": str(model_path),
        "ENGINE_PORT": str(port),
        "TOKEN": TOKEN,
        "FEWER_ENGINE_TOKEN": TOKEN,
        "XDG_STATE_HOME": str(folder),
    }
    words = ("--port", "0", "--engine-port", str(port))
    with serving(config, *words, environ=environ) as service:
        yield Stack(service, service.url(), f"http://127.0.0.1:{port}")


@pytest.fixture(autouse=True)
def _idle_afterwards(stack: Stack) -> Iterator[None]:
    """Whatever a test did, the engine holds nothing of it when it is over."""
    yield
    stack.wait_idle()
