from __future__ import annotations

from contextlib import nullcontext
from typing import cast

from benchmarks.comparison import Entry, footprints, rounds, rows
from benchmarks.contenders import LIBRARY_WORKS, NEAREST_TO_Q8_0, PEERS, SERVER_WORKS, Contender
from benchmarks.jobs import CONTESTS, Job, Reply
from benchmarks.running import Running

FACTS = {"model": "small", "threads": 2}
JOB = Job([[1] * 128], [101], 1)


def entry(engine: str, through: str, weights: str, **speeds: float) -> Entry:
    """Its replies come to these speeds in tokens a second, one round of each work."""
    contender = Contender(
        engine, through, weights, lambda: nullcontext(cast("Running", None)), SERVER_WORKS
    )
    made = Entry(contender, f"{engine} 1", start_s=0.5, resident_mb=200.0, peak_mb=300.0)
    for work, speed in speeds.items():
        made.replies[work] = [(JOB, Reply(1.0 + 100 / speed, [1.0]))]
    return made


def test_a_peer_is_compared_with_what_was_reached_the_same_way() -> None:
    entries = [
        entry("fewer", "library", "q4_1", decode=400),
        entry("fewer", "HTTP", "q4_1", decode=300),
        entry("llama.cpp", "library", "q4_1", decode=160),
        entry("vllm-cpu", "HTTP", "bf16", decode=60),
    ]
    compared = {row["engine"]: row for row in rows(entries, FACTS, "q4_1")}
    assert compared["llama.cpp 1"]["ours_over_it"] == 2.5
    assert compared["vllm-cpu 1"]["ours_over_it"] == 5.0
    assert "fewer 1" not in compared


def test_every_row_says_what_it_is_of() -> None:
    entries = [
        entry("fewer", "library", "q8_0", decode=200),
        entry("llama.cpp", "library", "bf16", decode=100),
    ]
    (row,) = rows(entries, FACTS, "q8_0")
    assert row == {
        "work": "decode",
        "model": "small",
        "in_/_out_tokens": "128 / 128",
        "at_once": 1,
        "threads": 2,
        "engine": "llama.cpp 1",
        "through": "library",
        "its_weights": "bf16",
        "our_weights": "q8_0",
        "metric": "tokens/s",
        "it": 100.0,
        "ours": 200.0,
        "ours_over_it": 2.0,
    }


def test_where_ours_did_not_take_part_there_is_no_ratio() -> None:
    (row,) = rows([entry("llama.cpp", "library", "q4_1", decode=100)], FACTS, "q4_1")
    assert (row["ours"], row["ours_over_it"]) == (None, None)


def test_beside_a_busy_process_the_share_of_the_quiet_speed_counts() -> None:
    figures = entry("fewer", "library", "q4_1", decode=400, crowded=300).figures("crowded")
    assert figures == {"tokens/s": 300.0, "of its quiet speed": 0.75}


def test_rounds_and_footprints_name_the_contender() -> None:
    entries = [entry("vllm-cpu", "HTTP", "bf16", decode=50)]
    name = {"engine": "vllm-cpu 1", "through": "HTTP", "weights": "bf16"}
    assert rounds(entries) == [{**name, "figures": {"decode": [{"tokens/s": 50.0}]}}]
    assert footprints(entries) == [
        {**name, "start_to_first_token_s": 0.5, "resident_after_it_mb": 200.0, "peak_mb": 300.0}
    ]


def test_works_and_peers_that_are_named_exist() -> None:
    assert LIBRARY_WORKS < SERVER_WORKS <= CONTESTS.keys()
    assert NEAREST_TO_Q8_0.keys() <= PEERS.keys()
