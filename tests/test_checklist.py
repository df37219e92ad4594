"""checklist.md is what tests/checklist.py says, and what that says is there: tests, examples, pages, every row."""

from __future__ import annotations

import pytest

from tests.checklist import CORRECTIONS, SECTIONS, Row, render
from tests.named import ROOT, anchors, check_named, find_page
from tests.support import naming

pytestmark = pytest.mark.system

PAGE = find_page("checklist.md")
ROWS = [row for section in SECTIONS for row in section.rows]


def test_the_page_is_what_the_table_says(rewrite: bool) -> None:
    if rewrite:
        PAGE.write_text(render(PAGE), "utf-8")
    assert PAGE.read_text("utf-8") == render(PAGE), (
        "checklist.md is not what tests/checklist.py says; "
        "`python -m pytest tests/test_checklist.py --rewrite` writes it"
    )


def test_no_row_is_missing() -> None:
    for section in SECTIONS:
        assert [row.number for row in section.rows] == list(range(section.first, section.last + 1)), section.title


def check_what_is_named(row: Row) -> None:
    for test in row.tests:
        check_named(test)
    for example in row.examples:
        assert (ROOT / "examples" / example).is_file(), f"there is no examples/{example}"
    if row.page:
        page, _, anchor = row.page.partition("#")
        assert anchor in anchors(find_page(page)), f"{page} has no heading for #{anchor}"


def test_what_the_rows_name_is_there() -> None:
    for row in ROWS:
        with naming(f"row {row.number}"):
            check_what_is_named(row)


def check_the_proof(row: Row) -> None:
    assert row.item and row.answer and "|" not in row.item + row.answer, "a cell of a Markdown table"
    if row.status == "answered":
        assert row.tests or row.examples, "a page alone proves nothing"
    else:
        parts = ("backend", "server", "registry", "package", "endpoint", "metrics", "connectors", "service's log")
        assert any(part in row.answer for part in parts), "which part brings the rest?"


def test_every_answer_is_proved_or_shown() -> None:
    for row in ROWS:
        with naming(f"row {row.number}"):
            check_the_proof(row)


def test_every_example_is_on_the_page() -> None:
    named = {example for row in ROWS for example in row.examples}
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == named


def test_corrections_have_two_sides() -> None:
    assert len(CORRECTIONS) >= 11
    assert all(there and today and "|" not in there + today for there, today in CORRECTIONS)
