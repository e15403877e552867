"""The cpu executor behind the seam: every family and encoding, and what it does with a batch."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize
from numpy.typing import NDArray

from engine.models.registry import ModelOptions
from engine.models.rope import rope_tables
from engine.protocol.errors import ModelFileError, SetupError
from engine.protocol.sampling import Sampling
from engine.protocol.settings import EngineSettings, KvCacheDtype
from engine.runner import cpu
from engine.runner.base import Batch, Executor, Float32
from engine.runner.cpu import CpuExecutor
from engine.runner.reference import ReferenceExecutor
from engine.runner.registry import open_executor
from engine.sampling.sampler import sample
from engine.weights.gguf import GgufFile
from engine.weights.pack import packed
from kernels.cpu.binding import Matrix, NativeError, NativeModel, Vector
from kernels.cpu.build import supported_isas
from tests.fakes.steps import Lane, batch_of, generate, lanes_of
from tests.fakes.tiny_gguf import TinyModel, write_tiny_gguf
from tests.kernels.cpu import oracle
from tests.kernels.cpu.tiny_native import Float64, Shape, Weights

pytestmark = pytest.mark.skipif(
    not supported_isas(), reason="needs an x86-64 processor with AVX2, and Linux"
)

ROOT = Path(__file__).parents[2]
BLOCKS = 200
LLAMA = TinyModel(heads=3, kv_heads=1, head_dim=64, epsilon=0.1, type=Type.Q8_0)
TOKENS = np.random.default_rng(7).integers(0, 320, 90).tolist()

FAMILIES = {
    "llama": LLAMA,
    "llama-80-biases": replace(
        LLAMA, heads=2, kv_heads=2, head_dim=80, qkv_bias=True, output_bias=True
    ),
    "llama-96-untied": replace(LLAMA, heads=4, kv_heads=2, head_dim=96, tied=False),
    "llama-128-mqa": replace(LLAMA, heads=4, kv_heads=1, head_dim=128),
    "llama-linear": replace(
        LLAMA, metadata={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    ),
    "llama3": replace(LLAMA, theta=500000.0, divisors=(1.0,) * 12 + (3.5,) * 8 + (8.0,) * 12),
    "mistral3": replace(LLAMA, architecture="mistral3", tied=False),
    "qwen2": replace(LLAMA, architecture="qwen2", qkv_bias=True, vocab_size=333),
    "qwen2-yarn": replace(
        LLAMA, architecture="qwen2", qkv_bias=True,
        metadata={"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                  "rope.scaling.original_context_length": 32},
    ),
    "qwen3": replace(LLAMA, architecture="qwen3", qk_norm=True, heads=7, kv_heads=1, head_dim=96),
    "smollm3": replace(LLAMA, architecture="smollm3", layers=5),
}  # fmt: skip

ENCODINGS = {
    kind.name: replace(LLAMA, type=kind)
    for kind in (Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1)
} | {
    "gate and up differ": replace(LLAMA, type=Type.Q4_1, types={"up_proj.weight": Type.Q8_0}),
    "every matrix another": replace(
        LLAMA, tied=False, type=Type.Q4_0,
        types={"q_proj.weight": Type.F16, "k_proj.weight": Type.Q8_0, "o_proj.weight": Type.Q5_1,
               "gate_proj.weight": Type.BF16, "embed_tokens.weight": Type.Q4_1,
               "lm_head.weight": Type.F32},
    ),
}  # fmt: skip


@contextmanager
def opened(
    folder: Path, model: TinyModel = LLAMA, settings: EngineSettings | None = None
) -> Iterator[CpuExecutor]:
    path = folder / "tiny.gguf"
    write_tiny_gguf(path, model)
    executor = open_executor("cpu", GgufFile.open(path), settings or EngineSettings(threads=2))
    assert isinstance(executor, CpuExecutor)
    executor.allocate(BLOCKS)
    yield executor
    executor.close()


def reference_logits(path: Path) -> Float32:
    file = GgufFile.open(path)
    executor = ReferenceExecutor(file, ModelOptions.from_gguf(file), threads=1)
    executor.allocate(BLOCKS)
    (lane,) = lanes_of([TOKENS], len(TOKENS))
    logits: Float32 = executor.logits(batch_of([(lane, len(TOKENS))], sample_all=True)).numpy()
    executor.close()
    return logits


def logits_in_parts(executor: CpuExecutor) -> Float32:
    (lane,) = lanes_of([TOKENS], len(TOKENS))
    parts = [executor.logits(batch_of([(lane, n)], sample_all=True)) for n in (50, 1, 39)]
    return np.concatenate(parts)


def emulated_logits(path: Path) -> Float64:
    """What the roundings of packing, int8 activations and a bf16 cache make of the file."""
    file = GgufFile.open(path)
    options = ModelOptions.from_gguf(file)
    divisors = file.dequantized("rope_freqs.weight") if options.rope.has_divisors else None
    weights = Weights(
        {}, {}, {}, *rope_tables(options.rope, options.head_dim, len(TOKENS), divisors)
    )
    for layer in range(options.layers):
        for part, which in MATRICES.items():
            values = unpacked(file, f"blk.{layer}.{part}.weight")
            weights.matrices[layer, which] = in_halves(values, part, options)
        for part, vector in VECTORS.items():
            if (name := f"blk.{layer}.{part}") in file.tensors:
                values = in_halves(file.dequantized(name), part.removesuffix(".bias"), options)
                weights.vectors[layer, vector] = values
    weights.matrices[0, Matrix.EMBEDDING] = unpacked(file, "token_embd.weight")
    weights.vectors[0, Vector.FINAL_NORM] = file.dequantized("output_norm.weight")
    if not options.tied:
        weights.matrices[0, Matrix.HEAD] = unpacked(file, "output.weight")
    shape = Shape(
        options.layers, options.hidden, options.heads, options.kv_heads, options.head_dim,
        options.intermediate, options.vocab_size, options.tied,
        no_rope_interval=options.no_rope_interval, epsilon=options.norm_epsilon,
    )  # fmt: skip
    return oracle.logits(shape, weights, TOKENS, rounded=True)


MATRICES = {
    "attn_q": Matrix.QUERY, "attn_k": Matrix.KEY, "attn_v": Matrix.VALUE,
    "attn_output": Matrix.OUTPUT, "ffn_gate": Matrix.GATE, "ffn_up": Matrix.UP,
    "ffn_down": Matrix.DOWN,
}  # fmt: skip
VECTORS = {
    "attn_norm.weight": Vector.ATTENTION_NORM, "ffn_norm.weight": Vector.FEED_FORWARD_NORM,
    "attn_q.bias": Vector.QUERY_BIAS, "attn_k.bias": Vector.KEY_BIAS,
    "attn_v.bias": Vector.VALUE_BIAS, "attn_output.bias": Vector.OUTPUT_BIAS,
    "attn_q_norm.weight": Vector.QUERY_NORM, "attn_k_norm.weight": Vector.KEY_NORM,
}  # fmt: skip


def unpacked(file: GgufFile, name: str) -> Float64:
    raw, kind = packed(file, name)
    return dequantize(raw, kind).astype(np.float64)


def in_halves(values: Any, part: str, options: ModelOptions) -> Any:
    """Undo llama.cpp's order of the rows of Q and K, as the families that have it need it."""
    if not options.permuted or part not in ("attn_q", "attn_k"):
        return values
    pairs = values.reshape(-1, options.head_dim // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def rms(values: NDArray[np.floating]) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def assert_near_the_reference(model: TinyModel, folder: Path) -> None:
    """As far from the reference as the same roundings in numpy are, and a tenth.

    These random models have twice the usual Q and K: their softmax is sharp, and roundings cost
    up to a tenth of the logits. A wrong option costs several times as much.
    """
    with opened(folder, model) as executor:
        got = logits_in_parts(executor)
    expected = reference_logits(folder / "tiny.gguf")
    error = rms(emulated_logits(folder / "tiny.gguf") - expected)
    assert error < 0.15 * rms(expected)
    assert rms(got - expected) < 1.1 * error


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name: str, tmp_path: Path) -> None:
    assert_near_the_reference(FAMILIES[name], tmp_path)


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding(name: str, tmp_path: Path) -> None:
    assert_near_the_reference(ENCODINGS[name], tmp_path)


