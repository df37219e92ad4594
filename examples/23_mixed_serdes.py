"""Kafka's long as the key and Avro as the value; several event types in one topic, handled in order.

Each event type is a subject of its record's name, with its own versions.
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
bus = EventBus(log_url("memory://"), serde=avro)  # int is Kafka's long; the classes are Avro
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
        await bus.send("orders", Paid(4.0), key=7)  # the events of an order are in one partition, in order
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
