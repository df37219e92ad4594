"""A bus that is closed, drained, started or cancelled while something else of its life is under way."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import anyio
import pytest

from eventbus import EventBus
from eventbus.backends.embedded import EmbeddedBackend
from eventbus.backends.engine import Engine
from eventbus.backends.urls import broker_config, new_id, system_clock
from eventbus.broker import TopicDescription, TopicSpec
from eventbus.errors import ConfigError, KafkaError, StoppedBySignal
from eventbus.log.memory import MemoryStorage
from tests.client.fakes import on_both, others_run
from tests.client.trials import turns


class SlowLog(EmbeddedBackend):
    """A log in memory that answers when it is let, as one that is far away."""

    def __init__(self) -> None:
        storage, config = MemoryStorage(), broker_config({"auto_create_topics": True})
        super().__init__("memory://", lambda: Engine("memory://", storage, config, system_clock, new_id))
        self.may_create = self.may_close = True
        self.asked, self.go_on = anyio.Event(), anyio.Event()

    async def _wait(self, may: bool) -> None:
        if not may:
            self.asked.set()
            await self.go_on.wait()

    async def create_topics(
        self, specs: Sequence[TopicSpec], *, validate_only: bool = False
    ) -> dict[str, TopicDescription | KafkaError]:
        made = await super().create_topics(specs, validate_only=validate_only)
        await self._wait(self.may_create)
        return made

    async def aclose(self) -> None:
        await super().aclose()
        await self._wait(self.may_close)


def with_handler(**config: Any) -> EventBus:
    bus = EventBus("memory://", **config)
    bus.topic("t")

    @bus.consumer("t", group="g")
    async def handle(value: bytes) -> None: ...

    return bus


# starting ------------------------------------------------------------------------------------------------------------


@on_both
async def test_closing_a_bus_that_starts_is_refused_not_forgotten() -> None:
    """It returned at once, and the bus went on."""
    log = SlowLog()
    log.may_create = False
    bus = with_handler(backend=log)
    async with anyio.create_task_group() as tasks:

        async def close_it() -> None:
            await log.asked.wait()
            with pytest.raises(ConfigError, match="another task than the one that started the bus"):
                await bus.close()
            log.go_on.set()

        tasks.start_soon(close_it)
        async with bus:
            assert bus.context.phase == "running"


@on_both
async def test_a_hook_that_closes_the_bus_that_starts_is_told() -> None:
    bus = with_handler()

    @bus.on_startup
    async def impatient(bus: EventBus) -> None:
        await bus.close()

    with pytest.raises(ConfigError, match="the bus is starting: raise an error to end that"):
        await bus.start()
    assert bus.context.phase == "stopped"


@on_both
async def test_what_is_declared_while_the_log_opens_is_refused_not_lost() -> None:
    """Handlers are read before the log is opened, which takes a while at a cluster."""
    log = SlowLog()
    log.may_create = False
    bus = with_handler(backend=log)
    async with anyio.create_task_group() as tasks:

        async def declare() -> None:
            await log.asked.wait()
            with pytest.raises(ConfigError, match="before the bus starts"):

                @bus.consumer("t", group="late")
                async def late(value: bytes) -> None: ...

            log.go_on.set()

        tasks.start_soon(declare)
        async with bus:
            assert len(bus.context.runners) == 1


@on_both
async def test_a_start_that_is_cancelled_leaves_no_temporary_topics_behind() -> None:
    log = SlowLog()
    bus = EventBus(backend=log)
    bus.topic("scratch", temporary=True)
    log.may_create = False

    async def live() -> None:
        async with bus:
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(live)
        await log.asked.wait()
        tasks.cancel_scope.cancel()
        log.go_on.set()
    log.may_create = True
    async with bus:  # else it is there already
        assert await bus.admin.list_topics() == ["scratch"]


@on_both
async def test_a_start_waits_for_no_log_that_is_closed_meanwhile() -> None:
    """Closing ends with the log's: before that nothing of it may begin again."""
    log = SlowLog()
    log.may_close = False
    bus = with_handler(backend=log)

    async def live() -> None:
        async with bus:
            pass

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(live)
        await log.asked.wait()
        assert bus.context.phase == "closing"
        with pytest.raises(ConfigError, match="running already"):
            await bus.start()
        with pytest.raises(ConfigError, match="not running"):
            await bus.send("t", b"")
        assert bus.metrics().handlers == ()
        log.go_on.set()
    assert bus.context.phase == "stopped"
    async with bus:
        await bus.drain()


