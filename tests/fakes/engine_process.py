"""The engine's server over fakes in a process of its own: `python -m tests.fakes.engine_process`.

Arguments: milliseconds a step takes, seconds to drain. Prints its port once it is ready.
"""

from __future__ import annotations

import logging
import socket
import sys
import time

from engine.server.app import run
from tests.fakes.engine import TOKEN, fake_engine


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(step_ms: float, drain_s: float) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engine = fake_engine(on_run=lambda batch: time.sleep(step_ms / 1000))
    run(
        engine,
        "127.0.0.1",
        port,
        TOKEN,
        on_ready=lambda: say(str(port)),
        drain_s=drain_s,
    )
    say("ended")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main(float(sys.argv[1]), float(sys.argv[2]))
