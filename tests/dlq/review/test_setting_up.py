"""What a policy needs of topics, assignors and acknowledgements, said before it matters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import anyio
import pytest

from dlq import DeadLetters, Reject, Retry
from eventbus import ConsumerRecord, EventBus
from eventbus.errors import ConfigError, HandlerError
from eventbus.testing import FakeClock, TestBus
from eventbus.types import TopicPartition


def handler_of(bus: TestBus, topics: list[str], **options: Any) -> list[bytes]:
    seen: list[bytes] = []

    @bus.consumer(topics, group="billing", **{"retry": Retry(delays=["1s"]), **options})
    async def bill(record: ConsumerRecord) -> None:
        seen.append(record.value)

    return seen


async def test_topics_of_different_widths_cannot_keep_keys_in_order() -> None:
    bus = TestBus(auto_create_topics=True)
    bus.topic("orders", partitions=2)
    bus.topic("refunds", partitions=3)
    handler_of(bus, ["orders", "refunds"])
    with pytest.raises(ConfigError, match=re.escape("'orders' has 2, 'refunds' has 3. Give each topic a separate")):
        await bus.start()


async def test_without_an_order_they_may_be_as_they_are() -> None:
    bus = TestBus(auto_create_topics=True)
    bus.topic("orders", partitions=2)
    bus.topic("refunds", partitions=3)
    seen = handler_of(bus, ["orders", "refunds"], retry=Retry(delays=["1s"], order="none"))
    async with bus:
        await bus.send("refunds", b"r", partition=2)
        await bus.log.drain()
    assert seen == [b"r"]


@pytest.mark.parametrize("strategy", ["sticky", ["cooperative-sticky", "range"]])
async def test_an_assignor_that_may_part_them_is_refused(strategy: Any) -> None:
    bus = TestBus(auto_create_topics=True)
    handler_of(bus, ["orders"], partition_assignment_strategy=strategy)
    with pytest.raises(ConfigError, match=r"Use partition_assignment_strategy='range', or Retry\(order='none'\)"):
        await bus.start()


async def test_a_partition_added_while_running_has_a_retry_partition_too() -> None:
    bus = TestBus(auto_create_topics=True)
    bus.topic("orders", partitions=1)
    seen = handler_of(bus, ["orders"])
    async with bus:
        await bus.admin.add_partitions("orders", 2)
        await bus.send("orders", b"new", partition=1)
        await bus.log.drain()
        [retry] = await bus.admin.describe_topics(["retry.billing"])
    assert seen == [b"new"]
    assert len(retry.partitions) == 2


async def test_what_was_acknowledged_is_not_tried_again() -> None:
    bus = TestBus(auto_create_topics=True)
    calls: list[int] = []

    @bus.consumer("orders", group="billing", ack="manual", retry=Retry(delays=["1s"]))
    async def bill(record: ConsumerRecord) -> None:
        calls.append(record.offset)
        record.ack()
        raise ValueError("behind the acknowledgement")

    async with bus:
        await bus.send("orders", b"one")
        await bus.log.drain()
        await bus.clock.advance(seconds=5)
        await bus.log.drain()
        assert calls == [0]
        assert (await bus.admin.group_offsets("billing"))[TopicPartition("orders", 0)].offset == 1


async def test_dead_letters_are_found_whatever_their_topic_is_called(tmp_path: Path) -> None:
    service = EventBus(f"file://{tmp_path}")
    service.topic("orders")

    @service.consumer("orders", group="billing", dead_letter="failed-orders")
    async def bill(record: ConsumerRecord) -> None:
        raise ValueError("no price")

    async with service:
        await service.send("orders", b"one")
        await service.drain()
    async with EventBus(f"file://{tmp_path}") as tool:
        assert [topic.name for topic in await DeadLetters(tool).topics()] == ["failed-orders"]


async def test_a_signal_that_nobody_hears_is_said() -> None:
    bus = TestBus(auto_create_topics=True)

    @bus.consumer("orders", group="billing")
    async def bill(record: ConsumerRecord) -> None:
        raise Reject("no such customer")

    async with bus:
        await bus.send("orders", b"one")
        with pytest.raises(
            HandlerError, match=r"no such customer; this signal has no effect: the handler has neither retry="
        ):
            await bus.log.drain()


async def test_a_record_alone_that_takes_too_long_takes_nobody_along() -> None:
    bus, calls = TestBus(auto_create_topics=True), list[list[bytes]]()

    @bus.consumer("orders", group="billing", batch=3, timeout=1, retry=Retry(immediate=0, delays=["1m"]))
    async def bill(orders: list[bytes]) -> None:
        calls.append(orders)
        if len(orders) > 1 and len(calls) == 1:
            raise ValueError("the batch fails, and comes one by one")
        if orders == [b"slow"]:
            await anyio.sleep_forever()

    async with bus:
        await bus.send_many("orders", [b"slow", b"two", b"three"])
        await bus.clock.advance(seconds=3)
        await bus.log.drain()
        assert calls == [[b"slow", b"two", b"three"], [b"slow"], [b"two", b"three"]]
        assert (await bus.admin.group_offsets("billing"))[TopicPartition("orders", 0)].offset == 3


async def test_services_that_name_one_retry_topic_do_not_get_each_others_records() -> None:
    """Nor does a service's mark finish an entry of another service, although all of them are in one partition."""
    url, clock, calls, names = "memory://one-retry-topic", FakeClock(), list[tuple[str, bytes]](), ("billing", "mailer")

    def service(name: str) -> EventBus:
        bus = EventBus(url, clock=clock)

        @bus.consumer(f"for-{name}", group=name, retry=Retry(immediate=0, delays=["5s"], topic="later"))
        async def handle(value: bytes) -> None:
            calls.append((name, value))
            if calls.count((name, value)) == 1:
                raise ValueError("not yet")

        return bus

    async with EventBus(url, clock=clock) as keeper:
        for name in names:
            await keeper.admin.create_topic(f"for-{name}", 1)
        async with service("billing") as billing, service("mailer") as mailer:
            for name in names:
                await keeper.send(f"for-{name}", name.encode())
            await billing.drain()
            await mailer.drain()
        await clock.advance(seconds=10)
        for name in names:  # in turn: the mailer reads the marks that billing wrote
            async with service(name) as bus:
                await bus.drain()
    assert calls == [(name, name.encode()) for name in (*names, *names)]


