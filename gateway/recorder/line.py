"""One line of a recording.

Without content it holds sizes and hashes only: enough to tell which requests are the same, where a
conversation is cut, and what counts how much. Hashes are keyed by the tenant's salt, so that nobody
without it can find out by trying whether a certain text was there.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.ledger.entry import Ruling
from policies.request import Request, Surface

FORMAT = 1

_Tokens = Annotated[int, Meta(ge=0, le=2**26)]
"""Of one text. A line with more is no record: no body holds as many."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """tokens: as `policies.counting` counts them"""

    tokens: _Tokens
    hash: str


class Message(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One message of a conversation.

    tokens:  all of it, as `policies.counting` counts it
    hash:    of all of it; messages that begin a conversation alike have the same ones
    calls:   of tools that it makes, by the hashes of their ids
    answers: the call that it is a result of, so named
    pinned:  it is never left out
    typed:   a user wrote it, not a program in the user's name (`policies.agent.is_typed`)
    """

    role: str
    tokens: _Tokens
    hash: str
    calls: list[str] = []
    answers: str = ""
    pinned: bool = False
    typed: bool = False


class Sizes(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request without a word of it.

    prompts:    a list of token ids, or a text, each as what it counts
    parameters: numbers and booleans as they are; of everything else its size and hash
    form:       the type of `response_format`
    """

    messages: list[Message] = []
    prompts: list[Part] = []
    tools: Part | None = None
    schema: Part | None = None
    max_tokens: int | None = None
    soft_max_tokens: int | None = None
    n: int = 1
    tool_choice: str | None = None
    stream: bool = False
    include_usage: bool = False
    form: str | None = None
    parameters: dict[str, bool | float | int | Part] = {}


class Ended(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of it.

    sent_tokens:    of the prompt as the model got it, as `policies.counting` counts it
    allowed_tokens: of output, all choices together; None for no limit
    prompt_tokens, completion_tokens: of the answer, whoever it was made for
    source:         where the answer came from, as the header x-fewer-cache says it
    """

    seconds: float
    sent_tokens: int
    allowed_tokens: int | None
    prompt_tokens: int
    completion_tokens: int
    model: str = ""
    source: str = ""
    error: str | None = None
    cut: bool = False
    cached_tokens: int = 0
    first_token_s: float | None = None
    per_token_s: float | None = None
    queue_ms: float | None = None
    dollars: float | None = None


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request that has ended.

    begun_s:      Unix time of its arrival
    asked:        the model that it named
    cache_control: its header
    sizes, request: what came, with the sampling of the route filled in; one of both is there
    """

    format: int
    id: str
    begun_s: float
    tenant: str
    route: str
    asked: str
    surface: Surface
    conversation: str
    ended: Ended
    decisions: tuple[Ruling, ...] = ()
    cache_control: str | None = None
    sizes: Sizes | None = None
    request: Request | None = None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Line)


def encode(line: Line) -> bytes:
    """With its line end. Raises `UnicodeEncodeError` for content that is no text."""
    return _encoder.encode(line) + b"\n"


def decode(data: bytes) -> Line | None:
    """None for what is not a whole line of this format."""
    try:
        line = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return line if line.format == FORMAT and (line.sizes or line.request) else None
