"""The policy `history` on agent runs and dialogues that people had, at every size of prompt."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from policies.context import Context
from policies.history import HistoryPolicy
from policies.record import Record, encode
from policies.summary import SummaryPolicy
from policies.tiers import TieredPolicy
from tests.fakes.conversations import Message, chat, said, system, user

HIGH_TOKENS = range(100, 8001, 100)
CONTEXT = Context(route="chat")


def agent_runs(folder: Path) -> list[list[Message]]:
    runs = json.loads(gzip.decompress((folder / "gpt-4o-airline-even.json.gz").read_bytes()))
    single = [run["traj"] for run in runs[::12]]
    return [*single, [*single[0], *(m for run in single[1:] for m in run[1:])]]


def dialogues(folder: Path) -> list[list[Message]]:
    lines = (folder / "mtbench101.jsonl").read_text("utf-8").splitlines()[::6]
    return [
        [
            system("Be helpful."),
            *(m for turn in turns for m in (user(turn["user"]), said(turn["bot"]))),
        ]
        for turns in (json.loads(line)["history"] for line in lines)
    ]


SETS = {"tau_bench": agent_runs, "mt_bench_101": dialogues}


def asked(messages: list[Message]) -> Iterator[list[Message]]:
    """What a client has sent before each answer; of a long conversation, every seventh time."""
    ends = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i > 1]
    for end in ends[:: 7 if len(ends) > 40 else 1]:
        yield messages[:end]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("part", [1.0, 0.5, 0.25])
def test_at_every_size_what_must_stay_stays(
    shared_data: Callable[[str], Path], name: str, part: float
) -> None:
    cuts = 0
    for messages in (each for run in SETS[name](shared_data(name)) for each in asked(run)):
        for high in HIGH_TOKENS:
            policy = HistoryPolicy(high, max(1, int(high * part) - 1))
            sent = policy.decide(chat(messages), CONTEXT).request
            if sent is not None:
                cuts += 1
                check(messages, sent.messages)
    assert cuts > 50


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_the_same_with_records_and_facts(
    shared_data: Callable[[str], Path], name: str, known: bool
) -> None:
    cuts = 0
    record = encode(Record("She flies. 她要飞。", ("name: Ana", "seat: 14C", "city: 北京")))
    for messages in (each for run in SETS[name](shared_data(name)) for each in asked(run)):
        request = chat(messages)
        for high in HIGH_TOKENS[::4]:
            for policy in (
                SummaryPolicy(high, high // 2, high // 8),
                TieredPolicy(high, high // 2, high // 16, 2),
            ):
                keys = policy.recalls(request, CONTEXT) if known else ()
                context = replace(CONTEXT, known=dict.fromkeys(keys, record))
                decision = policy.decide(request, context)
                if decision.request is not None:
                    cuts += 1
                    check(messages, decision.request.messages)
                if decision.child is not None:
                    assert decision.child.request.messages[0] == messages[0]
    assert cuts > 20


def check(messages: list[Message], sent: list[Message]) -> None:
    assert sent[0] == messages[0]
    assert sent[1]["role"] == "user"
    assert sent[-1] == messages[-1]
    assert last_of_user(sent) == last_of_user(messages)
    open_calls: list[str] = []
    for message in sent:
        if message["role"] == "tool":
            open_calls.remove(message["tool_call_id"])
        else:
            assert not open_calls
        open_calls += [call["id"] for call in message.get("tool_calls") or ()]
    assert not open_calls


def last_of_user(messages: list[Message]) -> Message:
    return next(message for message in reversed(messages) if message["role"] == "user")
