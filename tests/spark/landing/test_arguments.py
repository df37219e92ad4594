"""What `land` makes of its arguments, before Spark is started."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from eventbus import EventBus
from eventbus.errors import ConfigError
from eventbus.types import Record
from serdes import Avro
from spark_sinks import landing, status, verify
from spark_sinks.decoding.choose import open_values
from spark_sinks.decoding.values import ValueSettings
from spark_sinks.landing import LandOptions, LandReport, interval_ms, land, land_many, starting_point, table_of
from spark_sinks.source.origins import open_origin
from tests.spark.conftest import TestLog

pytestmark = pytest.mark.system  # values are decoded by numpy


@pytest.mark.parametrize(
    ("every", "milliseconds"),
    [(0, 0), (1.5, 1_500), ("10s", 10_000), ("500 ms", 500), ("2m", 120_000), ("5 min", 300_000), ("1h", 3_600_000),
     ("0.5", 500)],
)  # fmt: skip
def test_intervals(every: float | str, milliseconds: int) -> None:
    assert interval_ms(every) == milliseconds


@pytest.mark.parametrize("every", [-1, float("inf"), float("nan"), "10 weeks", "", "-5s", "s"])
def test_what_is_no_interval(every: float | str) -> None:
    with pytest.raises(ConfigError, match="every="):
        interval_ms(every)


@pytest.mark.parametrize(
    ("to", "several", "table"),
    [
        ("./w", False, "./w"),
        ("./w", True, "./w/orders"),
        ("./w/", True, "./w/orders"),
        ("file:///w", True, "file:///w/orders"),
        ("./w/{topic}/raw", False, "./w/orders/raw"),
        ("delta:./lake", True, "delta:./lake/orders"),
        ("postgresql://h/db#{topic}", True, "postgresql://h/db#orders"),
        ("postgresql://h/db", True, "postgresql://h/db#orders"),
        ("postgresql://h/db#sales", False, "postgresql://h/db#sales"),
        ("console:", True, "console:"),
    ],
)
def test_each_topic_has_a_table(to: str, several: bool, table: str) -> None:
    assert table_of(to, "orders", several) == table


def test_several_topics_in_one_table_of_a_database_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"write \{topic\} where its name belongs"):
        table_of("postgresql://h/db#all", "orders", True)


@pytest.mark.parametrize(
    ("said", "start"),
    [
        ("earliest", {0: 0, 1: 0, 2: 0}),
        ("latest", {0: 4, 1: 3, 2: 0}),
        ('{"orders": {"1": 2}}', {0: 0, 1: 2, 2: 0}),
        ('{"orders": {"1": -1, "0": -2, "2": -1}}', {0: 0, 1: 3, 2: 0}),
    ],
)
def test_where_a_new_table_starts(log: TestLog, said: str, start: dict[int, int]) -> None:
    for partition, count in ((0, 4), (1, 3)):  # the third never held a record
        log.write("orders", [Record(None, b"x", (), 1)] * count, partition=partition, partitions=3)
    assert starting_point(open_origin(log.path, "orders"), said) == start


@pytest.mark.parametrize("said", ["newest", '{"orders": {"9": 1}}', '{"payments": {"1": 1}}', '{"orders": 5}', "{"])
def test_what_is_no_place_to_start(log: TestLog, said: Any) -> None:
    log.write("orders", [Record(None, b"x", (), 1)], partition=1, partitions=3)
    with pytest.raises(ConfigError, match="starting_offsets"):
        starting_point(open_origin(log.path, "orders"), said)


@pytest.mark.system
def test_where_a_table_started_is_its_own_affair(log: TestLog, tmp_path: Path) -> None:
    """Also when retention has passed the place meanwhile. Nothing waits, so Spark is not started."""
    log.write("orders", [Record(None, b"x", (), 1)] * 4)
    land(log.path, "orders", str(tmp_path / "t"), starting_offsets="latest")
    report = land(log.path, "orders", str(tmp_path / "t"), starting_offsets='{"orders": {"0": 99}}')
    assert isinstance(report, LandReport)
    assert (report.offsets, report.lag) == ({0: 4}, 0)
    with pytest.raises(ConfigError, match="orders has the partitions 0 from 0 to 4"):
        land(log.path, "orders", str(tmp_path / "u"), starting_offsets='{"orders": {"0": 5}}')
    assert not (tmp_path / "u").exists()


def test_the_options_are_those_that_the_engine_takes() -> None:
    taken = inspect.signature(landing._land).parameters.keys() - {"url", "topics", "to", "several"}
    assert taken == LandOptions.__annotations__.keys()


def test_an_option_that_is_not_there_is_named() -> None:
    for call in (land, land_many):
        with pytest.raises(ConfigError, match=r"land\(\) has no option 'evry'; it has value, schema"):
            call("./data", "orders", "./w", **{"evry": 5})


@pytest.mark.parametrize("topics", ["orders,payments", "/or.*/", ["orders"]])
def test_several_topics_are_for_land_many(topics: Any) -> None:
    with pytest.raises(ConfigError, match="lands one topic; several: land_many"):
        land("./data", topics, "./w")


@pytest.mark.system
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.list_(pa.int64())])
def test_values_that_do_not_identify_rows_are_no_key(log: TestLog, tmp_path: Path, kind: pa.DataType) -> None:
    """PostgreSQL takes 0.0 and -0.0 for one key, and refused the batch; MySQL has no NaN."""
    log.write("orders", [Record(None, b"{}", (), 1)])
    for to in (f"sqlite:///{tmp_path}/x.db#t", f"delta:{tmp_path}/t"):
        with pytest.raises(ConfigError, match=r"upsert='k' cannot be used\. The column has the type"):
            land(log.path, "orders", to, schema=pa.schema([("k", kind)]), upsert="k")


@pytest.mark.system
def test_a_topic_that_does_not_exist_yet_lands_no_row(
    log: TestLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log.write("orders", [Record(None, b"v", (), 0)])
    to = str(tmp_path / "t")
    report = land(log.path, "ordrs", to)
    assert (report.rows, report.offsets, report.lag) == (0, {}, 0)
    assert caplog.messages == [
        f"Topic 'ordrs' of {log.path} does not exist yet. No row is landed until it is created. Did you mean 'orders'?"
    ]
    assert (status(log.path, "ordrs", to).rows, verify(log.path, "ordrs", to).problems) == (0, [])


@pytest.mark.system
def test_the_schema_of_a_topic_that_is_created_later_decides_the_columns(tmp_path: Path) -> None:
    bus = EventBus(f"file://{tmp_path}", serde=Avro("log", schema={"type": "record", "name": "R", "fields": []}))
    with bus.blocking():
        pass
    values = open_values(ValueSettings("orders"), url=str(tmp_path))
    assert values.plan(None).columns.names[:2] == ["key", "value"]
    bus.topic("orders", partitions=1)
    with bus.blocking() as blocking:
        blocking.send("orders", {})
    assert values.plan(None).columns.names[0] == "_key"
    values.close()
