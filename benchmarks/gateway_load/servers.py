"""The processes that are measured and the one behind them, started and ended by the benchmark."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.environments import REPOSITORY, environment
from benchmarks.gateway_load.upstream import HOST
from benchmarks.service import started as process_started
from benchmarks.service import wait_until_up
from fewer import ports

POLL_S = 0.1
MAX_CONCURRENCY = 4096
"""Of a model. The default, 256, would queue the streams of this benchmark."""
BUDGET_TOKENS = 512
"""As in the repository's own fewer.yaml."""


@dataclass(frozen=True, slots=True)
class Server:
    """port: where it listens; pid: the root of its processes"""

    port: int
    pid: int


@dataclass(frozen=True, slots=True)
class Servers:
    """upstream: its ports by name; passthrough: by the name of the upstream's port behind it;
    litellm: None where it was not asked for; pids: of all of them"""

    upstream: Mapping[str, int]
    gateway: Server
    passthrough: Mapping[str, Server]
    litellm: Server | None
    pids: Mapping[str, int]


@contextmanager
def started(pace_ms: float, step_ms: float, *, litellm: bool) -> Iterator[Servers]:
    """All of them, one process each, until the block is left."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fewer-bench-")))
        upstream, upstream_ports = stack.enter_context(_upstream(pace_ms, step_ms))
        gateway = stack.enter_context(_gateway(folder, upstream_ports))
        passthrough = {
            name: stack.enter_context(_passthrough(name, folder, upstream_ports[name]))
            for name in ("openai_paced", "openai_at_once")
        }
        pids = {"upstream": upstream, "gateway": gateway.pid}
        pids |= {f"passthrough {name}": server.pid for name, server in passthrough.items()}
        peer = None
        if litellm:
            peer = stack.enter_context(_litellm(folder, upstream_ports["openai_at_once"]))
            pids["litellm"] = peer.pid
        yield Servers(upstream_ports, gateway, passthrough, peer, pids)


@contextmanager
def _upstream(pace_ms: float, step_ms: float) -> Iterator[tuple[int, dict[str, int]]]:
    command = [sys.executable, "-m", "benchmarks.gateway_load.upstream", str(pace_ms), str(step_ms)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE)
    with process:
        try:
            assert process.stdout is not None
            yield process.pid, json.loads(process.stdout.readline())
        finally:
            process.kill()


def configuration(upstream: Mapping[str, int]) -> dict[str, Any]:
    """Default policies: `budget`, active, with its holdout; the ledger; no keys."""
    models: dict[str, Any] = {}
    for name, port in upstream.items():
        kind = name.partition("_")[0]
        url = f"ws://{HOST}:{port}/v1/engine" if kind == "engine" else f"http://{HOST}:{port}/v1"
        models[name] = {kind: url, "max_concurrency": MAX_CONCURRENCY}
    budget = {"mode": "active", "max_tokens": BUDGET_TOKENS}
    return {
        "store": "sqlite:keys.sqlite3",
        "models": models,
        "routes": {name: {"model": name, "budget": budget} for name in models},
        "default_route": "engine_paced",
    }


@contextmanager
def _gateway(folder: Path, upstream: Mapping[str, int]) -> Iterator[Server]:
    config = folder / "fewer.yaml"
    config.write_text(yaml.safe_dump(configuration(upstream)))
    port = ports.claim(HOST, 0, "--port")
    command = [sys.executable, "-m", "fewer", "gateway", "--config", str(config)]
    command += ["--host", HOST, "--port", str(port)]
    environ = {"XDG_STATE_HOME": str(folder), "FEWER_ENGINE_TOKEN": "benchmark"}
    with _serving("gateway", command, folder, port, "/health/ready", environ) as server:
        yield server


@contextmanager
def _passthrough(name: str, folder: Path, upstream_port: int) -> Iterator[Server]:
    port = ports.claim(HOST, 0, "--port")
    url = f"http://{HOST}:{upstream_port}/v1/chat/completions"
    command = [sys.executable, "-m", "benchmarks.gateway_load.passthrough", str(port), url]
    with _serving(f"passthrough {name}", command, folder, port, None, {}) as server:
        yield server


@contextmanager
def _litellm(folder: Path, upstream_port: int) -> Iterator[Server]:
    python = environment("litellm", ["litellm[proxy]"], {})
    config = folder / "litellm.yaml"
    parameters = {"model": "openai/paced", "api_base": f"http://{HOST}:{upstream_port}/v1"}
    model = {"model_name": "openai_at_once", "litellm_params": parameters | {"api_key": "none"}}
    config.write_text(yaml.safe_dump({"model_list": [model]}))
    port = ports.claim(HOST, 0, "--port")
    command = [str(python.parent / "litellm"), "--config", str(config), "--host", HOST]
    command += ["--port", str(port), "--num_workers", "1", "--telemetry", "False"]
    # No key is asked for, as at the gateway; prices come with the package and are not fetched.
    environ = {
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
    }
    with _serving("litellm", command, folder, port, "/health/liveliness", environ) as server:
        yield server


def litellm_version() -> str:
    python = environment("litellm", ["litellm[proxy]"], {})
    program = "from importlib.metadata import version; print(version('litellm'))"
    return subprocess.check_output([str(python), "-c", program], text=True).strip()


@contextmanager
def _serving(
    name: str,
    command: Sequence[str],
    folder: Path,
    port: int,
    health: str | None,
    environ: Mapping[str, str],
) -> Iterator[Server]:
    """health: a path that answers 200 once it can serve; None where any answer will do"""
    log = folder / f"{name}.log"
    with process_started(command, log, environ, REPOSITORY) as process:
        wait_until_up(name, process, log, partial(_is_up, port, health), POLL_S)
        yield Server(port, process.pid)


def _is_up(port: int, health: str | None) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=2.0)
    try:
        connection.connect()
        if health is None:
            return True
        connection.request("GET", health)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
