"""Compile the native step once for each instruction set; cached by sources, compiler and flags.

`python -m kernels.cpu.build` builds every instruction set, which is what a container image
wants; at run time the best one that this processor has is taken.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
    """The native step cannot be built or used here; the message says why, on one line."""


def supported_isas() -> list[str]:
    """Instruction sets that this processor has, best first. Empty on other processors."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return []
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            flags = set(line.partition(":")[2].split())
            return [isa for isa, needed in _CPU_FLAGS.items() if needed <= flags]
    return []


def library(isa: str | None = None, extra_flags: tuple[str, ...] = ()) -> Path:
    """The built library for an instruction set, compiled first if it is not in the cache.

    Raises BuildError when the processor has none of the instruction sets, when there is no
    C++ compiler, or when compiling fails.
    """
    if isa is None:
        isas = supported_isas()
        if not isas:
            raise BuildError(
                "the cpu executor needs an x86-64 Linux machine with AVX2; "
                "use --executor reference here."
            )
        isa = isas[0]
    compiler = _compiler()
    flags = (*COMMON_FLAGS, *ISA_FLAGS[isa], *extra_flags)
    target = _cache() / f"step-{isa}-{_digest(compiler, flags)}.so"
    if not target.exists():
        _compile(compiler, flags, target)
    return target


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fewer" / "kernels"


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and (found := shutil.which(name)):
            return found
    raise BuildError(
        "no C++ compiler found (g++, clang++ or $CXX); install one, or use --executor reference."
    )


def _sources() -> list[Path]:
    return sorted(SOURCES.glob("*.cpp"))


def _digest(compiler: str, flags: tuple[str, ...]) -> str:
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=True
    ).stdout
    digest = hashlib.sha256(version.encode())
    digest.update(" ".join(flags).encode())
    for source in sorted([*_sources(), *SOURCES.glob("*.h")]):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def _compile(compiler: str, flags: tuple[str, ...], target: Path) -> None:
    """Compile the sources side by side, link, and move into place at once."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        objects = [Path(scratch) / f"{source.stem}.o" for source in _sources()]
        compile_flags = [flag for flag in flags if flag != "-shared"]
        with ThreadPoolExecutor() as pool:
            list(
                pool.map(
                    lambda pair: _run(
                        [compiler, *compile_flags, "-c", str(pair[0]), "-o", str(pair[1])]
                    ),
                    zip(_sources(), objects, strict=True),
                )
            )
        linked = Path(scratch) / "step.so"
        _run([compiler, *flags, *map(str, objects), "-o", str(linked)])
        linked.replace(target)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)
        raise BuildError(f"{Path(command[0]).name} failed: {first.strip()}")


def main() -> int:
    """Build every instruction set and say where each went."""
    try:
        for isa in ISA_FLAGS:
            sys.stdout.write(f"{isa}: {library(isa)}\n")
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
