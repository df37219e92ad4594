"""A topic is deleted and created again while a landing runs: nothing of the new one reaches the table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from eventbus.errors import ConfigError
from spark_sinks.running import Running
from spark_sinks.targets.table_creation import new_account
from spark_sinks.targets.target import NewTable


class FakeTarget:
    name = "table"

    def commit(self, batch: Any, now_ms: int) -> None:
        raise AssertionError("it was landed")


def test_a_batch_of_another_topic_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    new_table = NewTable("orders", topic_id="old")
    origin = SimpleNamespace(topic="orders", topic_id=lambda: "new")
    written = SimpleNamespace(files=lambda: ((), ()), columns=None)
    parts: Any = (origin, None, FakeTarget(), new_table, new_account(new_table, "12345678", 0), None, None)
    running = Running(*parts)
    monkeypatch.setattr(running, "_written", lambda frame, end: written)
    monkeypatch.setattr(running, "_check_rejected", lambda written: None)
    with pytest.raises(ConfigError, match=r"a topic 'orders' that was deleted\."):
        running._land_batch(cast("Any", None), {0: 9})
