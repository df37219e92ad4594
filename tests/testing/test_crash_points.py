"""Crash points find what is planted, and nothing where there is nothing to find."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest

from eventbus import ConsumerRecord, EventBus, Transaction
from eventbus.errors import ConfigError, HandlerError
from eventbus.testing import FakeClock
from eventbus.testing.crash_report import CrashReport
from eventbus.testing.crash_trials import crash_points
from tests.tiers import quick

pytestmark = pytest.mark.system

THREE_ORDERS = [("orders", b"%d" % number, key) for number, key in enumerate([b"k0", b"k1", b"k3"])]
ORDERS = THREE_ORDERS[::2]
"""A record in each of two partitions. Every further record adds ten ends to a run."""
FEW_PAIRS = 3
"""A pair of ends costs as much as four ends: its process starts three times, and one end can reuse the first life."""
ASYNCIO_FIRST = pytest.mark.parametrize("backend", quick(["asyncio", "trio"], 1))
"""Where the bug is in the handler: what a backend itself does at an end, the others show."""
WAYS = ("kill", "cancel", "stop")


def play(make: Callable[[], EventBus] | EventBus, backend: str = "asyncio", **options: Any) -> CrashReport:
    async def run() -> CrashReport:
        with anyio.fail_after(100):
            return await crash_points(make, **{"publish": ORDERS, "pairs": 0, **options})

    return anyio.run(run, backend=backend)


def shop(partitions: int = 2, **options: Any) -> EventBus:
    bus = EventBus("memory://", **options)
    for topic in ("orders", "bills", "mails"):
        bus.topic(topic, partitions=partitions)
    return bus


def test_the_settings_of_the_bus_are_kept() -> None:
    """An undeclared topic is an error, unless the bus creates topics at their first use."""

    def typing(**options: Any) -> EventBus:
        bus = EventBus("memory://", **options)
        bus.topic("orders")

        @bus.consumer("orders", group="g")
        async def bill(order: bytes) -> None:
            await bus.send("bils", order)

        return bus

    only = {"publish": [("orders", b"1")], "ways": ("stop",)}
    with pytest.raises(HandlerError, match="there is no topic 'bils'"):
        play(typing, **only)
    play(lambda: typing(auto_create_topics=True), **only).assert_no_loss()


# -- handlers that are right -------------------------------------------------------------------------------------------


def plain_async() -> EventBus:
    bus = shop()

    @bus.consumer("orders", group="g")
    @bus.producer("bills")
    async def bill(order: bytes) -> bytes:
        await anyio.lowlevel.checkpoint()
        return b"bill " + order

    return bus


def plain_function() -> EventBus:
    bus = shop()

    @bus.consumer("orders", group="g")
    @bus.producer("bills")
    def bill(order: bytes) -> bytes:
        return b"bill " + order

    return bus


def of_several_outputs() -> EventBus:
    bus = shop()

    @bus.consumer("orders", group="g")
    @bus.producer("bills")
    async def bill(order: bytes) -> AsyncIterator[bytes]:
        yield b"bill " + order
        yield b"copy of the bill " + order

    return bus


def a_generator_in_its_thread() -> EventBus:
    bus = shop()

    @bus.consumer("orders", group="g")
    @bus.producer("bills")
    def bill(order: bytes) -> Iterator[bytes]:
        yield b"bill " + order
        yield b"copy of the bill " + order

    return bus


def awaited_sends() -> EventBus:
    bus = shop()

    @bus.consumer("orders", group="g")
    async def bill(order: bytes, record: ConsumerRecord) -> None:
        await bus.send("bills", b"bill " + order, key=record.key)
        await bus.send("mails", b"mail " + order, key=record.key)

    return bus


def in_batches() -> EventBus:
    bus = shop()

    @bus.consumer("orders", group="g", batch=2)
    async def bill(orders: list[bytes]) -> None:
        for order in orders:
            await bus.send("bills", b"bill " + order)

    return bus


def with_middleware() -> EventBus:
    async def outer(record: ConsumerRecord, call_next: Callable[[ConsumerRecord], Awaitable[Any]]) -> Any:
        return await call_next(record)

    bus = shop(middleware=[outer])

    @bus.consumer("orders", group="g", middleware=[outer])
    @bus.producer("bills")
    async def bill(order: bytes) -> bytes:
        return b"bill " + order

    return bus


def in_order_of_keys() -> EventBus:
    bus = shop()

    @bus.consumer("orders", group="g", order="key", concurrency=3)
    @bus.producer("bills")
    async def bill(order: bytes) -> bytes:
        await anyio.lowlevel.checkpoint()
        return b"bill " + order

    return bus


def acknowledged_last() -> EventBus:
    bus = shop()

    @bus.consumer("orders", group="g", ack="manual")
    async def bill(record: ConsumerRecord) -> None:
        await bus.send("bills", b"bill " + record.value)
        record.ack()

    return bus


def a_chain() -> EventBus:
    bus = shop()

    @bus.consumer("orders", group="g")
    @bus.producer("bills")
    async def bill(order: bytes) -> bytes:
        return b"bill " + order

    @bus.consumer("bills", group="m")
    @bus.producer("mails")
    def mail(bill: bytes) -> bytes:
        return b"mail of " + bill

    return bus


def filtered() -> EventBus:
    bus = shop()

    @bus.consumer("orders", group="g", filter=lambda record: record.value != b"1")
    @bus.producer("bills")
    async def bill(order: bytes) -> bytes:
        return b"bill " + order

    return bus


def exactly_once() -> EventBus:
    bus = shop()

    @bus.consumer("orders", group="g", exactly_once=True)
    @bus.producer("bills")
    async def bill(order: bytes) -> bytes:
        return b"bill " + order

    return bus


def exactly_once_of_two_topics() -> EventBus:
    bus = shop()

    @bus.consumer("orders", group="g", exactly_once=True, transaction_records=2)
    async def bill(order: bytes, tx: Transaction) -> None:
        await tx.send("bills", b"bill " + order)
        tx.send_nowait("mails", b"mail " + order)

    return bus


def exactly_once_in_batches() -> EventBus:
    bus = shop()

    @bus.consumer("orders", group="g", exactly_once=True, batch=True)
    @bus.producer("bills")
    async def bill(orders: list[bytes]) -> AsyncIterator[bytes]:
        for order in orders:
            yield b"bill " + order

    return bus


def an_exactly_once_chain() -> EventBus:
    bus = shop()

    @bus.consumer("orders", group="g", exactly_once=True)
    @bus.producer("bills")
    async def bill(order: bytes) -> bytes:
        return b"bill " + order

    @bus.consumer("bills", group="m", exactly_once=True)
    @bus.producer("mails")
    async def mail(bill: bytes) -> bytes:
        return b"mail of " + bill

    return bus


AT_LEAST_ONCE = [
    plain_async, plain_function, awaited_sends, in_batches, in_order_of_keys,
    of_several_outputs, a_generator_in_its_thread, with_middleware, acknowledged_last, a_chain, filtered,
]  # fmt: skip
EXACTLY_ONCE = [exactly_once, exactly_once_in_batches, exactly_once_of_two_topics, an_exactly_once_chain]


@pytest.mark.parametrize("make", quick(AT_LEAST_ONCE, 5))
def test_at_least_once_loses_nothing(make: Callable[[], EventBus]) -> None:
    assert_nothing_is_lost(play(make, publish=THREE_ORDERS if make is in_batches else ORDERS, pairs=FEW_PAIRS))


@pytest.mark.slow
@pytest.mark.parametrize("make", AT_LEAST_ONCE)
def test_at_least_once_loses_nothing_in_two_kills(make: Callable[[], EventBus]) -> None:
    assert_nothing_is_lost(play(make, publish=THREE_ORDERS, pairs=20))


def assert_nothing_is_lost(report: CrashReport) -> None:
    print(report)
    report.assert_no_loss()
    assert report.repeated, "a process that is killed before it commits must handle records again: it was not killed"
    assert not [finding for finding in report.repeated if finding.at.startswith("stopped")]
    with pytest.raises(AssertionError, match="handled twice"):
        report.assert_no_repeats()


@pytest.mark.parametrize("make", quick(EXACTLY_ONCE, 2))
def test_exactly_once_outputs_are_there_once(make: Callable[[], EventBus]) -> None:
    publish, ways = (THREE_ORDERS, ("kill",)) if make is exactly_once_in_batches else (ORDERS, WAYS)
    report = play(make, publish=publish, ways=ways, pairs=FEW_PAIRS)
    print(report)
    report.assert_exactly_once()
    assert report.repeated


@pytest.mark.slow
@pytest.mark.parametrize("make", EXACTLY_ONCE)
def test_exactly_once_outputs_are_there_once_in_two_kills(make: Callable[[], EventBus]) -> None:
    report = play(make, publish=THREE_ORDERS, pairs=20)
    print(report)
    report.assert_exactly_once()
    assert report.repeated


@pytest.mark.parametrize("make", quick([in_order_of_keys, plain_async], 1))
def test_on_trio(make: Callable[[], EventBus]) -> None:
    report = play(make, "trio")
    report.assert_no_loss()
    assert report.runs > 20


# -- planted bugs ------------------------------------------------------------------------------------------------------


@ASYNCIO_FIRST
def test_at_most_once_may_lose_and_never_repeats(backend: str) -> None:
    bus = shop()

    @bus.consumer("orders", group="g", delivery="at-most-once")
    async def bill(order: bytes) -> None:
        await anyio.lowlevel.checkpoint()

    report = play(bus, backend)
    report.assert_no_repeats()
    assert report.lost
    with pytest.raises(AssertionError, match="at-most-once: offsets are committed before the handler runs"):
        report.assert_no_loss()
    assert not [finding for finding in report.lost if finding.at.startswith("stopped")]


@ASYNCIO_FIRST
def test_an_acknowledgement_before_the_work(backend: str) -> None:
    bus = shop()
    clock = FakeClock()

    @bus.consumer("orders", group="g", ack="manual")
    async def bill(record: ConsumerRecord) -> None:
        record.ack()
        await clock.sleep(1)  # the commit comes first
        await bus.send("bills", b"bill " + record.value)

    report = play(bus, backend, clock=clock, publish=THREE_ORDERS)
    assert {finding.at.split()[0] for finding in report.lost} >= {"killed", "cancelled"}
    assert report.missing_outputs
    with pytest.raises(AssertionError, match="acknowledge last"):
        report.assert_no_loss()


@ASYNCIO_FIRST
def test_handlers_of_one_name_in_two_groups_are_told_apart(backend: str) -> None:
    """What one of them handles does not stand for what the other has lost, nor count as a second time."""

    def two() -> EventBus:
        bus = shop()

        def listen(group: str, **options: Any) -> None:
            @bus.consumer("orders", group=group, ack="manual", **options)
            async def handle(record: ConsumerRecord) -> None:
                if group == "hasty":
                    await record.ack_now()
                await anyio.lowlevel.checkpoint()
                record.ack()

        listen("good", order="key", concurrency=2)
        listen("hasty")
        return bus

    report = play(two, backend, ways=("kill",))
    assert {finding.where for finding in report.lost} == {"hasty.handle"}
    stopped = play(two, backend, ways=("stop",))
    assert not [finding for finding in stopped.findings if "twice" in finding.what], str(stopped)


def test_a_record_that_is_skipped_is_not_lost() -> None:
    def picky() -> EventBus:
        bus = shop()

        @bus.consumer("orders", group="g", on_error="skip")
        async def bill(order: bytes) -> None:
            if order == b"2":
                raise ValueError("no order")

        return bus

    play(picky).assert_no_loss()


@ASYNCIO_FIRST
def test_an_exactly_once_handler_that_sends_past_its_transaction(backend: str) -> None:
    bus = shop()

    @bus.consumer("orders", group="g", exactly_once=True)
    @bus.producer("bills")
    async def bill(order: bytes) -> bytes:
        await bus.send("mails", b"mail " + order, transactional=False)
        return b"bill " + order

    report = play(bus, backend, ways=("kill",))
    assert {finding.where for finding in report.doubled_outputs} == {"mails"}
    with pytest.raises(AssertionError, match="sent past its transaction"):
        report.assert_exactly_once()
    report.assert_no_loss()


@ASYNCIO_FIRST
def test_outputs_in_two_topics_are_half_done_in_between(backend: str) -> None:
    report = play(awaited_sends, backend)
    assert report.half_done
    assert all(finding.what.endswith("until the next start") for finding in report.half_done)
    assert "in bills and not in mails" in str(report)
    with pytest.raises(AssertionError, match=r"bus\.transaction\(id\)"):
        report.assert_exactly_once()


@ASYNCIO_FIRST
def test_a_handler_that_swallows_its_cancellation(backend: str) -> None:
    bus = shop()
    clock = FakeClock()
    done: list[bytes] = []

    @bus.consumer("orders", group="g")
    async def bill(order: bytes, record: ConsumerRecord) -> None:
        try:
            await clock.sleep(1)
            await bus.send("bills", b"bill " + order)
        except BaseException:  # the bug: whatever it was, go on
            done.append(order)

    report = play(bus, backend, clock=clock, ways=("cancel",), reset=done.clear)
    assert report.lost or report.missing_outputs, "it was cancelled, and its record taken for handled"
    with pytest.raises(AssertionError, match="swallows its cancellation"):
        report.assert_no_loss()


@ASYNCIO_FIRST
def test_a_loop_of_ones_own_that_commits_first(backend: str) -> None:
    handled: list[bytes] = []

    def loop(commits_first: bool) -> Callable[[EventBus], Awaitable[None]]:
        async def run(bus: EventBus) -> None:
            async with bus.new_consumer("orders", group="mine") as consumer:
                while True:
                    records = await consumer.poll(timeout_ms=500)
                    if records and commits_first:
                        await consumer.commit()
                    for record in records:
                        await bus.send("bills", b"bill " + record.value)
                        handled.append(record.value)
                    if records and not commits_first:
                        await consumer.commit()

        return run

    options: dict[str, Any] = {"state": lambda: sorted(handled), "reset": handled.clear, "ways": ("kill",)}
    report = play(shop, backend, run=loop(commits_first=True), **options)
    assert report.missing_outputs
    assert any("without b'0'" in finding.what for finding in report.state)
    with pytest.raises(AssertionError, match="is missing"):
        report.assert_no_loss()

    report = play(shop, backend, run=loop(commits_first=False), **options)
    report.assert_no_loss()
    assert all("more" in finding.what and "without" not in finding.what for finding in report.state)


@ASYNCIO_FIRST
def test_effects_outside_of_the_log(backend: str) -> None:
    rows: dict[bytes, int] = {}
    bus = shop()

    @bus.consumer("orders", group="counts")
    async def count(order: bytes) -> None:
        rows[order] = rows.get(order, 0) + 1

    report = play(bus, backend, state=lambda: dict(rows), reset=rows.clear)
    assert report.state
    repeated = Counter(finding.at for finding in report.repeated if not finding.is_of_several_ends)
    assert max(repeated.values()) > 1, "what a killed process would have committed on leaving is not committed"
    assert not [at for at in repeated if at.startswith("stopped")]
    with pytest.raises(AssertionError, match="2 for b'0' instead of 1"):
        report.assert_same_state()

    bus = shop()

    @bus.consumer("orders", group="upserts")
    async def upsert(order: bytes) -> None:
        rows[order] = 1

    play(bus, backend, state=lambda: dict(rows), reset=rows.clear).assert_same_state()


def test_a_handler_that_cannot_handle_a_record_again() -> None:
    rows: set[bytes] = set()
    bus = shop()

    @bus.consumer("orders", group="g")
    async def insert(order: bytes) -> None:
        if order in rows:
            raise ValueError(f"duplicate key {order!r}")
        rows.add(order)

    report = play(bus, state=lambda: sorted(rows), reset=rows.clear)
    with pytest.raises(AssertionError, match="duplicate key"):
        report.assert_no_loss()
    assert report.failed


def test_a_lock_that_a_dead_process_left_behind() -> None:
    locked: set[bytes] = set()
    clock = FakeClock()
    bus = shop()

    @bus.consumer("orders", group="g")
    async def bill(order: bytes) -> None:
        while order in locked:
            await clock.sleep(1)
        locked.add(order)
        await bus.send("bills", b"bill " + order)
        locked.remove(order)

    report = play(bus, clock=clock, reset=locked.clear, publish=ORDERS[:1], limit_seconds=20, ways=("kill",))
    assert {finding.kind for finding in report.failed} == {"stuck", "not_committed"}


# -- the runner of runs ------------------------------------------------------------------------------------------------


@ASYNCIO_FIRST
def test_handlers_that_sleep_by_the_clock(backend: str) -> None:
    bus, clock = shop(), FakeClock()

    @bus.consumer("orders", group="g")
    @bus.producer("bills")
    async def bill(order: bytes) -> bytes:
        await clock.sleep(7)
        return b"bill " + order

    report = play(bus, backend, clock=clock)
    report.assert_no_loss()
    assert report.repeated


def test_it_is_the_same_every_time() -> None:
    one, other = (play(awaited_sends, pairs=10, seed=7, ways=("kill",), publish=ORDERS[:1]) for _ in range(2))
    assert one.findings == other.findings
    assert (one.runs, one.instants, one.not_reached) == (other.runs, other.instants, 0)


def test_inputs_may_come_from_a_function_of_the_bus() -> None:
    async def publish(bus: EventBus) -> None:
        async with bus.transaction("importer") as tx:
            for number in range(2):
                await tx.send("orders", b"%d" % number, partition=number)
        try:
            async with bus.transaction("importer") as tx:
                await tx.send("orders", b"never")
                raise LookupError
        except LookupError:
            pass

    report = play(exactly_once, publish=publish, ways=("kill",))
    report.assert_exactly_once()
    assert report.repeated


def test_outputs_that_differ_each_time_need_an_identity() -> None:
    bus, clock, numbers = shop(), FakeClock(), iter(range(10**6))

    @bus.consumer("orders", group="g", exactly_once=True)
    @bus.producer("bills")
    async def bill(order: bytes) -> bytes:
        return b"%d: bill %b" % (next(numbers), order)

    with pytest.raises(ConfigError, match=r"publish other records each time.*give identity="):
        play(bus, clock=clock)
    report = play(bus, clock=clock, ways=("kill",), identity=lambda record: record.value.partition(b": ")[2])
    report.assert_exactly_once()


def test_what_cannot_be_played_is_said() -> None:
    with pytest.raises(ConfigError, match="no handler was called in the run without a crash"):
        play(plain_async, publish=[("mails", b"x")])

    bus = shop()

    @bus.consumer("orders", group="g")
    async def bill(order: bytes) -> None:
        raise ValueError("it is wrong")

    with pytest.raises(HandlerError, match="it is wrong"):
        play(bus)

    async def fails(bus: EventBus) -> None:
        raise LookupError("no data")

    with pytest.raises(LookupError, match="no data"):
        play(plain_async, publish=fails)


def test_the_table_tells_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        report = play(plain_async, ways=("kill",))
    text = str(report)
    assert "killed after handler bill(orders-0@0)" in text
    assert "handled twice" in text
    assert "make the handler repeatable (upsert by key or offset), or use exactly_once=True" in text
    assert all(len(line) < 250 for line in text.splitlines()), text
    assert not caplog.records, "a process that ends at every step is expected to complain"
    assert logging.getLogger("eventbus").level == logging.NOTSET
    assert "nothing to report" in str(play(exactly_once, ways=("stop",)))
