from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.core import MAX_FAILED_STEPS, Core
from engine.protocol.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from engine.protocol.frames import Accepted, Event, Events, FromEngine, Started
from engine.protocol.sampling import Sampling
from engine.protocol.settings import EngineSettings
from engine.request import Request
from engine.runner.base import Batch
from tests.fakes.executor import HashExecutor
from tests.fakes.rig import LETTERS, Rig, request_of
from tests.fakes.sink import FakeSink
from tests.fakes.tokenizer import byte_tokenizer


@pytest.fixture
def threaded() -> Iterator[Callable[..., Core]]:
    """Cores with their thread running; stopped at the end."""
    cores: list[Core] = []

    def start(executor: HashExecutor, **told: int) -> Core:
        core = Core(executor, byte_tokenizer(), EngineSettings(**told), 256)  # type: ignore[arg-type]
        core.start()
        cores.append(core)
        return core

    yield start
    for core in cores:
        core.stop(0.0)


# one request -------------------------------------------------------------------------------------


def test_a_request_is_accepted_started_streamed_and_ended() -> None:
    rig = Rig()
    request = request_of("r")
    rig.submit(request)
    rig.run()
    kinds = [type(frame) for frame in rig.sink.frames]
    assert kinds == [Accepted, Started, *([Events] * 8)]
    assert rig.sink.accepted("r") == [Accepted("r", 6)]
    assert rig.sink.text("r") == rig.alone(request)
    assert rig.sink.finish("r") == "length"
    usage = rig.sink.usage("r")
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (6, 8, 0)
    assert rig.sink.events("r")[-1].usage == usage
    rig.assert_drained()


def test_max_tokens_five_is_five_tokens_and_length() -> None:
    """B05."""
    rig = Rig()
    rig.submit(request_of("r", max_tokens=5))
    rig.run()
    assert rig.sink.finish("r") == "length"
    assert rig.sink.usage("r").completion_tokens == 5
    assert sum(event.tokens for event in rig.sink.events("r")) == 5


def test_without_a_cap_the_context_is_the_cap() -> None:
    rig = Rig(max_model_len=40)
    rig.submit(request_of("r", [1] * 30, None))
    rig.run()
    assert rig.sink.usage("r").completion_tokens == 10
    assert rig.sink.finish("r") == "length"


def test_a_seed_is_drawn_reported_and_repeatable() -> None:
    rig = Rig()
    sampling = Sampling(allowed_token_ids=LETTERS)
    rig.submit(request_of("drawn", sampling=sampling, max_tokens=20))
    rig.run()
    seed = rig.sink.events("drawn")[0].seed
    assert seed is not None
    assert 0 <= seed < 2**53
    rig.submit(
        request_of("again", sampling=Sampling(allowed_token_ids=LETTERS, seed=seed), max_tokens=20)
    )
    rig.submit(request_of("other", sampling=sampling, max_tokens=20))
    rig.run()
    assert rig.sink.text("again") == rig.sink.text("drawn") != rig.sink.text("other")


def test_several_prompts_and_choices_are_numbered() -> None:
    rig = Rig()
    request = Request(
        id="r",
        prompts=[np.array([65], np.int32), np.array([66, 67], np.int32)],
        sampling=Sampling(seed=3, allowed_token_ids=LETTERS),
        n=3,
        max_tokens=6,
    )
    rig.submit(request)
    rig.run()
    for choice in range(6):
        assert rig.sink.text("r", choice) == rig.alone(request, choice)
        assert rig.sink.finish("r", choice) == "length"
        assert rig.sink.events("r", choice)[0].seed == 3
    assert rig.sink.accepted("r") == [Accepted("r", 3)]
    assert rig.sink.usage("r").completion_tokens == 36
    assert len(rig.sink.started("r")) == 1


def test_cached_tokens_are_counted_once_a_prompt() -> None:
    rig = Rig()
    rig.submit(request_of("cold", [5] * 50, n=3))
    rig.run()
    rig.submit(request_of("warm", [5] * 50, n=3))
    rig.run()
    assert rig.sink.usage("cold").cached_tokens == 0
    assert rig.sink.usage("warm").cached_tokens == 48
    assert rig.sink.started("warm")[0].cached_tokens == 48


