"""Who may import whom, and what an import must not drag in. `lint-imports` checks the chains."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest

import kernels
from tests.architecture.sources import PACKAGES, imports, loaded_by, top_level

MAY_IMPORT = {
    "fewer": ("fewer", "gateway", "engine"),
    "gateway": ("gateway", "policies", "engine.protocol"),
    "policies": ("policies",),
    "engine": ("engine", "kernels"),
    "engine/protocol": ("engine.protocol",),
    "kernels": ("kernels",),
}
"""Of our own packages. What is not here is forbidden."""

WEB = {"starlette", "uvicorn", "websockets", "aiohttp"}


@pytest.mark.parametrize("importer", MAY_IMPORT)
def test_packages_import_only_whom_they_may(importer: str) -> None:
    allowed = MAY_IMPORT[importer]
    wrong = [
        f"{file} imports {module}"
        for file, module in imports(importer)
        if module.partition(".")[0] in PACKAGES
        and not any(module == name or module.startswith(f"{name}.") for name in allowed)
    ]
    assert wrong == []


def test_policies_need_nothing_but_msgspec() -> None:
    assert top_level("policies") - set(sys.stdlib_module_names) <= {"policies", "msgspec"}


def test_the_gateway_loads_no_torch() -> None:
    loaded = loaded_by("import gateway.app, gateway.server")
    assert "starlette" in loaded
    assert loaded & {"torch", "triton", "kernels", "gguf", "tokenizers"} == set()


def test_the_step_loop_loads_neither_torch_nor_a_web_framework() -> None:
    loaded = loaded_by("import engine.core")
    assert "numpy" in loaded
    assert loaded & ({"torch", "triton"} | WEB) == set()


def test_the_protocol_loads_nothing_heavy() -> None:
    loaded = loaded_by("import engine.protocol.frames, engine.protocol.errors")
    assert loaded & ({"torch", "numpy", "gguf"} | WEB) == set()


def test_what_fits_is_told_without_torch() -> None:
    assert "torch" not in loaded_by("import engine.fit, engine.runner.registry")


def test_kernels_import_without_torch_or_a_gpu() -> None:
    walk = (
        "import importlib, pkgutil, kernels\n"
        "for found in pkgutil.walk_packages(kernels.__path__, 'kernels.'):\n"
        "    if found.ispkg: importlib.import_module(found.name)"
    )
    assert loaded_by(walk) & {"torch", "triton"} == set()


def test_ours_cannot_be_taken_for_hugging_faces_kernels() -> None:
    # `transformers` probes a distribution of that name, and reads the package's version.
    assert not hasattr(kernels, "__version__")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("kernels")
