"""What the C interface refuses, with the reason, and that it is usable afterwards."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type

from kernels.cpu.binding import (
    Config,
    Int32,
    Matrix,
    NativeError,
    NativeModel,
    SampleParameters,
    StepArrays,
    Vector,
)
from tests.fakes.steps import Lane, batch_of
from tests.kernels.cpu.tiny_native import (
    GROUP_BYTES,
    Shape,
    arrays_of,
    config_of,
    load,
    native,
    random_weights,
    step_logits,
)

SHAPE = Shape(vocab=150, positions=64)
WEIGHTS = random_weights(SHAPE)
BLOCKS = 8
GREEDY = SampleParameters(0, 0, 0.0)


@pytest.fixture(scope="module")
def model() -> Iterator[NativeModel]:
    with native(SHAPE, WEIGHTS, threads=2, blocks=BLOCKS, max_rows=32) as model:
        yield model


@pytest.fixture
def empty() -> Iterator[NativeModel]:
    model = NativeModel(config_of(SHAPE))
    yield model
    model.close()


def good_step() -> StepArrays:
    """A chunk of 20 from position 0 and a decode at position 3; the last row of both sampled."""
    chunk, decode = Lane(list(range(20)), [5, 2]), Lane([7, 8, 9, 10], [6], computed=3)
    return arrays_of(batch_of([(chunk, 20), (decode, 1)]))


def ids(*values: int) -> Int32:
    return np.array(values, np.int32)


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "no layers": ({"layers": 0}, "layers must be 1 to 1024, not 0"),
    "hidden width": ({"hidden": 80}, "hidden must be a multiple of 32, not 80"),
    "negative width": ({"hidden": -64}, "hidden must be 32 to"),
    "feed-forward width": ({"feed_forward": 100}, "feed_forward must be a multiple of 32"),
    "head size": ({"head_dim": 48}, "head_dim must be 64, 80, 96 or 128, not 48"),
    "heads": ({"heads": 3, "kv_heads": 2}, "heads must be a multiple of kv_heads, not 3 and 2"),
    "no heads": ({"heads": 0}, "heads must be 1 to"),
    "no KV heads": ({"kv_heads": 0}, "kv_heads must be 1 to 3, not 0"),
    "shared heads": ({"heads": 33, "kv_heads": 1}, "heads / kv_heads must be 1 to 32, not 33"),
    "odd heads of 80": (
        {"heads": 3, "kv_heads": 1, "head_dim": 80},
        "heads \\* head_dim must be a multiple of 32, not 240",
    ),
    "vocabulary": ({"vocab": 0}, "vocab must be 1 to"),
    "too large": ({"vocab": 2**30}, "vocab must be 1 to"),
    "rows": ({"max_rows": 0}, "max_rows must be 1 to 65536"),
    "positions": ({"max_positions": -1}, "max_positions must be 1 to"),
    "threads": ({"threads": 257}, "threads must be 1 to 256, not 257"),
    "KV format": ({"kv": 2}, "kv must be 0 to 1, not 2"),
    "rope interval": ({"no_rope_interval": -1}, "no_rope_interval must be 0 to"),
    "epsilon": ({"epsilon": float("nan")}, "epsilon must be above 0"),
    "scale": ({"attention_scale": float("inf")}, "attention_scale must be above 0"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_shape_that_cannot_be_run(name: str) -> None:
    changes, reason = CONFIGS[name]
    config = Config.from_buffer_copy(config_of(SHAPE))
    for field, value in changes.items():
        setattr(config, field, value)
    with pytest.raises(NativeError, match=f"^{reason}"):
        NativeModel(config)


def test_pieces_that_do_not_fit(empty: NativeModel) -> None:
    raw, kind = WEIGHTS.encoded[0, Matrix.QUERY]
    size = GROUP_BYTES[kind]
    with pytest.raises(NativeError, match="matrix 0, 192 x 64, needs 7680 bytes, not 7640"):
        empty.put_matrix(0, Matrix.QUERY, raw[:-1], size)
    with pytest.raises(NativeError, match="a group has 18, 20 or 34 bytes, not 22"):
        empty.put_matrix(0, Matrix.QUERY, raw, 22)
    with pytest.raises(NativeError, match="there is no layer 2"):
        empty.put_matrix(2, Matrix.QUERY, raw, size)
    with pytest.raises(NativeError, match="there is no layer -1"):
        empty.put_vector(-1, Vector.QUERY_BIAS, np.zeros(192, np.float32))
    with pytest.raises(NativeError, match="there is no matrix 99"):
        empty.put_matrix(0, 99, raw, size)  # type: ignore[arg-type]
    with pytest.raises(NativeError, match="there is no vector -1"):
        empty.put_vector(0, -1, np.zeros(64, np.float32))  # type: ignore[arg-type]
    with pytest.raises(NativeError, match="encoded rows are bytes, not float32"):
        empty.put_matrix(0, Matrix.QUERY, raw.view(np.float32), size)
    with pytest.raises(NativeError, match="vector 8 needs 64 values, not 63"):
        empty.put_vector(0, Vector.FINAL_NORM, np.zeros(63, np.float32))
    with pytest.raises(NativeError, match="the rope tables need 2048 values each, not 2047"):
        empty.put_rope(WEIGHTS.cosine.ravel()[1:], WEIGHTS.sine.ravel()[1:])
    with pytest.raises(NativeError, match="the rope tables differ in size"):
        empty.put_rope(WEIGHTS.cosine, WEIGHTS.sine.ravel()[1:])
    for blocks in (0, -1, 2**30):
        with pytest.raises(NativeError, match=f"the KV memory cannot have {blocks} blocks"):
            empty.allocate_kv(blocks)
    load(empty, WEIGHTS, BLOCKS)  # nothing was taken by halves
    empty.step(good_step(), None)


def test_gate_and_up_belong_together(empty: NativeModel) -> None:
    gate, kind = WEIGHTS.encoded[0, Matrix.GATE]
    other = random_weights(Shape(type=Type.Q8_0)).encoded[0, Matrix.UP][0]
    with pytest.raises(NativeError, match="UP must follow GATE"):
        empty.put_matrix(0, Matrix.UP, gate, GROUP_BYTES[kind])
    empty.put_matrix(0, Matrix.GATE, gate, GROUP_BYTES[kind])
    with pytest.raises(NativeError, match="UP must follow GATE and share its format"):
        empty.put_matrix(0, Matrix.UP, other, GROUP_BYTES[Type.Q8_0])


def test_every_piece_once(empty: NativeModel) -> None:
    load(empty, WEIGHTS, BLOCKS)
    for (layer, which), (raw, kind) in WEIGHTS.encoded.items():
        with pytest.raises(NativeError, match=f"matrix {int(which)} was put already"):
            empty.put_matrix(layer, which, raw, GROUP_BYTES[kind])
    for (layer, vector), values in WEIGHTS.vectors.items():
        with pytest.raises(NativeError, match=f"vector {int(vector)} was put already"):
            empty.put_vector(layer, vector, values)
    with pytest.raises(NativeError, match="the rope tables were put already"):
        empty.put_rope(WEIGHTS.cosine, WEIGHTS.sine)
    with pytest.raises(NativeError, match="the KV memory was allocated already"):
        empty.allocate_kv(BLOCKS)
    empty.step(good_step(), None)
    with pytest.raises(NativeError, match="the model has run"):
        empty.put_matrix(0, Matrix.HEAD, *tied_head())


def tied_head() -> tuple[Any, int]:
    raw, kind = WEIGHTS.encoded[0, Matrix.EMBEDDING]
    return raw, GROUP_BYTES[kind]


LACKING: dict[str, tuple[Callable[[Any], None], str]] = {
    "matrix": (lambda w: w.encoded.pop((1, Matrix.DOWN)), "layer 1 lacks a matrix"),
    "up": (lambda w: w.encoded.pop((0, Matrix.UP)), "layer 0 lacks a matrix"),
    "norm": (lambda w: w.vectors.pop((1, Vector.FEED_FORWARD_NORM)), "layer 1 lacks a norm"),
    "embedding": (lambda w: w.encoded.pop((0, Matrix.EMBEDDING)), "the embedding is missing"),
    "final norm": (lambda w: w.vectors.pop((0, Vector.FINAL_NORM)), "the final norm is missing"),
}


@pytest.mark.parametrize("name", LACKING)
def test_a_model_that_lacks_a_piece(name: str, empty: NativeModel) -> None:
    take_away, reason = LACKING[name]
    weights = random_weights(SHAPE)
    take_away(weights)
    load(empty, weights, BLOCKS)
    with pytest.raises(NativeError, match=reason):
        empty.step(good_step(), None)


def test_a_model_without_memory_or_tables(empty: NativeModel) -> None:
    with pytest.raises(NativeError, match="layer 0 lacks a matrix"):
        empty.step(good_step(), None)
    for (layer, which), (raw, kind) in WEIGHTS.encoded.items():
        empty.put_matrix(layer, which, raw, GROUP_BYTES[kind])
    for (layer, vector), values in WEIGHTS.vectors.items():
        empty.put_vector(layer, vector, values)
    with pytest.raises(NativeError, match="the rope tables are missing"):
        empty.step(good_step(), None)
    empty.put_rope(WEIGHTS.cosine, WEIGHTS.sine)
    with pytest.raises(NativeError, match="the KV memory is not allocated"):
        empty.step(good_step(), None)
    empty.allocate_kv(BLOCKS)
    empty.step(good_step(), None)


def changed(name: str, index: int | tuple[int, int], value: int) -> Callable[[StepArrays], Any]:
    def change(arrays: StepArrays) -> StepArrays:
        array = getattr(arrays, name).copy()
        array[index] = value
        return arrays._replace(**{name: array})

    return change


LEAST, MOST = -(2**31), 2**31 - 1
STEPS: dict[str, tuple[Callable[[StepArrays], StepArrays], str]] = {
    "token": (changed("tokens", 4, 150), "row 4 has token 150; the vocabulary has 150"),
    "negative token": (changed("tokens", 20, -1), "row 20 has token -1"),
    "position": (changed("positions", 3, 9), "the positions of segment 0 are not consecutive"),
    "late position": (changed("positions", 20, 64), "the last position of segment 1 is 64"),
    "huge position": (changed("positions", 20, MOST), "the last position of segment 1"),
    "least position": (changed("positions", 20, LEAST), "the last position of segment 1"),
    "chunk before 0": (changed("positions", 19, 18), "the last position of segment 0 is 18"),
    "slot": (changed("slots", 2, 7), "the slot of row 2 is not where the block table puts it"),
    "negative slot": (changed("slots", 20, -4), "the slot of row 20"),
    "context": (changed("context_len", 1, 5), "context_len of segment 1 is 5, its last position 3"),
    "huge context": (changed("context_len", 1, MOST), "context_len of segment 1"),
    "block": (changed("block_table", (0, 1), BLOCKS), "segment 0 names block 8; there are 8"),
    "no block": (changed("block_table", (0, 0), -1), "segment 0 names block -1"),
    "huge block": (changed("block_table", (1, 0), MOST), "segment 1 names block 2147483647"),
    "first row": (changed("query_start", 0, 1), "query_start does not cover the 21 rows"),
    "last row": (changed("query_start", 2, 20), "query_start does not cover the 21 rows"),
    "empty segment": (changed("query_start", 1, 0), "query_start gives segment 0 no rows"),
    "rows outside": (changed("query_start", 1, 40), "query_start gives segment 0 no rows, or"),
    "rows before": (changed("query_start", 1, LEAST), "query_start gives segment 0 no rows"),
    "sample": (changed("sample_rows", 1, 21), "sample_rows must ascend within the 21 rows"),
    "sample before": (changed("sample_rows", 0, -1), "sample_rows must ascend"),
    "sample twice": (changed("sample_rows", 1, 19), "sample_rows must ascend"),
    "narrow table": (
        lambda a: a._replace(block_table=a.block_table[:, :1]),
        "block_table is too narrow for position 19 of segment 0",
    ),
    "flat table": (
        lambda a: a._replace(block_table=a.block_table.ravel()),
        "block_table must have two dimensions",
    ),
    "sizes": (lambda a: a._replace(slots=a.slots[1:]), "the arrays of a batch disagree"),
    "no rows": (lambda a: StepArrays(*(x[:0] for x in a)), "the arrays of a batch disagree"),
    "nothing": (
        lambda a: StepArrays(*(x[:0] for x in a))._replace(query_start=ids(0)),
        "rows must be 1 to 32, not 0",
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_contradicts_itself(name: str, model: NativeModel) -> None:
    change, reason = STEPS[name]
    before = step_logits(model, good_step())
    with pytest.raises(NativeError, match=f"^{reason}"):
        model.step(change(good_step()), None)
    assert np.array_equal(before, step_logits(model, good_step()))


def test_more_rows_than_agreed(model: NativeModel) -> None:
    lane = Lane(list(range(33)), [0, 1, 2])
    with pytest.raises(NativeError, match="rows must be 1 to 32, not 33"):
        model.step(arrays_of(batch_of([(lane, 33)])), None)


SAMPLES: dict[str, tuple[dict[str, Any], str]] = {
    "temperature": ({"temperature": -0.5}, "temperature must be finite and not negative"),
    "no temperature": ({"temperature": float("nan")}, "temperature must be finite"),
    "top_k": ({"top_k": -1}, "top_k must not be negative, not -1"),
    "top_p": ({"top_p": 0.0}, "top_p must be above 0"),
    "no top_p": ({"top_p": float("nan")}, "top_p must be above 0"),
    "min_p": ({"min_p": 1.5}, "min_p must be 0 to 1"),
    "repetition": ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0"),
    "presence": ({"presence_penalty": float("inf")}, "presence_penalty and frequency_penalty"),
    "frequency": ({"frequency_penalty": float("nan")}, "presence_penalty and frequency_penalty"),
    "logprobs": ({"logprobs": 21}, "logprobs must be -1 to 20, not 21"),
    "prompt": ({"prompt": ids(3, 150)}, "prompt names token 150; the vocabulary has 150"),
    "output": ({"output": ids(-1)}, "output names token -1"),
    "allowed": ({"allowed": ids(MOST)}, "allowed names token 2147483647"),
    "bad": ({"bad": ids(LEAST)}, "bad names token -2147483648"),
    "ending": ({"ending": ids(150)}, "ending names token 150"),
    "bias": ({"bias": ids(150), "bias_values": np.ones(1, np.float32)}, "bias names token 150"),
    "bias values": ({"bias": ids(1)}, "bias has 1 ids, but 0 values"),
    "wide bias": ({"bias": ids(1), "bias_values": np.ones(1)}, "bias values must be float32"),
    "short mask": ({"mask": np.ones(4, np.uint32)}, "a mask must be one bit for each of 150 tok"),
    "wide mask": ({"mask": np.ones(5, np.uint64)}, "a mask must be one bit for each of 150 tokens"),
    "wide ids": (
        {"prompt": np.ones(1, np.int64)},
        "token ids of sampling parameters must be int32",
    ),
    "strewn ids": ({"prompt": ids(1, 2, 3)[::-2]}, "token ids of sampling parameters must be"),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_sampling_parameters_out_of_range(name: str, model: NativeModel) -> None:
    changes, reason = SAMPLES[name]
    before = model.step(good_step(), [GREEDY, GREEDY])
    logits = step_logits(model, good_step())
    with pytest.raises(NativeError, match=f"^{reason}"):
        model.step(good_step(), [GREEDY, GREEDY._replace(**changes)])
    assert np.array_equal(before.tokens, model.step(good_step(), [GREEDY, GREEDY]).tokens)
    assert np.array_equal(logits, step_logits(model, good_step()))


def test_as_many_parameters_as_rows(model: NativeModel) -> None:
    with pytest.raises(NativeError, match="2 rows to sample, but parameters for 1"):
        model.step(good_step(), [GREEDY])


def test_nothing_is_sampled_unless_asked_for(model: NativeModel) -> None:
    result = model.step(good_step(), None)
    assert result.logits.shape == (0, 150)
    assert result.alternatives.tolist() == [0, 0]
    none = model.step(good_step()._replace(sample_rows=ids()), [], logits=True)
    assert none.tokens.size == 0
    assert none.logits.shape == (0, 150)


def test_a_closed_model_refuses_and_closes_again() -> None:
    model = NativeModel(config_of(SHAPE, threads=2))
    load(model, WEIGHTS, BLOCKS)
    model.step(good_step(), None)
    model.close()
    model.close()
    with pytest.raises(NativeError, match="the model is closed"):
        model.step(good_step(), None)
    with pytest.raises(NativeError, match="the model is closed"):
        model.allocate_kv(1)


def test_two_models_side_by_side() -> None:
    other_shape = Shape(layers=1, heads=2, kv_heads=2, head_dim=80, hidden=96, positions=64)
    with (
        native(SHAPE, WEIGHTS, threads=2, blocks=BLOCKS) as first,
        native(other_shape, random_weights(other_shape), threads=2, blocks=BLOCKS) as second,
    ):
        alone = [step_logits(model, good_step()) for model in (first, second)]
        for _ in range(5):
            for model, expected in zip((first, second), alone, strict=True):
                assert np.array_equal(step_logits(model, good_step()), expected)


def test_opening_and_closing_leaks_nothing() -> None:
    def cycle() -> None:
        with native(SHAPE, WEIGHTS, threads=2, blocks=BLOCKS) as model:
            model.step(good_step(), [GREEDY, GREEDY])

    for _ in range(5):
        cycle()
    gc.collect()
    before_kb, threads = resident_kb(), thread_count()
    for _ in range(50):
        cycle()
    gc.collect()
    # A model of this size has some 10 MB resident: one forgotten in ten would show.
    assert resident_kb() - before_kb < 20_000
    assert thread_count() == threads


def resident_kb() -> int:
    return _status("VmRSS")


def thread_count() -> int:
    return _status("Threads")


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    raise KeyError(key)
