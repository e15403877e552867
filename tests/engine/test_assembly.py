"""Putting an engine together: the pool's size, what is refused, and what is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.assembly import MIN_POOL_TOKENS, open_engine, pool_blocks, remarks
from engine.protocol.errors import ConfigError, ModelFileError
from engine.protocol.settings import EngineSettings
from engine.runner.base import BLOCK_TOKENS, ModelShape

SHAPE = ModelShape(
    name="small", architecture="llama", layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64,
    vocab_size=49152, context_length=8192, num_weights=0, weight_bytes=0,
    kv_bytes_per_token=46080, kv_dtype="float32", activation_bytes_per_token=0, precision="float32",
)  # fmt: skip


def test_the_pool_is_as_large_as_its_memory_allows() -> None:
    blocks = pool_blocks(EngineSettings(kv_cache_mb=512), SHAPE)
    assert blocks == 512 * 1024 * 1024 // (46080 * BLOCK_TOKENS)
    assert blocks * BLOCK_TOKENS == 11648


def test_a_pool_too_small_to_serve_says_what_is_needed() -> None:
    needed_mb = -(-MIN_POOL_TOKENS * 46080 // 2**20)
    with pytest.raises(ConfigError, match=f"kv_cache_mb 1 holds 16 tokens.* at least {needed_mb}"):
        pool_blocks(EngineSettings(kv_cache_mb=1), SHAPE)
    assert pool_blocks(EngineSettings(kv_cache_mb=needed_mb), SHAPE)


@pytest.mark.parametrize(
    ("settings", "window", "said"),
    [
        (EngineSettings(), 8192, []),
        (EngineSettings(max_model_len=4096), 2048, ["window of small; requests may span 2048"]),
        (EngineSettings(kv_cache_mb=64), 8192, ["kv_cache_mb 64 holds 1456 tokens, fewer than"]),
        (EngineSettings(kv_cache_mb=64, max_model_len=9000), 8192, ["window", "fewer than"]),
        (EngineSettings(kv_cache_mb=128), 2048, ["window"]),
    ],
)
def test_what_will_not_be_had_is_said(
    settings: EngineSettings, window: int, said: list[str]
) -> None:
    shape = replace(SHAPE, context_length=window)
    lines = remarks(settings, shape, pool_blocks(settings, shape))
    assert len(lines) == len(said)
    for line, part in zip(lines, said, strict=True):
        assert part in line
        assert line.endswith(".")


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match=r"broken\.gguf"):
        open_engine(path, EngineSettings(), name="broken")
