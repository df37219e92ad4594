"""Where reads begin and end in a real log: by offset and by time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eventbus.errors import ConfigError, OffsetOutOfRange
from eventbus.log.reader import LogReader
from eventbus.types import Record
from spark_sinks.source.options import SourceOptions, parse_options

if TYPE_CHECKING:
    from tests.spark.conftest import TestLog

T0 = 1_709_251_199_000


@pytest.fixture
def two(log: TestLog) -> TestLog:
    """Partition 0: a record each second from T0 on, ten of them; partition 1: three, an hour later."""
    records = [Record(None, b"v", (), T0 + 1000 * number) for number in range(10)]
    log.write("orders", records, partition=0, partitions=2, per_batch=4)
    log.write("orders", [Record(None, b"v", (), T0 + 3_600_000 + number) for number in range(3)], partition=1)
    return log


def options(log: TestLog, **given: str) -> SourceOptions:
    return parse_options({"path": log.path, "subscribe": "orders", **given})


def start(log: TestLog, **given: str) -> list[int]:
    chosen, reader = options(log, **given), LogReader(log.path)
    return list(chosen.start(chosen.bounds(reader), reader).values())


def end(log: TestLog, **given: str) -> list[int]:
    chosen, reader = options(log, **given), LogReader(log.path)
    return list(chosen.end(chosen.bounds(reader), reader).values())


@pytest.mark.parametrize(
    ("given", "offsets"),
    [
        ({}, [0, 0]),
        ({"startingOffsets": "latest"}, [10, 3]),
        ({"startingOffsets": '{"orders": {"0": 4}}'}, [4, 0]),
        ({"startingOffsets": '{"orders": {"0": -1, "1": -2}}'}, [10, 0]),
        ({"startingTimestamp": str(T0)}, [0, 0]),
        ({"startingTimestamp": str(T0 + 2_001)}, [3, 0]),
        ({"startingOffsetsByTimestamp": f'{{"orders": {{"1": {T0 + 3_600_002}}}}}'}, [0, 2]),
        ({"startingTimestamp": str(T0 + 60_000), "startingOffsetsByTimestampStrategy": "latest"}, [10, 0]),
    ],
)
def test_beginnings(two: TestLog, given: dict[str, str], offsets: list[int]) -> None:
    assert start(two, **given) == offsets


@pytest.mark.parametrize(
    ("given", "offsets"),
    [
        ({}, [10, 3]),
        ({"endingOffsets": '{"orders": {"0": 4}}'}, [4, 3]),
        ({"endingTimestamp": str(T0 + 2_000)}, [2, 0]),
        ({"endingTimestamp": str(T0 + 60_000)}, [10, 0]),
        ({"endingOffsetsByTimestamp": f'{{"orders": {{"0": {T0 + 5_500}}}}}'}, [6, 3]),
    ],
)
def test_ends_are_not_included(two: TestLog, given: dict[str, str], offsets: list[int]) -> None:
    assert end(two, **given) == offsets


def test_a_time_after_the_last_record_is_an_error_unless_told_otherwise(two: TestLog) -> None:
    with pytest.raises(OffsetOutOfRange, match=r"orders-0 has no record at or after \d+ ms; set .*Strategy=latest"):
        start(two, startingTimestamp=str(T0 + 60_000))


def test_a_partition_that_is_not_there_is_named(two: TestLog) -> None:
    for given in ({"startingOffsets": '{"orders": {"7": 1}}'}, {"startingOffsetsByTimestamp": '{"orders": {"7": 1}}'}):
        with pytest.raises(ConfigError, match="names orders-7, which is not selected or not there"):
            start(two, **given)


def test_options_travel_to_tasks(two: TestLog, tmp_path: Path) -> None:
    import pickle

    chosen = options(two, startingOffsetsByTimestamp=f'{{"orders": {{"0": {T0}}}}}')
    assert pickle.loads(pickle.dumps(chosen)) == chosen
