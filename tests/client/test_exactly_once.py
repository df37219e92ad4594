"""Exactly once, end to end: transfers between topics with failing handlers, crashes, rebalances and zombies."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import anyio
import msgspec
import pytest

from eventbus import EventBus, IsolationLevel, TopicPartition, Transaction
from eventbus.errors import ConfigError, HandlerError, InvalidTransactionTimeout
from eventbus.testing import TestBus
from eventbus.testing.bus import bus_on
from eventbus.testing.storage import CrashStorage, SimulatedCrash
from tests.support import until
from tests.tiers import quick

REQUESTS = 60
ACCOUNTS = [f"account-{number}" for number in range(5)]
LOGS = itertools.count()


class Transfer(msgspec.Struct):
    number: int
    source: str
    target: str
    amount: int


class Entry(msgspec.Struct):
    number: int
    account: str
    amount: int


def transfers(random: Random, count: int = REQUESTS) -> list[Transfer]:
    return [Transfer(number, *random.sample(ACCOUNTS, 2), random.randrange(1, 100)) for number in range(count)]


Disturb = Callable[[Transfer], None]


def bank(bus: EventBus, disturb: Disturb, **options: Any) -> EventBus:
    """One transfer: an entry for each account, wherever that lives, and a line in the audit. All or nothing."""
    for topic, partitions in (("transfers", 3), ("entries", 3), ("audit", 1)):
        bus.topic(topic, partitions=partitions)

    @bus.consumer("transfers", group="bank", exactly_once=True, **{"transaction_records": 7, **options})
    @bus.producer("entries", key=lambda entry: entry.account)
    async def move(transfer: Transfer, tx: Transaction) -> AsyncIterator[Entry]:
        yield Entry(transfer.number, transfer.source, -transfer.amount)
        await anyio.lowlevel.checkpoint()
        if transfer.number % 2:
            tx.send_nowait("audit", transfer.number)
        else:
            await bus.send("audit", transfer.number)
        disturb(transfer)
        yield Entry(transfer.number, transfer.target, transfer.amount)

    return bus


async def read(bus: EventBus, topic: str, kind: Any, **config: Any) -> list[Any]:
    found: list[Any] = []
    async with bus.new_consumer(topic, value=kind, **config) as reader:
        while records := await reader.poll(timeout_ms=0, max_records=1_000):
            found += [record.value for record in records]
    return found


async def check(bus: EventBus, expected: list[Transfer], *, complete: bool = True) -> None:
    """Check what a read-committed reader sees: every transfer complete and once, so that totals are conserved."""
    entries = await read(bus, "entries", Entry)
    audit = await read(bus, "audit", int)
    seen = Counter((entry.number, entry.account, entry.amount) for entry in entries)
    assert set(seen.values()) <= {1}, "an entry twice"
    assert sum(entry.amount for entry in entries) == 0
    wanted = {(t.number, t.source, -t.amount) for t in expected} | {(t.number, t.target, t.amount) for t in expected}
    done = {number for number, _, _ in seen}
    assert set(seen) == {entry for entry in wanted if entry[0] in done}, "a transfer by halves"
    assert Counter(audit) == Counter(done)
    if complete:
        assert set(seen) == wanted


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    return f"memory://bank-{next(LOGS)}" if request.param == "memory" else f"file://{tmp_path}/log"


# one bus --------------------------------------------------------------------------------------------------------------


async def test_transfers_are_made_once(url: str) -> None:
    wanted = transfers(Random(1))
    async with bank(EventBus(url), lambda transfer: None) as bus:
        await bus.send_many("transfers", wanted, key=lambda transfer: transfer.source)
        await bus.drain()
        await check(bus, wanted)
        offsets = await bus.admin.group_offsets("bank")
        assert sum(offset.offset for offset in offsets.values()) >= REQUESTS
        listed = [listing.transactional_id for listing in await bus.admin.list_transactions()]
        assert set(listed) <= {f"bank.move.transfers-{partition}" for partition in range(3)} and listed


@pytest.mark.system
async def test_a_handler_that_fails_at_random_and_is_started_again(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """With ``on_error="stop"`` the partition stops, the service is restarted, and the record succeeds eventually."""
    caplog.set_level(logging.CRITICAL)
    random = Random(2)
    wanted = transfers(random)

    def disturb(transfer: Transfer) -> None:
        if random.random() < 0.1:
            raise ValueError("the other bank is closed")

    async with EventBus(url) as keeper:
        await keeper.admin.create_topic("transfers", partitions=3)
        await keeper.send_many("transfers", wanted, key=lambda transfer: transfer.source)
        restarts = 0
        while True:
            try:
                async with bank(EventBus(url), disturb) as bus:
                    await bus.drain()
                    break
            except HandlerError:
                restarts += 1
                await check(keeper, wanted, complete=False)
        await check(keeper, wanted)
        assert restarts


@pytest.mark.system
async def test_skipped_records_leave_nothing(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    wanted = transfers(Random(3))

    def disturb(transfer: Transfer) -> None:
        if transfer.number % 7 == 0:
            raise ValueError

    async with bank(EventBus(url), disturb, on_error="skip") as bus:
        await bus.send_many("transfers", wanted, key=lambda transfer: transfer.source)
        await bus.drain()
        await check(bus, [transfer for transfer in wanted if transfer.number % 7])


async def test_a_chain_of_services(url: str) -> None:
    """The second reads what the first has committed, drain waits for both."""
    bus = bank(EventBus(url), lambda transfer: None)
    balances: Counter[str] = Counter()

    @bus.consumer("entries", group="balance", exactly_once=True)
    @bus.producer("notices")
    def note(entry: Entry) -> str:
        balances[entry.account] += entry.amount
        return entry.account

    wanted = transfers(Random(4))
    async with bus:
        await bus.send_many("transfers", wanted, key=lambda transfer: transfer.source)
        await bus.drain()
        assert len(await read(bus, "notices", str)) == 2 * REQUESTS
    expected: Counter[str] = Counter()
    for transfer in wanted:
        expected[transfer.source] -= transfer.amount
        expected[transfer.target] += transfer.amount
    assert balances == expected


async def test_aborted_work_is_there_for_who_asks_for_it_and_no_one_else(url: str) -> None:
    wanted = transfers(Random(5), 4)

    def disturb(transfer: Transfer) -> None:
        if transfer.number == 3:
            raise ValueError

    async with bank(EventBus(url), disturb) as bus:
        await bus.send_many("transfers", wanted, key=lambda transfer: "one partition")
        with pytest.raises(HandlerError):
            while True:
                await bus.drain()
        await check(bus, wanted[:3])
        everything = await read(bus, "entries", Entry, isolation_level=IsolationLevel.READ_UNCOMMITTED)
        assert len(everything) > 6


async def test_a_timeout_above_the_logs_maximum_is_refused(url: str) -> None:
    async with bank(EventBus(url), lambda transfer: None, transaction_timeout_ms=10**9) as bus:
        await bus.send("transfers", transfers(Random(6), 1)[0])
        with pytest.raises(HandlerError, match="transaction_timeout_ms") as caught:
            while True:
                await bus.drain()
        assert isinstance(caught.value.__cause__, (InvalidTransactionTimeout, ConfigError))


@pytest.mark.parametrize("size_bytes", [5_000, 2_000_000], ids=["the topic's limit", "the producer's limit"])
@pytest.mark.parametrize("more", [False, True], ids=["last in its batch", "more behind it"])
async def test_an_output_that_is_too_large_is_left_out_with_its_record_alone(
    url: str, size_bytes: int, more: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    bus = EventBus(url)
    bus.topic("in")
    bus.topic("small", configs={"max.message.bytes": 2_000})
    bus.topic("other")

    @bus.consumer("in", group="g", exactly_once=True, on_error="skip")
    async def handle(number: int, tx: Transaction) -> None:
        tx.send_nowait("other", number)
        tx.send_nowait("small", b"x" * (size_bytes if number == 5 else 10))
        if more:
            tx.send_nowait("small", b"y")

    async with bus:
        await bus.send_many("in", range(10))
        with anyio.fail_after(20):
            await bus.drain()
        assert await read(bus, "other", int) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        assert len(await read(bus, "small", bytes)) == (18 if more else 9)


def test_under_trio_too() -> None:
    wanted = transfers(Random(9))

    async def main() -> None:
        async with bank(EventBus("memory://"), lambda transfer: None) as bus:
            await bus.send_many("transfers", wanted, key=lambda transfer: transfer.source)
            await bus.drain()
            await check(bus, wanted)

    anyio.run(main, backend="trio")


# several buses --------------------------------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize("seed", quick(range(4), 2))
async def test_members_come_and_go_and_are_killed(url: str, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    random = Random(seed)
    wanted = transfers(random, 150)

    async def live(steps: int, killed: bool) -> None:
        with anyio.CancelScope() as scope:
            async with bank(EventBus(url), lambda transfer: None, transaction_records=5):
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                if killed:
                    scope.cancel()

    async with EventBus(url) as keeper:
        await keeper.admin.create_topic("transfers", partitions=3)
        async with anyio.create_task_group() as tasks:
            for number in range(0, 150, 15):
                tasks.start_soon(live, random.randrange(10, 300), random.random() < 0.5)
                for transfer in wanted[number : number + 15]:
                    keeper.send_nowait("transfers", transfer, key=transfer.source)
                    await anyio.lowlevel.checkpoint()
            await keeper.flush()
        async with bank(EventBus(url), lambda transfer: None) as last:
            with anyio.fail_after(20):
                await last.drain()
        await check(keeper, wanted)


async def test_a_paused_lane_that_wakes_up_after_its_partition_was_taken_over_is_fenced() -> None:
    """It outlasted its time in a thread, where nothing can cancel it; its partition is handled by another by then."""
    import threading

    url = f"memory://zombie-{next(LOGS)}"
    asleep, wake = threading.Event(), threading.Event()
    seen: list[tuple[str, int]] = []

    def service(name: str) -> EventBus:
        bus = EventBus(url, client_id=name)
        bus.topic("in", partitions=1)

        @bus.consumer("in", group="g", exactly_once=True, drain_timeout_ms=1, partition_assignment_strategy=only_b)
        @bus.producer("out")
        def handle(number: int) -> str:
            seen.append((name, number))
            if name == "a" and number == 1:
                asleep.set()
                assert wake.wait(20)
            return f"{name}{number}"

        return bus

    only_b = _AllTo("b")
    async with EventBus(url) as keeper:
        await keeper.admin.create_topic("in")
        async with service("a"):
            await keeper.send_many("in", range(3))
            while not asleep.is_set():
                await anyio.lowlevel.checkpoint()
            async with service("b") as b:
                with anyio.fail_after(20):
                    await b.drain()
                assert await read(keeper, "out", str) == ["b0", "b1", "b2"]
                wake.set()
        assert await read(keeper, "out", str) == ["b0", "b1", "b2"]
    assert ("a", 2) not in seen, "the lane took a further record after its partition had gone"


class _AllTo:
    """An assignor with a favourite, where that is a member."""

    name = "all-to"
    protocol = "eager"

    def __init__(self, favourite: str) -> None:
        self._favourite = favourite.encode()

    def user_data(self, topics: tuple[str, ...]) -> bytes | None:
        return None

    def assign(self, partition_counts: Any, subscriptions: Any) -> Any:
        chosen = next((member for member in subscriptions if member.startswith("b")), min(subscriptions))
        everything = [TopicPartition(topic, n) for topic, count in partition_counts.items() for n in range(count)]
        return {member: everything if member == chosen else [] for member in subscriptions}

    def on_assignment(self, partitions: list[TopicPartition], generation_id: int) -> None: ...


# crashes --------------------------------------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize("seed", quick(range(25), 8))
async def test_power_cuts_at_any_call(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """The machine stops at a random call on its disk, over and over, until all is done."""
    caplog.set_level(logging.CRITICAL + 1)
    random = Random(seed)
    storage = CrashStorage()
    wanted = transfers(random, 40)
    async with bank(bus_on(storage), lambda transfer: None) as bus:
        bus.stop()
    async with bus_on(storage) as bus:
        await bus.send_many("transfers", wanted, key=lambda transfer: transfer.source)
    crashes = 0
    for calls in itertools.chain((random.randrange(5, 150) for _ in range(4)), (0,)):
        storage.crash_at_call = storage.calls_count + calls if calls else 0
        try:
            async with bank(bus_on(storage), lambda transfer: None) as bus:
                while not storage.stopped and calls:
                    await anyio.lowlevel.checkpoint()
                    if all([await runner.is_idle() for runner in bus.context.runners]):
                        break
                if not calls:
                    await bus.drain()
                    await check(bus, wanted)
        except* SimulatedCrash:
            pass
        if storage.stopped:
            crashes += 1
            storage = storage.crash(random)
            async with bus_on(storage) as bus:
                await check(bus, wanted, complete=False)
    assert crashes


@pytest.mark.system
@pytest.mark.parametrize("seed", quick(range(10), 3))
async def test_a_bus_cancelled_at_any_point(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """A service is killed by its supervisor: open transactions are aborted, and their records handled by the next."""
    caplog.set_level(logging.CRITICAL)
    random = Random(seed)
    storage = CrashStorage()
    wanted = transfers(random, 80)
    async with bank(bus_on(storage), lambda transfer: None) as bus:
        bus.stop()
    async with bus_on(storage) as bus:
        await bus.send_many("transfers", wanted, key=lambda transfer: transfer.source)
    for _ in range(5):
        with anyio.CancelScope() as scope:
            async with bank(bus_on(storage), lambda transfer: None) as bus:
                for _ in range(random.randrange(0, 60)):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
        async with bus_on(storage) as bus:
            await check(bus, wanted, complete=False)
            assert not [t for t in await bus.admin.list_transactions() if t.state == "Ongoing"]
    async with bank(bus_on(storage), lambda transfer: None) as bus:
        await bus.drain()
        await check(bus, wanted)


async def test_a_plain_function_that_outlasts_its_timeout_stops_its_partition_and_is_not_called_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus, calls, released = TestBus(auto_create_topics=True), list[bytes](), threading.Event()

    @bus.consumer("orders", group="billing", exactly_once=True, timeout=1)
    def bill(value: bytes) -> None:
        calls.append(value)
        if value == b"1":
            released.wait(10)

    async with bus:
        for number in b"012":
            await bus.send("orders", bytes((number,)))
        await until(lambda: b"1" in calls)
        await bus.clock.advance(seconds=2)
        released.set()
        [driver] = bus.context.runners[0].drivers.values()
        await until(lambda: not driver.is_busy)
        await bus.clock.advance(seconds=2)
        assert calls[-1] == b"1" and calls.count(b"1") == 1
        assert bus.context.runners[0].error is not None and driver.work.committed == 1
    assert caplog.text.count("is stopped here") == 1
