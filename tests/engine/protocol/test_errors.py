"""The error tree: statuses, codes that come back as the same class, and OpenAI's wire form."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.protocol import errors
from engine.protocol.errors import (
    Cancelled,
    ClientError,
    FewerError,
    InvalidRequest,
    RateLimited,
    ServiceError,
    SetupError,
    UpstreamFailed,
    from_code,
)


def classes(base: type[FewerError] = FewerError) -> Iterator[type[FewerError]]:
    for kind in base.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield kind
            yield from classes(kind)


@pytest.mark.parametrize("kind", list(classes()), ids=lambda kind: kind.__name__)
def test_every_class_says_whose_fault_it_is(kind: type[FewerError]) -> None:
    assert kind.code
    assert kind.type
    if issubclass(kind, ClientError):
        assert 400 <= kind.status < 500
    elif issubclass(kind, ServiceError):
        assert 500 <= kind.status < 600
    else:
        assert issubclass(kind, (Cancelled, SetupError))


@pytest.mark.parametrize(
    "kind",
    [kind for kind in classes() if not issubclass(kind, SetupError)],
    ids=lambda kind: kind.__name__,
)
def test_an_error_that_crosses_the_link_keeps_its_class(kind: type[FewerError]) -> None:
    assert kind.code is not None
    error = from_code(kind.code, "Text.", param="n", retry_after_s=1.5)
    assert type(error) is kind
    assert (error.message, error.param, error.retry_after_s) == ("Text.", "n", 1.5)


def test_an_unknown_code_is_a_failed_upstream() -> None:
    assert type(from_code("bogus", "Text.")) is UpstreamFailed


def test_the_wire_form_is_openai_s() -> None:
    assert InvalidRequest("Bad.", param="n").to_wire() == {
        "error": {
            "message": "Bad.",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_value",
        }
    }
    assert RateLimited("Slow.", code="tokens").to_wire()["error"]["code"] == "tokens"
