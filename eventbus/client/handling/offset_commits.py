"""Hop 7: what is finished in a handler's partitions becomes its group's offsets."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from contextlib import contextmanager

import anyio

from eventbus.backends.base import BackendConsumer
from eventbus.backends.clock import Timers
from eventbus.backends.histogram import SECONDS, Histogram
from eventbus.backends.wake import Wake
from eventbus.client.handling.forwarding import Moves, is_final
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.partition_driver import PartitionDriver
from eventbus.client.handling.work_actions import Commit
from eventbus.errors import (
    EventBusError,
    FencedInstanceId,
    HandlerError,
    IllegalGeneration,
    RebalanceInProgress,
    UnknownMemberId,
)
from eventbus.types import OffsetAndMetadata, TopicPartition

logger = logging.getLogger("eventbus.runner")

REBALANCED = (IllegalGeneration, UnknownMemberId, RebalanceInProgress, FencedInstanceId)
"""Errors of a commit by a member whose group has rebalanced or fenced it."""
_LONGEST_QUIET_SECONDS = 1.0
"""Longest time between two checks while no record finishes."""
_LONGEST_PAUSE_SECONDS = 5.0
"""Between two attempts, while commits fail."""


class OffsetCommits:
    """Commit the finished prefixes of a handler's partitions, at intervals and on request."""

    def __init__(
        self,
        handler: Handler[..., object],
        consumer: BackendConsumer,
        drivers: Mapping[TopicPartition, PartitionDriver],
        timers: Timers,
        moves: Moves | None,
        on_moved: Callable[[], object],
    ) -> None:
        """``moves``: of a handler whose failed records go elsewhere. ``on_moved``: called when such records are stored,
        or could not be."""
        self._handler = handler
        self._is_ahead = handler.spec.delivery == "at-most-once"
        self._consumer = consumer
        self._drivers = drivers
        self._timers = timers
        self._moves = moves
        self.elsewhere: dict[TopicPartition, int] = {}
        """Offsets for the group to show, with the next commit: where a database begins, or a new retry partition."""
        self._on_moved = on_moved
        self._turn = anyio.Lock()
        self._interval_seconds = handler.spec.commit_interval_ms / 1000
        self._expected = Wake()
        """There will be something to commit."""
        self._due = Wake()
        """Do not wait for the end of the interval."""
        self._failures = 0
        self.last_commit_at: float | None = None
        """Seconds on the timers."""
        self.error = ""
        """The error of the last commit; "" if it was stored."""
        self._failing_since: float | None = None
        self.seconds = Histogram(SECONDS)
        """How long a commit takes."""
        self._unanswered: list[float] = []
        """When the commits were asked for that are under way."""

    @property
    def failing_since(self) -> float | None:
        """Seconds on the timers; None while commits are stored. One that is not answered for long fails, too."""
        asked_at = min(self._unanswered, default=math.inf)
        if self._failing_since is None and self._timers.current_time() - asked_at > _LONGEST_PAUSE_SECONDS:
            return asked_at
        return self._failing_since

    def expect(self) -> None:
        """Records are in flight: commit what has finished at the end of the interval."""
        self._expected.set()

    def due(self) -> None:
        """Commit as soon as possible."""
        self._expected.set()
        self._due.set()

    async def run(self) -> None:
        """Commit regularly, for ever; the failures are logged, and tried again at growing intervals."""
        moved_at = 0.0
        while True:
            if not self._expected.is_set:
                await self._expected.wait()
                moved_at = self._timers.current_time()
            self._expected.clear()
            if self._failures:
                # With a growing pause: a thousand handlers that commit again at once would keep a coordinator that
                # restarts busy.
                await self._timers.sleep(min(self._interval_seconds * 2**self._failures, _LONGEST_PAUSE_SECONDS))
            else:
                # Where nothing has finished for long, a little longer does not matter.
                quiet_seconds = min(self._timers.current_time() - moved_at, 10 * _LONGEST_QUIET_SECONDS)
                await self._due.wait(max(self._interval_seconds, quiet_seconds / 10), self._timers)
            # Cleared before the attempt, so that a request that arrives during it is not lost.
            self._due.clear()
            await self.attempt()
            if self.last_commit_at is not None:
                moved_at = max(moved_at, self.last_commit_at)
            is_left = any(
                driver.is_busy or driver.has_moves or driver.work.has_uncommitted for driver in self._drivers.values()
            )
            if is_left or self.elsewhere:
                self._expected.set()  # slow handlers, or a commit that failed

    async def attempt(self, drivers: Collection[PartitionDriver] | None = None) -> None:
        """Commit what is finished now, of some partitions or all; what goes wrong is logged."""
        try:
            await self.commit(drivers)
        except REBALANCED as error:
            # The next fetch rejoins; then it is tried again, or the partition is given up there.
            logger.debug("handler %r: not committed yet: %s", self._handler.__name__, error)
        except EventBusError as error:
            if str(error) != self.error:  # it is tried again and again: say it once
                logger.error("handler %r: offsets are not committed: %s", self._handler.__name__, error)
            self.failed(error)

    def commit(self, drivers: Collection[PartitionDriver] | None = None) -> Awaitable[None]:
        """Commit what is finished now, of some partitions or all. Raises what a commit raises."""
        self._consumer.assignment()  # those gone meanwhile are abandoned here
        return self.commit_of(list(self._drivers.values()) if drivers is None else drivers)

    async def commit_of(self, drivers: Collection[PartitionDriver]) -> None:
        """The same of some partitions."""
        for driver in drivers:
            if driver.outputs:
                driver.settle()
        # One commit at a time: of two commits in flight for a partition, the earlier could be stored later, and would
        # take the offset back. A record that was moved by then would be read, and moved, a second time.
        try:
            self._turn.acquire_nowait()  # as `async with`, without its look-ups of the library
        except anyio.WouldBlock:
            await self._turn.acquire()
        try:
            moves = self._moves
            unsure = [] if moves is None else [driver for driver in drivers if moves.has(driver)]
            plain: dict[PartitionDriver, Commit] = {}
            moving: dict[PartitionDriver, Commit | None] = dict.fromkeys(unsure)
            for driver in drivers:
                # At most once, the driver itself commits before it calls. A commit from here could cover records that
                # it has not called.
                if driver not in moving and not (self._is_ahead and driver.work.commits_ahead):
                    commit = driver.work.next_commit()
                    if isinstance(commit, Commit):
                        (moving if commit.forwards else plain)[driver] = commit
            await self._commit_plainly(plain)
            if moves is not None and moving:
                await self._commit_moves(moves, moving)
        finally:
            self._turn.release()

    async def _commit_moves(self, moves: Moves, commits: Mapping[PartitionDriver, Commit | None]) -> None:
        errors: list[EventBusError] = []
        if len(commits) == 1:
            for driver, commit in commits.items():
                await self._commit_with(moves, driver, commit, errors)
        else:
            async with anyio.create_task_group() as tasks:  # each partition has its own transaction
                for driver, commit in commits.items():
                    tasks.start_soon(self._commit_with, moves, driver, commit, errors)
        self._on_moved()
        if errors:
            raise errors[0]

    async def _commit_with(
        self, moves: Moves, driver: PartitionDriver, commit: Commit | None, errors: list[EventBusError]
    ) -> None:
        with self.asked():
            try:
                await moves.commit(driver, commit)
            except EventBusError as error:
                errors.append(error)
                # A caller of `ack_now` waits for this commit and gets its error.
                driver.was_committed(driver.work.finished, error)
                if is_final(error) and not isinstance(error, REBALANCED) and not driver.closing:
                    self._stop(driver, error)
            else:
                self.succeeded()

    def _stop(self, driver: PartitionDriver, error: EventBusError) -> None:
        """Stop the partition: failed records can neither be written to another topic nor be skipped."""
        stopped = HandlerError(
            f"handler {self._handler.__name__!r}: {driver.topic_partition}: what failed could not be written to its "
            f"retry or dead-letter topic, so nothing from offset {max(driver.work.committed, 0)} on is committed: "
            f"{error}"
        )
        stopped.__cause__ = error
        driver.stop(stopped)

    async def _commit_plainly(self, commits: Mapping[PartitionDriver, Commit]) -> None:
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for driver, commit in commits.items():
            note = "" if driver.note is None else driver.note()
            offsets[driver.topic_partition] = OffsetAndMetadata(commit.next_offset, note)
        shown, self.elsewhere = self._shown() if self.elsewhere else {}, {}
        for partition, offset in shown.items():
            offsets.setdefault(partition, OffsetAndMetadata(offset))
        if not offsets:
            return
        with self.asked():
            try:
                await self._consumer.commit(offsets)
            except BaseException as error:
                for driver, commit in commits.items():
                    # Whatever the outcome, the next commit covers these records too, and committing an offset twice is
                    # harmless.
                    driver.work.commit_failed(commit)
                    if isinstance(error, EventBusError):
                        driver.was_committed(commit.next_offset, error)
                self.elsewhere = {**shown, **self.elsewhere}
                raise
        for driver, commit in commits.items():
            driver.stored(commit)
        self.succeeded()

    def _shown(self) -> dict[TopicPartition, int]:
        """Return the offsets of `elsewhere` for assigned partitions whose drivers have committed nothing further."""
        ours, drivers = set(self._consumer.assignment()), self._drivers
        return {
            one: offset for one, offset in self.elsewhere.items()
            if one in ours and (one not in drivers or drivers[one].work.committed < offset)
        }  # fmt: skip

    @contextmanager
    def asked(self) -> Generator[None]:
        """A commit is under way."""
        asked_at = self._timers.current_time()
        self._unanswered.append(asked_at)
        try:
            yield
        finally:
            self._unanswered.remove(asked_at)
            self.seconds.add(self._timers.current_time() - asked_at)

    def succeeded(self) -> None:
        """A commit was stored."""
        self.error, self._failures, self._failing_since = "", 0, None
        self.last_commit_at = self._timers.current_time()

    def failed(self, error: EventBusError) -> None:
        """Handle a commit that was refused for another reason than a rebalance."""
        self.error = str(error)
        self._failures += 1
        if self._failing_since is None:
            self._failing_since = self._timers.current_time()
