"""The members of a classic group, and their common properties. Independent of time and requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from eventbus.coordinator.codec import StoredMember
from eventbus.coordinator.consumer_protocol import decode_subscription
from eventbus.coordinator.requests import JoinedMember, JoinGroup, JoinGroupResult, MemberDescription, SyncGroupResult
from eventbus.errors import FencedInstanceId, KafkaError, UnknownMemberId

JoinReply = Callable[[JoinGroupResult | KafkaError], None]
SyncReply = Callable[[SyncGroupResult | KafkaError], None]


class Member:
    """One member, with the fields of its last join. ``joining`` and ``syncing`` are its parked requests."""

    __slots__ = (
        "assignment", "client_host", "client_id", "group_instance_id", "is_new", "joining", "member_id", "protocols",
        "rebalance_timeout_ms", "session_timeout_ms", "syncing",
    )  # fmt: skip

    def __init__(self, member_id: str, group_instance_id: str | None) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = ""
        self.client_host = ""
        self.protocols: tuple[tuple[str, bytes], ...] = ()
        self.session_timeout_ms = 0
        self.rebalance_timeout_ms = 0
        self.assignment = b""
        self.joining: JoinReply | None = None
        self.syncing: SyncReply | None = None
        self.is_new = True
        """True until the member has received its id in an answer to a join; the handshake does not count."""

    def __repr__(self) -> str:
        static = "" if self.group_instance_id is None else f"={self.group_instance_id}"
        return f"{self.member_id}{static}{'+join' * bool(self.joining)}{'+sync' * bool(self.syncing)}"

    def metadata(self, protocol_name: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    def topics(self, protocol_name: str | None) -> frozenset[str]:
        """Return the topics that a consumer reads. Raises ValueError if its metadata is not a subscription."""
        return frozenset(decode_subscription(self.metadata(protocol_name)).topics)

    def stored(self, protocol_name: str | None, assignment: bytes) -> StoredMember:
        return StoredMember(
            self.member_id, self.group_instance_id, self.client_id, self.client_host, self.rebalance_timeout_ms,
            self.session_timeout_ms, self.metadata(protocol_name), assignment,
        )  # fmt: skip

    @classmethod
    def restore(cls, stored: StoredMember, protocol_name: str | None) -> Member:
        member = cls(stored.member_id, stored.group_instance_id)
        member.client_id, member.client_host = stored.client_id, stored.client_host
        member.rebalance_timeout_ms = stored.rebalance_timeout_ms
        member.session_timeout_ms = stored.session_timeout_ms
        member.protocols = ((protocol_name or "", stored.subscription),)
        member.assignment = stored.assignment
        member.is_new = False
        return member


class Members:
    """All members by id, in order of arrival. Counts are maintained, so that joining costs the same in a large
    group."""

    __slots__ = ("_by_id", "_supported", "joining_count", "leader_id", "static")

    def __init__(self) -> None:
        self._by_id: dict[str, Member] = {}
        self._supported: dict[str, int] = {}
        """The number of members that support each protocol."""
        self.static: dict[str, str] = {}
        """Maps each group instance id to a member id."""
        self.joining_count = 0
        """The number of parked joins."""
        self.leader_id: str | None = None

    def __repr__(self) -> str:
        return " ".join(f"{member!r}{'*' * (id == self.leader_id)}" for id, member in self._by_id.items())

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_id.values())

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._by_id

    def get(self, member_id: str) -> Member | None:
        return self._by_id.get(member_id)

    def validate(self, group: str, member_id: str, group_instance_id: str | None) -> Member:
        """Return the member. Raises UnknownMemberId, FencedInstanceId."""
        # Fenced before unknown: the process that lost its place must stop, and an unknown member would join again and
        # take the place back.
        if group_instance_id is not None and self.static.get(group_instance_id, member_id) != member_id:
            raise FencedInstanceId(
                f"another member of group {group!r} joined as group_instance_id {group_instance_id!r}, and "
                f"{member_id} is fenced: each running consumer needs one of its own"
            )
        member = self._by_id.get(member_id)
        if member is None or (group_instance_id is not None and group_instance_id not in self.static):
            raise UnknownMemberId(
                f"group {group!r} has no member {member_id!r}: it left, or its session ended without a heartbeat; "
                "rejoin"
            )
        return member

    # change ----------------------------------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        self._by_id[member.member_id] = member
        if member.group_instance_id is not None:
            self.static[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self._count(member, +1)

    def remove(self, member_id: str) -> Member | None:
        """Remove the member. The caller must answer its parked requests."""
        member = self._by_id.pop(member_id, None)
        if member is None:
            return None
        self._count(member, -1)
        self.joining_count -= member.joining is not None
        if member.group_instance_id is not None:
            del self.static[member.group_instance_id]
        if self.leader_id == member_id:
            # The oldest member, as in Kafka. A group in the middle of a rebalance elects again when it completes.
            self.leader_id = next(iter(self._by_id), None)
        return member

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member that returned under another member id its old place, and the lead if it had it."""
        led = self.leader_id == member.member_id
        self.remove(member.member_id)
        member.member_id, member.is_new = member_id, False
        self.add(member)
        if led:
            self.leader_id = member_id

    def update(self, member: Member, request: JoinGroup) -> None:
        """Update the member with the fields of a join."""
        # The counts of supported protocols must not see the old and the new protocols at the same time.
        self._count(member, -1)
        member.protocols = request.protocols
        self._count(member, +1)
        member.client_id, member.client_host = request.client_id, request.client_host
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        if request.rebalance_timeout_ms < 0:  # an old client, whose one timeout is that of the session
            member.rebalance_timeout_ms = request.session_timeout_ms

    def park_join(self, member: Member, reply: JoinReply | None) -> None:
        """Park a join, instead of an earlier parked join; None unparks it.

        The caller answers the earlier join: responses leave a connection in the order of its requests, so a missing
        response would hold back all later ones.
        """
        self.joining_count += (reply is not None) - (member.joining is not None)
        member.joining = reply

    def replace(self, members: Iterable[Member], leader_id: str | None) -> None:
        """Replace all members by these."""
        members = list(members)
        self._by_id, self._supported, self.static = {}, {}, {}
        self.joining_count, self.leader_id = 0, None
        for member in members:
            self.add(member)
            self.joining_count += member.joining is not None
        self.leader_id = leader_id

    def _count(self, member: Member, change: int) -> None:
        for name in {name for name, _ in member.protocols}:
            self._supported[name] = self._supported.get(name, 0) + change

    # all of them together --------------------------------------------------------------------------------------------

    def in_common(self) -> list[str]:
        """Return the protocols that all members support, sorted by name."""
        return sorted(name for name, count in self._supported.items() if count == len(self))

    def have_in_common(self, names: Iterable[str]) -> bool:
        return any(self._supported.get(name) == len(self) for name in names)

    def vote(self) -> str | None:
        """Return the protocol with most votes; each member votes for its first protocol that all support. The first
        wins a tie."""
        # Only protocols that all members support can win. This is what makes a rolling change of the assignor possible:
        # each process first offers both.
        everybody, votes = len(self), dict[str, int]()
        for member in self:
            for name, _ in member.protocols:
                if self._supported[name] == everybody:
                    votes[name] = votes.get(name, 0) + 1
                    break
        return max(votes, key=votes.__getitem__, default=None)

    def elect(self) -> None:
        """Keep the leader if it has joined; otherwise choose the first member that has."""
        leader = None if self.leader_id is None else self._by_id.get(self.leader_id)
        # A leader that did not join cannot assign. A static one may be away.
        if leader is None or leader.joining is None:
            self.leader_id = next(member.member_id for member in self if member.joining is not None)

    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout of all members."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def listed(self, protocol_name: str | None) -> tuple[JoinedMember, ...]:
        """Return the members as sent to the leader."""
        return tuple(
            JoinedMember(member.member_id, member.group_instance_id, member.metadata(protocol_name)) for member in self
        )

    def described(self, protocol_name: str | None, *, stable: bool) -> tuple[MemberDescription, ...]:
        """Describe the members. As in Kafka, only a stable group shows metadata and assignments."""
        return tuple(
            MemberDescription(
                member.member_id, member.group_instance_id, member.client_id, member.client_host,
                member.metadata(protocol_name) if stable else b"", member.assignment if stable else b"",
            )
            for member in self
        )  # fmt: skip