class Ledger:
    """A part, and hooks, that tell what is open."""

    def __init__(self, bus: EventBus) -> None:
        self.open: list[str] = []
        self.ended: list[str] = []
        bus.include(self)

        @bus.on_startup
        async def pool() -> AsyncIterator[None]:
            self.open.append("pool")
            await turns(2)
            yield
            await turns(2)
            self._closed("pool")

        @bus.on_startup
        def file() -> Iterator[None]:
            self.open.append("file")
            yield
            self._closed("file")

    async def start(self, bus: EventBus) -> None:
        self.open.append("part")
        await turns(2)

    async def aclose(self) -> None:
        await turns(2)
        self._closed("part")

    def _closed(self, what: str) -> None:
        self.open.remove(what)
        self.ended.append(what)


@pytest.mark.parametrize("steps", range(0, 44, 2))
@on_both
async def test_whenever_a_life_is_cancelled_what_was_open_is_closed_once(steps: int) -> None:
    bus = with_handler()
    ledger = Ledger(bus)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def cancel() -> None:
                await turns(steps)
                scope.cancel()

            tasks.start_soon(cancel)
            async with bus:
                await bus.send("t", b"")
                await turns(3)
    # The pool that was cancelled before its ``yield`` is its own to close.
    assert ledger.open in ([], ["pool"]) and len(set(ledger.ended)) == len(ledger.ended)
    assert bus.context.phase == "stopped"
    ledger.open.clear()
    async with bus:
        await bus.send("t", b"")
        await bus.drain()
    assert ledger.open == []


# hooks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["start", "end"])
@on_both
async def test_a_hook_that_raises_keeps_no_other_from_closing_what_it_opened(when: str) -> None:
    """Its error was thrown into the generators before it, so that the code after their ``yield`` did not run."""
    story: list[str] = []
    bus = with_handler()

    @bus.on_startup
    async def pool() -> AsyncIterator[None]:
        yield
        await anyio.lowlevel.checkpoint()
        story.append("pool closed")

    @bus.on_startup
    def file() -> Iterator[None]:
        yield
        story.append("file closed")

    @(bus.on_startup if when == "start" else bus.on_shutdown)
    def broken() -> None:
        raise OSError("no database")

    with pytest.raises(OSError, match="no database"):
        async with bus:
            pass
    assert story == ["file closed", "pool closed"]


@pytest.mark.parametrize("when", ["start", "end"])
@on_both
async def test_a_hook_swallows_no_error_of_another(when: str) -> None:
    """The bus ran as if its start had gone well."""
    bus = with_handler()

    @bus.on_startup
    async def tolerant() -> AsyncIterator[None]:
        with contextlib.suppress(OSError):
            yield

    @(bus.on_startup if when == "start" else bus.on_shutdown)
    def broken() -> None:
        raise OSError("no database")

    with pytest.raises(OSError, match="no database"):
        async with bus:
            assert when == "end"
    assert bus.context.phase == "stopped"


@on_both
async def test_what_hooks_opened_is_closed_in_peace_when_the_start_is_cancelled() -> None:
    story: list[str] = []
    bus = with_handler()

    @bus.on_startup
    async def pool() -> AsyncIterator[None]:
        yield
        await anyio.lowlevel.checkpoint()
        story.append("closed")

    @bus.on_startup
    async def hanging() -> None:
        story.append("hangs")
        await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bus.start)
        while not story:
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert story == ["hangs", "closed"]


