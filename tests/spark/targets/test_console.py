"""What `console:` prints: a table on a terminal, lines with tabs into a pipe."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_sinks.targets.console import ConsoleTarget
from spark_sinks.targets.target import StagedFile

pytestmark = pytest.mark.system


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(out: io.StringIO, path: Path, columns: dict[str, list[Any]]) -> str:
    pq.write_table(pa.table(columns), path)
    rows = len(next(iter(columns.values())))
    target = ConsoleTarget(out=out)
    target._show("orders: batch 1", [StagedFile(str(path), "", rows, path.stat().st_size)])
    return out.getvalue()


def test_rows_are_a_table_on_a_terminal_and_no_payload_commands_it(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TERM", "dumb")
    text = shown(Terminal(), tmp_path / "rows", {"id": [1, 22], "value": ["a\x1b[31m\nb", None]})
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines == ["orders: batch 1, 2 rows", "id  value", lines[2], "1   a [31m b", "22", ""]


def test_rows_are_lines_with_tabs_in_a_pipe_and_only_the_first_are_shown(tmp_path: Path) -> None:
    lines = shown(io.StringIO(), tmp_path / "rows", {"id": [*range(30)]}).splitlines()
    assert lines[:3] == ["orders: batch 1, 30 rows, the first 20", "id", "0"]
    assert len(lines) == 22
