"""Parse librdkafka's statistics: a JSON text per client and ``statistics.interval.ms``."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

import msgspec

from eventbus.backends.statistics import BatchStatistics, BrokerStatistics, ClientStatistics, PartitionStatistics
from eventbus.types import TopicPartition

_NAME = re.compile(r'"name": ?"([^"]+)"')
_MS = 1_000
"""The microseconds of a millisecond."""


class _Window(msgspec.Struct):
    avg: float = 0
    p99: float = 0


class _Broker(msgspec.Struct):
    nodeid: int = -1
    nodename: str = ""
    state: str = ""
    waitresp_cnt: int = 0
    txbytes: int = 0
    rxbytes: int = 0
    txerrs: int = 0
    rxerrs: int = 0
    req_timeouts: int = 0
    connects: int = 0
    disconnects: int = 0
    rtt: _Window = msgspec.field(default_factory=_Window)
    throttle: _Window = msgspec.field(default_factory=_Window)


class _Partition(msgspec.Struct):
    partition: int = -1
    leader: int = -1
    msgq_cnt: int = 0
    msgq_bytes: int = 0
    xmit_msgq_cnt: int = 0
    xmit_msgq_bytes: int = 0
    fetchq_cnt: int = 0
    fetchq_size: int = 0
    txmsgs: int = 0
    txbytes: int = 0
    rxmsgs: int = 0
    rxbytes: int = 0
    consumer_lag: int = -1


class _Topic(msgspec.Struct):
    topic: str = ""
    batchsize: _Window = msgspec.field(default_factory=_Window)
    batchcnt: _Window = msgspec.field(default_factory=_Window)
    partitions: dict[str, _Partition] = {}


class _Group(msgspec.Struct):
    rebalance_cnt: int = 0


class _Client(msgspec.Struct):
    name: str
    client_id: str = ""
    type: str = ""
    msg_cnt: int = 0
    msg_size: int = 0
    txmsgs: int = 0
    txmsg_bytes: int = 0
    rxmsgs: int = 0
    rxmsg_bytes: int = 0
    brokers: dict[str, _Broker] = {}
    topics: dict[str, _Topic] = {}
    cgrp: _Group = msgspec.field(default_factory=_Group)


_read = msgspec.json.Decoder(_Client).decode


class LatestStatistics:
    """The latest statistics of each client, parsed on request. Those of closed clients expire."""

    def __init__(self, clock: Callable[[], float], keep_seconds: float) -> None:
        self._clock = clock
        self._keep_seconds = keep_seconds
        self._lock = threading.Lock()
        self._texts: dict[str, tuple[float, str]] = {}

    def store(self, text: str) -> None:
        """Store a text; called in a thread of librdkafka."""
        # Only the client's name is read here. The text has tens of kilobytes and comes every few seconds from each
        # client, so it is parsed on request.
        found = _NAME.search(text, 0, 1_000)
        now = self._clock()
        with self._lock:
            if found is not None:
                self._texts[found[1]] = now, text
            for name in [name for name, (at, _) in self._texts.items() if now - at > self._keep_seconds]:
                del self._texts[name]

    def clients(self) -> tuple[ClientStatistics, ...]:
        """Return the statistics of each client with a recent text."""
        now = self._clock()
        with self._lock:
            texts = [(at, text) for at, text in self._texts.values() if now - at <= self._keep_seconds]
        return tuple(_client(_read(text), int((now - at) * 1000)) for at, text in texts)


def _client(one: _Client, age_ms: int) -> ClientStatistics:
    fetched = [partition for topic in one.topics.values() for partition in topic.partitions.values()]
    return ClientStatistics(
        name=one.name,
        client_id=one.client_id,
        kind=one.type,
        age_ms=age_ms,
        queued_records=one.msg_cnt + sum(partition.fetchq_cnt for partition in fetched),
        queued_bytes=one.msg_size + sum(partition.fetchq_size for partition in fetched),
        sent_records=one.txmsgs,
        sent_bytes=one.txmsg_bytes,
        received_records=one.rxmsgs,
        received_bytes=one.rxmsg_bytes,
        rebalances=one.cgrp.rebalance_cnt,
        brokers=tuple(_broker(broker) for broker in one.brokers.values() if broker.nodeid >= 0),
        partitions=tuple(
            _partition(topic.topic, partition)
            for topic in one.topics.values()
            for partition in topic.partitions.values()
            if partition.partition >= 0
        ),
        batches=tuple(
            BatchStatistics(topic=topic.topic, records=topic.batchcnt.avg, size_bytes=topic.batchsize.avg)
            for topic in one.topics.values()
            if one.type == "producer"
        ),
    )


def _broker(one: _Broker) -> BrokerStatistics:
    return BrokerStatistics(
        broker_id=one.nodeid,
        address=one.nodename,
        is_up=one.state in ("UP", "UPDATE"),
        requests_waiting=one.waitresp_cnt,
        sent_bytes=one.txbytes,
        received_bytes=one.rxbytes,
        errors=one.txerrs + one.rxerrs + one.req_timeouts,
        connects=one.connects,
        disconnects=one.disconnects,
        round_trip_ms=one.rtt.avg / _MS,
        round_trip_p99_ms=one.rtt.p99 / _MS,
        throttle_ms=one.throttle.avg,
    )


def _partition(topic: str, one: _Partition) -> PartitionStatistics:
    return PartitionStatistics(
        topic_partition=TopicPartition(topic, one.partition),
        leader=one.leader,
        queued_records=one.msgq_cnt + one.xmit_msgq_cnt + one.fetchq_cnt,
        queued_bytes=one.msgq_bytes + one.xmit_msgq_bytes + one.fetchq_size,
        sent_records=one.txmsgs,
        sent_bytes=one.txbytes,
        received_records=one.rxmsgs,
        received_bytes=one.rxbytes,
        lag=one.consumer_lag if one.consumer_lag >= 0 else None,
    )
