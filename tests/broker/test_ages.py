"""The age of stored data is measured by the wall clock, whatever it did before, and work that is due is done."""

from __future__ import annotations

import logging

import pytest

from eventbus.broker import Broker
from eventbus.errors import InvalidTimestamp
from eventbus.records import BatchBuilder
from eventbus.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from tests.broker.conftest import START_MS, World

ORDERS = TopicPartition("orders", 0)
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
YEARS_MS = 3_650 * DAY_MS
GROUP = GroupMetadata("readers")


class TwoClocks:
    """A broker whose monotonic clock (``world.now_ms``) passes, and whose wall clock can also be set."""

    def __init__(self, world: World, wall_ahead_ms: int = 0) -> None:
        self.world = world
        self.ahead_ms = wall_ahead_ms
        self.open()

    def open(self) -> None:
        world = self.world
        world.broker = Broker.open(
            world.storage, world.config, now_ms=world.now_ms, new_id=world.new_id, wall_now_ms=self.wall_ms
        )

    @property
    def wall_ms(self) -> int:
        return self.world.now_ms + self.ahead_ms

    def restart(self) -> None:
        self.world.broker.close(self.world.now_ms)
        self.open()

    def send(self, count: int = 1) -> None:
        for _ in range(count):
            self.world.broker.produce(ORDERS, self.world.batch(b"v", timestamp_ms=self.wall_ms), self.wall_ms)
            self.world.flush()

    def set_wall(self, ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms
        self.world.broker.tick(self.world.now_ms, self.wall_ms)

    def passes(self, ms: int) -> None:
        self.world.now_ms += ms
        self.world.broker.tick(self.world.now_ms, self.wall_ms)

    @property
    def count(self) -> int:
        return len(self.world.read(ORDERS, self.world.broker.log_start_offset(ORDERS)))


@pytest.mark.parametrize("ahead_ms", [2 * HOUR_MS, YEARS_MS, -2 * HOUR_MS, -YEARS_MS])
def test_fresh_records_stay_and_old_ones_go_after_the_clock_was_wrong_at_opening(disk: World, ahead_ms: int) -> None:
    """A monotonic clock that starts at the opening would keep its error for as long as the process runs."""
    clocks = TwoClocks(disk, ahead_ms)
    disk.create("orders", retention_ms=HOUR_MS, segment_ms=600_000)
    clocks.set_wall(0)
    clocks.send(5)
    clocks.passes(30_001)
    clocks.passes(HOUR_MS - 40_000)
    assert clocks.count == 5
    clocks.passes(300_001)
    assert clocks.count == 0


@pytest.mark.parametrize("ahead_ms", [2 * HOUR_MS, YEARS_MS])
def test_records_stamped_while_the_clock_was_ahead_go_after_their_retention(disk: World, ahead_ms: int) -> None:
    clocks = TwoClocks(disk, ahead_ms)
    disk.create("orders", retention_ms=HOUR_MS)
    clocks.send(3)
    clocks.set_wall(0)
    clocks.send(1)  # into the segment of the three, which must not be deleted before this record is old enough
    clocks.passes(300_001)
    clocks.send(1)
    clocks.passes(HOUR_MS - 400_000)
    assert clocks.count == 5
    clocks.passes(2 * HOUR_MS + 400_000)
    assert clocks.count == 0


def test_records_stamped_while_the_clock_was_ahead_go_in_processes_of_five_seconds(disk: World) -> None:
    clocks = TwoClocks(disk, YEARS_MS)
    disk.create("orders", retention_ms=HOUR_MS, segment_ms=HOUR_MS)
    clocks.send(3)
    clocks.ahead_ms = 0
    counts: list[int] = []
    for _ in range(5):
        clocks.restart()
        clocks.send(1)
        clocks.passes(5_000)
        disk.broker.clean_up(disk.now_ms)
        counts.append(clocks.count)
        disk.now_ms += 2 * DAY_MS
    assert counts == [4, 5, 1, 1, 1], "gone once what was sent after them is sealed and past its retention"


def test_records_go_when_the_machine_has_slept(disk: World) -> None:
    clocks = TwoClocks(disk)
    disk.create("orders", retention_ms=DAY_MS)
    clocks.send(1)
    clocks.set_wall(2 * DAY_MS)
    clocks.passes(30_001)
    assert clocks.count == 0


def test_committed_offsets_and_transactional_ids_are_aged_by_the_wall_clock(disk: World) -> None:
    disk.config = disk.config.__class__(offsets_retention_ms=DAY_MS, transactional_id_expiration_ms=DAY_MS)
    clocks = TwoClocks(disk, YEARS_MS)
    disk.create("orders")
    clocks.set_wall(0)
    disk.broker.groups.commit_offsets(GROUP, {ORDERS: OffsetAndMetadata(0)}, disk.now_ms)
    disk.broker.transactions.init_producer_id("tx", 60_000, disk.now_ms)
    disk.flush()
    for _ in range(3):  # restarts in which the monotonic clock means something else each time
        clocks.restart()
        disk.now_ms += 1_000_000
        clocks.ahead_ms -= 1_000_000
    disk.broker.clean_up(disk.now_ms)
    assert disk.broker.groups.is_known("readers") and disk.broker.transactions.list()
    clocks.set_wall(clocks.ahead_ms + DAY_MS + 1_000_000)
    disk.broker.clean_up(disk.now_ms)
    assert not disk.broker.groups.is_known("readers") and not disk.broker.transactions.list()


def test_offsets_and_ids_stored_while_the_clock_was_ahead_expire_counted_from_its_correction(disk: World) -> None:
    disk.config = disk.config.__class__(offsets_retention_ms=DAY_MS, transactional_id_expiration_ms=DAY_MS)
    clocks = TwoClocks(disk, YEARS_MS)
    disk.create("orders")
    disk.broker.groups.commit_offsets(GROUP, {ORDERS: OffsetAndMetadata(0)}, disk.now_ms)
    disk.broker.transactions.init_producer_id("tx", 60_000, disk.now_ms)
    disk.flush()
    disk.now_ms += 2 * DAY_MS
    clocks.set_wall(0)
    clocks.passes(DAY_MS - 1_000)
    disk.broker.clean_up(disk.now_ms)
    assert disk.broker.groups.is_known("readers") and disk.broker.transactions.list()
    clocks.passes(2_000)
    disk.broker.clean_up(disk.now_ms)
    assert not disk.broker.groups.is_known("readers") and not disk.broker.transactions.list()


def idempotent(timestamp_ms: int) -> bytearray:
    builder = BatchBuilder()
    builder.append(b"k", b"row-1", (), timestamp_ms)
    return builder.build(producer_id=1000, producer_epoch=0, base_sequence=0)


@pytest.mark.parametrize("clean", [True, False])
def test_a_producer_of_old_records_is_known_after_a_restart_until_it_was_idle_for_long(
    disk: World, clean: bool
) -> None:
    """Idle time counts by the wall clock, not by the timestamps of the records."""
    disk.open()
    disk.create("orders", retention_ms="-1")
    then = disk.now_ms - 30 * DAY_MS
    disk.broker.produce(ORDERS, idempotent(then), disk.now_ms)
    disk.flush()
    disk.restart(clean=clean)
    disk.now_ms += 30_001
    disk.broker.tick(disk.now_ms)
    assert disk.broker.produce(ORDERS, idempotent(then), disk.now_ms).duplicate
    disk.now_ms += DAY_MS + 1
    disk.broker.tick(disk.now_ms)
    assert not disk.broker.describe_producers(ORDERS)


def test_idle_producers_expire_in_processes_of_five_seconds(disk: World) -> None:
    disk.open()
    disk.create("orders", retention_ms="-1")
    for number in range(3):
        builder = BatchBuilder()
        builder.append(b"k", b"v", (), disk.now_ms)
        disk.broker.produce(ORDERS, builder.build(producer_id=number, producer_epoch=0, base_sequence=0), disk.now_ms)
        disk.now_ms += 5_000
        disk.broker.clean_up(disk.now_ms)
        assert len(disk.broker.describe_producers(ORDERS)) == 1
        disk.restart()
        disk.now_ms += 2 * DAY_MS


def test_what_a_killed_process_has_not_deleted_goes_at_the_first_tick(disk: World) -> None:
    disk.open()
    disk.create("orders", retention_ms=DAY_MS)
    disk.produce(ORDERS, b"v", timestamp_ms=disk.now_ms - 2 * DAY_MS)
    disk.restart(clean=False)
    assert disk.broker.next_deadline_ms() <= disk.now_ms
    disk.broker.tick(disk.now_ms)
    assert disk.broker.log_start_offset(ORDERS) == 1


def test_a_clock_that_was_set_is_named_once(disk: World, caplog: pytest.LogCaptureFixture) -> None:
    clocks = TwoClocks(disk)
    with caplog.at_level(logging.WARNING, "eventbus"):
        clocks.set_wall(59_000)
        assert not caplog.messages
        clocks.set_wall(-2 * HOUR_MS)
        clocks.passes(1_000)
    assert ["set back by 7200 s" in message for message in caplog.messages] == [True]


@pytest.mark.parametrize(
    ("ahead_ms", "hint"),
    [
        ((START_MS * 1_000) - START_MS, "microseconds"),
        ((START_MS * 1_000_000) - START_MS, "nanoseconds"),
        (HOUR_MS + 1, "Correct the timestamp"),
    ],
)
def test_a_record_from_the_future_is_refused_as_by_kafka(world: World, ahead_ms: int, hint: str) -> None:
    """One such record would stop the retention of its partition for as long as it is ahead."""
    world.create("orders")
    world.produce(ORDERS, b"in half an hour", timestamp_ms=world.now_ms + HOUR_MS // 2)
    with pytest.raises(InvalidTimestamp, match=hint) as refused:
        world.produce(ORDERS, b"bad", timestamp_ms=world.now_ms + ahead_ms)
    assert refused.value.code == 32
    assert world.broker.end_offset(ORDERS) == 1
    world.broker.alter_configs("orders", {"message.timestamp.after.max.ms": ahead_ms}, (), world.now_ms)
    world.produce(ORDERS, b"allowed", timestamp_ms=world.now_ms + ahead_ms)


def test_a_record_from_long_ago_is_refused_where_that_is_set(world: World) -> None:
    world.create("orders", message_timestamp_before_max_ms=1_000)
    world.produce(ORDERS, b"young", timestamp_ms=world.now_ms - 1_000)
    with pytest.raises(InvalidTimestamp, match="seconds"):
        world.produce(ORDERS, b"old", b"young", timestamp_ms=world.now_ms // 1_000)
    assert world.broker.end_offset(ORDERS) == 1


def test_timestamps_that_the_log_replaces_are_not_checked(world: World) -> None:
    world.create("orders", message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=0)
    world.produce(ORDERS, b"future", timestamp_ms=world.now_ms * 1_000)
    world.produce(ORDERS, b"past", timestamp_ms=0)
    assert world.broker.end_offset(ORDERS) == 2
