"""A log with hooks: without one it is the log inside; with one, each step can be seen, refused, delayed."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable

import anyio
import pytest

from eventbus import EventBus
from eventbus.backends.base import Backend, BackendConsumer, BackendProducer, ConsumerConfig
from eventbus.backends.clock import system_clock
from eventbus.backends.embedded import EmbeddedBackend
from eventbus.backends.engine import Engine
from eventbus.backends.urls import new_id, open_backend
from eventbus.broker import BrokerConfig
from eventbus.errors import BufferExhausted, ConfigError, RequestTimedOut, TransactionAborted
from eventbus.log.memory import MemoryStorage
from eventbus.testing import FakeClock, FaultyBackend
from eventbus.testing.conformance import Promise, Target, promises_for
from eventbus.testing.faulty import Call, FaultyConsumer, FaultyProducer, Wait
from eventbus.types import TopicPartition

Test = Callable[["Log"], Awaitable[None]]


class Log:
    """A bus on a faulty log."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.backend = FaultyBackend(open_backend("memory://", {"auto_create_topics": True}, self.clock))
        self.bus = EventBus("memory://", backend=self.backend, clock=self.clock)
        self.calls: list[tuple[str, str]] = []

    def note(self, call: Call) -> None:
        self.calls.append((call.when, call.step))

    def refuse(self, step: str, error: Exception, when: str = "before") -> None:
        def hook(call: Call) -> None:
            if (call.step, call.when) == (step, when):
                raise error

        self.backend.hooks.append(hook)

    def hold(self, step: str, topic: str = "") -> anyio.Event:
        """Calls wait until the event is set."""
        event = anyio.Event()

        def hook(call: Call) -> Wait | None:
            is_meant = call.step == step and call.when == "before" and topic in ("", call.topic)
            return event.wait if is_meant else None

        self.backend.hooks.append(hook)
        return event


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Callable[[Test], None]:
    def run(test: Test) -> None:
        async def in_time() -> None:
            with anyio.fail_after(30):
                log = Log()
                async with log.bus:
                    await test(log)

        anyio.run(in_time, backend=request.param)

    return run


def test_it_has_all_that_a_backend_has() -> None:
    log = Log()
    assert log.backend.inner.url == log.backend.url == "memory://"
    names = [name for name in vars(Backend) if not name.startswith("_")]
    assert not [name for name in names if not hasattr(type(log.backend), name) and name not in vars(log.backend)]
    for protocol, faulty in ((BackendConsumer, FaultyConsumer), (BackendProducer, FaultyProducer)):
        names = [name for name in (*vars(protocol), *protocol.__annotations__) if not name.startswith("_")]
        with_init = (*vars(faulty), *faulty.__init__.__code__.co_names)
        assert not [name for name in names if name not in with_init]
    with pytest.raises(ConfigError, match="is not open"):
        _ = log.backend.engine


def test_nothing_is_asked_for_and_nothing_is_changed(run: Callable[[Test], None]) -> None:
    async def test(log: Log) -> None:
        bus = log.bus
        async with bus.new_consumer("t", group="g", value=str) as consumer, bus.new_producer() as producer:
            await producer.send("t", "a")
            producer.send_nowait("t", "b")
            await producer.send_many("t", ["c", "d"])
            await producer.flush()
            assert [record.value for record in await consumer.poll()] == ["a", "b", "c", "d"]
            await consumer.commit()
            assert (await bus.admin.list_groups())[0].group == "g"
            assert len(log.backend.consumers) == 1
            assert len(log.backend.producers) == 1
        assert log.backend.consumers == log.backend.producers == []

    run(test)


def test_every_step_is_told_before_and_after(run: Callable[[Test], None]) -> None:
    async def test(log: Log) -> None:
        log.backend.hooks.append(log.note)
        bus = log.bus
        async with bus.new_consumer("t", group="g", value=str) as consumer:
            await bus.send("t", "a")
            assert log.calls == [("before", "send"), ("after", "send")]
            log.calls.clear()
            await consumer.poll()
            await consumer.commit()
            assert log.calls == [("before", "fetch"), ("after", "fetch"), ("before", "commit"), ("after", "commit")]
            log.calls.clear()
            async with bus.transaction("x") as tx:
                tx.send_nowait("t", "b")
                await tx.send_offsets({TopicPartition("t", 0): 1}, consumer)
            steps = [step for when, step in log.calls if when == "after"]
            assert steps == ["init_transactions", "send_offsets", "commit_transaction"]
            assert ("before", "send") in log.calls
            assert ("after", "send") not in log.calls, "of a send that nobody awaits, its delivery tells"

    run(test)


