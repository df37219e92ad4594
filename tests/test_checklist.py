"""checklist.md and traps.md: every row of their tables links to the tests that prove it, by their names."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

import pytest

from tests.named import ROOT, check_named, find_page, functions, said
from tests.support import naming

pytestmark = pytest.mark.system

LINK = re.compile(r"\[([^\]]+)\]\(([^)]+\.py)\)")
STATUS = {"yes", "partly", "later"}
PARTS = ("backend", "server", "registry", "package", "endpoint", "metrics", "connectors", "service's log")
"""Who brings what is not there yet, or not wholly."""


class Row(NamedTuple):
    """A row of a table, and the Python files that it links to."""

    cells: list[str]
    tests: list[tuple[str, str]]
    """The text of a link, and the path of its file below the root of the checkout."""
    examples: set[str]


def rows_of(page: str) -> list[Row]:
    path = find_page(page)
    rows: list[Row] = []
    for line in re.findall(r"^\| (.*) \|$", path.read_text("utf-8"), re.M):
        links = [(text, (path.parent / target).resolve().relative_to(ROOT)) for text, target in LINK.findall(line)]
        tests = [(text, file.as_posix()) for text, file in links if file.parts[0] != "examples"]
        rows.append(Row(line.split(" | "), tests, {file.name for _, file in links if file.parts[0] == "examples"}))
    return rows


CHECKLIST = [row for row in rows_of("checklist.md") if row.cells[0].isdigit()]
TRAPS = [row for row in rows_of("traps.md") if row.cells[0] != "the server"]


def test_each_link_to_a_test_names_it() -> None:
    for row in CHECKLIST + TRAPS:
        for text, path in row.tests:
            assert text in {said(name) for name in functions(path)}, f"row {row.cells[0]}: {path} has no {text!r}"


def test_every_answer_is_proved_or_shown() -> None:
    assert len(CHECKLIST) > 160
    for row in CHECKLIST:
        with naming(f"row {row.cells[0]}"):
            _, item, status, answer, _ = row.cells
            assert item and answer and status in STATUS
            if status == "yes":
                assert row.tests or row.examples, "a page alone proves nothing"
            else:
                assert any(part in answer for part in PARTS), "which part brings the rest?"


def test_rows_are_numbered_in_their_order() -> None:
    numbers = [int(row.cells[0]) for row in CHECKLIST]
    assert all(one < other for one, other in pairwise(numbers))


def test_every_example_is_on_the_page() -> None:
    named = {example for row in CHECKLIST for example in row.examples}
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == named


def test_each_trap_is_held_by_a_test() -> None:
    assert len(TRAPS) > 30
    for row in TRAPS:
        assert len(row.cells) == 3 and row.tests, row.cells[0]


def test_a_test_of_a_trap_has_its_row() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests" / "server").glob("test_*.py"))]
    of_traps = {(said(name), path) for path in files for name in functions(path) if name.startswith("test_trap_")}
    assert of_traps <= {test for row in TRAPS for test in row.tests}


def test_a_name_that_is_not_there_is_found() -> None:
    with pytest.raises(AssertionError, match="has no test_nothing"):
        check_named("tests/test_checklist.py::test_nothing")
