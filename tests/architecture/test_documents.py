"""Links between the documents lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.sources import REPOSITORY

DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def anchors(document: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    titles = HEADING.findall(document.read_text())
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    lost = []
    for link in LINK.findall(document.read_text()):
        path, _, anchor = link.partition("#")
        if path.startswith(("http:", "https:")):
            continue
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tables_are_whole(document: Path) -> None:
    """A row that no heading goes before, as after an empty line, is shown as bare text."""
    lines = ["", *document.read_text().splitlines(), ""]
    lost = [
        row
        for before, row, after in zip(lines, lines[1:], lines[2:], strict=False)
        if row.startswith("|") and not before.startswith("|") and not after.startswith("|---")
    ]
    assert lost == []


def test_every_document_is_reached_from_the_first() -> None:
    linked = set(LINK.findall((REPOSITORY / "README.md").read_text()))
    documents = {path.name for path in REPOSITORY.glob("docs/*.md")}
    internal = {"log.md"}  # for who changes the code: CONTRIBUTING.md leads there
    assert documents - internal <= {Path(link).name for link in linked}
