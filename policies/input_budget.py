"""The policy `input`: how long a prompt may be, whatever it is made of.

Longer ones are refused with both numbers. Where the route says `retrieved: ranked`, texts that a
search has found are left out first, those that have least to do with the question; never the last
of them, and nothing but them. The limit holds in the control arm too; there, nothing is left out.

What is left out depends on the question, so a prompt above the limit begins otherwise with each
one. It is asked after `history`, whose cut must not move with that, and before `dedup`, so that no
reference leads to a text that is gone.
"""

from __future__ import annotations

from policies.base import Mode, Policy
from policies.context import Context
from policies.counting import request_tokens, text_tokens
from policies.decision import Decision, PromptTokens, keep, refuse, rewrite
from policies.ranking import ranked
from policies.request import Request
from policies.retrieved import Chunk, chunks_of, question_of, without

CODE = "context_length_exceeded"
"""The error's code: programs that know it shorten their prompts by themselves."""

_TOLD_PLACES = 20


class InputPolicy(Policy):
    """max_prompt_tokens: as `policies.counting` counts them, tools included
    is_ranked:         retrieved texts may be left out
    """

    name = "input"

    def __init__(
        self, max_prompt_tokens: int, mode: Mode = "active", *, is_ranked: bool = False
    ) -> None:
        self.max_prompt_tokens = max_prompt_tokens
        self.mode = mode
        self.is_ranked = is_ranked

    def decide(self, request: Request, context: Context) -> Decision:
        return self._decide(request, context, is_ranked=self.is_ranked)

    def control(self, request: Request, context: Context) -> Decision:
        return self._decide(request, context, is_ranked=False)

    def _decide(self, request: Request, context: Context, *, is_ranked: bool) -> Decision:
        before = request_tokens(request)
        if before <= self.max_prompt_tokens:
            return keep(f"{before} tokens, within {self.max_prompt_tokens}")
        chunks = chunks_of(request) if is_ranked else []
        excess_tokens = before - self.max_prompt_tokens
        left_out = self._worst(request, chunks, excess_tokens) if chunks else []
        fitted = without(request, [chunks[place] for place in left_out])
        after = request_tokens(fitted) if left_out else before
        if after > self.max_prompt_tokens:
            return refuse(_refusal(context.route, before, after, self.max_prompt_tokens), code=CODE)
        return rewrite(
            fitted,
            f"{len(left_out)} of {len(chunks)} retrieved texts left out ({_told(left_out)}): "
            f"{before} to {after} tokens",
            prompt=PromptTokens(before, after),
        )

    def _worst(self, request: Request, chunks: list[Chunk], excess_tokens: int) -> list[int]:
        """Places of as many as it takes, in their order; the best one is never among them."""
        left_out: list[int] = []
        best_first = ranked(question_of(request), [chunk.text for chunk in chunks])
        for place in reversed(best_first[1:]):
            if excess_tokens <= 0:
                break
            left_out.append(place)
            # A text counts up to a token more by itself than as a part of a longer one.
            excess_tokens -= max(0, text_tokens(chunks[place].text) - 1)
        return sorted(left_out)


def _refusal(route: str, before: int, after: int, limit: int) -> str:
    least = "" if after == before else f" ({after} without all retrieved texts but the best)"
    return (
        f"The prompt counts {before} tokens by estimate{least}; the route {route} takes {limit} "
        f"(its setting input.max_prompt_tokens)."
    )


def _told(places: list[int]) -> str:
    """Counted from 1."""
    told = ", ".join(str(place + 1) for place in places[:_TOLD_PLACES])
    return f"{told}, ..." if places[_TOLD_PLACES:] else told
