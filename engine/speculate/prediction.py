"""OpenAI's predicted outputs: the client sends what the answer will mostly be.

https://platform.openai.com/docs/guides/predicted-outputs
"""

from __future__ import annotations

import numpy as np

from engine.runner.base import Int32
from engine.speculate.base import Proposer
from engine.speculate.matching import longest_matches

_NEAR_TOKENS = 16
"""A single token that agrees says something only this near to where it was expected."""


class PredictionProposer(Proposer):
    """Keeps a place in the prediction, and finds it again after the answer went its own way.

    prediction: int32[N], the tokens of the predicted text
    """

    name = "prediction"
    expected_acceptance = 0.8

    def __init__(self, prediction: Int32) -> None:
        self._prediction = prediction
        self._place = 0
        self._seen = 0

    def propose(self, tokens: Int32, prompt_tokens: int, most: int) -> list[int]:
        self._follow(tokens[prompt_tokens:])
        following: list[int] = self._prediction[self._place : self._place + most].tolist()
        return following

    def _follow(self, output: Int32) -> None:
        """Move to the place in the prediction that the end of the output belongs to."""
        new = output[self._seen :]
        self._seen = len(output)
        place = self._place + len(new)
        if np.array_equal(self._prediction[self._place : place], new):
            self._place = place
        else:
            self._place = self._found(output, place)

    def _found(self, output: Int32, place: int) -> int:
        """Where the longest end of `output` is, nearest to `place`; else there: as many tokens as
        were said may stand for as many others."""
        after, length = longest_matches(self._prediction, output)
        if length == 0:
            return place
        distance = np.abs(after - place)
        nearest = int(distance.argmin())
        if length == 1 and distance[nearest] > _NEAR_TOKENS:
            return place
        return int(after[nearest])
