"""The topic of schemas on a bus: made or checked, read to its end, and followed from then on."""

from __future__ import annotations

import logging
import time
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import anyio

from eventbus.backends.base import EARLIEST
from eventbus.broker import TopicSpec
from eventbus.errors import EventBusError, OffsetOutOfRange, RegistryRefused
from eventbus.ledger import ends_of, find_or_create, read_to_end
from eventbus.types import IsolationLevel, TopicPartition
from schema_registry.ledger import Ledger, Stored

if TYPE_CHECKING:
    from eventbus import EventBus
    from eventbus.client.consumer import Consumer

logger = logging.getLogger("schema_registry")

_AT_ONCE = 1_000
"""Records between two looks at the rest of the world: some ten milliseconds."""
_POLL_MS = 500
_AGAIN_SECONDS = 1.0


class Follower:
    """Reads the topic into a ledger, in a separate task."""

    def __init__(self, bus: EventBus, ledger: Ledger) -> None:
        self._bus = bus
        self._ledger = ledger
        self._where = TopicPartition(ledger.topic, 0)
        self._moved = anyio.Event()
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._reading: anyio.Event | None = None
        """While one reads to the end."""
        self._begun = self._ended_readings = 0
        self._has_read = False
        self.lock = anyio.Lock()
        """Held while records of our own are stored: what is read meanwhile waits for them."""
        self.refusal: RegistryRefused | None = None
        """Why nothing may be written any more."""
        self._topic_id = ""
        self._unseen: int | None = None
        """From here on there may be records that were aborted."""

    async def start(self, replication_factor: int, *, accept_truncated: bool) -> None:
        """Raises RegistryRefused for a topic that ids cannot be trusted to."""
        await self._check_topic(replication_factor)
        begin = (await self._bus.admin.list_offsets({self._where: EARLIEST}))[self._where].offset
        if begin > 0 and not accept_truncated:
            raise RegistryRefused(
                f"topic {self._where.topic!r} begins at offset {begin}: compaction never takes the beginning away, so "
                "records were deleted, and with them ids that data may still carry. Import an export into a new topic; "
                "or, if you know that nothing is missing, start once with Registry(accept_truncated=True)"
            )
        self._ledger.next = self._unseen = begin
        began = time.monotonic()
        consumer = self._bus.new_consumer(partitions=[self._where], start="earliest")
        await consumer.__aenter__()
        self._bus.context.start_soon(lambda: self._run(consumer))
        try:
            await self._reach(await self._end())
            self._ledger.loaded()
        except BaseException:
            await self.aclose()
            raise
        state, seconds = self._ledger.settled, time.monotonic() - began
        count = sum(map(len, state.subjects.values()))
        logger.info("topic %r holds %d schema version(s); read in %.2f s", self._where.topic, count, seconds)

    async def _check_topic(self, replication_factor: int) -> None:
        name = self._where.topic
        spec = TopicSpec(name, 1, replication_factor, {"cleanup.policy": "compact"})
        found = await find_or_create(self._bus.context.backend, spec)
        self._topic_id = found.topic_id
        if len(found.partitions) != 1:
            raise RegistryRefused(
                f"topic {name!r} has {len(found.partitions)} partitions: the order of schemas needs exactly one. Name "
                "another topic with Registry(topic=...), or delete this topic and import an export"
            )
        policy = found.configs.get("cleanup.policy")
        if policy is not None and policy.value != "compact":
            raise RegistryRefused(
                f"topic {name!r} has cleanup.policy={policy.value}: schemas would be deleted with time, and their ids "
                f"given again. Set it right: eventbus topics alter {name} --config cleanup.policy=compact"
            )

    async def aclose(self) -> None:
        self._scope.cancel()
        await self._ended.wait()

    # reading ---------------------------------------------------------------------------------------------------------

    async def _run(self, consumer: Consumer) -> None:
        try:
            with self._scope:
                while self.refusal is None:
                    await self._follow(consumer)
        finally:
            with anyio.CancelScope(shield=True):
                await consumer.aclose()
            self._ended.set()
            self._tell()

    async def _follow(self, consumer: Consumer) -> None:
        try:
            while self.refusal is None:
                await self._step(consumer)
        except OffsetOutOfRange as error:
            self._refuse_topic(f"it no longer holds the offset that comes next ({error})")
        except EventBusError as error:
            logger.warning("following topic %r: %s; trying again", self._where.topic, error)
            await anyio.sleep(_AGAIN_SECONDS)
        except Exception as error:  # this task belongs to the bus: an error that leaves it ends the bus
            logger.exception("Reading topic %r failed", self._where.topic)
            self._refuse(
                RegistryRefused(
                    f"The registry cannot read topic {self._where.topic!r} any more. Its reading task failed: "
                    f"{error!r}. Report the traceback in its log, and restart the registry"
                )
            )

    async def _step(self, consumer: Consumer) -> None:
        # After records, poll once without waiting: only an empty poll shows that the end was reached.
        polled = await consumer.poll(0 if self._has_read else _POLL_MS, _AT_ONCE)
        self._has_read = bool(polled)
        if not consumer.assignment():
            self._refuse_topic("its partition is gone")
        async with self.lock:
            if polled:
                self._note_gaps([one.offset for one in polled])
                self._ledger.take(Stored(one.offset, one.key, one.value) for one in polled)
            elif self.refusal is None:  # past the markers of transactions, and what was aborted
                position = await consumer.position(self._where)
                self._note_gaps([position])
                self._ledger.advance(position)
        self._tell()

    def _note_gaps(self, offsets: list[int]) -> None:
        """A transaction's marker takes one offset; where more are missing, something was aborted."""
        if self._unseen is None:
            steps = pairwise((self._ledger.next - 1, *offsets))
            self._unseen = next((before + 1 for before, after in steps if after > before + 2), None)

    async def burn(self) -> None:
        """Ids in records that were aborted are not given to others: a reader of uncommitted records has seen them.

        Confluent's registry is one. Asked for by who writes, once the id of the transactions is its own.
        """
        begin, self._unseen = self._unseen, None
        if begin is None:
            return
        end = await self._end(IsolationLevel.READ_UNCOMMITTED)
        all_of_it = self._bus.new_consumer(
            partitions=[self._where], start="earliest", isolation_level="read_uncommitted"
        )
        async with all_of_it as consumer:
            consumer.seek(self._where, begin)
            poll = partial(consumer.poll, _POLL_MS, _AT_ONCE)
            await read_to_end(consumer, poll, {self._where: end}, self._ledger.burn)

    def _tell(self) -> None:
        self._moved.set()
        self._moved = anyio.Event()

    def _refuse_topic(self, what: str) -> None:
        self._refuse(
            RegistryRefused(
                f"topic {self._where.topic!r} was deleted or cut while this registry ran: {what}. Ids could be given a "
                "second time, so nothing is written any more. Import an export into a new topic, then start again"
            )
        )

    def _refuse(self, refusal: RegistryRefused) -> None:
        if self.refusal is None:
            self.refusal = refusal
            logger.error("%s", refusal)
            self._tell()

    async def catch_up(self) -> bool:
        """Read to the end. Return True if there were records. Concurrent callers share the next read."""
        before = self._ledger.generation
        wanted = self._begun + 1  # one that has begun may have missed what we look for
        while self._ended_readings < wanted:
            if self._reading is not None:
                await self._reading.wait()
                continue
            self._reading = anyio.Event()
            self._begun += 1
            try:
                await self._reach(await self._end())
                self._ended_readings = self._begun
            finally:
                self._reading.set()
                self._reading = None
        return self._ledger.generation != before

    async def _end(self, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED) -> int:
        """Return the end of what is decided: records of an open transaction are not waited for."""
        return (await ends_of(self._bus.context.backend, [self._where], isolation))[self._where]

    async def check_identity(self) -> None:
        """Raises RegistryRefused if the topic was deleted and created again."""
        found = (await self._bus.admin.describe_topics([self._where.topic]))[0]
        if found.topic_id != self._topic_id:
            self._refuse_topic("it was deleted and created again")
        self.check()

    def check(self) -> None:
        """Raises RegistryRefused when nothing may be written."""
        if self.refusal is not None:
            raise self.refusal

    async def _reach(self, end: int) -> None:
        if end < self._ledger.next and await self._end(IsolationLevel.READ_UNCOMMITTED) < self._ledger.next:
            self._refuse_topic(f"it ends at offset {end}, and {self._ledger.next - 1} was read before")
        while self._ledger.next < end and self.refusal is None:
            if self._ended.is_set():
                raise RegistryRefused("the registry is closed")
            await self._moved.wait()
        if self.refusal is not None:
            raise self.refusal
