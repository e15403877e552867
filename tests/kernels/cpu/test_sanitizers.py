"""The native step under GCC's sanitizers: a small model through everything that it does.

Each is a process of its own, for the sanitizer's runtime must be there before anything else.
The builds are cached like any other.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cpu import build

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("sanitized_steps.py")
# Without optimisation they compile in half the time and see what it would have taken away.
STRICT = ("-O0", "-Werror")
MEMORY = (*STRICT, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREADS = (*STRICT, "-fsanitize=thread")


def runtime(name: str) -> str:
    """The path of a runtime library of the compiler's. Skips where there is none."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    found = subprocess.run(
        [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.path.isabs(found):
        pytest.skip(f"needs {name}")
    return found


def run_sanitized(isa: str, flags: tuple[str, ...], name: str, threads: int) -> None:
    # The C++ runtime must be there too before the sanitizer looks for its `throw`.
    preload = f"{runtime(f'lib{name}.so')} {runtime('libstdc++.so')}"
    path = build.library(isa, flags)  # here, where the compiler runs without a sanitizer
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(path), str(threads)],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LD_PRELOAD": preload,
            "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own; RSS is watched elsewhere
            "TSAN_OPTIONS": "halt_on_error=1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr[-4000:]
    assert done.returncode == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_addresses_and_undefined_behaviour(isa: str, threads: int) -> None:
    run_sanitized(isa, MEMORY, "asan", threads)


def test_threads(best_isa: str) -> None:
    """Three on whatever cores there are: they wait for one another in every possible place."""
    run_sanitized(best_isa, THREADS, "tsan", 3)
