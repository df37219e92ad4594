"""The thread of one consumer: it polls librdkafka, which calls back in it when the group moves partitions.

librdkafka lets one thread at a time use a consumer, and a poll takes as long as it takes. So everything that concerns
one is done here, between two short polls; and in a callback, while the event loop finishes what is at work, too.
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
"""Records that one hop carries."""
_AT_ONCE = 500
"""Records that are asked of librdkafka at a time: below 700 new objects Python's collector has nothing to do."""
_SLICE_SECONDS = 0.02
"""A poll that waits for longer is several: a commit must not wait for it. (Two threads would not help: confluent-kafka
lets one at a time into a consumer.)"""
_SHORT_SLICE_SECONDS = 0.002
_BUSY_SECONDS = 0.25
"""So long after records came they are probably about to be committed."""
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
"""librdkafka deals with them by itself, and says so too."""


class Step(msgspec.Struct):
    """Partitions move: the thread waits in librdkafka's callback until the event loop has done its part."""

    kind: Literal["assign", "revoke"]
    partitions: list[TopicPartition]
    offsets: dict[TopicPartition, int] = {}
    """Of an assignment, where to begin; the event loop may change it. Partitions left out cannot be read yet."""
    metadata: GroupMetadata | None = None
    is_done: bool = False


class Arrival(msgspec.Struct):
    """What one poll brought."""

    records: list[FetchedRecords] = []
    ends: dict[TopicPartition, int] = {}
    """Where reading has come to the end of a partition, past what is not for readers."""
    out_of_range: list[TopicPartition] = []
    errors: list[EventBusError] = []

    def __bool__(self) -> bool:
        return bool(self.records or self.ends or self.out_of_range or self.errors)


class PollRequest:
    """What the event loop wants of the poll under way; one at a time, and it may change its mind meanwhile."""

    __slots__ = ("deadline", "is_wanted", "most_records")

    def __init__(self) -> None:
        self.deadline = 0.0
        self.most_records = 1
        self.is_wanted = False

    def want(self, wait_seconds: float, *, is_sign_of_life: bool) -> None:
        """``is_sign_of_life``: its owner has records enough, and polls to stay in the group."""
        self.deadline = time.monotonic() + wait_seconds
        self.most_records = 1 if is_sign_of_life else _MOST_RECORDS
        self.is_wanted = True


