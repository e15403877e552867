"""What one tenant's answers said is kept in bounds, and proposed to nobody else."""

from __future__ import annotations

import numpy as np

from engine.request import Request
from engine.runner.base import Int32
from engine.speculate.history import (
    TENANTS,
    TEXT_TOKENS,
    Histories,
    History,
    HistoryProposer,
)
from tests.fakes.rig import PLAIN, Rig, request_of


def ids(text: str) -> Int32:
    return np.frombuffer(text.encode("utf-32-le"), np.int32)


def guess(history: History, text: str, most: int = 15) -> str:
    made = HistoryProposer(history).propose(ids(text), 0, most)
    return "" if made is None else "".join(map(chr, made.tokens))


def test_an_earlier_answer_is_copied_to_its_end_and_not_into_the_next() -> None:
    history = History()
    history.add(ids("the answer is forty-two"))
    history.add(ids("another answer"))
    assert guess(history, "I say: the ans", 5) == "wer i"
    assert guess(history, "is forty-") == "two"
    assert guess(history, "forty-two") == ""


def test_of_equal_places_the_latest_answer_s_is_taken() -> None:
    history = History()
    history.add(ids("colour: red"))
    history.add(ids("colour: blue"))
    assert guess(history, "my colour: ") == "blue"


def test_too_little_that_agrees_is_nothing() -> None:
    history = History()
    assert guess(history, "abc") == ""
    history.add(ids("你好世界，再见"))
    assert guess(history, "x世界") == ""
    assert guess(history, "你好世") == "界，再见"


def test_the_oldest_answers_give_way() -> None:
    history = History()
    history.add(ids("the first answer of all"))
    filler = np.arange(1000, 1000 + TEXT_TOKENS // 4, dtype=np.int32)
    for _ in range(20):
        history.add(filler)
        assert len(history.text) <= TEXT_TOKENS
    assert guess(history, "the first") == ""
    assert HistoryProposer(history).propose(filler[:50], 0, 3) is not None
    history.add(np.zeros(10 * TEXT_TOKENS, np.int32))
    assert len(history.text) <= TEXT_TOKENS


def test_the_tenants_that_asked_longest_ago_are_forgotten() -> None:
    histories = Histories()
    histories.of("first", "").add(ids("what the first said"))
    for number in range(TENANTS - 1):
        histories.of(str(number), "")
        assert guess(histories.of("first", ""), "what the f") == "irst said"
    for number in range(TENANTS):
        histories.of(str(number), "")
    assert len(histories) == TENANTS
    assert guess(histories.of("first", ""), "what the f") == ""


def asked(id: str, **fields: object) -> Request:
    return request_of(id, [9] * 20, 64, sampling=PLAIN, **fields)


def test_the_same_question_again_is_guessed_from_the_tenant_s_last_answer() -> None:
    rig = Rig(speculation="auto")
    for id in ("first", "again"):
        rig.submit(asked(id, tenant="one", salt="one"))
        rig.run()
    assert rig.sink.text("again") == rig.sink.text("first") == rig.alone(asked("r"))
    assert rig.core.statistics().speculation["history"].accepted > 40


def test_nothing_that_one_tenant_said_is_proposed_to_another() -> None:
    """Counted in guesses, and in steps, which are what another could time."""
    rig = Rig(speculation="auto")
    steps = []
    for tenant, salt in (("one", "one"), ("two", "two"), ("one", "two"), ("two", "one")):
        before = rig.core.statistics().steps
        rig.submit(asked(tenant + salt, tenant=tenant, salt=salt))
        rig.run()
        steps.append(rig.core.statistics().steps - before)
        assert "history" not in rig.core.statistics().speculation
    # The last two find their prompts in the prefix cache, which goes by the salt.
    assert steps[0] == steps[1]
    assert steps[2] == steps[3]