def test_queue_time_is_reported_with_the_start() -> None:
    rig = Rig()
    rig.clock.now_s = 1.5
    rig.submit(request_of("r", arrival=1.0))
    rig.run()
    assert rig.sink.started("r") == [Started("r", 0, 500.0)]


def test_an_id_in_use_is_refused_without_ending_its_stream() -> None:
    rig = Rig()
    rig.submit(request_of("r"))
    rig.submit(request_of("r"))
    rig.run()
    assert "never reused" in rig.sink.failure("").message
    assert rig.sink.finish("r") == "length"


def test_two_connections_may_use_the_same_id() -> None:
    rig, other = Rig(), FakeSink()
    rig.submit(request_of("r"))
    rig.core.submit(request_of("r", "another"), other)
    rig.run()
    assert rig.sink.text("r") != other.text("r")


# frames ------------------------------------------------------------------------------------------


def test_first_tokens_leave_ahead_of_the_others_of_their_step() -> None:
    rig = Rig()
    rig.submit(request_of("old"))
    rig.core.turn()
    rig.submit(request_of("new", "else"))
    rig.sink.deliveries.clear()
    rig.core.turn()
    control, first, rest = rig.sink.deliveries
    assert [type(frame) for frame in control] == [Accepted, Started]
    assert [event.id for frame in first for event in events_of(frame)] == ["new"]
    assert [event.id for frame in rest for event in events_of(frame)] == ["old"]


def test_one_frame_a_step_and_connection() -> None:
    rig, other = Rig(), FakeSink()
    for index in range(4):
        rig.submit(request_of(f"r{index}", f"text {index}"))
    rig.core.submit(request_of("o"), other)
    rig.core.turn()
    rig.sink.deliveries.clear()
    other.deliveries.clear()
    rig.core.turn()
    [[mine]], [[theirs]] = rig.sink.deliveries, other.deliveries
    assert sorted(event.id for event in events_of(mine)) == ["r0", "r1", "r2", "r3"]
    assert [event.id for event in events_of(theirs)] == ["o"]


def events_of(frame: FromEngine) -> list[Event]:
    assert isinstance(frame, Events)
    return frame.events


def test_a_connection_that_raises_is_dropped_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        def deliver(self, frames: list[FromEngine]) -> None:
            raise RuntimeError("loop closed")

    rig = Rig()
    request = request_of("r")
    rig.submit(request)
    rig.core.submit(request_of("b"), Broken())
    rig.run()
    assert rig.sink.text("r") == rig.alone(request)
    assert "could not take its frames" in caplog.text
    rig.assert_drained()


# refusals ----------------------------------------------------------------------------------------


def test_a_prompt_longer_than_the_pool_is_refused_and_blocks_nobody() -> None:
    """B37."""
    rig = Rig(num_blocks=128, max_model_len=8192)
    small = [request_of(f"small{index}", f"small {index}") for index in range(5)]
    rig.submit(request_of("long", [1] * 3000))
    for request in small:
        rig.submit(request)
    rig.run()
    failed = rig.sink.failure("long")
    assert failed.code == "context_length_exceeded"
    assert "2048" in failed.message
    assert "3000" in failed.message
    for request in small:
        assert rig.sink.text(request.id) == rig.alone(request)
    rig.assert_drained()


def test_a_cached_prefix_does_not_let_an_impossible_prompt_in() -> None:
    """B37."""
    rig = Rig(num_blocks=128, max_model_len=8192)
    rig.submit(request_of("warm", [1] * 2000, 8))
    rig.run()
    small = [request_of(f"small{index}", f"small {index}") for index in range(5)]
    for request in (request_of("long", [1] * 3000), *small):
        rig.submit(request)
    rig.run()
    assert rig.sink.failure("long").code == "context_length_exceeded"
    for request in small:
        assert rig.sink.text(request.id) == rig.alone(request)
    rig.assert_drained()


def test_a_bad_request_is_refused_by_name_and_a_neighbour_is_untouched() -> None:
    """B35."""
    rig = Rig()
    good = request_of("good")
    rig.submit(good)
    rig.submit(request_of("bias", sampling=Sampling(logit_bias={258: 5.0})))
    rig.submit(request_of("prompt", [258]))
    rig.submit(request_of("empty", []))
    rig.run()
    assert (rig.sink.failure("bias").code, rig.sink.failure("bias").param) == (
        "invalid_value",
        "logit_bias",
    )
    assert rig.sink.failure("prompt").param == rig.sink.failure("empty").param == "prompt"
    assert rig.sink.text("good") == rig.alone(good)


