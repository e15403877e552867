"""A model file and settings in, an engine out: the one place that puts the parts together."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from engine.core import Core
from engine.fit import fit_line
from engine.protocol.errors import ConfigError
from engine.protocol.settings import EngineSettings
from engine.runner.base import BLOCK_TOKENS, ModelShape
from engine.runner.registry import open_executor
from engine.server.intake import Template, TextTokenizer
from engine.text.chat_template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from engine.weights.gguf import GgufFile

_logger = logging.getLogger("fewer.engine")

MIN_POOL_TOKENS = 16 * BLOCK_TOKENS
"""A pool below this holds no chat worth the name; it is a mistake in the settings."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Everything that a server needs. The core owns the executor; `core.stop` closes it.

    name:          what clients call the model
    executor:      how steps are computed
    max_model_len: tokens a request may span: the setting, or the model's window if that is less
    num_blocks:    blocks of the KV pool
    """

    name: str
    executor: str
    shape: ModelShape
    max_model_len: int
    num_blocks: int
    core: Core
    tokenizer: TextTokenizer
    template: Template

    @property
    def kv_capacity_tokens(self) -> int:
        return self.num_blocks * BLOCK_TOKENS


def open_engine(model: Path, settings: EngineSettings, *, name: str) -> Engine:
    """Load the model and take the KV memory. The core is not started yet.

    Raises `ModelFileError` for a file that cannot be served, `ConfigError` for settings that
    this model cannot be served with.
    """
    file = GgufFile.open(model)
    tokenizer = Tokenizer.from_gguf(file.metadata)
    template = ChatTemplate.from_gguf(file.metadata, tokenizer)
    executor = open_executor(settings.executor, file, settings)
    shape = executor.shape
    num_blocks = pool_blocks(settings, shape)
    max_model_len = min(settings.max_model_len, shape.context_length)
    _logger.info("%s", fit_line(shape, settings, name=name))
    for line in remarks(settings, shape, num_blocks):
        _logger.warning("%s", line)
    return Engine(
        name=name,
        executor=executor.name,
        shape=shape,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        core=Core(executor, tokenizer, settings, num_blocks),
        tokenizer=tokenizer,
        template=template,
    )


def pool_blocks(settings: EngineSettings, shape: ModelShape) -> int:
    """KV blocks in `kv_cache_mb`. Raises `ConfigError` when that is too few to serve anything."""
    block_bytes = shape.kv_bytes_per_token * BLOCK_TOKENS
    blocks = settings.kv_cache_mb * 1024 * 1024 // block_bytes
    if blocks * BLOCK_TOKENS < MIN_POOL_TOKENS:
        needed_mb = -(-MIN_POOL_TOKENS * shape.kv_bytes_per_token // (1024 * 1024))
        raise ConfigError(
            f"kv_cache_mb {settings.kv_cache_mb} holds {blocks * BLOCK_TOKENS} tokens of "
            f"{shape.name} at {shape.kv_bytes_per_token} bytes each; give it at least {needed_mb}."
        )
    return blocks


def remarks(settings: EngineSettings, shape: ModelShape, num_blocks: int) -> list[str]:
    """What the settings ask for and will not get, one sentence each."""
    lines = []
    if settings.max_model_len > shape.context_length:
        lines.append(
            f"max_model_len {settings.max_model_len} is above the window of {shape.name}; "
            f"requests may span {shape.context_length} tokens."
        )
    capacity_tokens = num_blocks * BLOCK_TOKENS
    if capacity_tokens < min(settings.max_model_len, shape.context_length):
        lines.append(
            f"kv_cache_mb {settings.kv_cache_mb} holds {capacity_tokens} tokens, fewer than "
            f"max_model_len {settings.max_model_len}; longer requests will be refused."
        )
    return lines
