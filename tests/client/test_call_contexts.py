"""A context variable that a call sets is never seen by another call, however calls are made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar, copy_context
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from dlq import Circuit, Retry
from eventbus import ConsumerInterceptor, ConsumerRecord, Depends, EventBus, ProducerInterceptor
from eventbus.backends.delivery import BatchDelivery, Delivery
from eventbus.testing import FakeClock

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])
NAMES = ["ada", "bob", "cy", "dora"]

tenant: ContextVar[Any] = ContextVar("tenant", default=None)


class Calls:
    """Record the variable that each call finds; each call sets it to its name."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def note(self, name: Any) -> None:
        self.found.append(tenant.get())
        tenant.set(name)

    async def note_across_a_pause(self, name: Any) -> None:
        """The call's own value is there after the loop has turned, whatever other calls have set meanwhile."""
        self.note(name)
        await anyio.lowlevel.checkpoint()
        assert tenant.get() == name


Declare = Callable[[EventBus, Calls], object]
WAYS: dict[str, Declare] = {}
"""How a handler is called, by name."""


def way(declare: Declare) -> Declare:
    WAYS[declare.__name__] = declare
    return declare


def handled_async(bus: EventBus, calls: Calls, **options: Any) -> None:
    @bus.consumer("t", group="g", **options)
    async def handle(name: str) -> None:
        await calls.note_across_a_pause(name)


def handled_plain(bus: EventBus, calls: Calls, **options: Any) -> None:
    @bus.consumer("t", group="g", **options)
    def handle(name: str) -> None:
        calls.note(name)


async def passing_on(record: Any, call_next: Any) -> Any:
    return await call_next(record)


OPTIONS: dict[str, dict[str, Any]] = {
    "in_order": {},
    "by_key": {"order": "key", "concurrency": 2},
    "without_order": {"order": "none", "concurrency": 1},
    "with_a_timeout": {"timeout": 5},
    "exactly_once": {"exactly_once": True},
    "at_most_once": {"delivery": "at-most-once"},
    "behind_middleware": {"middleware": [passing_on]},
    "with_replies": {"replies": True},
}
for _name, _options in OPTIONS.items():
    WAYS[f"async_{_name}"] = lambda bus, calls, options=_options: handled_async(bus, calls, **options)
    WAYS[f"plain_{_name}"] = lambda bus, calls, options=_options: handled_plain(bus, calls, **options)


@way
def never_suspending(bus: EventBus, calls: Calls) -> None:
    @bus.consumer("t", group="g")
    async def handle(name: str) -> None:
        calls.note(name)


@way
def with_its_record(bus: EventBus, calls: Calls) -> None:
    @bus.consumer("t", group="g")
    async def handle(name: str, record: ConsumerRecord) -> None:
        await calls.note_across_a_pause(name)


@way
def acknowledged_by_hand(bus: EventBus, calls: Calls) -> None:
    @bus.consumer("t", group="g", ack="manual")
    async def handle(name: str, record: ConsumerRecord) -> None:
        await calls.note_across_a_pause(name)
        record.ack()


@way
def in_batches(bus: EventBus, calls: Calls) -> None:
    @bus.consumer("t", group="g", batch=1)
    async def handle(names: list[str]) -> None:
        await calls.note_across_a_pause(names[0])


@way
def in_batches_of_a_plain_function(bus: EventBus, calls: Calls) -> None:
    @bus.consumer("t", group="g", batch=1)
    def handle(names: list[str]) -> None:
        calls.note(names[0])


@way
def publishing(bus: EventBus, calls: Calls) -> None:
    @bus.consumer("t", group="g")
    @bus.producer("out")
    async def handle(name: str) -> str:
        await calls.note_across_a_pause(name)
        return name


@way
def publishing_what_it_yields(bus: EventBus, calls: Calls) -> None:
    @bus.consumer("t", group="g")
    @bus.producer("out")
    async def handle(name: str) -> AsyncIterator[str]:
        await calls.note_across_a_pause(name)
        yield name


@way
def publishing_what_a_plain_function_yields(bus: EventBus, calls: Calls) -> None:
    @bus.consumer("t", group="g")
    @bus.producer("out")
    def handle(name: str) -> Iterator[str]:
        calls.note(name)
        yield name


