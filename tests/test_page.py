"""The page at ``/`` as it is served: its headers, and what its file may hold. ``test_browser`` drives it."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from serving import Serving, serving

FILE = Path(__file__).resolve().parent.parent / "server/api/page.html"
TEXT = FILE.read_text(encoding="utf-8")
MARKUP_SINKS = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment"
CODE_SINKS = r"\beval\(|new Function|setTimeout\(\s*[\"'`]|[\"'`]javascript:"


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(api_key=("key",), allowed_host=("box.local",)) as running:
        yield running


class Elements(HTMLParser):
    """The elements of a page, and the text in those that are no markup."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str, str]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open = tag
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        if self._open in self.raw and data.strip():
            self.raw[self._open].append(data)


def policy(server: Serving) -> dict[str, str]:
    header = server.get("/").headers["content-security-policy"]
    return {name: value for name, _, value in (each.strip().partition(" ") for each in header.split(";"))}


def test_the_page_is_open_and_itself(server: Serving) -> None:
    reply = server.get("/")
    assert (reply.status_code, reply.content) == (200, FILE.read_bytes())
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    assert reply.headers["x-frame-options"] == "DENY"
    head = server.request("HEAD", "/")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(FILE.read_bytes()))


def test_the_page_is_behind_the_host_check(server: Serving) -> None:
    assert server.get("/", headers={"host": "box.local"}).status_code == 200
    assert server.get("/", headers={"host": "evil.example"}).status_code == 403
    assert server.request("POST", "/").status_code == 405


def test_the_policy_allows_the_pages_own_parts_and_nothing_else(server: Serving) -> None:
    found = policy(server)
    elements = Elements(TEXT)
    for name, directive in (("script", "script-src"), ("style", "style-src")):
        (content,) = elements.raw[name]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert found.pop(directive) == f"'sha256-{digest}'"
    assert found == {
        "default-src": "'none'",
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }


def test_the_page_is_in_the_wheel(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={tmp_path}"]
    done = subprocess.run([*command, str(FILE.parents[2])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("server/api/page.html") == FILE.read_bytes()


def test_nothing_outside_is_named() -> None:
    addresses = set(re.findall(r"\b(?:https?|wss?|ftp):[^\s'\"`)]*|(?<![:\w])//[\w.-]+\.\w+", TEXT))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of a format, which nothing fetches
    for tag, name, value in Elements(TEXT).attributes:
        assert name not in ("src", "srcset", "action", "formaction", "ping", "poster"), (tag, name)
        if name == "href":
            assert value.startswith(("#", "data:image/svg+xml,"))
    assert "@import" not in TEXT
    assert not re.findall(r"\burl\(", TEXT)


def test_no_text_becomes_markup_or_code() -> None:
    assert not re.findall(MARKUP_SINKS, TEXT)
    assert not re.findall(CODE_SINKS, TEXT)
    assert not [each for each in Elements(TEXT).attributes if each[1].startswith("on") or each[1] == "style"]


def test_a_key_is_kept_for_the_tab_only() -> None:
    assert set(re.findall(r"localStorage\.\w+\(([^,)]+)", TEXT)) == {'"toolspan.theme"'}
    assert "document.cookie" not in TEXT
    assert "indexedDB" not in TEXT


def test_every_control_has_a_name() -> None:
    """A label around it, or ``aria-label``."""
    bare = re.sub(r"<label\b.*?</label>", "", TEXT.split("<body>")[1].split("<script>")[0], flags=re.DOTALL)
    controls = re.findall(r"<(?:textarea|select|input)\b[^>]*>", bare)
    assert controls
    assert [each for each in controls if "aria-label=" not in each] == []
