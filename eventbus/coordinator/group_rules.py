"""States, events and configuration of a group of the classic protocol, and the result of one step."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Literal, NamedTuple

from eventbus.coordinator.members import JoinReply, SyncReply
from eventbus.coordinator.requests import JoinGroupResult, SyncGroupResult
from eventbus.coordinator.shard import CoordinatorRecord
from eventbus.errors import KafkaError


class State(Enum):
    """The group's state, under Kafka's name."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Event(Enum):
    """The events that change a group's state; the value is the rule."""

    REBALANCE = "a member comes, goes, or joins with other metadata; the leader joins again; members failed to sync"
    JOINED = "every member has joined, or the rebalance timeout dropped those that had not; one of them leads"
    ASSIGNED = "a generation with members is stored: the leader has assigned, or a static member is back as it was"
    EMPTIED = "a generation without members is stored: no member was left when the join phase ended"
    DELETED = "the group's tombstone is stored: it was deleted, or has expired"


TRANSITIONS: dict[tuple[State, Event], State] = {
    # The group has no members. Commits without a member are accepted; offsets expire in this state.
    (State.EMPTY, Event.REBALANCE): State.PREPARING_REBALANCE,
    (State.EMPTY, Event.ASSIGNED): State.STABLE,  # replay at open, never live
    (State.EMPTY, Event.EMPTIED): State.EMPTY,  # replay at open, never live
    (State.EMPTY, Event.DELETED): State.DEAD,
    # Joins are parked, syncs and heartbeats are answered with RebalanceInProgress; commits of the old generation are
    # accepted.
    (State.PREPARING_REBALANCE, Event.JOINED): State.COMPLETING_REBALANCE,
    (State.PREPARING_REBALANCE, Event.EMPTIED): State.EMPTY,
    (State.PREPARING_REBALANCE, Event.DELETED): State.DEAD,  # it becomes a group of the consumer protocol (KIP-848)
    # The new generation is known, its assignment is not: syncs of followers are parked, commits refused.
    (State.COMPLETING_REBALANCE, Event.REBALANCE): State.PREPARING_REBALANCE,
    (State.COMPLETING_REBALANCE, Event.ASSIGNED): State.STABLE,
    (State.COMPLETING_REBALANCE, Event.DELETED): State.DEAD,  # likewise
    # Syncs are answered with the stored assignment.
    (State.STABLE, Event.REBALANCE): State.PREPARING_REBALANCE,
    (State.STABLE, Event.ASSIGNED): State.STABLE,
    (State.STABLE, Event.EMPTIED): State.EMPTY,  # replay at open, never live
    (State.STABLE, Event.DELETED): State.DEAD,  # likewise
}


class GroupConfig(NamedTuple):
    """Settings of the coordinator: Kafka's broker configs, with times in milliseconds."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2_147_483_647
    group_initial_rebalance_delay_ms: int = 0
    offsets_retention_ms: int = 604_800_000
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_size: int = 2_147_483_647


class Timer(Enum):
    """The deadlines of a group; the values are not part of any stored format."""

    SESSION = "session"
    JOIN = "join"
    SYNC = "sync"


TimerKey = tuple[str, Timer, str]
"""A group, the kind of deadline, and the member whose session it is (or empty)."""


Cause = Literal[
    "member_joined", "member_left", "session_expired", "sync_timed_out", "metadata_changed", "coordinator_loaded",
    "process_died",
]  # fmt: skip
"""The cause of a rebalance, for metrics. Metadata: a member's subscription or protocols, or topics and partitions."""


class Turn:
    """The results of one request or timer. Replies are sent only after its records are stored."""

    __slots__ = ("begun", "now_ms", "rebalancing", "records", "replies", "wall_now_ms")

    def __init__(self, now_ms: int, wall_now_ms: int) -> None:
        self.now_ms = now_ms
        """Monotonic time, for sessions and timeouts."""
        self.wall_now_ms = wall_now_ms
        """Wall time, for timestamps in records."""
        self.records: list[CoordinatorRecord] = []
        self.replies: list[tuple[Callable[[Any], None], object]] = []
        """Callbacks, each with its argument."""
        self.rebalancing: list[str] = []
        """Groups that began to prepare a rebalance and wait for their members now."""
        self.begun: list[tuple[str, Cause]] = []
        """Groups that began a rebalance, each with the cause."""

    def join(self, reply: JoinReply, answer: JoinGroupResult | KafkaError) -> None:
        self.replies.append((reply, answer))

    def sync(self, reply: SyncReply, answer: SyncGroupResult | KafkaError) -> None:
        self.replies.append((reply, answer))
