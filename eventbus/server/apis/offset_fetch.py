"""OffsetFetch (key 9): committed offsets. Many groups at once from v8 on, topics by id from v10 on.

An unknown group has offset -1 everywhere, metadata "" and no error: some clients stop at an error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from eventbus.coordinator.codec import OffsetCommitValue
from eventbus.errors import KafkaError, UnstableOffsetCommit
from eventbus.protocol import messages as m
from eventbus.server.admin import UNKNOWN_TOPIC_ID
from eventbus.server.call import Api, Call
from eventbus.server.coordinators import (
    TOPIC_AUTHORIZATION_FAILED,
    check_group_access,
    group_code,
    when_group_is_stored,
)
from eventbus.server.security.acls import Operation, ResourceType
from eventbus.types import TopicPartition

_Request = m.OffsetFetchRequest.OffsetFetchRequestGroup
_Wanted = m.OffsetFetchRequest.OffsetFetchRequestTopics
_Group = m.OffsetFetchResponse.OffsetFetchResponseGroup
_Topic = m.OffsetFetchResponse.OffsetFetchResponseTopics
_Partition = m.OffsetFetchResponse.OffsetFetchResponsePartitions
_OldTopic = m.OffsetFetchResponse.OffsetFetchResponseTopic
_OldPartition = m.OffsetFetchResponse.OffsetFetchResponsePartition


def offset_fetch(call: Call, request: m.OffsetFetchRequest) -> None:
    groups = request.groups if call.version >= 8 else [_of_one_group(call, request)]
    found = [_fetch(call, group, request.require_stable) for group in groups]

    def answer() -> None:
        if call.version >= 8:
            call.reply(m.OffsetFetchResponse(groups=found))
        else:
            call.reply(_for_one_group(found[0]))

    _when_all_are_stored(call, [group for group in found if not group.error_code], answer)


def _when_all_are_stored(call: Call, groups: list[_Group], answer: Callable[[], None]) -> None:
    """Answer once all groups' offsets are durable, because an offset that a crash could lose must not be returned."""
    waiting = len(groups)

    def stored(group: _Group, error: KafkaError | None) -> None:
        nonlocal waiting
        if error is not None:
            group.topics, group.error_code = [], group_code(error)
        waiting -= 1
        if not waiting:
            answer()

    for group in groups:
        when_group_is_stored(call, group.group_id, partial(stored, group))
    if not groups:
        answer()


def _of_one_group(call: Call, request: m.OffsetFetchRequest) -> _Request:
    topics = request.topics
    return _Request(
        group_id=request.group_id,
        topics=None
        if topics is None
        else [_Wanted(name=topic.name, partition_indexes=topic.partition_indexes) for topic in topics],
    )


def _for_one_group(group: _Group) -> m.OffsetFetchResponse:
    return m.OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            _OldTopic(
                name=topic.name,
                partitions=[
                    _OldPartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code or group.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )


def _fetch(call: Call, request: _Request, require_stable: bool) -> _Group:
    group = _Group(group_id=request.group_id)
    try:
        check_group_access(call, Operation.DESCRIBE, request.group_id)
        call.node.broker.groups.check_fetch(request.group_id, request.member_id, request.member_epoch)
    except KafkaError as error:
        group.error_code = error.code
        if call.version < 2:  # it has no other field for the code
            group.topics = [_refused(topic, error.code) for topic in request.topics or ()]
    else:
        fetch = _Fetch(call, request.group_id, require_stable)
        group.topics = fetch.all() if request.topics is None else [fetch.topic(topic) for topic in request.topics]
    return group


class _Fetch:
    """The committed offsets of one group, for the caller."""

    def __init__(self, call: Call, group: str, require_stable: bool) -> None:
        self._call = call
        self._group = group
        self._require_stable = require_stable

    def all(self) -> list[_Topic]:
        """Return all topics with offsets that the caller may describe."""
        groups, node = self._call.node.broker.groups, self._call.node
        topics: dict[str, _Topic] = {}
        for (name, number), found in groups.look_up_offsets(self._group, require_stable=self._require_stable).items():
            if name not in topics and self._may_see(name):
                topics[name] = _Topic(name=name, topic_id=node.topic_id(name))
            if name in topics:
                topics[name].partitions.append(_partition(number, found))
        return list(topics.values())

    def topic(self, wanted: _Wanted) -> _Topic:
        node = self._call.node
        name = node.topic_name(wanted.topic_id) if self._call.version >= 10 else wanted.name
        if name is None:
            return _refused(wanted, UNKNOWN_TOPIC_ID)
        if not self._may_see(name):
            return _refused(wanted, TOPIC_AUTHORIZATION_FAILED)
        partitions = [TopicPartition(name, number) for number in wanted.partition_indexes]
        found = node.broker.groups.look_up_offsets(self._group, partitions, require_stable=self._require_stable)
        return _Topic(
            name=name,
            topic_id=wanted.topic_id,
            partitions=[_partition(partition.partition, found.get(partition)) for partition in partitions],
        )

    def _may_see(self, topic: str) -> bool:
        return self._call.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic)


def _refused(wanted: _Wanted, code: int) -> _Topic:
    return _Topic(
        name=wanted.name,
        topic_id=wanted.topic_id,
        partitions=[_nothing(number, code) for number in wanted.partition_indexes],
    )


def _partition(number: int, found: OffsetCommitValue | UnstableOffsetCommit | None) -> _Partition:
    if found is None:
        return _nothing(number)
    if isinstance(found, UnstableOffsetCommit):
        return _nothing(number, found.code)
    return _Partition(
        partition_index=number,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
    )


def _nothing(number: int, code: int = 0) -> _Partition:
    return _Partition(partition_index=number, committed_offset=-1, metadata="", error_code=code)


API = Api(9, "OffsetFetch", 1, 10, offset_fetch)
