"""Tests that tables of pages name: ``path::function``, looked up in the file."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@cache
def functions(path: str) -> frozenset[str]:
    """The top-level functions of a file."""
    return frozenset(re.findall(r"^(?:async )?def (\w+)", (ROOT / path).read_text("utf-8"), re.M))


def check_named(test: str) -> None:
    """AssertionError unless ``path::function`` is there."""
    path, _, name = test.partition("::")
    assert name in functions(path), f"{path} has no {name}"


def said(test: str) -> str:
    """``path::test_a_batch`` as people read it: a batch."""
    return test.partition("::")[2].removeprefix("test_").removeprefix("trap_").replace("_", " ")
