"""The bus from the outside: declare, send, handle, stop, start again."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import msgspec
import pytest

from eventbus import ConsumerRecord, EventBus, RecordMetadata, TopicPartition, consumer, producer
from eventbus.errors import (
    ConfigError,
    HandlerError,
    RecordTooLarge,
    SerializationError,
    UnknownTopicOrPartition,
)


class Order(msgspec.Struct):
    order_id: str
    amount: float


class Invoice(msgspec.Struct):
    order_id: str
    total: float


async def test_the_first_page(make_bus: Any) -> None:
    bus = make_bus()
    invoices: list[tuple[Invoice, ConsumerRecord]] = []

    @bus.producer("orders", key=lambda order: order.order_id)
    async def place_order(order_id: str, amount: float) -> Order:
        return Order(order_id, amount)

    @bus.consumer("orders", group="billing")
    @bus.producer("invoices", key=lambda invoice: invoice.order_id)
    async def bill(order: Order, record: ConsumerRecord) -> Invoice:
        assert record.key == order.order_id.encode()
        return Invoice(order.order_id, order.amount * 1.2)

    @bus.consumer("invoices", group="mail")
    async def mail(invoice: Invoice, record: ConsumerRecord) -> None:
        invoices.append((invoice, record))

    async with bus:
        placed = await place_order("o-1", 10.0)
        assert placed == Order("o-1", 10.0)
        metadata = await bus.send("orders", Order("o-2", 5.0), key="o-2", headers={"trace": b"1"})
        assert (metadata.topic, metadata.partition, metadata.offset) == ("orders", 0, 1)
        assert metadata.timestamp_ms > 1_600_000_000_000
        await bus.drain()
    assert [(i.order_id, i.total) for i, _ in invoices] == [("o-1", 12.0), ("o-2", 6.0)]
    assert [r.offset for _, r in invoices] == [0, 1]


async def test_a_restarted_bus_goes_on_where_it_stopped(file_url: str) -> None:
    seen: list[int] = []

    def service() -> EventBus:
        bus = EventBus(file_url)
        bus.topic("numbers", partitions=3)

        @bus.consumer("numbers", group="g")
        async def handle(number: int) -> None:
            seen.append(number)

        return bus

    async with service() as bus:
        for number in range(50):
            bus.send_nowait("numbers", number, key=str(number))
        await bus.drain()
    assert sorted(seen) == list(range(50))
    async with service() as bus:
        await bus.drain()
        assert len(seen) == 50
        await bus.send("numbers", 50, key="x")
        await bus.drain()
    assert seen[50:] == [50]


async def test_what_was_sent_without_waiting_is_stored_when_the_bus_is_left(file_url: str) -> None:
    async with EventBus(file_url) as bus:
        await bus.admin.create_topic("t")
        deliveries = [bus.send_nowait("t", b"%d" % n) for n in range(1000)]
    assert [d.result().offset for d in deliveries] == list(range(1000))
    async with EventBus(file_url) as bus:
        end = await bus.admin.list_offsets({TopicPartition("t", 0): -1})
        assert end[TopicPartition("t", 0)].offset == 1000


async def test_send_nowait_calls_back_once_with_metadata(make_bus: Any) -> None:
    calls: list[Any] = []
    async with make_bus() as bus:
        await bus.admin.create_topic("t", partitions=2)
        delivery = bus.send_nowait("t", b"v", partition=1, on_delivery=lambda m, e: calls.append((m, e)))
        metadata = await delivery
        await bus.flush()
    assert isinstance(metadata, RecordMetadata) and metadata.partition == 1 and metadata.offset == 0
    assert calls == [(metadata, None)]


async def test_headers_keys_and_nulls_arrive_as_they_were_sent(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        await bus.send("t", None, key="k")
        await bus.send("t", b"", key=b"", headers=[("a", b"1"), ("a", None), ("b", "x")], timestamp_ms=5)
        async with bus.new_consumer("t") as reader:
            tombstone, empty = await reader.poll(max_records=2)
    assert (tombstone.key, tombstone.value, tombstone.headers) == (b"k", None, ())
    assert (empty.key, empty.value, empty.timestamp_ms) == (b"", b"", 5)
    assert empty.headers == (("a", b"1"), ("a", None), ("b", b"x"))
    assert empty.header("a") is None and empty.header("b") == b"x"


async def test_two_groups_each_get_everything(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("t")
    seen: dict[str, list[str]] = {"a": [], "b": []}

    @bus.consumer("t", group="a")
    async def one(text: str) -> None:
        seen["a"].append(text)

    @bus.consumer("t", group="b")
    def two(text: str) -> None:
        seen["b"].append(text)

    async with bus:
        for n in range(10):
            await bus.send("t", str(n))
        await bus.drain()
    assert seen["a"] == seen["b"] == [str(n) for n in range(10)]


async def test_a_handler_in_two_buses_shares_the_partitions(file_url: str) -> None:
    seen: dict[str, set[int]] = {"one": set(), "two": set()}
    values: list[bytes] = []

    def service(name: str) -> EventBus:
        bus = EventBus(file_url)
        bus.topic("t", partitions=4)

        @bus.consumer("t", group="g")
        async def handle(record: ConsumerRecord) -> None:
            assert record.value is not None
            seen[name].add(record.partition)
            values.append(record.value)

        return bus

    async with service("one") as one, service("two") as two:
        await one.drain()  # both are in
        for n in range(40):
            await one.send("t", b"%d" % n, partition=n % 4)
        await one.drain()
        await two.drain()
    assert seen["one"] | seen["two"] == {0, 1, 2, 3} and len(seen["one"]) == len(seen["two"]) == 2
    assert sorted(values) == sorted(b"%d" % n for n in range(40))


async def test_a_handler_that_raises_stops_its_partition_and_commits_nothing_past_it(
    file_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    broken = True

    def service() -> EventBus:
        bus = EventBus(file_url)
        bus.topic("t", partitions=2)

        @bus.consumer("t", group="g")
        async def handle(text: str) -> None:
            if text == "bad" and broken:
                raise ValueError("no such customer")
            seen.append(text)

        return bus

    with caplog.at_level(logging.ERROR, logger="eventbus.runner"):
        async with service() as bus:
            for text in ("a", "b", "bad", "c"):
                await bus.send("t", text, partition=0)
            await bus.send("t", "other", partition=1)
            with pytest.raises(HandlerError, match=r"handler 'handle': t-0 offset 2.*ValueError: no such customer"):
                while True:
                    await bus.drain()
            while "other" not in seen:  # the other partition goes on
                await anyio.lowlevel.checkpoint()
            group = await bus.admin.group_offsets("g")
            assert group.get(TopicPartition("t", 0), (0,))[0] <= 2
        assert "t-0 offset 2" in caplog.text and "nothing from this record on is committed" in caplog.text
    assert set(seen) == {"a", "b", "other"}
    broken = False
    async with service() as bus:
        await bus.drain()
    assert seen.count("a") == 1 and sorted(seen) == ["a", "b", "bad", "c", "other"]


async def test_on_error_skip_goes_on_and_says_so(make_bus: Any, caplog: pytest.LogCaptureFixture) -> None:
    bus = make_bus()
    bus.topic("t")
    seen: list[int] = []

    @bus.consumer("t", on_error="skip")
    async def handle(number: int) -> None:
        if number % 2:
            raise ValueError("odd")
        seen.append(number)

    async with bus:
        for number in range(6):
            await bus.send("t", number)
        await bus.drain()
    assert seen == [0, 2, 4]
    assert caplog.text.count("skipped") == 3


async def test_on_error_crash_ends_the_bus_with_the_handlers_error(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("t")

    @bus.consumer("t", on_error="crash")
    async def handle(text: str) -> None:
        raise ValueError("boom")

    with pytest.raises(HandlerError, match="boom") as caught:
        async with bus:
            await bus.send("t", "x")
            await anyio.sleep_forever()
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("style", ["async", "record", "sync", "batch"])
async def test_an_undecodable_payload_names_topic_partition_offset_and_field(make_bus: Any, style: str) -> None:
    bus = make_bus()
    bus.topic("orders")
    if style == "async":

        @bus.consumer("orders")
        async def handle(order: Order) -> None: ...
    elif style == "record":

        @bus.consumer("orders", name="handle")
        async def handle_record(order: Order, record: ConsumerRecord) -> None: ...
    elif style == "sync":

        @bus.consumer("orders", name="handle")
        def handle_sync(order: Order) -> None: ...
    else:

        @bus.consumer("orders", name="handle", batch=True)
        async def handle_batch(orders: list[Order]) -> None: ...

    async with bus:
        await bus.send("orders", Order("1", 1.0))
        await bus.send("orders", {"order_id": "2", "amount": "many"})
        with pytest.raises(HandlerError, match=r"orders-0 offset 1.*Expected `float`, got `str` - at `\$\.amount`"):
            while True:
                await bus.drain()


async def test_a_null_needs_an_annotation_that_allows_it(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("t")
    seen: list[Any] = []

    @bus.consumer("t", group="a")
    async def nullable(order: Order | None) -> None:
        seen.append(order)

    @bus.consumer("t", group="b", on_error="skip")
    async def strict(order: Order) -> None:
        seen.append("never")

    async with bus:
        await bus.send("t", None, key="k")
        await bus.drain()
    assert seen == [None]


@pytest.mark.parametrize("mode", [True, 2])
async def test_batch_handlers_get_lists_and_publish_lists(make_bus: Any, mode: Any) -> None:
    bus = make_bus()
    bus.topic("in")
    sizes: list[int] = []

    @bus.consumer("in", batch=mode)
    @bus.producer("out")
    async def double(numbers: list[int]) -> Any:
        sizes.append(len(numbers))
        for number in numbers:
            yield number * 2

    async with bus:
        for number in range(5):
            bus.send_nowait("in", number)
        await bus.drain()
        async with bus.new_consumer("out", value=int) as reader:
            doubled = [record.value for record in await reader.poll(max_records=10)]
    assert doubled == [0, 2, 4, 6, 8]
    assert sum(sizes) == 5 and (mode is True or max(sizes) <= 2)


async def test_sync_handlers_publish_and_yield_too(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("in")

    @bus.consumer("in", group="one")
    @bus.producer("out")
    def twice(number: int) -> Any:
        yield number
        if number != 1:
            yield number

    async with bus:
        for number in range(3):
            await bus.send("in", number)
        await bus.drain()
        async with bus.new_consumer("out", value=int) as reader:
            assert [r.value for r in await reader.poll(max_records=10)] == [0, 0, 1, 2, 2]


async def test_a_handler_returning_none_publishes_nothing(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("in")

    @bus.consumer("in")
    @bus.producer("out")
    async def keep_even(number: int) -> int | None:
        return number if number % 2 == 0 else None

    async with bus:
        for number in range(5):
            await bus.send("in", number)
        await bus.drain()
        end = await bus.admin.list_offsets({TopicPartition("out", 0): -1})
        assert end[TopicPartition("out", 0)].offset == 3


async def test_start_latest_sees_only_what_comes(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("t")
    seen: list[str] = []

    @bus.consumer("t", start="latest")
    async def handle(text: str) -> None:
        seen.append(text)

    async with bus:
        await bus.send("t", "new")
        await bus.drain()
    assert seen == ["new"]


async def test_a_pattern_takes_up_topics_created_later(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("orders.eu")
    seen: set[str] = set()

    @bus.consumer(pattern=r"orders\..*")
    async def handle(text: str, record: ConsumerRecord) -> None:
        seen.add(record.topic)

    async with bus:
        await bus.admin.create_topic("orders.us")
        await bus.admin.create_topic("invoices")
        for topic in ("orders.eu", "orders.us", "invoices"):
            await bus.send(topic, "x")
        while seen != {"orders.eu", "orders.us"}:
            await bus.drain()
            await anyio.lowlevel.checkpoint()


async def test_partitions_added_while_running_are_read(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("t")
    seen: set[int] = set()

    @bus.consumer("t")
    async def handle(record: ConsumerRecord) -> None:
        seen.add(record.partition)

    async with bus:
        await bus.send("t", b"x", partition=0)
        await bus.admin.add_partitions("t", 3)
        await bus.send("t", b"x", partition=2)
        while seen != {0, 2}:
            await bus.drain()
            await anyio.lowlevel.checkpoint()


async def test_free_markers_are_included(make_bus: Any) -> None:
    seen: list[str] = []

    @consumer("t", group="g")
    async def handle(text: str) -> None:
        seen.append(text)

    @producer("t")
    async def say(text: str) -> str:
        return text

    with pytest.raises(ConfigError, match="belongs to no bus"):
        await say("x")
    bus = make_bus()
    bus.include(handle, say)
    async with bus:
        await say("hello")
        await bus.drain()
    assert seen == ["hello"]
    with pytest.raises(ConfigError, match="not marked"):
        bus.include(len)


async def test_handlers_can_be_called_directly(make_bus: Any) -> None:
    bus = make_bus()

    @bus.consumer("t")
    async def handle(text: str) -> str:
        return text.upper()

    assert await handle("a") == "A"


# bad input ------------------------------------------------------------------------------------------------------------


async def test_an_unknown_topic_suggests_the_nearest(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("orders")
        with pytest.raises(UnknownTopicOrPartition, match=r"eventbus topics create ordres.*did you mean 'orders'"):
            await bus.send("ordres", b"x")
        with pytest.raises(UnknownTopicOrPartition, match="there is no partition 7"):
            await bus.send("orders", b"x", partition=7)
        with pytest.raises(UnknownTopicOrPartition, match="orders"):
            async with bus.new_consumer("ordres"):
                pass


async def test_a_handler_of_a_topic_that_is_not_there_fails_at_start(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("orders")

    @bus.consumer("ordres")
    async def handle(text: str) -> None: ...

    with pytest.raises(UnknownTopicOrPartition, match=r"did you mean 'orders'.*bus\.topic\('ordres'\)"):
        async with bus:
            pass


async def test_auto_create_is_off_unless_asked(make_bus: Any) -> None:
    async with make_bus(auto_create_topics=True, num_partitions=3) as bus:
        await bus.send("fresh", b"x", partition=2)
        (topic,) = await bus.admin.describe_topics(["fresh"])
        assert len(topic.partitions) == 3


async def test_a_record_too_large_fails_alone(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        before = bus.send_nowait("t", b"before")
        with pytest.raises(RecordTooLarge, match="max_request_size"):
            await bus.send("t", b"x" * 2_000_000)
        with pytest.raises(RecordTooLarge):
            bus.send_nowait("t", b"x" * 2_000_000)
        await bus.admin.create_topic("small", configs={"max.message.bytes": 1000})
        large = bus.send_nowait("small", b"x" * 5000)
        small = bus.send_nowait("small", b"y")
        await bus.flush()
        assert (await before).offset == 0
        assert (await small).offset == 0
        with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
            await large


async def test_a_value_without_a_json_form_is_refused_before_it_is_sent(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        with pytest.raises(SerializationError, match=r"topic 't'.*object"):
            await bus.send("t", object())


async def test_a_bus_that_is_not_running_says_so(make_bus: Any) -> None:
    bus = make_bus()
    with pytest.raises(ConfigError, match="async with bus"):
        await bus.send("t", b"x")


def test_everything_works_under_trio_too() -> None:
    seen: list[int] = []

    async def main() -> None:
        bus = EventBus("memory://")
        bus.topic("numbers", partitions=2)

        @bus.consumer("numbers", group="g")
        @bus.producer("out")
        async def handle(number: int) -> int:
            await anyio.lowlevel.checkpoint()
            seen.append(number)
            return number

        async with bus:
            for number in range(20):
                await bus.send("numbers", number, key=str(number))
                bus.send_nowait("numbers", number)
            await bus.drain()

    anyio.run(main, backend="trio")
    assert sorted(seen) == sorted([*range(20), *range(20)])


def test_trio_on_files(tmp_path: Any) -> None:
    async def main() -> None:
        async with EventBus(f"file://{tmp_path}/log") as bus:
            await bus.admin.create_topic("t")
            async with anyio.create_task_group() as tasks:
                for n in range(20):
                    tasks.start_soon(bus.send, "t", b"%d" % n)
            async with bus.new_consumer("t") as reader:
                assert len(await reader.poll(max_records=100)) == 20

    anyio.run(main, backend="trio")


async def test_run_returns_when_stopped(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("t")

    @bus.consumer("t")
    async def handle(text: str) -> None:
        bus.stop()

    async with bus:
        await bus.send("t", "x")
        with anyio.fail_after(10):
            await bus.run()


async def test_declaring_after_the_start_is_refused(make_bus: Any) -> None:
    async with make_bus() as bus:
        with pytest.raises(ConfigError, match="before the bus starts"):

            @bus.consumer("t")
            async def handle(text: str) -> None: ...
