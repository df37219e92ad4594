"""Run a handler: call it with records, publish its outputs, and only then commit the offsets (steps 5 to 7).

Each handler has one poll loop, which passes fetched records to a `PartitionDriver` per partition. A driver with enough
records pauses its partition, so polling never waits for a handler. Commits run concurrently, and cover only the
finished prefix of each partition.

When the group rebalances, the drivers of revoked partitions finish the records in flight and commit. Records that were
fetched and not begun are dropped, because the next owner reads them. The other partitions continue.
"""

from __future__ import annotations

import logging
import math
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

from eventbus.backends.base import Backend, ConsumerConfig
from eventbus.backends.clock import Clock, RealTimers, deadline_after, system_clock
from eventbus.backends.histogram import RECORDS, Histogram
from eventbus.backends.process_exit import ContainedTasks
from eventbus.client.handling.batches import BatchDispatch
from eventbus.client.handling.call_timeouts import InFlight
from eventbus.client.handling.current_record import inside_handler
from eventbus.client.handling.dispatch import Dispatch, Publish
from eventbus.client.handling.drivers import HandlerResources, InOrderDriver, WorkerPoolDriver
from eventbus.client.handling.exactly_once import LONGEST_SHARE, ExactlyOnce, OpenProducer
from eventbus.client.handling.external_offsets import places_of
from eventbus.client.handling.failed_calls import OnEnded
from eventbus.client.handling.failure_policy import recovery_of, running_policy_of
from eventbus.client.handling.forwarding import Moves
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.invocation import HandlerCounts
from eventbus.client.handling.middleware import Middleware
from eventbus.client.handling.missing_topics import MissingTopics
from eventbus.client.handling.offset_commits import OffsetCommits
from eventbus.client.handling.partition_driver import PartitionDriver, nothing_before
from eventbus.client.handling.retry_partition import ExactlyOnceRetryDriver, RetryPartitionDriver, RetryTransactions
from eventbus.client.handling.revocation import Handovers, transactional_id_of
from eventbus.client.handling.schema_wait import SchemaWait
from eventbus.client.handling.unfinished_records import fate_of, log_lost, unfinished_of
from eventbus.errors import CorruptRecord, EventBusError, HandlerError, StorageError
from eventbus.outages import is_outage
from eventbus.types import FetchedRecords, GroupMetadata, IsolationLevel, TopicPartition
from serdes import Serde

logger = logging.getLogger("eventbus.runner")

_CHUNKS_PER_LANE = 2
"""Fetches that a driver holds before its partition is paused: the fetch being handled, and the next."""
_LONGEST_PAUSE_SECONDS = 5.0
"""Longest pause between two polls while the log cannot be reached."""
_LAST_WORDS_SECONDS = 1.0
"""How long an immediate stop waits for plain functions in flight to return."""
_LAST_COMMIT_SECONDS = 1.0
"""Shortest time for the final commit, however short the deadline of the stop is."""
_ENDED_ALONE = (
    "%s. This handler has ended, even with on_error='skip'. Other handlers go on. Fix the cause and start the bus "
    "again: the handler goes on at its last commit"
)

Once = TypeVar("Once", bound=ExactlyOnce)


