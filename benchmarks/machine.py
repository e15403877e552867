"""What a figure was measured on, so that rows of different days and machines can be told apart."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

VERSIONS = ("fewer", "numpy", "starlette", "uvicorn", "uvloop", "aiohttp")


def about() -> dict[str, Any]:
    """Hardware, load and versions, at this moment."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in VERSIONS},
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def processor() -> str:
    """The processor's name, as its maker gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
