"""What is asked of groups of the consumer protocol and what they answer (KIP-848), without the wire form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

JOIN_EPOCH = 0
"""A member's epoch when it joins, or joins again after it was fenced."""
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
"""A static member goes and means to come back: its place is kept until its session ends."""


class TopicIdPartition(NamedTuple):
    """One partition, by the id of its topic: a topic of the same name made anew is another one."""

    topic_id: bytes
    partition: int


class ConsumerHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A member joins, stays or leaves (ConsumerGroupHeartbeat, key 68). None: as it was told last."""

    group: str
    member_id: str = ""
    """Made by the member itself since version 1 (KIP-1082); empty: one is given out."""
    member_epoch: int = JOIN_EPOCH
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    """How long the member may take to give partitions up; -1: as before."""
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    """A pattern in RE2's syntax; empty: none any more."""
    assignor: str | None = None
    owned: frozenset[TopicIdPartition] | None = None
    """The partitions that the member holds."""
    client_id: str = ""
    client_host: str = "/127.0.0.1"
    may_describe: Callable[[str], bool] = lambda _: True
    """Whether a pattern of this member may find the topic."""

    @property
    def is_full(self) -> bool:
        """The member tells all of itself, because it joins or missed an answer; it is told its assignment then."""
        return self.member_epoch == JOIN_EPOCH or (
            self.rebalance_timeout_ms != -1
            and (self.topics is not None or self.regex is not None)
            and self.owned is not None
        )


class ConsumerHeartbeatResult(NamedTuple):
    """Where the member stands."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: frozenset[TopicIdPartition] | None = None
    """What it may read from now on and nothing else; None: as before."""


class ConsumerMemberDescription(NamedTuple):
    """One member, as admin tools see it."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str
    assignment: frozenset[TopicIdPartition]
    """With those that it was told to give up, and has not yet."""
    target: frozenset[TopicIdPartition]
    uses_classic_protocol: bool


class ConsumerGroupDescription(NamedTuple):
    """One group, as it stands now (ConsumerGroupDescribe, key 69)."""

    group: str
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[ConsumerMemberDescription, ...]
    topic_names: Mapping[bytes, str]
    """Of the topics in the assignments, as far as they exist."""