def test_check_request_raises_what_submit_would_deliver() -> None:
    rig = Rig(num_blocks=16, max_num_waiting=1)
    rig.core.check_request(request_of("fine"))
    with pytest.raises(InvalidRequest):
        rig.core.check_request(request_of("r", [999]))
    with pytest.raises(ContextLengthExceeded):
        rig.core.check_request(request_of("r", [1] * 300))
    with pytest.raises(DeadlineExceeded):
        rig.core.check_request(request_of("r", deadline=-1.0))
    assert rig.core.statistics().requests_accepted == 0


def test_the_queue_is_bounded_and_says_when_to_come_back() -> None:
    rig = Rig(max_num_seqs=1, max_num_waiting=2)
    for index in range(4):
        rig.submit(request_of(f"r{index}", f"{index}"))
    rig.core.turn()
    failed = rig.sink.failure("r2")
    assert failed.code == "overloaded"
    assert failed.retry_after_s is not None
    assert failed.retry_after_s >= 1
    rig.submit(request_of("r4"))
    rig.core.turn()
    with pytest.raises(Overloaded) as raised:
        rig.core.check_request(request_of("r5"))
    assert raised.value.retry_after_s is not None
    rig.run()
    assert rig.sink.finish("r0") == "length"
    rig.assert_drained()


def test_slow_readers_do_not_take_the_queue_from_others() -> None:
    rig = Rig(max_num_seqs=1, max_num_waiting=2)
    for id in ("paused", "runs", "waits"):
        rig.submit(request_of(id, id))
        rig.core.turn()
        if id == "paused":
            rig.core.pause(rig.sink, id)
    rig.submit(request_of("waits too"))
    rig.core.turn()
    assert not rig.sink.failures("waits too")


def test_paused_requests_are_bounded() -> None:
    rig = Rig(max_num_waiting=1)
    rig.submit(request_of("paused"))
    rig.core.pause(rig.sink, "paused")
    rig.core.turn()
    rig.submit(request_of("r"))
    rig.core.turn()
    assert rig.sink.failure("r").code == "overloaded"


def test_a_deadline_that_the_queue_cannot_meet_is_refused_at_once() -> None:
    rig = Rig(max_num_seqs=1, on_run=lambda batch: tick(0.5 + 0.1 * len(batch.tokens)))

    def tick(seconds: float) -> None:
        rig.clock.now_s += seconds

    rig.submit(request_of("warm-up", [1] * 100, 20))
    rig.run()
    for index in range(5):
        rig.submit(request_of(f"r{index}", [index] * 100, 20))
    rig.core.turn()
    rig.submit(request_of("late", deadline=rig.clock.now_s + 10))
    rig.core.turn()
    failed = rig.sink.failure("late")
    assert failed.code == "overloaded"
    assert failed.retry_after_s is not None
    assert failed.retry_after_s > 5


def test_parameters_that_leave_no_token_fail_that_request_alone() -> None:
    rig = Rig()
    good = request_of("good")
    nothing = Sampling(bad_token_ids=list(range(258)))
    rig.submit(good)
    rig.submit(request_of("none", "none", sampling=nothing, n=2))
    rig.run()
    assert rig.sink.failure("none").code == "invalid_value"
    assert not rig.sink.events("none")
    assert rig.sink.text("good") == rig.alone(good)
    rig.assert_drained()


# cancel, pause, deadline, drop -------------------------------------------------------------------


def test_a_cancelled_request_is_in_no_step_scheduled_after() -> None:
    rows: list[int] = []
    rig = Rig(on_run=lambda batch: rows.append(len(batch.context_len)))
    rig.submit(request_of("stays", "one"))
    rig.submit(request_of("goes", "two", n=2))
    rig.core.turn()
    rig.core.turn()
    rig.core.cancel(rig.sink, "goes")
    said = len(rig.sink.events("goes"))
    rig.core.turn()
    assert rows == [3, 3, 1]
    assert rig.sink.failure("goes").code == "cancelled"
    assert len(rig.sink.events("goes")) == said
    rig.run()
    assert rig.sink.finish("stays") == "length"
    rig.assert_drained()


