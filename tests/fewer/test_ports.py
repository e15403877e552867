from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from engine.protocol.errors import SetupError
from fewer import ports


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that this very process listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_free_port_is_taken_as_it_is() -> None:
    port = ports.claim("127.0.0.1", 0, "--port")
    assert port > 0
    assert ports.claim("127.0.0.1", port, "--port") == port


def test_a_run_of_ports_is_free_altogether() -> None:
    first = ports.claim("127.0.0.1", 0, "--engine-port", count=3)
    for port in range(first, first + 3):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


def test_a_port_in_use_names_its_holder_and_the_way_out(taken: int) -> None:
    with pytest.raises(SetupError) as failed:
        ports.claim("127.0.0.1", taken, "--port")
    message = failed.value.message
    assert message.startswith(f"Port {taken} is in use by ")
    assert f"(process {os.getpid()})" in message
    assert message.endswith("choose another with --port.")


def test_a_run_is_refused_for_any_of_its_ports() -> None:
    first = ports.claim("127.0.0.1", 0, "--engine-port", count=2)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", first + 1))
        listener.listen()
        with pytest.raises(SetupError, match=f"Port {first + 1} is in use"):
            ports.claim("127.0.0.1", first, "--engine-port", count=2)


@pytest.mark.parametrize("port", [-1, 65_536, 65_535])
def test_a_port_out_of_range_is_refused(port: int) -> None:
    with pytest.raises(SetupError, match=r"--engine-port must be 1 to 65534, or 0"):
        ports.claim("127.0.0.1", port, "--engine-port", count=2)


def test_a_foreign_address_is_refused() -> None:
    with pytest.raises(SetupError, match=r"192\.0\.2\.1 is not an address of this machine"):
        ports.claim("192.0.2.1", 8080, "--port")


def test_a_word_that_is_no_address_is_refused() -> None:
    with pytest.raises(SetupError, match="'no such host' is no address"):
        ports.claim("no such host", 8080, "--port")


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1", "127.0.0.1:80"),
        ("0.0.0.0", "127.0.0.1:80"),
        ("::", "[::1]:80"),
        ("fe80::1", "[fe80::1]:80"),
        ("localhost", "localhost:80"),
    ],
)
def test_the_address_to_try_can_be_opened_in_a_browser(host: str, shown: str) -> None:
    assert ports.address_to_try(host, 80) == shown
