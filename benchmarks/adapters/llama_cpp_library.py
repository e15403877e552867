"""llama.cpp through `llama-cpp-python`'s low-level calls: continuous batching, 512 tokens a step.

Speaks as `fewer_engine.py` does. Runs in an environment of its own, without our packages.
"""

import argparse
import ctypes
import json
import sys
import time

import llama_cpp
import numpy as np

STEP_TOKENS = 512


class Engine:
    def __init__(self, path: str, threads: int, slots: int) -> None:
        llama_cpp.llama_backend_init()
        llama_cpp.llama_log_set(_QUIET, ctypes.c_void_p(0))
        self.model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params()
        )
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.threads, self.slots = threads, slots

    def run(self, prompts: list[list[int]], outputs: list[int]) -> dict[str, object]:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = sum(map(len, prompts)) + sum(outputs) + 64 * len(prompts)
        params.n_batch = params.n_ubatch = STEP_TOKENS
        params.n_seq_max = max(len(prompts), 1)
        params.n_threads = params.n_threads_batch = self.threads
        if hasattr(params, "kv_unified"):
            params.kv_unified = True
        context = llama_cpp.llama_init_from_model(self.model, params)
        batch = llama_cpp.llama_batch_init(STEP_TOKENS, 0, 1)
        began = time.perf_counter()
        first_s = [0.0] * len(prompts)
        fed = [0] * len(prompts)  # tokens of the prompt that went in
        made = [0] * len(prompts)
        token = [0] * len(prompts)
        while any(m < n for m, n in zip(made, outputs, strict=True)):
            rows = self._fill(batch, prompts, outputs, fed, made, token)
            if llama_cpp.llama_decode(context, batch) != 0:
                raise RuntimeError("llama_decode failed")
            now_s = time.perf_counter() - began
            for sequence, row in rows:
                logits = llama_cpp.llama_get_logits_ith(context, row)
                token[sequence] = int(np.ctypeslib.as_array(logits, (self.vocab,)).argmax())
                made[sequence] += 1
                first_s[sequence] = first_s[sequence] or now_s
        seconds = time.perf_counter() - began
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
        return {"first_s": first_s, "seconds": seconds}

    def _fill(self, batch, prompts, outputs, fed, made, token):  # type: ignore[no-untyped-def]
        """Decodes first, then prompt chunks. Returns (sequence, row) wherever logits are wanted."""
        rows, count = [], 0

        def add(sequence: int, value: int, position: int, wanted: bool) -> None:
            nonlocal count
            batch.token[count], batch.pos[count] = value, position
            batch.n_seq_id[count], batch.seq_id[count][0] = 1, sequence
            batch.logits[count] = wanted
            if wanted:
                rows.append((sequence, count))
            count += 1

        for s, prompt in enumerate(prompts):
            if fed[s] == len(prompt) and made[s] < outputs[s]:
                add(s, token[s], len(prompt) + made[s] - 1, True)
        for s, prompt in enumerate(prompts):
            while fed[s] < len(prompt) and count < STEP_TOKENS:
                add(s, prompt[fed[s]], fed[s], fed[s] == len(prompt) - 1)
                fed[s] += 1
        batch.n_tokens = count
        return rows


@llama_cpp.llama_log_callback
def _QUIET(level, text, data):  # type: ignore[no-untyped-def]
    pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    engine = Engine(arguments.model, arguments.threads, 32)
    print(json.dumps({"ready": f"llama-cpp-python {llama_cpp.__version__}"}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(engine.run(job["prompts"], job["outputs"])), flush=True)


if __name__ == "__main__":
    main()
