"""Budgets in Redis, for all gateways that share one.

Each call is one Lua script, which Redis runs without anything in between. The scripts measure
time by Redis's own clock, so that gateways need not agree about it. All names have one hash tag:
a cluster keeps them together. They must not be evicted: `maxmemory-policy` has to be `noeviction`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gateway.stores.budget import (
    GRACE_S,
    NEVER_S,
    SLOT_COUNTS_S,
    BudgetStore,
    Reply,
    State,
    Take,
)
from gateway.stores.redis import RedisClient

PREFIX = "fewer:{budget}:"
_DUE = f"{PREFIX}due"

_COMMON = """
local time = redis.call('TIME')
local now = tonumber(ARGV[1]) or (tonumber(time[1]) + tonumber(time[2]) / 1000000)
local due = KEYS[1]

local function counts(second)
  return math.abs(now - second) < SLOT
end

local function exchange(counter, kind, held, spent, second)
  if kind == 'p' then
    -- Of a period that was forgotten nothing must come back.
    if redis.call('EXISTS', counter) == 1 then
      redis.call('HINCRBY', counter, 'held', 0 - held)  -- -held may be -0
      redis.call('HINCRBY', counter, 'spent', spent)
    end
  elseif counts(tonumber(second)) and spent ~= held then
    if redis.call('HINCRBY', counter, second, spent - held) <= 0 then
      redis.call('HDEL', counter, second)
    end
    redis.call('EXPIRE', counter, SLOT + 1)
  end
end

-- spent: by counter, or nil for a lease that nobody has settled
local function finish(lease, spent)
  local fields = redis.call('HGETALL', lease)
  redis.call('DEL', lease)
  redis.call('ZREM', due, lease)
  for i = 1, #fields, 2 do
    local kind, second, amount = string.match(fields[i + 1], '^(%a):(%d+):(%d+)$')
    local held = tonumber(amount)
    local own = spent and spent[fields[i]]
    if own == nil and kind == 'p' then own = 0 end
    if own then exchange(fields[i], kind, held, own, second) end
  end
end

local function tidy()
  for _, lease in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, 100)) do
    finish(lease, nil)
  end
end

