"""How sure a model is of what it says: the lead of the likeliest token over the second.

The mean lead of the first tokens, in probability, is compared with a threshold, as in margin
sampling (Ramirez et al. 2024, https://arxiv.org/abs/2405.02134). The outcome is known as soon as no
tokens to come could change it.
"""

from __future__ import annotations

import math

from engine.protocol.frames import Event, TokenLogprob
from policies.route import Cascade


class Margins:
    """Of the first tokens of one answer. seen: tokens that have come, with margins or without."""

    def __init__(self, cascade: Cascade) -> None:
        self.seen = 0
        self._tokens = cascade.tokens
        self._least = cascade.min_margin
        self._sum = 0.0
        self._known = 0

    def feed(self, event: Event) -> None:
        self.seen += event.tokens
        for logprob in event.logprobs or ():
            if self._known < self._tokens:
                self._known += 1
                self._sum += _margin(logprob)

    @property
    def are_known(self) -> bool:
        """Has anything been told of them?"""
        return self._known > 0

    @property
    def verdict(self) -> bool | None:
        """Is the model sure? None while tokens to come may change it."""
        to_come = self._tokens - self._known
        if self._sum >= self._least * self._tokens:
            return True
        if self._sum + to_come < self._least * self._tokens:
            return False
        return self.so_far if self.seen >= self._tokens else None

    @property
    def so_far(self) -> bool:
        """Is it sure, by what has come? Who tells nothing is taken for sure."""
        return self._sum >= self._least * self._known


def _margin(logprob: TokenLogprob) -> float:
    """Between 0 and 1. Some servers leave the token itself out of the likeliest."""
    likeliest = sorted((math.exp(min(0.0, top.logprob)) for top in logprob.top), reverse=True)
    if not likeliest:
        return math.exp(min(0.0, logprob.logprob))
    return likeliest[0] - (likeliest[1] if len(likeliest) > 1 else 0.0)
