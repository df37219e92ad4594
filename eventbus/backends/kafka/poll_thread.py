"""The thread of one consumer: it polls librdkafka, which calls back in it when the group moves partitions.

Only one thread at a time may use a librdkafka consumer, and a poll may take long. A commit in a second thread would
hang forever while the first thread is in a rebalance callback. So everything about a consumer is done here, between
short polls; and during a callback, while the event loop finishes records in flight, too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, Message
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import TopicPartition as ClientPartition

from eventbus.backends.kafka.columns import Collected
from eventbus.backends.kafka.failures import client_error, error_of, raised
from eventbus.backends.kafka.group_metadata import read_group_metadata
from eventbus.backends.kafka.offset_text import read_text, to_commit
from eventbus.backends.kafka.settings import config_refused
from eventbus.backends.kafka.threads import Job, Loop, Worker
from eventbus.errors import EventBusError, UnknownMemberId
from eventbus.forks import never_free, watch_forks
from eventbus.types import FetchedRecords, GroupMetadata, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from eventbus.backends.base import ConsumerConfig

logger = logging.getLogger("eventbus.consumer")

_MOST_RECORDS = 2_000
"""The most records passed to the event loop at once."""
_AT_ONCE = 500
"""The most records requested from librdkafka at once: below 700 new objects Python's garbage collector does not run."""
_SLICE_SECONDS = 0.02
"""A longer poll is split, so that a commit does not wait for it. (A second thread would not help: confluent-kafka
allows only one at a time.)"""
_SHORT_SLICE_SECONDS = 0.002
_BUSY_SECONDS = 0.25
"""The time after an arrival of records in which a commit is likely."""
_ANSWER_SECONDS = 10.0
_PASSING = frozenset(
    (
        ClientError._TRANSPORT,
        ClientError._ALL_BROKERS_DOWN,
        ClientError._RESOLVE,
        ClientError._MAX_POLL_EXCEEDED,
        ClientError._TIMED_OUT,
        ClientError.NETWORK_EXCEPTION,
        ClientError.LEADER_NOT_AVAILABLE,
        ClientError.NOT_LEADER_FOR_PARTITION,
        ClientError.COORDINATOR_NOT_AVAILABLE,
        ClientError.COORDINATOR_LOAD_IN_PROGRESS,
        ClientError.NOT_COORDINATOR,
        ClientError.UNKNOWN_TOPIC_OR_PART,
        ClientError._UNKNOWN_TOPIC,
        ClientError._UNKNOWN_PARTITION,
        ClientError.REBALANCE_IN_PROGRESS,
    )
)
"""Errors that librdkafka handles itself, and reports too."""


class Step(msgspec.Struct):
    """A move of partitions: the thread waits in librdkafka's callback until the event loop has done its part."""

    kind: Literal["assign", "revoke"]
    partitions: list[TopicPartition]
    offsets: dict[TopicPartition, int] = {}
    """The start positions of an assignment; the event loop may change them. Partitions left out cannot be read yet."""
    metadata: GroupMetadata | None = None
    is_done: bool = False


class Arrival(msgspec.Struct):
    """The result of one poll."""

    records: list[FetchedRecords] = []
    ends: dict[TopicPartition, int] = {}
    """Offsets at which reading has reached the end of a partition, after offsets without readable records."""
    out_of_range: list[TopicPartition] = []
    errors: list[EventBusError] = []

    def __bool__(self) -> bool:
        return bool(self.records or self.ends or self.out_of_range or self.errors)


class PollRequest:
    """A poll requested by the event loop, only one at a time; the request may change while the poll runs."""

    __slots__ = ("deadline", "is_wanted", "most_records")

    def __init__(self) -> None:
        self.deadline = 0.0
        self.most_records = 1
        self.is_wanted = False

    def want(self, wait_seconds: float, *, is_sign_of_life: bool) -> None:
        """``is_sign_of_life``: the owner has enough records, and polls only to stay in the group."""
        self.deadline = time.monotonic() + wait_seconds
        self.most_records = 1 if is_sign_of_life else _MOST_RECORDS
        self.is_wanted = True