-- used, reset_s, wait_s (-1: never)
local function state(counter, amount, limit, windowed)
  if not windowed then
    local found = redis.call('HMGET', counter, 'spent', 'held')
    local used = (tonumber(found[1]) or 0) + (tonumber(found[2]) or 0)
    return used, 0, (amount == 0 or used + amount <= limit) and 0 or -1
  end
  local fields = redis.call('HGETALL', counter)
  local used, slots = 0, {}
  for i = 1, #fields, 2 do
    local second, taken = tonumber(fields[i]), tonumber(fields[i + 1])
    if counts(second) then
      used = used + taken
      slots[#slots + 1] = {second, taken}
    else
      redis.call('HDEL', counter, fields[i])
    end
  end
  table.sort(slots, function(a, b) return a[1] < b[1] end)
  local reset = #slots > 0 and slots[#slots][1] + SLOT - now or 0
  local excess = used + amount - limit
  if amount == 0 or excess <= 0 then return used, reset, 0 end
  for _, slot in ipairs(slots) do
    excess = excess - slot[2]
    if excess <= 0 then return used, reset, slot[1] + SLOT - now end
  end
  return used, reset, -1
end

-- One line for each counter, from ARGV[first] on: amount, limit, windowed, expiry in ms.
local function states(first, after)
  local all, fits = {}, true
  for i = after, #KEYS do
    local at = first + (i - after) * 4
    local windowed = ARGV[at + 2] == '1'
    local used, reset, wait = state(
      KEYS[i], tonumber(ARGV[at]), tonumber(ARGV[at + 1]), windowed)
    if wait ~= 0 then fits = false end
    all[#all + 1] = {used, reset, wait}
  end
  return all, fits
end

local function told(all)
  local lines = {}
  for i, one in ipairs(all) do
    lines[i] = string.format('%.0f %.6f %.6f', one[1], one[2], one[3])
  end
  return lines
end
"""

_RESERVE = """
tidy()
local all, fits = states(3, 3)
if not fits then return {0, told(all)} end
local lease, second = KEYS[2], string.format('%.0f', math.floor(now))
for i = 3, #KEYS do
  local at = 3 + (i - 3) * 4
  local amount, windowed = ARGV[at], ARGV[at + 2] == '1'
  if windowed then
    if amount ~= '0' then
      redis.call('HINCRBY', KEYS[i], second, amount)
      redis.call('EXPIRE', KEYS[i], SLOT + 1)
      all[i - 2][2] = math.max(all[i - 2][2], math.floor(now) + SLOT - now)
    end
  else
    redis.call('HINCRBY', KEYS[i], 'held', amount)
    if ARGV[at + 3] ~= '' then redis.call('PEXPIREAT', KEYS[i], ARGV[at + 3]) end
  end
  all[i - 2][1] = all[i - 2][1] + tonumber(amount)
  local kind = windowed and 'w' or 'p'
  redis.call('HSET', lease, KEYS[i], kind .. ':' .. second .. ':' .. amount)
end
redis.call('ZADD', due, string.format('%.6f', now + tonumber(ARGV[2])), lease)
return {1, told(all)}
"""

_SETTLE = """
tidy()
local spent = {}
for i = 3, #KEYS do spent[KEYS[i]] = tonumber(ARGV[i - 1]) end
finish(KEYS[2], spent)
"""

_LOOK = """
tidy()
local all = states(2, 2)
return told(all)
"""


class RedisBudgetStore(BudgetStore):
    """Closes `client`.

    clock: Unix time in seconds in place of Redis's own
    """

    def __init__(self, client: RedisClient, *, clock: Callable[[], float] | None = None) -> None:
        self._client = client
        self._clock = clock
        register = client.commands.register_script
        self._reserve = register(_script(_RESERVE))
        self._settle = register(_script(_SETTLE))
        self._look = register(_script(_LOOK))

    def __repr__(self) -> str:
        return f"<RedisBudgetStore {self._client!r}>"

    async def reserve(self, lease: str, takes: Sequence[Take], lease_s: float) -> Reply:
        keys = [_DUE, _lease(lease), *map(_counter, takes)]
        arguments = [self._now(), repr(lease_s), *_lines(takes)]
        granted, told = await self._run(self._reserve, keys, arguments)
        return Reply(granted == 1, tuple(map(_state, told)))

    async def settle(self, lease: str, takes: Sequence[Take]) -> None:
        keys = [_DUE, _lease(lease), *map(_counter, takes)]
        await self._run(self._settle, keys, [self._now(), *(take.amount for take in takes)])

    async def look(self, takes: Sequence[Take]) -> tuple[State, ...]:
        keys = [_DUE, *map(_counter, takes)]
        told = await self._run(self._look, keys, [self._now(), *_lines(takes)])
        return tuple(map(_state, told))

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _run(self, script: Any, keys: list[str], arguments: list[str | int]) -> Any:
        return await self._client.run(lambda: script(keys, arguments))

    def _now(self) -> str:
        return "" if self._clock is None else repr(self._clock())


def _script(text: str) -> str:
    return f"local SLOT = {SLOT_COUNTS_S}\n{_COMMON}{text}"


def _counter(take: Take) -> str:
    return f"{PREFIX}counter:{take.counter}"


def _lease(lease: str) -> str:
    return f"{PREFIX}lease:{lease}"


def _lines(takes: Sequence[Take]) -> list[str | int]:
    values: list[str | int] = []
    for take in takes:
        ends = "" if take.until_s == NEVER_S else int((take.until_s + GRACE_S) * 1000)
        values += [take.amount, take.limit, int(take.windowed), ends]
    return values


def _state(told: bytes) -> State:
    used, reset_s, wait_s = told.split()
    wait = float(wait_s)
    return State(int(used), float(reset_s), NEVER_S if wait < 0 else wait)
