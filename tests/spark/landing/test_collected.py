"""What the tasks have written is known as a whole, or the batch is not landed."""

from __future__ import annotations

import io
import struct
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import write_int
from pyspark.sql.pandas.serializers import ArrowCollectSerializer

from spark_sinks import SparkCrashed
from spark_sinks.errors import own_error
from spark_sinks.running import collected

pytestmark = pytest.mark.system

_KILLED = SimpleNamespace(_jsc=None)


def _sent() -> bytes:
    """What Java sends of two batches: each is a report of a task."""
    stream = io.BytesIO()
    schema = pa.schema([("kind", pa.string()), ("rows", pa.int64())])
    with pa.ipc.new_stream(stream, schema) as writer:
        for kind, rows in (("rows", 5), ("rejected", 1)):
            writer.write_batch(pa.record_batch([[kind], [rows]], schema=schema))
    for number in (2, 0, 1):
        write_int(number, stream)
    return stream.getvalue()


def _frame(data: bytes) -> Any:
    """A frame whose rows come over a connection that breaks behind ``data``."""

    def to_arrow() -> pa.Table:
        return pa.Table.from_batches(ArrowCollectSerializer().load_stream(io.BytesIO(data)))

    return SimpleNamespace(toArrow=to_arrow)


def test_all_that_was_sent_is_there() -> None:
    assert collected(_frame(_sent())) == [("rows", 5), ("rejected", 1)]


def test_java_is_killed_while_it_sends() -> None:
    """The offsets would be committed, and the rows not: wherever it ends, it is an error."""
    data = _sent()
    for end in range(len(data)):
        with pytest.raises((EOFError, OSError, pa.ArrowInvalid, struct.error)) as raised:
            collected(_frame(data[:end]))
        assert isinstance(own_error(raised.value, SimpleNamespace(sparkContext=_KILLED)), SparkCrashed)
