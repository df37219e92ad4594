"""First and last offsets of partitions, offsets by time, and deleting records.

Requests go to the leaders on our own connections. librdkafka's are used only where these are not possible, because they
can crash the process, see `OffsetAdmin._prepare_librdkafka`. In addition, librdkafka's admin client sends to the leader
that it has cached until the request times out, and never learns of a new leader. Everything here blocks, and runs in
threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import OFFSET_INVALID, KafkaException
from confluent_kafka import IsolationLevel as ClientIsolation
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka import admin as untyped_admin

from eventbus.backends.base import EARLIEST, LATEST, MAX_TIMESTAMP
from eventbus.backends.kafka.cluster_metadata import ClusterMetadata, Topics
from eventbus.backends.kafka.failures import client_error, error_of
from eventbus.backends.kafka.wire import Address, Wire
from eventbus.coordinator.requests import ProducerDescription
from eventbus.errors import (
    ConfigError,
    EventBusError,
    KafkaError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
    error_for_code,
)
from eventbus.protocol import messages as m
from eventbus.types import IsolationLevel, OffsetAndTimestamp, TopicPartition

_PATIENCE_SECONDS = (2.0, 4.0, 8.0)
"""How long a partition's leader may take to return its offsets, the first time and the next ones."""
_GRACE_SECONDS = 1.0
"""How much longer than the requested timeout a leader may take."""
_UNKNOWN_SERVER_ERROR, _LEADER_NOT_AVAILABLE = -1, 5
_WITH_MAX_TIMESTAMP = 7
"""The first version of ListOffsets with MAX_TIMESTAMP."""
_ISOLATION = {
    IsolationLevel.READ_COMMITTED: ClientIsolation.READ_COMMITTED,
    IsolationLevel.READ_UNCOMMITTED: ClientIsolation.READ_UNCOMMITTED,
}
kafka: Any = untyped_admin  # its annotations leave out what its calls return
T = TypeVar("T")
Errors = dict[TopicPartition, EventBusError]