@way
def in_what_a_plain_function_leaves_to_await(bus: EventBus, calls: Calls) -> None:
    @bus.consumer("t", group="g")
    def handle(name: str) -> Any:
        return calls.note_across_a_pause(name)


@way
def in_what_a_plain_function_leaves_to_await_in_any_order(bus: EventBus, calls: Calls) -> None:
    @bus.consumer("t", group="g", order="none", concurrency=1)
    def handle(name: str) -> Any:
        return calls.note_across_a_pause(name)


@way
def in_a_filter(bus: EventBus, calls: Calls) -> None:
    @bus.consumer("t", group="g", filter=lambda record: calls.note("the filter's") or True)
    async def handle(name: str) -> None: ...


@way
def in_a_filter_of_a_plain_function(bus: EventBus, calls: Calls) -> None:
    @bus.consumer("t", group="g", filter=lambda record: calls.note("the filter's") or True)
    def handle(name: str) -> None: ...


@way
def in_a_middleware(bus: EventBus, calls: Calls) -> None:
    async def leaving(record: ConsumerRecord, call_next: Any) -> Any:
        calls.note("the middleware's")
        return await call_next(record)

    @bus.consumer("t", group="g", middleware=[leaving])
    async def handle(name: str) -> None:
        assert tenant.get() == "the middleware's"


@way
def in_a_dependency(bus: EventBus, calls: Calls) -> None:
    async def session() -> str:
        calls.note("the dependency's")
        return "session"

    @bus.consumer("t", group="g")
    async def handle(name: str, session: str = Depends(session)) -> None:
        assert tenant.get() == "the dependency's"


@way
def in_a_dependency_of_a_plain_function(bus: EventBus, calls: Calls) -> None:
    def session() -> Iterator[str]:
        calls.note("the dependency's")
        yield "session"

    @bus.consumer("t", group="g")
    def handle(name: str, session: str = Depends(session)) -> None: ...


@way
def called_again_at_once(bus: EventBus, calls: Calls) -> None:
    handled_failing(bus, calls, retry=Retry(immediate=2, delays=None))


@way
def a_plain_function_called_again_at_once(bus: EventBus, calls: Calls) -> None:
    @bus.consumer("t", group="g", on_error="skip", retry=Retry(immediate=2, delays=None))
    def handle(name: str) -> None:
        calls.note(name)
        raise ValueError("no")


@way
def called_again_in_any_order(bus: EventBus, calls: Calls) -> None:
    handled_failing(bus, calls, order="none", concurrency=1, retry=Retry(immediate=2, delays=None))


@way
def called_again_in_a_transaction(bus: EventBus, calls: Calls) -> None:
    handled_failing(bus, calls, exactly_once=True, retry=Retry(immediate=2, delays=None))


@way
def called_again_singly(bus: EventBus, calls: Calls) -> None:
    @bus.consumer("t", group="g", batch=True, on_error="skip", retry=Retry(immediate=2, delays=None))
    async def handle(names: list[str]) -> None:
        await calls.note_across_a_pause(names[0])
        raise ValueError("no")


def handled_failing(bus: EventBus, calls: Calls, **options: Any) -> None:
    @bus.consumer("t", group="g", on_error="skip", **options)
    async def handle(name: str) -> None:
        await calls.note_across_a_pause(name)
        raise ValueError("no")


@BACKENDS
@pytest.mark.parametrize("declare", WAYS.values(), ids=WAYS.keys())
def test_what_a_call_sets_is_not_seen_by_another_call(declare: Declare, backend: str) -> None:
    calls = Calls()

    async def main() -> None:
        bus = EventBus("memory://")
        bus.topic("t", partitions=1)
        bus.topic("out", partitions=1)
        declare(bus, calls)
        async with bus:
            await bus.send_many("t", NAMES, key=str.lower)
            await bus.drain()

    anyio.run(main, backend=backend)
    times = 3 if "called_again" in declare.__name__ else 1
    assert calls.found == [None] * (times * len(NAMES) + ("singly" in declare.__name__))


