"""One line of the ledger."""

from __future__ import annotations

import msgspec

from engine.protocol.errors import Cancelled
from gateway.errors import SlowReader
from policies.base import Mode
from policies.decision import Action
from policies.holdout import Arm


class Origins(msgspec.Struct, frozen=True):
    """Prompt tokens by where they come from; they add up to the prompt.

    system:    system and developer messages
    history:   earlier turns, of both sides
    retrieved: the parameter `documents`, and attached files
    tools:     definitions, calls and results
    user:      the last message of the user; prompts of the completions surface
    """

    system: int = 0
    history: int = 0
    retrieved: int = 0
    tools: int = 0
    user: int = 0


class Ruling(msgspec.Struct, frozen=True):
    """What one policy decided about the request, and what came of it.

    mode:           as it was at work: a policy that does harm is a shadow
    arm:            None without a holdout
    asked_tokens:   output that the client's limits would have allowed; None when it gave none
    allowed_tokens: output that was allowed after the decision
    cut_tokens:     prompt tokens that the decision took out, or would have; an estimate
    """

    policy: str
    epoch: str
    mode: Mode
    arm: Arm | None
    action: Action
    asked_tokens: int | None = None
    allowed_tokens: int | None = None
    cut_tokens: int = 0


class Entry(msgspec.Struct, frozen=True):
    """One request that has ended. Holds numbers and names of the configuration, no content.

    time_s:        Unix time of its end
    conversation:  `policies.holdout.conversation_of`
    error:         the error's code; None for a complete answer
    cut:           a choice ended at its limit
    prompt_tokens, completion_tokens: what was spent; 0 where another's answer was used
    reused_tokens: what that answer had cost, prompt and output together
    estimated:     whoever counted its tokens has not told them all
    seconds:       arrival to end
    dollars:       None for a model without a price
    choices:       how many outputs were asked for
    call_id:       names the request, in this ledger and to its client
    request_id:    what the client itself has called it, if anything
    unparsed:      an answer that was to be JSON, or the arguments of a tool, cannot be read
    repeated:      the user asked nearly the same before (`policies.repeats`)
    accepted_tokens, rejected_tokens: of a prediction
    asked_by:      the policy that asked by itself; empty for a client. What it spent counts for its
                   arm, and it is no request of the conversation's
    """

    time_s: float
    route: str
    tenant: str
    model: str
    conversation: str
    error: str | None
    cut: bool
    origins: Origins
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reused_tokens: int
    estimated: bool
    first_token_s: float | None
    per_token_s: float | None
    queue_ms: float | None
    seconds: float
    dollars: float | None
    choices: int = 1
    rulings: tuple[Ruling, ...] = ()
    call_id: str = ""
    request_id: str | None = None
    unparsed: bool = False
    repeated: bool = False
    accepted_tokens: int = 0
    rejected_tokens: int = 0
    asked_by: str = ""

    @property
    def failed(self) -> bool:
        """Was there an error? A client that left, or stopped reading, is none."""
        return self.error not in (None, Cancelled.code, SlowReader.code)
