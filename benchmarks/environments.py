"""Environments of their own for other engines, and the bundled model in the formats they read.

Everything lies under the user's cache, in `fewer/peers`, and is made the first time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.bench import say
from fewer.paths import cache_folder

ADAPTERS = Path(__file__).parent / "adapters"
REPOSITORY = Path(__file__).parents[1]
UNUSED = ("torchvision", "torchaudio", "torchcodec")
"""Come as dependencies, do not match the small torch, and fail when they are imported."""


def environment(name: str, packages: Sequence[str], variables: Mapping[str, str]) -> Path:
    """The interpreter of a peer's own environment. Making it takes minutes, with some a quarter
    of an hour, as they are compiled here."""
    folder = _peers() / name
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        say(f"setting up {name}: {' '.join(packages)}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *packages]
        subprocess.run(install, check=True, env=os.environ | dict(variables))
        remove = [str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *UNUSED]
        subprocess.run(remove, check=True)
        (folder / "ready").touch()
    return python


def converted(model: Path, kind: str) -> Path:
    """The same weights as another file: `q8_0`, `bf16`, or `hf` for a checkpoint folder."""
    target = _peers() / f"{model.stem}-{kind}{'' if kind == 'hf' else '.gguf'}"
    if not target.exists():
        say(f"converting {model.name} to {kind}")
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, *map(str, (ADAPTERS / "convert.py", model, kind, target))]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(REPOSITORY)})
    return target


def exported(model: Path, python: Path, weights: str) -> Path:
    """The model for OpenVINO, with `fp16` or `int8` weights; `python` has optimum."""
    target = _peers() / f"{model.stem}-openvino-{weights}"
    if not target.exists():
        say(f"exporting {model.name} for OpenVINO, {weights}")
        words = ["export", "openvino", "--model", str(converted(model, "hf"))]
        words += ["--task", "text-generation-with-past", "--weight-format", weights, str(target)]
        subprocess.run([str(python.parent / "optimum-cli"), *words], check=True)
    return target


def _peers() -> Path:
    return cache_folder() / "peers"