async def test_a_service_does_not_delete_what_waits_for_another_one_in_a_shared_retry_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eventbus.client.handling.failure_policy._RECORDS_PER_TRIM", 3)
    url, clock, handled = "memory://shortened-retry-topic", FakeClock(), list[bytes]()
    tried = set[bytes]()

    def service(name: str, delay: str) -> EventBus:
        bus = EventBus(url, clock=clock)

        @bus.consumer(f"for-{name}", group=name, retry=Retry(immediate=0, delays=[delay], jitter=False, topic="later"))
        async def handle(value: bytes) -> None:
            if value not in tried:
                tried.add(value)
                raise ValueError("not yet")
            if name == "mailer":
                handled.append(value)

        return bus

    async with EventBus(url, clock=clock) as keeper:
        for name in ("billing", "mailer"):
            await keeper.admin.create_topic(f"for-{name}", 1)
        async with service("mailer", "1h") as mailer, service("billing", "1s") as billing:
            await keeper.send("for-mailer", b"mail")
            await mailer.drain()
            for number in range(10):
                await keeper.send("for-billing", b"%d" % number)
            await billing.drain()
            await clock.advance(seconds=5)
            await billing.drain()
        await clock.jump(seconds=4_000)
        async with service("mailer", "1h") as mailer:
            await mailer.drain()
    assert handled == [b"mail"]


async def test_handlers_of_two_groups_in_one_bus_may_name_one_retry_topic() -> None:
    retry, calls = Retry(immediate=0, delays=["5s"], jitter=False, topic="later"), list[tuple[str, bytes]]()
    bus = TestBus(auto_create_topics=True)

    @bus.consumer("orders", group="billing", retry=retry)
    async def bill(value: bytes) -> None:
        calls.append(("bill", value))
        if len(calls) == 1:
            raise ValueError("not yet")

    @bus.consumer("mails", group="mailer", retry=retry)
    async def mail(value: bytes) -> None:
        calls.append(("mail", value))

    async with bus:
        await bus.send("orders", b"1")
        await bus.clock.advance(seconds=10)
    assert calls == [("bill", b"1"), ("bill", b"1")]
