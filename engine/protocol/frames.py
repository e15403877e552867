"""The frames of the gateway-engine WebSocket: one JSON text message each, tagged by `type`.

The gateway opens with `hello`; the engine answers `welcome`, or closes with 1008. Ids are
chosen by the gateway, never reused on a connection, and each gets exactly one terminal: an
event with `usage`, or an `error` with its id. All events of one engine step travel in one
`events` frame. Closing the connection cancels everything that was started on it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engine.protocol.errors import FewerError, InvalidRequest
from engine.protocol.grammar import Grammar
from engine.protocol.sampling import Sampling

PROTOCOL_VERSION = 2
MAX_FRAME_BYTES = 16 * 1024 * 1024

Kind = Literal["text", "reasoning", "refusal", "tool"]
"""`refusal` only comes from foreign upstreams: OpenAI's `delta.refusal`."""
Finish = Literal["stop", "length", "tool_calls", "content_filter"]


class _Frame(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type"):
    pass


# gateway -> engine ---------------------------------------------------------------------------


class Hello(_Frame, frozen=True, tag="hello"):
    """First frame. `token` is the secret that both ends share."""

    version: int
    token: str


class Generate(_Frame, frozen=True, tag="generate"):
    """Start one request: n choices for `messages`, or n for each of `prompts`.

    Exactly one of `messages` (rendered by the model's chat template) and `prompts` (text or
    token ids) is given. Choice numbers are prompt_index * n + i.

    max_tokens:      per choice; None means all that the context leaves
    clamp:           max_tokens is a ceiling that nobody asked for: less will do where the prompt
                     leaves no more, instead of a refusal
    soft_max_tokens: per choice; from this many on the output lands: it ends, with `length`, at
                     the first place of `engine.protocol.landing`
    salt:            roots the prefix cache, so that tenants never share KV blocks
    tenant, weight:  the fair queue shares by tenant, in proportion to weight
    priority:        higher first within a tenant
    timeout_ms:      from arrival; the request fails with `deadline_exceeded` after it
    grammar:         what every choice must be; it may then end only where that is whole
    prediction:      what the answer will mostly be: guessed at, and never part of it unverified
    expected_tokens: how long the route's answers usually are, for admission
    echo:            completions only: the prompt's text is repeated before the output
    """

    id: str
    messages: list[dict[str, Any]] | None = None
    prompts: list[str | list[int]] | None = None
    sampling: Sampling = Sampling()
    n: int = 1
    max_tokens: int | None = None
    clamp: bool = False
    soft_max_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    grammar: Grammar | None = None
    prediction: str | None = None
    salt: str = ""
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0
    timeout_ms: int | None = None
    expected_tokens: int | None = None
    echo: bool = False
    traceparent: str | None = None


class Cancel(_Frame, frozen=True, tag="cancel"):
    """The client left. No step scheduled after this arrives contains the request.

    The terminal is an `error` with code `cancelled`; cancelling an ended id does nothing.
    """

    id: str


class Pause(_Frame, frozen=True, tag="pause"):
    """The client reads too slowly: keep the request, produce nothing more for now."""

    id: str


class Resume(_Frame, frozen=True, tag="resume"):
    id: str


class Count(_Frame, frozen=True, tag="count"):
    """How many tokens these messages (rendered) or this text would be as a prompt."""

    id: str
    messages: list[dict[str, Any]] | None = None
    text: str | None = None
    tools: list[dict[str, Any]] | None = None


class Ping(_Frame, frozen=True, tag="ping"):
    pass


# engine -> gateway ---------------------------------------------------------------------------


class Welcome(_Frame, frozen=True, tag="welcome"):
    """The engine's identity and limits."""

    version: int
    model: str
    executor: str
    max_model_len: int
    vocab_size: int
    kv_capacity_tokens: int


class Accepted(_Frame, frozen=True, tag="accepted"):
    """The request is valid and queued; response headers may leave now. Summed over prompts."""

    id: str
    prompt_tokens: int


class Started(_Frame, frozen=True, tag="started"):
    """The first choice was scheduled for the first time."""

    id: str
    cached_tokens: int
    queue_ms: float


class TokenLogprob(msgspec.Struct, frozen=True, omit_defaults=True):
    """One produced token under the raw distribution. `bytes` are its UTF-8 bytes."""

    token: str
    id: int
    logprob: float
    bytes: list[int] = []
    top: list[TokenLogprob] = []


class ToolDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a tool call: id and name come with its first piece, arguments in pieces."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of the whole request. Its arrival is the terminal of a successful request.

    completion_tokens counts end tokens, as OpenAI does, and what was produced to know that a stop
    string, or a place to land, has come, and is not shown; `recomputed_tokens` were computed
    again after a preemption and are not billed. Of a prediction's tokens, those that steps verified
    are accepted or rejected; the rejected are no part of completion_tokens. `estimated`: an
    upstream told no usage, and the gateway has counted what it saw; an engine never sets it.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    recomputed_tokens: int = 0
    estimated: bool = False


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened to one choice in one step.

    tokens: how many tokens this event stands for (a held-back stop can make it 0 or many)
    finish: this choice has ended; nothing follows for it
    stop:   the stop string or stop token id that ended it
    landed: of a finish with `length` after a soft limit: at a place where text may end
    usage:  the whole request has ended; nothing follows for its id
    seed:   the seed that was used, on the first event of each choice
    """

    id: str
    choice: int = 0
    kind: Kind = "text"
    text: str = ""
    tokens: int = 0
    logprobs: list[TokenLogprob] | None = None
    tool: ToolDelta | None = None
    finish: Finish | None = None
    stop: str | int | None = None
    usage: Usage | None = None
    seed: int | None = None
    landed: bool = False


class Events(_Frame, frozen=True, tag="events"):
    events: list[Event]


class Failed(_Frame, frozen=True, tag="error"):
    """Terminal of one request (`id`), or of the connection (`id` empty)."""

    id: str
    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None

    @classmethod
    def of(cls, id: str, error: FewerError) -> Failed:
        return cls(
            id, error.code or "internal_error", error.message, error.param, error.retry_after_s
        )


class Counted(_Frame, frozen=True, tag="counted"):
    id: str
    tokens: int


class Stats(_Frame, frozen=True, tag="stats"):
    """The engine's load, sent at most once a second and only when it changed."""

    running: int
    waiting: int
    kv_usage_ratio: float


class Pong(_Frame, frozen=True, tag="pong"):
    pass


ToEngine = Hello | Generate | Cancel | Pause | Resume | Count | Ping
FromEngine = Welcome | Accepted | Started | Events | Failed | Counted | Stats | Pong
StreamEvent = Accepted | Started | Event | Failed


class _Work(msgspec.Struct):
    type: Literal["generate", "count"]
    id: str


_encoder = msgspec.json.Encoder()
_to_engine: msgspec.json.Decoder[ToEngine] = msgspec.json.Decoder(ToEngine)
_work = msgspec.json.Decoder(_Work)
_from_engine: msgspec.json.Decoder[FromEngine] = msgspec.json.Decoder(FromEngine)


def encode(frame: ToEngine | FromEngine) -> bytes:
    return _encoder.encode(frame)


def decode_to_engine(data: bytes | str) -> ToEngine:
    """Raises `InvalidRequest` for anything that is not one of the gateway's frames."""
    try:
        return _to_engine.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"Not a frame of protocol {PROTOCOL_VERSION}: {error}.") from error


def id_of_work(data: bytes | str) -> str | None:
    """The id in a frame that starts something, however wrong the rest is; None if it is none."""
    try:
        return _work.decode(data).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def decode_from_engine(data: bytes | str) -> FromEngine:
    """Raises `InvalidRequest` for anything that is not one of the engine's frames."""
    try:
        return _from_engine.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"Not a frame of protocol {PROTOCOL_VERSION}: {error}.") from error