SAMPLINGS = (
    Sampling(temperature=0.0),
    Sampling(),
    Sampling(temperature=0.7, top_k=40, top_p=0.9, logprobs=5),
    Sampling(min_p=0.1, logprobs=0),
    Sampling(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.3),
    Sampling(temperature=0.0, logit_bias={3: 100.0}, min_tokens=4, logprobs=20),
    Sampling(allowed_token_ids=[7, 8, 9], bad_token_ids=[8]),
    Sampling(temperature=0.0, allowed_token_ids=[5], min_tokens=4, logprobs=2),
)


def test_samples_as_the_engine_says(tmp_path: Path) -> None:
    """The end tokens 3 and 5 are masked until `min_tokens`; the last parameters leave none."""
    with opened(tmp_path) as executor:
        batch = with_samplings(batch_of([(lane, 8) for lane in lanes_of([TOKENS[:8]] * 8, 16)]))
        sampled = executor.run(batch)
        expected = sample(executor.logits(batch), batch.samples)
    assert sampled[7].token == -1
    for got, want in zip(sampled, expected, strict=True):
        assert got.token == want.token
        assert np.array_equal(got.top_ids, want.top_ids)
        np.testing.assert_allclose(got.logprob, want.logprob, rtol=1e-12)
        np.testing.assert_allclose(got.top_logprobs, want.top_logprobs, rtol=1e-6)


