"""OffsetCommit (key 8): commit offsets of a group. Topics by id from v10 on; answered once stored.

Without a member (generation -1) it is for groups without members. The code for an unknown group depends on the version:
GROUP_ID_NOT_FOUND from v9 on (KIP-848), ILLEGAL_GENERATION before.
"""

from __future__ import annotations

from eventbus.errors import GroupIdNotFound, IllegalGeneration, KafkaError, UnsupportedVersion
from eventbus.protocol import messages as m
from eventbus.server.admin import UNKNOWN_TOPIC_ID
from eventbus.server.call import Api, Call
from eventbus.server.coordinators import Commit, check_group_access, group_code
from eventbus.server.security.acls import Operation
from eventbus.types import GroupMetadata

_Topic = m.OffsetCommitResponse.OffsetCommitResponseTopic
_Partition = m.OffsetCommitResponse.OffsetCommitResponsePartition


def offset_commit(call: Call, request: m.OffsetCommitRequest) -> None:
    node = call.node
    names = [node.topic_name(topic.topic_id) if call.version >= 10 else topic.name for topic in request.topics]
    commit = Commit(call)

    def code(name: str | None, partition: int) -> int:
        return UNKNOWN_TOPIC_ID if name is None else commit.code(name, partition)

    def answer() -> None:
        topics = [
            _Topic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    _Partition(
                        partition_index=partition.partition_index, error_code=code(name, partition.partition_index)
                    )
                    for partition in topic.partitions
                ],
            )
            for name, topic in zip(names, request.topics, strict=True)
        ]
        call.reply(m.OffsetCommitResponse(topics=topics))

    for name, topic in zip(names, request.topics, strict=True):
        if name is not None:
            for given in topic.partitions:
                commit.add(
                    name, given.partition_index, given.committed_offset, given.committed_leader_epoch,
                    given.committed_metadata,
                )  # fmt: skip
    member = GroupMetadata(
        request.group_id, request.generation_id_or_member_epoch, request.member_id, request.group_instance_id
    )
    try:
        check_group_access(call, Operation.READ, request.group_id)
        commit.check_partitions()
        if call.version < 9 and node.broker.groups.speaks_consumer_protocol(member.group, member.member_id):
            raise UnsupportedVersion(f"{member.member_id} of group {member.group!r} has a member epoch: commit with v9")
        if not commit.offsets:
            answer()
            return
        result = node.broker.groups.commit_offsets(member, commit.offsets, node.now_ms())
    except KafkaError as error:
        commit.failed(_code(call, request.group_id, error))
        answer()
    else:
        commit.stored(result, answer)


def _code(call: Call, group: str, error: KafkaError) -> int:
    if isinstance(error, IllegalGeneration) and call.version >= 9 and not call.node.broker.groups.is_known(group):
        return GroupIdNotFound.code
    return group_code(error)


API = Api(8, "OffsetCommit", 2, 10, offset_commit)
