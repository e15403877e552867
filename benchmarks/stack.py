"""A `fewer serve` of our own: the repository's configuration, free ports, a state of its own."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.service import started, wait_until_up
from fewer import ports
from fewer.health import is_ready

CONFIG = Path(__file__).parents[1] / "fewer.yaml"
HOST = "127.0.0.1"
STOP_DEADLINE_S = 60.0
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Stack:
    """url: the gateway's; pid: of `fewer serve`; ready_s: from its start until it could answer"""

    url: str
    pid: int
    ready_s: float


@contextmanager
def serving(
    model: str = "", threads: int = 0, engine: Mapping[str, Any] | None = None
) -> Iterator[Stack]:
    """A stack with default policies, ended when the block is left.

    Without guesses: greedy answers past their end repeat themselves, and those would be right too
    often. `benchmarks.speculation` measures them.

    model:   a name of `fewer models` or a GGUF file in place of the configuration's
    threads: of the engine; 0 leaves the configuration's
    engine:  further settings under `engine`
    """
    with tempfile.TemporaryDirectory(prefix="fewer-bench-") as folder:
        config, log = Path(folder) / "fewer.yaml", Path(folder) / "log"
        settings = {"speculation": "off", **(engine or {})} | (
            {"threads": threads} if threads else {}
        )
        config.write_text(configuration(settings))
        port = ports.claim(HOST, 0, "--port")
        command = [sys.executable, "-m", "fewer", "serve", "--config", str(config)]
        command += ["--port", str(port), "--engine-port", "0"]
        command += ["--model", model] if model else []
        url, began = f"http://{HOST}:{port}", time.monotonic()
        with started(command, log, {"XDG_STATE_HOME": folder}) as process:
            try:
                wait_until_up("fewer serve", process, log, partial(is_ready, url), POLL_S)
                yield Stack(url, process.pid, time.monotonic() - began)
            finally:
                process.terminate()
                process.wait(STOP_DEADLINE_S)


def configuration(engine: Mapping[str, Any]) -> str:
    """The repository's own file, with other settings of the engine and a store of its own."""
    config = yaml.safe_load(CONFIG.read_text())
    config["store"] = "sqlite:keys.sqlite3"
    config["engine"] = {**config.get("engine", {}), **engine}
    text: str = yaml.safe_dump(config)
    return text
