from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.faces import pages
from tests.fakes.serving import Gateway, Serve

FOLDER = Path(pages.__file__).parent / "pages"
PATHS = [route.path for route in pages.routes()]
SOURCES = [path for path in FOLDER.iterdir() if path.suffix in (".html", ".css", ".js", ".svg")]


@pytest.fixture
async def gateway(serve: Serve) -> Gateway:
    running: Gateway = await serve()
    return running


@pytest.mark.parametrize("path", PATHS)
async def test_every_file_comes_with_strict_headers(gateway: Gateway, path: str) -> None:
    answer = await gateway.client.get(path)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-cache"
    assert int(answer.headers["content-length"]) == len(answer.content)


async def test_content_types(gateway: Gateway) -> None:
    types = {path: (await gateway.client.get(path)).headers["content-type"] for path in PATHS}
    assert types["/"] == "text/html; charset=utf-8"
    assert types["/assets/chat.js"] == "text/javascript; charset=utf-8"
    assert types["/assets/chat.css"] == "text/css; charset=utf-8"
    assert types["/assets/favicon.svg"] == "image/svg+xml"


async def test_a_browser_that_has_the_file_is_told_so(gateway: Gateway) -> None:
    tag = (await gateway.client.get("/")).headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        again = await gateway.client.get("/", headers={"if-none-match": known})
        assert again.status_code == 304
        assert again.content == b""
        assert again.headers["etag"] == tag
        assert "content-security-policy" in again.headers
    changed = await gateway.client.get("/", headers={"if-none-match": '"other"'})
    assert changed.status_code == 200


async def test_head_has_the_headers_and_no_body(gateway: Gateway) -> None:
    whole, head = await gateway.client.get("/"), await gateway.client.head("/")
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == whole.headers["content-length"]


async def test_other_methods_and_other_paths_are_refused(gateway: Gateway) -> None:
    assert (await gateway.client.post("/", json={})).status_code == 405
    for path in ("/assets/", "/assets/chat.html", "/assets/pages.py", "/assets/%2e%2e/pages.py"):
        assert (await gateway.client.get(path)).status_code == 404


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_no_file_names_another_host(source: Path) -> None:
    addresses = re.findall(r"(?:https?:)?//[a-z0-9][\w.-]+\.\w+[^\s\"']*", source.read_text())
    harmless = ("http://www.w3.org/2000/svg", "https://html.spec.whatwg.org/")
    assert [found for found in addresses if not found.startswith(harmless)] == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_no_file_turns_text_into_markup_or_code(source: Path) -> None:
    text = source.read_text()
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function"
    assert re.findall(ways, text) == []
    assert re.findall(r"<\w[^>]*\s(?:on\w+|style)\s*=", text) == []
    assert re.findall(r"<script(?![^>]*\ssrc=)", text) == []


def test_everything_that_the_page_loads_is_served() -> None:
    text = "\n".join(source.read_text() for source in SOURCES)
    loaded = set(re.findall(r"(?:href|src)=\"(/assets/[^\"]+)\"", text))
    loaded |= {f"/assets/{name}" for name in re.findall(r"from \"\./([\w.]+)\"", text)}
    assert loaded
    assert loaded <= set(PATHS)
    assert {path for path in PATHS if path.startswith("/assets/")} <= loaded
