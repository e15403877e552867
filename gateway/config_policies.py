"""The settings of each policy, as they stand under a route."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from gateway.config_values import Count, Seconds, Section, Share, Text
from policies.base import Mode
from policies.prompt import Per
from policies.router_model import RouterModel
from policies.rules import Has
from policies.semantic import Use


class LearnConfig(Section, frozen=True):
    """A limit for each choice that follows from the lengths of the control arm's answers.

    percentile:  so many percent of them fit
    min_tokens:  the limit is never less; `max_tokens` of the budget is the most
    min_answers: so many must have ended before it holds
    """

    percentile: Annotated[int, Meta(ge=50, le=99)] = 95
    min_tokens: Count = 32
    min_answers: Count = 200


class BudgetConfig(Section, frozen=True):
    """The policy `budget`: a hard cap on the tokens that one request may produce.

    max_tokens: over all choices together; fills a missing limit and clamps a larger one
    soft:       share of a choice's tokens after which it ends at the first clean place; None for
                never
    mode:       `shadow` only reports what it would have done
    holdout:    share of the conversations that it leaves alone, so that its effect can be known;
                the cap holds for them too
    learn:      a lesser limit for most answers, from their lengths; None for the cap alone
    reasoning_tokens: over all choices, what a model with a `reasoning_field` may think beside the
                cap, which is then of answers
    """

    max_tokens: Count
    mode: Mode = "active"
    holdout: Share = 0.05
    soft: Share | None = None
    learn: LearnConfig | None = None
    reasoning_tokens: Count | None = None


class ShapeConfig(Section, frozen=True):
    """The policy `shape`: what answers look like.

    brevity:     `concise` asks for short answers, in words of ours
    instruction: a text of the route's own at the end of the system message, before those
    schema:      a JSON Schema that answers conform to; in the file, the schema or a file with it
    reasoning:   `hidden` keeps from the client what a model thinks before it answers
    answer:      what every request is answered, without asking a model
    mode:        as that of `budget`
    holdout:     share of the conversations without brevity and instruction; all else holds there
    """

    brevity: Literal["concise"] | None = None
    instruction: Text | None = None
    schema: dict[str, Any] | None = None
    reasoning: Literal["shown", "hidden"] = "shown"
    answer: Text | None = None
    mode: Mode = "active"
    holdout: Share = 0.05


class InputConfig(Section, frozen=True):
    """The policy `input`: how long a prompt may be.

    max_prompt_tokens: longer ones are refused, tools included
    retrieved:         `ranked` leaves out, before that, retrieved texts that have least to do with
                       the question
    mode:              as that of `budget`
    holdout:           share of the conversations in which nothing is left out; the limit holds
    """

    max_prompt_tokens: Count
    retrieved: Literal["kept", "ranked"] = "kept"
    mode: Mode = "active"
    holdout: Share = 0.0


class AgentConfig(Section, frozen=True):
    """The policy `agent`: how far a model may go on by itself after a message of the user's.

    max_tool_rounds: rounds of tool calls
    max_run_tokens:  tokens of all that was said and returned since then
    on_limit:        `refuse` the request beyond it, or `finish`: the model must answer
    mode:            as that of `budget`
    holdout:         share of the conversations that are refused where others must be answered
    """

    max_tool_rounds: Count | None = None
    max_run_tokens: Count | None = None
    on_limit: Literal["refuse", "finish"] = "refuse"
    mode: Mode = "active"
    holdout: Share = 0.0


class RuleConfig(Section, frozen=True):
    """A rule of the policy `route`. It holds for a prompt that is all of what it says.

    model:   answers then
    min_prompt_tokens, max_prompt_tokens: of everything up to the deciding message
    has:     all of these
    script:  the script of most of its words, one of `policies.features.SCRIPTS`
    pattern: a regular expression that is found in the deciding message
    """

    model: str
    min_prompt_tokens: Count | None = None
    max_prompt_tokens: Count | None = None
    has: tuple[Has, ...] = ()
    script: str | None = None
    pattern: Text | None = None


class CascadeConfig(Section, frozen=True):
    """`weak` begins; `strong` takes over where the beginning is unsure, before any of it is shown.

    tokens:     so many of its first tokens are judged
    min_margin: mean lead in probability of the likeliest token over the second; below it is unsure
    wait_ms:    then what has come until then is judged
    """

    tokens: Annotated[int, Meta(ge=1, le=256)] = 16
    min_margin: Annotated[float, Meta(gt=0, le=1)] = 0.5
    wait_ms: Count = 2000


class RoutingConfig(Section, frozen=True):
    """The policy `route`: which model answers. The route's `model` does without it.

    rules:        the first that holds says which model; then the router, then the cascade
    router:       what `fewer route train` has written; in the file, the path of it
    threshold:    what scores as much is answered by `strong`
    strong_share: in its place: about so large a share of prompts is answered by `strong`
    weak, strong: the two models that router and cascade choose between
    per:          which message of the user decides: the first one of the conversation, or the
                  latest one, of each turn
    mode, holdout: as those of `budget`; in the control arm `model` answers
    """

    rules: tuple[RuleConfig, ...] = ()
    router: RouterModel | None = None
    threshold: Share | None = None
    strong_share: Share | None = None
    weak: str | None = None
    strong: str | None = None
    cascade: CascadeConfig | None = None
    per: Per = "conversation"
    mode: Mode = "active"
    holdout: Share = 0.05

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that it may choose, once."""
        named = [*(rule.model for rule in self.rules), self.weak, self.strong]
        return tuple(dict.fromkeys(name for name in named if name is not None))


