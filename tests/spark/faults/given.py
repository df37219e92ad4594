"""A topic with everything that makes offsets and rows part, and what a table of it must hold.

Partitions, transactions that were committed or aborted, offsets that compaction emptied, two versions of a schema in
turn, damaged values among them, and days that end in the middle.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import fastavro
import msgspec

from eventbus import ConsumerRecord, EventBus
from eventbus.broker import Broker, BrokerConfig, TopicSpec
from eventbus.errors import KafkaError
from eventbus.log.storage import FileStorage
from eventbus.types import TopicPartition
from serdes import Avro
from serdes.avro.marks import AvroType
from serdes.registry import schema_client

TOPIC = "orders"
PARTITIONS = 3
MIDNIGHT = datetime(2024, 3, 1, tzinfo=UTC)
NOW_MS = int(MIDNIGHT.timestamp() * 1000)
KEYS = 50
VALUES = ("number", "carrier", "amount", "placed", "coupon")
"""The columns that are fields of values; the last one came with the second schema."""

Place = tuple[int, int]
"""Partition and offset."""


class Order(msgspec.Struct):
    number: int
    carrier: str
    amount: float | None
    placed: datetime


class NewOrder(Order):
    __avro__ = AvroType(name="Order")
    coupon: str | None = None


class Expected(NamedTuple):
    """Of each committed record: its row, or the value that no table can take."""

    rows: dict[Place, dict[str, Any]]
    rejected: dict[Place, bytes]


class Shop:
    """Writes the topic. Whatever `sell` was called for is there when it returns."""

    def __init__(
        self, directory: Path, seed: int = 1, *, partitions: int = PARTITIONS, found: bool = True, **configs: Any
    ) -> None:
        self.path = str(directory)
        self._chance = Random(seed)
        self._partitions = partitions
        self._number = 0
        self._configs = configs
        if found:
            directory.mkdir()
            self.create()

    def create(self) -> None:
        """The topic, if it was deleted."""

        def work(broker: Broker) -> None:
            configs = {"retention.ms": -1, **self._configs}  # the records are of 2024
            made = broker.create_topics([TopicSpec(TOPIC, self._partitions, configs=configs)], NOW_MS)[TOPIC]
            if isinstance(made, KafkaError):
                raise made

        self.with_broker(work)

    def sell(self, orders: int, damaged: float = 0.01, *, transactions: bool = True) -> None:
        """About so many records, in transactions or not, some of them given up; ``damaged``: the share of those."""
        asyncio.run(self._sell(orders, damaged, transactions))

    def give_up(self, orders: int) -> None:
        """A transaction of so many records in one partition, none of which counts."""

        async def work() -> None:
            async with EventBus(f"file://{self.path}", serde=Avro("log")) as bus:
                try:
                    async with bus.transaction("shop") as transaction:
                        for _ in range(orders):
                            await transaction.send(TOPIC, self._order(), key=b"k", partition=0)
                        raise _GivenUp
                except _GivenUp:
                    pass

        asyncio.run(work())

    def add_partition(self) -> None:
        self._partitions += 1
        self.with_broker(lambda broker: broker.add_partitions(TOPIC, self._partitions, NOW_MS))

    async def _sell(self, orders: int, damaged: float, transactions: bool) -> None:
        chance, end = self._chance, self._number + orders
        async with EventBus(f"file://{self.path}", serde=Avro("log")) as bus:
            while self._number < end:
                count = min(chance.randint(1, 40), end - self._number)
                if not transactions or chance.random() < 0.5:
                    await self._some(bus, count, damaged)
                    continue
                try:
                    async with bus.transaction("shop") as transaction:
                        await self._some(transaction, count, damaged)
                        if chance.random() < 0.3:
                            raise _GivenUp
                except _GivenUp:
                    pass

    async def _some(self, to: Any, count: int, damaged: float) -> None:
        chance, partition = self._chance, self._chance.randrange(self._partitions)
        for _ in range(count):
            self._number += 1
            if chance.random() < 0.1:
                partition = chance.randrange(self._partitions)
            value = self._damaged() if chance.random() < damaged else self._order()
            moment = MIDNIGHT + timedelta(milliseconds=self._number - 300)
            await to.send(
                TOPIC,
                value,
                key=b"k%d" % chance.randrange(KEYS),
                partition=partition,
                timestamp_ms=int(moment.timestamp() * 1000),
            )

    def _order(self) -> Order:
        chance, number = self._chance, self._number
        placed = MIDNIGHT + timedelta(milliseconds=number - 300)
        fields = number, chance.choice(("UA", "DL", "Ö")), chance.choice((None, number / 4)), placed
        return Order(*fields) if number % 2 else NewOrder(*fields, coupon=chance.choice((None, "SPRING")))

    def _damaged(self) -> bytes:
        return self._chance.choice((b"", b"no Avro", b"\0\0", b"\0\0\0\0\1\x02", b"\0\0\0\0\2" + b"\xff" * 12))

    def compact(self) -> None:
        """Keep the newest of each key in all but the newest segments, once: a bus compacts too when it closes."""

        def work(broker: Broker) -> None:
            broker.clean_now(NOW_MS + 10**10)
            broker.alter_configs(TOPIC, {"cleanup.policy": "delete"}, (), NOW_MS)

        self.with_broker(work)

    def with_broker(self, work: Any) -> None:
        """Something that only the log's owner may do."""
        config = BrokerConfig(fsync="os")
        broker = Broker.open(FileStorage(self.path), config, now_ms=NOW_MS, new_id=lambda: os.urandom(16))
        try:
            work(broker)
            broker.publish_checkpoints(NOW_MS)
        finally:
            broker.close(NOW_MS)

    def delete_before(self, offset: int, partition: int = 0) -> None:
        """As retention does."""
        where = TopicPartition(TOPIC, partition)
        self.with_broker(lambda broker: broker.delete_records(where, offset, NOW_MS))

    def expected(self) -> Expected:
        """What a table that is caught up holds: of the log as a consumer of committed records sees it."""
        return expected(asyncio.run(_dump(self.path)), _Schemas(self.path))


