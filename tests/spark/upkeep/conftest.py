"""Logs with everything that leaves gaps, and a table that is whatever a test says."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from eventbus import EventBus
from eventbus.broker import Broker, BrokerConfig, TopicSpec
from eventbus.log.storage import FileStorage
from eventbus.types import TopicPartition
from spark_sinks.names import IN_FILES
from spark_sinks.shape import TOMBSTONE, Lack, coordinate_fields, quarantine_schema
from spark_sinks.stage import Layout, StageWriter
from spark_sinks.targets.choose import open_target
from spark_sinks.targets.target import Batch, NewTable, SinkState, pack_columns
from spark_sinks.upkeep.rows import RowMaker, ValueArguments
from spark_sinks.upkeep.topic_contents import LogContents

NOW_MS = 1_709_251_199_000


class GappyLog:
    """The topic ``orders`` in a directory: records, aborted and committed transactions, compaction, retention."""

    def __init__(self, directory: Path, *, partitions: int = 1, **configs: str) -> None:
        self.path = str(directory)
        self._with_broker(
            lambda broker: broker.create_topics([TopicSpec("orders", partitions, configs=configs)], NOW_MS)
        )

    def send(self, *values: bytes | None, key: bytes | None = None, partition: int = 0, aborts: bool = False) -> None:
        """Records of one transaction where ``aborts`` says so, else plain ones."""

        async def work() -> None:
            async with EventBus(f"file://{self.path}") as bus:
                try:
                    async with bus.transaction("t") as transaction:
                        for value in values:
                            await transaction.send("orders", value, key=key, partition=partition)
                        if aborts:
                            raise _GivenUp
                except _GivenUp:
                    pass

        async def plain() -> None:
            async with EventBus(f"file://{self.path}") as bus:
                for value in values:
                    await bus.send("orders", value, key=key, partition=partition)

        asyncio.run(work() if aborts else plain())

    def commit(self, *values: bytes) -> None:
        """A committed transaction."""

        async def work() -> None:
            async with EventBus(f"file://{self.path}") as bus, bus.transaction("t") as transaction:
                for value in values:
                    await transaction.send("orders", value, partition=0)

        asyncio.run(work())

    def compact(self) -> None:
        self._with_broker(lambda broker: broker.clean_now(NOW_MS + 10**9))

    def delete_before(self, offset: int) -> None:
        self._with_broker(lambda broker: broker.delete_records(TopicPartition("orders", 0), offset, NOW_MS))

    def _with_broker(self, work: Any) -> None:
        config = BrokerConfig(fsync="os")
        broker = Broker.open(FileStorage(self.path), config, now_ms=NOW_MS, new_id=lambda: os.urandom(16))
        try:
            work(broker)
            broker.publish_checkpoints(NOW_MS)
        finally:
            broker.close(NOW_MS)


class _GivenUp(Exception):
    pass


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    found = tmp_path / "data"
    found.mkdir()
    return found


class Table:
    """A table as a target shows it: an account, rows and a quarantine, none of which need to go together."""

    name = "a table"
    is_partitioned = True
    keeps_partition_columns = False
    keeps_nan = True
    names = IN_FILES
    lacks: frozenset[Lack] = frozenset()

    def __init__(self, **account: Any) -> None:
        self.account = {"id": "0a1b2c3d", "topic": "orders", "sequence": 1, **account}
        self.rows: list[pa.RecordBatch] = []
        self.rejected: list[pa.RecordBatch] = []
        self.columns = pa.schema(coordinate_fields())
        self.opened = 0

    def hold(self, *offsets: int, partition: int = 0, topic: str | None = "orders", **columns: Sequence[Any]) -> Table:
        """Rows of records at these offsets."""
        self.rows.append(_batch(offsets, partition, topic, columns))
        self.columns = pa.unify_schemas([self.columns, self.rows[-1].schema])
        return self

    def reject(self, *offsets: int, values: Sequence[bytes | None] | None = None, error: str = "bad") -> Table:
        """Records in the quarantine."""
        more = {
            "key": pa.nulls(len(offsets), pa.binary()),
            "value": pa.array(values or [b"?"] * len(offsets), pa.binary()),
            "schema_id": pa.nulls(len(offsets), pa.int32()),
            "error": [error] * len(offsets),
        }
        self.rejected.append(_batch(offsets, 0, "orders", more).cast(quarantine_schema()))
        return self

    def state(self) -> SinkState | None:
        schema = pack_columns(self.columns) if self.rows else b""
        rows = sum(batch.num_rows for batch in self.rows)
        return SinkState(**{"rows": rows, "schema": schema, **self.account})

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for batch in self.rows:
            yield batch.select(columns)

    def read_quarantine(self) -> Iterator[pa.RecordBatch]:
        yield from self.rejected

    def files(self) -> None:
        return None

    def strangers(self) -> list[str]:
        return []

    def close(self) -> None:
        pass


def _batch(offsets: Sequence[int], partition: int, topic: str | None, more: dict[str, Any]) -> pa.RecordBatch:
    count = len(offsets)
    coordinates = [[topic] * count, [partition] * count, list(offsets), [0] * count]
    fields = coordinate_fields()
    arrays = [pa.array(values, field.type) for values, field in zip(coordinates, fields, strict=True)]
    return pa.RecordBatch.from_arrays(
        [*arrays, *(each if isinstance(each, pa.Array) else pa.array(each) for each in more.values())],
        [*(field.name for field in fields), *more],
    )


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a `Table` the one that is opened, whatever its URL."""

    def use(table: Table) -> None:
        monkeypatch.setattr("spark_sinks.upkeep.tables.open_target", lambda to: table)

    return use


def land_here(url: str, to: str, *, upto: int | None = None, **said: Any) -> SinkState:
    """Land ``orders`` as the engine does, without Spark: into a table of our own targets."""
    target = open_target(to)
    by = tuple(said.pop("partition_by", ("dt",)))
    by = by if target.is_partitioned else ()
    upsert = tuple(said.pop("upsert", ()))
    layout = Layout(by, in_files=target.keeps_partition_columns, limits=target.limits(upsert))
    new_table = NewTable("orders", by, upsert, started={0: 0})
    try:
        state = target.open(new_table, NOW_MS)
        rows = RowMaker(url, state, ValueArguments(**said), None, layout, target.names, target.lacks)
        stage = target.stage_directory()
        truth = LogContents(url, "orders")
        end = truth.bounds()[0][1] if upto is None else upto
        good, bad = StageWriter(stage, layout), StageWriter(stage, Layout())
        for batch in truth.records(0, state.offsets[0], end):
            decoded = rows(batch)
            good.write(decoded.rows)
            if decoded.rejected is not None:
                bad.write(decoded.rejected)
        columns = pa.schema([field for field in rows.columns if field.name != TOMBSTONE])
        if layout.makes_date(columns.names):
            columns = columns.append(pa.field("dt", pa.date32()))
        return target.commit(Batch({0: end}, good.finish(), bad.finish(), columns), NOW_MS)
    finally:
        target.close()
