"""What the project stands on: declared, used where it should be, pinned, and with a reason."""

from __future__ import annotations

import re
import sys
import tomllib
from itertools import chain

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.sources import PACKAGES, REPOSITORY, top_level

IMPORT_NAMES = {
    "opentelemetry-sdk": "opentelemetry",
    "prometheus-client": "prometheus_client",
    "pyyaml": "yaml",
}
"""Where it differs from the distribution's name."""

PILLARS: dict[str, set[str]] = {
    "starlette": {"gateway", "engine"},
    "uvicorn": {"gateway", "engine"},
    "websockets": {"gateway", "engine"},
    "torch": {"engine", "kernels"},
    "tiktoken": {"engine"},
    "orjson": {"gateway", "engine"},
    "redis": {"gateway"},
    # Not in use yet: whoever begins to use one says here which packages do.
    "triton": set(),
    "opentelemetry-sdk": set(),
}
"""The nine packages that the project is built on, and which of ours import them."""

LOADED_BY_OTHERS = {"uvloop", "httptools"}
"""Uvicorn imports these when they are there."""


def declared() -> dict[str, Requirement]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return {
        canonicalize_name(requirement.name): requirement
        for requirement in map(Requirement, project["dependencies"])
    }


def extras() -> set[str]:
    """Import names of what only an extra brings: imported where it is used, late."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = map(Requirement, project["optional-dependencies"]["semantic"])
    return {import_name(canonicalize_name(requirement.name)) for requirement in wanted}


def import_name(distribution: str) -> str:
    return IMPORT_NAMES.get(distribution, distribution.replace("-", "_"))


@pytest.mark.parametrize("pillar", PILLARS)
def test_each_pillar_is_used_by_those_that_should_and_by_no_other(pillar: str) -> None:
    users = {package for package in PACKAGES if import_name(pillar) in top_level(package)}
    assert users == PILLARS[pillar]
    assert (pillar in declared()) == bool(users)


def test_what_is_declared_is_used() -> None:
    used = set().union(*map(top_level, PACKAGES)) | LOADED_BY_OTHERS
    assert {name for name in declared() if import_name(name) not in used} == set()


def test_what_is_used_is_declared() -> None:
    used = set().union(*map(top_level, PACKAGES)) - set(sys.stdlib_module_names) - set(PACKAGES)
    assert used - extras() - {import_name(name) for name in declared()} == set()


def test_every_dependency_has_its_reason() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    reasons: dict[str, str] = {
        canonicalize_name(name): reason
        for name, reason in re.findall(r"^\| `?([A-Za-z0-9_.-]+)`? +\|(.+)\|$", text, re.MULTILINE)
    }
    missing = [name for name in declared() if len(reasons.get(name, "").strip()) < 10]
    assert missing == [], "Each needs a row `| name | why |` in docs/architecture.md."


def test_every_dependency_is_pinned_inside_its_range() -> None:
    pins = dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)$", constraints(), re.MULTILINE))
    versions = {canonicalize_name(name): version for name, version in pins.items()}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    for requirement in map(Requirement, wanted):
        if requirement.name == "fewer":
            continue  # its own extra
        version = versions[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} is pinned to {version}."


def test_pins_name_no_place_to_download_from() -> None:
    lines = [line for line in constraints().splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[^\s+]+", line)] == []


def constraints() -> str:
    return (REPOSITORY / "constraints.txt").read_text()
