"""A refusal of a batch reaches the caller, and Spark does not log a stack for it in the session of the user."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eventbus.errors import ConfigError
from spark_sinks.running import Running

pytestmark = pytest.mark.core


class Query:
    """A query that ends when it is stopped."""

    is_stopped = False

    def awaitTermination(self, timeout: float) -> bool:
        return self.is_stopped

    def stop(self) -> None:
        self.is_stopped = True


def test_a_refused_batch_ends_the_query_without_an_exception_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: Any = (SimpleNamespace(topic="orders"), None, None, None, None, None, None)
    running, query, batches = Running(*parts), Query(), list[int]()

    def refused(directory: Path, batch_id: int, topic: str) -> dict[int, int]:
        batches.append(batch_id)
        raise ConfigError("no")

    monkeypatch.setattr("spark_sinks.running.batch_end", refused)
    monkeypatch.setattr(running, "_checkpoint", Path())
    monkeypatch.setattr(running, "_query", query)
    for number in range(2):
        running._land(cast("Any", None), number)
    with pytest.raises(ConfigError, match="no"):
        running.wait()
    assert (query.is_stopped, batches) == (True, [0])