@BACKENDS
def test_an_entry_that_is_tried_again_later_does_not_see_its_first_call(backend: str) -> None:
    calls, clock = Calls(), FakeClock()

    async def main() -> None:
        bus = EventBus("memory://", clock=clock)
        bus.topic("t", partitions=1)
        handled_failing(bus, calls, retry=Retry(immediate=0, delays=["1s"], jitter=False))
        async with bus:
            await bus.send_many("t", NAMES)
            await clock.advance(seconds=1)
            await clock.advance(seconds=2)

    anyio.run(main, backend=backend)
    assert calls.found == [None] * (2 * len(NAMES))


@BACKENDS
def test_hooks_of_a_retry_policy(backend: str) -> None:
    """Some events come between two calls: the circuit breaker lets a record through again."""
    calls, clock, found = Calls(), FakeClock(), list[Any]()

    async def main() -> None:
        bus = EventBus("memory://", clock=clock)
        bus.topic("t", partitions=1)
        circuit = Circuit(failures=0.5, of=2, open="1s")
        retry = Retry(immediate=0, delays=["1s"], circuit=circuit, on_event=calls.note)

        @bus.consumer("t", group="g", retry=retry)
        async def handle(name: str) -> None:
            found.append(tenant.get())
            if clock.current_time() < 1:
                raise ValueError("no")

        async with bus:
            await bus.send_many("t", NAMES)
            for _ in range(10):
                await clock.advance(seconds=1)
            await bus.send_many("t", NAMES)
            await clock.advance(seconds=10)

    anyio.run(main, backend=backend)
    assert len(found) >= 2 * len(NAMES) and set(found) == {None}
    assert calls.found and set(calls.found) == {None}


@BACKENDS
def test_functions_with_a_timetable(backend: str) -> None:
    calls, clock = Calls(), FakeClock()

    async def main() -> None:
        bus = EventBus("memory://", clock=clock)

        @bus.every("1s")
        async def tick() -> None:
            await calls.note_across_a_pause("tick")

        async with bus:
            for _ in range(3):
                await clock.advance(seconds=1)

    anyio.run(main, backend=backend)
    assert calls.found == [None] * 3


@BACKENDS
def test_functions_of_a_table(backend: str) -> None:
    calls = Calls()

    async def main() -> None:
        bus = EventBus("memory://")
        table = bus.table("prices", key=str, value=int)

        @table.on_change
        async def first(change: Any) -> None:
            await calls.note_across_a_pause(change.key)

        @table.on_change
        def second(change: Any) -> None:
            calls.note(change.key)

        async with bus:
            for name in NAMES:
                await table.until(await table.put(name, 1))
            await bus.drain()

    anyio.run(main, backend=backend)
    assert calls.found == [None] * (2 * len(NAMES))


@BACKENDS
def test_the_function_that_folds_a_table(backend: str) -> None:
    calls = Calls()

    async def main() -> None:
        bus = EventBus("memory://")

        def fold(state: int, event: int) -> int:
            calls.note("the fold's")
            return state + event

        table = bus.table("sums", key=str, value=int, fold=fold, initial=int)

        @table.on_change
        def changed(change: Any) -> None:
            calls.note("the change's")

        async with bus:
            for name in NAMES:
                await table.until(await bus.send("sums", 1, key=name))
            await bus.drain()

    anyio.run(main, backend=backend)
    assert calls.found == [None] * (2 * len(NAMES))


class Noting(ProducerInterceptor):
    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def on_send(self, record: Any) -> Any:
        self.calls.note(f"sent {record.value}")
        return record

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        self.calls.note("acknowledged")


class Suspending(ProducerInterceptor):
    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    async def on_send_async(self, record: Any) -> Any:
        await self.calls.note_across_a_pause(f"sent {record.value}")
        return record


class NotingReads(ConsumerInterceptor):
    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def on_consume(self, records: Any) -> Any:
        self.calls.note("consumed")
        return records


@BACKENDS
def test_interceptors(backend: str) -> None:
    calls, read = Calls(), Calls()

    async def main() -> None:
        bus = EventBus("memory://", interceptors=[Noting(calls), Suspending(calls)])
        bus.topic("t", partitions=1)
        async with bus:
            for name in NAMES:
                await bus.send("t", name)
            async with bus.new_consumer("t", start="earliest", interceptors=[NotingReads(read)]) as consumer:
                assert len([record async for record in consumer.until_end()]) == len(NAMES)
        assert tenant.get() is None

    anyio.run(main, backend=backend)
    assert calls.found == [None] * (3 * len(NAMES))
    assert set(read.found) == {None}


