"""Progress counts offsets: those of aborted records, and of the markers of transactions, are not missing at the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from spark_sinks.running import LandProgress, Running
from spark_sinks.targets.table_creation import new_account
from spark_sinks.targets.target import Batch, NewTable, StagedFile


class FakeTarget:
    name = "table"

    def __init__(self, state: Any) -> None:
        self._state = state

    def commit(self, batch: Batch, now_ms: int) -> Any:
        self._state = msgspec.structs.replace(self._state, offsets={**self._state.offsets, **batch.offsets})
        return self._state


def test_progress_counts_offsets_that_hold_no_record_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    new_table = NewTable("orders")
    state = msgspec.structs.replace(new_account(new_table, "12345678", 0), offsets={0: 10})
    bounds = {0: (0, 30), 1: (5, 25)}
    origin: Any = SimpleNamespace(topic="orders", topic_id=lambda: "", bounds=lambda: bounds)
    seen: list[LandProgress] = []
    frames: Any = SimpleNamespace(layout=SimpleNamespace(compression="zstd"))
    parts: Any = (origin, None, FakeTarget(state), new_table, state, frames, None, seen.append)
    running = Running(*parts)
    files = ((StagedFile("a", "", 4, 1),), (StagedFile("b", "", 1, 1),))
    monkeypatch.setattr(running, "_written", lambda frame, end: SimpleNamespace(files=lambda: files, columns=()))
    monkeypatch.setattr(running, "_check_rejected", lambda written: None)
    monkeypatch.setattr("spark_sinks.running.joined", lambda files, compression: files)
    running.total = running.look()
    for end in ({0: 20, 1: 10}, {0: 30, 1: 25}):
        running._land_batch(cast("Any", None), end)
    first, last = seen
    assert (first.rows, first.rejected, first.offsets, first.total, first.lag) == (4, 1, 15, 40, 25)
    assert first.behind == {0: 10, 1: 15}
    assert (last.rows, last.rejected, last.offsets, last.total, last.lag) == (8, 2, 40, 40, 0)
