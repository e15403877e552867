"""Building: once for each instruction set, found again without a compiler, refused in one line."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kernels.cpu import build
from kernels.cpu.binding import Config, NativeModel
from kernels.cpu.build import BuildError, library, supported_isas

SMALL = 'extern "C" int answer() { return 42; }\n'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fewer" / "kernels"


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library of one line in place of the step's sources."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "small.cpp").write_text(SMALL)
    (folder / "small.h").write_text("")
    monkeypatch.setattr(build, "SOURCES", folder)
    return folder


def cpuinfo(*flags: str) -> str:
    return f"processor\t: 0\nflags\t\t: fpu {' '.join(flags)} sse2\nprocessor\t: 1\n"


AVX2 = ("avx2", "fma", "f16c")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (AVX512, ["avx512", "avx2"]),
        (AVX512[:-1], ["avx2"]),
        (AVX2, ["avx2"]),
        (("avx2", "f16c"), []),
        ((), []),
    ],
)
def test_instruction_sets_of_a_processor(
    flags: tuple[str, ...], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(build, "_cpuinfo", lambda: cpuinfo(*flags))
    assert supported_isas() == expected


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "x86_64"), ("Linux", "aarch64")])
def test_other_machines_are_refused_in_one_line(
    system: str, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert supported_isas() == []
    with pytest.raises(BuildError) as caught:
        library()
    assert str(caught.value).endswith("use --executor reference.")
    assert "\n" not in str(caught.value)
    with pytest.raises(BuildError, match="AVX2"):
        NativeModel(Config())


def test_both_instruction_sets_are_built_and_load(best_isa: str) -> None:
    paths = {isa: library(isa) for isa in build.ISA_FLAGS}
    assert library() == paths[best_isa]
    for isa, path in paths.items():
        loaded = ctypes.CDLL(str(path))
        loaded.fewer_cpu_isa.restype = ctypes.c_char_p
        assert loaded.fewer_cpu_isa() == isa.encode()


def test_a_library_in_the_cache_needs_no_compiler(
    cache: Path,
    sources: Path,
    best_isa: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "fewer.kernels")
    built = library(best_isa)
    assert [line.partition(";")[0] for line in caplog.messages] == [
        f"Compiling the native step for {best_isa}"
    ]
    assert built.parent == cache
    assert ctypes.CDLL(str(built)).answer() == 42
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert library(best_isa) == built
    assert len(caplog.messages) == 1
    assert list(cache.iterdir()) == [built]  # nothing is left behind


def test_sources_and_flags_tell_libraries_apart(cache: Path, sources: Path, best_isa: str) -> None:
    first = library(best_isa)
    assert library(best_isa, ("-DOTHER",)) != first
    (sources / "small.h").write_text("// changed\n")
    assert library(best_isa) != first
    (sources / "small.h").write_text("")
    assert library(best_isa) == first


def test_the_compiler_can_be_chosen_and_missed(
    cache: Path, sources: Path, best_isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildError, match=r"needs a C\+\+ compiler .* use --executor reference"):
        library(best_isa)
    monkeypatch.undo()
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parents[1]))
    monkeypatch.setenv("CXX", "c++")
    assert library(best_isa).exists()


def test_what_does_not_compile_is_told_in_one_line(
    cache: Path, sources: Path, best_isa: str
) -> None:
    (sources / "small.cpp").write_text("int answer() { return forty_two; }\n")
    with pytest.raises(BuildError, match=r"failed: .*forty_two.*; use --executor") as caught:
        library(best_isa)
    assert "\n" not in str(caught.value)
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written(
    sources: Path, best_isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(BuildError, match=r"cannot be written: Not a directory; set XDG_CACHE_HOME"):
        library(best_isa)


def test_builders_at_the_same_time_compile_once(
    cache: Path, sources: Path, best_isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Path] = []
    compiled: list[Path] = []
    compile_for_real = build._compile

    def compile_and_count(compiler: str, flags: tuple[str, ...], target: Path) -> None:
        compiled.append(target)
        compile_for_real(compiler, flags, target)

    monkeypatch.setattr(build, "_compile", compile_and_count)
    threads = [threading.Thread(target=lambda: built.append(library(best_isa))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 3
    assert len(compiled) == 1
    assert set(built) == set(cache.iterdir())
    assert ctypes.CDLL(str(built[0])).answer() == 42


def test_the_command_builds_all_and_says_where(
    cache: Path, sources: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == list(build.ISA_FLAGS)
    assert all(Path(line.partition(": ")[2]).exists() for line in lines)
    (sources / "small.cpp").write_text("wrong\n")
    assert build.main() == 1
    assert capsys.readouterr().err.startswith("The native step cannot be built here: ")


def test_the_package_loads_no_torch_and_no_gguf() -> None:
    code = "import sys, kernels.cpu.binding; print({'torch', 'gguf', 'engine'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.stdout.strip() == "set()"