class OffsetAdmin:
    """The offsets of one cluster's partitions."""

    def __init__(self, metadata: ClusterMetadata, wire: Wire) -> None:
        self._metadata = metadata
        self._wire = wire
        self._seconds = metadata.timeout_seconds

    def list_offsets(
        self, at: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return offsets. Raises the first error that does not pass when leaders are elected."""
        found, errors = self.try_offsets(at, isolation)
        for error in errors.values():
            raise error
        return found

    def try_offsets(
        self,
        at: Mapping[TopicPartition, int],
        isolation: IsolationLevel,
        patience_seconds: Sequence[float] = _PATIENCE_SECONDS,
    ) -> tuple[dict[TopicPartition, OffsetAndTimestamp], Errors]:
        """Return the offsets, and the errors of the partitions whose offsets are not known.

        A request that may succeed when leaders are elected is repeated. Errors that may pass come last.
        """
        found: dict[TopicPartition, OffsetAndTimestamp] = {}
        missing = dict(at)
        errors: Errors = {}
        passing: Errors = {}
        for seconds in patience_seconds:
            offsets, failed = self._list(missing, isolation, min(seconds, self._seconds))
            found.update(offsets)
            passing = {where: error for where, error in failed.items() if error.retriable}
            errors |= {where: error for where, error in failed.items() if where not in passing}
            missing = {where: at[where] for where in passing}
            if not missing:
                break
        for where, error in (errors := errors | passing).items():
            error.topic_partition = where
        return found, errors

    def ends(self, partitions: Sequence[TopicPartition]) -> list[dict[TopicPartition, int]]:
        """Return first offsets, last stable offsets and ends, without those of partitions whose leader does not answer.

        A leader that has just died would be waited for as long as for any request. So a leader that does not answer is
        abandoned soon, and looked up before the next attempt.
        """
        requests = (
            (EARLIEST, IsolationLevel.READ_UNCOMMITTED),
            (LATEST, IsolationLevel.READ_COMMITTED),
            (LATEST, IsolationLevel.READ_UNCOMMITTED),
        )
        found: list[dict[TopicPartition, int]] = [{} for _ in requests]
        left = list(partitions)
        for seconds in _PATIENCE_SECONDS:
            failed: Errors = {}
            for offsets, (at, isolation) in zip(found, requests, strict=True):
                wanted = dict.fromkeys((one for one in left if one not in offsets and one not in failed), at)
                answers, errors = self._list(wanted, isolation, min(seconds, self._seconds))
                offsets.update({where: answer.offset for where, answer in answers.items()})
                failed |= errors
            left = list(failed)
            if not left:
                break
        return found

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete records before an offset of each partition. Return the first offsets. Raises the first error."""

        def request(leader: Address, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Any]:
            topics = [
                m.DeleteRecordsRequest.DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=one.partition, offset=before[one])
                        for one in theirs
                    ],
                )
                for topic, theirs in by_topic(partitions).items()
            ]
            request = m.DeleteRecordsRequest(topics=topics, timeout_ms=int(self._seconds * 1000))
            answer = self._wire.call(request, at=leader, timeout_seconds=self._seconds + _GRACE_SECONDS)
            return _results(answer)

        self._forget(before)  # a topic may have been created again since, on other brokers
        what = "no record of {} was deleted"
        try:
            found, errors = self._from_leaders(before, request, what)
            firsts = {where: one.low_watermark for where, one in found.items()}
        except ConfigError:  # see `_prepare_librdkafka`
            ready, errors = self._prepare_librdkafka(before, what)
            futures = self._metadata.handle.client.delete_records(
                [ClientPartition(*where, before[where]) for where in ready],
                request_timeout=self._seconds,
                operation_timeout=self._seconds,
            )
            firsts = {where: one.low_watermark for where, one in self._results(futures, what, errors).items()}
        for error in errors.values():
            raise error
        return firsts

    def describe_producers(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """Return the producers of each partition. Raises the first error."""

        def request(leader: Address, theirs: Sequence[TopicPartition]) -> dict[TopicPartition, Any]:
            topics = [
                m.DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[one.partition for one in some])
                for topic, some in by_topic(theirs).items()
            ]
            return _results(self._wire.call(m.DescribeProducersRequest(topics=topics), at=leader))

        self._forget(partitions)
        found, errors = self._from_leaders(partitions, request, "the producers of {}")
        for error in errors.values():
            raise error
        return {where: [_producer(one) for one in found[where].active_producers] for where in partitions}

    def _list(
        self, at: Mapping[TopicPartition, int], isolation: IsolationLevel, seconds: float
    ) -> tuple[dict[TopicPartition, OffsetAndTimestamp], Errors]:
        """Request the offsets a single time."""
        if not at:
            return {}, {}

        def request(leader: Address, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Any]:
            def make(version: int) -> m.ListOffsetsRequest:
                if version < _WITH_MAX_TIMESTAMP and MAX_TIMESTAMP in at.values():
                    raise UnsupportedVersion("MAX_TIMESTAMP needs a broker of Kafka 3.0 or later. Update the brokers.")
                return m.ListOffsetsRequest(
                    replica_id=-1,
                    isolation_level=_ISOLATION[isolation].value,
                    topics=[_with_times(topic, theirs, at) for topic, theirs in by_topic(partitions).items()],
                    timeout_ms=int(seconds * 1000),
                )

            return _results(self._wire.ask(make, "ListOffsets", at=leader, timeout_seconds=seconds))

        what = "the offsets of {}"
        try:
            found, errors = self._from_leaders(at, request, what)
        except ConfigError:  # see `_prepare_librdkafka`
            ready, errors = self._prepare_librdkafka(at, what)
            futures = self._metadata.handle.client.list_offsets(
                {ClientPartition(*where): _offset_spec(at[where]) for where in ready},
                isolation_level=_ISOLATION[isolation],
                request_timeout=seconds,
            )
            found = self._results(futures, what, errors)
            for where in [where for where, one in found.items() if one.offset == OFFSET_INVALID]:
                errors[where] = _no_leader(what.format(where))  # librdkafka returns no error for it
                del found[where]
        return {where: OffsetAndTimestamp(one.offset, one.timestamp) for where, one in found.items()}, errors

    # leaders ---------------------------------------------------------------------------------------------------------

    def _from_leaders(
        self,
        partitions: Iterable[TopicPartition],
        request: Callable[[Address, Sequence[TopicPartition]], Mapping[TopicPartition, Any]],
        what: str,
    ) -> tuple[dict[TopicPartition, Any], Errors]:
        """Send a request to the leader of each partition. Return results, and errors.

        Leaders are cached until one returns an error. Raises ConfigError if our own connections do not support the
        settings.
        """
        leaders, errors = self._leaders(list(partitions), what)
        found: dict[TopicPartition, Any] = {}
        for leader, theirs in leaders.items():
            try:
                results = request(leader, theirs)
            except KafkaError as error:
                errors |= {where: _of(where, error, what) for where in theirs}
                continue
            for where in theirs:
                result = results.get(where)
                code = _UNKNOWN_SERVER_ERROR if result is None else result.error_code
                if code:
                    errors[where] = error_of(ClientError(code), what.format(where))
                else:
                    found[where] = result
        self._forget(errors)
        return found, errors

    def _leaders(
        self, partitions: Sequence[TopicPartition], what: str
    ) -> tuple[dict[Address, list[TopicPartition]], Errors]:
        """Return partitions by their leaders, and the errors of partitions that have none. Raises ConfigError."""
        known = {where: self._wire.leaders.get(where) for where in partitions}
        errors: Errors = {}
        missing = [where for where, leader in known.items() if leader is None]
        if missing:
            try:
                topics = self._metadata.topics({where.topic for where in missing})
            except KafkaError as error:
                errors = {where: _of(where, error, what) for where in missing}
            else:
                leaders_now = topics.leaders
                known |= {where: leaders_now.get(where) for where in missing}
                errors = self._without_leader([where for where in missing if known[where] is None], topics, what)
        leaders: dict[Address, list[TopicPartition]] = {}
        for where, leader in known.items():
            if leader is not None:
                leaders.setdefault(leader, []).append(where)
        return leaders, errors

    def _without_leader(self, partitions: Sequence[TopicPartition], topics: Topics, what: str) -> Errors:
        """Return the errors of partitions without a leader. Waiting is useful only for a partition that exists."""
        errors: Errors = {}
        unknown = {
            topic: self._metadata.unknown(topic)
            for topic in {where.topic for where in partitions}
            if isinstance(topics.errors.get(topic), UnknownTopicOrPartition)
        }
        for where in partitions:
            topic, partition = where
            error = unknown.get(topic) or topics.errors.get(topic)
            if error is not None:
                errors[where] = error_for_code(error.code, str(error))
                continue
            count = len(topics.found[topic].partitions)
            if partition < count:
                errors[where] = _no_leader(what.format(where))
            else:
                errors[where] = UnknownTopicOrPartition(
                    f"topic {topic!r} has {count} partition(s), 0 to {count - 1}; there is no partition "
                    f"{partition}. `eventbus topics alter {topic} --partitions N` adds some"
                )
        return errors

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Look leaders up again before the next request."""
        for where in partitions:
            self._wire.leaders.pop(where, None)

    # librdkafka's requests -------------------------------------------------------------------------------------------

    def _prepare_librdkafka(
        self, partitions: Iterable[TopicPartition], what: str
    ) -> tuple[list[TopicPartition], Errors]:
        """Make librdkafka learn the leaders of partitions. Return those that have one, and errors.

        Its ListOffsets and DeleteRecords (2.16) may only be called for leaders in its metadata cache. For others the
        calling thread registers the request with the cache, and continues to use it. When a metadata response arrives
        just then, the client's main thread answers the request and frees it, and the calling thread crashes the
        process.
        """
        topics = self._metadata.topics({topic for topic, _ in partitions})
        leaders = topics.leaders
        ready: list[TopicPartition] = []
        errors = self._without_leader([where for where in partitions if where not in leaders], topics, what)
        for topic, theirs in by_topic(where for where in partitions if where not in errors).items():
            try:
                cached = self._metadata.handle.client.list_topics(topic, timeout=self._seconds)
            except KafkaException as failure:
                errors |= {where: error_of(client_error(failure), what.format(where)) for where in theirs}
                continue
            known = cached.topics[topic].partitions
            led = {number for number, partition in known.items() if partition.leader in cached.brokers}
            ready += [where for where in theirs if where.partition in led]
            errors |= {where: _no_leader(what.format(where)) for where in theirs if where.partition not in led}
        return ready, errors

    def _results(self, futures: Mapping[Any, Any], what: str, errors: Errors) -> dict[TopicPartition, Any]:
        """Return the results of librdkafka's requests. The errors of failed requests are added to ``errors``."""
        found: dict[TopicPartition, Any] = {}
        for one, future in futures.items():
            where = TopicPartition(one.topic, one.partition)
            try:
                found[where] = self._metadata.result(future, what.format(where))
            except EventBusError as error:
                errors[where] = error
        return found