class PollThread:
    """A librdkafka consumer and its thread. Only methods that are documented so may be called from the event loop."""

    def __init__(
        self,
        settings: dict[str, Any],
        config: ConsumerConfig,
        loop: Loop,
        place: Callable[[PollThread, list[TopicPartition]], dict[TopicPartition, int]],
        *,
        is_cooperative: bool,
    ) -> None:
        """``place`` returns, in the thread, where to begin reading newly assigned partitions."""
        try:
            self.client = Consumer(settings)
        except KafkaException as failure:
            raise config_refused(failure) from None
        self.config = config
        self._most_bytes = 1024 * int(settings["queued.max.messages.kbytes"])
        """The most bytes of values passed to the event loop at once: librdkafka fetches more while its queue is
        emptied."""
        self.worker = Worker(f"eventbus-kafka-{config.group or 'reader'}", loop)
        self.is_cooperative = is_cooperative
        self._loop = loop
        self._place = place
        self._group = GroupMetadata(config.group or "")
        self._ask_group_at = self._busy_until = 0.0
        self._reads: set[TopicPartition] = set()
        self._topics: set[str] = set()
        """The topics of the partitions that librdkafka reads."""
        self._is_lost = False
        self._is_in_step = False
        """True while librdkafka waits for a callback to return; it must not be polled then."""
        self._closing = False
        self.on_step: Callable[[Step], object] = _ignore
        self.on_lost: Callable[[list[TopicPartition]], object] = _ignore
        self.on_arrival: Callable[[Arrival], object] = _ignore
        self.on_group: Callable[[GroupMetadata], object] = _ignore
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        never_free(self.client)

    # what is read ----------------------------------------------------------------------------------------------------

    @property
    def _placed(self) -> set[TopicPartition]:
        """The partitions that librdkafka reads."""
        return self._reads

    @_placed.setter
    def _placed(self, partitions: set[TopicPartition]) -> None:
        self._reads = partitions
        self._topics = {topic for topic, _ in partitions}

    def subscribe(self, topics: list[str]) -> None:
        """Subscribe, or leave the group if ``topics`` is empty, which librdkafka refuses."""
        try:
            if not topics:
                self.client.unsubscribe()
                return
            self.client.subscribe(topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._were_lost)
        except KafkaException as failure:
            raise raised(failure, f"{topics} cannot be subscribed to") from None

    def read(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions, from these offsets on."""
        self.client.assign(_at(offsets))
        self._placed = set(offsets)

    def read_too(self, offsets: Mapping[TopicPartition, int], positions: Mapping[TopicPartition, int]) -> None:
        """Read assigned partitions whose start was not known before, or whose reading has ended in an error."""
        if self.is_cooperative:
            again = self._placed & offsets.keys()
            if again:
                self.client.incremental_unassign([ClientPartition(*where) for where in again])
            self.client.incremental_assign(_at(offsets))
            self._placed |= set(offsets)
        else:
            known = {where: at for where, at in positions.items() if where in self._placed}
            self.read({**known, **offsets})

    def seek(self, offsets: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        """Change positions. Return the partitions that librdkafka does not read at present: they must be started
        again."""
        left: set[TopicPartition] = set()
        for where, offset in offsets.items():
            if where not in self._placed:
                continue
            try:
                self.client.seek(ClientPartition(*where, offset))
            except KafkaException as failure:
                if client_error(failure).code() not in (ClientError._STATE, ClientError._TIMED_OUT):
                    raise raised(failure, f"{where} cannot be read from {offset}") from None
                left.add(where)
        return left

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self.client.pause([ClientPartition(*where) for where in partitions if where in self._placed])

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self.client.resume([ClientPartition(*where) for where in partitions if where in self._placed])

    # the group -------------------------------------------------------------------------------------------------------

    def _assigned(self, client: Consumer, given: Sequence[ClientPartition]) -> None:
        partitions = [TopicPartition(one.topic, one.partition) for one in given]
        self._is_lost = False
        step = Step("assign", partitions, metadata=self._metadata())
        if not self._closing:
            # Committed offsets are requested in this thread, while librdkafka waits in its callback. No record of the
            # partitions arrives before that.
            step.offsets = self._place(self, partitions)
            self._wait_for(step)
        offsets = _at({where: at for where, at in step.offsets.items() if where in partitions})
        if self.is_cooperative:
            client.incremental_assign(offsets)
            self._placed |= {TopicPartition(one.topic, one.partition) for one in offsets}
        else:
            client.assign(offsets)
            self._placed = {TopicPartition(one.topic, one.partition) for one in offsets}

    def _revoked(self, client: Consumer, taken: Sequence[ClientPartition]) -> None:
        partitions = [TopicPartition(one.topic, one.partition) for one in taken]
        # While closing, the event loop does not answer, and the callback would never return.
        if not self._closing:
            self._wait_for(Step("revoke", partitions))
        self._give_up(client, partitions)

    def _were_lost(self, client: Consumer, taken: Sequence[ClientPartition]) -> None:
        partitions = [TopicPartition(one.topic, one.partition) for one in taken]
        # The session has ended, so the event loop is notified and not waited for: another member may read the
        # partitions already.
        self._is_lost = True
        self._loop.tell(lambda: self.on_lost(partitions))
        self._give_up(client, partitions)

    def _give_up(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        if self.is_cooperative:
            client.incremental_unassign([ClientPartition(*where) for where in partitions if where in self._placed])
            self._placed -= set(partitions)
        else:
            client.unassign()
            self._placed = set()

    def _wait_for(self, step: Step) -> None:
        """Wait for the event loop to do its part; do its jobs meanwhile."""
        self._is_in_step = True
        self._loop.tell(lambda: self.on_step(step))
        # Jobs run meanwhile, because the commit that ends a revocation is one of them, and only this thread may use the
        # client.
        while not step.is_done and not self._closing:
            self.worker.work_one()
        self._is_in_step = False

    def release(self, step: Step) -> None:
        """Let the callback return, as a job, when the event loop has done its part."""
        step.is_done = True

    def _metadata(self) -> GroupMetadata:
        try:
            return read_group_metadata(bytes(self.client.consumer_group_metadata()))
        except (KafkaException, RuntimeError):
            return self._group

    def _publish_group(self) -> None:
        """Pass on the group metadata: a generation may change although no partition moves. The call may wait."""
        if (now := time.monotonic()) < self._ask_group_at:
            return
        self._ask_group_at = now + _SLICE_SECONDS
        metadata = self._metadata()
        if metadata != self._group:
            self._group = metadata
            self._loop.tell(lambda: self.on_group(metadata))

    # reading ---------------------------------------------------------------------------------------------------------

    def poll(self, request: PollRequest) -> None:
        """Poll until something arrives, the time is over, or the request is withdrawn."""
        while not self._is_in_step:
            now = time.monotonic()
            left = request.deadline - now
            slice_seconds = _SHORT_SLICE_SECONDS if now < self._busy_until else _SLICE_SECONDS
            arrival = self._poll_once(max(min(left, slice_seconds), 0), request.most_records)
            if self.config.group is not None:
                self._publish_group()
            if arrival:
                self._busy_until = time.monotonic() + _BUSY_SECONDS
                self._loop.tell(lambda arrival=arrival: self.on_arrival(arrival))
                return
            if left <= 0 or not request.is_wanted or self._closing:
                return
            # Between two slices of a poll, so that a commit waits for milliseconds and not for the end of a long poll.
            while self.worker.has_work and not self._closing:
                self.worker.work_one()

    def _poll_once(self, wait_seconds: float, most_records: int) -> Arrival:
        arrival, collected, count, size_bytes = Arrival(), Collected(), 0, 0
        try:
            # Wait for one message, and take the rest that is available: `consume` alone would wait until all are
            # available.
            first = self.client.poll(wait_seconds)
            messages = [] if first is None else [first]
            while messages:
                for notice in collected.add(messages, self._topics):
                    self._note(arrival, notice)
                count += len(messages)
                size_bytes += sum(map(len, messages))
                has_room = count < most_records and size_bytes < self._most_bytes
                messages = self.client.consume(min(most_records - count, _AT_ONCE), 0) if has_room else []
        except KafkaException as failure:
            arrival.errors.append(raised(failure, "nothing can be read"))
        except Exception as error:  # no caller waits for this job: its records would be lost silently
            logger.exception("Records that librdkafka has handed over could not be taken")
            arrival.errors.append(
                EventBusError(
                    f"Records of {', '.join(sorted(self._topics))} could not be taken from librdkafka: {error!r}. "
                    "Restart the consumer: it reads them again from its last commit"
                )
            )
        # Partitions may have been revoked during the poll.
        arrival.records = [records for where, records in collected.records().items() if where in self._placed]
        return arrival

    def _note(self, arrival: Arrival, message: Message) -> None:
        """Handle a message that is an event instead of a record."""
        error = message.error()
        assert error is not None
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        where = TopicPartition(topic, partition) if topic is not None and partition is not None else None
        code = error.code()
        if code == ClientError._PARTITION_EOF and where is not None and offset is not None:
            arrival.ends[where] = offset
        elif code in (ClientError._AUTO_OFFSET_RESET, ClientError._LOG_TRUNCATION) and where is not None:
            if where in self._placed:
                arrival.out_of_range.append(where)
        elif code in _PASSING or (code == ClientError.GROUP_AUTHORIZATION_FAILED and self.config.group is None):
            # Without a group, librdkafka requests the coordinator of a made-up group.
            logger.debug("librdkafka: %s", error.str())
        else:
            what = f"{where} cannot be read" if where is not None else f"group {self.config.group!r}"
            failed = error_of(error, what)
            failed.topic_partition = where
            arrival.errors.append(failed)

    # offsets ---------------------------------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit. Raises the first error; offsets that are not refused are stored."""
        if self._is_lost:
            raise UnknownMemberId(
                f"group {self.config.group!r} has given this member up: what it had not committed, others read again"
            )
        if not offsets:
            return
        try:
            stored = self.client.commit(offsets=to_commit(offsets), asynchronous=False)
        except KafkaException as failure:
            raise error_of(self._reason(client_error(failure)), f"group {self.config.group!r} did not commit") from None
        for one in stored:
            if one.error is not None and one.error.code() != ClientError.NO_ERROR:
                raise error_of(one.error, f"group {self.config.group!r} did not commit {one.topic}-{one.partition}")

    def _reason(self, error: ClientError) -> ClientError:
        """Return the fatal error of this client, if there is one: only a poll returns it, and another call may come
        first."""
        if error.code() != ClientError._FATAL:
            return error
        # Dropping a record is harmless: this member commits no more.
        while (message := self.client.poll(0)) is not None:
            fatal = message.error()
            if fatal is not None and fatal.code() == ClientError._FATAL:
                return fatal
        return error

    def committed(
        self, partitions: Iterable[TopicPartition], wait_seconds: float = _ANSWER_SECONDS
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata], dict[TopicPartition, EventBusError]]:
        """Return the group's committed offsets, and the errors of single partitions. A partition in neither has no
        offset.

        Waits for transactions that are about to commit offsets. Raises an error of the whole group.
        """
        wanted = [ClientPartition(*where) for where in partitions]
        if not wanted:
            return {}, {}
        what = f"the offsets of group {self.config.group!r} cannot be read"
        try:
            found = self.client.committed(wanted, wait_seconds)
        except KafkaException as failure:
            raise raised(failure, what) from None
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        errors: dict[TopicPartition, EventBusError] = {}
        for one in found:
            where = TopicPartition(one.topic, one.partition)
            # An error does not mean "never committed", which would have the partition read from where start= specifies.
            if one.error is not None and one.error.code() != ClientError.NO_ERROR:
                errors[where] = error_of(one.error, f"{what} for {where}")
            elif one.offset >= 0:
                offsets[where] = OffsetAndMetadata(one.offset, read_text(one.metadata))
        return offsets, errors

    def close(self) -> None:
        """Leave the group; the last job."""
        self._closing = True
        try:
            self.client.close()
        except (KafkaException, RuntimeError) as failure:
            logger.debug("a consumer of group %r did not close: %s", self.config.group, failure)

    def shut(self) -> Job[None]:
        """End all waits in the thread, from the event loop. Return the job that leaves the group."""
        self._closing = True
        self.worker.do(_wake)  # handled by a callback that waits; closing must wait until it has returned
        closing = self.worker.do(self.close)
        self.worker.stop()
        return closing


def _at(offsets: Mapping[TopicPartition, int]) -> list[ClientPartition]:
    return [ClientPartition(*where, OFFSET_INVALID if at < 0 else at) for where, at in offsets.items()]


def _ignore(_: object) -> None:
    """Do nothing: the default callback."""


def _wake() -> None:
    """Do nothing: a job that wakes the thread."""
