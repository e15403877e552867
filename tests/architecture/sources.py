"""Reading the imports of our own packages, wherever in a file they stand."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("fewer", "gateway", "policies", "engine", "kernels")


def imports(package: str) -> Iterator[tuple[str, str]]:
    """(file, module) for every import in `package`, those inside functions too."""
    for path in sorted((REPOSITORY / package).rglob("*.py")):
        for module in _imports(path):
            yield str(path.relative_to(REPOSITORY)), module


def top_level(package: str) -> set[str]:
    """The packages that `package` imports: `yaml`, `starlette`, `policies`, …"""
    return {module.partition(".")[0] for _, module in imports(package)}


def loaded_by(statement: str) -> set[str]:
    """What a fresh interpreter has loaded after `statement`: top-level names only."""
    script = f"{statement}\nimport sys\nprint({{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=REPOSITORY, check=False
    )
    assert done.returncode == 0, done.stderr
    names: set[str] = ast.literal_eval(done.stdout)
    return names


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import; name the package."
            # `from engine import server` imports engine.server, or a name of engine.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