class Member:
    """A consumer of librdkafka's in its thread. Only what says so may be called from the event loop."""

    def __init__(
        self,
        settings: dict[str, Any],
        config: ConsumerConfig,
        loop: Loop,
        place: Callable[[Member, list[TopicPartition]], dict[TopicPartition, int]],
        *,
        is_cooperative: bool,
    ) -> None:
        """``place`` says, in the thread, where to begin reading partitions that are taken up."""
        try:
            self.client = Consumer(settings)
        except KafkaException as failure:
            raise config_refused(failure) from None
        self.config = config
        self._most_bytes = 1024 * int(settings["queued.max.messages.kbytes"])
        """The size of the values that one hop carries: librdkafka fetches more while its queue is emptied."""
        self.worker = Worker(f"eventbus-kafka-{config.group or 'reader'}", loop)
        self.is_cooperative = is_cooperative
        self._loop = loop
        self._place = place
        self._group = GroupMetadata(config.group or "")
        self._ask_group_at = self._busy_until = 0.0
        self._reads: set[TopicPartition] = set()
        self._topics: set[str] = set()
        """Of what librdkafka reads."""
        self._is_lost = False
        self._is_in_step = False
        """librdkafka has called back, and must not be polled until that call has returned."""
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
        """What librdkafka reads."""
        return self._reads

    @_placed.setter
    def _placed(self, partitions: set[TopicPartition]) -> None:
        self._reads = partitions
        self._topics = {topic for topic, _ in partitions}

    def subscribe(self, topics: list[str]) -> None:
        """Without topics, leave the group: librdkafka refuses to subscribe to none."""
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
        """Partitions of the assignment whose beginning is known by now, or whose reading has ended in an error."""
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
        """Read on elsewhere. Those that librdkafka does not read at the moment are returned: begin them anew."""
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
        if not self._closing:
            self._wait_for(Step("revoke", partitions))
        self._give_up(client, partitions)

    def _were_lost(self, client: Consumer, taken: Sequence[ClientPartition]) -> None:
        partitions = [TopicPartition(one.topic, one.partition) for one in taken]
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
        """Let the event loop do its part; do what it asks for meanwhile."""
        self._is_in_step = True
        self._loop.tell(lambda: self.on_step(step))
        while not step.is_done and not self._closing:
            self.worker.work_one()
        self._is_in_step = False

    def release(self, step: Step) -> None:
        """A job: the event loop has done its part."""
        step.is_done = True

    def _metadata(self) -> GroupMetadata:
        try:
            return read_group_metadata(bytes(self.client.consumer_group_metadata()))
        except (KafkaException, RuntimeError):
            return self._group

    def _tell_group(self) -> None:
        """A generation may change although no partition moves. Asking waits for librdkafka's main thread."""
        if (now := time.monotonic()) < self._ask_group_at:
            return
        self._ask_group_at = now + _SLICE_SECONDS
        metadata = self._metadata()
        if metadata != self._group:
            self._group = metadata
            self._loop.tell(lambda: self.on_group(metadata))

    # reading ---------------------------------------------------------------------------------------------------------

    def poll(self, request: PollRequest) -> None:
        """Until something came, or the time is over, or nobody waits any more."""
        while not self._is_in_step:
            now = time.monotonic()
            left = request.deadline - now
            slice_seconds = _SHORT_SLICE_SECONDS if now < self._busy_until else _SLICE_SECONDS
            arrival = self._poll_once(max(min(left, slice_seconds), 0), request.most_records)
            if self.config.group is not None:
                self._tell_group()
            if arrival:
                self._busy_until = time.monotonic() + _BUSY_SECONDS
                self._loop.tell(lambda arrival=arrival: self.on_arrival(arrival))
                return
            if left <= 0 or not request.is_wanted or self._closing:
                return
            while self.worker.has_work and not self._closing:
                self.worker.work_one()

    def _poll_once(self, wait_seconds: float, most_records: int) -> Arrival:
        arrival, collected, count, size_bytes = Arrival(), Collected(), 0, 0
        try:
            # It waits for one, and the rest is what there is: `consume` alone would wait until all are there.
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
        except Exception as error:  # no caller waits for the outcome of this job: its records would be lost silently
            logger.exception("Records that librdkafka has handed over could not be taken")
            arrival.errors.append(
                EventBusError(
                    f"Records of {', '.join(sorted(self._topics))} could not be taken from librdkafka: {error!r}. "
                    "Restart the consumer: it reads them again from its last commit"
                )
            )
        # Some may have been given up in the course of it.
        arrival.records = [records for where, records in collected.records().items() if where in self._placed]
        return arrival

    def _note(self, arrival: Arrival, message: Message) -> None:
        """What librdkafka says in place of a record."""
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
            # Without a group, librdkafka asks for the coordinator of one that nobody meant.
            logger.debug("librdkafka: %s", error.str())
        else:
            what = f"{where} cannot be read" if where is not None else f"group {self.config.group!r}"
            failed = error_of(error, what)
            failed.topic_partition = where
            arrival.errors.append(failed)

    # offsets ---------------------------------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Raises the first error; what is not refused is stored."""
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
        """What made this client useless, if it is: only a poll tells, and another call may have met it first."""
        if error.code() != ClientError._FATAL:
            return error
        while (message := self.client.poll(0)) is not None:  # a record is lost to nobody: this member commits no more
            told = message.error()
            if told is not None and told.code() == ClientError._FATAL:
                return told
        return error

    def committed(
        self, partitions: Iterable[TopicPartition], wait_seconds: float = _ANSWER_SECONDS
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata], dict[TopicPartition, EventBusError]]:
        """Return what the group has committed, and the errors of single partitions. A partition in neither has none.

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
        """The last job: leave the group."""
        self._closing = True
        try:
            self.client.close()
        except (KafkaException, RuntimeError) as failure:
            logger.debug("a consumer of group %r did not close: %s", self.config.group, failure)

    def shut(self) -> Job[None]:
        """From the event loop: whatever the thread waits for, it waits no longer. The job that leaves the group."""
        self._closing = True
        self.worker.do(_wake)  # taken by a callback that waits; closing has to wait until it has returned
        closing = self.worker.do(self.close)
        self.worker.stop()
        return closing


def _at(offsets: Mapping[TopicPartition, int]) -> list[ClientPartition]:
    return [ClientPartition(*where, OFFSET_INVALID if at < 0 else at) for where, at in offsets.items()]


def _ignore(_: object) -> None:
    """Until the event loop listens."""


def _wake() -> None:
    """Something to do for a thread that waits for a job."""
