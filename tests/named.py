"""Look up what pages and tables name: a page by its file name, a test as ``path::function``."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@cache
def find_page(name: str) -> Path:
    """The page of docs/ with this file name, in whichever folder it is."""
    (path,) = (ROOT / "docs").rglob(name)
    return path


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, spelt as GitHub spells them. Code blocks have no headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ +(.*)$", text, re.M)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


@cache
def functions(path: str) -> frozenset[str]:
    """The top-level functions of a file."""
    return frozenset(re.findall(r"^(?:async )?def (\w+)", (ROOT / path).read_text("utf-8"), re.M))


def check_named(test: str) -> None:
    """AssertionError unless ``path::function`` is there."""
    path, _, name = test.partition("::")
    assert name in functions(path), f"{path} has no {name}"


def said(name: str) -> str:
    """``test_a_batch`` as people read it: a batch."""
    return name.removeprefix("test_").removeprefix("trap_").replace("_", " ")
