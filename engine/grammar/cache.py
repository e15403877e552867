"""Compiled grammars, by tenant: none is found by another, and none can push another's out."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from engine.protocol.grammar import Grammar

if TYPE_CHECKING:
    from engine.grammar.compiled import Compiled

MAX_TENANTS = 64
MAX_GRAMMARS = 16
"""Of each tenant. A grammar in use lives on where it has left the cache."""

Tenant = tuple[str, str]
"""Its name and salt, both of the gateway's choosing."""


class GrammarCache:
    """The least recently used go first, of a tenant's grammars and of the tenants."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[Tenant, OrderedDict[tuple[str, str], Compiled]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    def get(self, tenant: Tenant, grammar: Grammar) -> Compiled | None:
        own = self._tenants.get(tenant)
        found = None if own is None else own.get((grammar.kind, grammar.text))
        if own is not None and found is not None:
            own.move_to_end((grammar.kind, grammar.text))
            self._tenants.move_to_end(tenant)
        return found

    def put(self, tenant: Tenant, grammar: Grammar, compiled: Compiled) -> None:
        own = self._tenants.setdefault(tenant, OrderedDict())
        self._tenants.move_to_end(tenant)
        own[grammar.kind, grammar.text] = compiled
        own.move_to_end((grammar.kind, grammar.text))
        if len(own) > MAX_GRAMMARS:
            own.popitem(last=False)
        if len(self._tenants) > MAX_TENANTS:
            self._tenants.popitem(last=False)
