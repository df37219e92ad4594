"""Requests to the coordinators and their results: the fields of Kafka's messages, without the wire format."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from eventbus.types import ProducerIdAndEpoch, TopicPartition

CONSUMER_PROTOCOL = "consumer"
"""``protocol_type`` of consumers; other clients (Connect, registries) use others."""


class JoinGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A member's request to join the next generation (JoinGroup, key 11). Times in milliseconds."""

    group: str
    member_id: str = ""
    """Empty for a new member."""
    group_instance_id: str | None = None
    """The instance id of a static member (KIP-345)."""
    client_id: str = ""
    client_host: str = "/127.0.0.1"
    protocol_type: str = CONSUMER_PROTOCOL
    protocols: tuple[tuple[str, bytes], ...] = ()
    """Pairs of a name and the member's metadata, in order of preference. The metadata is opaque here."""
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    require_known_member_id: bool = False
    """Answer a new dynamic member with MemberIdRequired and the id with which to join again (KIP-394)."""
    supports_skipping_assignment: bool = False
    """A static leader that returns need not assign again (KIP-814)."""
    reason: str = ""


class JoinedMember(NamedTuple):
    """A member as the leader sees it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinGroupResult(msgspec.Struct, frozen=True, kw_only=True):
    """The member is part of a generation. Only the leader receives the list of members."""

    generation_id: int
    protocol_type: str
    protocol_name: str
    leader_id: str
    member_id: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False

    @property
    def is_leader(self) -> bool:
        return self.member_id == self.leader_id


class SyncGroupResult(NamedTuple):
    """The leader's assignment for the member, in the leader's bytes."""

    protocol_type: str
    protocol_name: str
    assignment: bytes


class SentOffset(NamedTuple):
    """An offset to commit, as a client of Kafka's protocol sends it.

    Any offset is accepted, as in Kafka: some clients commit -1 or -2 to mean their reset policy.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class MemberDescription(NamedTuple):
    """One member, as admin tools see it."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics a consumer subscribes to; empty for other kinds of members, and while the group rebalances."""
        from eventbus.coordinator.consumer_protocol import decode_subscription

        try:
            return decode_subscription(self.metadata).topics
        except ValueError:
            return ()

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions a consumer reads; empty for an idle consumer, for other members, and while the group
        rebalances."""
        from eventbus.coordinator.consumer_protocol import decode_assignment

        try:
            return tuple(decode_assignment(self.assignment))
        except ValueError:
            return ()


class GroupListing(NamedTuple):
    """One group in a list. ``state`` is Kafka's name: Empty, PreparingRebalance, CompletingRebalance, Stable, Dead."""

    group: str
    protocol_type: str
    state: str
    group_type: str = "classic"
    """Kafka's name of the group's type: classic or consumer (KIP-848)."""


class GroupDescription(NamedTuple):
    """The present state of one group. An unknown group is Dead and empty, as in Kafka."""

    group: str
    state: str
    protocol_type: str
    protocol_name: str
    generation_id: int
    members: tuple[MemberDescription, ...]


class TransactionListing(NamedTuple):
    """One transactional id in a list. ``state`` is Kafka's name: Empty, Ongoing, PrepareCommit, ..."""

    transactional_id: str
    producer_id: int
    state: str


class TransactionDescription(NamedTuple):
    """The present state of one transactional id."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    """-1 if no transaction is open."""
    partitions: tuple[TopicPartition, ...]


class ProducerDescription(NamedTuple):
    """A partition's state of one producer (DescribeProducers, key 61)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int
    """-1 if the producer has no open transaction on the partition."""


class TransactionEnd(msgspec.Struct, kw_only=True):
    """The progress of a transaction that is being ended; fields are filled in step by step, see
    `Broker.transactions`."""

    transactional_id: str
    committed: bool
    topic_partition: TopicPartition
    """The partition of ``__transaction_state``; the outcome is decided once ``offset`` is durable there."""
    offset: int
    """-1 if nothing had to be stored: the transaction was empty, or had already been ended in this way."""
    next: ProducerIdAndEpoch
    """The producer id and epoch with which the producer continues."""
    markers: tuple[tuple[TopicPartition, int], ...] | None = None
    """The positions of the markers once they are written, else None."""