class ExactCacheConfig(Section, frozen=True):
    """The policy `cache`, exact: the same request again gets the answer that it got before.

    mode:        `shadow` keeps no answer, and only reports what would have been one
    requests:    `deterministic` ones, with a temperature of 0 or a seed; `all` gives a sampled
                 request the sample of an earlier one
    cut_answers: those that ended at their limit
    holdout:     share of the conversations that neither read nor fill the cache
    """

    mode: Mode = "active"
    requests: Literal["deterministic", "all"] = "deterministic"
    cut_answers: Literal["kept", "dropped"] = "kept"
    holdout: Share = 0.0


class SemanticCacheConfig(Section, frozen=True):
    """The policy `semantic`: what an answer is worth to a request in other words.

    use:            `draft`: a model that verifies predictions writes only what differs; `answer`:
                    it is the answer, where nothing that both turn on differs
    min_similarity: cosine of the two texts from which on; counts where it is above the calibrated
                    threshold of their script
    max_entries:    requests of a tenant that are compared with
    mode, holdout:  as those of `budget`; the control arm is neither compared nor compared with
    """

    use: Use = "draft"
    min_similarity: Share = 0.0
    max_entries: Annotated[int, Meta(ge=1, le=20_000)] = 2000
    mode: Mode = "active"
    holdout: Share = 0.05


class RouteCacheConfig(Section, frozen=True):
    """What a route keeps; `ttl_s` says for how long."""

    exact: ExactCacheConfig = ExactCacheConfig()
    semantic: SemanticCacheConfig | None = None
    ttl_s: Seconds = 3600.0


class CoalesceConfig(Section, frozen=True):
    """The policy `coalesce`: deterministic requests that are the same share one generation.

    mode:    `shadow` only reports
    holdout: share of the conversations whose requests join no other, and are not joined
    """

    mode: Mode = "active"
    holdout: Share = 0.0


class HistoryConfig(Section, frozen=True):
    """The policy `history`: long conversations lose their oldest turns, many at once.

    strategy:    `window` leaves them out; `summary` puts a record in their place, which a model
                 writes before it is needed; `tiered` tells facts as well, which are kept outside
                 the prompt
    high_tokens: a prompt that counts more, tools included, is cut
    low_tokens:  what a cut leaves, at most, with the record
    summary_tokens: `summary` and `tiered`: of a record, at most
    facts:       `tiered`: told in a prompt, at most
    model:       who writes the record; None for the route's own, which has read it all already
    mode, holdout: as those of `budget`; the control arm is not cut
    """

    high_tokens: Count
    low_tokens: Count
    strategy: Literal["window", "summary", "tiered"] = "window"
    summary_tokens: Count = 256
    facts: Count = 12
    model: str | None = None
    mode: Mode = "active"
    holdout: Share = 0.05


class DedupConfig(Section, frozen=True):
    """The policy `dedup`: what stands in the prompt already is referred to.

    min_tokens:    blocks that count less are left alone
    mode, holdout: as those of `budget`
    """

    min_tokens: Count = 64
    mode: Mode = "active"
    holdout: Share = 0.05
