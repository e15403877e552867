"""Ports to listen on: free ones, and who holds one that is not."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from engine.protocol.errors import SetupError

HIGHEST_PORT = 65_535
_LISTEN = "0A"
"""The kernel's number of the TCP state, as /proc/net/tcp prints it."""


def claim(host: str, port: int, option: str, count: int = 1) -> int:
    """The first of `count` ports in a row that can be listened on at `host`.

    `port` 0 looks for free ones; any other is taken as it is. Raises `SetupError` that names the
    port, who holds it where that can be seen, and `option`, with which to choose another.
    """
    if port == 0:
        return _free_run(host, count)
    if not 0 < port <= HIGHEST_PORT + 1 - count:
        raise SetupError(f"{option} must be 1 to {HIGHEST_PORT + 1 - count}, or 0 for a free one.")
    for wanted in range(port, port + count):
        _probe(host, wanted, option)
    return port


def address_to_try(host: str, port: int) -> str:
    """`host:port` as a client on this machine writes it in a URL."""
    if host in ("", "0.0.0.0"):
        host = "127.0.0.1"
    elif host == "::":
        host = "::1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _probe(host: str, port: int, option: str) -> None:
    try:
        with _bound(host, port):
            return
    except socket.gaierror as error:
        raise SetupError(f"{host!r} is no address to listen on: {error.strerror}.") from error
    except OSError as error:
        raise SetupError(_reason(host, port, option, error)) from error


def _reason(host: str, port: int, option: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        holder = next(_holders(port), "another process")
        return f"Port {port} is in use by {holder}. End it, or choose another with {option}."
    if error.errno == errno.EACCES:
        return f"Port {port} needs root. Choose one above 1023 with {option}."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine. Choose another with --host."
    return f"Cannot listen on {host} port {port}: {error.strerror}."


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    probe = socket.socket(family, kind, protocol)
    try:
        # As the server will: connections of an earlier run that still wind down do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
    except OSError:
        probe.close()
        raise
    return probe


def _free_run(host: str, count: int) -> int:
    for _ in range(50):
        with _bound(host, 0) as first:
            port: int = first.getsockname()[1]
        try:
            for following in range(port + 1, port + count):
                _bound(host, following).close()
        except (OSError, OverflowError):
            continue
        return port
    raise SetupError(f"Found no {count} free ports in a row. Name one yourself.")


def _holders(port: int) -> Iterator[str]:
    """Processes that listen on `port`, as far as Linux lets this user see them."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for folder in Path("/proc").glob("[0-9]*"):
        # Skipped: another user's process, or one that has just ended.
        with contextlib.suppress(OSError):
            if any(link in sockets for link in _open_files(folder)):
                yield f"{(folder / 'comm').read_text().strip()} (process {folder.name})"


def _open_files(process: Path) -> Iterator[str]:
    for link in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            yield os.readlink(link)


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue  # not Linux, or no IPv6
        for fields in map(str.split, lines):
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]
