from __future__ import annotations

from typing import Any

from engine.protocol.sampling import Sampling
from engine.runner.base import Batch
from engine.stats import Histogram, Statistics
from tests.fakes.rig import Rig, request_of


def test_a_histogram_counts_at_most_its_bounds() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.5):
        histogram.observe(value)
    now = histogram.snapshot()
    assert (now.bounds, now.buckets, now.count, now.sum) == ((1.0, 2.0), (2, 3), 4, 5.5)


class Timed(Rig):
    """Each step takes a tenth of a second."""

    def __init__(self, **told: Any) -> None:
        super().__init__(on_run=self._tick, **told)

    def _tick(self, batch: Batch) -> None:
        self.clock.now_s += 0.1

    def statistics(self) -> Statistics:
        return self.core.statistics()


def test_an_engine_that_did_nothing_counts_nothing() -> None:
    now = Rig().core.statistics()
    assert (now.running, now.waiting, now.paused, now.steps) == (0, 0, 0, 0)
    assert now.kv_usage_ratio == now.seconds_since_step == 0.0
    assert now.kv_capacity_tokens == 256 * 16
    assert now.choices_finished == {"stop": 0, "length": 0, "cancelled": 0, "failed": 0}
    assert now.time_to_first_token_s["hit"].count == now.queue_time_s.count == 0


def test_times_run_from_arrival_and_include_the_queue() -> None:
    rig = Timed(max_num_seqs=1)
    rig.submit(request_of("first", "one", 10))
    rig.submit(request_of("second", "two", 5))
    rig.run()
    now = rig.statistics()
    first_token = now.time_to_first_token_s["miss"]
    assert first_token.count == now.queue_time_s.count == 2
    assert round(first_token.sum, 6) == 1.2  # 0.1 and 1.1
    assert round(now.queue_time_s.sum, 6) == 1.0  # 0 and 1
    assert round(now.request_latency_s.sum, 6) == 2.5  # 1 and 1.5
    assert now.inter_token_latency_s.count == 9 + 4
    assert round(now.inter_token_latency_s.sum, 6) == 1.3
    assert (now.steps, round(now.step_time_s.sum, 6)) == (15, 1.5)
    assert (now.prompt_tokens, now.generation_tokens, now.requests_accepted) == (6, 15, 2)


def test_one_observation_for_each_request_that_said_something() -> None:
    """B51, R35."""
    rig = Timed(num_blocks=400, max_num_seqs=8)
    for index in range(5):
        rig.submit(request_of(f"cold{index}", [index] * 300, 50, n=1 + index % 2))
    rig.run()
    for index in range(5):
        rig.submit(request_of(f"warm{index}", [index] * 300, 5))
    rig.run()
    for index in range(5):
        rig.submit(request_of(f"cut{index}", [index, *([9] * 300)], 5))
        rig.core.turn()
        rig.core.cancel(rig.sink, f"cut{index}")
        rig.core.turn()
    rig.submit(request_of("none", sampling=Sampling(bad_token_ids=list(range(258)))))
    rig.submit(request_of("refused", [300]))
    rig.run()
    now = rig.statistics()
    assert now.time_to_first_token_s["miss"].count == 5
    assert now.time_to_first_token_s["hit"].count == 5
    assert now.queue_time_s.count == now.request_latency_s.count == 10
    assert now.choices_finished == {"stop": 0, "length": 12, "cancelled": 5, "failed": 1}
    assert now.generation_tokens == 7 * 50 + 5 * 5


def test_a_preemption_adds_no_second_observation() -> None:
    """B51."""
    rig = Timed(num_blocks=16)
    for index in range(10):
        rig.submit(request_of(f"r{index}", [index] * 20, 100, expected_tokens=1))
    rig.run()
    now = rig.statistics()
    assert now.preemptions >= 5
    assert now.time_to_first_token_s["miss"].count == now.queue_time_s.count == 10
    assert now.inter_token_latency_s.count == 10 * 99
    assert now.recomputed_tokens > 0
    recomputed = [rig.sink.usage(f"r{index}").recomputed_tokens for index in range(10)]
    assert sum(recomputed) == now.recomputed_tokens
    assert recomputed[0] == 0


def test_prefix_cache_counts_prompt_tokens_once() -> None:
    rig = Rig(num_blocks=16)
    for index in range(5):
        rig.submit(request_of(f"r{index}", [7] * 40, 100, expected_tokens=1))
    rig.run()
    now = rig.core.statistics()
    assert now.preemptions > 0
    assert now.prefix_cache_queries_tokens == 5 * 40
    assert now.prefix_cache_hits_tokens == 4 * 32


def test_free_but_cached_blocks_count_as_free() -> None:
    rig = Rig(num_blocks=16)
    rig.submit(request_of("r", [1] * 100, 20))
    rig.core.turn()
    rig.core.turn()
    assert rig.core.statistics().kv_usage_ratio == 7 / 16
    rig.run()
    assert rig.core.statistics().kv_usage_ratio == 0.0
    assert rig.core._scheduler.pool.num_cached == 7


def test_running_waiting_and_paused_are_apart() -> None:
    rig = Rig(max_num_seqs=1)
    for id in ("runs", "waits", "paused"):
        rig.submit(request_of(id, id, 20))
    rig.core.pause(rig.sink, "paused")
    rig.core.turn()
    now = rig.core.statistics()
    assert (now.running, now.waiting, now.paused) == (1, 1, 1)
