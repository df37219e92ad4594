"""A consumer's membership of its group: the client's half of the classic group protocol. Synchronous.

    out --join--> joining --(all have joined)--> joined --sync--> syncing --(leader assigned)--> synced --> in
     ^                                                                                                      |
     +--------------- the group rebalances; topics or the subscription changed; the place is lost ----------+

The consumer drives it from its polls: `advance` does what can be done without waiting and returns what the consumer
must do before it can continue: give partitions up or take some. Answers of the coordinator only change the state and
wake the consumer; the coordinator never calls the consumer back directly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple, Protocol

from eventbus.backends.base import ConsumerConfig
from eventbus.coordinator.assignors import Assignor, Subscription
from eventbus.coordinator.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from eventbus.coordinator.requests import CONSUMER_PROTOCOL, JoinGroup, JoinGroupResult, SyncGroupResult
from eventbus.coordinator.strategies import common_protocol, make_assignors
from eventbus.errors import (
    ConfigError,
    FencedInstanceId,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from eventbus.types import GroupMetadata, TopicPartition

logger = logging.getLogger("eventbus.group")

State = Literal["out", "joining", "joined", "syncing", "synced", "in"]
Sight = tuple[str, int]
"""The id and partition count of a topic when it was last seen; ("", 0) if it does not exist."""


class GiveUp(NamedTuple):
    """Partitions that go to other members: finish and commit them, then call `Membership.given_up`."""

    partitions: list[TopicPartition]


class Take(NamedTuple):
    """Partitions that belong to this member now: call `Membership.taken` once they are set up."""

    partitions: list[TopicPartition]


class Coordinator(Protocol):
    """The coordinator in the log; see `eventbus.broker.groups.Groups`."""

    def join(self, request: JoinGroup, now_ms: int, reply: Callable[[JoinGroupResult | KafkaError], None]) -> None: ...

    def sync(
        self,
        group: GroupMetadata,
        assignments: Mapping[str, bytes],
        now_ms: int,
        reply: Callable[[SyncGroupResult | KafkaError], None],
        *,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> None: ...

    def heartbeat(self, group: GroupMetadata, now_ms: int) -> None: ...

    def leave(
        self, group: str, members: list[tuple[str, str | None]], now_ms: int, reason: str = ""
    ) -> list[KafkaError | None]: ...


class Host(Protocol):
    """The services that a member uses in its process."""

    @property
    def groups(self) -> Coordinator: ...

    def now_ms(self) -> int: ...

    def sight(self, topic: str) -> Sight: ...

    def members_of(self, group: str) -> Iterable[Membership]: ...


class Membership:
    """A group's member in this process."""

    def __init__(
        self,
        host: Host,
        config: ConsumerConfig,
        group: str,
        wake: Callable[[], object],
        lose: Callable[[list[TopicPartition]], object],
    ) -> None:
        """``wake`` is called when `advance` has something to do; ``lose`` with partitions that are lost: commit
        nothing for them."""
        self.group = group
        self.owned: set[TopicPartition] = set()
        self.metadata = GroupMetadata(group, group_instance_id=config.group_instance_id)
        """The member's identity in commits. It stays after a loss, so that the coordinator refuses late commits: one
        without a member would be accepted once the group is empty."""
        self._host = host
        self._config = config
        self._wake = wake
        self._lose = lose
        self._assignors: dict[str, Assignor] = {one.name: one for one in make_assignors(config.assignors)}
        self._protocol = common_protocol(self._assignors.values())
        self._state: State = "out"
        self._member_id = ""
        self._is_member = False
        """True while the group counts on this member, even if it has to join again."""
        self._topics: tuple[str, ...] | None = None
        self._reason = ""
        """Why to join again; empty if there is no reason."""
        self._look_at_topics = False
        self._error: Exception | None = None
        """The error that `advance` raises: once, or permanently if nothing can be done about it."""
        self._attempt = 0
        """The number of the current join or sync; answers to earlier ones are ignored."""
        self._joined: JoinGroupResult | None = None
        self._target: set[TopicPartition] = set()
        self._seen: dict[str, Sight] | None = None
        """The topics on which the leader's assignment is based; None in other members."""
        self._protocol_name = ""
        self._cause = ""
        self._since_ms = 0
        self._in_poll = False
        self._last_poll_ms = host.now_ms()
        self._last_beat_ms = self._last_poll_ms

    def __repr__(self) -> str:
        name = self.metadata.member_id or self._member_id or "?"
        return f"<member {name} of {self.group}: {self._state} {self.metadata.generation_id} owned={len(self.owned)}>"

    # called by the consumer
    # ----------------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Set the topics to read from now on."""
        wanted = tuple(sorted(topics))
        if wanted != self._topics:
            self._rejoin("subscribed" if self._topics is None else "the subscription changed")
            self._topics = wanted

    def topics_changed(self) -> None:
        """Check, in the leader, whether a change of topics concerns the group."""
        self._look_at_topics = True

    def forget(self, topic_partition: TopicPartition) -> None:
        """Drop a partition that was deleted with its topic."""
        self.owned.discard(topic_partition)

    def poll_begins(self) -> None:
        self._in_poll = True

    def poll_ends(self) -> int:
        """Return when `beat` leaves the group, unless another poll comes first."""
        self._in_poll = False
        self._last_poll_ms = now_ms = self._host.now_ms()
        return now_ms + self._config.max_poll_interval_ms + 1

    def polled(self) -> None:
        self._last_poll_ms = self._host.now_ms()

    @property
    def is_settled(self) -> bool:
        """True if the member is in and has no reason to join again: the only check of a poll without group work."""
        return self._state == "in" and not self._reason and not self._look_at_topics and self._error is None

    def is_waited_for(self) -> bool:
        """True if the group cannot continue before this member's next poll."""
        if self._state == "in":
            self._compare_topics()
        return self._state not in ("joining", "syncing") and not self.is_settled

    # the machine -----------------------------------------------------------------------------------------------------

    def advance(self) -> GiveUp | Take | None:
        """Continue as far as is possible now. Return None if the member is in, or waits for others.

        Raises FencedInstanceId (permanently), InconsistentGroupProtocol, InvalidSessionTimeout, InvalidGroupId,
        GroupMaxSizeReached, StorageError, and errors of an assignor: the next call tries again.
        """
        while True:
            if self._error is not None:
                error = self._error
                # A fenced member raises at every poll: another process has its place, and joining again would throw
                # that process out.
                if not isinstance(error, FencedInstanceId):
                    self._error = None
                raise error
            match self._state:
                case "in":
                    self._compare_topics()
                    if not self._reason:
                        return None
                    # Partitions are given up before the join is sent. From the join on, the group may give them to
                    # another member.
                    if step := self._before_join():
                        return step
                    self._join()
                case "out":
                    if self._topics is None:
                        return None
                    if step := self._before_join():
                        return step
                    self._join()
                case "joined":
                    self._sync()
                case "synced":
                    if step := self._settle():
                        return step
                case "joining" | "syncing":
                    return None

    def given_up(self, step: GiveUp) -> None:
        self.owned.difference_update(step.partitions)
        # Cooperative: the partitions given up can only be assigned in another round, so the member joins again at once
        # (KIP-429).
        if self._state == "synced":
            self._rejoin("gave up partitions that others wait for")

    def taken(self, step: Take) -> None:
        self.owned.update(step.partitions)

    def rebalancing(self) -> None:
        """Handle the start of a rebalance at once, instead of at the next heartbeat."""
        if self._state in ("in", "synced"):
            self._rejoin("the group rebalances")

    def _rejoin(self, reason: str) -> None:
        # The first reason stays: it is the cause, the later ones are its effects.
        self._reason = self._reason or reason
        self._wake()

    def _compare_topics(self) -> None:
        if self._look_at_topics:
            self._look_at_topics = False
            if self._seen is not None and any(self._host.sight(topic) != seen for topic, seen in self._seen.items()):
                self._rejoin("topics of the group changed")

    def _before_join(self) -> GiveUp | None:
        """Return the partitions to give up before joining. Eager: all. Cooperative: those no longer subscribed to."""
        wanted = () if self._protocol == "eager" else self._topics or ()
        moving = [topic_partition for topic_partition in self.owned if topic_partition.topic not in wanted]
        return GiveUp(sorted(moving)) if moving else None

    def _join(self) -> None:
        if self._state == "in" or not self._cause:
            self._since_ms = self._host.now_ms()
            self._cause = self._reason
        config = self._config
        cooperative = self._protocol == "cooperative"
        subscription = Subscription(
            topics=self._topics or (),
            owned_partitions=tuple(sorted(self.owned)) if cooperative else (),
            # An eager member owns nothing now, and has no generation: equal bytes do not start a rebalance.
            generation_id=self.metadata.generation_id if cooperative else -1,
        )
        request = JoinGroup(
            group=self.group,
            member_id=self._member_id,
            group_instance_id=config.group_instance_id,
            client_id=config.client_id,
            protocols=tuple(
                (name, self._subscription_bytes(one, subscription)) for name, one in self._assignors.items()
            ),
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            # The id is known before the join is parked, so that a member that stops waiting can leave.
            require_known_member_id=config.group_instance_id is None,
            supports_skipping_assignment=True,
            reason=self._reason,
        )
        # Cleared now, so that a reason that arises while the join is parked leads to another join.
        self._reason = ""
        self._state = "joining"
        attempt = self._attempt = self._attempt + 1

        def reply(result: JoinGroupResult | KafkaError) -> None:
            # The coordinator answers a parked join whenever the group is complete. Meanwhile this member may have lost
            # its place and joined again; the late answer must not change the state of the new attempt.
            if attempt == self._attempt:
                self._on_join(result)

        try:
            self._host.groups.join(request, self._host.now_ms(), reply)
        except KafkaError as error:
            reply(error)
        if config.group_instance_id is not None:
            self._fence_predecessors(config.group_instance_id)

    def _subscription_bytes(self, assignor: Assignor, subscription: Subscription) -> bytes:
        return encode_subscription(
            Subscription(
                topics=subscription.topics,
                user_data=assignor.user_data(subscription.topics),
                owned_partitions=subscription.owned_partitions,
                generation_id=subscription.generation_id,
            )
        )

    def _on_join(self, result: JoinGroupResult | KafkaError) -> None:
        if isinstance(result, MemberIdRequired):
            # KIP-394: the first join only assigns an id, and the second joins with it.
            self._member_id = result.member_id
            self._state = "out"
            self._reason = self._cause
        elif isinstance(result, KafkaError):
            self.refused(result)
        else:
            self._member_id = result.member_id
            self.metadata = GroupMetadata(
                self.group, result.generation_id, result.member_id, self._config.group_instance_id
            )
            self._protocol_name = result.protocol_name
            self._is_member = True
            self._joined = result
            self._state = "joined"
        self._wake()

    def _sync(self) -> None:
        joined = self._joined
        assert joined is not None
        # Every member syncs, but only the leader's request has assignments.
        assignments = self._assign(joined) if joined.is_leader else {}
        if not joined.is_leader:
            self._seen = None
        self._state = "syncing"
        attempt = self._attempt = self._attempt + 1

        def reply(result: SyncGroupResult | KafkaError) -> None:
            if attempt == self._attempt:
                self._on_sync(result)

        try:
            self._host.groups.sync(
                self.metadata,
                assignments,
                self._host.now_ms(),
                reply,
                protocol_type=CONSUMER_PROTOCOL,
                protocol_name=joined.protocol_name,
            )
        except KafkaError as error:
            reply(error)

    def _on_sync(self, result: SyncGroupResult | KafkaError) -> None:
        if isinstance(result, KafkaError):
            self.refused(result)
        else:
            try:
                self._target = set(decode_assignment(result.assignment))
                self._state = "synced"
            except ValueError as error:
                self._state = "out"
                self._reason = "the assignment cannot be read"
                self._error = InconsistentGroupProtocol(
                    f"group {self.group!r}: what its leader assigned cannot be read ({error}): its members must agree "
                    f"on what assignor {result.protocol_name!r} means"
                )
        self._wake()

    def _settle(self) -> GiveUp | Take | None:
        """Apply the assignment: first give up revoked partitions, then take new ones."""
        # The leader computed the assignment from its own view; a topic may have been deleted since.
        self._target = {tp for tp in self._target if tp.partition < self._host.sight(tp.topic)[1]}
        # What goes is given up first, so that at no time two members of a group read a partition.
        going = self.owned - self._target
        if going:
            return GiveUp(sorted(going))
        coming = self._target - self.owned
        if coming:
            return Take(sorted(coming))
        generation_id = self.metadata.generation_id
        self._assignors[self._protocol_name].on_assignment(sorted(self.owned), generation_id)
        self._state = "in"
        # A topic may have changed between `_assign` and now, while no state compared it.
        self._look_at_topics = self._seen is not None
        logger.info(
            "group %r generation %d: %s %sowns %d partition(s), by %s; %d ms after: %s",
            self.group, generation_id, self.metadata.group_instance_id or self._member_id,
            "leads and " if self._seen is not None else "", len(self.owned), self._protocol_name,
            self._host.now_ms() - self._since_ms, self._cause,
        )  # fmt: skip
        self._cause = ""
        return None

    def _assign(self, joined: JoinGroupResult) -> dict[str, bytes]:
        """Compute the group's assignment, as its leader."""
        subscriptions: dict[str, Subscription] = {}
        for member in joined.members:
            try:
                member_subscription = decode_subscription(member.metadata)
            except ValueError as error:
                raise InconsistentGroupProtocol(
                    f"group {self.group!r}: what member {member.member_id} subscribes to cannot be read: {error}"
                ) from error
            subscriptions[member.member_id] = Subscription(
                topics=member_subscription.topics,
                user_data=member_subscription.user_data,
                owned_partitions=member_subscription.owned_partitions,
                generation_id=member_subscription.generation_id,
                rack_id=member_subscription.rack_id,
                group_instance_id=member.group_instance_id,
            )
        topics = {topic for one in subscriptions.values() for topic in one.topics}
        # Stored before the assignment is computed, so that a change in between leads to another rebalance.
        self._seen = {topic: self._host.sight(topic) for topic in topics}
        if joined.skip_assignment:
            return {}  # KIP-814: a static leader came back, and the group keeps its assignment
        # Subscribed topics that do not exist have no partitions to assign. Their creation is a change of `_seen`.
        counts = {topic: count for topic, (_, count) in self._seen.items() if count}
        shares = self._assignors[joined.protocol_name].assign(counts, subscriptions)
        self._check_shares(shares, joined.protocol_name)
        total = sum(counts.values())
        if len(subscriptions) > total:
            logger.warning(
                "group %r has %d members for %d partition(s): %d of them are idle",
                self.group, len(subscriptions), total, len(subscriptions) - total,
            )  # fmt: skip
        return {member: encode_assignment(shares.get(member, ())) for member in subscriptions}

    def _check_shares(self, shares: Mapping[str, Iterable[TopicPartition]], name: str) -> None:
        """Check a user's assignor: if two members had the same partition, they would handle everything twice."""
        holders: dict[TopicPartition, str] = {}
        for member, share in shares.items():
            for topic_partition in share:
                other = holders.setdefault(topic_partition, member)
                if other != member:
                    raise ConfigError(f"assignor {name!r} gave {topic_partition} to both {other} and {member}")

    # losing the place ------------------------------------------------------------------------------------------------

    def refused(self, error: KafkaError) -> None:
        """Handle the refusal of a join, a sync or a heartbeat."""
        if isinstance(error, RebalanceInProgress):
            if self._state not in ("in", "synced"):
                self._state = "out"
            self._rejoin("the group rebalances")
        elif isinstance(error, (UnknownMemberId, IllegalGeneration, FencedInstanceId)):
            if isinstance(error, FencedInstanceId):
                self._error = error
            # With an old generation the member itself is still known, so it joins again under its id. Under a new id
            # the group would also wait for the old one, until its session expires.
            if not isinstance(error, IllegalGeneration):
                self._member_id = ""
            self._out(str(error))
        else:
            if self._state not in ("in", "synced"):
                self._state = "out"
                self._reason = self._cause or "failed to join"
            self._error = error
            self._wake()

    def commit_refused(self, group: GroupMetadata, error: KafkaError) -> None:
        """Handle the refusal of a commit made under ``group``."""
        if isinstance(error, RebalanceInProgress):
            self.rebalancing()
        # Only for the current identity: a commit that was sent before the last rebalance is refused late, and says
        # nothing about the place that the member has now.
        elif group == self.metadata and isinstance(error, (UnknownMemberId, IllegalGeneration, FencedInstanceId)):
            self.refused(error)

    def _out(self, reason: str) -> None:
        """Handle the loss of the membership: the partitions may already belong to others."""
        # Late answers to the join or sync under the lost identity are ignored.
        self._attempt += 1
        self._state = "out"
        self._is_member = False
        self._seen = None
        self._reason = reason
        lost = sorted(self.owned)
        self.owned.clear()
        if lost:
            logger.warning(
                "group %r: lost %s; what was not committed is read again: %s",
                self.group, ", ".join(map(str, lost)), reason,
            )  # fmt: skip
            self._lose(lost)
        self._wake()

    @property
    def poll_deadline_ms(self) -> int:
        """The time that `poll_ends` returned; in the past while a poll is under way."""
        return -1 if self._in_poll else self._last_poll_ms + self._config.max_poll_interval_ms + 1

    def beat(self, now_ms: int) -> None:
        """Keep the member alive, because its process is, unless its owner has stopped polling."""
        # Never joined, or lost its place: there is no session to keep alive.
        if self._state == "out" and not self._is_member:
            return
        most_ms = self._config.max_poll_interval_ms
        # Kafka's max.poll.interval.ms: the process is alive, but its handler may hang forever, and its partitions with
        # it.
        if not self._in_poll and now_ms - self._last_poll_ms > most_ms:
            self._give_place(
                f"no poll for {now_ms - self._last_poll_ms:,} ms, more than max_poll_interval_ms={most_ms:,}: handle "
                "fewer records per poll, or raise it"
            )
        elif now_ms - self._last_beat_ms >= self._config.heartbeat_interval_ms:
            self._last_beat_ms = now_ms
            self.heartbeat()

    def heartbeat(self) -> None:
        """Send a heartbeat, even if the member must join again. A parked join needs none: the group knows that it
        waits."""
        if not self._is_member or self._state == "joining":
            return
        try:
            self._host.groups.heartbeat(self.metadata, self._host.now_ms())
        except RebalanceInProgress:
            self.rebalancing()
        except KafkaError as error:
            self.refused(error)

    def _give_place(self, reason: str) -> None:
        """Leave, as Java's client does; the next poll joins again. A static member's place is kept by its session."""
        if self._config.group_instance_id is None and self._member_id:
            try:
                self._host.groups.leave(self.group, [(self._member_id, None)], self._host.now_ms(), reason)
            except KafkaError as error:  # a full disk: then its session expires
                logger.warning("group %r: %s could not leave: %s", self.group, self._member_id, error)
            self._member_id = ""
        self._out(reason)

    def leave(self, reason: str) -> None:
        """Leave permanently: a poll that is still running does not join again."""
        self._topics = None
        if self._state != "out" or self._member_id:
            self.owned.clear()  # already given up by the consumer
            self._give_place(reason)

    def _fence_predecessors(self, group_instance_id: str) -> None:
        """Make a previous member with this instance id in this process notice now, not at its next heartbeat.

        The group reassigns its partitions from now on, even while this member's join is parked.
        """
        for other in list(self._host.members_of(self.group)):
            if other is not self and other.metadata.group_instance_id == group_instance_id:
                other.heartbeat()
