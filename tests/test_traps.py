"""traps.md is what tests/traps.py says, and every test that it names is there."""

from __future__ import annotations

from tests.named import ROOT, check_named, find_page, functions
from tests.traps import SECTIONS, render

PAGE = find_page("traps.md")
TRAPS = [trap for traps in SECTIONS.values() for trap in traps]


def test_the_page_is_what_the_table_says(rewrite: bool) -> None:
    if rewrite:
        PAGE.write_text(render(PAGE), "utf-8")
    assert PAGE.read_text("utf-8") == render(PAGE), "`python -m pytest tests/test_traps.py --rewrite` writes traps.md"


def test_each_is_held_by_a_test() -> None:
    for trap in TRAPS:
        assert trap.tests and "|" not in trap.name + trap.otherwise, trap.name
        for test in trap.tests:
            check_named(test)


def test_a_test_of_a_trap_has_its_row() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests" / "server").glob("test_*.py"))]
    of_traps = {f"{path}::{name}" for path in files for name in functions(path) if name.startswith("test_trap_")}
    assert of_traps <= {test for trap in TRAPS for test in trap.tests}
