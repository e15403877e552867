"""OpenVINO GenAI's continuous batching pipeline, on a model exported by optimum.

Speaks as `fewer_engine.py` does. Runs in an environment of its own, without our packages.
"""

import argparse
import json
import sys
import time

import numpy as np
import openvino
import openvino_genai


def generation(count: int) -> openvino_genai.GenerationConfig:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = count
    config.ignore_eos = True
    config.do_sample = False
    return config


class Engine:
    def __init__(self, path: str, threads: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 1
        scheduler.max_num_batched_tokens = 512
        scheduler.max_num_seqs = 64
        scheduler.enable_prefix_caching = False
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(
            path, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
        )
        self.next_id = 0

    def run(self, prompts: list[list[int]], outputs: list[int]) -> dict[str, object]:
        began = time.perf_counter()
        handles = []
        for ids, count in zip(prompts, outputs, strict=True):
            tensor = openvino.Tensor(np.array([ids], np.int64))
            handles.append(self.pipeline.add_request(self.next_id, tensor, generation(count)))
            self.next_id += 1
        first_s = [0.0] * len(handles)
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            now_s = time.perf_counter() - began
            for index, handle in enumerate(handles):
                if not first_s[index] and handle.can_read():
                    first_s[index] = now_s
        return {"first_s": first_s, "seconds": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    engine = Engine(arguments.model, arguments.threads)
    print(json.dumps({"ready": f"openvino-genai {openvino_genai.__version__}"}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(engine.run(job["prompts"], job["outputs"])), flush=True)


if __name__ == "__main__":
    main()
