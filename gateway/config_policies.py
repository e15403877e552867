"""The settings of each policy, as they stand under a route."""

from __future__ import annotations

from typing import Literal

from gateway.config_values import Count, Seconds, Section, Share
from policies.base import Mode


class BudgetConfig(Section, frozen=True):
    """The policy `budget`: a hard cap on the tokens that one request may produce.

    max_tokens: over all choices together; fills a missing limit and clamps a larger one
    soft:       share of a choice's tokens after which it ends at the first clean place; None for
                never
    mode:       `shadow` only reports what it would have done
    holdout:    share of the conversations that it leaves alone, so that its effect can be known;
                the cap holds for them too
    """

    max_tokens: Count
    mode: Mode = "active"
    holdout: Share = 0.05
    soft: Share | None = None


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


class RouteCacheConfig(Section, frozen=True):
    """What a route keeps; `ttl_s` says for how long."""

    exact: ExactCacheConfig = ExactCacheConfig()
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

    strategy:    `window` leaves them out
    high_tokens: a prompt that counts more, tools included, is cut
    low_tokens:  what a cut leaves, at most
    mode, holdout: as those of `budget`; the control arm is not cut
    """

    high_tokens: Count
    low_tokens: Count
    strategy: Literal["window"] = "window"
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
