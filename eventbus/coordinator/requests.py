"""What is asked of the coordinators and what they answer: the fields of Kafka's requests, without their wire form."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from eventbus.types import ProducerIdAndEpoch, TopicPartition

CONSUMER_PROTOCOL = "consumer"
"""``protocol_type`` of consumers; other clients (Connect, registries) bring their own."""


class JoinGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A member asks to be part of the next generation (JoinGroup, key 11). Times in milliseconds."""

    group: str
    member_id: str = ""
    """Empty: a new member."""
    group_instance_id: str | None = None
    """Static membership (KIP-345)."""
    client_id: str = ""
    client_host: str = "/127.0.0.1"
    protocol_type: str = CONSUMER_PROTOCOL
    protocols: tuple[tuple[str, bytes], ...] = ()
    """(name, the member's metadata), the preferred first. The metadata is opaque here."""
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    require_known_member_id: bool = False
    """Answer a new dynamic member with MemberIdRequired and the id to come back with (KIP-394)."""
    supports_skipping_assignment: bool = False
    """A static leader that returns need not assign again (KIP-814)."""
    reason: str = ""


class JoinedMember(NamedTuple):
    """What the leader is told of a member."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinGroupResult(msgspec.Struct, frozen=True, kw_only=True):
    """The member is part of a generation. Only the leader is told the members."""

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
    """What the leader assigned to the member, as the leader wrote it."""

    protocol_type: str
    protocol_name: str
    assignment: bytes


class SentOffset(NamedTuple):
    """An offset to commit, as a client of Kafka's protocol sends it.

    Any offset is taken, as Kafka takes it: some clients commit -1 or -2 for "where my policy says".
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
        """What a consumer subscribes to; empty for other kinds of members, and while the group rebalances."""
        from eventbus.coordinator.consumer_protocol import decode_subscription

        try:
            return decode_subscription(self.metadata).topics
        except ValueError:
            return ()

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """What a consumer reads; empty for an idle one, for other kinds of members, and while the group rebalances."""
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
    """Kafka's name: classic or consumer (KIP-848)."""


class GroupDescription(NamedTuple):
    """One group, as it stands now. An unknown group is Dead and empty, as in Kafka."""

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
    """One transactional id, as it stands now."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    """-1 while no transaction is open."""
    partitions: tuple[TopicPartition, ...]


class ProducerDescription(NamedTuple):
    """What a partition remembers of a producer (DescribeProducers, key 61)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int
    """-1 when the producer has no transaction open on the partition."""


class TransactionEnd(msgspec.Struct, kw_only=True):
    """A transaction on its way to its end. Filled in as it goes on; see `Broker.transactions`."""

    transactional_id: str
    committed: bool
    topic_partition: TopicPartition
    """The partition of ``__transaction_state``; the outcome is decided once ``offset`` is durable there."""
    offset: int
    """-1: nothing had to be stored (the transaction was empty, or had been ended before in the same way)."""
    next: ProducerIdAndEpoch
    """What the producer goes on with."""
    markers: tuple[tuple[TopicPartition, int], ...] | None = None
    """Where the markers stand, once they are written; None before."""
