"""Frames in, tokenised requests out: templates and tokenisers run in a few threads, bounded.

Text that cannot fit is refused by its length: no token is longer than the vocabulary's longest,
so a text of C characters (and at least C bytes) has at least C / longest tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from engine.grammar.compiler import GrammarCompiler
from engine.protocol.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    Overloaded,
    TooLarge,
)
from engine.protocol.frames import Event, Generate
from engine.request import MAX_PROMPTS, Request
from engine.runner.base import Int32

if TYPE_CHECKING:
    from engine.grammar.compiled import Compiled

MAX_COUNT_CHARS = 1_000_000
"""Longest text that is tokenised, whatever the context: half a second of a thread."""

_THREADS = 2
_MAX_WAITING = 256
_SCALAR_CHARS = 4
_INLINE_CHARS = 2_000
"""Shorter texts are tokenised where they stand: handing them to a thread takes longer."""

Outcome = TypeVar("Outcome")
Messages = list[dict[str, Any]]


class TextTokenizer(Protocol):
    """What is asked of `engine.text.tokenizer.Tokenizer`."""

    vocab_size: int
    control_ids: frozenset[int]
    end_ids: frozenset[int]

    def encode(self, text: str, /) -> list[int]: ...
    def encode_prompt(self, text: str, /) -> list[int]: ...
    def decode(self, ids: list[int], /) -> str: ...
    def token_bytes(self, token: int, /) -> bytes: ...


class Template(Protocol):
    """What is asked of `engine.text.chat_template.ChatTemplate`."""

    def render(self, messages: Messages, tools: Messages | None = None, /) -> list[int]: ...


class Intake:
    """Makes requests of frames. `close` when the server ends."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        template: Template,
        max_model_len: int,
        *,
        vocab_size: int | None = None,
    ) -> None:
        """max_model_len: tokens of a request; what must have more is refused unread.

        vocab_size: tokens of the model's logits; None where they are the tokenizer's
        """
        self._tokenizer = tokenizer
        self._template = template
        self._max_model_len = max_model_len
        longest = max(len(tokenizer.token_bytes(id)) for id in range(tokenizer.vocab_size))
        self._longest_bytes = max(1, longest)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tokenize")
        self._waiting = 0
        self._grammars = GrammarCompiler(tokenizer, vocab_size or tokenizer.vocab_size)

    def close(self) -> None:
        self._grammars.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def request(self, frame: Generate) -> Request:
        """The request that `frame` describes, tokenised; its deadline runs from now."""
        arrival = time.monotonic()
        return Request(
            id=frame.id,
            prompts=await self._prompts(frame),
            sampling=frame.sampling,
            n=frame.n,
            max_tokens=frame.max_tokens,
            clamp=frame.clamp,
            soft_max_tokens=frame.soft_max_tokens,
            salt=frame.salt,
            tenant=frame.tenant,
            weight=frame.weight,
            priority=frame.priority,
            deadline=None if frame.timeout_ms is None else arrival + frame.timeout_ms / 1000,
            expected_tokens=frame.expected_tokens,
            grammar=await self._grammar(frame),
            prediction=await self._prediction(frame.prediction),
            prompt_field="messages" if frame.prompts is None else "prompt",
            arrival=arrival,
        )

    def echoes(self, frame: Generate) -> list[Event]:
        """The prompts' own text, as the first event of every choice, if the frame asks for it."""
        if not frame.echo or frame.prompts is None:
            return []
        texts = [self._text_of(prompt) for prompt in frame.prompts]
        return [
            Event(frame.id, choice=index * frame.n + i, text=text)
            for index, text in enumerate(texts)
            for i in range(frame.n)
            if text
        ]

    async def render(self, messages: Messages, tools: Messages | None = None) -> list[int]:
        """The prompt that the chat template makes of `messages`.

        Raises `ContextLengthExceeded` or `TooLarge` for what is too long to be tokenised.
        """
        chars = sum(_content_chars(message) for message in messages)
        # A template spends a token or more on every message, were it empty.
        self._check_can_fit(chars, "messages", at_least=len(messages))
        chars = _chars_of(messages) + _chars_of(tools)
        _check_countable(chars)
        return await self._run(chars, lambda: self._template.render(messages, tools))

    async def encode(self, text: str) -> list[int]:
        """The tokens of `text` as a completion's prompt.

        Raises `ContextLengthExceeded` or `TooLarge` for what is too long to be tokenised.
        """
        self._check_can_fit(len(text), "prompt")
        _check_countable(len(text))
        return await self._run(len(text), lambda: self._tokenizer.encode_prompt(text))

    async def decode(self, ids: list[int]) -> str:
        """The text of token ids, which must be in the vocabulary."""
        self._check_ids(ids, "tokens")
        return await self._run(len(ids) * 4, lambda: self._tokenizer.decode(ids))

    async def _prompts(self, frame: Generate) -> list[Int32]:
        if (frame.messages is None) == (frame.prompts is None):
            raise InvalidRequest("A request needs either messages or prompts.")
        if frame.messages is not None:
            return [np.array(await self.render(frame.messages, frame.tools), np.int32)]
        prompts = frame.prompts or []
        if len(prompts) > MAX_PROMPTS:
            raise InvalidRequest(f"A request may have {MAX_PROMPTS} prompts.", param="prompt")
        return [np.array(await self._prompt(prompt), np.int32) for prompt in prompts]

    async def _grammar(self, frame: Generate) -> Compiled | None:
        if frame.grammar is None:
            return None
        return await self._grammars.compile(frame.grammar, (frame.tenant, frame.salt))

    async def _prediction(self, text: str | None) -> Int32 | None:
        """Its first tokens, where it has more than an answer can have."""
        if not text:
            return None
        text = text[: min(MAX_COUNT_CHARS, self._max_model_len * self._longest_bytes)]
        ids = await self._run(len(text), lambda: self._tokenizer.encode(text))
        return np.array(ids[: self._max_model_len], np.int32)

    async def _prompt(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            return await self.encode(prompt)
        self._check_ids(prompt, "prompt")
        return prompt

    def _text_of(self, prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)

    def _check_ids(self, ids: list[int], param: str) -> None:
        size = self._tokenizer.vocab_size
        if ids and not 0 <= min(ids) <= max(ids) < size:
            raise InvalidRequest(
                f"{param} names token ids outside the vocabulary (0 to {size - 1}).", param=param
            )

    def _check_can_fit(self, chars: int, param: str, at_least: int = 0) -> None:
        at_least = max(at_least, -(-chars // self._longest_bytes))
        if at_least >= self._max_model_len:
            raise ContextLengthExceeded(
                f"The context holds {self._max_model_len} tokens, but the prompt alone has at "
                f"least {at_least}. Shorten it; the server's setting is max_model_len.",
                param=param,
            )

    async def _run(self, chars: int, work: Callable[[], Outcome]) -> Outcome:
        if chars <= _INLINE_CHARS:
            return work()
        if self._waiting >= _MAX_WAITING:
            raise Overloaded("Too many prompts wait to be tokenised.", retry_after_s=1.0)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._waiting -= 1


def _check_countable(chars: int) -> None:
    if chars > MAX_COUNT_CHARS:
        raise TooLarge(f"The text has {chars} characters; the limit is {MAX_COUNT_CHARS}.")


def _content_chars(message: dict[str, Any]) -> int:
    """Characters that the model will read of a message, whatever its template adds."""
    content = message.get("content")
    if isinstance(content, list):
        return sum(_chars_of(part.get("text")) for part in content if isinstance(part, dict))
    return _chars_of(content)


def _chars_of(value: Any) -> int:
    """About how many characters a JSON value has as text: templates write tools out whole."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + _chars_of(item) for key, item in value.items())
    if isinstance(value, list):
        return sum(map(_chars_of, value))
    return 0 if value is None else _SCALAR_CHARS