def test_an_outcome_is_told_in_the_variables_of_the_sender() -> None:
    """The call of another handler may be the first to learn that a batch is stored, and then runs the callback."""
    calls, batch = Calls(), BatchDelivery("t", 0)

    def send(name: str) -> None:
        tenant.set(name)
        Delivery(batch, 0, 0).add_callback(lambda metadata, error: calls.note("the callback's"))

    for name in NAMES:
        copy_context().run(send, name)
    batch.resolve(0, -1)
    assert calls.found == NAMES
    assert tenant.get() is None


@BACKENDS
def test_a_task_of_the_bus_that_a_call_begins_has_no_variables_of_the_call(backend: str) -> None:
    """The first send opens the producer, and the first request the reader of replies: both outlive the call."""
    found: list[Any] = []

    async def main() -> None:
        bus = EventBus("memory://")
        bus.topic("t", partitions=1)

        async def look() -> None:
            found.append(tenant.get())

        @bus.consumer("t", group="g")
        async def handle(name: str) -> None:
            tenant.set(name)
            bus.context.start_soon(look)

        async with bus:
            await bus.send_many("t", NAMES)
            await bus.drain()

    anyio.run(main, backend=backend)
    assert found == [None] * len(NAMES)


@BACKENDS
@pytest.mark.parametrize("kind", ["async", "plain", "batch"])
def test_what_a_middleware_sets_is_seen_by_the_call_it_wraps(kind: str, backend: str) -> None:
    found: list[Any] = []

    async def main() -> None:
        bus = EventBus("memory://")
        bus.topic("t", partitions=1)

        async def of_a_tenant(record: Any, call_next: Any) -> Any:
            tenant.set("the middleware's")
            return await call_next(record)

        async def handle(name: str) -> None:
            found.append(tenant.get())

        def plain(name: str) -> None:
            found.append(tenant.get())

        async def batch(names: list[str]) -> None:
            found.append(tenant.get())

        function: Any = {"async": handle, "plain": plain, "batch": batch}[kind]
        bus.consumer("t", group="g", batch=kind == "batch" and 1, middleware=[of_a_tenant])(function)
        async with bus:
            await bus.send_many("t", NAMES)
            await bus.drain()

    anyio.run(main, backend=backend)
    assert found == ["the middleware's"] * len(NAMES)


class Alike:
    """Equal to all of its kind, as a user's class may be."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


@BACKENDS
@pytest.mark.parametrize("name", ["never_suspending", "plain_in_order", "async_by_key"])
def test_calls_see_what_was_set_at_the_start_of_the_bus(name: str, backend: str) -> None:
    """Also if what a call sets in its place is equal to it: it is another object."""
    first = Alike()
    ends: list[Any] = []

    class Different(Calls):
        def note(self, name: Any) -> None:
            super().note(Alike())

        async def note_across_a_pause(self, name: Any) -> None:
            self.note(name)

    calls = Different()

    async def main() -> None:
        bus = EventBus("memory://")
        bus.topic("t", partitions=1)

        @bus.on_startup
        async def open_tenant() -> AsyncIterator[None]:
            token = tenant.set(first)
            yield
            ends.append(tenant.get())
            tenant.reset(token)

        WAYS[name](bus, calls)
        async with bus:
            await bus.send_many("t", NAMES, key=str.lower)
            await bus.drain()

    anyio.run(main, backend=backend)
    assert [one is first for one in [*calls.found, *ends]] == [True] * (len(NAMES) + 1)


@BACKENDS
def test_sends_join_the_transaction_after_many_calls(backend: str) -> None:
    """The first 1,000 calls have separate scopes; from there on the calls of a transaction share one."""
    found: list[int] = []

    async def main() -> None:
        bus = EventBus("memory://")
        bus.topic("t", partitions=1)
        bus.topic("out", partitions=1)

        @bus.consumer("t", group="g", exactly_once=True, transaction_records=300)
        async def handle(value: int) -> None:
            bus.send_nowait("out", value)

        @bus.consumer("out", group="h")
        async def read(value: int) -> None:
            found.append(value)

        async with bus:
            await bus.send_many("t", range(1_300))
            await bus.drain()

    anyio.run(main, backend=backend)
    assert found == list(range(1_300))