class _GivenUp(Exception):
    pass


async def _dump(path: str) -> list[ConsumerRecord]:
    async with EventBus(f"file://{path}") as bus, bus.new_consumer(TOPIC) as consumer:
        return [record async for record in consumer.until_end()]


class _Schemas:
    """What each schema id stands for, as another implementation of Avro understands it."""

    def __init__(self, path: str) -> None:
        self._client = schema_client(Path(path).absolute().as_uri())
        self._parsed: dict[int, Any] = {}

    def decoded(self, value: bytes) -> dict[str, Any] | None:
        """The fields; None where it is no value of the topic."""
        if len(value) < 5 or value[0]:
            return None
        schema, body = self._schema(int.from_bytes(value[1:5], "big")), io.BytesIO(value[5:])
        try:
            fields = fastavro.schemaless_reader(body, schema, None)
        except Exception:  # fastavro has none of its own
            return None
        assert isinstance(fields, dict)
        return fields if body.tell() == len(value) - 5 else None

    def _schema(self, schema_id: int) -> Any:
        if schema_id not in self._parsed:
            text = self._client.by_id(schema_id).text.schema
            self._parsed[schema_id] = fastavro.parse_schema(msgspec.json.decode(text))
        return self._parsed[schema_id]


def expected(records: list[ConsumerRecord], schemas: _Schemas) -> Expected:
    found = Expected({}, {})
    for record, row in _rows(records, schemas):
        place = record.partition, record.offset
        assert place not in found.rows.keys() | found.rejected.keys()
        if row is None:
            found.rejected[place] = record.value
        else:
            found.rows[place] = row
    return found


def _rows(records: list[ConsumerRecord], schemas: _Schemas) -> Iterator[tuple[ConsumerRecord, dict[str, Any] | None]]:
    for record in records:
        fields = schemas.decoded(record.value)
        if fields is not None:
            happened = datetime.fromtimestamp(record.timestamp_ms / 1000, UTC)
            fields = {name: fields.get(name) for name in VALUES}
            fields |= {"_topic": TOPIC, "_timestamp": happened, "_key": record.key}
        yield record, fields
