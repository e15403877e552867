"""Compile the native step once for each instruction set; cached by sources and flags.

`python -m kernels.cpu.build` builds every instruction set, which is what a container image
wants; at run time the best one that this processor has is taken.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

_logger = logging.getLogger("fewer.kernels")

SOURCES = Path(__file__).parent
COMMON_FLAGS = (
    "-std=c++20", "-O3", "-fPIC", "-shared", "-pthread",
    "-ffp-contract=off",  # one rounding for each operation written, whatever the tile's shape
    "-Wall", "-Wextra", "-Wno-ignored-attributes",
    "-Wno-uninitialized", "-Wno-maybe-uninitialized",  # GCC's own AVX-512 headers
)  # fmt: skip
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
ISA_FLAGS: dict[str, tuple[str, ...]] = {
    "avx512": (
        *_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni",
        "-mavx512bf16",
    ),
    "avx2": _AVX2,
}  # fmt: skip
_CPU_FLAGS = {
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16"},
    "avx2": {"avx2", "fma", "f16c"},
}


class BuildError(RuntimeError):
    """The native step cannot be built or used here; the message says why and what to do."""


def supported_isas() -> list[str]:
    """Instruction sets that this processor has, best first. Empty on other processors."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return []
    for line in _cpuinfo().splitlines():
        if line.startswith("flags"):
            flags = set(line.partition(":")[2].split())
            return [isa for isa, needed in _CPU_FLAGS.items() if needed <= flags]
    return []


def library(isa: str | None = None, extra_flags: tuple[str, ...] = ()) -> Path:
    """The built library for an instruction set, compiled first if it is not in the cache.

    isa: None takes the best that this processor has. A library that is in the cache needs no
         compiler, so an image may leave the compiler behind.

    Raises BuildError when the processor has none of the instruction sets, when there is no
    C++ compiler, or when compiling fails.
    """
    if isa is None:
        isas = supported_isas()
        if not isas:
            raise BuildError(
                "it needs an x86-64 processor with AVX2, and Linux; use --executor reference."
            )
        isa = isas[0]
    flags = (*COMMON_FLAGS, *ISA_FLAGS[isa], *extra_flags)
    target = _cache() / f"step-{isa}-{_digest(flags)}.so"
    if not target.exists():
        _logger.info("Compiling the native step for %s; this takes half a minute, once.", isa)
        try:
            with _sole(target.parent):
                if not target.exists():  # another process may have been quicker
                    _compile(_compiler(), flags, target)
        except OSError as error:
            raise BuildError(
                f"{target.parent} cannot be written: {error.strerror}; set XDG_CACHE_HOME to a "
                "folder that can, or use --executor reference."
            ) from error
    return target


@contextmanager
def _sole(folder: Path) -> Iterator[None]:
    """Hold `folder` against other builders, which would only take the cores from one another."""
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _cpuinfo() -> str:
    return Path("/proc/cpuinfo").read_text()


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fewer" / "kernels"


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and (found := shutil.which(name)):
            return found
    raise BuildError(
        "it needs a C++ compiler (g++, clang++ or $CXX); install one, or use --executor reference."
    )


def _sources() -> list[Path]:
    return sorted(SOURCES.glob("*.cpp"))


def _digest(flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256(" ".join(flags).encode())
    for source in sorted([*_sources(), *SOURCES.glob("*.h")]):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def _compile(compiler: str, flags: tuple[str, ...], target: Path) -> None:
    """Compile the sources side by side, link, and move the result into place at once."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        compile_flags = [flag for flag in flags if flag != "-shared"]

        def compile_one(source: Path) -> str:
            made = str(Path(scratch) / f"{source.stem}.o")
            _run([compiler, *compile_flags, "-c", str(source), "-o", made])
            return made

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            objects = list(pool.map(compile_one, _sources()))
        linked = Path(scratch) / "step.so"
        _run([compiler, *flags, *objects, "-o", str(linked)])
        linked.replace(target)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)
        raise BuildError(
            f"{Path(command[0]).name} failed: {first.strip()}; use --executor reference."
        )


def main() -> int:
    """Build every instruction set and say where each went."""
    try:
        for isa in ISA_FLAGS:
            sys.stdout.write(f"{isa}: {library(isa)}\n")
    except BuildError as error:
        sys.stderr.write(f"The native step cannot be built here: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