def test_cancel_works_while_queued_parked_and_prefilling() -> None:
    rig = Rig(max_num_seqs=2, max_num_batched_tokens=16)
    for id in ("prefills", "parked", "queued"):
        rig.submit(request_of(id, [1] * 64))
    rig.core.turn()
    for id in ("prefills", "parked", "queued", "unknown"):
        rig.core.cancel(rig.sink, id)
    assert not rig.core.turn()
    assert {rig.sink.failure(id).code for id in ("prefills", "parked", "queued")} == {"cancelled"}
    rig.core.cancel(rig.sink, "queued")
    assert not rig.core.turn()
    assert not rig.sink.failures("unknown")
    rig.assert_drained()


def test_answers_are_the_same_after_a_prefix_was_left_in_every_way() -> None:
    """B39. With the real model: `test_prefix_reuse`."""
    prompt = [3] * 100
    targets = [request_of(id, [*prompt, tail]) for id, tail in (("t1", 1), ("t2", 2))]
    rig = Rig(max_num_batched_tokens=32)
    text = rig.alone(request_of("w", [*prompt, 9], 60))
    warm = [
        request_of(
            "stop",
            [*prompt, 9],
            60,
            sampling=Sampling(temperature=0, allowed_token_ids=LETTERS, stop=[text[20:23]]),
        ),
        request_of("boundary", [*prompt, 9], 112 - 101),
        request_of("salted", [*prompt, 9], 60, salt="other"),
    ]
    for request in warm:
        rig.submit(request)
    rig.run()
    rig.submit(request_of("aborted", [*prompt[:60], *([8] * 60)]))
    rig.core.turn()
    rig.core.cancel(rig.sink, "aborted")
    rig.run()
    for request in targets:
        rig.submit(request)
    rig.run()
    assert rig.sink.finish("stop") == "stop"
    for request in targets:
        assert rig.sink.text(request.id) == rig.alone(request)
        assert rig.sink.usage(request.id).cached_tokens == 96
    rig.assert_drained()


def test_a_paused_request_produces_nothing_and_says_the_same_afterwards() -> None:
    rig = Rig()
    request = request_of("r", [4] * 40, 30)
    rig.submit(request)
    rig.core.turn()
    rig.core.turn()
    rig.core.pause(rig.sink, "r")
    said = len(rig.sink.events("r"))
    assert not rig.core.turn()
    assert rig.core.statistics().paused == 1
    rig.core.resume(rig.sink, "r")
    rig.run()
    assert said < len(rig.sink.events("r"))
    assert rig.sink.text("r") == rig.alone(request)
    assert 0 < rig.sink.usage("r").recomputed_tokens < 16
    rig.core.pause(rig.sink, "gone")
    rig.core.resume(rig.sink, "gone")
    assert not rig.core.turn()


def test_a_paused_request_can_be_cancelled() -> None:
    rig = Rig()
    rig.submit(request_of("r"))
    rig.core.turn()
    rig.core.pause(rig.sink, "r")
    rig.core.cancel(rig.sink, "r")
    rig.run()
    assert rig.sink.failure("r").code == "cancelled"
    rig.assert_drained()


@pytest.mark.parametrize("state", ["queued", "running", "paused"])
def test_deadlines_hold_in_every_state(state: str) -> None:
    rig = Rig(max_num_seqs=1)
    if state == "queued":
        rig.submit(request_of("first"))
    rig.submit(request_of("r", "x", deadline=5.0))
    rig.submit(request_of("later", "y", deadline=500.0))
    rig.core.turn()
    if state == "paused":
        rig.core.pause(rig.sink, "r")
        rig.core.turn()
    rig.clock.now_s = 5.0
    rig.run()
    assert rig.sink.failure("r").code == "deadline_exceeded"
    assert rig.sink.finish("later") == "length"
    rig.assert_drained()


