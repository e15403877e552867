"""Prompt lookup: what followed the same words the last time.

Saxena, "Prompt Lookup Decoding", 2023. Answers that quote, edit or continue their prompt, or
repeat themselves, are found there.
"""

from __future__ import annotations

import numpy as np

from engine.runner.base import Int32
from engine.speculate.base import Guess, Proposer
from engine.speculate.matching import copying_chances, longest_matches


class NgramProposer(Proposer):
    """Copies on from the latest place where the longest end of prompt and output was before."""

    name = "ngram"

    def propose(self, tokens: Int32, prompt_tokens: int, most: int) -> Guess | None:
        after, agreed = longest_matches(tokens[:-1], tokens)
        if agreed == 0:
            return None
        # A copy that reaches its own beginning goes round: that is what a repetition does.
        copied: list[int] = np.resize(tokens[after[-1] :], most).tolist()
        return Guess(copied, copying_chances(agreed, most))
