"""Administration of groups, transactions and producers. Everything here blocks, and runs in threads.

It uses our own codec: ``confluent-kafka`` has no calls for most of it, and leaves out fields of the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eventbus.backends.kafka.offset_admin import by_topic
from eventbus.backends.kafka.offset_text import read_text
from eventbus.backends.kafka.wire import Address, Wire
from eventbus.coordinator.assignors import Subscription
from eventbus.coordinator.consumer_protocol import encode_assignment, encode_subscription
from eventbus.coordinator.requests import (
    GroupDescription,
    GroupListing,
    MemberDescription,
    TransactionDescription,
    TransactionListing,
)
from eventbus.error_codes import KAFKA_ERRORS
from eventbus.errors import (
    ConfigError,
    InvalidTxnState,
    UnknownMemberId,
    error_for_code,
)
from eventbus.protocol import messages as m
from eventbus.suggest import nearest
from eventbus.types import GroupMetadata, OffsetAndMetadata, ProducerIdAndEpoch, TopicPartition

_GROUP, _TRANSACTION = 0, 1
_GROUP_ID_NOT_FOUND = 69


def _check(code: int, what: str, said: str | None = None) -> None:
    if code:
        raise error_for_code(code, f"{what}: {said or KAFKA_ERRORS.get(code, KAFKA_ERRORS[-1]).name}")


class CoordinatorAdmin:
    """Requests to the coordinators of a cluster."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def _coordinator(self, key: str, kind: int) -> Address:
        def make(version: int) -> Any:
            if version >= 4:
                return m.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            return m.FindCoordinatorRequest(key=key, key_type=kind)

        answer = self._wire.ask(make, "FindCoordinator")
        found = answer.coordinators[0] if answer.coordinators else answer
        _check(found.error_code, f"the coordinator of {key!r}", found.error_message)
        return found.host, found.port

    def _brokers(self) -> list[Address]:
        answer = self._wire.call(m.MetadataRequest(topics=[], allow_auto_topic_creation=False))
        return [(broker.host, broker.port) for broker in answer.brokers]

    # groups ----------------------------------------------------------------------------------------------------------

    def list_groups(self) -> list[GroupListing]:
        found: list[GroupListing] = []
        for broker in self._brokers():
            answer = self._wire.call(m.ListGroupsRequest(), at=broker)
            _check(answer.error_code, "the groups cannot be listed")
            found += [GroupListing(one.group_id, one.protocol_type, one.group_state) for one in answer.groups]
        return sorted(found)

    def describe_groups(
        self, groups: Sequence[str], members: Mapping[str, Iterable[GroupMetadata]]
    ) -> list[GroupDescription]:
        """Describe groups. ``members`` are those of this process, which have the generation; Kafka's answer does
        not."""
        return [self._describe_group(group, members.get(group, ())) for group in groups]

    def _describe_group(self, group: str, own: Iterable[GroupMetadata]) -> GroupDescription:
        at = self._coordinator(group, _GROUP)
        answer = self._wire.call(m.DescribeGroupsRequest(groups=[group]), at=at)
        found = answer.groups[0]
        # DescribeGroups does not know groups of the consumer protocol. Older brokers answer Dead, newer ones with an
        # error.
        if found.group_state == "Dead" or found.error_code == _GROUP_ID_NOT_FOUND:
            return self._describe_consumer_group(group, at) or GroupDescription(group, "Dead", "", "", -1, ())
        _check(found.error_code, f"group {group!r}", found.error_message)
        members = tuple(
            MemberDescription(
                one.member_id, one.group_instance_id, one.client_id, one.client_host,
                bytes(one.member_metadata), bytes(one.member_assignment),
            )
            for one in found.members
        )  # fmt: skip
        generation_id = self._generation(own, {one.member_id for one in members}, at)
        return GroupDescription(
            group, found.group_state, found.protocol_type, found.protocol_data, generation_id, members
        )

    def _generation(self, own: Iterable[GroupMetadata], known: set[str], at: Address) -> int:
        """Return the group's generation if a member of this process has it now; -1 if it cannot be known."""
        for member in own:
            if member.member_id in known:
                # A heartbeat in the member's name: the coordinator accepts it only in the current generation.
                answer = self._wire.call(
                    m.HeartbeatRequest(
                        group_id=member.group,
                        generation_id=member.generation_id,
                        member_id=member.member_id,
                        group_instance_id=member.group_instance_id,
                    ),
                    at=at,
                )
                if not answer.error_code:
                    return member.generation_id
        return -1

    def _describe_consumer_group(self, group: str, at: Address) -> GroupDescription | None:
        """Describe a group of the new protocol (KIP-848); return None if it does not exist."""
        try:
            answer = self._wire.call(m.ConsumerGroupDescribeRequest(group_ids=[group]), at=at)
        except ConfigError:  # the broker does not support such groups
            return None
        found = answer.groups[0]
        if found.error_code == _GROUP_ID_NOT_FOUND:
            return None
        _check(found.error_code, f"group {group!r}", found.error_message)
        members = tuple(
            MemberDescription(
                one.member_id,
                one.instance_id,
                one.client_id,
                one.client_host,
                encode_subscription(Subscription(topics=tuple(one.subscribed_topic_names or ()))),
                encode_assignment(
                    TopicPartition(topic.topic_name, number)
                    for topic in one.assignment.topic_partitions
                    for number in topic.partitions
                ),
            )
            for one in found.members
        )
        return GroupDescription(group, found.group_state, "consumer", found.assignor_name, found.group_epoch, members)

    def offsets(
        self, group: str, stable: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return committed offsets. ``stable``: only of these partitions, and never one that a transaction is about
        to change."""
        at = self._coordinator(group, _GROUP)
        named = {topic: [one.partition for one in some] for topic, some in by_topic(stable or ()).items()}
        is_stable = stable is not None

        def make(version: int) -> Any:
            # Since version 8 the request has a list of groups.
            if version >= 8:
                several = m.OffsetFetchRequest.OffsetFetchRequestTopics
                topics = [several(name=name, partition_indexes=numbers) for name, numbers in named.items()]
                asked = m.OffsetFetchRequest.OffsetFetchRequestGroup(
                    group_id=group, topics=topics if is_stable else None
                )
                return m.OffsetFetchRequest(groups=[asked], require_stable=is_stable)
            several = m.OffsetFetchRequest.OffsetFetchRequestTopic
            topics = [several(name=name, partition_indexes=numbers) for name, numbers in named.items()]
            return m.OffsetFetchRequest(
                group_id=group, topics=topics if is_stable else None, require_stable=is_stable and version >= 7
            )

        answer = self._wire.ask(make, "OffsetFetch", 9, at)
        found = answer.groups[0] if answer.groups else answer
        if found.error_code == _GROUP_ID_NOT_FOUND:
            return {}
        _check(found.error_code, f"the offsets of group {group!r}")
        for topic in found.topics:
            for one in topic.partitions:
                _check(one.error_code, f"the offset of group {group!r} in {topic.name}-{one.partition_index}")
        return {
            TopicPartition(topic.name, one.partition_index): OffsetAndMetadata(
                one.committed_offset, read_text(one.metadata)
            )
            for topic in found.topics
            for one in topic.partitions
            if one.committed_offset >= 0
        }

    def alter_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit without a member, which only a group without members accepts."""
        request = m.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[
                m.OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        m.OffsetCommitRequest.OffsetCommitRequestPartition(
                            partition_index=one.partition,
                            committed_offset=offsets[one].offset,
                            committed_metadata=offsets[one].metadata,
                        )
                        for one in some
                    ],
                )
                for topic, some in by_topic(offsets).items()
            ],
        )
        answer = self._wire.call(request, 9, self._coordinator(group, _GROUP))
        for topic in answer.topics:
            for one in topic.partitions:
                _check(one.error_code, f"group {group!r} did not commit {topic.name}-{one.partition_index}")

    def delete_group(self, group: str) -> None:
        request = m.DeleteGroupsRequest(groups_names=[group])
        answer = self._wire.call(request, at=self._coordinator(group, _GROUP))
        _check(answer.results[0].error_code, f"group {group!r} was not deleted")

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        request = m.OffsetDeleteRequest(
            group_id=group,
            topics=[
                m.OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[
                        m.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=one.partition)
                        for one in some
                    ],
                )
                for topic, some in by_topic(partitions).items()
            ],
        )
        answer = self._wire.call(request, at=self._coordinator(group, _GROUP))
        _check(answer.error_code, f"the offsets of group {group!r} were not deleted")
        for topic in answer.topics:
            for one in topic.partitions:
                what = f"the offset of group {group!r} in {topic.name}-{one.partition_index} was not deleted"
                _check(one.error_code, what)

    def remove_members(self, group: str, chosen: Sequence[str] | None) -> None:
        described = self._describe_group(group, ())
        names = {one.group_instance_id or one.member_id: one for one in described.members}
        names |= {one.member_id: one for one in described.members}
        for name in chosen or ():
            if name not in names:
                raise UnknownMemberId(
                    f"group {group!r} has no member {name!r}{nearest(name, names)}; `admin.describe_group` shows them"
                )
        leaving = described.members if chosen is None else tuple(names[name] for name in chosen)
        if not leaving:
            return
        request = m.LeaveGroupRequest(
            group_id=group,
            members=[
                m.LeaveGroupRequest.MemberIdentity(
                    # A static member is removed by its instance id alone, also if it has restarted under a new member
                    # id meanwhile.
                    member_id="" if one.group_instance_id else one.member_id,
                    group_instance_id=one.group_instance_id,
                    reason="removed by an administrator",
                )
                for one in leaving
            ],
        )
        answer = self._wire.call(request, at=self._coordinator(group, _GROUP))
        _check(answer.error_code, f"group {group!r} kept its members")
        for one in answer.members:
            _check(one.error_code, f"group {group!r} kept {one.group_instance_id or one.member_id}")

    # transactions ----------------------------------------------------------------------------------------------------

    def list_transactions(self) -> list[TransactionListing]:
        found: list[TransactionListing] = []
        for broker in self._brokers():
            answer = self._wire.call(m.ListTransactionsRequest(), at=broker)
            _check(answer.error_code, "the transactions cannot be listed")
            found += [
                TransactionListing(one.transactional_id, one.producer_id, one.transaction_state)
                for one in answer.transaction_states
            ]
        return sorted(found)

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        request = m.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        answer = self._wire.call(request, at=self._coordinator(transactional_id, _TRANSACTION))
        found = answer.transaction_states[0]
        _check(found.error_code, f"transactional id {transactional_id!r}")
        partitions = sorted(TopicPartition(one.topic, number) for one in found.topics for number in one.partitions)
        return TransactionDescription(
            transactional_id,
            found.transaction_state,
            found.producer_id,
            found.producer_epoch,
            found.transaction_timeout_ms,
            # Kafka's coordinator continues to return when the last transaction began.
            -1 if found.transaction_state.startswith(("Complete", "Empty")) else found.transaction_start_time_ms,
            tuple(partitions),
        )

    def check_open(self, transactional_id: str) -> None:
        """Raise InvalidTxnState if there is nothing to abort."""
        state = self.describe_transaction(transactional_id).state
        if state != "Ongoing":
            raise InvalidTxnState(f"transactional id {transactional_id!r} has no open transaction: it is {state}")

    def fence(self, transactional_id: str) -> ProducerIdAndEpoch:
        """Take the id over. Raises ConcurrentTransactions while its transaction is being ended: call again."""
        # Raises for an unknown id: taking it over would create it.
        timeout_ms = self.describe_transaction(transactional_id).timeout_ms
        request = m.InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, producer_id=-1, producer_epoch=-1
        )
        answer = self._wire.call(request, 5, self._coordinator(transactional_id, _TRANSACTION))
        _check(answer.error_code, f"transactional id {transactional_id!r}")
        return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
