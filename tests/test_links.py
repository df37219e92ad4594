"""Every relative link of a page must lead to a file and a heading; every module that a package lists must exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.named import ROOT, anchors

PACKAGES = ("eventbus", "serdes", "outbox", "dlq", "schema_registry", "spark_sinks")
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


IN_THE_CHECKOUT = pytest.mark.skipif(
    not (ROOT / "Makefile").exists(), reason="the wheel's tests run outside the checkout"
)


@IN_THE_CHECKOUT
def test_each_link_leads_to_a_file_and_a_heading() -> None:
    assert [link for page in PAGES for link in dead_links(page)] == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n[a](#a) [b](#b) [c](other.md) [d](page.md#a) [e](https://x.org/y)\n", "utf-8")
    assert dead_links(page) == ["page.md: #b", "page.md: other.md#"]


@IN_THE_CHECKOUT
def test_each_module_that_a_package_docstring_lists_exists() -> None:
    """A package's docstring is its map: ``- ``name``, ``name``: what they are for``."""
    listed = 0
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        for line in re.findall(r"^- ((?:``[\w/]+``(?:, |(?=:)))+):", docstring, re.M):
            for name in re.findall(r"``([\w/]+)``", line):
                listed += 1
                module = path.parent / name
                assert module.is_dir() or module.with_suffix(".py").is_file(), f"{path.parent.name} has no {name}"
    assert listed > 150