def test_what_a_hook_raises_is_what_the_step_raises(run: Callable[[Test], None]) -> None:
    async def test(log: Log) -> None:
        bus = log.bus
        async with bus.new_consumer("t", group="g", value=str) as consumer:
            log.refuse("send", RequestTimedOut("no answer"))
            with pytest.raises(RequestTimedOut, match="no answer"):
                await bus.send("t", "a")
            delivery = bus.send_nowait("t", "b")
            with pytest.raises(RequestTimedOut):
                await delivery
            with pytest.raises(RequestTimedOut):
                await bus.send_many("t", ["c"])
            log.backend.hooks.clear()

            log.refuse("send", BufferExhausted("full"))
            with pytest.raises(BufferExhausted):  # not the log's answer, but the client's own: it comes at once
                bus.send_nowait("t", "d")
            log.backend.hooks.clear()

            await bus.send("t", "e")
            log.refuse("commit", RequestTimedOut("no answer"), when="after")
            assert [record.value for record in await consumer.poll()] == ["e"]
            with pytest.raises(RequestTimedOut):
                await consumer.commit()
            assert (await log.backend.group_offsets("g"))[TopicPartition("t", 0)].offset == 1, "it was carried out"

    run(test)


@pytest.mark.system
def test_records_of_a_fetch_that_fails_are_fetched_again(run: Callable[[Test], None]) -> None:
    async def test(log: Log) -> None:
        consumer = log.backend.consumer(ConsumerConfig(group="g"))
        await consumer.subscribe(["t"])
        for value in ("a", "b"):
            await log.bus.send("t", value)
        log.refuse("fetch", RequestTimedOut("cut off"), when="after")
        with pytest.raises(RequestTimedOut):
            await consumer.fetch()
        log.backend.hooks.clear()
        (chunk,) = await consumer.fetch()
        assert chunk.values == [b"a", b"b"]
        await consumer.aclose()

    run(test)


def test_a_consumer_hears_of_partitions_that_are_gone(run: Callable[[Test], None]) -> None:
    async def test(log: Log) -> None:
        await log.bus.send("t", "a")
        consumer = log.backend.consumer(ConsumerConfig(group="g"))
        gone: list[TopicPartition] = []
        consumer.on_revoked = gone.append
        await consumer.subscribe(["t"])
        assert len(await consumer.fetch()) == 1
        await log.backend.remove_group_members("g")
        assert gone == [TopicPartition("t", 0)]
        await consumer.aclose()

    run(test)


def test_records_that_are_held_back_keep_their_order(run: Callable[[Test], None]) -> None:
    async def test(log: Log) -> None:
        bus = log.bus
        over = log.hold("send", topic="t")
        deliveries = [bus.send_nowait("t", str(number)) for number in range(3)]
        await bus.send("elsewhere", "is not held up")
        log.backend.hooks.clear()
        deliveries.append(bus.send_nowait("t", "3"))  # behind those that wait, though nothing holds it back itself
        await log.clock.settle()
        assert not any(delivery.done() for delivery in deliveries)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bus.send, "t", "4")
            await log.clock.settle()
            over.set()
        await bus.flush()
        assert [(await delivery).offset for delivery in deliveries] == [0, 1, 2, 3]
        async with bus.new_consumer("t", group="g", value=str) as consumer:
            assert [record.value for record in await consumer.poll()] == ["0", "1", "2", "3", "4"]

    run(test)


def test_a_transaction_that_missed_a_record_is_not_committed(run: Callable[[Test], None]) -> None:
    async def test(log: Log) -> None:
        bus = log.bus
        with pytest.raises(TransactionAborted, match="was not stored: no answer"):
            async with bus.transaction("x") as tx:
                tx.send_nowait("t", "a")
                log.refuse("send", RequestTimedOut("no answer"))
                tx.send_nowait("t", "b")
                log.backend.hooks.clear()
        async with bus.transaction("x") as tx:
            tx.send_nowait("t", "c")
        async with bus.new_consumer("t", group="g", value=str) as consumer:
            assert [record.value for record in await consumer.poll()] == ["c"]

    run(test)


def test_an_aborted_transaction_sends_nothing_later(run: Callable[[Test], None]) -> None:
    async def test(log: Log) -> None:
        bus = log.bus
        over = log.hold("send")
        with pytest.raises(LookupError):
            async with bus.transaction("x") as tx:
                delivery = tx.send_nowait("t", "a")
                raise LookupError
        assert isinstance(delivery.exception(), TransactionAborted)
        log.backend.hooks.clear()
        over.set()
        async with bus.transaction("x") as tx:
            tx.send_nowait("t", "b")
        async with bus.new_consumer("t", group="g", value=str, isolation_level="read_uncommitted") as consumer:
            assert [record.value for record in await consumer.poll()] == ["b"]

    run(test)


_names = itertools.count()


class Watched(Target):
    """A log in memory whose every step is watched by a hook that does nothing."""

    can = frozenset({"restart"})

    def __init__(self) -> None:
        self._name = f"memory://watched-{next(_names)}"
        self._storage = MemoryStorage()

    def open(self) -> EventBus:
        def make() -> Engine:
            return Engine(self._name, self._storage, BrokerConfig(), system_clock, new_id)

        backend = FaultyBackend(EmbeddedBackend(self._name, lambda: Engine.shared(self._name, BrokerConfig(), make)))
        backend.hooks.append(lambda call: None)
        return EventBus(self._name, backend=backend)


@pytest.mark.system
@pytest.mark.parametrize("promise", promises_for(Watched), ids=repr)
def test_it_keeps_the_promises_of_every_backend(promise: Promise) -> None:
    promise.check(Watched())
