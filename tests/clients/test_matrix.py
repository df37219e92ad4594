"""The client matrix on the pages is what the tests before this one showed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.clients import matrix
from tests.clients.conftest import AGAINST_KAFKA, RESULTS
from tests.clients.tools import TOOLS
from tests.named import find_page

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("clients")]

PAGES = [find_page("clients.md")]
BLOCK = re.compile(rf"(?<={re.escape(matrix.BEGIN)}\n).*?(?={re.escape(matrix.END)})", re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_show_what_was_proved(page: Path, rewrite: bool) -> None:
    """A cell whose test did not run in this session counts as claimed, or single files could not be run."""
    if AGAINST_KAFKA:
        pytest.skip("these results are a real Kafka's")
    proved = {cell for cell in matrix.CLAIMED if RESULTS.get(cell, True)}
    table = matrix.render(proved) + "\n"
    text = page.read_text("utf-8")
    if rewrite:
        text = BLOCK.sub(lambda _: table, text)
        page.write_text(text, "utf-8")
    found = BLOCK.search(text)
    assert found, f"put {matrix.BEGIN} and {matrix.END} around the table"
    assert found[0] == table, "`python -m pytest tests/clients --rewrite` writes it"


def test_every_tool_has_its_test() -> None:
    """A tool that is named and not run proves nothing."""
    files = [Path(__file__).with_name(name) for name in ("test_kafka_tools.py", "test_dump_log.py")]
    trees = [ast.parse(file.read_text("utf-8")) for file in files]
    said = {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert set(TOOLS) <= said