def _of(where: TopicPartition, error: KafkaError, what: str) -> KafkaError:
    """Return the error of a request as the error of one of its partitions."""
    return error_for_code(error.code, f"{what.format(where)}: {error}")


def _no_leader(what: str) -> KafkaError:
    return error_for_code(_LEADER_NOT_AVAILABLE, f"{what}: it has no leader now")


def _results(answer: Any) -> dict[TopicPartition, Any]:
    return {TopicPartition(topic.name, one.partition_index): one for topic in answer.topics for one in topic.partitions}


def _producer(one: Any) -> ProducerDescription:
    return ProducerDescription(
        one.producer_id, one.producer_epoch, one.last_sequence, one.last_timestamp,
        one.coordinator_epoch, one.current_txn_start_offset,
    )  # fmt: skip


def _with_times(
    topic: str, partitions: Iterable[TopicPartition], at: Mapping[TopicPartition, int]
) -> m.ListOffsetsRequest.ListOffsetsTopic:
    return m.ListOffsetsRequest.ListOffsetsTopic(
        name=topic,
        partitions=[
            m.ListOffsetsRequest.ListOffsetsPartition(partition_index=one.partition, timestamp=at[one])
            for one in partitions
        ],
    )


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    """Return the partitions of each topic."""
    topics: dict[str, list[TopicPartition]] = {}
    for where in partitions:
        topics.setdefault(where.topic, []).append(where)
    return topics


def _offset_spec(when: int) -> Any:
    if when == EARLIEST:
        return kafka.OffsetSpec.earliest()
    if when == LATEST:
        return kafka.OffsetSpec.latest()
    return kafka.OffsetSpec.max_timestamp() if when == MAX_TIMESTAMP else kafka.OffsetSpec.for_timestamp(when)
