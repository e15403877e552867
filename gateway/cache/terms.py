"""What the policies `cache` and `coalesce`, and the client, allow for one request."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gateway.cache.control import CacheControl
from gateway.verdict import Verdict
from policies.cache import ExactCachePolicy
from policies.coalesce import CoalescePolicy
from policies.request import Request


class Terms(msgspec.Struct, frozen=True):
    """read, write:  a kept answer will do; this one's may be kept
    join, share:     an answer on its way to another will do; others may have this one's
    keep_cut:        also an answer that ended at its limit
    ttl_s:           how long it is kept
    max_age_s:       a kept answer must not be older
    shadow_cache, shadow_coalesce: only report what would have been done
    """

    read: bool = False
    write: bool = False
    join: bool = False
    share: bool = False
    keep_cut: bool = True
    ttl_s: float = 0.0
    max_age_s: float = 0.0
    shadow_cache: bool = False
    shadow_coalesce: bool = False

    @property
    def is_alone(self) -> bool:
        """Has the request nothing to do with any other?"""
        shared = self.read or self.write or self.join or self.share
        return not (shared or self.shadow_cache or self.shadow_coalesce)


def terms_of(verdicts: Iterable[Verdict], request: Request, control: CacheControl) -> Terms:
    """In a policy's control arm, nothing that it allows."""
    terms = Terms()
    for verdict in verdicts:
        match verdict.policy:
            case ExactCachePolicy() as policy if policy.applies(request):
                terms = msgspec.structs.replace(
                    terms,
                    read=verdict.obeyed and not control.no_cache,
                    write=verdict.obeyed and not control.no_store,
                    keep_cut=policy.keep_cut,
                    ttl_s=policy.ttl_s,
                    max_age_s=control.max_age_s,
                    shadow_cache=verdict.mode == "shadow",
                )
            case CoalescePolicy() as policy if policy.applies(request):
                terms = msgspec.structs.replace(
                    terms,
                    join=verdict.obeyed and not control.no_cache,
                    share=verdict.obeyed and not control.no_store,
                    shadow_coalesce=verdict.mode == "shadow",
                )
            case _:
                pass
    return terms
