"""Our engine in one process, as `peers.py` drives it: JSON jobs in, JSON timings out.

A job is `{"prompts": [[ids]], "outputs": [n]}`: all requests at once, greedy, end tokens ignored.
The answer is `{"first_s": [...], "seconds": s}`, seconds from the submission.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path

import numpy as np

from engine.assembly import open_engine
from engine.protocol.frames import Events, FromEngine
from engine.protocol.sampling import Sampling
from engine.protocol.settings import EngineSettings
from engine.request import Request

GREEDY = Sampling(temperature=0, ignore_eos=True)


class Stopwatch:
    """A sink that notes when each request produced its first token, and when all had ended."""

    def __init__(self, count: int) -> None:
        self.began = time.perf_counter()
        self.first_s = [0.0] * count
        self.seconds = 0.0
        self.done = threading.Event()
        self._left = count

    def deliver(self, frames: list[FromEngine]) -> None:
        now_s = time.perf_counter() - self.began
        for frame in frames:
            if isinstance(frame, Events):
                for event in frame.events:
                    index = int(event.id.rpartition(".")[2])
                    self.first_s[index] = self.first_s[index] or now_s
                    self._left -= event.usage is not None
        if self._left == 0:
            self.seconds = now_s
            self.done.set()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--executor", default="cpu")
    arguments = parser.parse_args()
    # Greedy answers past their end repeat themselves, and guesses would be right too often.
    settings = EngineSettings(
        threads=arguments.threads, executor=arguments.executor, speculation="off"
    )
    engine = open_engine(arguments.model, settings, name="bench")
    engine.core.start()
    print(json.dumps({"ready": f"fewer, {engine.executor}"}), flush=True)
    for number, line in enumerate(sys.stdin):
        job = json.loads(line)
        watch = Stopwatch(len(job["prompts"]))
        for index, (ids, count) in enumerate(zip(job["prompts"], job["outputs"], strict=True)):
            request = Request(
                id=f"{number}.{index}",
                prompts=[np.array(ids, np.int32)],
                sampling=GREEDY,
                max_tokens=count,
                salt=str(number),  # nothing is found in the prefix cache
                arrival=time.monotonic(),
            )
            engine.core.submit(request, watch)
        watch.done.wait()
        print(json.dumps({"first_s": watch.first_s, "seconds": watch.seconds}), flush=True)


if __name__ == "__main__":
    main()
