"""Read a table's topic: up to its end before the handlers start, and then as long as the bus runs."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

import anyio

from eventbus.backends.base import Backend, BackendConsumer
from eventbus.errors import ConfigError, EventBusError, TableError, UnknownTopicOrPartition
from eventbus.ledger import ends_of
from eventbus.types import FetchedRecords, IsolationLevel, TopicPartition

logger = logging.getLogger("eventbus.tables")

_LOOK_SECONDS = 5.0
"""Interval of requests for the end offsets, and of log lines during a long start."""
_WAIT_MS = 5_000
_PAUSE_SECONDS = 1.0
"""Pause after a failed read."""


class Following:
    """The reader of all partitions of a table, and its positions."""

    def __init__(
        self,
        name: str,
        topic: str,
        backend: Backend,
        reader: BackendConsumer,
        apply: Callable[[FetchedRecords], Awaitable[None]],
        clear: Callable[[], None],
    ) -> None:
        """``apply`` applies a fetch completely, or raises and applies nothing. ``clear`` removes everything that was
        applied.
        """
        self._name = name
        self._topic = topic
        self._backend = backend
        self._timers = backend.timers
        self._reader = reader
        self._apply = apply
        self._clear = clear
        self._positions: dict[TopicPartition, int] = {}
        """Records before these offsets are applied."""
        self._ends: dict[TopicPartition, int] = {}
        """The end offsets as of the last request."""
        self._in_hand: deque[FetchedRecords] = deque()
        """Fetches that are not applied yet."""
        self._looked_at = 0.0
        self._lives = 0
        """How often the topic was deleted."""
        self._moved = anyio.Event()
        self._scope = anyio.CancelScope()
        self._has_begun = False
        self._task: int | None = None
        """The task of `run`, which calls the functions of on_change."""
        self._is_closed = False
        self._over = anyio.Event()
        self.read = 0
        """Number of records that were read."""
        self.trouble = ""
        """Why nothing can be read now, or ""."""
        self.is_missing = False
        """True if the topic did not exist at the last check."""
        reader.on_revoked = self._gone

    @property
    def lag(self) -> int:
        """The number of records and markers up to the last known end."""
        return sum(max(end - self._positions.get(one, 0), 0) for one, end in self._ends.items())

    def _gone(self, partition: TopicPartition) -> None:
        if self._is_closed:
            return
        if self._positions.pop(partition, None) is not None:
            logger.warning("table %r: topic %r was deleted; the table is rebuilt", self._name, self._topic)
            self._positions.clear()
            self._ends.clear()
            self._in_hand.clear()
            self._lives += 1
            self._clear()
            self._wake()

    # to the end ------------------------------------------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Apply everything that is now in the topic. Raises the log's errors."""
        await self._reader.subscribe([self._topic])
        await self._look()
        began = logged_at = self._timers.current_time()
        total, lives = self.lag, self._lives
        while self.lag:
            await self._step()
            if lives != self._lives:
                await self._look()
                lives = self._lives
            now = self._timers.current_time()
            if now - logged_at >= _LOOK_SECONDS:
                logged_at = now
                logger.info(
                    "table %r: %s of %s offsets of topic %r to go, %s records/s so far",
                    self._name, f"{self.lag:,}", f"{total:,}", self._topic, f"{int(self.read / (now - began)):,}",
                )  # fmt: skip
        seconds = self._timers.current_time() - began
        level = logging.INFO if seconds >= _LOOK_SECONDS else logging.DEBUG
        logger.log(level, "table %r: %s records were read in %.1f s", self._name, f"{self.read:,}", seconds)

    async def ends(self, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED) -> dict[TopicPartition, int]:
        """Return the end offsets at this isolation level. Empty for an unknown topic."""
        try:
            [topic] = await self._backend.describe_topics([self._topic])
        except UnknownTopicOrPartition:
            return {}
        partitions = [TopicPartition(self._topic, one.partition) for one in topic.partitions]
        return await ends_of(self._backend, partitions, isolation) if partitions else {}

    async def _look(self) -> None:
        self._ends = await self.ends()
        self.is_missing = not self._ends
        self._looked_at = self._timers.current_time()

    async def _step(self) -> None:
        """Apply one fetch. It may contain no records, if it only passed markers or aborted records."""
        if not self._in_hand:
            self._in_hand.extend(await self._reader.fetch(_WAIT_MS))
        while self._in_hand:
            await self._apply(self._in_hand[0])
            self.read += len(self._in_hand.popleft())
        self._positions |= await self._reader.positions()
        self._wake()

    def _wake(self) -> None:
        moved, self._moved = self._moved, anyio.Event()
        moved.set()

    # and on ----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the topic until `aclose`. Runs as a task of the bus."""
        if self._is_closed:
            return
        self._has_begun = True
        self._task = anyio.get_current_task().id
        try:
            with self._scope:
                while True:
                    await self._follow()
        finally:
            self._over.set()

    async def _follow(self) -> None:
        try:
            await self._step()
            if self._timers.current_time() - self._looked_at >= _LOOK_SECONDS:
                await self._look()
        except EventBusError as error:
            if not self.trouble:
                logger.warning("table %r cannot be read, and is tried again: %s", self._name, error)
            self.trouble = str(error)
            await self._timers.sleep(_PAUSE_SECONDS)
        else:
            if self.trouble:
                logger.warning("table %r is read again", self._name)
            self.trouble = ""

    async def until(self, wanted: Mapping[TopicPartition, int]) -> None:
        """Return when everything before these offsets is applied.

        Raises TableError if the topic is deleted meanwhile, ConfigError if the bus is closed, and in a function of
        on_change, which the table waits for.
        """
        if self._task == anyio.get_current_task().id:
            raise ConfigError(
                f"table {self._name!r}: a function of on_change waits for the table, which waits for that function; "
                "what it writes arrives as the next change"
            )
        lives = self._lives
        while not self.has(wanted):
            if self._is_closed:
                raise ConfigError(f"table {self._name!r}: the bus was closed meanwhile")
            if lives != self._lives:
                raise TableError(f"table {self._name!r}: topic {self._topic!r} was deleted meanwhile")
            await self._moved.wait()

    def has(self, wanted: Mapping[TopicPartition, int]) -> bool:
        """True if everything before these offsets is applied."""
        return all(self._positions.get(one, 0) >= offset for one, offset in wanted.items())

    async def check_there(self, wanted: Mapping[TopicPartition, int]) -> None:
        """Raise TableError for offsets of an earlier, deleted topic, which the present one may never reach."""
        ends = await self.ends(IsolationLevel.READ_UNCOMMITTED) if self._lives else None
        if ends is not None and any(ends.get(one, -1) < offset for one, offset in wanted.items()):
            raise TableError(f"table {self._name!r}: topic {self._topic!r} was deleted since that record was sent")

    async def aclose(self) -> None:
        self._is_closed = True
        self._scope.cancel()
        if self._has_begun:
            await self._over.wait()
        self._moved.set()
        await self._reader.aclose()
