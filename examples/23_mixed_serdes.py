"""Kafka's long as the key, Avro as the value; and several kinds of events in one topic, handled in their order.

Under the record's name, every kind has versions of its own.
"""

from __future__ import annotations

import anyio
import msgspec

from eventbus import ConsumerRecord, EventBus, log_url
from serdes import Avro


class Placed(msgspec.Struct):
    customer: str
    amount: float


class Paid(msgspec.Struct):
    amount: float


class Cancelled(msgspec.Struct):
    reason: str


avro = Avro("log", subject="topic_record_name")
bus = EventBus(log_url("memory://"), serde=avro)  # an int has a format of its own, the classes have none: they are Avro
bus.topic("orders", partitions=3, temporary=True)
open_orders: dict[int, float] = {}


@bus.consumer("orders", group="billing")
async def bill(event: Placed | Paid | Cancelled, record: ConsumerRecord) -> None:
    order = int.from_bytes(record.key or b"", "big", signed=True)
    match event:
        case Placed():
            open_orders[order] = event.amount
        case Paid():
            open_orders[order] -= event.amount
        case Cancelled():
            del open_orders[order]


async def main() -> None:
    async with bus:
        await bus.send("orders", Placed("Ada", 10.0), key=7)
        await bus.send("orders", Placed("Grace", 5.0), key=8)
        await bus.send("orders", Paid(4.0), key=7)  # of one order in one partition, so behind its first
        await bus.send("orders", Cancelled("too late"), key=8)
        await bus.drain()
        print(f"open: {open_orders}")

        async with bus.new_consumer("orders", key=int, value=Placed | Paid | Cancelled) as consumer:
            records = [record async for record in consumer.until_end()]
        for record in sorted(records, key=lambda record: (record.key, record.offset)):
            print(record.key, record.value)
        subjects = [avro.subject("orders", avro.of(kind).schema) for kind in (Placed, Paid, Cancelled)]
        print("subjects:", *subjects)
        assert open_orders == {7: 6.0}
        assert subjects == ["orders-Placed", "orders-Paid", "orders-Cancelled"]


if __name__ == "__main__":
    anyio.run(main)
