"""Every relative link of a page must lead to a file, and its anchor to a heading there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.named import ROOT, anchors

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!\w+:)([^)\s#]*)(?:#([^)\s]*))?\)")


def dead_links(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)
    dead: list[str] = []
    for target, anchor in LINK.findall(text):
        path = page.parent / target if target else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            dead.append(f"{page.name}: {target}#{anchor}")
    return dead


@pytest.mark.skipif(not (ROOT / "Makefile").exists(), reason="the wheel's tests run outside the checkout")
def test_each_link_leads_to_a_file_and_a_heading() -> None:
    assert [link for page in PAGES for link in dead_links(page)] == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n[a](#a) [b](#b) [c](other.md) [d](page.md#a) [e](https://x.org/y)\n", "utf-8")
    assert dead_links(page) == ["page.md: #b", "page.md: other.md#"]
