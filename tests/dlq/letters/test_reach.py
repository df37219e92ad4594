"""Which groups get a letter that is redriven or edited, and as what."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from dlq import DeadLetters, Retry, Selection
from eventbus import ConsumerRecord, EventBus, TopicPartition
from eventbus.delays.retry_records import ATTEMPT, DUE, OWNER, ROOT
from eventbus.errors import ConfigError
from eventbus.testing import FakeClock, TestBus
from tests.dlq.letters.making import TOPIC, letter, put, topics
from tests.support import records_of

_NUMBERS = itertools.count()
ALONE = Retry(immediate=0, delays=None)
ONCE_LATER = Retry(immediate=0, delays=["1s"], jitter=False)
CONNECT = (("__connect.errors.topic", b"orders"), ("__connect.errors.partition", b"0"),
           ("__connect.errors.offset", b"0"), ("__connect.errors.connector.name", b"sink"))  # fmt: skip


class Shop:
    """Runs of a service that bills and ships orders, on one log. Billing fails until ``is_mended``."""

    def __init__(self) -> None:
        self.url = f"memory://reach-{next(_NUMBERS)}"
        self.clock = FakeClock()
        self.is_mended = False
        self.billed: list[str] = []
        self.records: list[ConsumerRecord] = []
        self.shipped: list[str] = []

    def bus(self, *, ships: bool = True, **options: Any) -> EventBus:
        bus = EventBus(self.url, clock=self.clock)
        bus.topic("orders")
        options.setdefault("group", "billing")

        @bus.consumer("orders", **options)
        async def bill(order: str, record: ConsumerRecord) -> None:
            if not self.is_mended:
                raise ValueError("no price")
            self.billed.append(order)
            self.records.append(record)

        if ships:

            @bus.consumer("orders", group="shipping")
            async def ship(order: str) -> None:
                self.shipped.append(order)

        return bus

    def keeper(self) -> EventBus:
        """A bus that keeps the log while no service runs."""
        return EventBus(self.url, clock=self.clock)

    async def fail(self, bus: EventBus, *orders: str, key: str | None = None) -> None:
        """Have orders become dead letters, then fix what made them fail."""
        self.is_mended = False
        for order in orders:
            await bus.send("orders", order, key=key or order)
        await bus.drain()
        self.is_mended = True


async def test_a_redriven_letter_and_an_edited_one_reach_only_the_group_that_failed() -> None:
    shop = Shop()
    async with shop.bus(retry=ALONE) as bus:
        await shop.fail(bus, "o-1", "o-2")
        letters = DeadLetters(bus)
        done = await letters.redrive(Selection(ids={"dlq.billing/0/0"}))
        assert (done.topics, done.groups, done.idle_groups) == ({"retry.billing": 1}, {"billing": 1}, ())
        sent = await letters.edit("dlq.billing/0/1", value=b"o-two")
        assert sent.topic == "retry.billing"
        await bus.drain()
        assert (shop.billed, shop.shipped) == (["o-1", "o-two"], ["o-1", "o-2"])
        assert (await letters.history("dlq.billing/0/0"))[0].to == "retry.billing"


async def test_what_is_sent_is_the_entry_that_the_handler_would_write() -> None:
    shop = Shop()
    async with shop.bus(retry=ONCE_LATER) as bus:
        await bus.send("orders", b"o-1", key=b"k", headers={"trace": "1"}, timestamp_ms=shop.clock() - 5_000)
        await bus.drain()
        await shop.clock.advance(seconds=2)
        await bus.drain()
        shop.is_mended = True
        await DeadLetters(bus).redrive(Selection())
        await bus.drain()
        (source,) = await records_of(bus, "orders")
        of_handler, entry = [one for one in await records_of(bus, "retry.billing") if one.header(ROOT)]
        assert (entry.key, entry.value, entry.header(ROOT)) == (b"k", b"o-1", of_handler.header(ROOT))
        assert (entry.header(ATTEMPT), entry.header(DUE), entry.header(OWNER)) == (b"0", b"0", b"billing")
        (handled,) = shop.records
        assert handled.headers == entry.headers
        assert msgspec.structs.replace(handled, headers=source.headers) == source  # also the offset, and the time
        assert handled.header("trace") == b"1"


async def test_the_other_groups_of_a_topic_are_named_before_they_get_a_letter() -> None:
    shop = Shop()
    async with shop.bus(retry=ALONE) as bus:
        await shop.fail(bus, "o-1")
        await topics(bus, "elsewhere")
        letters = DeadLetters(bus)
        for options in ({"whole_topic": True}, {"to": "orders"}):
            plan = await letters.redrive(Selection(), dry_run=True, **options)
            assert (plan.topics, plan.groups) == ({"orders": 1}, {})
            assert plan.other_groups == {"orders": ("shipping",)}
        assert (await letters.redrive(Selection(), dry_run=True, to="elsewhere")).other_groups == {}
        await letters.redrive(Selection(), whole_topic=True)
        await bus.drain()
        assert (shop.billed, shop.shipped) == (["o-1"], ["o-1", "o-1"])
        *_, record = await records_of(bus, "orders")
        assert record.header("eb-redrive-group") == b"billing"
        with pytest.raises(ConfigError, match="exclude each other"):
            await letters.redrive(Selection(), whole_topic=True, to="orders")


# groups that run, and groups that do not -----------------------------------------------------------------------------


@pytest.mark.parametrize("after", [{"retry": ALONE}, {"retry": ONCE_LATER}, {}], ids=["alone", "later", "no retry="])
async def test_a_letter_waits_for_a_group_that_does_not_run_whatever_its_next_release_says(
    after: dict[str, Any],
) -> None:
    shop = Shop()
    async with shop.keeper() as keeper:
        async with shop.bus(retry=ALONE) as bus:
            await shop.fail(bus, "o-1")
        done = await DeadLetters(keeper).redrive(Selection())
        assert (done.redriven, done.idle_groups) == (1, ("billing",))
        [waiting] = await DeadLetters(keeper).waiting()
        assert (waiting.group, waiting.count, waiting.has_members) == ("billing", 1, False)
        async with shop.bus(**after) as bus:
            await bus.drain()
    assert (shop.billed, shop.shipped) == (["o-1"], ["o-1"])


async def test_a_letter_reaches_a_handler_that_runs_without_its_retry_option_or_its_topic() -> None:
    shop = Shop()
    async with shop.keeper() as keeper:
        async with shop.bus(retry=ONCE_LATER) as bus:
            await shop.fail(bus, "o-1")
            await shop.clock.advance(seconds=2)
            shop.is_mended = False
            await bus.drain()
            shop.is_mended = True
        await shop.clock.advance(seconds=2)
        bus = EventBus(shop.url, clock=shop.clock)
        bus.topic("parcels")

        @bus.consumer("parcels", group="billing")
        async def bill(order: str) -> None:
            shop.billed.append(order)

        async with bus:
            done = await DeadLetters(keeper).redrive(Selection())
            await bus.drain()
        assert shop.billed == ["o-1"], done


async def test_a_group_without_a_retry_topic_gets_nothing_and_the_reason_is_named() -> None:
    shop = Shop()
    async with shop.keeper() as keeper:
        async with shop.bus(retry=ALONE) as bus:
            await shop.fail(bus, "o-1")
        letters = DeadLetters(keeper)
        await keeper.admin.delete_topics("retry.billing")
        assert (await letters.redrive(Selection())).left_out == {"no-retry-topic": 1}
        with pytest.raises(ConfigError, match=r"has no retry topic\. Start its handler once"):
            await letters.edit("dlq.billing/0/0", value=b"o-2")
        async with shop.bus(retry=ALONE) as bus:  # which creates it
            assert (await letters.redrive(Selection())).redriven == 1
            await bus.drain()
    assert shop.billed == ["o-1"]


async def test_handlers_that_share_a_group_do_not_get_each_others_letters() -> None:
    """Only one handler has a retry topic. Letters of the other handler would call the wrong function there."""
    shop, refunds = Shop(), list[str]()

    def two_handlers() -> EventBus:
        bus = shop.bus(retry=ONCE_LATER, ships=False)
        bus.topic("refunds")

        @bus.consumer("refunds", group="billing", dead_letter=True)
        async def refund(order: str) -> None:
            refunds.append(order)
            raise ValueError("never")

        return bus

    async with shop.keeper() as keeper:
        shop.is_mended = True
        async with two_handlers() as bus:
            await bus.send("refunds", "r-1")
            await bus.drain()
            assert (await DeadLetters(bus).redrive(Selection())).left_out == {"no-retry-topic": 1}
        done = await DeadLetters(keeper).redrive(Selection())
        assert done.left_out == {"no-retry-topic": 1}  # nothing shows who would read the other topic
    assert (shop.billed, refunds) == ([], ["r-1"])


async def test_a_handler_whose_pattern_takes_in_its_own_retry_topic_has_none() -> None:
    shop = Shop()
    async with shop.keeper() as keeper:
        await keeper.admin.create_topic("orders")
        bus = EventBus(shop.url, clock=shop.clock)

        @bus.consumer(pattern="orders|retry[.].*", group="billing", dead_letter=True)
        async def bill(order: str) -> None: ...

        async with bus:
            assert "retry.billing" not in await bus.admin.list_topics()


async def test_a_stopped_group_with_two_retry_topics_is_not_guessed_about() -> None:
    shop, moved = Shop(), Retry(immediate=0, delays=["1s"], topic="later")
    async with shop.keeper() as keeper:
        async with shop.bus(retry=ALONE) as bus:
            await shop.fail(bus, "o-1")
        letters = DeadLetters(keeper)
        async with shop.bus(retry=moved):
            pass
        assert (await letters.redrive(Selection(), dry_run=True)).left_out == {"several-retry-topics": 1}
        async with shop.bus(retry=moved) as bus:
            assert (await letters.redrive(Selection())).topics == {"later": 1}
            await bus.drain()
    assert shop.billed == ["o-1"]


async def test_letters_of_other_systems_have_no_group_that_reads_a_retry_topic(bus: TestBus) -> None:
    async with bus:
        await topics(bus, "orders-dlq", "orders", "retry.connect-sink")
        await bus.send("orders-dlq", b"v", headers=CONNECT)
        assert (await DeadLetters(bus).redrive(Selection())).left_out == {"not-a-group": 1}
        assert (await DeadLetters(bus).redrive(Selection(), whole_topic=True)).redriven == 1


async def test_a_record_that_is_no_entry_is_not_sent_to_a_retry_topic() -> None:
    shop = Shop()
    async with shop.bus(retry=ONCE_LATER) as bus:
        await put(bus, letter(0, source=TopicPartition("retry.billing", 0)))
        letters, allow = DeadLetters(bus), ["retry.billing"]
        with pytest.raises(ConfigError, match="is a retry topic, whose handler skips records that are not entries"):
            await letters.redrive(Selection(), to="retry.billing", allow=allow)
        assert (await letters.redrive(Selection(), whole_topic=True, allow=allow)).left_out == {"retries": 1}


# order, and content --------------------------------------------------------------------------------------------------


async def test_redriven_letters_of_a_key_are_handled_in_their_order_and_before_later_records() -> None:
    shop = Shop()
    async with shop.keeper() as keeper:
        async with shop.bus(retry=ALONE) as bus:
            await shop.fail(bus, "ada-0", "ada-1", "ada-2", key="ada")
        letters = DeadLetters(keeper)
        for number in (2, 0, 1):
            assert (await letters.redrive(Selection(ids={f"dlq.billing/0/{number}"}))).redriven == 1
        await keeper.send("orders", "ada-3", key="ada")
        async with shop.bus(retry=ALONE) as bus:
            await bus.drain()
    assert shop.billed == ["ada-0", "ada-1", "ada-2", "ada-3"]


async def test_two_edits_of_a_letter_are_two_records_although_the_first_still_waits() -> None:
    """If both had the place of the record that failed, the second would count as a copy and be dropped."""
    shop = Shop()
    async with shop.keeper() as keeper:
        async with shop.bus(retry=ALONE) as bus:
            await shop.fail(bus, "bad", key="k")
        letters = DeadLetters(keeper)
        await letters.edit("dlq.billing/0/0", value=b"typo")
        await letters.reopen(Selection(status={"edited"}))
        await shop.clock.advance(ms=1)
        await letters.edit("dlq.billing/0/0", value=b"good")
        async with shop.bus(retry=ALONE) as bus:
            await bus.drain()
    assert shop.billed == ["typo", "good"]


async def test_a_redrive_after_the_topic_was_widened_goes_to_the_retry_partition_of_its_source(bus: TestBus) -> None:
    async with bus:
        await topics(bus, TOPIC)
        await topics(bus, "orders", "retry.billing", partitions=2)
        await bus.admin.add_partitions("orders", 8)
        await put(bus, *[letter(n, key=b"k", source=TopicPartition("orders", n)) for n in (0, 1, 5)])
        await DeadLetters(bus).redrive(Selection())
        assert [(one.partition, one.key) for one in await records_of(bus, "retry.billing")] == [
            (0, b"k"), (1, b"k"), (1, b"k"),
        ]  # fmt: skip


# a topic that takes the record, but not the headers of a redrive -----------------------------------------------------


@pytest.mark.parametrize(("value_bytes", "kept"), [(19_840, ["eb-redrive-at", "eb-redrive-hops"]), (19_900, [])])
async def test_a_record_that_fits_its_topic_is_sent_without_headers_that_do_not(
    value_bytes: int, kept: list[str]
) -> None:
    shop = Shop()
    async with shop.keeper() as keeper:
        await keeper.admin.create_topic("orders", 1, configs={"max.message.bytes": 20_000})
        async with shop.bus(retry=ALONE) as bus:
            await shop.fail(bus, "v" * value_bytes, key="k")
            letters = DeadLetters(bus)
            assert (await letters.redrive(Selection(), whole_topic=True)).left_out == {}
            await letters.reopen(Selection(status={"redriven"}))
            assert (await letters.edit("dlq.billing/0/0", value=b"w" * value_bytes, whole_topic=True)).offset > 0
            for record in (await records_of(bus, "orders"))[1:]:
                assert sorted(name for name, _ in record.headers) == kept
            assert (await letters.redrive(Selection(status={"edited"}))).topics == {"retry.billing": 1}


async def test_the_whole_topic_gets_the_original_time_unless_retention_would_soon_delete_the_record() -> None:
    shop = Shop()
    async with shop.bus(retry=ALONE) as bus:
        await bus.admin.alter_configs("orders", {"retention.ms": "10000"})
        times = [shop.clock() - 1_000, shop.clock() - 9_000]
        for time_ms in times:
            await bus.send("orders", b"v", timestamp_ms=time_ms)
        await bus.drain()
        shop.is_mended = True
        await DeadLetters(bus, clock=shop.clock).redrive(Selection(), whole_topic=True)
        found = await records_of(bus, "orders")
        assert [record.timestamp_ms for record in found] == [*times, times[0], shop.clock()]
