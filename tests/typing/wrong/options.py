"""Each line with a mark at its end is an error that a type checker must report; no other line is one."""

from datetime import timedelta

from eventbus import ConsumerRecord, EventBus, Router, consumer, producer
from eventbus.testing import TestBus
from spark_sinks import land, land_many

bus = EventBus("memory://")
EventBus("memory://", lingr_ms=3)  # wrong
EventBus("memory://", linger_ms=b"5ms", fsync="always")  # wrong
EventBus("memory://", security_protocol="SASL")  # wrong
EventBus("memory://", transactional_id="t")  # wrong
TestBus(num_partition=3)  # wrong
Router(prefix="shop.", topics=["orders"])  # wrong
Router(prefix="shop.", concurency=3)  # wrong
bus.topic("orders", partition=3)  # wrong


def handle(order: bytes) -> None: ...


bus.consumer("orders", gruop="y")(handle)  # wrong
bus.consumer("orders", concurrency="many")(handle)  # wrong
bus.consumer("orders", order="keys")(handle)  # wrong
bus.consumer("orders", isolation="read_committed")(handle)  # wrong
bus.consumer("orders", delivery="exactly-once")(handle)  # wrong
bus.consumer("orders", timeout=[5])(handle)  # wrong
bus.consumer("orders", start="oldest")(handle)  # wrong
bus.consumer("orders", retry="5s")(handle)  # wrong
bus.consumer("orders", batch=True, timeout=timedelta(seconds=3), filter=lambda record: record.kye)(handle)  # wrong
consumer("orders", on_error="ignore")(handle)  # wrong
bus.every("* * * * *", order="key")(handle)  # wrong


def place(order_id: str) -> bytes:
    return order_id.encode()


bus.producer("orders", lingerms=4)(place)  # wrong
producer("orders", compression_type="zip")(place)  # wrong
bus.producer("orders", transactional_id="t")(place)  # wrong


@bus.producer("orders")
async def publish(order_id: str) -> bytes:
    return order_id.encode()


async def use() -> None:
    await publish(5)  # wrong
    print((await publish("o-1")).total)  # wrong
    bus.new_producer(acks=2)  # wrong
    bus.new_producer(group="g")  # wrong
    bus.new_consumer("orders", group="g", vlaue=str)  # wrong
    bus.new_consumer("orders", group="g", isolation_level="committed")  # wrong
    async with bus.new_consumer("orders", value=str) as texts:
        async for record in texts:
            (record.value or "").decode()  # wrong
    (await bus.request("prices", 1, returns=float)).upper()  # wrong
    await bus.request("prices", 1, retruns=float)  # wrong


land("./data", "orders", "./w", evry="5s")  # wrong
land("./data", "orders", "./w", value="avor")  # wrong
print(land_many("./data", ["orders"], "./w").rows)  # wrong


def block(record: ConsumerRecord[str, int]) -> None:
    record.value.upper()  # wrong
    with bus.blocking() as b:
        b.new_producer(lingr_ms=5)  # wrong
        b.new_consumer("orders", group="g", max_poll_interval="5s")  # wrong
        b.request("prices", 1, returns=float).upper()  # wrong
        b.request("prices", 1, retruns=float)  # wrong
        b.send("orders", 1, kye=2)  # wrong
        b.send("orders", 1, dealy="3s")  # wrong
        b.send_many("orders", [1], partition="2")  # wrong
