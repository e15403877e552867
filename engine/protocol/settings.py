"""The engine's settings, as `fewer.yaml` and the command line spell them. Names are vLLM's."""

from __future__ import annotations

from typing import Literal

import msgspec

ExecutorName = Literal["auto", "cpu", "reference"]
KvCacheDtype = Literal["bfloat16", "int8"]
Speculation = Literal["auto", "off"]


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything a user can set about the engine.

    max_model_len:          tokens a request may span, prompt and output together. Well below
                            most models' windows: longer costs KV, first-token time, concurrency
    max_num_seqs:           choices that run at once
    max_num_batched_tokens: the token budget of one step
    max_num_waiting:        requests that may queue; more are refused with 503
    kv_cache_mb:            memory of the KV pool, in MiB
    kv_cache_dtype:         what the cpu executor keeps KV in; int8 needs about half the memory
                            and rounds a little more. The reference executor keeps float32
    target_itl_ms:          gap between two tokens of a running stream that prefill chunks are
                            cut to keep, where the hardware allows it
    threads:                CPU threads of the executor; 0 takes one for each core that the
                            process may use
    executor:               how steps are computed. cpu: the native step; reference: plain torch,
                            slow, the meaning; auto: cpu where it can be built and holds the
                            model, else reference, which is said in the log
    speculation:            auto: guess what comes next, from a request's `prediction` and from
                            what it has said before, and verify it in the same step, where that
                            pays. It changes no token. off: never
    """

    max_model_len: int = 4096
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_num_waiting: int = 512
    kv_cache_mb: int = 512
    kv_cache_dtype: KvCacheDtype = "bfloat16"
    target_itl_ms: int = 100
    threads: int = 0
    executor: ExecutorName = "auto"
    speculation: Speculation = "auto"
