"""Lines of every source file: a file past the ceiling is a question that somebody must answer.

    python scripts/size.py          a line for each package, and the largest files
    python scripts/size.py --all    every file

Exits with 1 when a file is over the ceiling and not on the list below.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

CEILING_LINES = 400
TEST_CEILING_LINES = 800
"""A test file mirrors a source file, and as many lines again is a good sign."""

LARGEST = 8
SUFFIXES = {".py", ".js", ".css", ".html", ".cpp", ".h"}

ALLOWED: dict[str, str] = {
    # path: why it is one file all the same
}


def main() -> int:
    lines = _count()
    shown = sorted(lines, key=lambda path: -lines[path])
    for path in shown if "--all" in sys.argv[1:] else shown[:LARGEST]:
        print(f"{lines[path]:6}  {path}")
    _summarise(lines)
    over = [path for path in shown if lines[path] > _ceiling(path) and path not in ALLOWED]
    for path in over:
        print(
            f"size: {path} has {lines[path]} lines, over {_ceiling(path)}. "
            f"Split it, or give the reason in scripts/size.py.",
            file=sys.stderr,
        )
    stale = [path for path in ALLOWED if lines.get(path, 0) <= _ceiling(path)]
    for path in stale:
        print(f"size: {path} needs no exception any more.", file=sys.stderr)
    return 1 if over or stale else 0


def _ceiling(path: str) -> int:
    return TEST_CEILING_LINES if path.startswith("tests/") else CEILING_LINES


def _count() -> dict[str, int]:
    """Lines by path, of the files that git tracks or would."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    paths = [path for path in listing.splitlines() if Path(path).suffix in SUFFIXES]
    return {
        path: len(Path(path).read_bytes().splitlines()) for path in paths if Path(path).exists()
    }


def _summarise(lines: dict[str, int]) -> None:
    packages = defaultdict(list)
    for path, count in lines.items():
        packages[path.split("/")[0]].append(count)
    for package, counts in sorted(packages.items(), key=lambda item: -sum(item[1])):
        print(
            f"{sum(counts):6}  {package}/: {len(counts)} files, "
            f"median {statistics.median(counts):.0f}, largest {max(counts)}"
        )
    print(f"{sum(lines.values()):6}  in all")


if __name__ == "__main__":
    sys.exit(main())