@pytest.mark.parametrize("late", [False, True], ids=["before", "meanwhile"])
@on_both
async def test_a_second_signal_waits_for_no_hook_that_hangs(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventbus.client.lifespan._AT_ONCE_SECONDS", 0.001)
    bus = with_handler()

    @bus.on_shutdown
    async def hanging() -> None:
        if late:
            life.stop_at_once(signal.SIGTERM)
        await anyio.sleep_forever()

    with pytest.raises(StoppedBySignal), anyio.fail_after(20):
        async with bus:
            life: Any = bus.context.bus_run  # pyright: ignore[reportPrivateUsage]
            if not late:
                life.stop_at_once(signal.SIGTERM)


class ClosesBadly:
    """A part that raises as it is closed."""

    async def start(self, bus: EventBus) -> None: ...

    async def aclose(self) -> None:
        raise OSError("of closing")


@pytest.mark.parametrize("when", ["start", "body"])
@on_both
async def test_what_went_wrong_first_is_told_with_what_closing_raises(when: str) -> None:
    """On trio it was nowhere to be seen."""
    bus = with_handler()
    bus.include(ClosesBadly())

    @bus.on_startup
    def broken() -> None:
        if when == "start":
            raise KeyError("first")

    with pytest.raises(OSError, match="of closing") as caught:
        async with bus:
            raise KeyError("first")
    chain: list[BaseException] = [caught.value]
    while (before := chain[-1].__context__) is not None:
        assert all(before is not one for one in chain), "it leads to itself"
        chain.append(before)
    assert [str(one) for one in chain if isinstance(one, KeyError)] == ["'first'"]


# draining ------------------------------------------------------------------------------------------------------------


class HoldsForEver:
    """A part whose `drain` never returns: what it holds cannot be published."""

    def __init__(self) -> None:
        self.asked = anyio.Event()

    async def start(self, bus: EventBus) -> None: ...

    async def aclose(self) -> None: ...

    async def drain(self) -> bool:
        self.asked.set()
        await anyio.sleep_forever()
        return False


@on_both
async def test_who_drains_is_told_that_the_bus_is_closed_whatever_parts_do() -> None:
    bus, part = with_handler(), HoldsForEver()
    bus.include(part)
    told: list[str] = []

    async def drain() -> None:
        try:
            await bus.drain()
        except ConfigError as error:
            told.append(str(error))

    async with anyio.create_task_group() as tasks:
        async with bus:
            tasks.start_soon(drain)
            tasks.start_soon(drain)  # this one waits for the other
            await part.asked.wait()
        async with bus:  # nor does the next run answer for the last one
            await others_run()
            assert len(told) == 2 and all("drain: the bus is not running" in one for one in told)


@on_both
async def test_a_hook_of_the_end_that_drains_is_told_that_it_is_too_late() -> None:
    """The handlers take nothing more: it waited for them until its time was over."""
    bus = with_handler()
    told: list[str] = []

    @bus.on_shutdown
    async def drain(bus: EventBus) -> None:
        with pytest.raises(ConfigError, match="its handlers take nothing more") as caught:
            await bus.drain()
        told.append(str(caught.value))

    with anyio.fail_after(20):
        async with bus:
            await bus.send("t", b"")
    assert told


@on_both
async def test_a_hook_of_the_end_drains_what_no_handler_reads() -> None:
    bus = EventBus("memory://")
    bus.topic("t")
    drained: list[int] = []

    @bus.on_shutdown
    async def drain(bus: EventBus) -> None:
        sent = bus.send_nowait("t", b"")
        await bus.drain()
        drained.append(sent.result().offset)

    async with bus:
        pass
    assert drained == [0]


# closing -------------------------------------------------------------------------------------------------------------


@on_both
async def test_run_in_another_task_returns_when_the_bus_is_closed() -> None:
    bus, returned = with_handler(), anyio.Event()

    async def run() -> None:
        await bus.run()
        returned.set()

    async with anyio.create_task_group() as tasks:
        async with bus:
            tasks.start_soon(run)
            await others_run()
        with anyio.fail_after(20):
            await returned.wait()


@on_both
async def test_a_part_that_begins_while_the_bus_closes_is_closed_too() -> None:
    bus = with_handler()
    closed: list[str] = []

    class Late:
        async def start(self, bus: EventBus) -> None: ...

        async def aclose(self) -> None:
            closed.append("late")

    @bus.on_shutdown
    def begin(bus: EventBus) -> None:
        bus.context.has_begun(Late())

    async with bus:
        pass
    assert closed == ["late"]


@on_both
async def test_a_transaction_is_of_the_run_that_it_was_made_in() -> None:
    """Only that run knew about its turn. A concurrent transaction with its id would have fenced it."""
    bus = with_handler()
    async with bus:
        old = bus.transaction("id")
    async with bus:
        with pytest.raises(ConfigError, match="transaction: the bus is not running"):
            async with old:
                pass