class Runner:
    """Runs a handler as a member of a group."""

    def __init__(
        self,
        handler: Handler[Any, Any],
        group: str,
        backend: Backend,
        config: ConsumerConfig,
        publish: Publish | None,
        flush: Callable[[], Awaitable[None]],
        open_producer: OpenProducer,
        serdes: Mapping[type, Serde],
        on_progress: Callable[[], None],
        middleware: Sequence[Middleware] = (),
        open_mover: OpenProducer | None = None,
        clock: Clock = system_clock,
        on_ended: OnEnded | None = None,
    ) -> None:
        """``open_mover``: opens the producers that forward failed records, for a handler with a policy.

        ``on_ended``: called with each record that finally failed, and its error.
        """
        self.handler = handler
        self.group = group
        self.is_committed_only = config.isolation is IsolationLevel.READ_COMMITTED
        """The handler reads committed records only (``read_committed``)."""
        self.drivers: dict[TopicPartition, PartitionDriver] = {}
        self.has_left = False
        """The runner has ended, and committed what was finished."""
        self.error: HandlerError | None = None
        """The error of the first partition that stopped; None while all run."""
        self.cut_off = False
        """The runner stopped, and cancelled records in flight at its deadline."""
        self.poll_error = ""
        """The error of the last poll; "" if it succeeded."""
        # When, in seconds on the backend's timers; None: not yet.
        self.started_at: float | None = None
        self.last_poll_at: float | None = None
        kind = BatchDispatch if handler.spec.batch else Dispatch
        self._dispatch = kind(handler, publish, serdes, middleware, backend.timers)
        if on_ended is not None:
            self._dispatch.failed_calls.on_ended = on_ended
        self.fetched = Histogram(RECORDS)
        """The number of records per fetch."""
        schemas = self._dispatch.calls.schemas
        self._schemas = None if schemas is None else SchemaWait(handler, schemas, self._dispatch.calls, backend.timers)
        self._backend = backend
        self._timers = timers = backend.timers
        recovery = recovery_of(handler, group, config)
        self._consumer = consumer = backend.consumer(config)
        consumer.on_readable = self._expect_records
        # A third of max.poll.interval.ms: the finish, the commit and the next poll must all fit into it, or the group
        # removes the member in the middle of its revocation.
        self._drain_seconds = min(handler.spec.drain_timeout_ms, config.max_poll_interval_ms // 3) / 1000
        self._flush = flush
        self._open_producer = open_producer
        open_of_id = open_mover or open_producer
        moves = None if recovery is None else Moves(
            handler, consumer, lambda one: open_of_id(transactional_id_of(handler, group, one)), self._moves_stored,
            lambda record: recovery.behind(record, clock()),
        )  # fmt: skip
        self._commits = OffsetCommits(handler, consumer, self.drivers, timers, moves, on_progress)
        self._clock = clock
        self.failure_policy = running_policy_of(
            handler, recovery, moves, backend, consumer, self._commits, self.drivers, self._dispatch, clock
        )
        self._handovers = Handovers(
            handler, group, backend, consumer, self.drivers, self._commits, flush, self._drain_seconds, on_progress,
            self._assigned, _ignore if self.failure_policy is None else self.failure_policy.gone, self._unfinished,
        )  # fmt: skip
        self._shared = HandlerResources(
            handler, self._dispatch, consumer, self._commits, timers, flush, self._handovers.wait_until_settled,
            self._drain_seconds, config.max_partition_fetch_bytes, self._stop_partition, self._output_failed,
            self.failure_policy,
        )  # fmt: skip
        self._places = places_of(handler, group, backend, consumer, self._dispatch, self._commits, self.failure_policy)
        self._missing = MissingTopics(handler, backend, consumer, self.failure_policy)
        self._timeouts = self._shared.timeouts
        self._timeouts.group = group
        self._on_progress = on_progress
        self._poll_scope = anyio.CancelScope()
        self._drain_scope = anyio.CancelScope()
        self._deadline_seconds: float | None = None
        """How long records in flight may take when the runner stops."""
        self._stop_at = math.inf
        """The end of that time, in seconds on the backend's timers."""
        self._stopping = False
        self._is_watched = False
        """A caller of `is_idle` waits for the end of a rebalance."""
        self._driver_tasks: ContainedTasks | None = None
        self._drained = anyio.Event()
        """Set when all partitions have ended without being cancelled."""
        self._leave_scope = anyio.CancelScope()
        """Contains the final commit."""
        self._thread_scope = anyio.CancelScope()
        """Contains the final wait for plain functions."""

    async def start(self, others: Sequence[Runner] = ()) -> None:
        """Subscribe. Records that arrive after this are not missed. Raises UnknownTopicOrPartition and ConfigError."""
        failure_policy, topics = self.failure_policy, self.handler.spec.topics
        try:
            if failure_policy is not None:
                failure_policy.check_apart({one.handler.__name__: one.failure_policy for one in others})
                await failure_policy.prepare()
                # Read by the same consumer, so that a partition and its retry partition always have the same owner.
                topics += failure_policy.topics
            if self._places is not None:
                await self._places.start()
            await self._consumer.subscribe(topics, self.handler.spec.pattern)
        except BaseException:
            await self._consumer.aclose()
            raise

    async def _moves_stored(self, driver: PartitionDriver) -> None:
        if self._places is not None:
            await self._places.passed(driver)
        if self.failure_policy is not None:
            await self.failure_policy.stored(driver)

    async def _assigned(self, partitions: list[TopicPartition]) -> None:
        if self.failure_policy is not None:
            await self.failure_policy.assigned(partitions)
        if self._places is not None:
            await self._places.assigned(partitions)

    async def run(self) -> None:
        """Poll, handle and commit until `stop`; then finish the records in flight, commit, and leave the group.

        Raises an error of the log only with on_error="crash". Otherwise the error ends this handler only: its topic
        may have been deleted, or access denied, while the rest of the bus works.
        """
        if self.handler.spec.on_error == "crash":
            await self._run()
            return
        try:
            await self._run()
        except* EventBusError as errors:
            for error in _single_errors(errors):
                failed = HandlerError(f"handler {self.handler.__name__!r}: it has ended: {error}")
                failed.__cause__ = error
                self.error = self.error or failed
                logger.error(_ENDED_ALONE, failed)
            self._on_progress()

    async def _run(self) -> None:
        self.started_at = self._timers.current_time()
        delivery, workers = self.handler.spec.delivery, self._shared.workers
        is_cancelled = True
        try:
            async with ContainedTasks() as background:
                background.start_soon(self._timeouts.run)
                if delivery == "exactly-once":
                    background.start_soon(self._cut_long_slices)
                elif delivery == "at-least-once":
                    background.start_soon(self._commits.run)
                async with ContainedTasks() as self._driver_tasks:
                    if not self.handler.signature.is_async:
                        self._driver_tasks.start_soon(self._outlive_no_thread)
                    if workers is not None:
                        workers.start(self._driver_tasks)
                    try:
                        with self._poll_scope:
                            await self._poll()
                        self._close_drivers()
                        await self._drain()
                    finally:
                        if workers is not None:
                            workers.close()
                    self._drained.set()
                background.cancel_scope.cancel()
            is_cancelled = self._deadline_seconds == 0
        finally:
            if self._places is not None:
                self._places.stop()
            # Commit finished records also when cancelled. Shielded, because a cancelled scope would abort the commit.
            with anyio.CancelScope(shield=True):
                await self._leave(is_cancelled)

    def stop(self, deadline_seconds: float | None = None) -> None:
        """Begin no further record. Records in flight finish, or are cancelled at the deadline."""
        if not self._stopping:
            self._deadline_seconds = deadline_seconds
            if deadline_seconds is not None:
                self._stop_at = self._timers.current_time() + deadline_seconds
        self._stopping = True
        self._poll_scope.cancel()
        self._close_drivers()
        if self._places is not None:
            self._places.stop()

    def cancel(self) -> None:
        """Stop, and cancel the records in flight now. It may be called after `stop`, too."""
        self.stop(0)
        self._deadline_seconds = 0
        self._drain_scope.cancel()
        self._leave_scope.cancel()
        self._thread_scope.deadline = min(self._thread_scope.deadline, deadline_after(_LAST_WORDS_SECONDS))

    def _close_drivers(self) -> None:
        for driver in self.drivers.values():
            driver.close()

    async def _drain(self) -> None:
        """Wait until all partitions have ended, and cancel those that exceed the deadline."""
        drivers = [*self.drivers.values(), *self._handovers.ending.values()]
        seconds = math.inf if self._deadline_seconds is None else self._deadline_seconds
        with self._drain_scope, self._timers.move_on_after(seconds):
            for driver in drivers:
                await driver.ended.wait()
        late = await self._outlasted(drivers, _LAST_WORDS_SECONDS)
        if late:
            self._warn_of(late)
            for driver in late:
                driver.scope.cancel()
            self._dispatch.calls.threads.abandon()
        for driver in drivers:
            await driver.ended.wait()

    async def _outlasted(self, drivers: Collection[PartitionDriver], seconds: float) -> list[PartitionDriver]:
        """Return the drivers that have not ended. Plain functions, which cannot be cancelled, have ``seconds`` more."""
        if not self.handler.signature.is_async:
            # In real time even with a test clock, because threads run in real time.
            with RealTimers().move_on_after(seconds, shield=True) as self._thread_scope:
                for driver in drivers:
                    await driver.ended.wait()
        return [driver for driver in drivers if not driver.ended.is_set()]

    async def _outlive_no_thread(self) -> None:
        """When cancelled, give plain functions in flight the drain timeout to return."""
        try:
            await self._drained.wait()
        except anyio.get_cancelled_exc_class():
            self._close_drivers()
            drivers = [*self.drivers.values(), *self._handovers.ending.values()]
            seconds = _LAST_WORDS_SECONDS if self._deadline_seconds == 0 else self._drain_seconds
            late = await self._outlasted(drivers, seconds)
            if late:
                self._warn_of(late)
                self._dispatch.calls.threads.abandon()
            raise

    def _warn_of(self, late: Collection[PartitionDriver]) -> None:
        self.cut_off = True
        how = "cancelled" if self.handler.signature.is_async else "abandoned in its thread, which cannot be cancelled"
        logger.warning(
            "handler %r: it stops, and has not finished %s in time: %s, %s",
            self.handler.__name__, self._unfinished(late), how, fate_of(self.handler),
        )  # fmt: skip

    def _unfinished(self, drivers: Collection[PartitionDriver]) -> str:
        return ", ".join(unfinished_of(driver, self._dispatch) for driver in drivers)

    async def is_idle(self, ends: Mapping[TopicPartition, int] | None = None) -> bool:
        """Return True if all records in this member's partitions are handled and their outputs are stored.

        ``ends`` limits this to records below these offsets. The result is False while the group rebalances, because
        records of a partition between two members are not handled yet and belong to neither.
        """
        if self._stopping or not all(_is_done(driver, ends) for driver in self.drivers.values()):
            if any(driver.has_moves for driver in self.drivers.values()):
                self._commits.due()  # the caller waits for the records to be forwarded, which the commit does
            return False  # a stopping runner drops records that are not handled
        if self.failure_policy is not None and not self.failure_policy.is_idle():
            self._is_watched = True  # the next fetch may tell what waits, and no driver wakes anybody then
            return False
        if self.error is None and any(driver.error or driver.unreadable for driver in self.drivers.values()):
            return False  # it is about to be said
        held = self._consumer.assignment()
        if not await self._handovers.is_settled():
            self._is_watched = True
            return False
        stopped = {one for one, driver in self.drivers.items() if driver.error or driver.unreadable}
        assignment = [one for one in held if one not in stopped]
        try:
            until = await self._consumer.end_offsets(assignment) if ends is None else ends
        except EventBusError as error:
            if error.topic_partition is None and not isinstance(error, (CorruptRecord, StorageError)):
                raise
            # A fetch meets the same partition and stops it, or waits for it: until its topic, which was deleted, is no
            # longer assigned, or until it has a leader.
            self._is_watched = True
            return False
        positions = await self._consumer.positions(assignment)
        # The group may take partitions away between the first line and here. The answer is about those held then.
        if self._consumer.assignment() != held or any(at < until.get(one, 0) for one, at in positions.items()):
            self._is_watched = True  # what follows may be aborted, and no driver wakes anybody when it is read
            return False
        self._take_passed()  # a fetch may have moved the position above and not have returned yet
        return all(_is_done(driver, ends) for driver in self.drivers.values())

    # polling ---------------------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        pause = 0.1
        while True:
            self.last_poll_at = self._timers.current_time()
            try:
                fetched = await self._consumer.fetch()
            except EventBusError as error:
                if not error.retriable or isinstance(error, (CorruptRecord, StorageError)):
                    # Damaged bytes, or an offset that is gone with start="none": reading on would lose records in
                    # silence.
                    if self._cannot_read(error):
                        continue
                    return
                self._say_unreachable(error)
                await self._timers.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                continue
            pause, self.poll_error = 0.1, ""
            for chunk in fetched:
                self._hand_over(chunk)
            self._take_passed()
            if self.failure_policy is not None:
                await self.failure_policy.polled(self.drivers)
            self._handovers.polled()
            # A caller of `is_idle` saw a rebalance or an open end. Only this fetch can change that, so it wakes the
            # caller.
            if self._is_watched:
                self._is_watched = False
                self._on_progress()

    def _cannot_read(self, error: EventBusError) -> bool:
        """Stop the partition that cannot be read, and return True, for the others are read on.

        Return False if the error concerns the handler as a whole. Then the handler ends, and the bus goes on with its
        other handlers. Raises HandlerError with on_error="crash".
        """
        name, partition = self.handler.__name__, error.topic_partition
        failed = HandlerError(f"handler {name!r}: cannot read on: {error}")
        failed.__cause__ = error
        if self.handler.spec.on_error == "crash":
            raise failed
        # Nothing can be read at all. Polling again would raise the same error forever.
        if partition is None or error.fatal:
            self._end_alone(failed)
            return False
        if partition not in self._consumer.assignment():
            # librdkafka reports a topic that its user may not describe when the group has given its partitions up.
            if self.error is None:
                logger.error("%s. Other partitions are read on. Fix the cause and start the bus again", failed)
            self.error = self.error or failed
            self._on_progress()
            return True
        logger.error(
            "%s. %s is stopped, even with on_error='skip': records would be lost. Other partitions are read on",
            failed, partition,
        )  # fmt: skip
        # Paused, or each fetch would meet the damage again.
        self._consumer.pause([partition])
        driver = self.drivers.get(partition)
        if driver is None:
            driver = self._open_driver(partition, -1)
        driver.unreadable = failed
        driver.wake.set()
        return True

    def _end_alone(self, failed: HandlerError) -> None:
        """Finish the records in flight, commit, and leave the group. The other handlers of the bus go on."""
        self.error = self.error or failed
        logger.error(_ENDED_ALONE, failed)
        self.stop(self._drain_seconds)

    def _say_unreachable(self, error: EventBusError) -> None:
        if not self.poll_error:  # once for each outage
            logger.warning("handler %r: polling fails, and is tried again: %s", self.handler.__name__, error)
        self.poll_error = str(error)

    def _expect_records(self, topic_partition: TopicPartition) -> None:
        """Wake the partition together with the poll, which hands the records over before the partition's task runs."""
        driver = self.drivers.get(topic_partition)
        if driver is not None:
            driver.wake.ring()

    def _take_passed(self) -> None:
        """Have the partitions finish, after what they were given before, offsets that hold no record for a reader."""
        for partition, next_offset in self._consumer.passed().items():
            self._hand_over(nothing_before(partition, next_offset))

    def _hand_over(self, chunk: FetchedRecords) -> None:
        if self._stopping:
            return
        topic_partition = TopicPartition(chunk.topic, chunk.partition)
        driver = self.drivers.get(topic_partition)
        if driver is None:
            driver = self._open_driver(topic_partition, chunk.offsets[0] if chunk.offsets else chunk.next_offset)
        if driver.error is not None or driver.closing:
            return
        driver.chunks.append(chunk)
        if chunk.offsets:
            self.fetched.add(len(chunk.offsets))
        if len(driver.chunks) >= _CHUNKS_PER_LANE and not driver.paused:
            driver.paused = True
            self._consumer.pause([topic_partition])
        driver.wake.set()

    # drivers ---------------------------------------------------------------------------------------------------------

    def _open_driver(self, topic_partition: TopicPartition, first_offset: int) -> PartitionDriver:
        assert self._driver_tasks is not None
        self.drivers[topic_partition] = driver = self._driver_of(topic_partition, self._driver_tasks)
        driver.begun_at = first_offset
        if self._places is not None:
            driver.note = self._places.note_of(topic_partition)
        driver.predecessor = self._handovers.ending.get(topic_partition)
        workers, spec = self._shared.workers, self.handler.spec
        if workers is not None and spec.concurrency is None and self.handler.signature.is_async:
            workers.concurrency = max(len(self.drivers), 1)
        self._driver_tasks.start_soon(self._run_driver, driver)
        return driver

    def _driver_of(self, topic_partition: TopicPartition, tasks: ContainedTasks) -> PartitionDriver:
        shared, failure_policy = self._shared, self.failure_policy
        if failure_policy is not None and failure_policy.is_retry(topic_partition.topic):
            if not self.handler.spec.exactly_once:
                return RetryPartitionDriver(topic_partition, shared, failure_policy, tasks)
            return ExactlyOnceRetryDriver(
                topic_partition, shared, failure_policy, tasks, self._once(RetryTransactions, topic_partition)
            )
        if self.handler.spec.exactly_once:
            return self._once(ExactlyOnce, topic_partition)
        if shared.workers is not None:
            return WorkerPoolDriver(topic_partition, shared, shared.workers, tasks)
        return InOrderDriver(topic_partition, shared)

    def _once(self, driver: type[Once], partition: TopicPartition) -> Once:
        transactional_id = transactional_id_of(self.handler, self.group, partition)
        return driver(partition, self._shared, transactional_id, self._open_producer)

    async def _run_driver(self, driver: PartitionDriver) -> None:
        inside_handler.set(self.handler.__name__)
        try:
            with driver.scope:
                if driver.predecessor is not None:
                    await driver.predecessor.ended.wait()
                    driver.predecessor = None
                await self._work(driver)
                await driver.finish()
                if self.failure_policy is not None and self.failure_policy.crash_marks is not None:
                    await self.failure_policy.crash_marks.ended(driver)
        finally:
            await driver.aclose()
            driver.ended.set()
            if self._handovers.ending.get(driver.topic_partition) is driver:
                del self._handovers.ending[driver.topic_partition]
        self._on_progress()

    async def _work(self, driver: PartitionDriver) -> None:
        """Until the partition is closing, or in error."""
        while not driver.closing:
            if driver.error is not None:
                self._stop_partition(driver, driver.error)
                return
            driver.wake.clear()
            if not driver.chunks:
                if driver.unreadable is not None and not driver.work.unfinished:
                    driver.stop(driver.unreadable)
                    continue
                self._on_progress()
                await driver.rest()
                driver.call_loop.has_turned()
                continue
            if not driver.chunks[0].offsets:
                await driver.advance_to(self._next_chunk(driver).next_offset)
                self._commits.expect()
                continue
            if self._schemas is not None and not await self._schemas.is_over(driver):
                continue
            if self.failure_policy is not None and not await self.failure_policy.ready(driver):
                continue
            self._commits.expect()
            await driver.run(self._next_chunk(driver))
            if driver.error is not None:
                continue
            self._commits.expect()
            if self.handler.spec.is_firing:
                self._on_progress()  # it may never rest, and who waits for earlier firings is to look
            if driver.chunks:
                # Handlers that never suspend must not keep other tasks from running for longer than one fetch.
                await anyio.lowlevel.checkpoint()
                driver.call_loop.has_turned()
        if driver.error is not None and not driver.abandoned:
            self._stop_partition(driver, driver.error)

    def _next_chunk(self, driver: PartitionDriver) -> FetchedRecords:
        chunk = driver.chunks.popleft()
        if driver.paused and len(driver.chunks) < _CHUNKS_PER_LANE:
            driver.paused = False
            if driver.unreadable is None:
                self._consumer.resume([driver.topic_partition])
        return chunk

    def _output_failed(self, error: HandlerError) -> bool:
        """An output was not stored. Return True to continue without it."""
        spec, cause = self.handler.spec, error.__cause__
        # The record did not cause an outage: after a restart its handler is called again and its output is stored.
        keeps = spec.delivery != "at-most-once" and cause is not None and is_outage(cause)
        if spec.on_error == "skip" and not keeps:
            logger.error("handler %r: %s; skipped (on_error='skip')", self.handler.__name__, error)
            return True
        logger.error(
            "handler %r: %s; nothing from there on is committed%s", self.handler.__name__, error,
            ". It is an outage, which on_error='skip' does not skip: restart the bus when it is over" if keeps else "",
        )  # fmt: skip
        return False

    def _stop_partition(self, driver: PartitionDriver, error: HandlerError) -> None:
        driver.chunks.clear()
        if not driver.closing:
            self._consumer.pause([driver.topic_partition])
        self.error = self.error or error
        if self.handler.spec.on_error == "crash":
            raise error
        self._on_progress()

    async def _cut_long_slices(self) -> None:
        """Let no transaction grow old because its slice is long: the log would abort it."""
        longest_seconds = self.handler.spec.transaction_timeout_ms / 1000 / LONGEST_SHARE
        while True:
            await self._timers.sleep(longest_seconds / 2)
            latest = self._timers.current_time() - longest_seconds
            for driver in [*self.drivers.values(), *self._handovers.ending.values()]:
                if (
                    isinstance(driver, ExactlyOnce)
                    and driver.transaction_since is not None
                    and driver.transaction_since <= latest
                ):
                    driver.work.end_slice()

    # commits ---------------------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit what is finished now. Raises what a commit raises."""
        if self.handler.spec.delivery == "at-least-once" and not self.has_left:
            await self._commits.commit()

    async def commit_finished(self) -> bool:
        """Try once to commit what is finished. False: the group rebalances, and the commit has to be tried again.

        A commit that fails is logged, tried again in the background, and not waited for.
        """
        if self.handler.spec.delivery != "at-least-once" or self.has_left:
            return True
        finished = {driver: driver.work.finished for driver in self.drivers.values()}
        await self._commits.attempt()
        is_over = all(driver.work.committed >= offset or driver.abandoned for driver, offset in finished.items())
        return is_over or bool(self._commits.error)

    async def _leave(self, is_cancelled: bool) -> None:
        try:
            if not self.handler.spec.exactly_once:
                # `cancel` ends this scope. After `cancel` a short time remains, in real time: a test may not advance
                # its clock any more.
                self._leave_scope = anyio.CancelScope()
                timers = RealTimers() if is_cancelled else self._timers
                # The time that the records in flight have left of the deadline, and not the whole deadline again.
                left = 0 if self._deadline_seconds == 0 else self._stop_at - self._timers.current_time()
                seconds = max(min(self._drain_seconds, left), _LAST_COMMIT_SECONDS)
                with self._leave_scope, timers.move_on_after(seconds):
                    # The flush drives the outputs itself: when everything is cancelled at once, the sender's task is
                    # gone.
                    if self.handler.spec.delivery == "at-least-once":
                        await self._flush()  # what is given back waits for no output
                    await (self._commits.attempt() if is_cancelled else self._handovers.commit_last())
        finally:
            for driver in self.drivers.values():
                log_lost(self.handler, driver)
            try:
                await self._consumer.aclose()
            finally:  # whatever went wrong: the bus waits for this
                self.has_left = True
                self._on_progress()

    # what health is made of ------------------------------------------------------------------------------------------

    @property
    def counts(self) -> HandlerCounts:
        return self._dispatch.counts

    def ages_seconds(self) -> dict[TopicPartition, float]:
        """How old the oldest record is that was fetched and is not finished, by partition; 0 where all are finished.

        Without those that wait in a retry topic, on purpose.
        """
        now_ms, ages = self._clock(), dict[TopicPartition, float]()
        for partition, driver in self.drivers.items():
            if self.failure_policy is None or not self.failure_policy.is_retry(partition.topic):
                oldest_ms = driver.oldest_ms
                ages[partition] = 0.0 if oldest_ms is None or oldest_ms < 0 else max(now_ms - oldest_ms, 0) / 1000
        return ages

    def histograms(self) -> dict[str, Histogram]:
        """Return copies of the histograms by name: durations of calls and commits, records per fetch."""
        return {
            "call_seconds": self._dispatch.times.seconds.copy(),
            "commit_seconds": self._commits.seconds.copy(),
            "fetch_records": self.fetched.copy(),
        }

    @property
    def deleted_unread(self) -> Counter[TopicPartition]:
        """Offsets of each partition whose records were deleted before they were read."""
        return self._consumer.deleted_unread

    @property
    def waiting_for(self) -> Mapping[TopicPartition, str]:
        """Partitions that wait now, each with the reason: the log cannot read them, or a record meets an outage."""
        retries, unreadable, now = (
            self._dispatch.failed_calls.retries,
            self._consumer.waiting_for,
            self._timers.current_time(),
        )
        waits = {
            partition: driver.wait.text(now) for partition, driver in self.drivers.items() if driver.wait is not None
        }
        for part in (self.failure_policy, self._places):  # of partitions that are being assigned
            taken_up = () if part is None else part.waits.items()
            waits.update({partition: wait.text(now) for partition, wait in taken_up if wait.is_long(now)})
        if self._places is not None:
            waits.update({one: text for one, text in self._places.waiting_for().items() if one in self.drivers})
        return {**unreadable, **waits, **({} if retries is None else retries.waiting_for)}

    @property
    def has_stopped(self) -> bool:
        """Each partition that it has of its topics stopped at a record, or the runner has ended with an error."""
        if self.error is None:
            return False
        if self.has_left:
            return True
        is_retry = _never if self.failure_policy is None else self.failure_policy.is_retry
        sources = [partition for partition in self._consumer.assignment() if not is_retry(partition.topic)]
        drivers = [self.drivers.get(partition) for partition in sources]
        return bool(drivers) and all(driver is not None and driver.error is not None for driver in drivers)

    @property
    def moves(self) -> dict[str, int]:
        """Partitions that the group gave to this member, took from it in good order, and that it lost."""
        return dict(self._handovers.moves)

    @property
    def last_assigned_at(self) -> float | None:
        """Seconds on the backend's timers; None: not yet."""
        return self._handovers.last_assigned_at

    @property
    def last_commit_at(self) -> float | None:
        """Seconds on the backend's timers; None: not yet."""
        return self._commits.last_commit_at

    @property
    def commit_error(self) -> str:
        """The error of the last commit; "" if it was stored."""
        return self._commits.error

    @property
    def commit_failing_since(self) -> float | None:
        """Seconds on the backend's timers; None while commits are stored."""
        return self._commits.failing_since

    @property
    def member(self) -> GroupMetadata:
        """Which member of which generation this runner is; generation -1: none now."""
        return self._consumer.group_metadata()

    @property
    def is_rebalancing(self) -> bool:
        """Its place in the group is being negotiated."""
        return self._handovers.is_giving_up or (self.member.generation_id < 0 and not self._handovers.is_idle_pattern)

    @property
    def paused(self) -> list[TopicPartition]:
        """Partitions that are not fetched from, because enough of them waits for the handler."""
        return [topic_partition for topic_partition, driver in self.drivers.items() if driver.paused]

    def in_flight(self) -> list[InFlight]:
        """Return the records whose calls are in flight."""
        return self._timeouts.in_flight()

    async def missing_topics(self) -> str:
        """Return which of its topics do not exist, or "". Those that belong to its policy are created again."""
        is_stuck = bool(self._commits.error) or any(driver.wait is not None for driver in self.drivers.values())
        return await self._missing.look(is_stuck=is_stuck)

    async def lag(self) -> dict[TopicPartition, int]:
        """Return, per partition, the offsets between the committed (or first) offset and the end of the log."""
        unreadable = {
            one for one, driver in self.drivers.items() if driver.unreadable
        } | self._consumer.waiting_for.keys()
        partitions = [one for one in self._consumer.assignment() if one not in unreadable]
        committed = await self._consumer.committed(partitions)
        ends = await self._consumer.end_offsets(partitions)
        # Without a commit it counts from where the partition was begun: what was fetched is not yet handled.
        begun = committed.keys() | self.drivers.keys()
        positions = await self._consumer.positions([one for one in partitions if one not in begun])
        held = set(self._consumer.assignment())
        behind: dict[TopicPartition, int] = {}
        for topic_partition, end in ends.items():
            if topic_partition not in held:
                continue  # the group took it away meanwhile
            if self.failure_policy is not None and self.failure_policy.is_retry(topic_partition.topic):
                behind[topic_partition] = self.failure_policy.overdue(topic_partition)
                continue
            known, driver = committed.get(topic_partition), self.drivers.get(topic_partition)
            if known is not None:
                at = known.offset
            else:
                at = driver.begun_at if driver is not None else positions.get(topic_partition, end)
            behind[topic_partition] = max(end - at, 0)
        return behind

    def __repr__(self) -> str:
        return f"<runner {self.handler.__name__} group={self.group} partitions={len(self.drivers)}>"


def _is_done(driver: PartitionDriver, ends: Mapping[TopicPartition, int] | None) -> bool:
    return driver.is_idle or (
        ends is not None and driver.work.finished >= ends.get(driver.topic_partition, sys.maxsize)
    )


def _single_errors(group: BaseExceptionGroup[EventBusError]) -> list[EventBusError]:
    """Return the errors in a group and in its groups."""
    errors: list[EventBusError] = []
    for error in group.exceptions:
        errors += _single_errors(error) if isinstance(error, BaseExceptionGroup) else [error]
    return errors


def _ignore(partition: TopicPartition) -> None: ...


def _never(topic: str) -> bool:
    return False
