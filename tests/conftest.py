"""Fixtures that tests of several packages share. Those of one package stand beside its tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

TEST_MODEL = "smollm2-135m"
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


_LONGEST = ("test_same_tokens.py", "test_reference_model.py", "test_sanitizers.py", "/e2e/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that no process is left alone with one at the end."""
    items.sort(key=lambda item: not any(name in item.nodeid for name in _LONGEST))


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The bundled model's GGUF file: `$FEWER_TEST_MODEL`, else the user's cache, else pulled.

    Fails, rather than skips, when it cannot be had: without it little is proved.
    """
    if given := os.environ.get("FEWER_TEST_MODEL"):
        path = Path(given)
        assert path.is_file(), f"FEWER_TEST_MODEL names {path}, where there is no file."
        return path
    return _pulled_model()


def _pulled_model() -> Path:
    from engine.protocol.errors import FewerError
    from fewer import model_store

    try:
        return model_store.pull(TEST_MODEL)
    except FewerError as error:
        pytest.fail(
            f"The tests need the model {TEST_MODEL}: {error.message} "
            f"Set FEWER_TEST_MODEL to its GGUF file to use one that you have.",
            pytrace=False,
        )


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """`shared_data("sse")`: that folder or file of the real data that may lie beside the
    repository. The test is skipped where it does not: the project stands alone."""

    def locate(name: str) -> Path:
        path = _SHARED_DATA / name
        if not path.exists():
            pytest.skip(f"needs {name} of the shared data beside the repository")
        return path

    return locate


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """The machine's own Chromium. Without one the test is skipped, except in CI, where it fails."""
    given = os.environ.get("FEWER_TEST_CHROMIUM")
    found = given or next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    if found is not None:
        return found
    message = "needs Chromium: `make test` installs it where apt-get and root are to be had"
    if os.environ.get("CI") == "true":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)
