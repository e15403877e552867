"""The reference executor on tiny models: a row's bits depend on its own sequence only."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from engine.protocol.sampling import Sampling
from engine.protocol.settings import EngineSettings
from engine.runner.base import Batch
from engine.runner.reference import ReferenceExecutor
from engine.runner.registry import open_executor, shape_of
from engine.weights.gguf import GgufFile
from tests.fakes.steps import Lane, batch_of, chunks, generate, lanes_of
from tests.fakes.tiny_gguf import TinyModel, write_tiny_gguf

LENGTHS = (1, 2, 3, 5, 8, 16, 17, 40, 64, 65, 70, 100)
LONGEST = 112
MODELS = {
    "llama": TinyModel(hidden=96, heads=3, kv_heads=1, head_dim=32),
    "qwen2": TinyModel("qwen2", qkv_bias=True, vocab_size=333, intermediate=104),
    "qwen3": TinyModel("qwen3", qk_norm=True, head_dim=80, heads=7, kv_heads=1, tied=False),
}


def prompts(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, 320, length).tolist() for length in lengths]


def load(path: Path, model: TinyModel, *, threads: int = 1, blocks: int = 200) -> ReferenceExecutor:
    write_tiny_gguf(path, model)
    executor = open_executor("reference", GgufFile.open(path), EngineSettings(threads=threads))
    assert isinstance(executor, ReferenceExecutor)
    executor.allocate(blocks)
    return executor


@pytest.fixture(params=MODELS)
def executor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ReferenceExecutor]:
    executor = load(tmp_path / "tiny.gguf", MODELS[request.param])
    yield executor
    executor.close()


def prefill_logits(
    executor: ReferenceExecutor, lanes: list[Lane], budget_tokens: int
) -> list[np.ndarray[Any, Any]]:
    """Logits of every position of every lane, computed in steps of so many tokens."""
    collected: list[list[np.ndarray[Any, Any]]] = [[] for _ in lanes]
    for parts in chunks(lanes, budget_tokens):
        logits = executor.logits(batch_of(parts, sample_all=True)).numpy()
        first = 0
        for lane, count in parts:
            index = next(index for index, each in enumerate(lanes) if each is lane)
            collected[index].append(logits[first : first + count])
            first += count
    return [np.concatenate(parts) for parts in collected]


@pytest.mark.parametrize("budget_tokens", [16, 64, 512])
def test_bits_do_not_depend_on_chunks_company_or_blocks(
    executor: ReferenceExecutor, budget_tokens: int
) -> None:
    alone = [prefill_logits(executor, lanes_of([prompt], LONGEST), 512)[0] for prompt in prompts()]
    together = prefill_logits(executor, lanes_of(prompts(), LONGEST, shuffle=9), budget_tokens)
    for expected, actual in zip(alone, together, strict=True):
        assert np.array_equal(expected, actual)


def test_bits_do_not_depend_on_threads(tmp_path: Path) -> None:
    expected = None
    for threads in (1, 2, 4):
        executor = load(tmp_path / "tiny.gguf", MODELS["llama"], threads=threads)
        logits = prefill_logits(executor, lanes_of(prompts(), LONGEST), 64)
        expected = expected or logits
        assert all(map(np.array_equal, expected, logits))
        executor.close()
    torch.set_num_threads(1)


def test_one_by_one_equals_all_at_once(executor: ReferenceExecutor) -> None:
    """Decoding reads from KV exactly what the same positions saw inside a chunk."""
    (prompt,) = prompts((70,))
    at_once = prefill_logits(executor, lanes_of([prompt], LONGEST), 512)[0]
    one_by_one = prefill_logits(executor, lanes_of([prompt], LONGEST, shuffle=4), 1)[0]
    assert np.array_equal(at_once, one_by_one)


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.0), Sampling(temperature=1.2, top_p=0.9)]
)
def test_same_tokens_together_alone_and_in_small_chunks(
    executor: ReferenceExecutor, sampling: Sampling
) -> None:
    def run(chosen: list[int], budget_tokens: int, shuffle: int) -> list[list[int]]:
        lanes = lanes_of([prompts()[index] for index in chosen], LONGEST, shuffle=shuffle)
        for index, lane in zip(chosen, lanes, strict=True):
            lane.sampling, lane.seed = sampling, 1000 + index
        return generate(executor, lanes, 10, budget_tokens=budget_tokens)

    everyone = list(range(len(LENGTHS)))
    together = run(everyone, 512, 0)
    assert run(everyone, 16, 1) == together
    assert [run([index], 64, 2)[0] for index in everyone] == together


def test_what_others_left_in_memory_does_not_matter(tmp_path: Path) -> None:
    """Blocks are reused with whatever stands in them, NaN included."""
    executor = load(tmp_path / "tiny.gguf", MODELS["llama"])
    clean = prefill_logits(executor, lanes_of(prompts(), LONGEST), 64)
    for cache in executor._caches:
        cache.key.fill_(torch.nan)
        cache.value.fill_(torch.nan)
    assert all(
        map(np.array_equal, clean, prefill_logits(executor, lanes_of(prompts(), LONGEST), 64))
    )


def test_a_chunk_without_samples_still_fills_the_memory(executor: ReferenceExecutor) -> None:
    (prompt,) = prompts((40,))
    (whole,) = lanes_of([prompt], LONGEST)
    expected = executor.logits(batch_of([(whole, 40)])).numpy()
    (lane,) = lanes_of([prompt], LONGEST, shuffle=1)
    assert executor.run(batch_of([(lane, 39)])) == []
    assert np.array_equal(executor.logits(batch_of([(lane, 1)])).numpy(), expected)


def test_shape_is_the_one_known_beforehand(tmp_path: Path) -> None:
    executor = load(
        tmp_path / "tiny.gguf", replace(MODELS["llama"], type=GGMLQuantizationType.Q8_0)
    )
    assert executor.shape == shape_of(GgufFile.open(tmp_path / "tiny.gguf"), "reference")


def test_close_gives_the_memory_back(tmp_path: Path) -> None:
    executor = load(tmp_path / "tiny.gguf", MODELS["llama"])
    decoder = executor._decoder
    assert decoder is not None
    held = [weakref.ref(decoder.parameters.embedding), weakref.ref(executor._caches[0].key)]
    del decoder
    executor.close()
    gc.collect()
    assert [reference() for reference in held] == [None, None]
    with pytest.raises(RuntimeError, match="no memory"):
        executor.run(batch_of([(lanes_of([[1]], 16)[0], 1)]))


def test_memory_is_allocated_once_and_before_use(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", MODELS["llama"])
    executor = open_executor("reference", GgufFile.open(tmp_path / "tiny.gguf"), EngineSettings())
    batch = batch_of([(lanes_of([[1]], 16)[0], 1)])
    with pytest.raises(RuntimeError, match="allocate it first"):
        executor.run(batch)
    executor.allocate(4)
    with pytest.raises(RuntimeError, match="allocated already"):
        executor.allocate(4)
    assert len(executor.run(batch)) == 1


def test_waiting_threads_give_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    load(tmp_path / "tiny.gguf", MODELS["llama"]).close()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


def test_no_thread_count_means_one_per_usable_core(tmp_path: Path) -> None:
    executor = load(tmp_path / "tiny.gguf", MODELS["llama"], threads=0)
    executor.run(good_batch())
    assert torch.get_num_threads() == len(os.sched_getaffinity(0))
    torch.set_num_threads(1)


def good_batch() -> Batch:
    first, second = lanes_of(prompts((5, 3)), 16)
    return batch_of([(first, 5), (second, 3)])


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "token": ({"tokens": [0, 0, 0, 0, 0, 0, 0, 320]}, "tokens must be in 0 to 319, not 0 to 320"),
    "negative": ({"tokens": [0, 0, 0, 0, 0, 0, 0, -1]}, "tokens must be in 0 to 319, not -1 to 0"),
    "position": ({"positions": [0, 1, 2, 3, 512, 0, 1, 2]}, "positions must be in 0 to 511"),
    "slot": ({"slots": [0, 1, 2, 3, 4, 16, 17, 3200]}, "slots must be in 0 to 3199"),
    "rows": ({"tokens": [0, 1]}, "must have 8 rows, not 2, 8 and 8"),
    "context": ({"context_len": [6, 3]}, "one more than the segment's last position"),
    "blocks": ({"block_table": [[200], [1]]}, "names blocks outside 0 to 199"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_batch_is_refused_before_it_does_harm(case: str, tmp_path: Path) -> None:
    executor = load(tmp_path / "tiny.gguf", MODELS["llama"])
    expected = executor.logits(good_batch())
    changes, words = BAD[case]
    arrays: dict[str, Any] = {name: np.array(values, np.int32) for name, values in changes.items()}
    with pytest.raises(ValueError, match=words):
        executor.run(replace(good_batch(), **arrays))
    outside = replace(good_batch().samples[0], row=8)
    with pytest.raises(ValueError, match="samples must be in 0 to 7"):
        executor.run(replace(good_batch(), samples=(outside,)))
    assert torch.equal(executor.logits(good_batch()), expected)
