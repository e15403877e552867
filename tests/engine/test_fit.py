from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.fit import GPU_MEMORY_SHARE, GPUS, MIB, Machine, fit_gpu, fit_line, fit_machine, lengths
from engine.protocol.settings import EngineSettings
from engine.runner.base import ModelShape

SMOLLM2 = ModelShape(
    name="SmolLM2",
    architecture="llama",
    layers=30,
    hidden=576,
    heads=9,
    kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    context_length=8192,
    num_weights=134_515_008,
    weight_bytes=134_515_008 * 4,
    kv_bytes_per_token=2 * 30 * 3 * 64 * 4,
    kv_dtype="float32",
    activation_bytes_per_token=200_000,
    precision="float32",
)
SETTINGS = EngineSettings()
LAPTOP = Machine("laptop", 8 * 1024 * MIB, bandwidth_bytes_s=20e9, peak_flops=100e9)


def test_the_bundled_model_by_hand() -> None:
    fit = fit_machine(SMOLLM2, SETTINGS, LAPTOP)
    assert SMOLLM2.kv_bytes_per_token == 46_080
    assert fit.pool_tokens == 512 * MIB // (46_080 * 16) * 16 == 11_648
    assert fit.context_tokens == 4096
    assert fit.at_once(4096) == 2
    assert fit.at_once(1024) == 11
    assert fit.kv_bytes(4096) == 4096 * 46_080
    assert fit.activation_bytes == 512 * 200_000
    assert fit.total_bytes == 538_060_032 + 512 * MIB + 102_400_000
    assert fit.fits


def test_a_gpu_holds_half_the_bytes_and_gives_the_rest_to_the_pool() -> None:
    fit = fit_gpu(SMOLLM2, SETTINGS, GPUS["L4"])
    assert fit.shape.weight_bytes == 134_515_008 * 2
    assert fit.shape.kv_bytes_per_token == 23_040
    assert fit.total_bytes == int(24e9 * GPU_MEMORY_SHARE) == fit.machine.memory_bytes
    assert fit.room(4096) > fit.at_once(4096) == SETTINGS.max_num_seqs


def test_int8_kv_on_a_gpu_has_a_float32_scale_for_each_head() -> None:
    int8 = msgspec.structs.replace(SETTINGS, kv_cache_dtype="int8")
    fit = fit_gpu(SMOLLM2, int8, GPUS["L4"])
    assert fit.shape.kv_bytes_per_token == 2 * 30 * 3 * (64 + 4)
    assert fit.shape.kv_dtype == "int8"
    assert fit.shape.weight_bytes == 134_515_008 * 2


def test_a_model_larger_than_the_gpu_does_not_fit() -> None:
    large = changed(weight_bytes=70_000_000_000 * 4)
    fit = fit_gpu(large, SETTINGS, GPUS["L4"])
    assert not fit.fits
    assert fit.pool_bytes < 0
    assert fit.pool_tokens == 0
    assert fit.total_bytes > fit.machine.memory_bytes


def test_a_pool_too_small_for_one_request_does_not_fit() -> None:
    small = msgspec.structs.replace(SETTINGS, kv_cache_mb=100)
    assert not fit_machine(SMOLLM2, small, LAPTOP).fits


def test_the_context_is_never_beyond_the_models_window() -> None:
    long = msgspec.structs.replace(SETTINGS, max_model_len=100_000)
    fit = fit_machine(SMOLLM2, long, LAPTOP)
    assert fit.context_tokens == 8192
    assert lengths(fit) == [512, 1024, 2048, 4096, 8192]


def test_lengths_include_a_context_and_a_window_that_are_no_powers_of_two() -> None:
    settings = msgspec.structs.replace(SETTINGS, max_model_len=3000)
    fit = fit_machine(changed(context_length=5000), settings, LAPTOP)
    assert lengths(fit) == [512, 1024, 2048, 3000, 4096, 5000]


def test_first_token_time_is_bound_by_arithmetic_for_a_prompt() -> None:
    seconds = fit_machine(SMOLLM2, SETTINGS, LAPTOP).first_token_s(512)
    assert seconds is not None
    layers = 134_515_008 - 49152 * 576
    attention = 4 * 30 * 9 * 64 * (512 * 513 / 2)
    flops = 2 * layers * 512 + 2 * 49152 * 576 + attention
    assert seconds == pytest.approx(flops / 100e9)


def test_first_token_time_is_bound_by_memory_for_one_token() -> None:
    seconds = fit_machine(SMOLLM2, SETTINGS, LAPTOP).first_token_s(1)
    assert seconds == pytest.approx((538_060_032 + 46_080) / 20e9)


def test_first_token_time_is_unknown_without_the_machines_speed() -> None:
    assert fit_machine(SMOLLM2, SETTINGS, Machine("box", 1 << 34)).first_token_s(100) is None


@given(st.integers(1, 8191), st.sampled_from(sorted(GPUS)))
def test_longer_costs_more_of_everything(tokens: int, gpu: str) -> None:
    fit = fit_gpu(SMOLLM2, SETTINGS, GPUS[gpu])
    assert fit.kv_bytes(tokens) <= fit.kv_bytes(tokens + 1)
    assert fit.room(tokens) >= fit.room(tokens + 1)
    now, later = fit.first_token_s(tokens), fit.first_token_s(tokens + 1)
    assert now is not None
    assert later is not None
    assert 0 < now < later


@given(st.integers(1, 8192), st.integers(1, 4096), st.integers(1, 256))
def test_what_runs_at_once_is_within_the_pool(tokens: int, pool_mb: int, seqs: int) -> None:
    settings = msgspec.structs.replace(SETTINGS, kv_cache_mb=pool_mb, max_num_seqs=seqs)
    fit = fit_machine(SMOLLM2, settings, LAPTOP)
    assert fit.at_once(tokens) * fit.kv_bytes(tokens) <= pool_mb * MIB
    assert fit.at_once(tokens) <= seqs
    assert (fit.room(tokens) + 1) * fit.kv_bytes(tokens) > pool_mb * MIB - 16 * 46_080


def test_the_line_at_the_start() -> None:
    assert fit_line(SMOLLM2, SETTINGS, name="smollm2-135m") == (
        "smollm2-135m: weights 513 MiB; KV 45.0 KiB per token in float32, "
        "512 MiB hold 11,648 tokens; activations up to 98 MiB; "
        "requests safely at once: 2 of 4,096 tokens or 11 of 1,024"
    )


def test_the_line_says_when_memory_is_short() -> None:
    assert fit_line(SMOLLM2, SETTINGS, memory_bytes=1000 * MIB).endswith(
        "; this needs 1,123 MiB, but only 1,000 MiB are free"
    )
    assert "free" not in fit_line(SMOLLM2, SETTINGS, memory_bytes=2000 * MIB)


def test_the_line_names_a_short_context_once() -> None:
    settings = msgspec.structs.replace(SETTINGS, max_model_len=512)
    assert fit_line(SMOLLM2, settings).endswith("at once: 22 of 512 tokens")


def test_the_arithmetic_needs_no_torch() -> None:
    script = "import sys, engine.fit, engine.runner.registry; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def changed(**changes: int) -> ModelShape:
    """SMOLLM2 with changes."""
    return replace(SMOLLM2, **changes)  # type: ignore[arg-type]