def with_samplings(batch: Batch) -> Batch:
    samples = tuple(
        replace(row, sampling=sampling, seed=index, end_ids=frozenset({3, 5}),
                output=np.array([1, 2, 2], np.int32))
        for index, (row, sampling) in enumerate(zip(batch.samples, SAMPLINGS, strict=True))
    )  # fmt: skip
    return replace(batch, samples=samples)


def test_generates_the_same_alone_and_together(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, 320, size).tolist() for size in (1, 2, 5, 16, 17, 40, 64, 100)]

    def lanes(index: int | None = None) -> list[Lane]:
        some = prompts if index is None else [prompts[index]]
        made = lanes_of(some, 140, shuffle=1)
        for offset, lane in enumerate(made):
            lane.seed, lane.sampling = offset + (index or 0), Sampling(temperature=0.9, top_p=0.95)
        return made

    with opened(tmp_path) as executor:
        together = generate(executor, lanes(), 20, budget_tokens=48)
        alone = [generate(executor, lanes(index), 20)[0] for index in range(len(prompts))]
    assert together == alone
    assert len({tuple(output) for output in together}) == len(prompts)


def test_needs_the_file_no_longer(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", LLAMA)
    file = GgufFile.open(tmp_path / "tiny.gguf")
    executor = open_executor("cpu", file, EngineSettings(threads=1))
    watch = weakref.ref(file)
    del file
    gc.collect()
    assert watch() is None
    executor.allocate(8)
    (lane,) = lanes_of([TOKENS], len(TOKENS))
    assert executor.run(batch_of([(lane, 90)]))[0].token >= 0
    executor.close()


def test_limits_are_the_settings(tmp_path: Path) -> None:
    settings = EngineSettings(
        threads=1, max_model_len=64, max_num_batched_tokens=32, max_num_seqs=8
    )
    with opened(tmp_path, LLAMA, settings) as executor:
        (lane,) = lanes_of([TOKENS], len(TOKENS))
        with pytest.raises(NativeError, match="rows must be 1 to 32, not 33"):
            executor.run(batch_of([(lane, 33)]))
        lane.computed = 0
        executor.run(batch_of([(lane, 32)]))
        executor.run(batch_of([(lane, 32)]))
        with pytest.raises(NativeError, match="last position of segment 0 is 64; the model has 64"):
            executor.run(batch_of([(lane, 1)]))


def test_refused_batches_are_value_errors_and_leave_it_usable(tmp_path: Path) -> None:
    with opened(tmp_path) as executor:
        (lane,) = lanes_of([TOKENS], len(TOKENS))
        batch = batch_of([(lane, 20)], sample_all=True)
        before = executor.logits(batch)
        with pytest.raises(ValueError, match="row 0 has token 320"):
            executor.run(replace(batch, tokens=batch.tokens + 320 - batch.tokens[0]))
        assert np.array_equal(before, executor.logits(batch))


def test_allocates_once_and_closes_twice(tmp_path: Path) -> None:
    with opened(tmp_path) as executor:
        with pytest.raises(NativeError, match="allocated already"):
            executor.allocate(1)
        executor.close()
        (lane,) = lanes_of([TOKENS], len(TOKENS))
        with pytest.raises(NativeError, match="the model is closed"):
            executor.run(batch_of([(lane, 1)]))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            replace(LLAMA, heads=3, head_dim=80, type=Type.F16),
            "query width that is a multiple of 32, not 240",
        ),
        (replace(LLAMA, heads=33, kv_heads=1), "up to 32 heads that share a KV head, not 33"),
        (replace(LLAMA, head_dim=48, type=Type.F16), "heads of 64, 80, 96, 128 values, not 48"),
        (
            replace(LLAMA, intermediate=104, type=Type.F16),
            "feed-forward width that is a multiple of 32, not 104",
        ),
    ],
)
def test_shapes_that_it_cannot_hold(model: TinyModel, reason: str, tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", model)
    with pytest.raises(ModelFileError, match=reason) as caught:
        open_executor("cpu", GgufFile.open(tmp_path / "tiny.gguf"), EngineSettings())
    assert str(caught.value).startswith(str(tmp_path))
    assert str(caught.value).endswith("se --executor reference.")


def test_limits_that_the_native_step_refuses(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", LLAMA)
    settings = EngineSettings(max_num_batched_tokens=70_000)
    with pytest.raises(ModelFileError, match="cannot hold this model: max_rows must be 1 to 655"):
        open_executor("cpu", GgufFile.open(tmp_path / "tiny.gguf"), settings)


def test_auto_takes_the_reference_for_what_it_cannot_hold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", replace(LLAMA, heads=33, kv_heads=1))
    file, settings = GgufFile.open(tmp_path / "tiny.gguf"), EngineSettings(kv_cache_dtype="int8")
    executor = open_executor("auto", file, settings)
    assert (executor.name, executor.shape.kv_dtype) == ("reference", "float32")
    executor.close()
    assert "up to 32 heads that share a KV head, not 33" in caplog.text
    assert "int8 does not hold here: that executor keeps float32" in caplog.text


def test_the_reference_refuses_int8_kv(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", LLAMA)
    file, settings = GgufFile.open(tmp_path / "tiny.gguf"), EngineSettings(kv_cache_dtype="int8")
    with pytest.raises(SetupError, match="kv_cache_dtype int8 needs the cpu executor"):
        open_executor("reference", file, settings)


def test_a_load_that_fails_gives_everything_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", LLAMA)
    closed: list[NativeModel] = []
    close = NativeModel.close

    def watched(model: NativeModel) -> None:
        closed.append(model)
        close(model)

    monkeypatch.setattr(NativeModel, "close", watched)
    monkeypatch.setattr(cpu, "rope_tables", fail)
    with pytest.raises(MemoryError):
        open_executor("cpu", GgufFile.open(tmp_path / "tiny.gguf"), EngineSettings())
    assert len(closed) == 1


def fail(*_: object) -> None:
    raise MemoryError


def test_imports_no_torch(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, LLAMA)
    code = f"""
import sys
from engine.protocol.settings import EngineSettings
from engine.runner.registry import open_executor
from engine.weights.gguf import GgufFile
from tests.fakes.steps import batch_of, lanes_of
executor = open_executor("cpu", GgufFile.open({str(path)!r}), EngineSettings())
executor.allocate(1)
assert executor.run(batch_of([(lanes_of([[1, 2]], 16)[0], 2)]))
executor.close()
print("torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "False\n"


# ---- the real model --------------------------------------------------------------------------

TEXT = (ROOT / "engine" / "runner" / "cpu.py").read_text()


@pytest.fixture(scope="module")
def ids(model_path: Path) -> list[int]:
    from engine.text.tokenizer import Tokenizer

    return Tokenizer.from_gguf(GgufFile.open(model_path).metadata).encode(TEXT)[:128]


def run_whole(executor: Executor, tokens: list[int]) -> Float32:
    executor.allocate(32)
    (lane,) = lanes_of([tokens], len(tokens))
    logits = executor.logits(batch_of([(lane, len(tokens))], sample_all=True))  # type: ignore[attr-defined]
    executor.close()
    return np.asarray(logits)


@pytest.fixture(scope="module")
def reference(model_path: Path, ids: list[int]) -> Float32:
    file, settings = GgufFile.open(model_path), EngineSettings(threads=2)
    return run_whole(open_executor("reference", file, settings), ids)


@pytest.mark.model
@pytest.mark.parametrize("kv", get_args(KvCacheDtype))
def test_the_real_model_says_what_the_reference_says(
    kv: KvCacheDtype, model_path: Path, ids: list[int], reference: Float32
) -> None:
    """128 tokens of code: where the reference is sure by half a nat, the same next token."""
    settings = EngineSettings(threads=2, kv_cache_dtype=kv)
    got = run_whole(open_executor("cpu", GgufFile.open(model_path), settings), ids)
    expected = reference
    cosine = (got * expected).sum(1) / np.linalg.norm(got, axis=1)
    cosine /= np.linalg.norm(expected, axis=1)
    assert cosine.mean() > 0.9993
    assert cosine.min() > 0.98
    second, first = np.sort(expected, axis=1)[:, -2:].T
    sure = first - second > 0.5
    assert sure.sum() > 64
    assert np.array_equal(got.argmax(1)[sure], expected.argmax(1)[sure])


@pytest.mark.model
@pytest.mark.parametrize("kv", get_args(KvCacheDtype))
def test_the_real_model_in_any_company(kv: KvCacheDtype, model_path: Path, ids: list[int]) -> None:
    """32 greedy answers bit for bit over batch sizes, chunks and threads."""
    prompts = [ids[i : i + 3 + 2 * i] for i in range(32)]
    answers = []
    for threads, budget, size in ((2, 512, 32), (1, 64, 8), (2, 100, 1)):
        settings = EngineSettings(threads=threads, kv_cache_dtype=kv)
        executor = open_executor("cpu", GgufFile.open(model_path), settings)
        executor.allocate(32 * 5)
        outputs: list[list[int]] = []
        for start in range(0, 32, size):
            lanes = lanes_of(prompts[start : start + size], 80, shuffle=threads)
            outputs += generate(executor, lanes, 6, budget_tokens=budget)
        executor.close()
        answers.append(outputs)
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.model
def test_the_real_model_needs_little_memory(model_path: Path) -> None:
    """Loaded, and with 1,000 tokens computed: weights of 90 MB, and no copy of them."""
    code = f"""
from pathlib import Path
from engine.protocol.settings import EngineSettings
from engine.runner.registry import open_executor
from engine.weights.gguf import GgufFile
from tests.fakes.steps import batch_of, lanes_of
executor = open_executor("cpu", GgufFile.open({str(model_path)!r}), EngineSettings(threads=2))
executor.allocate(1000)
(lane,) = lanes_of([[7] * 1000], 1000)
for _ in range(2):
    executor.run(batch_of([(lane, 500)]))
for line in Path("/proc/self/status").read_text().splitlines():
    if line.startswith("VmHWM"):
        print(line.split()[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert int(done.stdout) < 400_000
