"""OpenAI's predicted outputs: the client sends what the answer will mostly be.

https://platform.openai.com/docs/guides/predicted-outputs
"""

from __future__ import annotations

import numpy as np

from engine.runner.base import Int32
from engine.speculate.base import Guess, Proposer
from engine.speculate.matching import copying_chances, longest_matches

_TAKEN_ON_TRUST = 6
"""Before anything was said: as if so many tokens had agreed."""
_NEAR_TOKENS = 16
"""A single token that agrees says something only this near to where it was expected."""


class PredictionProposer(Proposer):
    """Keeps a place in the prediction, and finds it again after the answer went its own way.

    prediction: int32[N], the tokens of the predicted text
    """

    name = "prediction"

    def __init__(self, prediction: Int32) -> None:
        self._prediction = prediction
        self._place = 0
        self._agreed = _TAKEN_ON_TRUST
        self._seen = 0

    def propose(self, tokens: Int32, prompt_tokens: int, most: int) -> Guess | None:
        self._follow(tokens[prompt_tokens:])
        following: list[int] = self._prediction[self._place : self._place + most].tolist()
        if not following:
            return None
        return Guess(following, copying_chances(self._agreed, len(following)))

    def _follow(self, output: Int32) -> None:
        """Move to the place in the prediction that the end of the output belongs to."""
        new = output[self._seen :]
        self._seen = len(output)
        place = self._place + len(new)
        if np.array_equal(self._prediction[self._place : place], new):
            self._place, self._agreed = place, self._agreed + len(new)
        else:
            self._place, self._agreed = self._found(output, place)

    def _found(self, output: Int32, place: int) -> tuple[int, int]:
        """Where the longest end of `output` is, nearest to `place`, and its length; else there:
        as many tokens as were said may stand for as many others."""
        after, agreed = longest_matches(self._prediction, output)
        if agreed == 0:
            return place, 1
        distance = np.abs(after - place)
        nearest = int(distance.argmin())
        if agreed == 1 and distance[nearest] > _NEAR_TOKENS:
            return place, 1
        return int(after[nearest]), agreed