def test_a_dropped_connection_cancels_its_requests_and_hears_nothing() -> None:
    rig, other = Rig(), FakeSink()
    kept = request_of("r", "kept")
    rig.core.submit(kept, other)
    for index in range(3):
        rig.submit(request_of(f"r{index}", f"{index}"))
    rig.core.turn()
    rig.core.drop(rig.sink)
    heard = len(rig.sink.frames)
    rig.run()
    assert len(rig.sink.frames) == heard
    assert other.text("r") == rig.alone(kept)
    assert rig.core.statistics().choices_finished["cancelled"] == 3
    rig.assert_drained()


# failures ----------------------------------------------------------------------------------------


def test_a_step_that_raises_fails_its_requests_and_the_engine_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fail = iter([False, True, False])
    rig = Rig(max_num_seqs=1, on_run=lambda batch: raise_if(next(fail, False)))
    waits = request_of("waits", [1] * 40)
    rig.submit(request_of("fails", [1] * 40))
    rig.submit(waits)
    rig.run()
    assert rig.sink.failure("fails").code == "internal_error"
    assert rig.sink.text("waits") == rig.alone(waits)
    assert rig.core.statistics().executor_failures == 1
    assert "step of 1 sequences failed" in caplog.text
    rig.assert_drained()


def raise_if(condition: bool) -> None:
    if condition:
        raise RuntimeError("the device is on fire")


def test_an_executor_that_returns_too_little_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.executor.run = lambda batch: []  # type: ignore[method-assign]
    rig.submit(request_of("r"))
    rig.run()
    assert rig.sink.failure("r").code == "internal_error"
    assert "0 of 1 rows" in caplog.text


