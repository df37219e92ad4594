"""Work that goes on while something breaks: plain senders, and a service that copies in transactions; then the proof.

What the log acknowledged is in it, once, in the order it was sent; and each record was copied exactly once, in order.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

from eventbus import EventBus
from eventbus.errors import EventBusError

PARTITIONS = 2
PATIENCE_SECONDS = 150
"""A busy machine included: three brokers and their clients on two cores."""


async def _answered(answer: Awaitable[bool]) -> bool:
    """A broker that is gone does not answer; the next one will."""
    try:
        return await answer
    except EventBusError as error:
        if not error.retriable:
            raise
        return False


async def until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    """Look again and again. Raises TimeoutError when it takes too long."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while True:
            answer = holds()
            if answer if isinstance(answer, bool) else await _answered(answer):
                return
            await anyio.sleep(0.05)


class Load:
    """Its records are ``partition/number``."""

    def __init__(self, bus: EventBus, name: str) -> None:
        self.bus = bus
        self.source = f"{name}-in"
        self.target = f"{name}-out"
        self.acked = [0] * PARTITIONS
        """How many records of each partition were acknowledged."""
        self.longest_wait_seconds = 0.0
        """Between two acknowledgements of one partition."""
        self._copied = 0
        self.is_stopped = False

        # What was begun at a broker that is gone ends after ten seconds, not a minute: readers wait for that.
        @bus.consumer(self.source, group=name, exactly_once=True, start="earliest", transaction_timeout_ms=10_000)
        @bus.producer(self.target, key=lambda value: value.partition(b"/")[0])
        async def copy(value: bytes) -> bytes:
            self._copied += 1
            return value

    async def send(self, partition: int) -> None:
        last = anyio.current_time()
        while not self.is_stopped:
            await self.bus.send(self.source, b"%d/%d" % (partition, self.acked[partition]), partition=partition)
            self.acked[partition] += 1
            now = anyio.current_time()
            self.longest_wait_seconds = max(self.longest_wait_seconds, now - last)
            last = now
            await anyio.sleep(0.005)  # some work, not all that the machine can do

    async def goes_on(self, more: int = 50) -> None:
        """Return when so many more records of each partition were acknowledged, and about as many copied."""
        wanted, copied = [count + more for count in self.acked], self._copied + PARTITIONS * more
        await until(lambda: self._copied >= copied and all(map(int.__ge__, self.acked, wanted)))

    async def stop(self) -> None:
        """Send no more, and return when all that was sent is acknowledged."""
        self.is_stopped = True
        await self.bus.flush()

    async def check(self) -> None:
        """Raises AssertionError for what is lost, doubled, or out of order."""
        sent = [[b"%d/%d" % (partition, n) for n in range(count)] for partition, count in enumerate(self.acked)]
        source = await self._read(self.source, sum(self.acked))
        for partition, values in enumerate(sent):
            # One more may be there: it was on its way when the senders stopped.
            found = [value for value in source if value.startswith(b"%d/" % partition)]
            more = b"%d/%d" % (partition, len(values))
            assert found in (values, [*values, more]), f"{len(found)} of {len(values)} in {self.source}-{partition}"
        target = await self._read(self.target, len(source))
        for partition in range(PARTITIONS):
            prefix = b"%d/" % partition
            wanted = [value for value in source if value.startswith(prefix)]
            assert [value for value in target if value.startswith(prefix)] == wanted

    async def _read(self, topic: str, least: int) -> list[bytes]:
        """What read-committed readers see, once it is at least so much."""
        with anyio.fail_after(PATIENCE_SECONDS):
            while True:
                async with self.bus.new_consumer(topic) as consumer:
                    found = [record.value async for record in consumer.until_end()]
                if len(found) >= least:
                    return found
                await anyio.sleep(0.2)


@asynccontextmanager
async def load(url: str, name: str) -> AsyncGenerator[Load]:
    """Runs inside; checked at the end."""
    bus = EventBus(url)
    work = Load(bus, name)
    async with EventBus(url) as admin:
        for topic in (work.source, work.target):
            await admin.admin.create_topic(topic, PARTITIONS)
    async with bus, anyio.create_task_group() as tasks:
        for partition in range(PARTITIONS):
            tasks.start_soon(work.send, partition)
        await work.goes_on()
        yield work
        if not work.is_stopped:
            await work.goes_on()
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await work.check()
