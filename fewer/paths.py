"""Where Fewer keeps things in the user's home (XDG base directories)."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import tempfile
from pathlib import Path

from engine.protocol.errors import SetupError

TOKEN_VARIABLE = "FEWER_ENGINE_TOKEN"


def cache_folder() -> Path:
    """What can be fetched again, such as models: `$XDG_CACHE_HOME/fewer` or `~/.cache/fewer`."""
    return _base("XDG_CACHE_HOME", ".cache")


def state_folder() -> Path:
    """What must last, such as the token: `$XDG_STATE_HOME/fewer` or `~/.local/state/fewer`."""
    return _base("XDG_STATE_HOME", ".local/state")


def engine_token() -> str:
    """The secret that gateway and engine share.

    `$FEWER_ENGINE_TOKEN`, else a file of the state folder that only its owner can read, made
    on first use. Raises `SetupError` when that file can be neither read nor made.
    """
    if given := os.environ.get(TOKEN_VARIABLE, "").strip():
        return given
    path = _token_file()
    try:
        return _read_token(path) or _create_token(path)
    except OSError as error:
        raise SetupError(
            f"Cannot keep the engine's token in {path} ({error.strerror}): "
            f"make it writable, or set {TOKEN_VARIABLE}."
        ) from error


def engine_token_in_shell() -> str:
    """How a shell on this machine finds the token, without showing it."""
    if os.environ.get(TOKEN_VARIABLE, "").strip():
        return f"${TOKEN_VARIABLE}"
    return f"$(cat {shlex.quote(str(_token_file()))})"


def _token_file() -> Path:
    return state_folder() / "engine-token"


def _base(variable: str, default: str) -> Path:
    # The XDG specification says that a relative path is to be ignored.
    given = Path(os.environ.get(variable, ""))
    return (given if given.is_absolute() else Path.home() / default) / "fewer"


def _read_token(path: Path) -> str:
    try:
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def _create_token(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, draft = tempfile.mkstemp(prefix="engine-token.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{secrets.token_urlsafe(32)}\n")
        # A link appears whole or not at all, and never replaces the token of a process that
        # was quicker: both then read the same one.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)
    if token := _read_token(path):
        return token
    raise SetupError(f"{path} is empty. Delete it, and a new token is made.")
