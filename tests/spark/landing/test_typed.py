"""`typed`: records to typed columns, in Spark's tasks. No JVM."""

from __future__ import annotations

import pickle

import msgspec
import pyarrow as pa
import pytest

from eventbus.errors import ConfigError, SerializationError
from spark_sinks.decoding.choose import open_values
from spark_sinks.decoding.values import Decoded, RowDecoder, RowPlan, ValueSettings
from spark_sinks.typed_frames import TypedTask, typed
from tests.spark.decoding.batches import source_batch

pytestmark = pytest.mark.system


class Stop(msgspec.Struct):
    name: str
    minutes: int | None = None


GOOD, BAD = b'{"name": "a", "minutes": 1}', b"{"
NAMES = ["name", "minutes", "_offset"]


def plan() -> RowPlan:
    return open_values(ValueSettings("t", schema=Stop), url="unused").plan(None)


def run(task: TypedTask, *batches: pa.RecordBatch) -> list[dict[str, object]]:
    task = pickle.loads(pickle.dumps(task))  # as Spark does
    answers = list(task(iter(batches)))
    assert all(answer.schema.equals(task.columns) for answer in answers)
    return [row for answer in answers for row in answer.to_pylist()]


def test_records_become_the_columns_that_were_asked_for() -> None:
    task = TypedTask(plan(), "t", NAMES, drops=False)
    assert run(task, source_batch([GOOD], first=7), source_batch([GOOD, None])) == [
        {"name": "a", "minutes": 1, "_offset": 7},
        {"name": "a", "minutes": 1, "_offset": 0},
        {"name": None, "minutes": None, "_offset": 1},
    ]


def test_what_is_no_row_ends_the_query_or_is_left_out() -> None:
    batch = source_batch([GOOD, BAD, GOOD, BAD], first=10, partition=3)
    with pytest.raises(SerializationError, match=r"t-3 at offset 11 is no row: .*on_error='drop'.*; 2 of these 4"):
        run(TypedTask(plan(), "t", NAMES, drops=False), batch)
    assert [row["_offset"] for row in run(TypedTask(plan(), "t", NAMES, drops=True), batch)] == [10, 12]


class Unknowing(RowPlan, RowDecoder):
    """Finds an unknown schema."""

    columns = pa.schema([("x", pa.int64())])

    def decoder(self) -> RowDecoder:
        return self

    def rows(self, batch: pa.RecordBatch) -> Decoded:
        return Decoded(pa.RecordBatch.from_pydict({"x": []}, schema=self.columns), None, frozenset({9, 4}))


@pytest.mark.parametrize("drops", [False, True])
def test_a_schema_that_came_later_ends_the_query(drops: bool) -> None:
    with pytest.raises(SerializationError, match=r"t: schema 4 came after .*start it again"):
        run(TypedTask(Unknowing(), "t", ["x"], drops=drops), source_batch([b"x"]))


def test_wrong_arguments_are_told_before_spark_does_anything() -> None:
    frame: object = None
    with pytest.raises(ConfigError, match=r"on_error='ignore': choose 'fail' or 'drop'"):
        typed(frame, "unused", "t", schema=Stop, on_error="ignore")
    with pytest.raises(ConfigError, match=r"t has no column 'minute'; it has name, minutes, _key, _topic"):
        typed(frame, "unused", "t", schema=Stop, columns=["minute"])
