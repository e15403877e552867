"""The store of budgets that a configuration asks for."""

from __future__ import annotations

from gateway.config import Config
from gateway.stores.budget import BudgetStore
from gateway.stores.budget_memory import MemoryBudgetStore
from gateway.stores.budget_redis import RedisBudgetStore
from gateway.stores.budget_sqlite import SqliteBudgetStore
from gateway.stores.database import beside
from gateway.stores.redis import RedisClient


def store_of(config: Config) -> BudgetStore:
    deadline_s = config.limits.deadline_ms / 1000
    match config.limits.store.reveal():
        case "memory":
            return MemoryBudgetStore()
        case "sqlite":
            return SqliteBudgetStore(beside(config.store, "budgets"), deadline_s=deadline_s)
        case url:
            return RedisBudgetStore(RedisClient(url, deadline_s))
