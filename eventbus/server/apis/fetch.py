"""Fetch (key 1): whole batches as they are in the log, or a wait for them.

Every requested partition is in the answer, also those that the byte limits leave without records: clients drop an
answer that omits one. The first batch may be larger than all limits (KIP-74), and partitions take turns in being first.
Fetch sessions are not used (KIP-227): the session id in every answer is 0, so each request is complete.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from eventbus.broker.descriptions import FetchData
from eventbus.errors import KafkaError, UnknownTopicOrPartition
from eventbus.log.batch_iterator import batch_bounds
from eventbus.protocol import Buffer
from eventbus.protocol import messages as m
from eventbus.records.batch import HEADER_BYTES
from eventbus.server.apis._partitions import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_ID, check_leader_epoch
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation, ResourceType
from eventbus.types import IsolationLevel, TopicPartition

_FETCH_SESSION_ID_NOT_FOUND = 70
_NO_SESSION = (0, -1)
"""Epochs of requests that need no session: the first of a session, and its close."""
_IDS_FROM = 13
_LIMIT_BYTES = 8 << 20
"""The most bytes in an answer, whatever the request allows (Kafka's ``fetch.max.bytes`` of the broker, 55 MiB):
reading this much delays everything else by about 2 ms, and for a peer that reads slowly it stays in memory."""

Topic = m.FetchResponse.FetchableTopicResponse
Partition = m.FetchResponse.PartitionData
Aborted = m.FetchResponse.AbortedTransaction


class _Asked(NamedTuple):
    """One partition of a request."""

    answer: Partition
    topic_partition: TopicPartition
    offset: int
    max_bytes: int
    leader_epoch: int
    topic_id: str
    """The topic's id at the time of the request: a later topic with its name has other records at that offset."""


class _Fetch:
    """One request. It is evaluated when it arrives, when records arrive, and when its time is over."""

    __slots__ = (
        "_asked",
        "_call",
        "_first",
        "_isolation",
        "_limit_bytes",
        "_min_bytes",
        "_response",
        "_timer",
        "_topics_version",
        "_woken",
    )

    def __init__(self, call: Call, request: m.FetchRequest) -> None:
        self._call = call
        self._isolation = IsolationLevel.READ_COMMITTED if request.isolation_level else IsolationLevel.READ_UNCOMMITTED
        quota_bytes = call.node.security.quotas.fetch_limit_bytes(call.principal, call.client_id)
        self._limit_bytes = min(request.max_bytes, _LIMIT_BYTES, quota_bytes)
        self._min_bytes = min(request.min_bytes, self._limit_bytes)
        self._response = m.FetchResponse()
        self._asked: list[_Asked] = []
        self._timer: asyncio.TimerHandle | None = None
        self._woken = False
        self._topics_version = call.node.broker.topics_version
        failed = self._take_apart(request)
        self._first = call.correlation_id % (len(self._asked) or 1)
        found_bytes, errors = self._read()
        if failed or errors or found_bytes >= self._min_bytes or request.max_wait_ms <= 0 or not self._asked:
            self._answer(found_bytes)
        else:
            self._park(request.max_wait_ms)

    def _take_apart(self, request: m.FetchRequest) -> bool:
        """Collect the requested partitions; return True if some of them have errors, so that waiting is useless."""
        call = self._call
        failed = False
        for topic in request.topics:
            code, name = 0, topic.topic
            if call.version >= _IDS_FROM:
                name = call.node.topic_name(topic.topic_id)
                code = 0 if name is not None else UNKNOWN_TOPIC_ID
            if name is not None and not call.allows(Operation.READ, ResourceType.TOPIC, name):
                code = TOPIC_AUTHORIZATION_FAILED
            topic_id = "" if name is None else call.node.broker.topic_id(name)
            answers: list[Partition] = []
            for partition in topic.partitions:
                answer = Partition(
                    partition_index=partition.partition, high_watermark=-1, records=b"", aborted_transactions=None
                )
                answers.append(answer)
                if code or name is None:
                    answer.error_code = code
                    failed = True
                else:
                    self._asked.append(
                        _Asked(
                            answer,
                            TopicPartition(name, partition.partition),
                            partition.fetch_offset,
                            partition.partition_max_bytes,
                            partition.current_leader_epoch,
                            topic_id,
                        )
                    )
            self._response.responses.append(Topic(topic=topic.topic, topic_id=topic.topic_id, partitions=answers))
        return failed

    # reading ---------------------------------------------------------------------------------------------------------

    def _read(self) -> tuple[int, bool]:
        """Fill the answer with available records; return the bytes found, and True if waiting is useless (an error,
        a limit)."""
        broker = self._call.node.broker
        fetch = broker.fetch
        changed = broker.topics_version != self._topics_version
        isolation = self._isolation
        has_room = self._call.has_room  # if not, the client may ask again after it has read earlier answers
        left = self._limit_bytes if has_room else 0
        found_bytes = 0
        at_once = False
        asked, first = self._asked, self._first
        for answer, topic_partition, offset, max_bytes, leader_epoch, topic_id in asked[first:] + asked[:first]:
            try:
                if changed and broker.topic_id(topic_partition.topic) != topic_id:
                    raise UnknownTopicOrPartition(f"{topic_partition} was deleted while a fetch waited for its records")
                if leader_epoch > 0:
                    check_leader_epoch(leader_epoch)
                limit = min(max_bytes, left)
                data = fetch(
                    topic_partition, offset, max(limit, 0), isolation, min_one_batch=has_room and not found_bytes
                )
            except KafkaError as error:
                answer.error_code = error.code
                answer.records = b""
                answer.high_watermark = answer.last_stable_offset = answer.log_start_offset = -1
                at_once = True
                continue
            size = len(data.records)
            found_bytes += size
            left -= size
            _fill(answer, data, isolation)
            end = data.last_stable_offset if isolation else data.high_watermark
            if found_bytes < self._min_bytes and 2 * size > limit and _end_offset(data.records) < end:
                at_once = True  # whole batches seldom fill a limit exactly: waiting for that much would be in vain
        return found_bytes, at_once

    def _answer(self, found_bytes: int) -> None:
        call = self._call
        throttle_ms = 0
        if found_bytes:
            quotas = call.node.security.quotas
            throttle_ms = quotas.fetched(call.principal, call.client_id, found_bytes, call.node.now_ms())
            if throttle_ms:  # the answer comes later: nothing is counted, and nothing returned
                for asked in self._asked:
                    asked.answer.records = b""
        call.reply(self._response, throttle_ms)

    # waiting ---------------------------------------------------------------------------------------------------------

    def _park(self, max_wait_ms: int) -> None:
        self._wait_for_more()
        call = self._call
        self._timer = call.node.after(max_wait_ms, self._expired)
        call.on_close = self._unpark
        for asked in self._asked:
            call.node.listen(asked.topic_partition, self._advanced)

    def _unpark(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            for asked in self._asked:
                self._call.node.unlisten(asked.topic_partition, self._advanced)

    def _advanced(self, topic_partition: TopicPartition) -> None:
        """Handle new records, or a deleted partition. Evaluated in another turn, after their producer is done."""
        self._wake()

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        self._woken = False
        if self._timer is None or not self._call.is_open:
            return
        found_bytes, failed = self._read()
        if failed or found_bytes >= self._min_bytes:
            self._unpark()
            self._answer(found_bytes)
        else:
            self._wait_for_more()

    def _wait_for_more(self) -> None:
        """Drop the records found so far while the peer waits for more: they are in the log, and are read again."""
        for asked in self._asked:
            asked.answer.records = b""
        if not self._call.has_room:
            self._call.when_room(self._wake)

    def _expired(self) -> None:
        if self._call.is_open:
            found_bytes, _ = self._read()
            self._unpark()
            self._answer(found_bytes)


def _end_offset(batches: Buffer) -> int:
    position = end_offset = 0
    while position < len(batches):
        _, end_offset, size = batch_bounds(batches[position : position + HEADER_BYTES])
        position += size
    return end_offset


def _fill(answer: Partition, data: FetchData, isolation: IsolationLevel) -> None:
    answer.high_watermark = data.high_watermark
    answer.last_stable_offset = data.last_stable_offset
    answer.log_start_offset = data.log_start_offset
    answer.records = data.records
    if isolation:
        answer.aborted_transactions = [
            Aborted(producer_id=one.producer_id, first_offset=one.first_offset) for one in data.aborted
        ]


def fetch(call: Call, request: m.FetchRequest) -> None:
    if request.session_id and request.session_epoch not in _NO_SESSION:
        call.reply(m.FetchResponse(error_code=_FETCH_SESSION_ID_NOT_FOUND))
        return
    _Fetch(call, request)


API = Api(1, "Fetch", 4, 18, fetch)
