"""Prompt lookup: what followed the same words the last time.

Saxena, "Prompt Lookup Decoding", 2023. Answers that quote, edit or continue their prompt, or
repeat themselves, are found there.
"""

from __future__ import annotations

import numpy as np

from engine.runner.base import Int32
from engine.speculate.base import Proposer
from engine.speculate.matching import longest_matches

SHORTEST_MATCH = 2


class NgramProposer(Proposer):
    """Copies on from the latest place where the longest end of prompt and output was before.

    As many tokens as agreed are copied, no more (as suffix decoding has it, Oliaro et al. 2024):
    a long agreement is likely to go on for long, one of two tokens is often chance.
    """

    name = "ngram"
    expected_acceptance = 0.4

    def propose(self, tokens: Int32, prompt_tokens: int, most: int) -> list[int]:
        after, length = longest_matches(tokens[:-1], tokens)
        if length < SHORTEST_MATCH:
            return []
        # A copy that reaches its own beginning goes round: that is what a repetition does.
        copied: list[int] = np.resize(tokens[after[-1] :], min(most, length)).tolist()
        return copied
