"""The parameters of one generation. Names are OpenAI's, then vLLM's where OpenAI has none."""

from __future__ import annotations

import math

import msgspec

from engine.protocol.errors import InvalidRequest

MAX_LOGIT_BIAS_ENTRIES = 300
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_TOKEN_LIST = 4096
MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 128
MAX_TOP_K = 2**31 - 1
"""What the native sampler's arrays hold. One request beyond it failed the step of all others."""


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the next token is chosen and when generation ends. Neutral by default.

    temperature:        0 is greedy; below 1e-5 is treated as greedy
    top_k:              keep the k most likely; 0 and -1 keep all
    top_p, min_p:       nucleus mass in (0, 1]; floor relative to the most likely, in [0, 1]
    presence_penalty, frequency_penalty:  OpenAI's, over generated tokens, in [-2, 2]
    repetition_penalty: over prompt and generated tokens (CTRL, Keskar et al. 2019), > 0
    logit_bias:         added to the logit of a token id, in [-100, 100]
    allowed_token_ids:  only these may be produced; None allows all
    bad_token_ids:      these are never produced
    stop:               strings that end the output; not part of it unless `include_stop`
    stop_token_ids:     token ids that end the output, beside the model's own end tokens
    include_stop:       leave the matched stop string in the output
    min_tokens:         end tokens and stops are not honoured before this many
    ignore_eos:         the model's own end tokens do not end the output
    logprobs:           None for none; otherwise how many alternatives beside the chosen, 0..20
    seed:               64-bit; None lets the engine draw one and report it
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: list[int] | None = None
    bad_token_ids: list[int] = []
    stop: list[str] = []
    stop_token_ids: list[int] = []
    include_stop: bool = False
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    seed: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-5

    def validate(self, vocab_size: int | None = None) -> None:
        """Raise `InvalidRequest` naming the first field out of range.

        vocab_size: when known, token ids are checked against it; a gateway in front of a
        foreign engine does not know it.
        """
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not (math.isfinite(value) and low <= value <= high):
                raise InvalidRequest(
                    f"{name} must be between {low} and {high}, not {value}.", param=name
                )
        if self.top_p <= 0:
            raise InvalidRequest(f"top_p must be above 0, not {self.top_p}.", param="top_p")
        if self.repetition_penalty <= 0:
            raise InvalidRequest(
                f"repetition_penalty must be above 0, not {self.repetition_penalty}.",
                param="repetition_penalty",
            )
        if not -1 <= self.top_k <= MAX_TOP_K:
            raise InvalidRequest(
                f"top_k must be -1 or 0 (off), or a count up to {MAX_TOP_K}; not {self.top_k}.",
                param="top_k",
            )
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_TOP_LOGPROBS:
            raise InvalidRequest(
                f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}, not {self.logprobs}.",
                param="top_logprobs",
            )
        if self.min_tokens < 0:
            raise InvalidRequest(
                f"min_tokens must not be negative, not {self.min_tokens}.", param="min_tokens"
            )
        self._validate_bias(vocab_size)
        self._validate_stops()
        for name in ("allowed_token_ids", "bad_token_ids", "stop_token_ids"):
            _validate_token_ids(name, getattr(self, name), vocab_size)
        if self.allowed_token_ids is not None and not set(self.allowed_token_ids) - set(
            self.bad_token_ids
        ):
            raise InvalidRequest(
                "allowed_token_ids leaves no token that may be produced.",
                param="allowed_token_ids",
            )

    def _validate_bias(self, vocab_size: int | None) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
            raise InvalidRequest(
                f"logit_bias may have {MAX_LOGIT_BIAS_ENTRIES} entries, not "
                f"{len(self.logit_bias)}.",
                param="logit_bias",
            )
        _validate_token_ids("logit_bias", list(self.logit_bias), vocab_size)
        for token_id, bias in self.logit_bias.items():
            if not (math.isfinite(bias) and -100 <= bias <= 100):
                raise InvalidRequest(
                    f"logit_bias of token {token_id} must be between -100 and 100, not {bias}.",
                    param="logit_bias",
                )

    def _validate_stops(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(
                f"stop may hold {MAX_STOP_STRINGS} strings, not {len(self.stop)}.", param="stop"
            )
        for text in self.stop:
            if not text or len(text) > MAX_STOP_STRING_CHARS:
                raise InvalidRequest(
                    f"a stop string must have 1 to {MAX_STOP_STRING_CHARS} characters.",
                    param="stop",
                )


_RANGES = (
    ("temperature", 0.0, 100.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("repetition_penalty", 0.0, 100.0),
)


def _validate_token_ids(name: str, ids: list[int] | None, vocab_size: int | None) -> None:
    if not ids:
        if ids is not None and name == "allowed_token_ids":
            raise InvalidRequest("allowed_token_ids must not be empty.", param=name)
        return
    if len(ids) > MAX_TOKEN_LIST:
        raise InvalidRequest(f"{name} may hold {MAX_TOKEN_LIST} ids, not {len(ids)}.", param=name)
    limit = vocab_size if vocab_size is not None else 2**31
    bad = [i for i in ids if not 0 <= i < limit]
    if bad:
        shown = ", ".join(map(str, bad[:8])) + (", …" if len(bad) > 8 else "")
        raise InvalidRequest(
            f"{name} names token ids outside the vocabulary (0 to {limit - 1}): {shown}.",
            param=name,
        )
