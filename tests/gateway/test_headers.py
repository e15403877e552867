"""What a client is told in headers: little by default, everything on demand, never too much."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.headers import MAX_DECISIONS_BYTES, MAX_RECORD_BYTES, told
from gateway.tenants import OPEN
from gateway.verdict import Verdict
from gateway.visit import Visit
from policies.context import Context
from policies.decision import Arithmetic, Decision, PromptTokens, keep, rewrite
from policies.request import Request
from tests.gateway.test_pipeline import Fixed

REQUEST = Request("chat", "chat", messages=[{"role": "user", "content": "你好"}])
CONTEXT = Context("chat", "acme", "c0ffee")
CUT = rewrite(REQUEST, "cut", Arithmetic(50, 5), PromptTokens(900, 400))


def verdict(decision: Decision, **fields: Any) -> Verdict:
    return Verdict(Fixed(decision), decision, REQUEST, **{"mode": "active"} | fields)


def headers(*verdicts: Verdict, debug: bool = False, **degraded: str) -> dict[str, str]:
    visit = Visit("id", "call", "POST", "/", tenant=OPEN, model="m", cache="miss", debug=debug)
    found = told(visit, list(verdicts), CONTEXT, degraded)
    return {name.decode(): value.decode("ascii") for name, value in found}


def test_by_default_what_changed_or_would_have() -> None:
    found = headers(verdict(CUT), verdict(keep("fine")), verdict(CUT, mode="shadow"))
    assert found["x-fewer-route"] == "chat"
    assert (found["x-fewer-model"], found["x-fewer-cache"]) == ("m", "miss")
    assert json.loads(found["x-fewer-decisions"]) == [
        {"policy": "fixed", "mode": mode, "action": "rewrite", "reason": "cut"}
        for mode in ("active", "shadow")
    ]
    assert "x-fewer-debug" not in found


def test_on_demand_the_arithmetic_arms_and_times() -> None:
    decided = [verdict(CUT, arm="control", took_s=2e-6), verdict(keep("fine"), took_s=1e-6)]
    found = headers(*decided, debug=True)
    first, second = json.loads(found["x-fewer-decisions"])
    assert {name: first[name] for name in ("arm", "asked", "allowed", "before", "after", "us")} == {
        "arm": "control", "asked": 50, "allowed": 5, "before": 900, "after": 400, "us": 2,
    }  # fmt: skip
    assert (first["obeyed"], second["action"], second["reason"]) == (False, "keep", "fine")
    about = json.loads(found["x-fewer-debug"])
    assert (about["tenant"], about["conversation"], about["policies_us"]) == ("acme", "c0ffee", 3)


def test_what_a_model_does_less_well_is_told_where_it_was_obeyed() -> None:
    (told_of,) = json.loads(headers(verdict(CUT, applied=CUT), fixed="no")["x-fewer-decisions"])
    assert told_of["degraded"] == "no"


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(("count", "chars"), [(1, 100_000), (12, 300), (200, 1000), (3, 0)])
def test_no_header_is_longer_than_its_limit(debug: bool, count: int, chars: int) -> None:
    found = headers(*[verdict(rewrite(REQUEST, "é" * chars))] * count, debug=debug)
    text = found["x-fewer-decisions"]
    assert len(text) <= (MAX_RECORD_BYTES if debug else MAX_DECISIONS_BYTES)
    *entries, last = json.loads(text)
    left_out = last.get("left_out", 0)
    assert len(entries) + (left_out or 1) == count
    assert len(found.get("x-fewer-debug", "")) < 300
