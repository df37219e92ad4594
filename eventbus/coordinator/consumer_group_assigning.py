"""Assignment in a group of the consumer protocol: epoch, target, and a member's next step (KIP-848). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from eventbus.coordinator import consumer_group_records as records
from eventbus.coordinator.consumer_group import NOTHING, ConsumerGroup
from eventbus.coordinator.consumer_group_assignors import ASSIGNORS, assign
from eventbus.coordinator.consumer_group_member import ConsumerMember
from eventbus.coordinator.consumer_group_records import ResolvedRegex
from eventbus.coordinator.consumer_group_regex import TopicPattern
from eventbus.coordinator.consumer_group_requests import TopicIdPartition
from eventbus.coordinator.consumer_group_topics import TopicsView, metadata_hash
from eventbus.coordinator.group_rules import Turn
from eventbus.errors import InvalidRegularExpression

Regexes = Mapping[str, ResolvedRegex]


class Assigning:
    """Decides assignments; the records of each decision are added to the turn."""

    __slots__ = ("_matches", "_topics")

    def __init__(self, topics: TopicsView) -> None:
        self._topics = topics
        self._matches: dict[str, tuple[int, frozenset[str]]] = {}
        """The topics that each pattern matched, with the version of the topics at that time."""

    def advance(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        updated: ConsumerMember,
        owned: frozenset[TopicIdPartition] | None,
        turn: Turn,
        may_describe: Callable[[str], bool] = lambda _: True,
    ) -> ConsumerMember:
        """Store what a member reported, and let it take its next step. ``group`` and ``member`` are the state before.

        The group's epoch rises if the report changes what anyone reads, and then a new target is computed.
        """
        name = group.name
        is_new = member.member_id not in group.members
        if is_new or updated != member:
            turn.records.append(records.member_record(name, updated.member_id, updated))
        changed = is_new or updated.topics != member.topics or updated.regex != member.regex
        epoch, version, regexes = group.epoch, self._topics.version, group.regexes
        # Topics are compared by a version number, so that a heartbeat costs the same with ten topics and with ten
        # thousand.
        looks = changed or group.seen_version != version
        members = {**group.members, updated.member_id: updated} if looks or epoch > group.target_epoch else {}
        if looks:
            regexes = self._resolve(group, members, turn, may_describe)
            topics_hash = self.hash_of(group, members, regexes)
            # A change of topics that no member reads must not raise the epoch: every rise lets all members reconcile
            # again.
            if changed or topics_hash != group.metadata_hash or regexes != group.regexes:
                epoch += 1
                turn.begun.append((name, "member_joined" if is_new else "metadata_changed"))
                turn.records.append(records.group_record(name, epoch, topics_hash))
                if any(other.classic is not None for other in members.values()):
                    turn.rebalancing.append(name)
            else:
                # Soft state, so it may change without a record. After a restart the first heartbeat compares again.
                group.seen_version = version
        target_epoch, target = group.target_epoch, group.target
        if epoch > target_epoch:
            target_epoch, target = epoch, self._assign(group, members, regexes, epoch, turn)
        settled = updated.reconcile(
            target_epoch,
            target.get(updated.member_id, NOTHING),
            owned,
            # A partition is free only if no other member holds it or still has to confirm its revocation. So no two
            # members ever read a partition at the same time.
            lambda tp: group.owners.get(tp, updated.member_id) == updated.member_id,
        )
        if is_new or settled != updated:
            turn.records.append(records.current_record(name, settled.member_id, settled))
        return settled

    def hash_of(self, group: ConsumerGroup, members: Mapping[str, ConsumerMember], regexes: Regexes) -> int:
        names = frozenset[str]().union(*(group.topics_of(member, regexes) for member in members.values()))
        return metadata_hash(self._topics, names)

    def _assign(
        self,
        group: ConsumerGroup,
        members: Mapping[str, ConsumerMember],
        regexes: Regexes,
        epoch: int,
        turn: Turn,
    ) -> dict[str, frozenset[TopicIdPartition]]:
        readers = {member_id: group.topics_of(member, regexes) for member_id, member in members.items()}
        instance_ids = {member_id: member.instance_id for member_id, member in members.items()}
        target = assign(preferred_assignor(members.values()), readers, instance_ids, group.target, self._topics)
        turn.records += [
            records.target_record(group.name, member_id, share)
            for member_id, share in target.items()
            # Only what changed is stored: a group of a thousand members would otherwise write a thousand records for
            # each that joins.
            if group.target.get(member_id) != share
        ]
        turn.records.append(records.target_epoch_record(group.name, epoch, turn.wall_now_ms))
        return target

    def _resolve(
        self,
        group: ConsumerGroup,
        members: Mapping[str, ConsumerMember],
        turn: Turn,
        may_describe: Callable[[str], bool],
    ) -> dict[str, ResolvedRegex]:
        """Return the topics of each member's pattern, without those that the requesting member may not see, as in
        Kafka."""
        version = self._topics.version
        resolved: dict[str, ResolvedRegex] = {}
        for regex in sorted({member.regex for member in members.values()} - {""}):
            known = group.regexes.get(regex)
            matching = self._matching(regex, version)
            if matching is None:
                topics = () if known is None else known.topics
            else:
                # A pattern must not reveal the names of topics that the member may not describe.
                topics = tuple(sorted(name for name in matching if may_describe(name)))
            if known is None or known.topics != topics:
                known = ResolvedRegex(topics, version, turn.wall_now_ms)
                turn.records.append(records.regex_record(group.name, regex, known))
            resolved[regex] = known
        turn.records += [
            records.regex_record(group.name, regex, None) for regex in group.regexes if regex not in resolved
        ]
        return resolved

    def _matching(self, regex: str, version: int) -> frozenset[str] | None:
        """Return the topics that match. Returns None for a pattern that was accepted earlier and is not any more.

        The log may come from a server with RE2 and be open in one without. The member keeps the topics that its pattern
        matched there: an error would be returned to whichever member sent this heartbeat.
        """
        seen_version, found = self._matches.get(regex, (None, frozenset[str]()))
        if seen_version != version:
            try:
                pattern = TopicPattern(regex)
            except InvalidRegularExpression:
                return None
            found = frozenset(name for name in self._topics.names() if pattern.matches(name))
            # Clients choose the patterns, so the cache must have a limit.
            if len(self._matches) >= 1_000:
                self._matches.clear()
            self._matches[regex] = version, found
        return found


def preferred_assignor(members: Iterable[ConsumerMember]) -> str:
    """Return the assignor that most members request."""
    votes = dict.fromkeys(ASSIGNORS, 0)
    for member in members:
        if member.assignor in votes:
            votes[member.assignor] += 1
    return max(votes, key=votes.__getitem__)
