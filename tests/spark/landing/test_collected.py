"""What the tasks have written is known as a whole, or the batch is not landed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_sinks import SparkCrashed
from spark_sinks.errors import own_error
from spark_sinks.running import collected

_ALIVE = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False)))
_KILLED = SimpleNamespace(_jsc=None)


def _frame(context: Any) -> Any:
    """What pyspark returns of a connection that broke: as many rows as came."""
    return SimpleNamespace(collect=lambda: [1, 2], sparkSession=SimpleNamespace(sparkContext=context))


def test_java_is_killed_while_it_sends() -> None:
    """The offsets would be committed, and the rows not."""
    frame = _frame(_KILLED)
    with pytest.raises(EOFError) as raised:
        collected(frame)
    assert isinstance(own_error(raised.value, frame.sparkSession), SparkCrashed)


def test_java_is_there_still() -> None:
    assert collected(_frame(_ALIVE)) == [1, 2]