def test_an_executor_that_keeps_failing_ends_the_engine(
    threaded: Callable[..., Core], caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()

    def burn(batch: Batch) -> None:
        go.wait(30)
        raise_if(True)

    executor = HashExecutor(on_run=burn)
    core, sink = threaded(executor, max_num_seqs=1), FakeSink()
    assert core.alive
    ids = [f"r{index}" for index in range(MAX_FAILED_STEPS + 2)]
    for id in ids:
        core.submit(request_of(id, id), sink)
    go.set()
    sink.wait(*ids)
    core.stop(1.0)
    assert (core.alive, executor.closed) == (False, True)
    codes = [sink.failure(id).code for id in ids]
    assert codes == ["internal_error"] * MAX_FAILED_STEPS + ["unavailable"] * 2
    with pytest.raises(Unavailable) as raised:
        core.submit(request_of("late"), sink)
    assert raised.value.retry_after_s is not None
    core.cancel(sink, "late")
    assert "not alive any more" in caplog.text


def test_a_leak_costs_the_cache_and_not_the_service(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(num_blocks=16)
    rig.submit(request_of("r", [1] * 100))
    rig.core.turn()
    rig.core._scheduler.pool.allocate()
    with caplog.at_level(logging.ERROR):
        rig.run()
    assert "inconsistent" in caplog.text
    assert rig.core._scheduler.pool.num_free == 16
    again = request_of("again", [1] * 200)
    rig.submit(again)
    rig.run()
    assert rig.sink.text("again") == rig.alone(again)


# thread ------------------------------------------------------------------------------------------


def test_the_thread_serves_sleeps_and_wakes(threaded: Callable[..., Core]) -> None:
    core, sink = threaded(HashExecutor()), FakeSink()
    for id in ("a", "b"):
        core.submit(request_of(id, deadline=None), sink)
        sink.wait(id)
    assert core.alive
    assert sink.finish("b") == "length"


def test_the_thread_wakes_for_a_deadline(threaded: Callable[..., Core]) -> None:
    core, sink = threaded(HashExecutor()), FakeSink()
    core.submit(request_of("r", max_tokens=2000, deadline=time.monotonic() + 0.05), sink)
    core.pause(sink, "r")
    sink.wait("r")
    assert sink.failure("r").code == "deadline_exceeded"


def test_stop_finishes_what_was_accepted_and_refuses_the_rest(
    threaded: Callable[..., Core],
) -> None:
    reached, go = threading.Event(), threading.Event()

    def hold(batch: Batch) -> None:
        reached.set()
        go.wait(30)

    executor = HashExecutor(on_run=hold)
    core, sink = threaded(executor), FakeSink()
    request = request_of("r")
    core.submit(request, sink)
    assert reached.wait(30)
    stopper = threading.Thread(target=core.stop, args=(30.0,))
    stopper.start()
    while core._stop_at_s is None:
        pass
    core.submit(request_of("late"), sink)
    with pytest.raises(Unavailable):
        core.check_request(request)
    go.set()
    stopper.join(30)
    assert sink.finish("r") == "length"
    assert sink.failure("late").code == "unavailable"
    assert executor.closed
    assert not core.alive


def test_stop_fails_what_does_not_end_in_time(threaded: Callable[..., Core]) -> None:
    core, sink = threaded(HashExecutor()), FakeSink()
    core.submit(request_of("r"), sink)
    core.pause(sink, "r")
    core.stop(0.05)
    core.stop(0.05)
    assert sink.ended("r")
    assert not core.alive


def test_a_core_without_a_thread_can_be_stopped() -> None:
    rig = Rig()
    rig.submit(request_of("r"))
    rig.core.stop(1.0)
    assert rig.sink.failure("r").code == "unavailable"
    assert rig.executor.closed


def test_the_age_of_a_step_is_seen_while_it_runs() -> None:
    ages: list[float] = []

    def look(batch: Batch) -> None:
        rig.clock.now_s += 3.0
        ages.append(rig.core.seconds_since_step)

    rig = Rig(on_run=look)
    rig.clock.now_s = 100.0
    assert rig.core.seconds_since_step == 0.0
    rig.submit(request_of("r", max_tokens=2))
    rig.run()
    assert ages == [3.0, 3.0]
    assert rig.core.seconds_since_step == 0.0


def test_200_streams_cut_at_random_moments_leave_nothing(threaded: Callable[..., Core]) -> None:
    core, sink = threaded(HashExecutor(), max_num_seqs=16, max_num_batched_tokens=64), FakeSink()
    random = np.random.default_rng(5)
    ids = [f"r{index}" for index in range(200)]
    for index, id in enumerate(ids):
        shared = int(random.integers(0, 90))
        core.submit(request_of(id, [*([1] * shared), index % 250], 200, n=1 + index % 3), sink)
        if index >= 20:
            core.cancel(sink, ids[int(random.integers(0, index))])
    for id in ids:
        core.cancel(sink, id)
    sink.wait(*ids)
    now = core.statistics()
    assert (now.running, now.waiting, now.kv_usage_ratio) == (0, 0, 0.0)
    assert core.alive


# same request, same tokens -----------------------------------------------------------------------

PROMPTS = st.builds(
    lambda shared, own, tail: [*([1] * shared), *([2] * own), tail],
    st.integers(0, 60),
    st.integers(0, 30),
    st.integers(0, 250),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    prompts=st.lists(PROMPTS, min_size=1, max_size=8),
    num_blocks=st.integers(16, 40),
    max_num_seqs=st.integers(1, 8),
    chunk=st.sampled_from([1, 16, 64, 512]),
    expected=st.integers(1, 60),
    data=st.data(),
)
def test_the_same_request_gets_the_same_tokens_whatever_happens_around_it(
    prompts: list[list[int]],
    num_blocks: int,
    max_num_seqs: int,
    chunk: int,
    expected: int,
    data: st.DataObject,
) -> None:
    rig = Rig(
        num_blocks=num_blocks,
        end_every=50,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=chunk,
    )
    requests = [
        request_of(
            f"r{index}",
            prompt,
            data.draw(st.integers(1, 50)),
            n=data.draw(st.integers(1, 2)),
            sampling=Sampling(temperature=float(index % 2), seed=index),
            expected_tokens=expected,
            salt=data.draw(st.sampled_from(["", "salt"])),
        )
        for index, prompt in enumerate(prompts)
    ]
    paused: set[str] = set()
    for request in requests:
        rig.submit(request)
        for _ in range(data.draw(st.integers(0, 20))):
            rig.core.turn()
        if data.draw(st.booleans()):
            id = data.draw(st.sampled_from(requests)).id
            (rig.core.resume if id in paused else rig.core.pause)(rig.sink, id)
            paused ^= {id}
    for request in requests:
        rig.core.resume(rig.sink, request.id)
    rig.run()
    for request in requests:
        for choice in range(request.n):
            assert rig.sink.text(request.id, choice) == rig.alone(request, choice)
    rig.core._scheduler.check()
    rig.assert_drained()
