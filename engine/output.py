"""The commit stage of one choice: from sampled tokens to text that may be shown."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from engine.protocol.frames import Event, Finish, TokenLogprob
from engine.protocol.landing import LandingPoints
from engine.request import Request
from engine.runner.base import Sampled
from engine.text.detokenizer import Detokenizer
from engine.text.stops import StopMatcher
from engine.text.tokenizer import Tokenizer

_LOWEST_LOGPROB = -9999.0
"""What OpenAI reports for a token of probability zero; JSON has no infinity."""


class _Held(NamedTuple):
    """A token whose text is not wholly shown: characters start to end of the choice's text."""

    start: int
    end: int
    logprob: TokenLogprob | None


class Output:
    """Text, stops, logprobs and the finish reason of one choice.

    Characters come out once they are complete, and stop strings are held back exactly as long
    as they can still match. A token, and its logprob, comes out with the last character of its
    text; tokens that a stop string swallowed are counted but their logprobs are not reported.
    Nothing comes out after an event with `finish`.

    After the soft limit the output lands: it ends at the first clean place whose last character
    came with the token at the limit or a later one. That a place is clean shows in the text after
    it, a token later as a rule; that token is counted like one that a stop string swallowed, and
    gives the model the chance to end by itself. An end token, and a stop that is complete before
    the place is known, go before it.

    max_tokens: tokens after which the choice ends with `length`
    end_ids:    ids that end the choice, see `end_ids_of`
    seed:       the request's seed, reported with the first event
    """

    def __init__(
        self,
        request: Request,
        choice: int,
        *,
        max_tokens: int,
        end_ids: frozenset[int],
        seed: int,
        tokenizer: Tokenizer,
    ) -> None:
        sampling = request.sampling
        self.num_tokens = 0
        self._id, self._choice = request.id, choice
        self._sampling = sampling
        self._max_tokens, self._end_ids = max_tokens, end_ids
        self._seed: int | None = seed
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopMatcher(sampling.stop, sampling.include_stop) if sampling.stop else None
        soft = request.soft_max_tokens
        self._has_form = request.grammar is not None
        # The end of a sentence completes no form.
        self._landing = None if soft is None or self._has_form else LandingPoints()
        self._soft_tokens = max(soft or 0, sampling.min_tokens)
        self._held: deque[_Held] = deque()
        self._decoded_chars = self._shown_chars = 0

    def accept(self, sampled: Sampled) -> Event | None:
        """Take the next token. Returns what may be shown now; None while all is held back."""
        self.num_tokens += 1
        token = sampled.token
        ends = token in self._end_ids and (self._may_stop or self._has_form)
        stop_id = token if ends and token in self._sampling.stop_token_ids else None
        if ends and not (stop_id is not None and self._sampling.include_stop):
            self._held.append(_Held(self._decoded_chars, self._decoded_chars, None))
            return self._finish("", "stop", stop_id)
        shown, matched = self._match(self._decode(sampled))
        if ends and matched is None:
            return self._finish(shown, "stop", stop_id)
        if (end := self._landing_point(shown, matched)) is not None:
            return self._land(shown, end)
        if matched is not None:
            return self._event(shown, "stop", matched)
        if self.num_tokens >= self._max_tokens:
            return self._finish(shown, "length", None)
        return self._event(shown) if shown else None

    @property
    def _may_stop(self) -> bool:
        """End tokens and stop strings count only after the first min_tokens tokens."""
        return self.num_tokens > self._sampling.min_tokens

    def _decode(self, sampled: Sampled) -> str:
        text = self._detokenizer.feed(sampled.token)
        start = self._decoded_chars
        if self._landing is not None and self.num_tokens == self._soft_tokens:
            self._landing.earliest = start + 1
        self._decoded_chars += len(text)
        wanted = self._sampling.logprobs is not None
        logprob = self._logprob(sampled) if wanted else None
        self._held.append(_Held(start, self._decoded_chars, logprob))
        return text

    def _match(self, text: str) -> tuple[str, str | None]:
        if self._stops is None or not self._may_stop:
            return text, None
        return self._stops.feed(text)

    def _finish(self, shown: str, finish: Finish, stop: str | int | None) -> Event:
        """Show everything that was held back, since nothing can follow it any more."""
        rest, matched = self._match(self._detokenizer.flush())
        if matched is not None:
            return self._event(shown + rest, "stop", matched)
        if self._stops is not None:
            rest += self._stops.flush()
        if finish == "stop" or self._landing is None:
            return self._event(shown + rest, finish, stop)
        if (end := self._landing.feed(rest)) is not None:
            return self._land(shown + rest, end)
        return self._event(shown + rest, finish, landed=self._landing.ends_cleanly)

    def _landing_point(self, shown: str, matched: str | None) -> int | None:
        """Where the output lands, if what is shown now says so. What a stop matched is no text."""
        if self._landing is None:
            return None
        if matched is not None and self._sampling.include_stop:
            shown = shown[: len(shown) - len(matched)]
        return self._landing.feed(shown)

    def _land(self, shown: str, end: int) -> Event:
        """End there; of what follows only white space can have been shown before."""
        return self._event(shown[: max(0, end - self._shown_chars)], "length", landed=True)

    def _event(
        self,
        shown: str,
        finish: Finish | None = None,
        stop: str | int | None = None,
        *,
        landed: bool = False,
    ) -> Event:
        self._shown_chars += len(shown)
        tokens, logprobs = 0, []
        while self._held and (finish or self._held[0].end <= self._shown_chars):
            held = self._held.popleft()
            tokens += 1
            # Where it landed, a token without text is the beginning of what is not shown.
            whole = held.end <= self._shown_chars and not landed
            visible = held.start < self._shown_chars or whole
            if held.logprob is not None and visible:
                logprobs.append(held.logprob)
        seed, self._seed = self._seed, None
        return Event(
            id=self._id,
            choice=self._choice,
            text=shown,
            tokens=tokens,
            logprobs=logprobs or None,
            finish=finish,
            stop=stop,
            seed=seed,
            landed=landed,
        )

    def _logprob(self, sampled: Sampled) -> TokenLogprob:
        top = zip(sampled.top_ids.tolist(), sampled.top_logprobs.tolist(), strict=True)
        return self._entry(
            sampled.token, sampled.logprob, [self._entry(token, value) for token, value in top]
        )

    def _entry(
        self, token: int, logprob: float, top: list[TokenLogprob] | None = None
    ) -> TokenLogprob:
        data = self._tokenizer.token_bytes(token)
        return TokenLogprob(
            token=data.decode("utf-8", "replace"),
            id=token,
            logprob=logprob if logprob > _LOWEST_LOGPROB else _LOWEST_LOGPROB,
            bytes=list(data),
            top=top or [],
        )


def end_ids_of(request: Request, tokenizer: Tokenizer) -> frozenset[int]:
    """Every id that ends a choice of this request: the model's own, and its stop tokens. Where a
    grammar says when an answer is whole, nothing may follow it."""
    ignored = request.sampling.ignore_eos and request.grammar is None
    own = frozenset[int]() if ignored else tokenizer.end_ids
    return own | frozenset(request.sampling.stop_token_ids)
